"""SIGHUP at a real node: what changes at once does, what needs a restart is named and stays, a wrong file changes nothing."""

import asyncio
import re
import signal
import socket
import sys
from functools import partial
from pathlib import Path

import httpx
import pytest
import structlog

from shadowrelay.admin.api_client import NodeClient
from shadowrelay.admin.token import read_token
from shadowrelay.lab.cluster import Cluster, NodeProcess, Place, free_ports
from shadowrelay.lab.traffic import Sink
from shadowrelay.model.routing import HostPort
from shadowrelay.model.settings import AdminRole
from shadowrelay.node.node import Node
from shadowrelay.settings import configuration
from tests.kit.clients import Client, talking_to
from tests.kit.clock import PATIENCE_SECONDS, until
from tests.kit.consoles import HASHES, TOKENS
from tests.kit.processes import NO_TLS, a_node_process, api_of, kept_count, operator_events, typed

pytestmark = pytest.mark.slow


async def reloaded(node: NodeProcess) -> dict[str, object]:
    """SIGHUP, and the line that it leaves."""

    before = len(operator_events(node, "configuration."))
    node.signal(signal.SIGHUP)
    (line,) = await until(lambda: operator_events(node, "configuration.")[before:])
    return line


async def test_sighup_takes_what_it_can_and_names_the_rest(tmp_path: Path) -> None:
    async with Cluster((Place("a.east.example", "east"),), HostPort("127.0.0.1", 9), directory=tmp_path) as cluster:
        (node,) = cluster.nodes.values()
        file = node.directory / "node.toml"
        before = file.read_text()
        file.write_text(before.replace("[transport]", '[transport]\nsafety_net_hold_time = "5m"\ndelivery_without_lease = "defer"'))
        file.write_text(file.read_text().replace("[[receive_connectors]]", "[[receive_connectors]]\nmax_message_size = 4321"))
        first = await reloaded(node)
        again = await reloaded(node)
        file.write_text("rubbish")
        wrong = await reloaded(node)

        with api_of(node) as api:
            known = api.node()
        settings, taken = known["settings"], known["configuration"]
        file.write_text(before.replace("[transport]", "[transport]\nshadow_tiemout = 3"))
        said, warned = await typed(node, "status", code=None)
        _, examined = await typed(node, "doctor", code=2)
        async with talking_to(node.address) as client:
            extensions = await client.ask("EHLO again")

    assert [True, True, True] == ["refused" in said, "earlier state of" in said, "unknown key; did you mean shadow_timeout?" in warned]
    assert "the running node has read an earlier state of node.toml" in examined
    assert (str(file), ["transport.safety_net_hold_time"]) == (taken["file"], taken["needs_restart"])
    assert "not valid TOML" in taken["refusal"]
    named = ["transport.safety_net_hold_time"]
    assert [named, named, None] == [line.get("needs_restart") for line in (first, again, wrong)]
    assert "configuration.refused" == wrong["event"]
    assert ("2d", "defer") == tuple(settings[f"transport.{key}"] for key in ("safety_net_hold_time", "delivery_without_lease"))
    assert "250-SIZE 4321" in extensions.split("\n")


async def test_sighup_takes_what_has_changed_in_an_included_file_and_names_what_is_wrong_there(tmp_path: Path) -> None:
    async with Cluster((Place("a.east.example", "east"),), HostPort("127.0.0.1", 9), directory=tmp_path) as cluster:
        (node,) = cluster.nodes.values()
        file, common = node.directory / "node.toml", node.directory.parent / "machine.toml"
        common.write_text('[transport]\ndelivery_without_lease = "deliver"\n')
        file.write_text('include = "../machine.toml"\n' + file.read_text())
        taken = await reloaded(node)
        common.write_text('[transport]\ndelivery_without_lease = "defer"\n')
        changed = await reloaded(node)
        with api_of(node) as api:
            settings = api.node()["settings"]
        common.write_text("[transport]\nshadow_tiemout = 3\n")
        wrong = await reloaded(node)
        common.write_text("rubbish")
        rubbish = await reloaded(node)
        common.unlink()
        missing = await reloaded(node)
        with api_of(node) as api:
            after = api.node()

    assert [[], []] == [line["needs_restart"] for line in (taken, changed)]
    name = "transport.delivery_without_lease"
    assert ("defer", "defer") == (settings[name], after["settings"][name])
    for refused in (wrong, rubbish, missing):
        assert ("configuration.refused", True) == (refused["event"], "machine.toml" in str(refused)), refused
    assert "transport.shadow_tiemout" in str(wrong)
    assert "machine.toml" in after["configuration"]["refusal"]


