"""The counters of the queues say what the tables say, whatever happened to the messages."""

import asyncio
import sqlite3
import tempfile
from collections.abc import Callable
from contextlib import closing, suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from shadowrelay.model.ids import NO_SERVER, MessageId
from shadowrelay.model.ownership import Choice, Claim, Copy, DiscardEvent, DiscardStatus, Role, Transition
from shadowrelay.model.queue import FailureKind, QueueKind, ShadowGroup
from shadowrelay.model.replies import IllegalTransition, LedgerUnavailable
from shadowrelay.model.survival import Survival
from shadowrelay.model.values import replace
from shadowrelay.ownership import claims
from shadowrelay.rules.delivery import LadderStep
from shadowrelay.store import Ledger, peer_promises, promises, queues, reading, steps
from shadowrelay.store.ledger import Inline
from tests.kit.clock import Hands
from tests.kit.ledger import (
    DAY,
    HERE,
    NEW_DATABASE,
    NOW,
    OTHER,
    THEIR_DATABASE,
    THERE,
    Refused,
    a_content,
    a_generated_message,
    a_ledger,
    a_message_id,
    a_new_message,
    a_retry,
    a_spooled_content,
    accept,
    all_done,
    an_attempt,
    an_identity,
    choose,
    counts_in,
    discarded,
    forks_heard,
    keep_copy,
    promote,
    refuse,
    release,
    released_heard,
    remove,
    some_done,
    yield_to,
)

STEP_OF_FORKS = LadderStep(FailureKind.CONNECTION, 0, 9, timedelta(0))
NEXT_HOPS = ("one.example:25", "two.example:25", "three.example:25")
COPIES = (
    (),
    (Copy(THERE, THEIR_DATABASE),),
    (Copy(THERE, THEIR_DATABASE, Choice.CHOSEN), Copy(OTHER, NEW_DATABASE)),
    (Copy(OTHER, NEW_DATABASE, Choice.CHOSEN),),
)


def listing(copies: tuple[Copy, ...]) -> Callable[[MessageId, Claim | None], Transition]:
    return lambda _, before: Transition(before, None if before is None else replace(before, copies=copies))


def handed(_: MessageId, before: Claim | None) -> Transition:
    return Transition(before, None if before is None else replace(before, handed=not before.handed))


def drained(_: MessageId, before: Claim | None) -> Transition:
    return Transition(before, before) if before is None else claims.handed_over_by_drain(before)


