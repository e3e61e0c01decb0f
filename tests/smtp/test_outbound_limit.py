"""All sessions to next hops together have a limit, and servers that never greet do not hold up those that do."""

import asyncio

import pytest

from shadowrelay.model.replies import TransientDeliveryError
from tests.kit.clock import until
from tests.kit.smtp_servers import HANG, ScriptedServer, serving
from tests.smtp.deliverers import TAKEN, a_deliverer, at, deliver, route


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