async def test_a_sighup_while_the_node_starts_waits_for_that(tmp_path: Path) -> None:
    async with Cluster((Place("a.east.example", "east"),), HostPort("127.0.0.1", 9), directory=tmp_path) as cluster:
        (process,) = cluster.nodes.values()
        await process.kill()
        file = process.directory / "node.toml"
        node = Node(configuration.load(file))
        file.write_text(file.read_text().replace("[[receive_connectors]]", "[[receive_connectors]]\nmax_message_size = 4321"))
        node.reload()
        with structlog.testing.capture_logs() as said:
            await node.start()
        try:
            async with talking_to(process.address) as client:
                extensions = await client.ask("EHLO again")
        finally:
            await node.stop()

    assert ["node.started", "configuration.reloaded"] == [line["event"] for line in said][-2:]
    assert "250-SIZE 4321" in extensions.split("\n")


async def test_a_sighup_does_not_end_a_node_that_reads_its_program(tmp_path: Path) -> None:
    async with Cluster((Place("a.east.example", "east"),), HostPort("127.0.0.1", 9), directory=tmp_path) as cluster:
        (node,) = cluster.nodes.values()
        await node.stop()
        file = node.directory / "node.toml"
        command = (sys.executable, "-X", "importtime", "-m", "shadowrelay", "serve")  # cold, and it tells where it is
        process = await asyncio.create_subprocess_exec(*command, "--config", str(file), stderr=asyncio.subprocess.PIPE)
        assert process.stderr is not None
        while b"shadowrelay.signals" not in await process.stderr.readline():
            pass
        await process.stderr.readline()  # the first module after that: it listens
        process.send_signal(signal.SIGHUP)
        said = b""
        while b"configuration.reloaded" not in said:
            line = await process.stderr.readline()
            assert line, f"it has ended: {said[-2000:].decode()}"
            said += line
        process.send_signal(signal.SIGTERM)
        await process.communicate()

    assert 0 == process.returncode
    assert b"node.started" in said


async def test_a_connector_that_left_its_shared_port_moves_when_mail_is_taken_again(tmp_path: Path) -> None:
    peers, before, after = (HostPort("127.0.0.1", port) for port in free_ports(3))
    shared = "reuse_port = true\naccept_xshadow = false"
    async with Cluster((Place("a.example", "east"),), HostPort("127.0.0.1", 9), directory=tmp_path) as cluster:
        (node,) = cluster.nodes.values()
        with_connectors(node, ("peers", peers, ""), ("public", before, f"{ONE}\n{shared}"))
        await followed(node)
        await typed(node, "drain", code=None)
        with_connectors(node, ("peers", peers, ""), ("public", after, f"{OTHER}\n{shared}"))
        await followed(node)
        assert not await is_limit(after, "SIZE 2222")
        await typed(node, "undrain")
        await until(partial(is_limit, after, "SIZE 2222"))


def with_peers(node: NodeProcess, *others: tuple[NodeProcess, HostPort]) -> None:
    """In its file: these, at these addresses, and no others."""
    file = node.directory / "node.toml"
    lines = [file.read_text().partition("[[peers]]")[0]]
    for other, address in others:
        lines += ["[[peers]]", f'name = "{other.name}"', f'site = "{other.place.site}"', 'boundary = "lab"', f'address = "{address}"']
        lines += [f'admin = "http://{other.admin}"', ""]
    file.write_text("\n".join(lines))


async def followed(node: NodeProcess) -> None:
    """SIGHUP, after which nothing waits for a restart."""
    assert [] == (await reloaded(node))["needs_restart"]


