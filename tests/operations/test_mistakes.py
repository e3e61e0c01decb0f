"""Each mistake in the tables of docs/mistakes.md is made here, and gets the answer that stands there."""

import asyncio
import contextlib
import re
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import dns.message
import dns.rcode
import httpx
import pytest
import trustme
from typer.testing import CliRunner

from shadowrelay import checkup
from shadowrelay.admin import api_client
from shadowrelay.admin.api import make_application
from shadowrelay.admin.metrics import PrometheusMetrics
from shadowrelay.admin.people import People
from shadowrelay.cli.main import app
from shadowrelay.model.counts import Counts
from shadowrelay.model.ids import ServerName
from shadowrelay.settings import cluster_files
from tests.admin.conftest import NOW, TOKEN, FakeNode
from tests.kit.old_authority import write_old_certificates
from tests.kit.sealed import a_sealed_directory
from tests.tidy.house import ROOT

PAGE = ROOT / "docs/mistakes.md"
EAST, WEST = "mx1.east.example", "mx1.west.example"
ROW = re.compile(r"^\| (?P<mistake>[^|]+?) \| (?P<code>\d) \| (?P<tick>`+) ?(?P<answer>.+?) ?(?P=tick) \|$", re.MULTILINE)


def rows() -> dict[str, tuple[int, str]]:
    """Exit code and answer of each mistake in the document."""
    return {found["mistake"]: (int(found["code"]), found["answer"]) for found in ROW.finditer(PAGE.read_text(encoding="utf-8"))}


@dataclass
class Desk:
    """An operator with the files that `init` wrote for two nodes, in a directory of its own."""

    directory: Path
    monkeypatch: pytest.MonkeyPatch

    @property
    def file(self) -> Path:
        return self.directory / EAST / "node.toml"

    def edit(self, old: str, new: str) -> "Desk":
        text = self.file.read_text(encoding="utf-8")
        assert old in text, f"{old} is not in the file any more"
        self.file.write_text(text.replace(old, new, 1), encoding="utf-8")
        return self

    def add(self, text: str) -> "Desk":
        self.file.write_text(f"{self.file.read_text(encoding='utf-8')}\n{text}\n", encoding="utf-8")
        return self

    def variable(self, name: str, value: str) -> "Desk":
        self.monkeypatch.setenv(name, value)
        return self

    def run(self, *words: object) -> tuple[int, list[str]]:
        """Exit code, and the lines of standard output and error."""
        result = CliRunner(env={"COLUMNS": "200"}).invoke(app, [str(word) for word in words], prog_name="shadowrelay")
        assert result.exception is None or isinstance(result.exception, SystemExit), result.output
        return result.exit_code, self.plain(result.output)

    def plain(self, text: str) -> list[str]:
        """The lines without what differs from run to run."""
        text = text.replace(f"{self.directory}/", "").replace(str(self.directory), ".").replace(f"{EAST}/", "")
        text = re.sub(r"\d{4}-\d\d-\d\d \d\d:\d\d UTC", "TIME UTC", re.sub(r"user \d+", "user 998", text))
        text = re.sub(r"node\.toml:\d+:", "node.toml:LINE:", text)
        text = re.sub(r"127\.0\.0\.1:(?!2525|2526|12525|12526|2600|8025|8026|1\b)\d+", "127.0.0.1:PORT", text)
        return text.splitlines()

    def check(self, *words: str) -> tuple[int, list[str]]:
        return self.run("check", "--config", self.file, *words)

    def doctor(self) -> tuple[int, list[str]]:
        return self.run("doctor", "--config", self.file)

    def asks(self, answer: Callable[[httpx.Request], httpx.Response], *words: object) -> tuple[int, list[str]]:
        """Runs a command that asks the node, which answers so."""
        real = api_client.NodeClient

        def scripted(url: str, token: str) -> api_client.NodeClient:
            return real(url, token, transport=httpx.MockTransport(answer))

        self.monkeypatch.setattr(api_client, "NodeClient", scripted)
        return self.run(*words, "--config", self.file)

    def asks_a_node(self, *words: object) -> tuple[int, list[str]]:
        """The same, of the API of a node with one message and one peer, which answers."""
        metrics = PrometheusMetrics("1.2.3", ServerName("mx1"), Counts(), now=lambda: NOW)
        api = make_application(FakeNode(), metrics, People(TOKEN), "1.2.3", now=lambda: NOW)

        async def asked(request: httpx.Request) -> httpx.Response:
            async with httpx.AsyncClient(transport=httpx.ASGITransport(api), headers={"authorization": f"Bearer {TOKEN}"}) as client:
                found = await client.request(request.method, request.url)
            return httpx.Response(found.status_code, json=found.json())

        def answer(request: httpx.Request) -> httpx.Response:
            return asyncio.run(asked(request))

        return self.asks(answer, *words)


