"""One node among servers and clients that behave as strangers have reported, and in further ways of the same kind: mail arrives once, as it
was sent, and what cannot arrive goes back for a reason that is true."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from shadowrelay.lab.cluster import NodeProcess, rows
from shadowrelay.model.routing import HostPort
from tests.kit.clients import Client, queued_id
from tests.kit.clock import until
from tests.kit.processes import a_node_process, client_of, operator_events, said
from tests.kit.smtp_servers import CLOSE, Answer, ScriptedServer, serving

pytestmark = [pytest.mark.heavy, pytest.mark.timeout(600)]

NO_EXTENSIONS = ("PIPELINING",)
PLAIN = b"Subject: x\r\n\r\nbody\r\n"
LARGE = PLAIN + (b"x" * 70 + b"\r\n") * 29_000
INSIDE = "inside_boundary = true"
ALONE = "[transport]\nreject_message_on_shadow_failure = false\n"
QUICK = """
[send]
queue_glitch_retry_interval = "300ms"
transient_failure_retry_interval = "300ms"
message_retry_interval = "300ms"
"""
GBK = "550 5.1.1 \udcd3\udcca\udcbc\udcfe"


@dataclass
class Way:
    """A next hop of one domain, and what is sent there. `first`: the script of a server before the good one. `returned`: in the reply that
    the sender is told; else the content arrives once. `sent`: how many messages. `extensions` of the good server."""

    first: Mapping[str, Answer | Sequence[Answer]] | None = None
    script: Mapping[str, Answer | Sequence[Answer]] = field(default_factory=dict)
    extensions: tuple[str, ...] = ("PIPELINING", "8BITMIME", "SMTPUTF8", "SIZE 10000000", "DSN")
    content: bytes = PLAIN
    parameters: str = ""
    local_parts: Sequence[str] = ("user",)
    returned: str = ""
    arrives_as: bytes = b""
    sent: int = 1
    route: str = ""


WAYS: dict[str, Way] = {
    # a server that answers is not yet a server that works
    "421 in the greeting": Way(first={"GREETING": "421 4.3.2 not now"}),
    "554 in the greeting": Way(first={"GREETING": "554 5.3.2 no"}),
    "closes at once": Way(first={"GREETING": CLOSE}),
    "451 to EHLO": Way(first={"EHLO": "451 4.3.0 no", "HELO": "451 4.3.0 no"}),
    "451 to MAIL": Way(first={"MAIL": "451 4.7.1 greylisted"}),
    "450 to all recipients": Way(first={"RCPT": "450 4.2.1 busy"}, local_parts=("a", "b")),
    "451 to DATA": Way(first={"DATA": "451 4.3.0 no"}),
    "451 to the dot": Way(first={"DOT": "451 4.3.0 no"}),
    "452 to the dot": Way(first={"DOT": "452 4.3.1 full"}),
    "closes after MAIL": Way(first={"MAIL": CLOSE}),
    "closes after DATA": Way(first={"DATA": CLOSE}),
    "a greeting that is no reply": Way(first={"GREETING": "SSH-2.0-OpenSSH_9.2"}),
    "500 to EHLO": Way(script={"EHLO": "500 5.5.1 what"}),
    "502 to EHLO": Way(script={"EHLO": "502 5.5.1 no"}, parameters=" BODY=8BITMIME"),
    # a limit is not an outage
    "421 after each message": Way(script={"DOT": "250 2.0.0 taken\r\n421 4.7.0 one for a session"}, sent=8),
    "421 to the second MAIL": Way(script={"MAIL": ["250 ok", "421 4.7.0 no more", "250 ok", "421 4.7.0 no more", "250 ok"]}, sent=4),
    "451 to the second MAIL": Way(script={"MAIL": ["250 ok", "451 4.7.0 slowly", "250 ok"]}, sent=4),
    "resets after each message": Way(script={"RSET": CLOSE, "NOOP": CLOSE}, sent=6),
    # text of others is bytes
    "a refusal in GBK": Way(script={"RCPT": GBK}, returned="550 5.1.1"),
    "a refusal with escapes": Way(script={"RCPT": "550 5.1.1 \x1b[2J\x1b]0;x\x07\x00no"}, returned="550 5.1.1"),
    "a refusal of a megabyte": Way(first={"RCPT": "450 4.1.1 " + "x" * 1_000_000}),
    "a refusal of many lines": Way(script={"DOT": "\r\n".join(["554-5.7.1 no"] * 300) + "\r\n554 5.7.1 \udcff"}, returned="554 5.7.1"),
    "codes that differ": Way(first={"MAIL": "250-ok\r\n550 no"}),
    "a greeting in Latin 1": Way(script={"GREETING": "220 caf\udce9 ESMTP"}),
    "extensions of octets": Way(script={"EHLO": "250-test\r\n250-\udcff\udcfe X\r\n250-SIZE \udce9\r\n250 8BITMIME"}),
    "a size of many digits": Way(script={"EHLO": "250-test\r\n250-SIZE " + "9" * 4300 + "\r\n250 8BITMIME"}),
    # what needs nothing is not returned
    "ASCII declared SMTPUTF8": Way(extensions=NO_EXTENSIONS, parameters=" SMTPUTF8", content=PLAIN + b"x" * 70 + b"\r\n"),
    "2 MB of ASCII declared SMTPUTF8": Way(extensions=NO_EXTENSIONS, parameters=" SMTPUTF8 BODY=8BITMIME", content=LARGE),
    "2 MB of ASCII declared 8BITMIME": Way(extensions=NO_EXTENSIONS, parameters=" BODY=8BITMIME", content=LARGE),
    "8-bit at the end of 2 MB": Way(extensions=NO_EXTENSIONS, parameters=" BODY=8BITMIME", content=LARGE + b"\xe9\r\n", route=INSIDE),
    "8-bit that nobody declared": Way(extensions=NO_EXTENSIONS, content=PLAIN + b"caf\xe9\r\n", route=INSIDE),
    "an address that needs SMTPUTF8": Way(extensions=NO_EXTENSIONS, parameters=" SMTPUTF8", local_parts=("us\xe9r",), returned="5.6.7"),
    # minimum sizes are no maxima
    "a local part of 200 octets": Way(local_parts=("v" * 200,)),
    "SRS": Way(local_parts=("SRS0=" + "a" * 80 + "=tt=example.net=user",)),
    "a line of 100,000 octets": Way(content=b"Subject: x\r\n\r\n" + b"x" * 100_000 + b"\r\n"),
    "an odd local part": Way(local_parts=("a+b=c/d", "#1", "o'neil", '"a b"', '"a@b"')),
    "a dot at the end of a local part": Way(local_parts=('"john."',)),
    # 552, contents that begin with no field, what is empty
    "552 to the eleventh recipient": Way(
        script={"RCPT": ["250 ok"] * 10 + ["552 5.5.3 too many"] * 5 + ["250 ok"]}, local_parts=tuple(f"u{number}" for number in range(15))
    ),
    "452 4.5.3 to the eleventh": Way(
        script={"RCPT": ["250 ok"] * 10 + ["452 4.5.3 too many"] * 5 + ["250 ok"]}, local_parts=tuple(f"u{number}" for number in range(15))
    ),
    "no header": Way(content=b"just text\r\nmore\r\n", arrives_as=b"\r\njust text\r\nmore\r\n"),
    "a first line that begins with a blank": Way(content=b" text\r\nmore\r\n", arrives_as=b"\r\n text\r\nmore\r\n"),
    "a first line with a colon and blanks": Way(content=b"see this: now\r\nmore\r\n", arrives_as=b"\r\nsee this: now\r\nmore\r\n"),
    "an empty line first": Way(content=b"\r\ntext\r\n"),
    "nothing but dots": Way(content=b".\r\n..\r\n...\r\n", arrives_as=b"\r\n.\r\n..\r\n...\r\n"),
    "UTF-8 in a first line": Way(content="Ünter: x\r\ny\r\n".encode(), arrives_as="\r\nÜnter: x\r\ny\r\n".encode()),
    "a header without an end": Way(content=b"Subject: x\r\nTo: y\r\n"),
}  # fmt: skip


def domain_of(name: str) -> str:
    return "w" + str(list(WAYS).index(name)) + ".example"


@contextlib.asynccontextmanager
async def company(directory: Path) -> AsyncIterator[tuple[NodeProcess, dict[str, tuple[ScriptedServer, ...]], ScriptedServer]]:
    """All running: the node, the servers of each way, and that of the senders."""
    senders = ScriptedServer()
    servers = {
        name: tuple(ScriptedServer(script, extensions=way.extensions) for script in (way.first, way.script) if script is not None)
        for name, way in WAYS.items()
    }
    node = a_node_process(
        directory / "a.example",
        connector='relay_from = ["127.0.0.1/32"]',
        tables='[transport]\nduplicate_detection_window = "0s"\n' + QUICK,
    )
    async with serving(senders, *(server for some in servers.values() for server in some)):
        routes = [f'[[routes]]\nrecipients = ["*@sender.example"]\nnext_hop = "127.0.0.1:{senders.port}"\n']
        for name, some in servers.items():
            hops = ", ".join(f'"127.0.0.1:{server.port}"' for server in some)
            routes.append(f'[[routes]]\nrecipients = ["*@{domain_of(name)}"]\nnext_hop = [{hops}]\n{WAYS[name].route}\n')
        path = node.directory / "node.toml"
        path.write_text(path.read_text().replace('[[routes]]\nrecipients = ["*"]\nnext_hop = "127.0.0.1:9"\n', "\n".join(routes)))
        try:
            await node.start()
            yield node, servers, senders
        finally:
            await node.stop()
            for server in (senders, *(server for some in servers.values() for server in some)):
                server.failures.clear()


async def give(client: Client, name: str, number: int) -> str:
    """A message. Its id."""
    way = WAYS[name]
    commands = [
        f"MAIL FROM:<s{number}@sender.example>{way.parameters}",
        *(f"RCPT TO:<{one}@{domain_of(name)}>" for one in way.local_parts),
        "DATA",
    ]
    for command in commands:
        assert (reply := await client.ask(command))[0] in "23", (name, command[:80], reply)
    stuffed = (b"\r\n" + way.content).replace(b"\r\n.", b"\r\n..")[2:]
    await client.send(stuffed + b".\r\n")
    reply = await client.reply()
    assert reply.startswith("250"), (name, reply)
    return queued_id(reply)


def without_trace(content: bytes) -> bytes:
    """Behind the Received field that the node wrote, with its folded lines."""
    assert content.startswith(b"Received: "), content[:100]
    rest = content.partition(b"\r\n")[2]
    while rest.startswith(b"\t"):
        rest = rest.partition(b"\r\n")[2]
    return rest


async def test_every_way_ends_as_it_should(tmp_path: Path) -> None:
    async with company(tmp_path) as (node, servers, senders):
        client = await client_of(node, "EHLO c.example")
        ids = {name: [await give(client, name, number) for number in range(way.sent)] for name, way in WAYS.items()}
        await client.close()

        def is_over(name: str) -> bool:
            way = WAYS[name]
            if way.returned:
                return any(domain_of(name).encode() in message for message in senders.messages)
            return len(servers[name][-1].messages) >= way.sent

        with contextlib.suppress(AssertionError, TimeoutError):
            await until(lambda: all(map(is_over, WAYS)), 120)
        queues = await said(node, "queue", "list")
        await asyncio.sleep(1)
        events = operator_events(node)
        delivered = [row for row in rows(node.tracking) if row["event-id"] in ("SEND", "SENDEXTERNAL")]
    wrong = {}
    for name, way in WAYS.items():
        good = servers[name][-1]
        if way.returned:
            notices = [message for message in senders.messages if domain_of(name).encode() in message]
            if len(notices) != 1 or way.returned.encode() not in notices[0]:
                wrong[name] = f"{len(notices)} notices {[each[-900:] for each in notices]}"
            continue
        notices = [message for message in senders.messages if domain_of(name).encode() in message]
        recipients = sorted(line.partition("<")[2].partition(">")[0] for line in good.lines if line.startswith("RCPT"))
        bodies = {without_trace(message) for message in good.messages}
        wanted = {way.arrives_as or way.content}
        is_complete = {f"{one}@{domain_of(name)}" for one in way.local_parts} <= set(recipients)
        expected = way.sent if not any("u10" == one for one in way.local_parts) else 2
        if notices or len(good.messages) != expected or bodies != wanted or not is_complete:
            queue = [one for one in queues if domain_of(name) in str(one) or str(good.port) in str(one)]
            wrong[name] = f"{len(good.messages)} arrived, {[sorted(b[:60] for b in bodies)]}, {notices[:1]}, {recipients[:3]}, {queue}"
    for name, reason in wrong.items():
        print(name, "->", reason)

    assert {} == wrong
    assert [] == [line for line in events if line["level"] in ("error", "critical")]
    assert len(delivered) >= sum(way.sent for way in WAYS.values() if not way.returned)
    assert len(ids) == len(WAYS)


@contextlib.asynccontextmanager
async def a_balancer(to: HostPort) -> AsyncIterator[int]:
    """A port whose connections come back to the node."""

    async def carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection(to.host, to.port)

        async def copy(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
            with contextlib.suppress(OSError):
                while octets := await source.read(65536):
                    sink.write(octets)
                    await sink.drain()
            sink.close()

        await asyncio.gather(copy(reader, back), copy(there, writer))

    server = await asyncio.start_server(carry, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()


async def test_mail_that_would_come_back_is_received_once_and_the_queue_says_why(tmp_path: Path) -> None:
    node = a_node_process(tmp_path / "a.example", connector='relay_from = ["127.0.0.1/32"]', tables=ALONE)
    async with a_balancer(node.address) as port:
        own = [f"0.0.0.0:{node.address.port}", f"[::ffff:127.0.0.1]:{node.address.port}", f"127.0.0.1:{port}", f"localhost:{port}"]
        routes = [f'[[routes]]\nrecipients = ["*@l{number}.example"]\nnext_hop = "{host}"\n' for number, host in enumerate(own)]
        path = node.directory / "node.toml"
        path.write_text(path.read_text().replace("[[routes]]", "\n".join([*routes, "[[routes]]"]), 1))
        try:
            await node.start()
            client = await client_of(node, "EHLO c.example")
            for number in range(len(own)):
                assert (await client.mail([f"u@l{number}.example"])).startswith("250")
            await client.close()

            async def all_have_a_reason() -> bool:
                return len([one for one in await said(node, "queue", "list") if one["count"] and one["last_error"]]) >= len(own)

            await until(all_have_a_reason, 60)
        finally:
            await node.stop()

    assert len(own) == len([row for row in rows(node.tracking) if row["event-id"] == "RECEIVE"])


HELLOS = [
    "HELO (none)",
    "EHLO foo bar",
    "EHLO a/b",
    "HELO my_host",
    "EHLO -",
    "HELO [1.2.3.4",
    "EHLO localhost.localdomain.",
    "HELO WORKGROUP\\PC",
    "EHLO *",
]
ENVELOPES = [
    ("MAIL FROM: a@x.example", "RCPT TO: user@here.example"),
    ("MAIL FROM:a@x.example", "RCPT TO:user@here.example"),
    ("mail from:<a@x.example.>", "rcpt to:<user@here.example.>"),
    ("MAIL FROM: <a@my_host>  SIZE=10  BODY=8BITMIME", "RCPT TO:  <user@here.example> "),
    ("MAIL FROM:<john.@x.example>", "RCPT TO:<jane..doe@here.example>"),
    ("MAIL FROM:<" + "b" * 120 + "@x.example>", "RCPT TO:<" + "u" * 120 + "@here.example>"),
    ("MAIL FROM:<IMCEAEX-_O=CORP_OU=FIRST+20GROUP_CN=" + "R" * 80 + "@x.example>", "RCPT TO:<user@HERE.example>"),
    ("MAIL FROM:<>", "RCPT TO:<@relay.here.example:user@here.example>"),
]  # fmt: skip


async def test_clients_that_postfix_serves_are_served(tmp_path: Path) -> None:
    store = ScriptedServer()
    async with serving(store):
        node = a_node_process(tmp_path / "a.example", connector='relay_from = ["127.0.0.1/32"]', tables=ALONE + QUICK)
        path = node.directory / "node.toml"
        path.write_text(path.read_text().replace("127.0.0.1:9", f"127.0.0.1:{store.port}"))
        refused = []
        try:
            await node.start()
            for hello in HELLOS:
                for sender, recipient in ENVELOPES if hello is HELLOS[0] else ENVELOPES[:1]:
                    client = await client_of(node)
                    for command in (
                        hello,
                        "RCPT TO:<too early@here.example>",
                        sender,
                        "RCPT TO:<|/bin/sh>",
                        recipient,
                        "DATA",
                        "text\r\n.",
                    ):
                        reply = await client.ask(command)
                        if reply[0] not in "23" and "early" not in command and "|" not in command:
                            refused.append((hello, command, reply))
                    await client.close()
            count = len(HELLOS) + len(ENVELOPES) - 1
            await until(lambda: refused or len(store.messages) >= count, 60)
        finally:
            await node.stop()

    assert [] == refused
    assert count == len(store.messages)


HEAD = b"Message-ID: <device@x.example>\r\nDate: Thu, 1 Jan 1970 00:00:00 +0000\r\n"
ALARM = HEAD + b"Subject: alarm\r\n\r\nsensor 1\r\n"
DIFFERENT = [  # all have one Message-ID, Date, sender and recipient
    ALARM,
    ALARM.replace(b"sensor 1", b"sensor 2"),
    ALARM.replace(b"alarm", b"ALARM"),
    ALARM + b"\r\n",
    ALARM.replace(b"sensor 1\r\n", b"sensor 1 \r\n"),
    b"X-Priority: 1\r\n" + ALARM,
    ALARM + b"x" * 2_000_000 + b"\r\n",
    ALARM + b"x" * 1_999_999 + b"y\r\n",
]


async def test_only_the_same_message_of_the_same_client_is_the_same(tmp_path: Path) -> None:
    store = ScriptedServer()
    async with serving(store):
        node = a_node_process(tmp_path / "a.example", connector='relay_from = ["127.0.0.1/32"]', tables=ALONE + QUICK)
        path = node.directory / "node.toml"
        path.write_text(path.read_text().replace("127.0.0.1:9", f"127.0.0.1:{store.port}"))
        try:
            await node.start()
            reader, writer = await asyncio.open_connection(node.address.host, node.address.port, local_addr=("127.0.0.2", 0))
            forger = Client(reader, writer)
            await forger.begin("EHLO device.example")
            for content in DIFFERENT:  # who is first with the very same makes nobody else's vanish
                assert (await forger.mail(["user@here.example"], content)).startswith("250")
            await forger.close()
            await until(lambda: len(store.messages) == len(DIFFERENT), 60)
            for _ in range(2):
                client = await client_of(node, "EHLO device.example")
                for content in DIFFERENT:
                    assert (await client.mail(["user@here.example"], content)).startswith("250")
                await client.close()
                await until(lambda: len(store.messages) >= 2 * len(DIFFERENT), 60)
            await until(lambda: len([row for row in rows(node.tracking) if row["event-id"] == "DUPLICATEDELIVER"]) == len(DIFFERENT), 60)
        finally:
            await node.stop()

    arrived = sorted(map(without_trace, store.messages))
    assert sorted(DIFFERENT * 2) == arrived
