"""Values <-> column texts. Compact and readable in the sqlite3 shell; every `decode_*` raises ValueError on nonsense.

Instants are whole microseconds since 1970 in UTC, so that comparing integers is comparing instants.
"""

import json
from collections.abc import Iterable, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any

from shadowrelay.model.ids import DatabaseId, MessageId, ServerName
from shadowrelay.model.message import NO_ORDINALS, BodyType, Envelope, Ordinals, Recipient
from shadowrelay.model.ownership import Choice, Copy
from shadowrelay.model.queue import Delivery

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MICROSECOND = timedelta(microseconds=1)
ONLY_THE_FIRST: Ordinals = frozenset((1,))  # by far the most frequent set
_dumps = json.JSONEncoder(separators=(",", ":"), check_circular=False).encode


def encode_instant(at: datetime) -> int:
    """Units: microseconds since 1970, exact."""
    return (at - EPOCH) // MICROSECOND


def decode_instant(microseconds: int) -> datetime:
    return EPOCH + timedelta(microseconds=microseconds)


def decode_instant_or_none(microseconds: int | None) -> datetime | None:
    return None if microseconds is None else EPOCH + timedelta(microseconds=microseconds)


def encode_ordinals(ordinals: Ordinals) -> str:
    """Ranges: `1-40,57`; empty for none."""
    if not ordinals:
        return ""
    if len(ordinals) == 1:
        return str(next(iter(ordinals)))
    ranges: list[list[int]] = []
    for ordinal in sorted(ordinals):
        if ranges and ordinal == ranges[-1][1] + 1:
            ranges[-1][1] = ordinal
        else:
            ranges.append([ordinal, ordinal])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in ranges)


def decode_ordinals(text: str) -> Ordinals:
    if not text:
        return NO_ORDINALS
    if text == "1":
        return ONLY_THE_FIRST
    ordinals: set[int] = set()
    for part in text.split(","):
        first, dash, last = part.partition("-")
        ordinals.update(range(int(first), int(last) + 1) if dash else (int(first),))
    return frozenset(ordinals)


def encode_copies(copies: Sequence[Copy]) -> str:
    """A line each: server, database, choice and, where the list has it, placement. No name of a server has a space in it."""
    if len(copies) == 1:
        (copy,) = copies
        return f"{copy.server} {copy.database} {copy.choice:d}{f' {copy.placement}' if copy.placement else ''}"
    return "\n".join([f"{copy.server} {copy.database} {copy.choice:d}{f' {copy.placement}' if copy.placement else ''}" for copy in copies])


def decode_copies(text: str) -> tuple[Copy, ...]:
    if not text:
        return ()
    copies = []
    for line in text.split("\n"):
        server, database, choice, *placement = line.split(" ")
        copies.append(Copy(ServerName(server), DatabaseId(database), Choice(int(choice)), int(placement[0]) if placement else 0))
    return tuple(copies)


def encode_delivery(at: int, next_hop: str, ordinals: Ordinals, is_inside: bool) -> str:
    """A line: microseconds, `i`nside or `o`utside the boundary, ordinals, next hop."""
    return f"{at} {'i' if is_inside else 'o'} {encode_ordinals(ordinals)} {next_hop}\n"


def decode_deliveries(text: str) -> tuple[Delivery, ...]:
    """Of a text that makes no sense, nothing: the route of its recipients decides where they were delivered."""
    found = []
    with suppress(ValueError, OverflowError):
        for line in text.removesuffix("\n").split("\n"):
            at, side, ordinals, next_hop = line.split(" ", 3)
            found.append(Delivery(decode_instant(int(at)), next_hop, decode_ordinals(ordinals), is_inside=side == "i"))
    return tuple(found)


def encode_servers(servers: Iterable[ServerName]) -> str:
    return " ".join(sorted(servers))


def decode_servers(text: str) -> frozenset[ServerName]:
    return frozenset(map(ServerName, text.split())) if text else frozenset()


def encode_envelope(envelope: Envelope, arrived_at: int) -> str:
    """One JSON array; a recipient without parameters is its address alone. Lone surrogates survive, being escaped. `arrived_at` is that of
    the envelope, as `encode_instant` writes it."""
    recipients: list[Any] = [
        each.address if each.notify is None and each.orcpt is None else [each.address, each.notify, each.orcpt]
        for each in envelope.recipients
    ]
    return _dumps(
        [
            envelope.sender,
            recipients,
            arrived_at,
            str(envelope.body),
            1 if envelope.smtputf8 else 0,
            envelope.ret,
            envelope.envid,
            envelope.client_address,
            envelope.client_name,
            envelope.connector,
            envelope.internet_message_id,
            envelope.subject,
            envelope.date,
            envelope.resubmitted_from,
        ]
    )


def decode_envelope(message_id: MessageId, text: str) -> Envelope:
    """Raises: ValueError for anything that `encode_envelope` does not write."""
    try:
        sender, recipients, arrived_at, body, smtputf8, *rest = json.loads(text)
        ret, envid, client_address, client_name, connector, internet_message_id, subject, *added = rest
        date, resubmitted_from = added or ("", "")  # rows of schema version 2 and older have neither
        return Envelope(
            message_id=message_id,
            sender=sender,
            recipients=tuple([Recipient(entry) if isinstance(entry, str) else Recipient(*entry) for entry in recipients]),
            arrived_at=decode_instant(arrived_at),
            body=BodyType(body),
            smtputf8=bool(smtputf8),
            ret=ret,
            envid=envid,
            client_address=client_address,
            client_name=client_name,
            connector=connector,
            internet_message_id=internet_message_id,
            subject=subject,
            date=date,
            resubmitted_from=MessageId(resubmitted_from),
        )
    except (TypeError, OverflowError) as exc:
        raise ValueError(f"envelope: {exc}") from exc
