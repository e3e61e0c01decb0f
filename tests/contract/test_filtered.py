"""Filtered listings of messages: what SQL finds is what the rules of `protocol.filters` say, page by page, and never too much at once."""

from collections.abc import AsyncIterator, Mapping
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from shadowrelay.model.message import Recipient
from shadowrelay.model.ownership import Role, Transition
from shadowrelay.model.queue import StoredMessage, Suspension
from shadowrelay.model.values import replace
from shadowrelay.protocol.filters import MESSAGE_PROPERTIES, Kind, Value, matches, parse_filter
from shadowrelay.store import Ledger, promises, queues
from shadowrelay.store.ledger import Inline
from tests.kit.ledger import HERE, NOW, THERE, a_content, a_ledger, a_new_message, a_retry, all_done, an_attempt

HOP = "store.corp.example:25"
EXPIRY = timedelta(days=2)
WORDS = ("", "hello", "Hello 100%", "under_score", "back\\\\slash".replace("\\\\", "\\"), "it's", "x")


@pytest.fixture
async def ledger(tmp_path: Path) -> AsyncIterator[Ledger]:
    async with a_ledger(tmp_path, lambda: NOW, inline=Inline()) as opened:
        yield opened


async def accept(ledger: Ledger, size: int = 25, **envelope: Any) -> StoredMessage:
    message = a_new_message(recipients_count=len(envelope.get("recipients", "x")))
    message = replace(message, envelope=replace(message.envelope, **envelope))
    return await ledger.commit(promises.accepted, message, a_content(b"x" * size), decided=True)


async def find(ledger: Ledger, text: str, queue: str = "") -> list[int]:
    found: list[int] = []
    after: int | None = 0
    while after is not None:
        page = await ledger.read(queues.filtered, queue, parse_filter(text, MESSAGE_PROPERTIES), EXPIRY, 3, after)
        found += [stored.internal_id for stored in page.messages]
        after = page.next_after
    return found


async def search(ledger: Ledger, text: str, limit: int = 3) -> list[int]:
    found: list[int] = []
    after: int | None = 0
    while after is not None:
        page = await ledger.read(queues.searched, parse_filter(text, MESSAGE_PROPERTIES), EXPIRY, limit, after)
        found += [stored.internal_id for stored in page.messages]
        after = page.next_after
    return found


async def test_each_property_is_found_by_its_value(ledger: Ledger) -> None:
    other = await accept(ledger, 2_000, sender="b@other.example", subject="other", internet_message_id="<2@x>", connector="outbound")
    one = await accept(
        ledger,
        sender="a@x.example",
        subject="100% off",
        client_address="192.0.2.77",
        recipients=(Recipient("first@y.example"), Recipient("second@z.example", notify="NEVER")),
        arrived_at=NOW - timedelta(hours=3),
    )
    await ledger.commit(
        promises.queued,
        one.envelope.message_id,
        [a_retry(HOP, frozenset({1, 2}), failures_count=4, last_reply="451 4.3.0 Greylisted", attempts_next_at=NOW)],
    )
    queue = f"{HERE}\\\\{HOP}".replace("\\\\", "\\")
    for text in (
        "FromAddress -eq 'A@X.example'",
        "Subject -like '100% *'",
        "InternetMessageId -eq '<1@elsewhere.example>'",
        "Recipients -like '*@z.example'",
        "Recipients -eq first@y.example",
        "SourceIP -eq 192.0.2.77",
        "MessageSourceName -eq 'SMTP:inbound'",
        f"NetworkMessageId -eq {one.envelope.message_id}",
        "Size -lt 1KB",
        "RetryCount -ge 4",
        "Recipients -like '*cond@z*' -and FromAddress -like 'A@x*' -and Subject -eq '100% OFF'",
        "Status -eq Retry",
        "LastError -like '*greylisted'",
        "LastError -ne $null",
        "DateReceived -lt '2026-03-01T10:00Z'",
        "MessageLatency -ge 3h",
        "ExpirationTime -lt '2026-03-03T12:00Z'",
        f"Queue -eq {HOP}",
        f"Queue -eq '{queue}'",
    ):
        assert [one.internal_id] == await find(ledger, text), text
        assert [one.internal_id] == await search(ledger, text), text
        assert [other.internal_id] == await find(ledger, f"-not ({text})"), text
        assert [other.internal_id] == await search(ledger, f"-not ({text})"), text
    assert [other.internal_id] == await find(ledger, "Queue -eq Submission")
    assert [one.internal_id] == await find(ledger, "Recipients -notlike '*corp*'"), "no recipient is like it"


