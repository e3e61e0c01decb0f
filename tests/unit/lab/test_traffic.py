"""Clients of a cluster go on while its servers change: docs/lab.md."""

import asyncio
import random

from shadowrelay.lab.cluster import LOOPBACK, free_ports
from shadowrelay.lab.traffic import Load, Sink
from shadowrelay.model.routing import HostPort
from tests.kit.clock import until


async def test_a_client_that_was_refused_goes_on_with_the_servers_that_there_are_then() -> None:
    sink = Sink()
    address = await sink.start()
    nobody = [HostPort(LOOPBACK, port) for port in free_ports(2)]
    load = Load(dict(zip(("one", "two"), nobody, strict=True)), random.Random(1))
    try:
        running = asyncio.create_task(load.run(1, rate=10.0))
        await until(lambda: bool(load.sent and load.sent[0].tries))
        load.nodes = {"three": address}
        await running

        (sent,) = load.sent
        assert "three" == sent.tries[-1].node
        assert sent.acknowledged_ids
    finally:
        await load.close()
        await sink.close()