Mistake = Callable[[Desk], tuple[int, list[str]]]


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("cluster")
    plan = cluster_files.planned(
        [f"{EAST},east,127.0.0.1:2525", f"{WEST},west,127.0.0.1:2526"], accepted_domains=["corp.example"], next_hops=["127.0.0.1:2600"]
    )
    cluster_files.write(plan, directory)
    return directory


@pytest.fixture
def desk(written: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Desk:
    for node in (EAST, WEST):
        (tmp_path / node).mkdir()
        for file in (written / node).iterdir():
            (tmp_path / node / file.name).write_bytes(file.read_bytes())
    monkeypatch.setattr(checkup, "TRIAL_SECONDS", 5.0)
    return Desk(tmp_path, monkeypatch)


# ---- how each is made


def setting(table: str, line: str) -> Mistake:
    """A line in a table of the file."""

    def make(desk: Desk) -> tuple[int, list[str]]:
        is_there = f"[{table}]" in desk.file.read_text(encoding="utf-8")
        return (desk.edit(f"[{table}]", f"[{table}]\n{line}") if is_there else desk.add(f"[{table}]\n{line}")).check()

    return make


def changed(old: str, new: str) -> Mistake:
    return lambda desk: desk.edit(old, new).check()


def added(text: str) -> Mistake:
    return lambda desk: desk.add(text).check()


def to_dublin(text: str) -> Mistake:
    return lambda desk: desk.edit('next_hop = ["127.0.0.1:2600"]', 'site = "dublin"').add(text).check()


def given(variable: str, value: str) -> Mistake:
    return lambda desk: desk.variable(variable, value).check()


def typed(*words: str) -> Mistake:
    return lambda desk: desk.run(*words)


def to_init(*words: str) -> Mistake:
    return lambda desk: desk.run("init", desk.directory / "new", *words)


def a_certificate(name: str = EAST, *, authority: trustme.CA | None = None, days: float = 365, begins: float = -1) -> Mistake:
    """A certificate of `authority` (as a rule the peers' one) instead of that of `init`."""

    def make(desk: Desk) -> tuple[int, list[str]]:
        peers, now = trustme.CA(), datetime.now(UTC)
        pair = (authority or peers).issue_cert(name, not_before=now + timedelta(days=begins), not_after=now + timedelta(days=days))
        directory = desk.file.parent
        pair.cert_chain_pems[0].write_to_path(directory / "node.pem")
        pair.private_key_pem.write_to_path(directory / "node.key")
        peers.cert_pem.write_to_path(directory / "peers.pem")
        return desk.check()

    return make


def an_old_authority(desk: Desk) -> tuple[int, list[str]]:
    write_old_certificates(desk.directory, (EAST, WEST))
    return desk.check()


def a_file(name: str, content: bytes) -> Mistake:
    def make(desk: Desk) -> tuple[int, list[str]]:
        (desk.file.parent / name).write_bytes(content)
        return desk.check()

    return make


def without(name: str) -> Mistake:
    def make(desk: Desk) -> tuple[int, list[str]]:
        (desk.file.parent / name).unlink()
        return desk.check()

    return make


def the_key_of_the_other(desk: Desk) -> tuple[int, list[str]]:
    (desk.file.parent / "node.key").write_bytes((desk.directory / WEST / "node.key").read_bytes())
    return desk.check()


def a_key_with_a_pass_phrase(desk: Desk) -> tuple[int, list[str]]:
    from cryptography.hazmat.primitives import serialization

    path = desk.file.parent / "node.key"
    key = serialization.load_pem_private_key(path.read_bytes(), None)
    phrase = serialization.BestAvailableEncryption(b"secret")
    path.write_bytes(key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, phrase))
    return desk.check()


