"""docs/operations.md "a node's key was stolen", typed as it is printed, in a cluster that `init` made and that runs."""

import asyncio
import os
import re
import shutil
import signal
import ssl
import sys
import uuid
from pathlib import Path

import httpx
import pytest

from shadowrelay.lab.cluster import NodeProcess, Place, free_ports
from shadowrelay.lab.traffic import Sink
from shadowrelay.model.routing import HostPort
from shadowrelay.settings import configuration
from tests.kit.clients import Client, submit
from tests.kit.clock import PATIENCE_SECONDS, until
from tests.kit.init_runs import nodes, run
from tests.kit.pages import OPERATORS
from tests.kit.processes import operator_events, wait_until_peers_know_each_other
from tests.tidy.house import ROOT

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

EAST, WEST = "mx1.east.example", "mx1.west.example"


def printed() -> list[str]:
    text = OPERATORS.partition("**a node's key was stolen**")[2].partition("\n\n**")[0]
    lines = [line.partition("  #")[0].rstrip() for line in re.findall(r"^    (.+)$", text, re.MULTILINE)]
    assert ["cat", "rm", "shadowrelay"] == [line.split()[0] for line in lines]
    return lines


async def type_in(directory: Path, command: str) -> str:
    environment = os.environ | {"PYTHONPATH": str(ROOT), "COLUMNS": "250"}
    program = f'shadowrelay() {{ "{sys.executable}" -m shadowrelay "$@"; }}'
    pipe = asyncio.subprocess.PIPE
    shell = await asyncio.create_subprocess_exec(
        "bash", "-ec", f"{program}\n{command}", cwd=directory, env=environment, stdout=pipe, stderr=asyncio.subprocess.STDOUT
    )
    said = (await shell.communicate())[0].decode()
    assert 0 == shell.returncode, f"{command}: {said}"
    return said


async def as_the_thief(stolen: Path, at: HostPort) -> tuple[Client, str]:
    client = await Client.to(at)
    await client.begin(f"EHLO {WEST}", "STARTTLS")
    context = ssl.create_default_context(cafile=str(stolen / "peers.pem"))
    context.load_cert_chain(stolen / "node.pem", stolen / "node.key")
    await client.start_tls(context, EAST)
    await client.ask(f"EHLO {WEST}")
    hello = f"server={WEST} boundary=default database={uuid.uuid4()} incarnation=1 began=1 position=5 span=10800"
    return client, await client.ask(f"XSHADOW {hello}")


def status_of(node: NodeProcess, token: str) -> int:
    url = f"http://{node.admin}/api/v1/queues"
    return httpx.get(url, headers={"Authorization": f"Bearer {token}"}, timeout=PATIENCE_SECONDS).status_code


async def test_the_thief_is_out_and_the_node_is_in_again(tmp_path: Path) -> None:
    sink = Sink()
    hop = await sink.start()
    top, stolen = tmp_path / "cluster", tmp_path / "stolen"
    ports = [HostPort("127.0.0.1", port) for port in free_ports(2)]
    done = run(top, *nodes(f"{EAST},east,{ports[0]}", f"{WEST},west,{ports[1]}"), "--accept", "corp.example", "--next-hop", str(hop))
    assert 0 == done.exit_code, done.output
    settings = {name: configuration.load(top / name / "node.toml").settings for name in (EAST, WEST)}
    east, west = (
        NodeProcess(Place(name, name.split(".")[1]), port, settings[name].admin.listen, top / name)
        for name, port in zip((EAST, WEST), ports, strict=True)
    )
    peers = settings[EAST].receive_connectors[1].listen
    try:
        await asyncio.gather(east.start(), west.start())
        await asyncio.to_thread(wait_until_peers_know_each_other, [east, west])
        await submit(east.address, "first@corp.example")
        shutil.copytree(top / WEST, stolen, ignore=shutil.ignore_patterns("data", "tracking"))
        tokens = {name: (stolen / name).read_text().strip() for name in ("token", "read_only_token")}
        assert [200, 200] == [status_of(west, tokens["token"]), status_of(east, tokens["read_only_token"])]
        await west.stop()  # so that the name is free for the thief
        open_session, said = await as_the_thief(stolen, peers)
        assert said.startswith("250"), said

        for command in printed():
            told = await type_in(top, command)
        assert "reload" in told or "SIGHUP" in told
        assert (top / EAST / "revoked.pem").read_bytes() == (top / WEST / "revoked.pem").read_bytes() != b""
        east.signal(signal.SIGHUP)
        await until(lambda: operator_events(east, "configuration.reloaded"))

        assert "" == await open_session.rest()
        await open_session.close()
        with pytest.raises((OSError, EOFError, AssertionError)):
            await as_the_thief(stolen, peers)
        await until(lambda: operator_events(east, "session.certificate_refused"))
        await west.start()  # with its new key and tokens
        await east.stop()
        await east.start()
        await asyncio.to_thread(wait_until_peers_know_each_other, [east, west])
        await submit(east.address, "second@corp.example")
        await submit(west.address, "third@corp.example")
        await until(lambda: len(sink.arrivals) >= 3)
        assert [401, 401] == [status_of(west, tokens["token"]), status_of(east, tokens["read_only_token"])]
    finally:
        await asyncio.gather(east.stop(), west.stop())
        await sink.close()

    assert ["first@corp.example", "second@corp.example", "third@corp.example"] == sorted(one.recipient for one in sink.arrivals)
