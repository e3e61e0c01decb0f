"""Rows of `message` and `retry` in memory, and their conversion to values and columns. docs/architecture.md "On disk".

Columns are compact and readable in the sqlite3 shell; every `decode_…` of a text raises ValueError for an invalid one. Instants are whole
microseconds since 1970 in UTC, so that comparing integers is comparing instants.

A row of `message` with invalid columns becomes a claim that is SET_ASIDE, with all that could be read: the shadow server may be sent
`yours`, and nothing is delivered from it. The rows of `retry` are the forks that wait in the delivery queues.
"""

import json
from collections.abc import Iterable, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from typing import Any

import msgspec

from shadowrelay.model.ids import NO_SERVER, DatabaseId, MessageId, ServerName
from shadowrelay.model.message import EARLIEST, LATEST, NO_ORDINALS, BodyType, ContentPlace, Envelope, Ordinals, Recipient
from shadowrelay.model.ownership import Choice, Claim, Copy, CopyNumber, Role
from shadowrelay.model.queue import (
    NEVER,
    AttemptRecord,
    Delivery,
    FailureKind,
    ForkRetry,
    NewMessage,
    Origin,
    ReportedFork,
    StoredMessage,
    Suspension,
)
from shadowrelay.model.values import dataclass, replace
from shadowrelay.store import counters, tables

EPOCH = EARLIEST
MICROSECOND = timedelta(microseconds=1)
CORRUPT_ROW = "corrupt row"  # how the reason begins
RECIPIENTS_MAX = 100_000  # more than any version accepts
NEVER_MICROSECONDS = (NEVER - EPOCH) // MICROSECOND
LATEST_MICROSECONDS = (LATEST - EPOCH) // MICROSECOND
ONLY_THE_FIRST: Ordinals = frozenset((1,))  # by far the most frequent set
BODY_TYPES = {kind.value: kind for kind in BodyType}
_escaped = json.JSONEncoder(separators=(",", ":"), check_circular=False).encode


def encode_instant(at: datetime) -> int:
    """Units: microseconds since 1970, exact."""
    return (at - EPOCH) // MICROSECOND


def decode_instant(microseconds: int) -> datetime:
    """One outside of 1970 to `NEVER`, which no version wrote, is the nearest inside. Rows of `message` with such a one are corrupt."""
    if not 0 <= microseconds <= NEVER_MICROSECONDS:
        microseconds = min(max(microseconds, 0), NEVER_MICROSECONDS)
    return EPOCH + timedelta(microseconds=microseconds)


def decode_instant_or_none(microseconds: int | None) -> datetime | None:
    return None if microseconds is None else decode_instant(microseconds)


def _require_instants(arrived_at: Any, *others: Any) -> None:
    """Of the columns of a row. Raises: ValueError, TypeError."""
    if not 0 <= arrived_at < LATEST_MICROSECONDS:
        raise ValueError(f"arrived_at {arrived_at!r}")
    for at in others:
        if at is not None and not 0 <= at <= NEVER_MICROSECONDS:
            raise ValueError(f"instant {at!r}")


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
        if int(last if dash else first) > RECIPIENTS_MAX:  # before it is expanded
            raise ValueError(f"ordinals {part!r}")
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
            _require_instants(int(at))
            found.append(Delivery(decode_instant(int(at)), next_hop, decode_ordinals(ordinals), is_inside=side == "i"))
    return tuple(found)


def may_be_resubmitted(deliveries: str, last: AttemptRecord) -> bool:
    """Whether the content of a message with these deliveries and this last attempt may be needed again: not if all of them were outside of
    the boundary. Without any delivery, which does not say who has it, it may."""
    if last.sent:
        return last.is_inside or (bool(deliveries) and _has_inside(deliveries))
    return not deliveries or _has_inside(deliveries)