async def test_other_queues_are_filtered_too(ledger: Ledger) -> None:
    held = a_new_message(Role.SHADOW)
    await ledger.commit(promises.hold, held, a_content(), lambda _, claim: Transition(claim, held.claim))
    done, aside, suspended = [await accept(ledger) for _ in range(3)]
    await ledger.commit(promises.attempt, an_attempt(done.envelope.message_id), all_done)
    await ledger.commit(promises.set_aside, aside.envelope.message_id, "died 3 times")
    await ledger.commit(promises.suspended, suspended.envelope.message_id, Suspension(NOW, "ann"), [a_retry(HOP)])

    by_status = [await find(ledger, f"Status -eq {status}") for status in ("Suspended", "Ready")]

    assert [[aside.internal_id, suspended.internal_id], [1]] == by_status
    assert [1] == await find(ledger, f"Queue -like '*Shadow*{THERE}'")
    assert [1] == await find(ledger, "Size -gt 1", f"Shadow\\\\{THERE}".replace("\\\\", "\\"))
    assert [aside.internal_id] == await find(ledger, "LastError -like 'died*'", "Poison")
    assert [done.internal_id] == await find(ledger, "Queue -like 'SafetyNet*'", "SafetyNet\\\\Primary".replace("\\\\", "\\"))
    assert [] == await find(ledger, "Size -gt 1", "nowhere.example")


async def test_a_page_looks_at_a_bounded_number_and_says_where_the_next_one_begins(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queues, "EXAMINED_MAX", 4)
    ids = [(await accept(ledger, subject="odd" if number % 6 == 5 else "even")).internal_id for number in range(20)]
    expression = parse_filter("Subject -eq odd", MESSAGE_PROPERTIES)

    first = await ledger.read(queues.filtered, "", expression, EXPIRY, 100)

    assert ((), ids[3]) == (first.messages, first.next_after)
    assert [ids[5], ids[11], ids[17]] == await find(ledger, "Subject -eq odd")
    whole = await ledger.read(queues.filtered, "", parse_filter("Subject -eq even", MESSAGE_PROPERTIES), EXPIRY, 2)
    assert (2, ids[1]) == (len(whole.messages), whole.next_after)


async def test_a_search_finds_everything_there_is_newest_first(ledger: Ledger) -> None:
    held = a_new_message(Role.SHADOW)
    await ledger.commit(promises.hold, held, a_content(), lambda _, claim: Transition(claim, held.claim))
    done, aside = [await accept(ledger) for _ in range(2)]
    await ledger.commit(promises.attempt, an_attempt(done.envelope.message_id), all_done)
    await ledger.commit(promises.set_aside, aside.envelope.message_id, "died 3 times")

    assert [aside.internal_id, done.internal_id, 1] == await search(ledger, "Size -gt 1")
    assert [[1], [done.internal_id], [aside.internal_id]] == [
        await search(ledger, f"Role -eq {role}") for role in ("shadow", "delivered", "set-aside")
    ]


async def test_a_search_by_the_beginning_of_an_id_finds_those_that_begin_so(ledger: Ledger) -> None:
    ids = [(await accept(ledger, message_id=f"0193a6a{last}-6f1e-7c3a-9c57-0d1f2e3a4b5c")).internal_id for last in "0123456789abf"]
    await accept(ledger, message_id="1193a6a0-6f1e-7c3a-9c57-0d1f2e3a4b5c", subject="0193a6a0")

    assert ids[::-1] == await search(ledger, "NetworkMessageId -like '0193A6*'")
    assert [ids[1]] == await search(ledger, "NetworkMessageId -eq '0193A6a1-6f1e-7c3a-9c57-0d1f2e3a4b5c'")
    assert [] == await search(ledger, "NetworkMessageId -like '0193a6*' -and Subject -eq none")
    assert [ids[0]] == await search(ledger, "NetworkMessageId -like '0*a6a0-*'")
    assert [ids[-1]] == await search(ledger, "NetworkMessageId -like '*a6af-*'")


