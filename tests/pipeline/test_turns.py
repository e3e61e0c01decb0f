"""Large copies take turns."""

import asyncio

import pytest

from shadowrelay.pipeline.peerbook import Turns
from shadowrelay.rules.placement import LARGE_OCTETS, CopyTime, time_for

MEGABYTE = 1024 * 1024


class CopiesUnderWay:
    """Copies that are being sent, and the order in which they had their turn."""

    def __init__(self, turns: Turns) -> None:
        self.turns = turns
        self.begun: list[str] = []
        self.ends: dict[str, asyncio.Event] = {}

    def start(self, name: str, size: int) -> "asyncio.Task[None]":
        self.ends[name] = asyncio.Event()

        async def copy() -> None:
            async with self.turns.turn(size):
                self.begun.append(name)
                await self.ends[name].wait()

        return asyncio.get_running_loop().create_task(copy())

    async def settle(self) -> None:
        for _ in range(10):
            await asyncio.sleep(0)


async def test_a_burst_of_large_copies_goes_one_after_the_other_in_its_order():
    copies = CopiesUnderWay(Turns(4 * MEGABYTE))
    tasks = [copies.start(str(number), 25 * MEGABYTE) for number in range(5)]
    for number in range(5):
        await copies.settle()
        assert [str(earlier) for earlier in range(number + 1)] == copies.begun
        copies.ends[str(number)].set()
    await asyncio.gather(*tasks)


async def test_as_many_go_at_once_as_there_is_room_for():
    copies = CopiesUnderWay(Turns(4 * MEGABYTE))
    tasks = [copies.start(str(number), 1 * MEGABYTE) for number in range(6)]
    await copies.settle()
    assert ["0", "1", "2", "3"] == copies.begun
    for end in copies.ends.values():
        end.set()
    await asyncio.gather(*tasks)


async def test_a_small_copy_waits_for_nobody():
    copies = CopiesUnderWay(Turns(4 * MEGABYTE))
    tasks = [copies.start("large", 25 * MEGABYTE), copies.start("waits", 25 * MEGABYTE), copies.start("small", LARGE_OCTETS)]
    await copies.settle()
    assert {"large", "small"} == set(copies.begun)
    for end in copies.ends.values():
        end.set()
    await asyncio.gather(*tasks)


@pytest.mark.parametrize("who", ["the one that has its turn", "one that waits", "one whose turn has just come"])
async def test_who_is_cancelled_takes_no_turn_along(who):
    copies = CopiesUnderWay(Turns(4 * MEGABYTE))
    tasks = {name: copies.start(name, 25 * MEGABYTE) for name in ("first", "second", "third")}
    await copies.settle()
    if who == "one whose turn has just come":
        copies.ends["first"].set()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
    tasks["first" if who == "the one that has its turn" else "second"].cancel()
    for end in copies.ends.values():
        end.set()
    await asyncio.gather(*tasks.values(), return_exceptions=True)

    late = copies.start("late", 25 * MEGABYTE)
    await copies.settle()
    assert "late" == copies.begun[-1]
    assert "third" in copies.begun
    copies.ends["late"].set()
    await late


TIMES = [
    ("small: shadow_timeout is all", LARGE_OCTETS, 5.0, True, CopyTime(5.0, None)),
    ("small, nobody waits: the same", LARGE_OCTETS, 5.0, False, CopyTime(5.0, None)),
    ("large: as long as it gets on, half of RFC 5321's time at most", LARGE_OCTETS + 1, 5.0, True, CopyTime(300.0, 5.0)),
    ("never less than shadow_timeout", LARGE_OCTETS + 1, 400.0, True, CopyTime(400.0, 400.0)),
    ("large, nobody waits: patiently", LARGE_OCTETS + 1, 5.0, False, CopyTime(3600.0, 30.0)),
]


@pytest.mark.parametrize(("size", "timeout", "is_client", "expected"), [case[1:] for case in TIMES], ids=[case[0] for case in TIMES])
def test_the_time_for_a_copy(size, timeout, is_client, expected):
    assert expected == time_for(size, timeout, is_client_waiting=is_client)
