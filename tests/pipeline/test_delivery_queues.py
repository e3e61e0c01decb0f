"""A queue for each next hop: its turn, its Retry, what it loads, and what wakes what waits in it."""

import asyncio
from collections import Counter
from datetime import timedelta
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from shadowrelay.model.ids import ServerName
from shadowrelay.model.ownership import Role
from shadowrelay.model.queue import QueueKind, QueueStatus
from shadowrelay.model.replies import Reply, RequestRefused, TransientDeliveryError
from shadowrelay.model.tracking import EventId, EventSource
from shadowrelay.rules import dsn, flight
from shadowrelay.rules.delivery import ARRIVING_PER_SESSION
from shadowrelay.store import promises, reading
from tests.kit.clock import until
from tests.kit.nodes import BUSY, EAST, HEARTBEAT, NO_SUCH_USER, OK, SPAN, WEST, Net, in_virtual_time, nodes

GONE = TransientDeliveryError(Reply(451, "4.4.1", "nobody listens"), "sick.example:25", is_unreachable=True)
LOST = TransientDeliveryError(Reply(451, "4.4.2", "Connection lost"), "sick.example:25", is_connection=True, dot_sent_unanswered=True)
HOPS = [{"recipients": [f"*@{name}.example"], "next_hop": f"{name}.example:25"} for name in ("sick", "healthy")]
HOURLY = {"queue_glitch_retry_interval": timedelta(hours=1), "message_retry_interval": timedelta(hours=1)}
LADDER = {"queue_glitch_retry_interval": timedelta(seconds=10), "queue_glitch_retry_count": 100}


def of(kind: str, net: Net) -> list[str]:
    return [address for address in net.sink.addresses() if address.endswith(f"{kind}.example")]


@in_virtual_time
async def test_a_next_hop_that_never_answers_holds_up_nobody_else(tmp_path: Path) -> None:
    async with nodes(tmp_path, EAST, WEST, routes=HOPS) as net:
        east = net.nodes[EAST]
        slow = asyncio.Event()
        net.sink.hang = lambda address: slow if "sick" in address else None
        for number in range(200):
            await east.accept(f"u{number}@sick.example")

        await east.accept("u@healthy.example")

        await until(lambda: ["u@healthy.example"] == of("healthy", net), 5)
        assert [] == of("sick", net)
        slow.set()
        await until(lambda: 200 == len(of("sick", net)), 60)


@in_virtual_time
async def test_no_more_than_twice_the_concurrency_of_a_next_hop_is_loaded(tmp_path: Path) -> None:
    async with nodes(tmp_path, EAST, routes=HOPS, send={"concurrency_per_destination": 3}) as net:
        east = net.nodes[EAST]
        slow = asyncio.Event()
        net.sink.hang = lambda address: slow
        for number in range(50):
            await east.accept(f"u{number}@sick.example")
        await asyncio.sleep(1)

        reads = east.ledger.counts["read_content"]
        assert 3 == net.sink.attempts_count
        assert 50 - 6 <= len(await east.ledger.real.read(reading.due, "sick.example:25", east.clock.now(), 99)) <= 50
        slow.set()
        await until(lambda: 50 == len(net.sink.arrived), 60)
        assert reads <= 6


@in_virtual_time
async def test_a_route_may_have_a_concurrency_of_its_own(tmp_path: Path) -> None:
    routes = [HOPS[0] | {"concurrency_per_destination": 2}]
    async with nodes(tmp_path, EAST, routes=routes, send={"concurrency_per_destination": 5}) as net:
        slow = asyncio.Event()
        net.sink.hang = lambda address: slow
        for number in range(20):
            await net.nodes[EAST].accept(f"u{number}@sick.example")
        await asyncio.sleep(1)

        assert 2 == net.sink.attempts_count
        slow.set()
        await until(lambda: 20 == len(net.sink.arrived), 60)


