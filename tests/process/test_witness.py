"""Two gateways in reject mode and a witness, which keeps copies and has no clients. docs/reference.md "A witness"."""

import asyncio
from pathlib import Path

import pytest

from shadowrelay.lab.cluster import Cluster, Place
from shadowrelay.lab.traffic import Sink
from tests.kit.clients import talking_to
from tests.kit.clock import until
from tests.kit.processes import said, typed, wait_until_peers_know_each_other

pytestmark = [pytest.mark.slow, pytest.mark.heavy]  # the rules are tried by the ownership ring

EAST, WEST, WITNESS = "mx1.east.example", "mx1.west.example", "w1.south.example"
MESSAGES = 5
STRICT = {"reject_message_on_shadow_failure": True, "shadow_resubmit_time_span": "10s"}


async def test_with_a_witness_mail_is_taken_while_one_gateway_is_away_and_delivered_when_the_other_burns_meanwhile(tmp_path: Path) -> None:
    sink = Sink()
    address = await sink.start()
    places = (Place(EAST, "east"), Place(WEST, "west"), Place(WITNESS, "south"))
    try:
        async with Cluster(places, address, directory=tmp_path, transport=STRICT) as cluster:
            east, west, witness = cluster.nodes.values()
            await witness.stop()
            file = witness.directory / "node.toml"
            file.write_text("".join(line for line in file.read_text().splitlines(keepends=True) if not line.startswith("relay_from")))
            await witness.start()
            await asyncio.to_thread(wait_until_peers_know_each_other, list(cluster.nodes.values()))

            (own,) = (await said(witness, "status", code=None))["nodes"]
            assert (WITNESS, True) == (own["name"], own["is_witness"])
            async with talking_to(witness.address) as client:
                assert "550 5.7.1" == (await client.mail(["b@y.example"]))[:9], "nobody relays by a witness"

            await typed(east, "queue", "suspend", str(address), "--hold")  # what it takes waits there
            await west.kill()
            async with talking_to(east.address) as client:
                replies = [await client.mail([f"b{number}@y.example"]) for number in range(MESSAGES)]
            assert ["250"] * MESSAGES == [reply[:3] for reply in replies]
            assert not sink.arrivals

            await east.kill()
            east.wipe()
            await until(lambda: len(sink.arrivals) >= MESSAGES)

            assert {f"b{number}@y.example" for number in range(MESSAGES)} == {one.recipient for one in sink.arrivals}
    finally:
        await sink.close()
