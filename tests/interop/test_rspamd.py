"""Two nodes with a real rspamd: its test strings for spam, DKIM signatures, and a message that is taken over after it was filtered."""

import asyncio
import base64
import contextlib
import hashlib
import re
import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from shadowrelay.lab.cluster import Cluster, NodeProcess, Place, rows
from shadowrelay.model.routing import HostPort
from tests.kit.clients import Client
from tests.kit.postfix import free_port
from tests.kit.processes import address_of_connector
from tests.kit.smtp_programs import dumped_message_ids, running_sink

RSPAMD = shutil.which("rspamd")
pytestmark = [
    pytest.mark.interop,
    pytest.mark.heavy,
    pytest.mark.skipif(RSPAMD is None, reason="needs rspamd: apt-get install rspamd"),
]

EAST, WEST = Place("a.east.example", "east"), Place("b.west.example", "west")
SPAM = "{}JS*C4JDBQADN1.NSBN3*2IDNEN*GTUBE-STANDARD-ANTI-UBE-TEST-EMAIL*C.34X"  # X: reject, Y: add header, Z: rewrite subject
OFF = ("rbl", "fuzzy_check", "asn", "redis", "neural", "greylist", "ratelimit", "phishing", "surbl", "spf", "dmarc", "arc")
LOCAL = {
    "options.inc": 'enable_test_patterns = true;\ndns {{ nameserver = ["127.0.0.1:9"]; timeout = 0.1s; retransmits = 1; }}\n',
    "worker-normal.inc": 'bind_socket = "127.0.0.1:{port}";\ncount = 1;\n',
    "worker-controller.inc": 'bind_socket = "127.0.0.1:{other}";\ncount = 1;\n',
    "worker-proxy.inc": "enabled = false;\n",
    "logging.inc": 'type = "console";\nlevel = "warning";\n',
    "dkim_signing.conf": (
        "sign_local = true;\nuse_esld = false;\nallow_hdrfrom_mismatch = true;\n"
        'domain {{ x.example {{ path = "{key}"; selector = "s"; }} }}\n'
    ),
}


@contextlib.asynccontextmanager
async def rspamd(directory: Path) -> AsyncIterator[str]:
    """Its URL. It loads for seconds."""
    local, port = directory / "local.d", free_port()
    local.mkdir(parents=True)
    key = rsa.generate_private_key(public_exponent=65_537, key_size=2_048)
    pem = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.TraditionalOpenSSL, serialization.NoEncryption())
    (directory / "key.pem").write_bytes(pem)
    for name, text in LOCAL.items():
        (local / name).write_text(text.format(port=port, other=free_port(), key=directory / "key.pem"))
    for name in OFF:
        (local / f"{name}.conf").write_text("enabled = false;\n")
    directories = [f"--var={name}={directory}" for name in ("DBDIR", "RUNDIR", "LOGDIR")]
    words = ["-f", "-i", "-c", "/etc/rspamd/rspamd.conf", f"--var=LOCAL_CONFDIR={directory}", *directories]
    quiet = asyncio.subprocess.DEVNULL
    process = await asyncio.create_subprocess_exec(str(RSPAMD), *words, stdout=quiet, stderr=quiet)
    try:
        async with httpx.AsyncClient(trust_env=False, timeout=10) as asked:
            while True:
                with contextlib.suppress(httpx.HTTPError):
                    if (await asked.get(f"http://127.0.0.1:{port}/ping")).text.startswith("pong"):
                        break
                assert process.returncode is None
                await asyncio.sleep(0.5)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        await process.wait()


async def filtered(node: NodeProcess, text: str) -> str:
    """The reply to a message with this text."""
    client = await Client.to(await address_of_connector(node, "filtered"))
    try:
        await client.begin("EHLO client.example")
        content = f"From: ann@x.example\r\nTo: bob@corp.example\r\nMessage-ID: <{text[:1]}@x.example>\r\nSubject: lunch\r\n\r\n{text}\r\n"
        return await client.mail(["bob@corp.example"], content.encode(), sender="ann@x.example")
    finally:
        await client.close()


async def test_what_rspamd_made_of_a_message_is_what_the_server_delivers_that_takes_it_over(workplace: Path) -> None:
    port, taken = free_port(), workplace / "taken"
    taken.mkdir()
    taken.chmod(0o777)
    async with rspamd(workplace / "rspamd") as address:
        tables = {
            "[filters]": {"name": "rspamd", "address": address},
            "[receive_connectors]": {
                "name": "filtered", "listen": "127.0.0.1:0", "relay_from": ["127.0.0.0/8"], "filters": ["rspamd"], "accept_xshadow": False,
            },
        }  # fmt: skip
        next_hop = HostPort("127.0.0.1", port)
        async with Cluster([EAST, WEST], next_hop, directory=workplace / "nodes", tables=tables) as cluster:
            east = cluster.nodes[EAST.name]
            assert (await filtered(east, SPAM.format("X"))).startswith("550 5.7.1 Gtube pattern")
            replies = [await filtered(east, text) for text in (SPAM.format("Y"), SPAM.format("Z"), "an ordinary one")]
            assert ["250 2.0.0 Queued as"] * 3 == [reply[:19] for reply in replies]

            await east.kill()
            east.wipe()
            with running_sink(port, "-d", f"{taken}/m."):
                while len(dumped_message_ids(taken)) < 3:
                    await asyncio.sleep(0.1)
            await cluster.nodes[WEST.name].stop()

        found = {re.search(r"Message-ID: <(.)", text)[1]: text for text in (path.read_text() for path in taken.iterdir())}  # type: ignore[index]
        assert "\nX-Spam: Yes\n" in found["Y"]
        assert "\nSubject: *** SPAM *** lunch\n" in found["Z"]
        signed = re.search(r"DKIM-Signature: (.*?)\n(?=\S)", found["a"], re.DOTALL)
        assert signed is not None
        tags = dict(tag.strip().split("=", 1) for tag in re.sub(r"\s", "", signed[1]).strip(";").split(";"))
        assert ("x.example", "s") == (tags["d"], tags["s"])
        assert base64.b64encode(hashlib.sha256(b"an ordinary one\r\n").digest()).decode() == tags["bh"]

        received = [row["custom-data"] for row in rows(east.tracking) if row["event-id"] == "RECEIVE"]
        verdicts = sorted(found for data in received for found in re.findall(r"S:Filter=rspamd:([a-z-]+)", data))
        assert ["add-header", "no-action", "rewrite-subject"] == verdicts
        assert {"RESUBMIT"} <= {row["event-id"] for row in rows(cluster.nodes[WEST.name].tracking)}