@in_virtual_time
@pytest.mark.parametrize(("seconds", "are_queued"), [(0.1, False), (0.4, True)])
async def test_a_burst_waits_a_moment_for_places_before_it_goes_into_the_ledgers_queue(
    tmp_path: Path, seconds: float, are_queued: bool
) -> None:
    async with nodes(tmp_path, EAST, WEST, routes=HOPS, send={"concurrency_per_destination": 3}) as net:
        east = net.nodes[EAST]
        busy = asyncio.Event()
        net.sink.hang = lambda address: busy
        await asyncio.gather(*(east.accept(f"u{number}@healthy.example") for number in range(20)))

        await asyncio.sleep(seconds)
        busy.set()

        await until(lambda: 20 == len(net.sink.arrived), 5)
        assert are_queued is (east.ledger.counts["queued"] > 0)
        assert {f"u{number}@healthy.example" for number in range(20)} == set(net.sink.addresses())


@in_virtual_time
async def test_what_changed_while_it_waited_for_a_place_is_read_again(tmp_path: Path) -> None:
    async with nodes(tmp_path, EAST, WEST, routes=HOPS, send={"concurrency_per_destination": 1}) as net:
        east, busy = net.nodes[EAST], asyncio.Event()
        net.sink.hang = lambda address: busy
        await asyncio.gather(*(east.accept(f"u{number}@healthy.example") for number in range(3)))
        (queue,) = east.services.deliver._queues
        (arriving,) = queue.arriving
        loads = east.ledger.counts["load_many"]

        east.context.flights.happens(arriving.stored.envelope.message_id, flight.change)
        busy.set()

        await until(lambda: 3 == len(net.sink.arrived), 5)
        assert east.ledger.counts["load_many"] > loads


@in_virtual_time
async def test_more_than_a_burst_goes_into_the_ledgers_queue_at_once(tmp_path: Path) -> None:
    async with nodes(tmp_path, EAST, WEST, routes=HOPS, send={"concurrency_per_destination": 1}) as net:
        east = net.nodes[EAST]
        net.sink.hang = lambda address: asyncio.Event()

        await asyncio.gather(*(east.accept(f"u{number}@sick.example") for number in range(20)))
        await asyncio.sleep(0.1)

        assert 20 - 2 - ARRIVING_PER_SESSION == east.ledger.counts["queued"]


@in_virtual_time
async def test_a_free_session_is_taken_while_others_are_read_from_the_ledger(tmp_path: Path) -> None:
    async with nodes(tmp_path, EAST, WEST, routes=HOPS, send={"concurrency_per_destination": 3}) as net:
        east = net.nodes[EAST]
        stuck = asyncio.Event()
        net.sink.hang = lambda address: stuck if address.startswith("stuck") else None
        await asyncio.gather(*(east.accept(f"stuck{number}@sick.example") for number in range(10)))
        await asyncio.sleep(1)  # some of them wait in the ledger
        queued_count = east.ledger.counts["queued"]
        read = east.ledger.gates["due"] = asyncio.Event()
        stuck.set()
        await until(lambda: 6 == len(net.sink.arrived), 5)

        await east.accept("free@sick.example")

        await until(lambda: "free@sick.example" in net.sink.addresses(), 5)
        assert queued_count == east.ledger.counts["queued"] > 0
        read.set()
        await until(lambda: 11 == len(net.sink.arrived), 5)


@in_virtual_time
async def test_a_next_hop_that_cannot_be_reached_is_probed_by_one_attempt_whatever_waits(tmp_path: Path) -> None:
    async with nodes(tmp_path, EAST, WEST, routes=HOPS, send=LADDER) as net:
        east = net.nodes[EAST]
        net.sink.answer = lambda address: GONE
        await east.accept("u@sick.example")
        await asyncio.sleep(1)
        dials = net.sink.attempts_count
        for number in range(100):
            await east.accept(f"u{number}@sick.example")

        await asyncio.sleep(60)

        assert 1 == dials
        assert 5 <= net.sink.attempts_count - dials <= 6  # every 10 to 11 s
        (row,) = [row for row in await east.services.queues.rows() if row.next_hop == "sick.example:25"]
        assert (101, "451 4.4.1 nobody listens") == (row.count, row.last_error)
        assert row.next_retry_at is not None
        assert east.clock.now() < row.next_retry_at <= east.clock.now() + timedelta(seconds=11)