def with_connectors(node: NodeProcess, *connectors: tuple[str, HostPort, str]) -> None:
    """In its file: these, by name, address and further lines, and no others."""
    file = node.directory / "node.toml"
    rest = [table for table in re.split(r"(?m)^(?=\[)", file.read_text()) if not table.startswith("[[receive_connectors]]")]
    tables = [f'[[receive_connectors]]\nname = "{name}"\nlisten = "{listen}"\n{more}\n' for name, listen, more in connectors]
    file.write_text("\n".join([*rest, *tables]))


async def size_limit_at(address: HostPort) -> str:
    """That of the connector that answers there."""
    async with talking_to(address) as client:
        extensions = await client.ask("EHLO who.example")
    return next(line for line in extensions.split("\n") if "SIZE" in line)[4:]


def peers_in(node: NodeProcess) -> dict[str, bool]:
    """Whether each is leaving, of those that are listed."""
    with api_of(node) as api:
        return {peer["name"]: peer["is_leaving"] for peer in api.peers()}


async def accepted(node: NodeProcess, address: HostPort, number: int) -> None:
    """In reject mode, so it has a copy."""
    content = f"Message-ID: <{number}@there.example>\r\nSubject: {number}\r\n\r\nHello\r\n".encode()

    async def is_accepted() -> bool:
        async with talking_to(address) as client:
            return (await client.mail(("b@corp.example",), content)).startswith("250")

    await until(is_accepted)


async def test_a_cluster_grows_by_sighup_and_a_peer_leaves_when_nothing_is_left(tmp_path: Path, sink: Sink) -> None:
    places = (Place("a.example", "east"), Place("b.example", "west"), Place("c.example", "south"))
    hop = await sink.start()
    sink.is_deferring = True
    async with Cluster(places, hop, directory=tmp_path) as cluster:
        one, two, three = cluster.nodes.values()
        with_peers(one, (two, two.address))
        await followed(one)
        await until(lambda: {two.name: False} == peers_in(one))
        await accepted(one, one.address, 1)
        with_peers(one, (three, three.address))
        await followed(one)
        while_it_leaves = peers_in(one)
        await accepted(one, one.address, 2)
        # A try that was refused has left a copy, perhaps, until its primary says that there is no such message.
        await until(lambda: (1, 1) == (kept_count(two), kept_count(three)), what="each has one copy")
        sink.is_deferring = False
        await until(lambda: {three.name: False} == peers_in(one))
        await until(lambda: not kept_count(two))

        moved, further, admin = (HostPort("127.0.0.1", port) for port in free_ports(3))
        file = three.directory / "node.toml"
        text = file.read_text().replace(str(three.address), str(moved)).replace(str(three.admin), str(admin))
        more = f'[[receive_connectors]]\nname = "more"\nlisten = "{further}"\n\n[tracking]\nmax_age = "9d"'
        file.write_text(text.replace("[tracking]", more))
        await followed(three)
        with_peers(one, (three, moved))
        await followed(one)
        for address in (moved, further):
            async with talking_to(address):
                pass
        with pytest.raises(ConnectionRefusedError):
            await Client.to(three.address)
        with NodeClient(f"http://{admin}", read_token(three.directory / "token")) as api:
            age = api.node()["settings"]["tracking.max_age"]
        await accepted(one, one.address, 3)
        file.write_text(file.read_text().replace(more, '[tracking]\nmax_age = "9d"'))
        await followed(three)
        with pytest.raises(ConnectionRefusedError):
            await Client.to(further)
        await until(lambda: [line for line in operator_events(one, "peer.left") if line["server"] == two.name])

    assert {two.name: True, three.name: False} == while_it_leaves
    assert "9d" == age
    arrived = [arrival.internet_message_id for arrival in sink.arrivals]
    assert ["<1@there.example>", "<2@there.example>"] == sorted(arrived)[:2]
    assert len(arrived) == len(set(arrived))


async def test_an_address_that_is_taken_changes_nothing_and_is_tried_again(tmp_path: Path) -> None:
    async with Cluster((Place("a.example", "east"),), HostPort("127.0.0.1", 9), directory=tmp_path) as cluster:
        (node,) = cluster.nodes.values()
        file = node.directory / "node.toml"
        with socket.create_server(("127.0.0.1", 0)) as taken:
            there = HostPort("127.0.0.1", taken.getsockname()[1])
            file.write_text(file.read_text().replace(str(node.address), str(there)))
            await reloaded(node)
            refused = await until(lambda: operator_events(node, "connector.not_listening"))
            async with talking_to(node.address):
                pass
        await reloaded(node)
        async with talking_to(there):
            pass

    assert ["loopback"] == [line["connector"] for line in refused]