def _has_inside(deliveries: str) -> bool:
    return any(line.split(" ", 2)[1:2] != ["o"] for line in deliveries.splitlines())


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
    values = [
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
    if envelope.original_client:  # the last ones only as far as there is something to say
        values += (envelope.relayed_from, envelope.fingerprint, envelope.original_client)
    elif envelope.relayed_from or envelope.fingerprint:
        values += (envelope.relayed_from, envelope.fingerprint)
    try:
        octets = msgspec.json.encode(values)
    except UnicodeEncodeError:  # a lone surrogate
        return _escaped(values)
    return octets.decode("ascii") if octets.isascii() else _escaped(values)


def decode_envelope(message_id: MessageId, text: str) -> Envelope:
    """Raises: ValueError for anything that `encode_envelope` does not write."""
    try:
        # what is escaped may be a lone surrogate
        sender, recipients, arrived_at, body, smtputf8, *rest = json.loads(text) if "\\" in text else msgspec.json.decode(text)
        ret, envid, client_address, client_name, connector, internet_message_id, subject, *added = rest
        # Rows of schema version 2 and older have none of these, those of version 5 no fingerprint, those of version 6 no original client.
        if len(added) != 5:
            if len(added) not in (0, 2, 3, 4):
                raise ValueError(f"envelope: {len(added)} values after the subject")
            added.extend([""] * (5 - len(added)))
        date, resubmitted_from, relayed_from, fingerprint, original_client = added
        _require_instants(arrived_at)
        return Envelope(
            message_id=message_id,
            sender=sender,
            recipients=tuple([Recipient(entry) if isinstance(entry, str) else Recipient(*entry) for entry in recipients]),
            arrived_at=decode_instant(arrived_at),
            body=BODY_TYPES.get(body) or BodyType(body),
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
            relayed_from=MessageId(relayed_from),
            fingerprint=fingerprint,
            original_client=original_client,
        )
    except (TypeError, OverflowError) as exc:
        raise ValueError(f"envelope: {exc}") from exc


ALL = tuple(column.name for column in tables.MESSAGE.columns)
CHANGING = ALL[ALL.index("role") :]
OFTEN_CHANGED = (  # what a verdict changes, or a placement; nearly no index has these
    "ownership",
    "placement",
    "number_database",
    "done",
    "asked",
    "copies",
    "is_placed",
    "is_decided",
    "is_awaited",
    "deaths_count",
    "set_aside_reason",
    "retries_count",
)
_INSTANTS = slice(CHANGING.index("due_at"), CHANGING.index("remember_until") + 1)  # due_at, keep_until, remember_until
_SUSPENDED_AT = CHANGING.index("suspended_at")
_DELIVERED_AT, _DELIVERIES, _FORKS_COUNT, _COPIES_WANTED, _IS_KEPT = map(
    CHANGING.index, ("delivered_at", "deliveries", "forks_count", "copies_wanted", "is_kept")
)
KEPT = tuple(name for name in ALL if name != "envelope")
ENVELOPE_INDEX = ALL.index("envelope")
LARGE = 0  # the segment number of contents that are a file of their own
NEEDS_CONTENT = frozenset((Role.PRIMARY, Role.SHADOW, Role.SET_ASIDE, Role.HANDED_OVER))  # these need their content
CLAIMED = frozenset((Role.PRIMARY, Role.SET_ASIDE, Role.HANDED_OVER))  # this node's own, unless it is a set-aside shadow message
ROLES = {role.value: role for role in Role}
ORIGINS = {origin.value: origin for origin in Origin}


@dataclass(slots=True)
class Row:
    """Mutable, owned by the writer. Times are the integers of the columns. `listed` is what `listing` has now."""

    internal_id: int
    message_id: MessageId
    origin: Origin
    arrived_at: int
    claim: Claim
    due_at: int | None
    keep_until: int
    remember_until: int
    is_decided: bool = True
    is_promoted: bool = False
    promoted_from: ServerName = NO_SERVER
    is_shadow_side: bool = False
    blocks_notifications: bool = False
    deaths_count: int = 0
    set_aside_reason: str = ""
    retries_count: int = 0
    place: ContentPlace | None = None
    suspended_at: int | None = None
    suspended_by: str = ""
    listed: tuple[ServerName, ...] = ()
    written_seldom_changed: tuple[Any, ...] = ()  # what `seldom_changed` was when the row was written; empty when not known
    delivered_at: int | None = None
    deliveries: str = ""
    forks_count: int = 0
    counted: tuple[counters.Key, int] | None = None  # under which key, with how many octets, `counter` has it

    @property
    def expires_at(self) -> int | None:
        """When `expire` has something to do with it."""
        role = self.claim.role
        if role is Role.SHADOW:
            return self.keep_until
        if role in CLAIMED:
            return None
        if self.place is not None and self.place.segment == LARGE:
            return self.keep_until
        return self.remember_until

    @property
    def is_placed(self) -> bool:
        """As many servers are chosen, or were handed it, as are wanted."""
        return not self.claim.missing_count

    @property
    def is_safe(self) -> bool:
        """Nothing waits for this generated message: it has all its copies, at least one, or is over. Once another server has taken it over,
        it is there and here; where more copies are wanted, this node hears no more of them than that it is over."""
        claim = self.claim
        if claim.is_primary:
            return self.is_placed and claim.chosen() is not None
        return claim.wanted <= 1 or claim.role in (Role.DELIVERED, Role.RELEASED)

    def should_be_listed(self) -> tuple[ServerName, ...]:
        """The servers under which `primaries_listed_on` must find it."""
        claim = self.claim
        if not claim.copies or claim.role not in CLAIMED:
            return ()
        if len(claim.copies) == 1:
            return (claim.copies[0].server,)
        return tuple([copy.server for copy in claim.copies])

    def to_be_counted(self) -> tuple[counters.Key, int] | None:
        """What `counted` is once this row is written."""
        claim = self.claim
        key = queue_of(
            claim.role,
            self.retries_count,
            claim.primary,
            claim.database,
            claim.handed,
            self.forks_count,
            self.is_shadow_side,
            self.keep_until,
            claim.is_kept,
        )
        return None if key is None else (key, 0 if self.place is None else self.place.size)

    def changing(self) -> tuple[Any, ...]:
        """The columns `CHANGING`."""
        claim, place = self.claim, self.place
        number = claim.number
        copies = claim.copies
        return (
            str(claim.role),
            number.ownership,
            number.placement,
            number.database,
            encode_ordinals(claim.done) if claim.done else "",
            claim.primary,
            claim.database,
            encode_servers(claim.asked) if claim.asked else "",
            1 if claim.handed else 0,
            encode_copies(copies) if copies else "",
            1 if (copies and not claim.missing_count) or not claim.wanted else 0,
            self.due_at,
            self.keep_until,
            self.remember_until,
            self.expires_at,
            1 if self.is_decided else 0,
            1 if self.is_promoted else 0,
            self.promoted_from,
            1 if self.is_shadow_side else 0,
            1 if self.blocks_notifications else 0,
            self.deaths_count,
            self.set_aside_reason,
            self.retries_count,
            *((None, None, None, None) if place is None else (place.segment, place.offset, place.size, place.sha256)),
            self.suspended_at,
            self.suspended_by,
            self.delivered_at,
            self.deliveries,
            self.forks_count,
            claim.wanted,
            1 if claim.is_kept else 0,
        )

    def seldom_changed(self) -> tuple[Any, ...]:
        """What all columns but `OFTEN_CHANGED` are made from."""
        claim = self.claim
        return (
            claim.role,
            claim.primary,
            claim.database,
            claim.handed,
            self.due_at,
            self.keep_until,
            self.remember_until,
            self.is_promoted,
            self.promoted_from,
            self.is_shadow_side,
            self.place,
            self.suspended_at,
            self.suspended_by,
            self.delivered_at,
            self.deliveries,
            self.forks_count,
            claim.wanted,
            claim.is_kept,
        )

    def often_changed(self) -> tuple[Any, ...]:
        """The columns `OFTEN_CHANGED`."""
        claim = self.claim
        number = claim.number
        copies = claim.copies
        return (
            number.ownership,
            number.placement,
            number.database,
            encode_ordinals(claim.done) if claim.done else "",
            encode_servers(claim.asked) if claim.asked else "",
            encode_copies(copies) if copies else "",
            1 if (copies and not claim.missing_count) or not claim.wanted else 0,
            1 if self.is_decided else 0,
            1 if self.blocks_notifications else 0,
            self.deaths_count,
            self.set_aside_reason,
            self.retries_count,
        )


def queue_of(
    role: object,
    retries_count: object,
    primary_server: object,
    primary_database: object,
    handed: object,
    forks_count: object,
    side: object,
    keep_until: int,
    is_kept: object,
) -> counters.Key | None:
    """Under which key a row of `message` counts, by its columns as they are in the file."""
    if role == Role.PRIMARY:
        return None if retries_count else counters.IN_SUBMISSION
    if role == Role.SHADOW:
        return (
            counters.SHADOW,
            f"{primary_server} {primary_database}",
            (1 if handed else 0) + (2 if forks_count else 0) + (4 if is_kept else 0),
        )
    if role == Role.DELIVERED:
        return (counters.SAFETY_NET, "1" if side else "0", keep_until // counters.MICROSECONDS_PER_MINUTE)
    if role == Role.HANDED_OVER:
        return counters.IN_HANDED_OVER
    return counters.IN_POISON if role == Role.SET_ASIDE else None


def new_row(internal_id: int, message: NewMessage, place: ContentPlace, *, is_decided: bool) -> Row:
    envelope = message.envelope
    keep_until = encode_instant(message.keep_until)
    return Row(
        internal_id=internal_id,
        message_id=envelope.message_id,
        origin=message.origin,
        arrived_at=encode_instant(envelope.arrived_at),
        claim=message.claim,
        due_at=None if message.due_at is None else encode_instant(message.due_at),
        keep_until=keep_until,
        remember_until=keep_until,
        is_decided=is_decided,
        place=place,
    )


def decode_row(columns: Sequence[Any]) -> Row:
    """Of the columns `KEPT`. Never raises: see the module's docstring."""
    internal_id, message_id, origin, arrived_at, recipients_count, *changing = columns
    fault = ""
    try:
        _require_instants(arrived_at, *changing[_INSTANTS], changing[_SUSPENDED_AT], changing[_DELIVERED_AT])
        claim = _decode_claim(recipients_count, changing)
    except (ValueError, TypeError, KeyError) as exc:
        fault = f"{CORRUPT_ROW}: {exc!r}"
        claim = _salvaged_claim(recipients_count, changing)
    (due_at, keep_until, remember_until, _, is_decided, is_promoted, promoted_from, is_shadow_side, is_awaited, deaths, reason, retries) = (
        changing[11:23]
    )
    if origin not in ORIGINS:
        fault = fault or f"{CORRUPT_ROW}: origin {origin!r}"
        claim = _salvaged_claim(recipients_count, changing)
    row = Row(
        internal_id=internal_id,
        message_id=MessageId(message_id),
        origin=ORIGINS.get(origin, Origin.CLIENT),
        arrived_at=whole_number(arrived_at),
        claim=claim,
        due_at=None if fault or due_at is None else whole_number(due_at),
        keep_until=whole_number(keep_until),
        remember_until=whole_number(remember_until),
        is_decided=bool(is_decided),
        is_promoted=bool(is_promoted),
        promoted_from=ServerName(promoted_from),
        is_shadow_side=bool(is_shadow_side),
        blocks_notifications=bool(is_awaited),
        deaths_count=whole_number(deaths),
        set_aside_reason=fault or reason,
        retries_count=whole_number(retries),
        place=_decode_place(changing[23:27]),
        suspended_at=changing[27] if isinstance(changing[27], int) else None,
        suspended_by=str(changing[28]),
        delivered_at=None if changing[_DELIVERED_AT] is None else whole_number(changing[_DELIVERED_AT]),
        deliveries=str(changing[_DELIVERIES]),
        forks_count=whole_number(changing[_FORKS_COUNT]),
    )
    row.listed = row.should_be_listed()
    # By the columns themselves: a row that makes no sense is still counted as what it was.
    role, primary, database, handed = changing[0], changing[5], changing[6], changing[8]
    key = queue_of(
        role, row.retries_count, primary, database, handed, row.forks_count, row.is_shadow_side, row.keep_until, changing[_IS_KEPT]
    )
    row.counted = None if key is None else (key, whole_number(changing[25]))
    if not fault:
        row.written_seldom_changed = row.seldom_changed()
    return row


def _decode_claim(recipients_count: Any, changing: Sequence[Any]) -> Claim:
    role, ownership, placement, number_database, done, primary, database, asked, handed, copies = changing[:10]
    if not isinstance(recipients_count, int) or recipients_count < 0:
        raise ValueError(f"recipients_count {recipients_count!r}")
    if not isinstance(ownership, int) or not isinstance(placement, int):
        raise ValueError(f"number {ownership!r}.{placement!r}")
    return Claim(
        role=ROLES[role],
        number=CopyNumber(ownership, placement, number_database),
        recipients_count=recipients_count,
        done=decode_ordinals(done),
        primary=ServerName(primary),
        database=DatabaseId(database),
        asked=decode_servers(asked),
        handed=bool(handed),
        copies=decode_copies(copies),
        wanted=max(0, whole_number(changing[_COPIES_WANTED])),
        is_kept=bool(changing[_IS_KEPT]),
    )


def _salvaged_claim(recipients_count: Any, changing: Sequence[Any]) -> Claim:
    role, ownership, placement, number_database, done, primary, database, *_ = changing
    number = CopyNumber(whole_number(ownership), whole_number(placement), DatabaseId(str(number_database)))
    claim = Claim(Role.SET_ASIDE, number, whole_number(recipients_count))
    if role == Role.SHADOW or (role == Role.SET_ASIDE and primary):  # no claim of this node
        claim = replace(claim, primary=ServerName(str(primary)), database=DatabaseId(str(database)))
    try:
        claim = replace(claim, copies=decode_copies(changing[9]))
        return replace(claim, done=decode_ordinals(done))
    except (ValueError, TypeError, AttributeError):
        return claim


def whole_number(value: Any) -> int:
    return value if isinstance(value, int) else 0


def _decode_place(columns: Sequence[Any]) -> ContentPlace | None:
    segment, offset, size, sha256 = columns
    if not isinstance(sha256, bytes) or not isinstance(segment, int) or not isinstance(offset, int) or not isinstance(size, int):
        return None
    return ContentPlace(segment, offset, size, sha256)


def stored_message(row: Row, envelope: Envelope, retries: tuple[ForkRetry, ...], forks: tuple[ReportedFork, ...] = ()) -> StoredMessage:
    return StoredMessage(
        internal_id=row.internal_id,
        envelope=envelope,
        claim=row.claim,
        origin=row.origin,
        place=row.place,
        due_at=decode_instant_or_none(row.due_at),
        retries=retries,
        is_decided=row.is_decided,
        is_promoted=row.is_promoted,
        promoted_from=row.promoted_from,
        deaths_count=row.deaths_count,
        set_aside_reason=row.set_aside_reason,
        keep_until=decode_instant(row.keep_until),
        suspended=None if row.suspended_at is None else Suspension(decode_instant(row.suspended_at), row.suspended_by),
        delivered_at=None if row.delivered_at is None else decode_instant(row.delivered_at),
        deliveries=decode_deliveries(row.deliveries) if row.deliveries else (),
        forks=forks,
    )


def decode_forks(many: Iterable[Sequence[Any]]) -> dict[int, tuple[ReportedFork, ...]]:
    """Rows of `shadow_fork` by internal id. One that makes no sense is left out."""
    found: dict[int, list[ReportedFork]] = {}
    for internal_id, name, ordinals in many:
        with suppress(ValueError):
            found.setdefault(internal_id, []).append(ReportedFork(shadow_queue(name)[1], decode_ordinals(ordinals)))
    return {internal_id: tuple(forks) for internal_id, forks in found.items()}


def shadow_queue(name: str) -> tuple[ServerName, str]:
    """Primary server and next hop, of the text in `shadow_fork` and `counter`."""
    primary, _, next_hop = name.partition(" ")
    return ServerName(primary), next_hop


def empty_envelope(message_id: MessageId, recipients_count: int, arrived_at: datetime) -> Envelope:
    """Stands for one that cannot be read, or was never known; with the right number of recipients."""
    return Envelope(message_id, "", (Recipient(""),) * max(1, min(recipients_count, RECIPIENTS_MAX)), arrived_at)


def encode_retry(internal_id: int, retry: ForkRetry) -> tuple[Any, ...]:
    return (
        internal_id,
        retry.next_hop,
        encode_ordinals(retry.ordinals),
        retry.failures_count,
        str(retry.kind),
        encode_instant(retry.first_failed_at),
        encode_instant(retry.attempts_next_at),
        retry.last_reply,
        1 if retry.delay_notified else 0,
        retry.waits_for,
        None if retry.notice_at is None else encode_instant(retry.notice_at),
    )


def decode_retries(many: Iterable[Sequence[Any]]) -> dict[int, tuple[ForkRetry, ...]]:
    """By internal id. A retry row that makes no sense is left out: its recipients are then tried at once."""
    found: dict[int, list[ForkRetry]] = {}
    for internal_id, *columns in many:
        if (retry := decode_retry(columns)) is not None:
            found.setdefault(internal_id, []).append(retry)
    return {internal_id: tuple(retries) for internal_id, retries in found.items()}


def decode_retry(columns: Sequence[Any]) -> ForkRetry | None:
    """Of the columns behind `message`; `None` for a row that makes no sense."""
    next_hop, ordinals, failures_count, kind, first_failed_at, attempts_next_at, last_reply, notified, waits_for, notice_at = columns
    try:
        return ForkRetry(
            next_hop=next_hop,
            ordinals=decode_ordinals(ordinals),
            failures_count=failures_count,
            kind=FailureKind(kind),
            first_failed_at=decode_instant(first_failed_at),
            attempts_next_at=decode_instant(attempts_next_at),
            last_reply=last_reply,
            delay_notified=bool(notified),
            waits_for=ServerName(waits_for),
            notice_at=decode_instant_or_none(notice_at),
        )
    except (ValueError, TypeError, AttributeError):
        return None