@in_virtual_time
async def test_a_next_hop_is_probed_again_if_the_message_for_the_probe_changed_after_it_was_read(tmp_path: Path) -> None:
    async with nodes(tmp_path, EAST, WEST, routes=HOPS, send=LADDER) as net:
        deliver = net.nodes[EAST].services.deliver
        net.sink.answer = lambda address: GONE
        for number in range(3):
            await net.nodes[EAST].accept(f"u{number}@sick.example")
        await asyncio.sleep(5)
        refused = []

        def load_nothing_once(*arguments: Any, load: Any = deliver._load, **named: Any) -> bool:
            refused.append(arguments[0].envelope.message_id)
            deliver._load = load
            return False

        deliver._load = load_nothing_once  # type: ignore[method-assign]
        await until(lambda: refused, 12)

        net.sink.answer = lambda address: OK

        await until(lambda: 3 == len(net.sink.arrived), 12)


STEPS = {
    "queue_glitch_retry_count": 2,
    "queue_glitch_retry_interval": timedelta(seconds=10),
    "transient_failure_retry_count": 2,
    "transient_failure_retry_interval": timedelta(seconds=40),
    "outbound_connection_failure_retry_interval": timedelta(seconds=100),
    "message_retry_interval": timedelta(seconds=200),
}
WAITS = [  # what is changed; the waits after a next hop that cannot be reached, and after one that refuses for now
    ({}, [10, 10, 40, 40, 100, 100], [10, 200, 200]),
    ({"queue_glitch_retry_count": 3}, [10, 10, 10, 40, 40, 100], [10, 200, 200]),
    ({"queue_glitch_retry_interval": timedelta(seconds=20)}, [20, 20, 40, 40, 100, 100], [20, 200, 200]),
    ({"transient_failure_retry_count": 1}, [10, 10, 40, 100, 100, 100], [10, 200, 200]),
    ({"transient_failure_retry_interval": timedelta(seconds=60)}, [10, 10, 60, 60, 100, 100], [10, 200, 200]),
    ({"outbound_connection_failure_retry_interval": timedelta(seconds=80)}, [10, 10, 40, 40, 80, 80], [10, 200, 200]),
    ({"message_retry_interval": timedelta(seconds=150)}, [10, 10, 40, 40, 100, 100], [10, 150, 150]),
]


@pytest.mark.parametrize(("changes", "unreachable", "refused"), WAITS)
@in_virtual_time
async def test_each_setting_of_the_ladder_changes_its_own_step(
    tmp_path: Path, changes: dict[str, Any], unreachable: list[int], refused: list[int]
) -> None:
    for answer, expected in ((GONE, unreachable), (BUSY, refused)):
        async with nodes(tmp_path / str(len(expected)), EAST, routes=HOPS, send=STEPS | changes) as net:
            east, attempts = net.nodes[EAST], []

            def answered(address: str, answer: Any = answer, attempts: list[float] = attempts, now: Any = east.clock.awake) -> Any:
                attempts.append(now())
                return answer

            net.sink.answer = answered
            await east.accept("u@sick.example")
            await until(lambda: len(attempts) > len(expected))  # noqa: B023

            waits = [later - earlier for earlier, later in pairwise(attempts)]
            assert [True] * len(expected) == [
                wait <= found <= 1.1 * wait + 1 for wait, found in zip(expected, waits[: len(expected)], strict=True)
            ], waits


@in_virtual_time
async def test_a_returned_next_hop_gets_its_mail_at_the_first_probe_that_reaches_it(tmp_path: Path) -> None:
    async with nodes(tmp_path, EAST, WEST, routes=HOPS, send=LADDER) as net:
        east = net.nodes[EAST]
        net.sink.answer = lambda address: GONE
        for number in range(100):
            await east.accept(f"u{number}@sick.example")
        await asyncio.sleep(5)

        net.sink.answer = lambda address: OK

        await until(lambda: 100 == len(net.sink.arrived), 12)
        assert 1 <= net.sink.attempts_count - 100 <= 20  # what was dialled when it went away, and nothing more


