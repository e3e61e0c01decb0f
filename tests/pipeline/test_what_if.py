"""What would be lost with certain servers, asked before it happens. docs/reference.md "What if"."""

import asyncio
from pathlib import Path

import pytest

from shadowrelay.model.ids import ServerName
from shadowrelay.model.readiness import NewMail
from shadowrelay.model.survival import Survival, WhatIf
from shadowrelay.store import reading
from tests.kit.clock import until
from tests.kit.nodes import BUSY, EAST, HEARTBEAT, NORTH, SPAN, WEST, Net, in_virtual_time, nodes
from tests.pipeline.scenes import holders


async def ask(net: Net, server: ServerName, *lost: ServerName, ids: int = 10) -> WhatIf:
    return await net.nodes[server].services.what_if.ask(lost, ids)


@in_virtual_time
async def test_what_has_a_copy_elsewhere_is_taken_over_and_the_rest_is_lost(tmp_path: Path) -> None:
    async with nodes(tmp_path, EAST, WEST, NORTH) as net:
        east = net.nodes[EAST]
        net.sink.answer = lambda address: BUSY
        held: dict[ServerName, int] = {WEST: 0, NORTH: 0}
        for _ in range(8):
            await east.accept()
            await asyncio.sleep(1)
            (holder,) = await holders(net, east)
            held[holder] += 1
        net.isolate(EAST)
        await asyncio.sleep(HEARTBEAT)
        await east.accept()  # without a copy
        await asyncio.sleep(1)

        alone = await ask(net, EAST, EAST)
        assert Survival(9, 1, 0) == alone.survival
        assert ((east.last,), True) == (alone.ids, alone.are_all)
        assert {server: count for server, count in held.items() if count} == alone.held_by

        both = await ask(net, EAST, EAST, WEST)
        assert both.survival is not None
        assert (1 + held[WEST], 1 + held[WEST]) == (both.survival.lost_count, len(both.ids))
        assert ((), False) == (
            (await ask(net, EAST, EAST, WEST, NORTH, ids=0)).ids,
            (await ask(net, EAST, EAST, WEST, NORTH, ids=3)).are_all,
        )

        (taken,) = (await ask(net, NORTH, EAST, WEST)).taken_over
        assert (EAST, held[NORTH]) == (taken.primary, taken.count)
        assert 0 < taken.within <= SPAN


@in_virtual_time
async def test_where_nothing_would_be_lost_no_message_is_read_for_its_id(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with nodes(tmp_path, EAST, WEST) as net:
        net.sink.answer = lambda address: BUSY
        await net.nodes[EAST].accept()
        await asyncio.sleep(1)
        monkeypatch.setattr(reading, "unplaced", None)
        monkeypatch.setattr(reading, "primaries_listed_on", None)

        found = await ask(net, EAST, EAST)

        assert (Survival(1, 0, 0), (), True) == (found.survival, found.ids, found.are_all)


@in_virtual_time
async def test_new_mail_is_judged_without_the_lost_peers(tmp_path: Path) -> None:
    async with nodes(tmp_path, EAST, WEST, NORTH, reject_message_on_shadow_failure=True) as net:
        east = net.nodes[EAST]
        await until(lambda: NewMail.COPIED is east.services.readiness.new_mail().outcome, 3 * HEARTBEAT)
        one, both = await ask(net, EAST, WEST), await ask(net, EAST, WEST, NORTH)

        assert one.new_mail is not None
        assert both.new_mail is not None
        assert (NewMail.COPIED, NewMail.REFUSED) == (one.new_mail.outcome, both.new_mail.outcome)
        assert f"{NORTH}: it would be lost" in both.new_mail.sentence
        assert NewMail.COPIED is east.services.readiness.new_mail().outcome  # it was only a question
