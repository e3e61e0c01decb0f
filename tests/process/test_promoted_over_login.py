"""A next hop that wants a login over verified TLS gets what a node took over as from the one that burnt, in whatever moment that was."""

import asyncio
import ssl
from pathlib import Path
from typing import Any

import pytest
import trustme

from shadowrelay.lab.cluster import Cluster, Place, rows
from tests.kit.auth_servers import SECRET, AuthServer, TokenEndpoint, answering
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


MICROSOFT = {"client_secret_file": "app-secret", "scope": "https://outlook.office365.com/.default"}
GOOGLE = {"client_secret_file": "app-secret", "grant": "refresh-token", "refresh_token_file": "refresh"}
NOT_ISSUED = [(400, {"error": "invalid_grant", "error_description": "Token has been expired or revoked."})]
ISSUED = [(200, {"access_token": "token-%d", "expires_in": 3600})]
PROVIDERS: dict[str, tuple[dict[str, str], dict[str, Any], Any]] = {  # the token of the route, the mail server and the endpoint at first
    "Microsoft, no longer valid": (MICROSOFT, {"tokens": set()}, ISSUED),
    "Microsoft, throttled": (MICROSOFT, {"answers": ["432 4.3.2 STOREDRV.ClientSubmit; sender thread limit exceeded"] * 99}, ISSUED),
    "Microsoft, the application was removed": (MICROSOFT, {}, [(401, {"error": "invalid_client"})]),
    "Google, revoked": (GOOGLE, {}, NOT_ISSUED),
    "Google, hanging": (GOOGLE, {"script": {"DOT": HANG}}, ISSUED),
}


@pytest.mark.heavy
@pytest.mark.parametrize("case", PROVIDERS)
async def test_a_provider_that_wants_tokens_gets_what_was_taken_over(case: str, tmp_path: Path) -> None:
    """At first it takes nothing, whatever the reason; the node burns, and the other one gets a token of its own."""
    source, played, issued = PROVIDERS[case]
    tables, context = to_smart_host(tmp_path, port := free_port())
    for name in ("app-secret", "refresh"):
        (tmp_path / name).write_text(f"{name}-{SECRET}")
        (tmp_path / name).chmod(0o600)
    files = {key: str(tmp_path / value) if key.endswith("_file") else value for key, value in source.items()}
    all_tokens = {f"token-{number}" for number in range(1, 200)}
    first = AuthServer(**({"tls": context, "port": port, "mechanisms": "LOGIN XOAUTH2", "tokens": all_tokens} | played))
    second = AuthServer(tls=context, port=port, mechanisms="LOGIN XOAUTH2", tokens=all_tokens)
    async with answering(TokenEndpoint(list(issued))) as endpoint:
        tables["routes.auth"] = {"user": "relay@corp.example"}
        tables["routes.auth.token"] = {"endpoint": endpoint.url(), "client_id": "app-1"} | files
        async with Cluster([EAST, WEST], None, directory=tmp_path / "nodes", tables=tables) as cluster:
            east, west = (cluster.nodes[place.name] for place in (EAST, WEST))
            await asyncio.to_thread(wait_until_peers_know_each_other, [east, west])
            async with serving(first):
                await submit(east.address, "bob@corp.example")
                await until(lambda: bool(first.tried) or (issued is not ISSUED and bool(endpoint.forms)))
                await until(lambda: case != "Google, hanging" or "DATA" in first.lines)
                await east.kill()
                east.wipe()
            endpoint.answers = [*endpoint.answers[:1] * len(endpoint.forms), *ISSUED]
            async with serving(second):
                await until(lambda: bool(second.messages), 120)
                await west.stop()

    assert 1 == len(second.messages)
    assert {"XOAUTH2"} == {mechanism for mechanism, _ in second.tried}
    sent = [row for row in rows(west.tracking) if row["event-id"].startswith("SEND")]
    assert ["bob@corp.example"] == [row["recipient-address"] for row in sent]
    assert "Auth=XOAUTH2 relay@corp.example" in sent[0]["custom-data"]
    assert not [row for row in rows(west.tracking) if row["event-id"] in ("DSN", "FAIL")]
    written = b"".join(path.read_bytes() for node in (east, west) for path in node.directory.rglob("*") if path.is_file())
    assert not [one for one in (SECRET, "token-1") if one.encode() in written]