@in_virtual_time
async def test_a_next_hop_that_loses_each_session_gets_one_attempt_a_second_whatever_waits(tmp_path: Path) -> None:
    async with nodes(tmp_path, EAST, WEST, routes=HOPS, send=LADDER | {"concurrency_per_destination": 5}) as net:
        east = net.nodes[EAST]
        net.sink.answer = lambda address: LOST
        for number in range(100):
            await east.accept(f"u{number}@sick.example")
        await asyncio.sleep(1)
        attempts = net.sink.attempts_count

        await asyncio.sleep(60)

        assert 6 <= attempts <= 6 + 5  # what ran while the sixth was lost, and nothing more
        assert 50 <= net.sink.attempts_count - attempts <= 61
        (row,) = [row for row in await east.services.queues.rows() if row.next_hop == "sick.example:25"]
        assert (100, "451 4.4.2 Connection lost", QueueStatus.READY) == (row.count, row.last_error, row.status)
        net.sink.answer = lambda address: OK
        await until(lambda: 100 == len(net.sink.arrived), 20)


@in_virtual_time
async def test_healthy_mail_waits_a_second_for_each_message_before_it_that_loses_its_session_and_no_longer(tmp_path: Path) -> None:
    """An MTU black hole loses large mail only."""
    async with nodes(tmp_path, EAST, message_expiration_timeout=timedelta(minutes=5)) as net:
        east = net.nodes[EAST]
        net.sink.answer = lambda address: LOST if address.startswith("bad") else OK
        for number in range(100):
            await east.accept(f"bad{number}@corp.example", sender="")
        await asyncio.sleep(0.5)

        await east.accept("good@corp.example")

        await until(lambda: "good@corp.example" in net.sink.addresses(), 100)


@in_virtual_time
async def test_sessions_that_are_all_lost_at_one_moment_hold_up_the_next_message_for_a_second_at_most(tmp_path: Path) -> None:
    async with nodes(tmp_path, EAST, WEST, send=LADDER | {"concurrency_per_destination": 20}) as net:
        east, reset = net.nodes[EAST], asyncio.Event()

        async def before_dot(server: ServerName) -> None:
            if not reset.is_set():
                await reset.wait()
                raise LOST

        net.sink.before_dot = before_dot
        await asyncio.gather(*(east.accept(f"u{number}@corp.example") for number in range(20)))
        await asyncio.sleep(5)
        reset.set()
        await asyncio.sleep(0.5)

        await east.accept("good@corp.example")

        await until(lambda: "good@corp.example" in net.sink.addresses(), 1)


@in_virtual_time
async def test_a_next_hop_that_answered_the_first_hundred_recipients_has_answered(tmp_path: Path) -> None:
    async with nodes(tmp_path, EAST, WEST, send=LADDER | {"concurrency_per_destination": 1}) as net:
        east = net.nodes[EAST]
        net.sink.answer = lambda address: LOST if address == "u101@corp.example" else OK
        for _ in range(10):
            await east.accept(*(f"u{number}@corp.example" for number in range(1, 103)))
            await asyncio.sleep(0.5)

        (queue,) = east.services.deliver._queues

        assert (1000, frozenset()) == (len(net.sink.arrived), queue.state.lost)


@in_virtual_time
async def test_a_probe_that_reaches_the_next_hop_and_loses_its_session_ends_retry(tmp_path: Path) -> None:
    async with nodes(tmp_path, EAST, WEST, send=LADDER) as net:
        east = net.nodes[EAST]
        net.sink.answer = lambda address: GONE
        await east.accept("bad@corp.example")
        await asyncio.sleep(1)
        net.sink.answer = lambda address: LOST if address.startswith("bad") else OK
        await until(lambda: 2 == net.sink.attempts_count, 12)
        await asyncio.sleep(0.1)

        await east.accept("good@corp.example")

        await until(lambda: ["good@corp.example"] == net.sink.addresses(), 1)


