"""Every implementation of the port `Ledger`: the threaded one and the inline one, on real files."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from shadowrelay.store.ledger import Inline, Ledger
from tests.kit.clock import Hands
from tests.kit.ledger import NOW, a_ledger


@pytest.fixture
def wall() -> Hands:
    return Hands(NOW)


@pytest.fixture(params=["threaded", "inline"])
async def ledger(request: pytest.FixtureRequest, tmp_path: Path, wall: Hands) -> AsyncIterator[Ledger]:
    async with a_ledger(tmp_path, wall, inline=Inline() if request.param == "inline" else None) as opened:
        yield opened
