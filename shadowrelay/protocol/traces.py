"""What `Received` fields say of a message's way: that it has passed this node before, and that it goes in a circle. RFC 5321 4.4, 6.3.

Who passes once more may do so for a reason: a filter hands a message back, somebody puts one back from a mailbox, another node takes it
over. So a circle is only what came to the same node, from the same client, for the same recipient and by the same way, again and again:
then nothing on that way has changed, and it comes again. Whatever else goes in circles is ended by the count of hops. docs/design.md 6.5
"""

import re
from collections.abc import Sequence

RETURNS_MAX = 2  # the third return is refused; one may be somebody's wish, two the same one's once more
RETURNS_UNKNOWN_MAX = 5  # where our field names no recipient, because there were several

_FIELD = re.compile(rb"received:((?:[^\r]|\r\n[ \t])*)", re.DOTALL)
_BY = re.compile(rb"\bby\s+([^\s;]+)")
_OURS = re.compile(rb"\s*from (\S+ \(\S+\))\s+by (\S+) with (?:utf8)?e?smtps? id ([^\s;]+)(?:\s+for (<[^;]*>))?;")


def own_traces(header: bytes, server: str) -> list[bytes]:
    """The ids in the Received fields of a header that name `server` as the receiver: it received, took over or resubmitted the message.

    Shapes: `header` is in lower case; an id is empty if the field has none after its protocol. RFC 5321 4.4
    """
    by = f"by {server}".lower().encode()
    if by not in header:
        return []
    return re.findall(re.escape(by) + rb"(?: |\r\n\t)with (?:\S+ id ([^\s;]+))?", header)


def goes_in_circles(header: bytes, server: str) -> bool:
    """Whether the message has come to `server` in the way in which it comes now too often for anything but a mail loop.

    Shapes: `header` is in lower case, the field of this arrival is its first.
    """
    name = server.lower().encode()
    if header.count(b"by " + name) <= RETURNS_MAX + 1:
        return False
    passes: list[tuple[bytes, bytes]] = []  # of this server, the latest first: the client, and for whom
    ways: list[list[bytes]] = []  # the servers between each and the one before
    ids: set[bytes] = set()
    for field in re.split(rb"\r\n(?![ \t])", header):
        if (received := _FIELD.match(field)) is None:
            continue
        ours = _OURS.match(received[1])
        if ours is not None and ours[2] == name:
            if ours[3] in ids:
                return False  # copied, not passed
            ids.add(ours[3])
            passes.append((ours[1], ours[4] or b""))
            ways.append([])
        elif ways:
            by = _BY.search(received[1])
            ways[-1].append(by[1] if by else b"")
    return _same_at_first(list(zip(passes, ways, strict=True)))


def _same_at_first(rounds: Sequence[tuple[tuple[bytes, bytes], list[bytes]]]) -> bool:
    """The last one is the first arrival, whose way here is another."""
    if not rounds:
        return False
    needed = RETURNS_MAX + 1 if rounds[0][0][1] else RETURNS_UNKNOWN_MAX + 1
    return len(rounds) > needed and all(each == rounds[0] for each in rounds[:needed])