@in_virtual_time
@pytest.mark.parametrize("error", [GONE, LOST], ids=["unreachable", "losing sessions"])
async def test_mail_for_a_sick_next_hop_is_not_read_again_and_again_while_a_lost_peers_lease_runs_out(
    tmp_path: Path, error: TransientDeliveryError
) -> None:
    async with nodes(tmp_path, EAST, WEST, routes=HOPS, send=LADDER | {"concurrency_per_destination": 10}) as net:
        east = net.nodes[EAST]
        net.sink.answer = lambda address: error
        for number in range(60):
            await east.accept(f"u{number}@sick.example")
        await net.kill(WEST)

        await asyncio.sleep(2 * SPAN)

        assert east.ledger.counts["queued"] <= 60 * 5
        assert east.ledger.counts["due"] <= 1000  # a loop without a pause makes as many in a second
        net.sink.answer = lambda address: OK
        await until(lambda: 60 == len(net.sink.arrived), 900)  # each has a ladder of its own


@in_virtual_time
async def test_a_queue_in_retry_is_shown_with_its_reason_and_probed_at_once_when_asked(tmp_path: Path) -> None:
    async with nodes(tmp_path, EAST, WEST, routes=HOPS, send={"queue_glitch_retry_interval": timedelta(hours=1)}) as net:
        east = net.nodes[EAST]
        net.sink.answer = lambda address: GONE
        for number in range(50):
            await east.accept(f"u{number}@sick.example")
        await asyncio.sleep(10)
        (row,) = [row for row in await east.services.queues.rows() if row.next_hop == "sick.example:25"]

        net.sink.answer = lambda address: OK
        await asyncio.sleep(60)
        waiting = 50 - len(net.sink.arrived)
        found = await east.services.queues.retry("sick.example:25")

        assert (QueueStatus.RETRY, 1, 50) == (row.status, row.probes_count, row.count)
        assert row.retry_since is not None
        assert (50, row) == (waiting, found)
        await until(lambda: 50 == len(net.sink.arrived), 5)


@in_virtual_time
async def test_what_was_refused_by_itself_is_tried_again_when_asked(tmp_path: Path) -> None:
    async with nodes(tmp_path, EAST, WEST, routes=HOPS, send={"queue_glitch_retry_interval": timedelta(hours=1)}) as net:
        east = net.nodes[EAST]
        net.sink.answer = lambda address: BUSY
        for number in range(500):
            await east.accept(f"u{number}@sick.example")
        await asyncio.sleep(20)
        net.sink.answer = lambda address: OK

        await east.services.queues.retry(f"{EAST}\\sick.example:25")

        await until(lambda: 500 == len(net.sink.arrived), 20)


@in_virtual_time
async def test_what_is_refused_again_is_tried_once_for_each_time_an_administrator_asks(tmp_path: Path) -> None:
    async with nodes(tmp_path, EAST, WEST, routes=HOPS, send=HOURLY) as net:
        east = net.nodes[EAST]
        net.sink.answer = lambda address: BUSY
        for number in range(500):
            await east.accept(f"u{number}@sick.example")
        await asyncio.sleep(20)
        hasten = partial(east.ledger.real.commit, promises.hasten)

        async def slowly(*arguments: Any) -> int:  # what is hastened is refused before the next page
            await asyncio.sleep(1)
            return await hasten(*arguments)

        east.ledger.instead["hasten"] = slowly
        attempts = net.sink.attempts_count

        await east.services.queues.retry("sick.example:25")
        await asyncio.sleep(60)

        assert (500, True) == (attempts, 0 < net.sink.attempts_count - attempts <= 500)


@in_virtual_time
async def test_retrying_a_shadow_queue_asks_its_primary_server_at_once(tmp_path: Path) -> None:
    async with nodes(tmp_path, EAST, WEST, discard_poll_interval=timedelta(hours=1), shadow_heartbeat_frequency=timedelta(hours=1)) as net:
        east, west = net.nodes[EAST], net.nodes[WEST]
        await east.accept()
        await asyncio.sleep(5)
        held = await west.role(east.last)
        (row,) = [row for row in await west.services.queues.rows() if row.kind is QueueKind.SHADOW]

        await west.services.queues.retry(row.identity)

        assert held is Role.SHADOW
        await until(west.in_role(east.last, Role.DELIVERED), 5)


