"""A store that hangs, resets or lies is asked a few times, not once for each message, so that other mail does not notice it.

What is counted is work, because waits say more about the machine: `benchmarks/isolation.py` measures those.
"""

from pathlib import Path

import pytest

from benchmarks.isolation import TROUBLES, Neighbour
from shadowrelay.lab.cluster import rows
from tests.kit.clients import talking_to
from tests.kit.clock import until
from tests.kit.processes import a_node_process, waiting_count

pytestmark = [pytest.mark.usefixtures("quiet"), pytest.mark.slow]
MESSAGES, SESSIONS_MAX = 60, 20  # `concurrency_per_destination`


@pytest.mark.parametrize("trouble", TROUBLES)
async def test_a_troubled_store_is_not_asked_for_each_message(trouble: str, tmp_path: Path) -> None:
    store = Neighbour()
    store.trouble = trouble
    async with store.serving() as port:
        node = a_node_process(tmp_path / "a.example", connector='relay_from = ["127.0.0.0/8"]')
        file = node.directory / "node.toml"
        file.write_text(file.read_text().replace("127.0.0.1:9", f"127.0.0.1:{port}"))
        await node.start()
        try:
            async with talking_to(node.address) as client:
                for number in range(MESSAGES):
                    assert (await client.mail([f"user{number}@store.example"])).startswith("250")
            await until(lambda: store.asked_count > 0)
            waiting = waiting_count(node)
            events = [row["event-id"] for row in rows(node.tracking)]
        finally:
            await node.stop()

    assert MESSAGES == waiting
    assert store.asked_count <= SESSIONS_MAX
    assert events.count("DEFER") <= SESSIONS_MAX
    assert "FAIL" not in events
