"""Dialogs of swaks, a mail client for tests, with a node; STARTTLS with a certificate that it verifies."""

import asyncio
import shutil
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import trustme

from shadowrelay.lab.cluster import Cluster, NodeProcess, Place
from shadowrelay.model.routing import HostPort
from tests.kit.postfix import free_port, running_postfix
from tests.kit.smtp_programs import dumped_message_ids, running_sink, source_command

pytestmark = [pytest.mark.interop, pytest.mark.slow]

NODE = Place("a.east.example", "east")
SWAKS = shutil.which("swaks")


def swaks_knows_tls() -> bool:
    """It needs Perl's Net::SSLeay."""
    return SWAKS is not None and b"=== TLS supported" in subprocess.run([SWAKS, "--support"], capture_output=True, check=False).stdout


needs_swaks = pytest.mark.skipif(SWAKS is None, reason="needs swaks: apt-get install swaks")
needs_tls = pytest.mark.skipif(not swaks_knows_tls(), reason="needs swaks with TLS: apt-get install swaks libnet-ssleay-perl")


class Scene:
    """A node that relays to a sink which keeps what it gets."""

    def __init__(self, node: NodeProcess, taken: Path, authority: Path) -> None:
        self.node, self.taken, self.authority = node, taken, authority

    async def swaks(self, *options: str) -> tuple[int, str]:
        """Its exit status and the dialog."""
        words = ["--server", str(self.node.address.host), "--port", str(self.node.address.port), "--helo", "client.example", *options]
        process = await asyncio.create_subprocess_exec(str(SWAKS), *words, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT)
        output, _ = await process.communicate()
        return process.returncode or 0, output.decode(errors="replace")

    async def arrived(self, count: int) -> list[str]:
        """What the sink wrote, as soon as there are `count` messages."""
        while len(dumped_message_ids(self.taken)) < count:
            await asyncio.sleep(0.05)
        return [path.read_text(errors="replace") for path in self.taken.iterdir()]


@pytest.fixture
async def scene(workplace: Path) -> AsyncIterator[Scene]:
    authority = trustme.CA()
    authority.cert_pem.write_to_path(workplace / "authority.pem")
    certificate = authority.issue_cert(NODE.name)
    certificate.private_key_and_cert_chain_pem.write_to_path(workplace / "node.pem")
    taken = workplace / "taken"
    taken.mkdir()
    taken.chmod(0o777)
    port = free_port()
    files = {"certificate": str(workplace / "node.pem"), "key": str(workplace / "node.pem")}
    options = {"shadow_redundancy_enabled": False, "reject_message_on_shadow_failure": False}
    with running_sink(port, "-d", f"{taken}/m."):
        async with Cluster(
            [NODE], HostPort("127.0.0.1", port), directory=workplace / "nodes", transport=options, tables={"tls": files}
        ) as cluster:
            yield Scene(cluster.nodes[NODE.name], taken, workplace / "authority.pem")


@needs_swaks
async def test_swaks_delivers_by_plain_dialogs_pipelined_ones_and_from_the_null_sender(scene: Scene) -> None:
    ways = (
        ["--from", "a@client.example"],
        ["--from", "a@client.example", "--pipeline"],
        ["--from", "<>"],
        ["--from", "b@x.example", "--protocol", "SMTP"],
    )
    for number, way in enumerate(ways):
        status, dialog = await scene.swaks("--to", f"user{number}@corp.example,other{number}@corp.example", *way)
        assert (0, True) == (status, "<-  250 2.0.0 Queued as " in dialog), dialog

    found = await scene.arrived(len(ways))
    arguments = {tuple(line for line in text.splitlines() if line.startswith("X-Rcpt-Args: ")) for text in found}
    assert {
        (f"X-Rcpt-Args: <user{number}@corp.example>", f"X-Rcpt-Args: <other{number}@corp.example>") for number in range(len(ways))
    } == arguments
    assert 1 == sum("X-Mail-Args: <>" in text for text in found)


@needs_tls
async def test_swaks_verifies_our_certificate_and_delivers_by_starttls(scene: Scene) -> None:
    tls = ["--tls", "--tls-verify", "--tls-ca-path", str(scene.authority)]
    status, dialog = await scene.swaks("--from", "a@client.example", "--to", "user@corp.example", *tls)

    assert 0 == status, dialog
    assert "=== TLS started with cipher TLSv1.3:" in dialog
    assert "<~  250 2.0.0 Queued as " in dialog
    (text,) = await scene.arrived(1)
    assert "ESMTPS" in text


@needs_tls
async def test_swaks_refuses_a_certificate_of_another_authority(scene: Scene, workplace: Path) -> None:
    trustme.CA().cert_pem.write_to_path(workplace / "other.pem")
    tls = ["--tls", "--tls-verify", "--tls-ca-path", str(workplace / "other.pem")]
    status, dialog = await scene.swaks("--from", "a@client.example", "--to", "user@corp.example", *tls)

    assert 29 == status, dialog  # swaks: error negotiating TLS


async def test_postfix_that_insists_on_verified_tls_sends_to_us(scene: Scene, workplace: Path) -> None:
    settings = {
        "relayhost": f"[127.0.0.1]:{scene.node.address.port}",
        "smtp_tls_security_level": "secure",
        "smtp_tls_secure_cert_match": NODE.name,
        "smtp_tls_CAfile": str(scene.authority),
    }
    with running_postfix(workplace / "sending", settings) as postfix:
        source = await asyncio.create_subprocess_exec(*source_command(postfix.port, messages=5, sessions=2, size=500))
        assert 0 == await source.wait()
        found = await scene.arrived(5)

    assert ["ESMTPS"] * 5 == [word for text in found for word in text.split() if word == "ESMTPS"]