@in_virtual_time
async def test_nothing_is_tried_in_queues_of_what_is_delivered_or_set_aside(tmp_path: Path) -> None:
    async with nodes(tmp_path, EAST, WEST) as net:
        queues = net.nodes[EAST].services.queues
        for row in await queues.rows():
            if row.kind is not QueueKind.SUBMISSION:
                with pytest.raises(RequestRefused, match="nothing is tried in"):
                    await queues.retry(row.identity)
        assert await queues.retry("nowhere:25") is None


@in_virtual_time
async def test_a_message_that_loses_each_session_holds_up_no_other(tmp_path: Path) -> None:
    async with nodes(tmp_path, EAST, WEST, send=LADDER | {"concurrency_per_destination": 1}) as net:
        east = net.nodes[EAST]
        net.sink.answer = lambda address: LOST if address.startswith("bad") else OK
        await east.accept("bad@corp.example")
        await asyncio.sleep(1200)

        await east.accept("good@corp.example")

        await until(lambda: ["good@corp.example"] == net.sink.addresses(), 1)
        assert net.sink.attempts_count > 5


@in_virtual_time
async def test_a_refused_message_keeps_its_own_ladder_and_others_pass_it(tmp_path: Path) -> None:
    async with nodes(tmp_path, EAST, WEST, send={"queue_glitch_retry_interval": timedelta(seconds=100)}) as net:
        east = net.nodes[EAST]
        net.sink.answer = lambda address: BUSY if address.startswith("grey") else OK
        await east.accept("grey@corp.example")
        await asyncio.sleep(1)

        await east.accept("white@corp.example")

        await until(lambda: ["white@corp.example"] == net.sink.addresses(), 2)
        net.sink.answer = lambda address: OK
        await asyncio.sleep(90)
        assert ["white@corp.example"] == net.sink.addresses()
        await until(lambda: 2 == len(net.sink.arrived), 30)


@in_virtual_time
async def test_each_fork_is_recorded_when_it_is_done_and_its_shadow_server_hears_it(tmp_path: Path) -> None:
    async with nodes(tmp_path, EAST, WEST, routes=HOPS) as net:
        east, west = net.nodes[EAST], net.nodes[WEST]
        slow = asyncio.Event()
        net.sink.hang = lambda address: slow if "sick" in address else None

        await east.accept("u@healthy.example", "u@sick.example")

        await until(west.has_done(east.last, 1), 3)
        await net.kill(EAST)
        slow.set()
        net.sink.hang = lambda address: None
        await until(lambda: ["u@sick.example"] == of("sick", net), 120)
        assert ["u@healthy.example"] == of("healthy", net)


@in_virtual_time
async def test_each_transaction_of_a_hundred_recipients_is_recorded_when_it_is_done(tmp_path: Path) -> None:
    async with nodes(tmp_path, EAST, WEST) as net:
        east = net.nodes[EAST]
        slow = asyncio.Event()
        net.sink.hang = lambda address: slow if address == "u150@corp.example" else None

        await east.accept(*(f"u{number}@corp.example" for number in range(250)))
        await asyncio.sleep(2)

        stored = await east.message(east.last)
        assert stored is not None
        assert frozenset(range(1, 101)) == stored.claim.done
        await net.kill(EAST)
        net.sink.hang = lambda address: None
        await net.start(EAST)
        await until(lambda: 250 == len(net.sink.arrived), 60)
        assert {1} == set(Counter(net.sink.addresses()).values())


