"""The next hop of nodes that are processes."""

from collections.abc import AsyncIterator

import pytest

from shadowrelay.lab.traffic import Sink


@pytest.fixture
async def sink() -> AsyncIterator[Sink]:
    opened = Sink()
    yield opened
    await opened.close()
