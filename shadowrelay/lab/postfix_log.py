"""What the sending Postfix heard from the nodes, out of its log: the client's own view of every try. Pure.

Lines are those of `docker logs --timestamps`: an instant (2026-11-21T12:00:00.123456789Z), a blank, and Postfix's line.
"""

import re
from collections import defaultdict
from collections.abc import Iterable
from datetime import datetime

from shadowrelay.lab.load import Answer, Submission

SAME_TRY_SECONDS = 0.5  # one line for each recipient of a try
UNANSWERED = "message may be sent more than once"

_LINE = re.compile(r"(?P<at>\S+) .*postfix/smtp\[\d+\]: (?P<queue_id>[0-9A-Za-z]+): (?P<text>.*)")
_SENT = re.compile(r"relay=(?P<node>[^\[]+)\[.* status=sent \(250 .*Queued as (?P<id>[0-9a-f-]{36})")
_REFUSED = re.compile(r"host (?P<node>[^\[ ]+)\[[^\]]*\] said: [45]\d\d .*in reply to end of DATA command")
_BROKEN = re.compile(r"(?:lost connection with|conversation with) (?P<node>[^\[ ]+)\[")

Tries = dict[str, list[Submission]]


def tries(lines: Iterable[str]) -> Tries:
    """By Postfix's queue id, in order. Only tries that came to the final dot count: before it a node
    has stored nothing."""
    found: Tries = defaultdict(list)
    for line in lines:
        match = _LINE.match(line)
        submission = _submission(_instant(match["at"]), match["text"]) if match else None
        if match and submission is not None and not _is_same(found[match["queue_id"]], submission):
            found[match["queue_id"]].append(submission)
    return dict(found)


def _submission(at: float, text: str) -> Submission | None:
    sent = _SENT.search(text)
    if sent is not None:
        return Submission(at, sent["node"], Answer.ACKNOWLEDGED, sent["id"])
    broken = _BROKEN.search(text)
    if broken is not None:
        return Submission(at, broken["node"], Answer.NOTHING) if UNANSWERED in text else None
    refused = _REFUSED.search(text)
    return Submission(at, refused["node"], Answer.REFUSED) if refused is not None else None


def _is_same(before: list[Submission], one: Submission) -> bool:
    return any(
        (other.node, other.answer, other.network_id) == (one.node, one.answer, one.network_id) and one.at - other.at < SAME_TRY_SECONDS
        for other in before
    )


def _instant(text: str) -> float:
    """Docker gives nanoseconds; Python takes six digits."""
    return datetime.fromisoformat(re.sub(r"(\.\d{6})\d*", r"\1", text).replace("Z", "+00:00")).timestamp()