@in_virtual_time
async def test_failures_in_several_transactions_are_one_notice(tmp_path: Path) -> None:
    async with nodes(tmp_path, EAST) as net:
        east = net.nodes[EAST]
        net.sink.answer = lambda address: NO_SUCH_USER if address.startswith("bad") else OK
        names = [("bad" if number in (50, 150, 220) else "u") + f"{number}@corp.example" for number in range(250)]

        await east.accept(*names)

        await until(east.in_role(east.last, Role.DELIVERED), 20)
        await until(lambda: "a@x.example" in net.sink.addresses(), 20)
        assert (248, 1) == (len(net.sink.arrived), len(east.log.rows(EventId.DSN)))
        (notice,) = [data for _, address, data in net.sink.arrived if address == "a@x.example"]
        assert all(f"bad{number}@corp.example".encode() in notice for number in (50, 150, 220))


@in_virtual_time
async def test_an_outcome_survives_a_notice_that_cannot_be_built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*arguments: object, **named: object) -> bytes:
        raise ValueError("a bug")

    monkeypatch.setattr(dsn, "build", broken)
    async with nodes(tmp_path, EAST, WEST) as net:
        east = net.nodes[EAST]
        net.sink.answer = lambda address: NO_SUCH_USER if address.startswith("bad") else OK

        await east.accept("ok@corp.example", "bad@corp.example")

        await until(east.in_role(east.last, Role.DELIVERED), 10)
        await asyncio.sleep(30)
        assert ["ok@corp.example"] == net.sink.addresses()
        assert 1 == len(east.log.rows(EventId.FAIL))


@in_virtual_time
async def test_mail_for_a_next_hop_that_cannot_be_reached_is_reported_late_and_expires(tmp_path: Path) -> None:
    routes = [*HOPS, {"recipients": ["*"], "next_hop": "sink.example:25"}]
    send = {**LADDER, "delay_notification_timeout": timedelta(seconds=20)}
    async with nodes(tmp_path, EAST, WEST, routes=routes, send=send, message_expiration_timeout=timedelta(seconds=50)) as net:
        east = net.nodes[EAST]
        net.sink.answer = lambda address: GONE if "sick" in address else OK
        await east.accept("first@sick.example")
        await asyncio.sleep(1)
        await east.accept("behind@sick.example")  # no probe takes this one

        await until(lambda: 2 == len(net.sink.arrived), 40)
        assert [b"late" in data or b"Delayed" in data for _, _, data in net.sink.arrived] == [True, True]
        await until(lambda: 4 == len(net.sink.arrived), 60)
        await until(east.in_role(east.last, Role.DELIVERED), 10)
        assert {"a@x.example"} == set(net.sink.addresses())
        assert [EventSource.QUEUE] * 2 == [row.source for row in east.log.rows(EventId.FAIL)]
        assert [("behind@sick.example",), ("first@sick.example",)] == sorted(row.recipients for row in east.log.rows(EventId.EXPIRE))


@in_virtual_time
async def test_what_there_was_no_room_for_is_loaded_when_others_leave_together(tmp_path: Path) -> None:
    async with nodes(tmp_path, EAST, WEST) as net:
        east = net.nodes[EAST]
        gate = asyncio.Event()
        net.sink.hang = lambda address: gate
        await asyncio.gather(*(east.accept() for _ in range(70)))  # 40 in memory, not in the ledger's queue; 30 in it
        await asyncio.sleep(2)
        gate.set()

        await until(lambda: 70 == len(net.sink.arrived), 60)


@in_virtual_time
async def test_what_waits_for_a_lease_is_not_read_again_until_the_server_is_back(tmp_path: Path) -> None:
    async with nodes(tmp_path, EAST, WEST, delivery_without_lease="defer") as net:
        east = net.nodes[EAST]
        net.sink.answer = lambda address: BUSY
        for _ in range(30):
            await east.accept()
        await asyncio.sleep(1)
        await net.kill(WEST)
        await asyncio.sleep(SPAN + 4 * HEARTBEAT)
        net.sink.answer = lambda address: OK
        before = Counter(east.ledger.counts)

        await asyncio.sleep(120)

        assert [] == net.sink.arrived
        reads = Counter(east.ledger.counts) - before
        assert 0 == reads["due"]
        assert reads["load_many"] <= 120  # placement and review look at each a few times; a poll would be 1,200 looks
        assert reads["submission"] <= 10
        await net.start(WEST)
        await until(lambda: 30 == len(net.sink.arrived), 10)