async def test_a_page_of_a_search_looks_at_a_bounded_number_and_steps_over_gaps(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queues, "SEARCHED_STEP", 4)
    monkeypatch.setattr(queues, "SEARCHED_STEPS", 2)
    ids = [(await accept(ledger, subject="odd" if number % 6 == 5 else "even")).internal_id for number in range(20)]
    connection = ledger._committer.connection.get()
    with connection.begin():
        connection.exec_driver_sql("UPDATE message SET internal_id = internal_id + 1000 WHERE internal_id > ?", (ids[9],))

    first = await ledger.read(queues.searched, parse_filter("Subject -eq none", MESSAGE_PROPERTIES), EXPIRY, 100)

    assert ((), 1000 + ids[12]) == (first.messages, first.next_after), "two steps of four"
    assert [1000 + ids[17], 1000 + ids[11], ids[5]] == await search(ledger, "Subject -eq odd")
    assert [1000 + ids[17], 1000 + ids[11], ids[5]] == await search(ledger, "Subject -eq odd", limit=1)


@pytest.mark.parametrize("words", ['say "hi"', "back\\slash", "gr\u00fc\u00dfe", "\U0001f600", "tab\there", "100%", "under_score"])
async def test_a_search_finds_text_however_the_envelope_writes_it(ledger: Ledger, words: str) -> None:
    one = await accept(ledger, subject=f"before {words} after")
    await accept(ledger, subject="before  after")

    assert [[one.internal_id]] * 2 == [await search(ledger, f"Subject -like '{pattern}'") for pattern in (f"*{words}*", f"before {words}*")]


async def test_a_listing_goes_the_other_way_round_where_that_is_wanted(ledger: Ledger) -> None:
    held = a_new_message(Role.SHADOW)
    await ledger.commit(promises.hold, held, a_content(), lambda _, claim: Transition(claim, held.claim))
    ids = [(await accept(ledger)).internal_id for _ in range(5)]
    for internal_id, stored in zip(ids, await ledger.read(queues.messages, "Submission", 9), strict=True):
        if internal_id in ids[:2]:
            await ledger.commit(promises.queued, stored.envelope.message_id, [a_retry(HOP)])
    gone = [await accept(ledger) for _ in range(3)]
    for stored in gone:
        await ledger.commit(promises.attempt, an_attempt(stored.envelope.message_id), all_done)

    for queue, expected in (
        ("", [*ids[::-1], 1]),
        ("Undelivered", ids[::-1]),
        ("Shadows", [1]),
        (HOP, ids[1::-1]),
        ("Submission", ids[:1:-1]),
        (f"Shadow\\{THERE}", [1]),
        ("SafetyNet\\Primary", [stored.internal_id for stored in gone][::-1]),
    ):
        found, page = [], await ledger.read(queues.messages, queue, 2, newest=True)
        while page:
            found += [stored.internal_id for stored in page]
            page = await ledger.read(queues.messages, queue, 2, found[-1], newest=True)
        assert expected == found, queue
        everything = await ledger.read(queues.filtered, queue, parse_filter("Size -ge 0", MESSAGE_PROPERTIES), EXPIRY, 100, newest=True)
        assert expected == [stored.internal_id for stored in everything.messages], queue


async def test_an_envelope_that_cannot_be_read_has_no_values_and_spoils_no_page(ledger: Ledger) -> None:
    broken, whole = await accept(ledger, subject="a"), await accept(ledger, subject="b")
    connection = ledger._committer.connection.get()
    with connection.begin():
        connection.exec_driver_sql("UPDATE message SET envelope = '[\"cut' WHERE internal_id = ?", (broken.internal_id,))

    assert [whole.internal_id] == await find(ledger, "Subject -eq b")
    assert [broken.internal_id] == await find(ledger, "Recipients -notlike '*@*'")


