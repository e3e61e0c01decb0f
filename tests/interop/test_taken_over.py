"""Mail passes a filter, its node burns before it is delivered, and real neighbours get it once from the node that takes over, as the filter
made it: Exim, and Postfix with Dovecot that wants bearer tokens."""

import asyncio
import contextlib
import email
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from shadowrelay.lab.cluster import Cluster, NodeProcess, Place, rows
from tests.interop.mtas import Exim, body_of
from tests.kit.auth_servers import SECRET, TokenEndpoint, answering
from tests.kit.clients import Client
from tests.kit.clock import until
from tests.kit.played_rspamd import PlayedRspamd, played_rspamd
from tests.kit.postfix import free_port, stored_messages
from tests.kit.processes import address_of_connector, operator_events, wait_until_peers_know_each_other
from tests.kit.smart_hosts import DOVECOT, running_smart_host

pytestmark = [pytest.mark.interop, pytest.mark.heavy]

EAST, WEST = Place("a.east.example", "east"), Place("b.west.example", "west")
VERDICT: dict[str, Any] = {"action": "add header", "score": 6.5, "milter": {"add_headers": {"X-Judged": "once"}}}
BODY = b"Gr\xc3\xbc\xc3\x9fe\r\n.\r\n" + b"x" * 900 + b"\r\n"


@contextlib.asynccontextmanager
async def filtering(directory: Path, tables: dict[str, Any]) -> AsyncIterator[tuple[NodeProcess, NodeProcess, PlayedRspamd]]:
    """Two nodes behind a filter that answers `VERDICT`."""
    async with played_rspamd(VERDICT) as judge:
        filtered = {
            "[filters]": {"name": "rspamd", "address": judge.address},
            "[receive_connectors]": {
                "name": "filtered", "listen": "127.0.0.1:0", "relay_from": ["127.0.0.0/8"], "filters": ["rspamd"], "accept_xshadow": False,
            },
        }  # fmt: skip
        async with Cluster([EAST, WEST], None, directory=directory, tables=filtered | tables) as cluster:
            east, west = (cluster.nodes[place.name] for place in (EAST, WEST))
            await asyncio.to_thread(wait_until_peers_know_each_other, [east, west])
            yield east, west, judge


async def send(node: NodeProcess, recipient: str) -> None:
    client = await Client.to(await address_of_connector(node, "filtered"))
    try:
        await client.begin("EHLO client.example")
        head = b"From: ann@x.example\r\nSubject: burnt\r\nMessage-ID: <1@x.example>\r\n\r\n"
        assert "250 2.0.0 Queued as" == (await client.mail([recipient], head + BODY, sender="ann@x.example"))[:19]
    finally:
        await client.close()


async def burn(node: NodeProcess) -> None:
    await node.kill()
    node.wipe()


def check(stored: dict[str, list[bytes]], west: NodeProcess, judge: PlayedRspamd) -> None:
    """One message, as it was judged, by way of a takeover."""
    ((text,),) = stored.values()
    assert BODY == body_of(text)
    found = email.message_from_bytes(text)
    assert (["once"], ["burnt"]) == (found.get_all("X-Judged"), found.get_all("Subject"))
    assert b"with ShadowRedundancy id" in text
    assert 1 == len(judge.asked)
    assert {"RESUBMIT"} <= {row["event-id"] for row in rows(west.tracking)}
    assert not [row for row in rows(west.tracking) if row["event-id"] in ("DSN", "FAIL")]


async def test_exim_gets_once_what_the_filter_made_of_a_message_that_was_taken_over(workplace: Path) -> None:
    if reason := Exim.missing():
        pytest.skip(reason)
    exim = Exim(workplace / "exim", free_port(), free_port(), ["user0"])
    exim.directory.mkdir()
    exim.configure()
    route = {"[routes]": {"recipients": ["*"], "next_hop": f"127.0.0.1:{exim.port}"}}
    async with filtering(workplace / "nodes", route) as (east, west, judge):
        await send(east, "user0@exim.example")
        await burn(east)
        try:
            exim.start()
            await until(lambda: bool(exim.stored()), 120)
            await west.stop()
            check(exim.stored(), west, judge)
        finally:
            exim.stop()


@pytest.mark.skipif(DOVECOT is None, reason="needs Debian's dovecot-core")
@pytest.mark.parametrize("mechanism", ["OAUTHBEARER", "XOAUTH2"])
async def test_a_smart_host_that_wants_tokens_gets_what_was_taken_over_from_a_provider_that_had_revoked_them(
    mechanism: str, workplace: Path
) -> None:
    """Dovecot asks whose a token is: of nobody, until the first node has burnt."""
    (workplace / "app-secret").write_text(SECRET)
    (workplace / "app-secret").chmod(0o600)
    revoked, valid = (200, {"active": False}), (200, {"active": True, "username": "relay"})
    async with answering(TokenEndpoint()) as issuing, answering(TokenEndpoint([revoked])) as asked:
        with running_smart_host(workplace, asked.url()) as postfix:
            tables = {
                "[routes]": {
                    "recipients": ["*"], "next_hop": f"localhost:{postfix.port}", "tls_authority": str(workplace / "authority.pem"),
                },
                "routes.auth": {"user": "relay", "mechanism": mechanism},
                "routes.auth.token": {
                    "endpoint": issuing.url(), "client_id": "app-1", "client_secret_file": str(workplace / "app-secret"),
                },
            }  # fmt: skip
            async with filtering(workplace / "nodes", tables) as (east, west, judge):
                await send(east, "user@corp.example")
                await until(lambda: bool(operator_events(east, "login.refused")), 120)
                await burn(east)
                assert {} == stored_messages(workplace / "mail")
                asked.answers = [*[revoked] * len(asked.forms), valid]
                await until(lambda: bool(stored_messages(workplace / "mail")), 180)
                await west.stop()
                check(stored_messages(workplace / "mail"), west, judge)

            (sent,) = [row for row in rows(west.tracking) if row["event-id"].startswith("SEND")]
            assert f"S:Auth={mechanism} relay" in sent["custom-data"]
            written = b"".join(path.read_bytes() for node in (east, west) for path in node.directory.rglob("*") if path.is_file())
            assert not [secret for secret in (SECRET, "token-1") if secret.encode() in written]