@in_virtual_time
async def test_in_reject_mode_what_waits_for_a_copy_is_not_read_again_until_it_has_one(tmp_path: Path) -> None:
    async with nodes(tmp_path, EAST, WEST, reject_message_on_shadow_failure=True) as net:
        east, west = net.nodes[EAST], net.nodes[WEST]
        net.sink.answer = lambda address: BUSY
        for _ in range(30):
            await east.accept()
        await asyncio.sleep(1)
        await net.kill(EAST)
        net.sink.answer = lambda address: OK
        await until(west.in_role(east.last, Role.PRIMARY), 200)
        await asyncio.sleep(2)
        before = Counter(west.ledger.counts)

        await asyncio.sleep(40)

        assert [] == net.sink.arrived
        reads = Counter(west.ledger.counts) - before
        assert 0 == reads["due"]
        assert reads["load_many"] <= 30  # placement, whenever it may find out whether East is back
        await net.start(EAST)
        await until(lambda: 30 == len(net.sink.arrived), 10)


@in_virtual_time
async def test_after_the_wall_clock_was_set_back_nothing_waits_longer_than_its_interval(tmp_path: Path) -> None:
    async with nodes(tmp_path, EAST, WEST, routes=HOPS, send=LADDER) as net:
        east = net.nodes[EAST]
        east.clock.wall_shift = timedelta(days=1)
        await asyncio.sleep(5)
        net.sink.answer = lambda address: BUSY if "healthy" in address else GONE
        for number in range(30):
            await east.accept(f"u{number}@healthy.example")
            await east.accept(f"u{number}@sick.example")
        await asyncio.sleep(2)
        net.sink.answer = lambda address: OK

        east.clock.wall_shift = timedelta(0)

        await until(lambda: 60 == len(net.sink.arrived), 2 * 3600)


@in_virtual_time
async def test_what_was_queued_by_a_clock_ahead_waits_no_longer_after_a_restart_with_the_right_one(tmp_path: Path) -> None:
    async with nodes(tmp_path, EAST, routes=HOPS, send=LADDER) as net:
        east = net.nodes[EAST]
        east.clock.wall_shift = timedelta(days=1)
        net.sink.answer = lambda address: BUSY
        for number in range(10):
            await east.accept(f"u{number}@healthy.example")
        await asyncio.sleep(2)
        net.sink.answer = lambda address: OK
        await net.kill(EAST)

        await net.start(EAST)

        await until(lambda: 10 == len(net.sink.arrived), 2 * 3600)


@in_virtual_time
async def test_every_start_says_what_it_has_loaded(tmp_path: Path) -> None:
    async with nodes(tmp_path, EAST, routes=HOPS) as net:
        net.sink.answer = lambda address: BUSY
        await net.nodes[EAST].accept("u@healthy.example", "u@sick.example")
        await asyncio.sleep(2)
        loads = []
        for _ in range(2):
            await net.kill(EAST)
            east = await net.start(EAST)
            await asyncio.sleep(15)
            loads.append(len(east.log.rows(EventId.LOAD)))

        assert [1, 1] == loads


@in_virtual_time
async def test_a_drain_lets_go_of_what_only_waits_for_a_session(tmp_path: Path) -> None:
    async with nodes(tmp_path, EAST, routes=HOPS, send={"concurrency_per_destination": 1}) as net:
        east = net.nodes[EAST]
        slow = asyncio.Event()
        net.sink.hang = lambda address: slow
        for number in range(5):
            await east.accept(f"u{number}@sick.example")
        await asyncio.sleep(1)
        east.context.is_draining = True
        draining = asyncio.ensure_future(east.services.deliver.drained(30))
        await asyncio.sleep(1)
        slow.set()

        assert await draining
        assert 1 == len(net.sink.arrived)
        assert 4 == len(await east.ledger.real.read(reading.due, "sick.example:25", east.clock.now(), 9))