class Driver:
    """Does what numbers say to a ledger; a promise that makes no sense for the message is refused, and that is all right."""

    def __init__(self, ledger: Ledger, wall: Hands, spool: Path) -> None:
        self.ledger, self.wall, self.spool = ledger, wall, spool
        self.ids: list[MessageId] = []

    def step(self, operation: str, which: int, detail: int) -> Any:
        ledger = self.ledger
        message_id = self.ids[which % len(self.ids)] if self.ids else a_message_id()
        copies = COPIES[detail % len(COPIES)]
        match operation:
            case "accept":
                message = a_new_message(recipients_count=3, copies=copies)
                self.ids.append(message.envelope.message_id)
                return ledger.commit(promises.accepted, message, a_content(b"x" * (detail + 1)), decided=bool(detail % 2))
            case "accept again":  # SQLite refuses it: the promises of its commit are made under savepoints
                return accept(ledger, message_id=message_id)
            case "accept large":
                message = a_new_message(copies=copies)
                self.ids.append(message.envelope.message_id)
                return ledger.commit(promises.accepted, message, a_spooled_content(self.spool, b"x" * 1_100_000), decided=True)
            case "hold" | "hold anew":
                message = a_new_message(Role.SHADOW, detail % 3 + 1, message_id if operation == "hold anew" else None)
                self.ids.append(message.envelope.message_id)
                return ledger.commit(promises.hold, message, a_content(b"y" * (detail + 2)), keep_copy)
            case "retry":
                forks = tuple(a_retry(hop, frozenset({1}), waits_for=THERE if detail > 5 else NO_SERVER) for hop in NEXT_HOPS[: detail % 4])
                return ledger.commit(promises.queued, message_id, forks, NEXT_HOPS[detail % 3 :])
            case "wake":
                return ledger.commit(promises.wake, THERE, 10)
            case "hasten":
                return ledger.commit(promises.hasten, NEXT_HOPS[detail % 3], STEP_OF_FORKS, NOW, 10)
            case "deliver some":
                fork = a_retry(NEXT_HOPS[detail % 3], frozenset({2, 3}))
                return ledger.commit(
                    promises.attempt, an_attempt(message_id, next_hop=fork.next_hop, retry=fork, others=(fork,)), some_done(1)
                )
            case "deliver":
                keep_until = NOW + timedelta(minutes=detail)
                return ledger.commit(
                    promises.attempt, an_attempt(message_id, keep_until=keep_until, remember_until=keep_until + DAY), all_done
                )
            case "bounce":
                generated = a_generated_message()
                self.ids.append(generated.message.envelope.message_id)
                return ledger.commit(promises.attempt, an_attempt(message_id, generated=(generated,)), all_done)
            case "discarded":
                event = DiscardEvent(1, message_id, DiscardStatus.DELIVERED)
                return ledger.commit(promises.discards, THERE, THEIR_DATABASE, 1, [event], discarded, NOW + timedelta(minutes=detail))
            case "fork":
                events = [
                    DiscardEvent(place, message_id, DiscardStatus.FORKS, frozenset({place % 3 + 1}), NEXT_HOPS[(place + detail) % 3])
                    for place in range(1, detail + 2)
                ]
                return ledger.commit(promises.discards, THERE, THEIR_DATABASE, 1, events, forks_heard, NOW)
            case "offered":
                return asyncio.to_thread(ledger.peers.note_forks_offered, THERE if which % 2 else OTHER, bool(detail % 3))
            case "heard":
                return ledger.commit(
                    peer_promises.peer_heard, an_identity(database=(THEIR_DATABASE, NEW_DATABASE)[detail % 2], position=detail), NOW
                )
            case "acknowledge":
                return ledger.commit(promises.forget_acknowledged, THERE, THEIR_DATABASE, detail, released_heard)
            case "forget":
                return steps.forget_peer(ledger, THERE if detail % 2 else OTHER)
            case "set aside":
                return ledger.commit(promises.set_aside, message_id, "no")
            case "verdict":
                return ledger.commit(promises.verdict, message_id, choose)
            case "expire":
                self.wall.at += timedelta(hours=detail)
                return steps.expire(ledger, self.wall.at, 100)
            case "forget unasked":
                return steps.forget_unasked(ledger, self.wall.at)
            case _:
                decide = {
                    "list": listing(copies),
                    "hand": handed,
                    "drain": drained,
                    "promote": promote,
                    "release": release,
                    "remove": remove,
                    "yield": yield_to(OTHER, NEW_DATABASE),
                    "some done": some_done(detail % 3 + 1),
                    "refuse": refuse,
                }[operation]
                return ledger.commit(promises.transition, [message_id], decide)


