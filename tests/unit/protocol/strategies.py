"""Values as they may stand on the wire, for hypothesis, and the one question of every fuzz test."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

from hypothesis import strategies as st

from shadowrelay.model.ids import NO_MESSAGE, BoundaryName, DatabaseId, MessageId, ServerName
from shadowrelay.model.message import BodyType, Envelope, Recipient
from shadowrelay.model.ownership import (
    CopyNumber,
    DiscardEvent,
    DiscardStatus,
    StatusAnswer,
    StatusQuestion,
    StatusState,
)
from shadowrelay.model.peers import PeerIdentity, Seen
from shadowrelay.model.replies import WireError
from shadowrelay.model.tracking import EventId, EventSource, TrackingEvent
from shadowrelay.protocol.fields import ORDINAL_MAX

A = DatabaseId("0f3c1d2e-7f68-4d3f-9a2a-0d4c2f5a6b7c")
B = DatabaseId("b2a1e3c4-1111-4222-8333-944455566677")
ID = MessageId("6ba7b810-9dad-41d1-80b4-00c04fd430c8")
ARRIVED = datetime(2026, 11, 21, 12, 0, 0, 250000, tzinfo=UTC)

counters = st.integers(0, 2**63 - 1)
ranks = st.integers(0, 2**31 - 1)
uuids = st.uuids().map(str)
numbers = st.builds(CopyNumber, ranks, ranks, uuids.map(DatabaseId))
message_ids = uuids.map(MessageId)
servers = st.from_regex(r"[a-z0-9]{1,20}(\.[a-z0-9]([a-z0-9-]{0,10}[a-z0-9])?){0,3}", fullmatch=True).map(ServerName)
ordinals = st.frozensets(st.integers(1, ORDINAL_MAX), max_size=200)
some_ordinals = st.frozensets(st.integers(1, ORDINAL_MAX), min_size=1, max_size=200)
instants = st.datetimes(datetime(1970, 1, 1), datetime(8999, 12, 31, 23, 59, 59, 999_999), timezones=st.just(UTC))
texts = st.text(st.characters(codec=None, exclude_categories=()), max_size=60)  # lone surrogates and controls too
uncut_texts = texts.map(lambda text: text[:33])  # 33 x 12 octets of JSON = 396, less than any limit of an envelope
names_of_settings = st.from_regex(r"[a-z0-9_]{1,20}", fullmatch=True)
values_of_settings = st.from_regex(r"[a-z0-9.]{1,9}", fullmatch=True)
identities = st.builds(
    PeerIdentity,
    server=servers,
    boundary=st.text(min_size=1, max_size=16).map(BoundaryName),
    database=uuids.map(DatabaseId),
    incarnation=counters,
    began=counters,
    position=counters,
    span=st.timedeltas(timedelta(microseconds=1), timedelta(days=1)),
    seen=st.none() | st.builds(Seen, counters, counters, counters),
    is_draining=st.booleans(),
    common=st.lists(st.tuples(names_of_settings, values_of_settings), max_size=9).map(tuple),
    machine=st.just("") | st.from_regex(r"[0-9a-f]{32}", fullmatch=True),
    domains=st.lists(st.from_regex(r"[A-Za-z0-9._-]{1,64}", fullmatch=True), max_size=8).map(tuple),
)
envelopes = st.builds(
    Envelope,
    message_id=message_ids,
    sender=st.just("a@b.example"),
    recipients=st.just((Recipient("c@d.example"),)),
    arrived_at=instants,
    body=st.sampled_from(BodyType),
    smtputf8=st.booleans(),
    ret=st.none() | st.sampled_from(["FULL", "HDRS"]),
    envid=st.none() | st.from_regex(r"[!-<>-~]{1,100}", fullmatch=True),
    client_address=st.ip_addresses().map(str),
    client_name=uncut_texts,
    connector=uncut_texts,
    internet_message_id=uncut_texts,
    subject=uncut_texts,
    date=uncut_texts,
    resubmitted_from=st.just(NO_MESSAGE) | message_ids,
)
questions = st.builds(StatusQuestion, message_ids, numbers)
answers = st.one_of(
    st.builds(StatusAnswer, st.just(StatusState.PRIMARY), numbers, done=ordinals),
    st.builds(StatusAnswer, st.just(StatusState.SHADOW), numbers, servers, uuids.map(DatabaseId), st.booleans(), ordinals),
    st.builds(StatusAnswer, st.just(StatusState.RELEASED), numbers, done=ordinals),
    st.builds(StatusAnswer, st.sampled_from([StatusState.DELIVERED, StatusState.UNKNOWN]), done=ordinals),
)
next_hops = st.text(st.characters(exclude_categories=("C", "Z"), exclude_characters="\\"), min_size=1, max_size=20)
event_lists = st.lists(
    st.one_of(
        st.builds(DiscardEvent, counters, message_ids, st.sampled_from([*set(DiscardStatus) - {DiscardStatus.FORKS}]), ordinals),
        st.builds(DiscardEvent, counters, message_ids, st.just(DiscardStatus.FORKS), ordinals.filter(bool), next_hops),
    ),
    max_size=6,
    unique_by=lambda event: event.sequence,
).map(lambda events: tuple(sorted(events, key=lambda event: event.sequence)))


def refusal(parse: Callable[..., Any], *arguments: Any) -> str | None:
    """The reply that the parser refuses with, `None` if it does not; any other exception goes through and fails the test."""
    try:
        parse(*arguments)
    except WireError as error:
        return str(error.reply)
    return None


NASTY = [
    "",
    ",",
    '"',
    '""',
    '","',
    "a,b",
    'a"b',
    "\r\n",
    "\n",
    "\r",
    "\0",
    "\t",
    "\x1c",
    "\x85",
    "\u2028",
    "\u2029",
    "\ud800",
    "\udcff",
    "\\",
    "\\u",
    "\\u000a",
    "\\\n",
    "\\\\u0041",
    "\\U000a",
    ";",
    "=",
    "a=b;c",
    "S:a=b",
    " ",
    "\u00a0",
    "\U0001f600",
    "\ufeff",
    "#Fields: x",
    "\x7f",
    "'",
    "\\\ud800",
    "<>",
]


texts_or_nasty = texts | st.lists(st.sampled_from(NASTY), max_size=5).map("".join)


items = st.lists(texts_or_nasty, max_size=4).map(tuple).filter(lambda values: values != ("",))


tracking_events = st.builds(
    TrackingEvent,
    at=instants,
    event=st.sampled_from(EventId),
    source=st.sampled_from(EventSource),
    internal_message_id=st.integers(-(2**60), 2**60),
    network_message_id=texts_or_nasty,
    message_id=texts_or_nasty,
    client_ip=texts_or_nasty,
    client_hostname=texts_or_nasty,
    server_ip=texts_or_nasty,
    server_hostname=texts_or_nasty,
    source_context=texts_or_nasty,
    connector_id=texts_or_nasty,
    recipients=items,
    recipient_statuses=items,
    total_bytes=st.integers(0, 2**60),
    reference=texts_or_nasty,
    subject=texts_or_nasty,
    sender=texts_or_nasty,
    message_info=texts_or_nasty,
    original_client_ip=texts_or_nasty,
    custom_data=st.lists(st.tuples(texts_or_nasty, texts_or_nasty), max_size=3).map(tuple),
)