def without_tls(desk: Desk) -> tuple[int, list[str]]:
    desk.file.write_text(re.sub(r"(?s)\[tls\].*?\n\n", "", desk.file.read_text(encoding="utf-8")), encoding="utf-8")
    return desk.edit("[[peers]]", "[[peers]]\nrequire_tls = true").check()


def sealed(name: str, key: str) -> Mistake:
    def make(desk: Desk) -> tuple[int, list[str]]:
        directory = a_sealed_directory(desk.directory / "sealed", desk.monkeypatch)
        return desk.variable(key, str(directory / name)).check()

    return make


def no_such_name(desk: Desk) -> tuple[int, list[str]]:
    """A name server that knows no name at all."""
    server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    server.bind(("127.0.0.1", 0))

    def answer() -> None:
        while True:
            try:
                data, client = server.recvfrom(4096)
            except OSError:
                return
            if not data:
                return
            reply = dns.message.make_response(dns.message.from_wire(data))
            reply.set_rcode(dns.rcode.NXDOMAIN)
            server.sendto(reply.to_wire(), client)

    thread = threading.Thread(target=answer)
    thread.start()
    try:
        port = server.getsockname()[1]
        return (
            desk.edit('next_hop = ["127.0.0.1:2600"]', 'next_hop = "mailstore.corp.exampel:25"')
            .add(f'[dns]\nnameservers = ["127.0.0.1:{port}"]')
            .check("--online")
        )
    finally:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as last:
            last.sendto(b"", ("127.0.0.1", server.getsockname()[1]))
        thread.join()
        server.close()


def a_silent_name_server(desk: Desk) -> tuple[int, list[str]]:
    desk.monkeypatch.setattr(checkup, "TRIAL_SECONDS", 0.5)
    return desk.add('[dns]\nnameservers = ["127.0.0.1:1"]').doctor()


def speaks(*lines: bytes) -> Callable[[socket.socket], None]:
    """A server that answers each line of its client with the next of these, and then hangs up."""

    def serve(listener: socket.socket) -> None:
        with contextlib.suppress(OSError):
            connection, _ = listener.accept()
            with connection, connection.makefile("rb") as read:
                for number, line in enumerate(lines):
                    if number and not read.readline():
                        return
                    connection.sendall(line)
                read.readline()

    return serve


def against(serve: Callable[[socket.socket], None], old: str, new: str) -> Mistake:
    """`doctor`, with the port of this server in the configuration."""

    def make(desk: Desk) -> tuple[int, list[str]]:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            thread = threading.Thread(target=serve, args=(listener,))
            thread.start()
            try:
                return desk.edit(old, new.format(port=listener.getsockname()[1])).doctor()
            finally:
                listener.shutdown(socket.SHUT_RDWR)
                thread.join()

    return make