OPERATIONS = (
    *("accept", "accept", "accept large", "hold", "hold anew", "retry", "retry", "deliver some", "deliver", "bounce", "discarded", "heard"),
    *(
        "acknowledge",
        "forget",
        "set aside",
        "verdict",
        "expire",
        "forget unasked",
        "list",
        "hand",
        "drain",
        "promote",
        "release",
        "remove",
        "yield",
    ),
    *("refuse", "accept again", "wake", "hasten", "fork", "fork", "offered", "some done"),
)
STEP = st.tuples(st.sampled_from(OPERATIONS), st.integers(0, 9), st.integers(0, 9))
IMPOSSIBLE = (LedgerUnavailable, IllegalTransition, Refused, AssertionError, AttributeError)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.lists(STEP, min_size=1, max_size=6), min_size=1, max_size=12), st.booleans())
@example(  # made and removed in two savepoints of one transaction
    [
        [("accept", 0, 0)] * 4,
        [("hold", 0, 0), ("remove", 4, 0), ("accept again", 0, 0)],
        [("deliver", 4, 0)],
    ],
    False,
)
def test_whatever_is_done_the_counters_are_what_the_tables_say(batches: list[list[tuple[str, int, int]]], is_inline: bool) -> None:
    """Each batch is promised at once, so it is one transaction, or savepoints where one of it fails."""

    async def run(directory: Path) -> None:
        wall = Hands(NOW)
        async with a_ledger(directory / "data", wall, inline=Inline() if is_inline else None) as ledger:
            driver = Driver(ledger, wall, directory)
            for batch in batches:
                promises = [driver.step(*step) for step in batch]
                for outcome in await asyncio.gather(*promises, return_exceptions=True):
                    if isinstance(outcome, BaseException) and not isinstance(outcome, IMPOSSIBLE):
                        raise outcome
                found, expected = await counts_in(ledger)
                assert expected == found

    with tempfile.TemporaryDirectory() as directory:
        asyncio.run(run(Path(directory)))


async def test_a_commit_that_fails_counts_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with a_ledger(tmp_path) as ledger:
        first = await accept(ledger)
        before, _ = await counts_in(ledger)

        def full(*_: object) -> None:
            raise OSError(28, "No space left on device")

        with monkeypatch.context() as patched:
            patched.setattr(ledger._contents, "sync", full)
            outcomes = await asyncio.gather(*(accept(ledger) for _ in range(3)), return_exceptions=True)
        assert {LedgerUnavailable} == {type(outcome) for outcome in outcomes}
        assert (before, before) == await counts_in(ledger)

        await ledger.commit(promises.attempt, an_attempt(first.envelope.message_id), all_done)
        found, expected = await counts_in(ledger)
        assert expected == found


async def test_a_message_in_safety_net_is_counted_until_its_minute_is_over(tmp_path: Path) -> None:
    wall = Hands(NOW)

    async def count(ledger: Ledger) -> int:
        (row,) = [row for row in await ledger.read(queues.queues) if row.kind is QueueKind.SAFETY_NET_PRIMARY]
        return row.count

    async with a_ledger(tmp_path, wall) as ledger:
        stored = await accept(ledger)
        await ledger.commit(
            promises.attempt, an_attempt(stored.envelope.message_id, keep_until=NOW + DAY, remember_until=NOW + 2 * DAY), all_done
        )
        counts = []
        for wall.at in (NOW + DAY - timedelta(seconds=1), NOW + DAY + timedelta(minutes=1), NOW + timedelta(days=1.5), NOW):
            counts.append(await count(ledger))

    assert [1, 0, 0, 1] == counts


async def test_the_octets_of_a_queue_are_those_of_its_contents(tmp_path: Path) -> None:
    async with a_ledger(tmp_path) as ledger:
        for size in (10, 20):
            await accept(ledger, b"x" * size)
        waiting = await accept(ledger, b"x" * 40)
        await ledger.commit(promises.queued, waiting.envelope.message_id, tuple(a_retry(hop) for hop in NEXT_HOPS[:2]))

        octets = {row.identity: row.octets for row in await ledger.read(queues.queues) if row.octets}

    assert {f"{HERE}\\Submission": 30, f"{HERE}\\{NEXT_HOPS[0]}": 40, f"{HERE}\\{NEXT_HOPS[1]}": 40} == octets


async def test_peers_are_counted_by_what_they_may_hold(tmp_path: Path) -> None:
    async with a_ledger(tmp_path) as ledger:
        for copies in COPIES:
            await accept(ledger, copies=copies)

        assert {THERE: 2, OTHER: 2} == await ledger.read(reading.listed_counts)
        with suppress(LedgerUnavailable):
            await steps.forget_peer(ledger, OTHER)
        assert {THERE: 2} == await ledger.read(reading.listed_counts)


