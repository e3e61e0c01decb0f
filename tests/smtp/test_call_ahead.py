"""Recipients that the next hop is asked for: over few sessions of deliveries, remembered, never a no that nobody said."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest
import structlog

from shadowrelay.model.receive_settings import RecipientSource
from shadowrelay.model.routing import Destination, HostPort
from shadowrelay.smtp import call_ahead
from shadowrelay.smtp.call_ahead import Asking, CallAhead
from shadowrelay.smtp.recipient_answers import IS_KNOWN, Existence
from tests.kit.clock import until
from tests.kit.smtp_servers import CLOSE, HANG, ScriptedServer, serving
from tests.smtp.deliverers import TAKEN, a_deliverer, at, deliver, route

PLAIN = ("8BITMIME",)
JOHN = "john@here.example"


def knows(*known: str, otherwise: str = "550 5.1.1 no such user") -> dict[str, Any]:
    return {"RCPT": lambda line: "250 2.1.5 ok" if line.partition("<")[2].partition(">")[0] in known else otherwise}


@contextlib.asynccontextmanager
async def asking(destination: Destination, **settings: Any) -> AsyncIterator[CallAhead]:
    values = {"name": "store", "kind": "call-ahead", **settings}
    async with a_deliverer() as deliverer:
        source = CallAhead(RecipientSource.model_validate(values), Asking(deliverer.questions.ask, lambda address: destination))
        try:
            yield source
        finally:
            await source.close()


async def answered(source: CallAhead, *addresses: str) -> list[Existence]:
    return [(await source.answer(address)).existence for address in addresses]


@pytest.mark.parametrize("extensions", [("PIPELINING", "8BITMIME"), PLAIN])
async def test_the_next_hop_decides_in_one_session_that_is_kept(extensions: tuple[str, ...]) -> None:
    store = ScriptedServer(knows(JOHN), extensions=extensions)
    async with serving(store), asking(route(at(store)), sessions=1) as source:
        found = await answered(source, "jane@here.example", JOHN, "jack@here.example", JOHN, "Jane@Here.Example")
        await until(lambda: not source._probes)

    assert [Existence.UNKNOWN, Existence.KNOWN, Existence.UNKNOWN, Existence.KNOWN, Existence.UNKNOWN] == found
    assert 1 == len(store.sessions)
    questions = [line for line in store.lines if line.startswith("RCPT")]
    assert ["RCPT TO:<jane@here.example>", f"RCPT TO:<{JOHN}>"] == questions[:2]
    assert 4 == len(questions), "three addresses and one that nobody has; the rest is remembered"
    assert {"MAIL FROM:<>"} == {line for line in store.lines if line.startswith("MAIL")}
    assert [] == store.messages
    assert [] == source.accepting_all()


async def test_several_clients_that_name_one_address_make_one_question() -> None:
    store = ScriptedServer(knows())
    async with serving(store), asking(route(at(store))) as source:
        await asyncio.gather(*(source.answer(JOHN) for _ in range(20)))

    assert 1 == len([line for line in store.lines if line.startswith("RCPT")])


@pytest.mark.parametrize("sessions", [1, 3])  # not the default
async def test_there_are_never_more_sessions_than_the_setting_says(sessions: int) -> None:
    store = ScriptedServer(knows())
    async with serving(store), asking(route(at(store)), sessions=sessions) as source:
        found = await asyncio.gather(*(source.answer(f"u{number}@here.example") for number in range(30)))

    assert {Existence.UNKNOWN} == {one.existence for one in found}
    assert store.open_count_max <= sessions


@pytest.mark.parametrize("script", [{"RCPT": "450 4.2.1 busy"}, {"MAIL": "451 4.3.0 later"}, {"RCPT": "451 4.7.1 greylisted"}])
async def test_a_4xx_is_no_no_and_is_not_remembered(script: dict[str, str]) -> None:
    store = ScriptedServer(script)
    async with serving(store), asking(route(at(store))) as source:
        found = await answered(source, JOHN)
        store.script = knows(JOHN)
        found += await answered(source, JOHN)

    assert [Existence.UNDECIDED, Existence.KNOWN] == found


async def test_a_next_hop_that_is_silent_costs_its_time_once_and_then_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(call_ahead, "QUIET_SECONDS", 600.0)
    monkeypatch.setattr(call_ahead, "QUIET_SECONDS_MAX", 600.0)
    store = ScriptedServer({"RCPT": HANG})
    async with serving(store), asking(route(at(store)), timeout="300ms") as source:
        with structlog.testing.capture_logs() as logs:
            first = await source.answer(JOHN)
            asked = list(store.lines)
            rest = [await source.answer(f"u{number}@here.example") for number in range(100)]
            asked_again = store.lines[len(asked) :]
        problem = source.problem
        source.forget_refused()
        store.script = knows(JOHN)
        again = await source.answer(JOHN)

    assert {Existence.UNDECIDED} == {one.existence for one in (first, *rest)}
    assert ("450", "4.4.1") == tuple(str(first.reply).split()[:2])
    assert [] == asked_again
    assert ["recipients.unanswered"] == [line["event"] for line in logs if line["event"].startswith("recipients.")]
    assert "route does not say who its recipients are" in problem
    assert (IS_KNOWN, "") == (again, source.problem)


async def test_who_was_known_before_is_known_while_the_next_hop_is_away(monkeypatch: pytest.MonkeyPatch) -> None:
    store = ScriptedServer(knows(JOHN))
    async with asking(Destination("route", (HostPort("127.0.0.1", 9),)), positive_cache="1m") as source:
        now = asyncio.get_running_loop().time()
        source.cache.put(JOHN, now - 61, exists=True)

        assert [Existence.KNOWN, Existence.UNDECIDED] == await answered(source, JOHN, "jane@here.example")
    assert [] == store.lines


@pytest.mark.parametrize(
    "first", [{"GREETING": "421 4.3.2 away"}, {"EHLO": CLOSE}, {"MAIL": "451 4.3.0 later"}, {"RCPT": "451 4.3.0 later"}]
)
async def test_the_next_server_of_the_list_is_asked_where_the_first_one_cannot_say(first: dict[str, str]) -> None:
    away, store = ScriptedServer(first), ScriptedServer(knows(JOHN))
    async with serving(away), serving(store), asking(route(at(away), at(store))) as source:
        found = await answered(source, JOHN, "jane@here.example")

    assert [Existence.KNOWN, Existence.UNKNOWN] == found


async def test_a_next_hop_that_accepts_everything_is_noticed_said_and_not_asked_again() -> None:
    store = ScriptedServer()
    async with serving(store), asking(route(at(store))) as source:
        with structlog.testing.capture_logs() as logs:
            await source.answer(JOHN)
            await until(source.accepting_all)
        asked = len(store.lines)
        found = await answered(source, "anybody@here.example", "else@here.example")
        problem = source.problem

    assert [Existence.KNOWN] * 2 == found
    assert asked == len([line for line in store.lines if line != "QUIT"])
    assert ["here.example"] == [line["domain"] for line in logs if line["event"] == "recipients.all_accepted"]
    assert "accepts every address of here.example" in problem


async def test_a_refused_null_sender_is_no_answer() -> None:
    store = ScriptedServer({"MAIL": "550 5.7.1 no bounces here"})
    async with serving(store), asking(route(at(store))) as source:
        found = await source.answer(JOHN)

    assert Existence.UNDECIDED is found.existence
    assert "refuses MAIL FROM:<>" in source.problem


async def test_a_question_leaves_the_session_to_deliveries_and_takes_theirs() -> None:
    store = ScriptedServer(knows(JOHN, "r1@x.example"))
    async with serving(store), a_deliverer() as deliverer:
        destination = route(at(store))
        source = CallAhead(
            RecipientSource.model_validate({"name": "s", "kind": "call-ahead"}), Asking(deliverer.questions.ask, lambda _: destination)
        )
        await source.answer("nobody@here.example")
        store.script = {}
        report = await deliver(deliverer, destination)
        store.script = knows(JOHN)
        after = await source.answer(JOHN)
        await source.close()

    assert [TAKEN] == list(report.replies.values())
    assert (IS_KNOWN, 1) == (after, len(store.sessions))


async def test_an_address_that_needs_smtputf8_asks_for_it() -> None:
    able, unable = ScriptedServer(knows("jürgen@here.example")), ScriptedServer(extensions=PLAIN)
    async with serving(able), asking(route(at(able))) as source:
        found = await answered(source, "jürgen@here.example")
    async with serving(unable), asking(route(at(unable))) as source:
        found += await answered(source, "jürgen@here.example")

    assert [Existence.KNOWN, Existence.UNKNOWN] == found
    assert "MAIL FROM:<> SMTPUTF8" in able.lines


async def test_a_kept_session_that_has_died_is_replaced() -> None:
    store = ScriptedServer(knows(JOHN))
    async with serving(store), asking(route(at(store))) as source:
        await source.answer("jane@here.example")
        store.script = {"MAIL": [CLOSE, "250 2.1.0 ok"], **knows(JOHN)}
        found = await answered(source, JOHN)

    assert [Existence.KNOWN] == found


async def test_questions_that_get_no_turn_in_time_are_not_the_fault_of_the_next_hop() -> None:
    store = ScriptedServer({"RCPT": HANG})
    async with serving(store), asking(route(at(store)), sessions=1, timeout="200ms") as source:
        hop = source._hop("route")
        await hop.turns.acquire()
        found = await source.answer(JOHN)

    assert (Existence.UNDECIDED, "too many questions to the next hop wait", "") == (found.existence, found.reason, source.problem)


async def test_a_session_ends_before_its_refusals_have_the_server_slow_it_down() -> None:
    store = ScriptedServer(knows())
    async with serving(store), asking(route(at(store)), sessions=1) as source:
        await answered(source, *(f"u{number}@here.example" for number in range(20)))

    assert [8, 8, 4] == [len([line for line in session.lines if line.startswith("RCPT")]) for session in store.sessions]


async def test_who_waits_for_an_answer_gets_one_when_the_node_stops() -> None:
    asked = asyncio.Event()
    store = ScriptedServer({"RCPT": HANG}, on_hang=asked.set)
    async with serving(store), asking(route(at(store)), timeout="60s") as source:
        waiting = asyncio.ensure_future(source.answer(JOHN))
        await asked.wait()
        await source.close()
        found = await waiting

    assert (Existence.UNDECIDED, "the node stops") == (found.existence, found.reason)
