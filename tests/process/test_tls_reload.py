"""Certificates are renewed while two real nodes run: SIGHUP, new sessions both ways, and files that cannot be used."""

import asyncio
import email.message
import shutil
import signal
import smtplib
import ssl
import time
from pathlib import Path

import pytest
import trustme

from shadowrelay.admin.api_client import NodeClient, NodeError
from shadowrelay.admin.token import read_token
from shadowrelay.lab.cluster import Cluster, NodeProcess, Place
from shadowrelay.model.routing import HostPort
from shadowrelay.model.settings import Tls
from tests.kit.clock import PATIENCE_SECONDS, until, wait_until
from tests.kit.processes import operator_events

pytestmark = pytest.mark.slow

PLACES = (Place("a.east.example", "east"), Place("b.west.example", "west"))
FILES = {"certificate": "nodes.pem", "key": "nodes.key", "peer_authority": "peers.pem"}


def write_files(directory: Path, authority: trustme.CA) -> None:
    """One certificate for both nodes, and who signed it."""
    certificate = authority.issue_cert(*(place.name for place in PLACES))
    (directory / FILES["certificate"]).write_bytes(b"".join(blob.bytes() for blob in certificate.cert_chain_pems))
    (directory / FILES["key"]).write_bytes(certificate.private_key_pem.bytes())
    (directory / FILES["peer_authority"]).write_bytes(authority.cert_pem.bytes())


def tls_beside(authority: Path) -> Tls:
    """What the API demands of its clients."""
    return Tls(certificate=authority.parent / FILES["certificate"], key=authority.parent / FILES["key"])


def session(node: NodeProcess, authority: trustme.CA) -> smtplib.SMTP:
    """After STARTTLS with a certificate of the node's name that this authority signed. Raises ssl.SSLError."""
    context = ssl.create_default_context()
    authority.configure_trust(context)
    client = smtplib.SMTP(node.address.host, node.address.port, timeout=PATIENCE_SECONDS)
    client._host = node.name  # what starttls() verifies
    try:
        client.starttls(context=context)
    except BaseException:
        client.close()
        raise
    return client


async def reload(nodes: list[NodeProcess], event: str) -> None:
    """SIGHUP, until each has answered with one more of this event."""
    before = [len(operator_events(node, event)) for node in nodes]
    for node in nodes:
        node.signal(signal.SIGHUP)
    await until(lambda: [len(operator_events(node, event)) for node in nodes] == [count + 1 for count in before])


def deliver(node: NodeProcess, authority: trustme.CA, message: email.message.EmailMessage) -> None:
    """Until it is taken, which it is when its copy is on the other node: as a client does, again after each 451."""
    while True:
        with session(node, authority) as client:
            try:
                assert {} == client.send_message(message, "a@x.example", ["b@y.example"])
            except smtplib.SMTPDataError as refused:
                if refused.smtp_code != 451:
                    raise
            else:
                return
        time.sleep(0.2)


def name_by_api(node: NodeProcess, authority: Path) -> str:
    """What the node says its name is, over TLS. Raises NodeError."""
    (address,) = wait_until(lambda: [line["address"] for line in operator_events(node, "admin.listening") if line["tls"]])
    token, tls = read_token(node.directory / "token"), tls_beside(authority)
    with NodeClient(f"https://{address}", token, authority=authority, name=node.name, tls=tls) as client:
        return str(client.node()["name"])


async def test_certificates_are_renewed_by_sighup_in_both_directions_and_bad_files_change_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHADOWRELAY_ADMIN__TLS_LISTEN", "127.0.0.1:0")
    old, new = trustme.CA(), trustme.CA()
    write_files(tmp_path, old)
    peers = tmp_path / FILES["peer_authority"]
    table = {key: str(tmp_path / name) for key, name in FILES.items()}
    message = email.message.EmailMessage()
    message.set_content("hello")
    async with Cluster(PLACES, HostPort("127.0.0.1", 9), directory=tmp_path, tables={"tls": table}) as cluster:
        first, second = cluster.nodes.values()
        kept = session(first, old)
        assert first.name == await asyncio.to_thread(name_by_api, first, peers)
        peers_before = shutil.copy(peers, tmp_path / "old.pem")
        for name in (FILES["certificate"], FILES["peer_authority"]):
            content = (tmp_path / name).read_bytes()
            (tmp_path / name).write_text("rubbish")
            await reload([first], "configuration.refused")
            (tmp_path / name).write_bytes(content)
        session(first, old).close()

        write_files(tmp_path, new)
        await reload([first, second], "configuration.reloaded")
        session(first, new).close()
        with pytest.raises(ssl.SSLError):
            session(first, old)
        assert first.name == await asyncio.to_thread(name_by_api, first, peers)
        with pytest.raises(NodeError, match=r"unable to get local issuer certificate|self-signed certificate"):
            await asyncio.to_thread(name_by_api, first, peers_before)
        assert 250 == kept.noop()[0]
        kept.close()

        await second.stop()
        await second.start()
        for node in (first, second):  # each places its copy on the other; until they have met again, it answers 451
            await asyncio.to_thread(deliver, node, new, message)

    assert [[]] == [line["needs_restart"] for line in operator_events(first, "configuration.reloaded")]
    refused = [str(line["error"]) for line in operator_events(first, "configuration.refused")]
    assert [True, True] == [key in text for key, text in zip(("tls.certificate", "tls.peer_authority"), refused, strict=True)]
    assert all(line["tls"] for line in operator_events(first, "peer.session_opened"))