async def test_each_server_has_the_notifications_counted_that_it_has_not_fetched(tmp_path: Path) -> None:
    async with a_ledger(tmp_path) as ledger:
        for copies in COPIES:
            message = await accept(ledger, copies=copies)
            await ledger.commit(promises.attempt, an_attempt(message.envelope.message_id), all_done)

        assert {THERE: 2, OTHER: 2} == await ledger.read(reading.discard_counts)


async def test_what_is_to_be_taken_over_or_delivered_does_not_hang_on_a_counter(tmp_path: Path) -> None:
    async with a_ledger(tmp_path) as ledger:
        await ledger.commit(promises.hold, a_new_message(Role.SHADOW), a_content(), keep_copy)
        other = a_new_message(Role.SHADOW)
        await ledger.commit(promises.hold, other, a_content(), keep_copy)
        await ledger.commit(promises.transition, [other.envelope.message_id], yield_to(OTHER, NEW_DATABASE))
        waiting = await accept(ledger)
        await ledger.commit(promises.queued, waiting.envelope.message_id, tuple(a_retry(hop) for hop in NEXT_HOPS[:2]))
    async with a_ledger(tmp_path) as ledger:
        await ledger.commit(promises.transition, [other.envelope.message_id], handed)
        with closing(sqlite3.connect(tmp_path / "queue.db")) as connection, connection:
            connection.execute("DELETE FROM counter")
        assert (ShadowGroup(THERE, THEIR_DATABASE, 1, 0), ShadowGroup(OTHER, NEW_DATABASE, 1, 1)) == await ledger.read(
            reading.shadow_groups
        )
        assert set(NEXT_HOPS[:2]) == set(await ledger.read(reading.delivery_queues))


@pytest.mark.parametrize("others_count", [0, 2])
async def test_an_opening_forgets_what_was_handed_over_to_this_node_and_counts_that(tmp_path: Path, others_count: int) -> None:
    async with a_ledger(tmp_path) as ledger:
        copies = [a_new_message(Role.SHADOW) for _ in range(others_count + 2)]
        for copy in copies:
            await ledger.commit(promises.hold, copy, a_content(), keep_copy)
        await ledger.commit(promises.transition, [copy.envelope.message_id for copy in copies[:2]], handed)
        assert 2 == (await ledger.read(reading.shadow_groups))[0].handed_count

    async with a_ledger(tmp_path) as ledger:
        loaded = await ledger.read(reading.load_many, [copy.envelope.message_id for copy in copies])
        kept, counted = await counts_in(ledger)

        assert {False} == {message.claim.handed for message in loaded}
        assert (ShadowGroup(THERE, THEIR_DATABASE, others_count + 2, 0),) == await ledger.read(reading.shadow_groups)
        assert counted == {key: count for key, count in kept.items() if count != (0, 0)}


async def test_what_would_survive_is_counted_by_the_servers_on_the_lists(tmp_path: Path) -> None:
    """Unfinished messages: without a copy, with one that was not confirmed, and with a chosen one beside that."""
    async with a_ledger(tmp_path) as ledger:
        for copies in COPIES[:3]:
            await ledger.commit(promises.accepted, a_new_message(copies=copies), a_content(b"x"), decided=True)
        queued = a_new_message(copies=COPIES[3])
        await ledger.commit(promises.accepted, queued, a_content(b"x"), decided=True)
        await ledger.commit(promises.queued, queued.envelope.message_id, tuple(a_retry(hop, frozenset({1})) for hop in NEXT_HOPS[:2]), ())

        assert Survival(4, 4, 0) == await ledger.read(reading.survival, ())
        assert Survival(4, 2, 1) == await ledger.read(reading.survival, (THERE,))
        assert Survival(4, 1, 1) == await ledger.read(reading.survival, (THERE, OTHER))