def a_port_in_use(desk: Desk) -> tuple[int, list[str]]:
    """The only one for which a node is really started, in a process of its own: it cannot listen."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        desk.edit("127.0.0.1:2525", f"127.0.0.1:{listener.getsockname()[1]}").edit('listen = "127.0.0.1:8025"', 'listen = "127.0.0.1:0"')
        process = subprocess.run(
            [sys.executable, "-m", "shadowrelay", "serve", "--config", str(desk.file)], capture_output=True, text=True, timeout=120
        )
    return process.returncode, desk.plain(process.stderr)


def hangs(request: httpx.Request) -> httpx.Response:
    raise httpx.ReadTimeout("timed out", request=request)


PEER = 'address = "127.0.0.1:12526"'
CONNECTOR = '[[receive_connectors]]\nname = "second"\nlisten = "{}"\naccepted_domains = ["corp.example"]'
TWO = ("--node", "mx1.east.example,east,192.0.2.11", "--node", "mx1.west.example,west,198.51.100.11")

MISTAKES: dict[str, Mistake] = {
    # configuration
    "the file does not exist": typed("check", "--config", "nowhere.toml"),
    "text without quotes": setting("server", "comment = mx1"),
    "a misspelt key": setting("transport", 'shadow_timout = "5s"'),
    "a misspelt table": added("[trasnport]\nshadow_copies = 1"),
    "a key in the wrong table": setting("server", 'shadow_timeout = "5s"'),
    "`[peers]` for `[[peers]]`": changed("[[peers]]", "[peers]"),
    "`[[server]]` for `[server]`": changed("[server]", "[[server]]"),
    "a duration without a unit": setting("transport", "shadow_timeout = 5"),
    "a size that is none": setting("tracking", 'max_file_size = "10 megs"'),
    "a word for a truth value": setting("transport", 'shadow_redundancy_enabled = "maybe"'),
    "a number in quotes": setting("transport", 'shadow_copies = "2"'),
    "a value below its range": setting("transport", 'shadow_timeout = "1ms"'),
    "a value above its range": setting("transport", "shadow_copies = 5"),
    "a word that is none of the choices": setting("transport", 'shadow_message_preference_setting = "Remote"'),
    "settings that contradict each other": setting(
        "transport", 'shadow_message_preference_setting = "LocalOnly"\nmax_retries_for_remote_site_shadow = 4'
    ),
    "no name": changed(f'name = "{EAST}"', ""),
    "a boundary of two words": changed('boundary = "default"', 'boundary = "my cluster"'),
    "an address without a port": changed('listen = "127.0.0.1:2525"', 'listen = "127.0.0.1"'),
    "a network with bits behind its mask": setting("[receive_connectors]", 'relay_from = ["10.0.0.1/8"]'),
    "a domain as the pattern of a route": changed('"*@corp.example"', '"corp.example"'),
    "a pattern without anything before the @": changed('"*@corp.example"', '"@corp.example"'),
    "the next hop is this node": changed("127.0.0.1:2600", "127.0.0.1:2525"),
    "the next hop is this node, by its name": changed('"127.0.0.1:2600"', f'"{EAST}:2525"'),
    "a peer is this node": changed("127.0.0.1:12526", "127.0.0.1:12525"),
    "this node among its peers": changed(f'name = "{WEST}"', f'name = "{EAST}"'),
    "two peers of one name": added(f'[[peers]]\nname = "{WEST}"\nsite = "west"\naddress = "127.0.0.1:2527"'),
    "a load balancer whose clients could all relay": added(
        CONNECTOR.format("127.0.0.1:2530") + '\nproxy_from = ["10.0.0.1"]\nrelay_from = ["10.0.0.0/8"]'
    ),
    "two connectors on one port": added(CONNECTOR.format("0.0.0.0:2525")),
    "a route without a next hop": changed('next_hop = ["127.0.0.1:2600"]', ""),
    "a route to a site that is nowhere else": to_dublin(""),
    "a link with one end": added('[[site_links]]\nsites = ["west"]'),
    "a link from a site to itself": added('[[site_links]]\nsites = ["west", "west"]'),
    "the same link twice": added('[[site_links]]\nsites = ["east", "west"]\n[[site_links]]\nsites = ["west", "east"]'),
    "a cost that is none": added('[[site_links]]\nsites = ["east", "west"]\ncost = 0'),
    "a hub site that is nowhere else": added('[[site_links]]\nsites = ["east", "west"]\n[[sites]]\nname = "wset"\nhub_site_enabled = true'),
    "a site twice": added('[[site_links]]\nsites = ["east", "west"]\n[[sites]]\nname = "west"\n[[sites]]\nname = "west"'),
    "a site that no link reaches": to_dublin('[[site_links]]\nsites = ["london", "dublin"]'),
    "no peer in the site where mail goes next": to_dublin('[[site_links]]\nsites = ["east", "dublin"]'),
    "a connector on the port of the API": added(CONNECTOR.format("127.0.0.1:8025")),
    "a misspelt key in the environment": given("SHADOWRELAY_TRANSPORT__SHADOW_TIMOUT", "5s"),
    "an environment list that is no JSON": given("SHADOWRELAY_RECEIVE_CONNECTORS__0__RELAY_FROM", "[10.0.0.0/8]"),
    "a peer in the environment that the file does not have": given("SHADOWRELAY_PEERS__3__ADDRESS", "mx3.example:25"),
    "a route behind one that takes its mail": added('[[routes]]\nrecipients = ["ann@corp.example"]\nnext_hop = "127.0.0.1:2601"'),
    "an accepted domain without a route": changed('accepted_domains = ["corp', 'accepted_domains = ["old.example", "corp'),
    "peers of another boundary only": changed('boundary = "default"\naddress', 'boundary = "other"\naddress'),
    "more copies than peers": setting("transport", "shadow_copies = 2"),
    "TRACK towards a server that is no peer": changed(
        'next_hop = ["127.0.0.1:2600"]', 'next_hop = ["127.0.0.1:2600"]\nredundancy = "previous-hop"'
    ),
    "the previous hop's way, and no route with it": setting("[receive_connectors]", 'redundancy = "previous-hop"'),
    "a delay where mail is copied first": setting("[receive_connectors]", 'max_acknowledgement_delay = "10s"'),
    "an open relay": setting("[receive_connectors]", 'relay_from = ["0.0.0.0/0"]'),
    "a span of less than two heartbeats": setting("transport", 'shadow_resubmit_time_span = "3m"'),
    "the API for the whole network": changed('listen = "127.0.0.1:8025"', 'listen = "0.0.0.0:8025"'),
    # command line
    "no file": typed("check"),
    "a misspelt command": typed("queue", "lst"),
    "a misspelt option": typed("queue", "list", "--confg", "node.toml"),
    "a word for a number": typed("messages", "list", "--limit", "all"),
    "a number out of range": typed("messages", "list", "--limit", "0"),
    "an address without `http://`": typed("queue", "list", "--node", "mx1.east.example:8025"),
    "no token": typed("queue", "list", "--node", "http://127.0.0.1:8025"),
    "messages without saying which": typed("messages", "remove"),
    "one node only": to_init("--node", "mx1.east.example,east", "--accept", "corp.example", "--next-hop", "store.example"),
    "a node without a site": to_init(*TWO, "--node", "mx3.example", "--accept", "corp.example", "--next-hop", "store.example"),
    "a cluster for no mail": to_init(*TWO),
    "a cluster that delivers to itself": to_init(*TWO, "--accept", "corp.example", "--next-hop", "192.0.2.11"),
    "a wrong filter": lambda desk: desk.asks_a_node("queue", "list", "--filter", "Status Retry"),
    "a message id that is none": lambda desk: desk.asks_a_node("messages", "show", "4bXyz12"),
    "an id that the node does not know": lambda desk: desk.asks_a_node("messages", "show", "0193a6a2-6f1e-7c3a-9c57-0d1f2e3a4b5c"),
    "a queue that does not exist": lambda desk: desk.asks_a_node("queue", "suspend", "nowhere.example"),
    "forgetting a peer that answers": lambda desk: desk.asks_a_node("peers", "forget", "mx2.west.example"),
    "a report without logs": typed("sla", "report", "--output", "report"),
    # network
    "the node does not run": lambda desk: desk.edit("127.0.0.1:8025", "127.0.0.1:1").run("queue", "list", "--config", desk.file),
    "the node hangs": lambda desk: desk.asks(hangs, "queue", "list"),
    "another program has that port": lambda desk: desk.asks(lambda request: httpx.Response(200, text="<html>"), "queue", "list"),
    "the token of another node": lambda desk: desk.asks(lambda request: httpx.Response(401, json={}), "queue", "list"),
    "a next hop that does not exist": no_such_name,
    "the port is taken": a_port_in_use,
    "a next hop that is down": lambda desk: desk.edit("127.0.0.1:2600", "127.0.0.1:1").doctor(),
    "a peer that is down": lambda desk: desk.edit(PEER, 'address = "127.0.0.1:1"').doctor(),
    "a peer without TLS": against(speaks(b"220 x ESMTP\r\n", b"250 x\r\n"), PEER, 'address = "127.0.0.1:{port}"'),
    "a server that is not a mail server": against(speaks(b"HTTP/1.1 400 Bad Request\r\n"), "127.0.0.1:2600", "127.0.0.1:{port}"),
    "a name server that is down": a_silent_name_server,
    # certificates
    "no certificate": without("node.pem"),
    "a certificate in another format": a_file("node.pem", b"\x30\x82\x01\x0a"),
    "the key of another certificate": the_key_of_the_other,
    "a key with a pass phrase": a_key_with_a_pass_phrase,
    "an authority that is none": a_file("peers.pem", b"-----BEGIN CERTIFICATE-----"),
    "signed by another authority": a_certificate(authority=trustme.CA()),
    "expired": a_certificate(days=-0.5),
    "not valid yet": a_certificate(begins=1),
    "for another name": a_certificate("mx1.corp.example"),
    "ends within two weeks": a_certificate(days=3),
    "an authority of an earlier version": an_old_authority,
    "`require_tls` without `[tls]`": without_tls,
    # disk
    "a file where the queue should be": changed('data_directory = "data"', 'data_directory = "node.pem"'),
    "a queue in a directory of somebody else": sealed("", "SHADOWRELAY_SERVER__DATA_DIRECTORY"),
    "a queue below a directory of somebody else": sealed("data", "SHADOWRELAY_SERVER__DATA_DIRECTORY"),
    "a token in a directory of somebody else": sealed("token", "SHADOWRELAY_ADMIN__TOKEN_FILE"),
    "tracking logs in a directory of somebody else": sealed("log", "SHADOWRELAY_TRACKING__DIRECTORY"),
    "shipping to a directory of somebody else": sealed("shipped", "SHADOWRELAY_SHIPPING__TARGET"),
    "tracking logs inside the queue": changed('directory = "tracking"', 'directory = "data/tracking"'),
    "shipping to a relative directory": added('[shipping]\ntarget = "shipped"'),
    "an empty token": a_file("token", b""),
    "exporting to a file that exists": lambda desk: desk.asks_a_node("messages", "export", "a", "--output", desk.file),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_each_mistake_gets_the_answer_in_the_document(mistake: str, desk: Desk) -> None:
    code, lines = MISTAKES[mistake](desk)
    expected_code, expected = rows()[mistake]

    assert (expected_code, True) == (code, expected in lines), "\n".join(lines)


def test_the_document_has_these_mistakes_and_no_others() -> None:
    found = rows()

    assert set(MISTAKES) == set(found)
    assert len(found) >= 50


def test_no_answer_has_the_words_of_python() -> None:
    words = r"Errno|_ssl\.c|Input should|Value error|String should|Traceback|Error\(|<class|NoneType"

    assert {} == {mistake: answer for mistake, (_, answer) in rows().items() if re.search(words, answer)}
