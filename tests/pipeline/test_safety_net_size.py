"""Safety Net keeps within its size, and gives its room to new mail."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from shadowrelay.model.back_pressure_settings import BackPressure
from shadowrelay.model.setting_texts import parse_size_or_share, size_of
from shadowrelay.pipeline.safety_net_size import SafetyNetSize
from shadowrelay.ports import Disk
from shadowrelay.rules.safety_net_rules import excess
from shadowrelay.store import content, promises, queues, shedding
from shadowrelay.store.ledger import Ledger
from tests.kit.clock import Hands
from tests.kit.ledger import NOW, a_ledger, accept, all_done, an_attempt

GB = 1_000_000_000


@dataclass
class OneDisk:
    """A machine with this disk."""

    free: int = 40 * GB
    size: int = 50 * GB

    def disk(self, path: Path) -> Disk:
        return Disk(free=self.free, size=self.size, device=1)


@dataclass
class SizeDesk:
    """A ledger, and what looks at the size of its Safety Net."""

    ledger: Ledger
    hands: Hands
    machine: OneDisk = field(default_factory=OneDisk)
    limit: str = "0"

    async def look(self) -> Any:
        transport = SimpleNamespace(safety_net_max_size=self.limit, safety_net_hold_time=timedelta(days=2))
        settings = SimpleNamespace(transport=transport, back_pressure=BackPressure(), server=SimpleNamespace(data_directory=Path("/")))
        context: Any = SimpleNamespace(ledger=self.ledger, settings=settings, now=self.hands, safety_net_complete_since=None)
        await SafetyNetSize(context, self.machine).look()  # type: ignore[arg-type]
        return context.safety_net_complete_since


@asynccontextmanager
async def a_desk(directory: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[SizeDesk]:
    """With ten delivered messages of 10 kB, each in a segment of its own, a minute apart, and one that waits."""
    monkeypatch.setattr(content, "SEGMENT_BYTES_MAX", 10_000)
    hands = Hands(NOW)
    async with a_ledger(directory, now=hands) as ledger:
        await accept(ledger, b"w" * 10_000)
        for number in range(10):
            stored = await accept(ledger, b"%d" % number * 10_000)
            hands.at += timedelta(minutes=1)
            await ledger.commit(promises.attempt, an_attempt(stored.envelope.message_id, keep_until=hands.at + timedelta(days=2)), all_done)
        yield SizeDesk(ledger, hands)


async def test_above_its_size_the_oldest_is_dropped_and_the_status_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with a_desk(tmp_path, monkeypatch) as desk:
        before = await desk.ledger.read(shedding.safety_net_octets)
        assert await desk.look() is None  # no limit
        desk.limit = "50kB"
        since = await desk.look()
        after = await desk.ledger.read(shedding.safety_net_octets)
        again = await desk.look()

        assert (100_000, 50_000) == (before, after)
        assert since == again
        assert since is not None
        assert NOW + timedelta(minutes=5) == since
        assert 1 == len(await desk.ledger.read(queues.undelivered, 10))


async def test_a_disk_that_gets_full_takes_the_room_of_safety_net(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with a_desk(tmp_path, monkeypatch) as desk:
        files = len(list((tmp_path / "content").glob("*.segment")))
        desk.machine = OneDisk(free=1 * GB)
        since = await desk.look()

        assert since is not None
        assert await desk.ledger.read(shedding.safety_net_octets) <= 20_000  # what is being written stays
        assert len(list((tmp_path / "content").glob("*.segment"))) <= files - 8
        assert 1 == len(await desk.ledger.read(queues.undelivered, 10))


async def test_since_when_resubmission_is_complete_is_known_after_a_restart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with a_desk(tmp_path, monkeypatch) as desk:
        desk.limit = "50kB"
        since, now = await desk.look(), desk.hands
    async with a_ledger(tmp_path, now=now) as ledger:
        assert since == await ledger.read(shedding.complete_since)


@pytest.mark.parametrize(
    ("written", "read", "octets"),
    [
        ("20%", "20%", 10 * GB),
        (" 5 % ", "5%", GB * 5 // 2),
        ("3GB", "3GB", 3 * GB),
        (1_000, "1kB", 1_000),
        ("0", "0", None),
        (0, "0", None),
    ],
)
def test_a_size_is_a_share_of_the_disk_or_octets(written: object, read: str, octets: int | None) -> None:
    assert read == parse_size_or_share(written) == parse_size_or_share(read)
    assert octets == size_of(read, 50 * GB)


@pytest.mark.parametrize("written", ["0%", "101%", "-1", "much", "1.5%", -1, None])
def test_what_is_neither_is_refused_with_the_remedy(written: object) -> None:
    with pytest.raises(ValueError, match='write "'):
        parse_size_or_share(written)


@pytest.mark.parametrize(
    ("used", "size_max", "free", "wanted", "expected"),
    [(10, 20, 5, 0, 0), (30, 20, 5, 0, 10), (30, None, 5, 0, 0), (30, None, 5, 12, 7), (30, 20, 5, 40, 30), (0, 20, 0, 9, 0)],
)
def test_as_much_is_dropped_as_is_above_the_limit_or_short(used: int, size_max: int | None, free: int, wanted: int, expected: int) -> None:
    assert expected == excess(used, size_max, free, wanted)