ONE, OTHER, NEW = "max_message_size = 1111", "max_message_size = 2222", "max_message_size = 3333"


async def test_connectors_may_take_over_the_addresses_of_others_that_move(tmp_path: Path) -> None:
    first, second, third = (HostPort("127.0.0.1", port) for port in free_ports(3))
    async with Cluster((Place("a.example", "east"),), HostPort("127.0.0.1", 9), directory=tmp_path) as cluster:
        (node,) = cluster.nodes.values()
        with_connectors(node, ("one", first, ONE), ("other", second, OTHER))
        await followed(node)
        with_connectors(node, ("new", first, NEW), ("one", second, ONE), ("other", third, OTHER))
        await followed(node)
        assert ["SIZE 3333", "SIZE 1111", "SIZE 2222"] == [await size_limit_at(address) for address in (first, second, third)]
        with_connectors(node, ("new", second, NEW), ("one", third, ONE), ("other", first, OTHER))
        await followed(node)
        for address, size in ((first, "SIZE 2222"), (second, "SIZE 3333"), (third, "SIZE 1111")):
            await until(partial(is_limit, address, size))

        await typed(node, "drain", code=None)
        with_connectors(node, ("new", second, NEW), ("one", first, ONE), ("other", third, OTHER))
        await followed(node)
        for address in (first, second, third):  # a client is told that the node drains
            await until(partial(says_something, address))
        assert [] == operator_events(node, "connector.not_listening")


async def says_something(address: HostPort) -> bool:
    try:
        reader, writer = await asyncio.open_connection(address.host, address.port)
    except OSError:
        return False
    line = await reader.readline()
    writer.close()
    return line != b""


async def is_limit(address: HostPort, size: str) -> bool:
    """Whether it is that of the connector there; False if none is."""
    try:
        return await size_limit_at(address) == size
    except OSError:
        return False


async def test_sighup_takes_the_rights_of_people_and_gives_none(tmp_path: Path) -> None:
    def people(*roles: AdminRole) -> str:
        tables = [f'[[admin.users]]\nname = "{role.value}"\nrole = "{role.value}"\ntoken_hash = "{HASHES[role]}"\n' for role in roles]
        return "\n" + "\n".join(tables)

    viewer, operator, auditor = AdminRole.VIEWER, AdminRole.OPERATOR, AdminRole.AUDITOR
    node = a_node_process(tmp_path / "a.example", tables=people(viewer, operator))
    file = node.directory / "node.toml"
    before = file.read_text()
    async with httpx.AsyncClient(base_url=f"http://{node.admin}", timeout=PATIENCE_SECONDS, verify=NO_TLS) as http:

        async def seen(role: AdminRole) -> int:
            return (await http.get("/api/v1/node", headers={"Authorization": f"Bearer {TOKENS[role]}"})).status_code

        try:
            await node.start()
            assert [200, 200, 401] == [await seen(role) for role in (viewer, operator, auditor)]
            assert 303 == (await http.post("/login", data={"token": TOKENS[operator]})).status_code
            assert 200 == (await http.get("/queues")).status_code
            headers = {"Authorization": f"Bearer {TOKENS[operator]}"}
            async with http.stream("GET", "/api/v1/events?follow=true", headers=headers) as events:
                file.write_text(before.replace(people(viewer, operator), people(viewer)))
                taken = await reloaded(node)
                async with asyncio.timeout(30):  # without news it looks every 15 s
                    async for _ in events.aiter_raw():
                        pass
            after = [await seen(role) for role in (viewer, operator, auditor)]
            page = await http.get("/queues")
            file.write_text(before.replace(people(viewer, operator), people(viewer, operator, auditor)))
            given = await reloaded(node)
            at_last = [await seen(role) for role in (viewer, operator, auditor)]
        finally:
            await node.stop()

    assert ([200, 401, 401], 303) == (after, page.status_code)
    assert ([], ["admin.users"]) == (taken["needs_restart"], given["needs_restart"])
    assert [200, 401, 401] == at_last
