"""A next hop that wants a login over verified TLS gets what a node took over as from the one that burnt, in whatever moment that was."""

import asyncio
import ssl
from pathlib import Path
from typing import Any

import pytest
import trustme

from shadowrelay.lab.cluster import Cluster, Place, rows
from tests.kit.auth_servers import SECRET, AuthServer
from tests.kit.clients import submit
from tests.kit.clock import until
from tests.kit.postfix import free_port
from tests.kit.processes import wait_until_peers_know_each_other
from tests.kit.smtp_servers import HANG, serving

pytestmark = [pytest.mark.slow]

EAST, WEST = Place("a.east.example", "east"), Place("b.west.example", "west")


def to_smart_host(directory: Path, port: int) -> tuple[dict[str, Any], ssl.SSLContext]:
    """The tables of the route, and what the smart host shows."""
    authority = trustme.CA()
    authority.cert_pem.write_to_path(directory / "authority.pem")
    (directory / "secret").write_text(SECRET)
    (directory / "secret").chmod(0o600)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("localhost").configure_cert(context)
    route = {"recipients": ["*"], "next_hop": f"localhost:{port}", "tls_authority": str(directory / "authority.pem")}
    return {"[routes]": route, "routes.auth": {"user": "relay", "secret_file": str(directory / "secret")}}, context


@pytest.mark.parametrize("moment", [pytest.param("AUTH", marks=pytest.mark.heavy), pytest.param("MAIL", marks=pytest.mark.heavy), "DOT"])
async def test_a_node_that_takes_over_logs_in_like_the_one_that_burnt(moment: str, tmp_path: Path) -> None:
    tables, context = to_smart_host(tmp_path, port := free_port())
    first = AuthServer(tls=context, port=port, users={} if moment == "AUTH" else {"relay": SECRET})
    if moment != "AUTH":
        first.script = {moment: HANG}
    async with Cluster([EAST, WEST], None, directory=tmp_path / "nodes", tables=tables) as cluster:
        east, west = (cluster.nodes[place.name] for place in (EAST, WEST))
        await asyncio.to_thread(wait_until_peers_know_each_other, [east, west])
        async with serving(first):
            await submit(east.address, "bob@corp.example")
            await until(lambda: bool(first.tried) and (moment == "AUTH" or any(line.startswith("MAIL") for line in first.lines)))
            await east.kill()
            east.wipe()
        second = AuthServer(tls=context, port=port)
        async with serving(second):
            await until(lambda: bool(second.messages))
            await west.stop()

    assert 1 == len(second.messages)
    assert all(session.is_tls for session in second.known)
    assert {"PLAIN"} == {mechanism for mechanism, _ in second.tried}
    sent = [row for row in rows(west.tracking) if row["event-id"].startswith("SEND")]
    assert ["bob@corp.example"] == [row["recipient-address"] for row in sent]
    assert ["relay" in row["custom-data"] for row in sent] == [True]
    written = b"".join(path.read_bytes() for node in (east, west) for path in node.directory.rglob("*") if path.is_file())
    assert SECRET.encode() not in written