def values_of(stored: StoredMessage) -> Mapping[str, Value]:
    """What the properties with one value are, without SQL."""
    envelope, retries = stored.envelope, stored.retries
    failures_count = max((retry.failures_count for retry in retries), default=0)
    last = max(retries, key=lambda retry: retry.attempts_next_at, default=None)
    return {
        "DateReceived": envelope.arrived_at,
        "ExpirationTime": envelope.arrived_at + EXPIRY,
        "FromAddress": envelope.sender,
        "InternetMessageId": envelope.internet_message_id,
        "LastError": "" if last is None else last.last_reply,
        "MessageLatency": NOW - envelope.arrived_at,
        "MessageSourceName": f"SMTP:{envelope.connector}",
        "NetworkMessageId": envelope.message_id,
        "RetryCount": failures_count,
        "Role": stored.claim.role.value,
        "Size": None if stored.place is None else stored.place.size,
        "SourceIP": envelope.client_address,
        "Status": "Retry" if failures_count else "Ready",
        "Subject": envelope.subject,
    }


SINGLE = sorted(set(MESSAGE_PROPERTIES) - {"Recipients", "Queue"})


@st.composite
def comparisons(draw: st.DrawFn) -> str:
    name = draw(st.sampled_from(SINGLE))
    known = MESSAGE_PROPERTIES[name]
    is_text = known.kind is Kind.TEXT
    operator = draw(st.sampled_from(["-eq", "-ne", "-like", "-notlike"] if is_text else ["-eq", "-ne", "-gt", "-ge", "-lt", "-le"]))
    if operator in ("-eq", "-ne") and draw(st.integers(0, 9)) == 0:
        return f"{name} {operator} $null"
    if known.values:
        value = draw(st.sampled_from(known.values))
    elif is_text:
        value = draw(st.sampled_from(WORDS)).replace("'", "''")
        if operator.endswith("like"):
            value = draw(st.sampled_from(["{}", "*{}", "{}*", "*{}*"])).format(value)
    else:
        choices = {
            Kind.NUMBER: ("0", "1", "2"),
            Kind.SIZE: ("1B", "25", "1KB"),
            Kind.DURATION: ("0s", "1h", "3h"),
            Kind.INSTANT: ("2026-03-01T12:00:00.123456Z", "2026-03-01T10:00Z", "2026-03-03T12:00:00.123456Z"),
        }
        value = draw(st.sampled_from(choices[known.kind]))
    return f"{name} {operator} '{value}'"


FILTERS = st.recursive(
    comparisons(),
    lambda inner: st.one_of(
        inner.map("-not ({})".format),
        st.tuples(inner, st.sampled_from(["-and", "-or"]), inner).map(lambda it: f"({it[0]}) {it[1]} ({it[2]})"),
    ),
    max_leaves=6,
)


@given(FILTERS)
@example("LastError -like '*'")
@settings(max_examples=75, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
async def test_sql_finds_what_the_rules_say(filled: tuple[Ledger, list[StoredMessage]], text: str) -> None:
    ledger, messages = filled

    expected = [stored.internal_id for stored in messages if matches(parse_filter(text, MESSAGE_PROPERTIES), values_of(stored))]

    assert expected == await find(ledger, text)
    assert expected[::-1] == await search(ledger, text)


@pytest.fixture
async def filled(ledger: Ledger) -> tuple[Ledger, list[StoredMessage]]:
    """Messages that differ in everything."""
    for number in range(14):
        word = WORDS[number % len(WORDS)]
        at: datetime = NOW - timedelta(hours=number % 4)
        texts = {"sender": word, "subject": WORDS[number % 5], "internet_message_id": word, "connector": word, "client_address": word}
        stored = await accept(ledger, (1, 25, 1_000)[number % 3], arrived_at=at, **texts)
        if number % 3:
            retry = a_retry(HOP, failures_count=number % 3 - 1, last_reply=WORDS[number % 4], attempts_next_at=NOW)
            await ledger.commit(promises.queued, stored.envelope.message_id, [retry])
    return ledger, list(await ledger.read(queues.messages, "", 99))
