"""All sessions to next hops together have a limit, and servers that never greet do not hold up those that do."""

import asyncio
from math import inf

import pytest

from shadowrelay.model.replies import Reply, TransientDeliveryError
from shadowrelay.smtp import next_hop_rules as rules
from shadowrelay.smtp.client import Opened
from shadowrelay.smtp.next_hop_sessions import AddressSessions, Opening, OutboundLimit
from tests.kit.clock import PATIENCE_SECONDS, until
from tests.kit.smtp_servers import HANG, ScriptedServer, serving
from tests.smtp.deliverers import TAKEN, a_deliverer, at, deliver, route


async def no_session(opening: Opening) -> Opened:
    await asyncio.get_running_loop().create_future()
    raise AssertionError("it is cancelled before")


async def test_servers_that_never_greet_hold_no_more_sessions_than_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shadowrelay.smtp.next_hop_sessions.GIVES_WAY_SECONDS", 0.3)
    mute, healthy = [ScriptedServer({"GREETING": HANG}) for _ in range(12)], ScriptedServer({"DOT": str(TAKEN)})
    async with serving(*mute, healthy):
        async with a_deliverer(sessions_max=4) as deliverer:
            stuck = [asyncio.create_task(deliver(deliverer, route(at(server)))) for server in mute]
            await until(lambda: sum(server.open_count for server in mute) >= 4)
            report = await deliver(deliverer, route(at(healthy)))
            await until(lambda: sum(task.done() for task in stuck) >= 8)
        ended = await asyncio.gather(*stuck, return_exceptions=True)

    assert {1: TAKEN} == report.replies
    assert {TransientDeliveryError} == set(map(type, ended))
    assert any("it gave way to others" in str(one) for one in ended)


async def test_an_idle_session_ends_where_another_next_hop_needs_it() -> None:
    first, second = ScriptedServer(), ScriptedServer()
    async with serving(first, second), a_deliverer(sessions_max=1) as deliverer:
        for server in (first, second, first):
            assert 250 == (await deliver(deliverer, route(at(server)))).replies[1].code

    assert (2, 1) == (len(first.messages), len(second.messages))


async def test_what_waits_for_a_place_goes_in_order_when_places_are_given_back() -> None:
    servers = [ScriptedServer() for _ in range(8)]
    async with serving(*servers), a_deliverer(sessions_max=2) as deliverer:
        reports = await asyncio.gather(*(deliver(deliverer, route(at(server))) for server in servers for _ in range(5)))

    assert 40 == sum(report.replies[1].code == 250 for report in reports)
    assert all(server.open_count_max <= 2 for server in servers)


async def test_a_next_hop_with_much_mail_leaves_others_their_share() -> None:
    taken: list[int] = []

    def note(_: str) -> str:
        taken.append(len(busy.messages))
        return str(TAKEN)

    async def slow(_: str) -> str:
        await asyncio.sleep(0.01)
        return str(TAKEN)

    busy, other = ScriptedServer({"DOT": slow}), ScriptedServer({"DOT": note})
    async with serving(busy, other), a_deliverer(sessions_max=2) as deliverer:
        backlog = [asyncio.create_task(deliver(deliverer, route(at(busy)))) for _ in range(90)]
        await asyncio.gather(deliver(deliverer, route(at(other))), *backlog)

    assert taken[0] < 90
    assert (90, 1) == (len(busy.messages), len(other.messages))
    assert len(busy.sessions) < 20, "sessions end for those that wait, and not for others"


async def test_more_next_hops_with_much_mail_than_sessions_take_turns() -> None:
    servers = [ScriptedServer() for _ in range(3)]
    async with serving(*servers), a_deliverer(sessions_max=2) as deliverer:
        backlogs = [[asyncio.create_task(deliver(deliverer, route(at(server)))) for _ in range(30)] for server in servers]
        await until(lambda: any(len(server.messages) == 30 for server in servers))
        least = min(len(server.messages) for server in servers)
        await asyncio.gather(*(task for backlog in backlogs for task in backlog))

    assert least >= 10


async def test_a_session_that_becomes_free_is_not_kept_while_another_next_hop_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rules, "MUTE_SECONDS", 3600.0)  # no other look at what waits
    gate = asyncio.Event()

    async def late(_: str) -> str:
        await gate.wait()
        return str(TAKEN)

    first, second = ScriptedServer({"DOT": late}), ScriptedServer()
    async with serving(first, second), a_deliverer(sessions_max=1) as deliverer:  # kept for a minute
        slow = asyncio.create_task(deliver(deliverer, route(at(first))))
        await until(lambda: "DATA" in first.lines)
        other = asyncio.create_task(deliver(deliverer, route(at(second))))
        await until(lambda: deliverer._sessions._limit.waiting)
        gate.set()
        await asyncio.gather(slow, asyncio.wait_for(other, PATIENCE_SECONDS))

    assert 1 == len(second.messages)


async def test_a_session_that_is_to_be_tried_is_still_tried_when_all_are_taken_at_that_time() -> None:
    """The address had refused a third session: one more is tried later, and there is no room for it then."""
    limit = OutboundLimit(2)
    address = AddressSessions(60.0, 60.0, limit)
    limit.count = 2
    now = asyncio.get_running_loop().time()
    address._busy = {object(), object()}  # type: ignore[arg-type]
    address.window = rules.Window(2, Reply(421, "4.7.0", "too many"), now - 1)
    waiting = asyncio.create_task(address.wait(no_session, 20, None))
    await asyncio.sleep(0)
    assert now - 1 == address.window.grows_at

    limit.give_back()
    await until(lambda: address.opening_count)
    assert inf == address.window.grows_at
    waiting.cancel()
    address._busy.clear()
    await address.close()
