"""MTA-STS: the policy of a domain is found, kept, renewed and obeyed, whatever its host, DNS and mail servers do."""

import asyncio
import gzip
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import structlog
import trustme

from shadowrelay.model.replies import TransientDeliveryError
from shadowrelay.model.routing import Destination, HostPort, Reach
from shadowrelay.smtp import mta_sts
from shadowrelay.smtp.mta_sts import MtaSts
from shadowrelay.smtp.mta_sts_policy import Mode, Policy, parse_policy, record_id
from shadowrelay.smtp.resolver import Exchange
from tests.kit.clock import until
from tests.kit.smtp_servers import ScriptedServer, serving
from tests.smtp.deliverers import TAKEN, Zone, a_deliverer, deliver

AUTHORITY = trustme.CA()
DOMAIN = "corp.example"
ENFORCE = "version: STSv1\nmode: enforce\nmax_age: 86400\nmx: *.corp.example\n"


def tls(*names: str, authority: trustme.CA = AUTHORITY) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert(*names).configure_cert(context)
    return context


PACKED = gzip.compress(ENFORCE.encode(), mtime=0).decode("utf-8", "surrogateescape")


@dataclass
class PolicyHost:
    """Serves `policy`; `record` is what DNS says."""

    policy: str = ENFORCE
    record: tuple[str, ...] = ('"v=STSv1; id=one;"',)
    status: int = 200
    kind: str = "text/plain; charset=utf-8"
    seconds: float = 0.0
    requests: list[str] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)
    now: float = 1_000_000.0
    port: int = 0

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            self.requests.append((await reader.readuntil(b"\r\n\r\n")).decode())
            await asyncio.sleep(self.seconds)
            octets = self.policy.encode("utf-8", "surrogateescape")
            head = f"HTTP/1.1 {self.status} x\r\nContent-Type: {self.kind}\r\nLocation: https://elsewhere.example/\r\n"
            writer.write(f"{head}Content-Length: {len(octets)}\r\nConnection: close\r\n\r\n".encode() + octets)
            await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    async def txt(self, name: str) -> tuple[str, ...]:
        self.asked.append(name)
        return self.record

    def policies(self, directory: Path | None, **changes: Any) -> MtaSts:
        trusting = ssl.create_default_context()
        AUTHORITY.configure_trust(trusting)

        async def addresses(host: str, port: int) -> tuple[HostPort, ...]:
            return (HostPort("127.0.0.1", port),)

        values = {"port": self.port, "reach": Reach.ANYWHERE, "context": trusting, "clock": lambda: self.now}
        return MtaSts(self.txt, addresses, directory, **(values | changes))


@asynccontextmanager
async def hosted(host: PolicyHost, context: ssl.SSLContext | None = None) -> AsyncIterator[PolicyHost]:
    server = await asyncio.start_server(host.answer, "127.0.0.1", 0, ssl=context or tls("mta-sts.corp.example"))
    host.port = server.sockets[0].getsockname()[1]
    try:
        yield host
    finally:
        server.close()
        await server.wait_closed()


# the texts


def test_a_policy_is_read_as_it_is_written():
    text = b"version: STSv1\r\nmode: enforce\r\nmx: mail.example.com\r\nmx: *.example.net\r\nextra: x\r\nmode: none\r\nmax_age: 604800\r\n"

    policy = parse_policy(text)

    assert Policy(Mode.ENFORCE, 604_800, ("mail.example.com", "*.example.net")) == policy
    names = ("mail.example.com", "MAIL.example.com.", "a.example.net", "a.b.example.net", "example.net")
    covered = {name: policy.covers(name) for name in names}
    assert [True, True, True, False, False] == list(covered.values())


HOSTILE = {
    "nothing": b"",
    "binary": b"\xff\xfe\x00",
    "html": b"<!DOCTYPE html>\n<html>",
    "no version": b"mode: enforce\nmax_age: 1\nmx: a.example",
    "another version": b"version: STSv2\nmode: enforce\nmax_age: 1\nmx: a.example",
    "no mode": b"version: STSv1\nmax_age: 1\nmx: a.example",
    "another mode": b"version: STSv1\nmode: Enforce!\nmax_age: 1\nmx: a.example",
    "no age": b"version: STSv1\nmode: enforce\nmx: a.example",
    "an age below zero": b"version: STSv1\nmode: enforce\nmax_age: -1\nmx: a.example",
    "an age without end": b"version: STSv1\nmode: enforce\nmax_age: 99999999999999999999\nmx: a.example",
    "other digits": "version: STSv1\nmode: enforce\nmax_age: ١٢\nmx: a.example".encode(),
    "no mx": b"version: STSv1\nmode: enforce\nmax_age: 1",
    "a star in the middle": b"version: STSv1\nmode: enforce\nmax_age: 1\nmx: a.*.example",
    "a star alone": b"version: STSv1\nmode: enforce\nmax_age: 1\nmx: *",
    "a space in a name": b"version: STSv1\nmode: enforce\nmax_age: 1\nmx: a b.example",
    "a bare CR": b"version: STSv1\rmode: enforce\rmax_age: 1\rmx: a.example",
    "a line without a colon": b"version: STSv1\nmode enforce\nmax_age: 1\nmx: a.example",
    "many mx": b"version: STSv1\nmode: enforce\nmax_age: 1\n" + b"".join(b"mx: a%d.example\n" % number for number in range(200)),
    "long": b"version: STSv1\n" + b"x: y\n" * 20_000,
    "a long name": b"version: STSv1\nmode: enforce\nmax_age: 1\nmx: " + b"a" * 300,
}


@pytest.mark.parametrize("case", HOSTILE)
def test_what_is_no_policy_by_the_letter_is_none(case: str):
    with pytest.raises(ValueError, match="it "):
        parse_policy(HOSTILE[case])


@pytest.mark.parametrize(
    ("records", "expected"),
    [
        (('"v=STSv1; id=20160831085700Z;"',), "20160831085700Z"),
        (('"v=STSv1;" " id=one"',), "one"),
        (('"v=spf1 -all"', '"v=STSv1; id=one"'), "one"),
        (('"v=STSv1; id=one"', '"v=STSv1; id=two"'), ""),
        (('"v=STSv1; id=one; id=two"',), ""),
        (('"v=STSv1"',), ""),
        (('"v=STSv1; id="',), ""),
        (('"v=STSv1; id=a-b"',), ""),
        (('"v=STSv1; id=' + "x" * 33 + '"',), ""),
        (('"v=STSv10; id=one"',), ""),
        (("v=STSv1; id=one",), ""),
        ((), ""),
    ],
)
def test_the_id_in_dns_is_that_of_the_one_record(records: tuple[str, ...], expected: str):
    assert expected == record_id(records)


# found and kept


async def test_a_policy_is_fetched_once_for_all_mail_and_again_when_its_id_changes(tmp_path: Path):
    async with hosted(PolicyHost(seconds=0.05)) as host:
        policies = host.policies(tmp_path)
        found = await asyncio.gather(*(policies.of(name) for name in (DOMAIN, "CORP.example.", DOMAIN)))
        host.record, host.policy = ('"v=STSv1; id=two"',), ENFORCE.replace("enforce", "none")
        changed = await policies.of(DOMAIN)

    assert {"mta-sts=one"} == {kept.protection.policy for kept in found if kept is not None and kept.protection is not None}
    assert changed is not None
    assert (2, None, "two") == (len(host.requests), changed.protection, changed.id)
    assert "Host: mta-sts.corp.example" in host.requests[0].replace("host:", "Host:")
    assert host.requests[0].startswith("GET /.well-known/mta-sts.txt HTTP/1.1")
    assert "_mta-sts.corp.example" == host.asked[0]


async def test_a_kept_policy_counts_whatever_dns_and_its_host_say_until_it_ends(tmp_path: Path):
    async with hosted(PolicyHost()) as host:
        await host.policies(tmp_path).of(DOMAIN)
        host.record, host.status = (), 500
        after_a_start = host.policies(tmp_path)
        kept = [await after_a_start.of(DOMAIN)]
        host.record = ('"v=STSv1; id=another"',)
        kept.append(await after_a_start.of(DOMAIN))
        host.now += 86_401
        kept.append(await after_a_start.of(DOMAIN))

    assert ["one", "one", None] == [None if each is None else each.id for each in kept]


async def test_an_old_policy_is_fetched_again_while_mail_goes_on(tmp_path: Path):
    async with hosted(PolicyHost()) as host:
        policies = host.policies(tmp_path)
        await policies.of(DOMAIN)
        host.now += 43_201
        host.seconds, host.policy = 0.2, ENFORCE.replace("*.", "new.")
        meanwhile = await policies.of(DOMAIN)
        await until(lambda: policies.counts[True] == 2)
        renewed = await policies.of(DOMAIN)
        await policies.close()

    assert meanwhile is not None
    assert renewed is not None
    assert (("*.corp.example",), ("new.corp.example",)) == (meanwhile.policy.patterns, renewed.policy.patterns)


@pytest.mark.parametrize(
    "changes",
    [
        {"status": 404},
        {"status": 301},
        {"kind": "text/html"},
        {"policy": "version: STSv1\n"},
        {"policy": "x" * 100_000},
        {"kind": "text/plain\r\nContent-Encoding: gzip", "policy": PACKED},
        {"seconds": 60.0},
    ],
    ids=lambda changes: ascii(changes)[:60],
)
async def test_without_a_policy_that_can_be_fetched_there_is_none_and_nobody_asks_for_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any]
):
    monkeypatch.setattr(mta_sts, "FETCH_SECONDS", 0.3 if "seconds" in changes else 15.0)
    async with hosted(PolicyHost(**changes)) as host:
        policies = host.policies(tmp_path)
        found = [await policies.of(DOMAIN) for _ in range(3)]
        before = len(host.requests)
        host.now += mta_sts.PAUSE_SECONDS + 1
        await policies.of(DOMAIN)

    assert ([None] * 3, 1, 2) == (found, before, len(host.requests))


async def test_hosts_that_hang_keep_no_other_domain_waiting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """More than there are places for, named by whoever forges senders."""
    monkeypatch.setattr(mta_sts, "PROMPT_SECONDS", 0.5)
    monkeypatch.setattr(mta_sts, "FETCH_SECONDS", 600.0)

    async def addresses(name: str, port: int) -> tuple[HostPort, ...]:
        return (HostPort("127.0.0.1", host.port if "corp" in name else dead.port),)

    names = [f"evil{number}.example" for number in range(mta_sts.LATE_MAX + 30)]
    context = tls(*(f"mta-sts.{name}" for name in names))
    async with hosted(PolicyHost()) as host, hosted(PolicyHost(seconds=600.0), context) as dead:
        policies = host.policies(tmp_path)
        policies._addresses = addresses
        hanging = [asyncio.create_task(policies.of(name)) for name in names]
        async with asyncio.timeout(60):
            found = await policies.of(DOMAIN)
            await until(lambda: sum(each.done() for each in hanging) >= 30)  # the oldest of the late ones have to go
            await until(lambda: len(dead.requests) == len(hanging))
        await policies.close()
        for each in hanging:
            each.cancel()
        await asyncio.gather(*hanging, return_exceptions=True)

    assert found is not None


@pytest.mark.parametrize("case", ["another authority", "another name", "a private address"])
async def test_a_policy_host_must_prove_its_name_and_is_not_in_this_network(tmp_path: Path, case: str):
    context = {"another authority": tls("mta-sts.corp.example", authority=trustme.CA()), "another name": tls("corp.example")}.get(case)
    async with hosted(PolicyHost(), context) as host:
        changes = {"reach": Reach.PUBLIC} if case == "a private address" else {}
        found = await host.policies(tmp_path, **changes).of(DOMAIN)

    assert (None, []) == (found, host.requests)


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "{}", '{"domain": "corp.example", "id": 5, "at": "x", "policy": 7}', '{"domain": "other.example"}']
)
async def test_a_damaged_file_is_none(tmp_path: Path, text: str):
    async with hosted(PolicyHost()) as host:
        await host.policies(tmp_path).of(DOMAIN)
        (kept,) = (tmp_path / "mta-sts").iterdir()
        kept.write_text(text)
        found = await host.policies(tmp_path).of(DOMAIN)

    assert found is not None
    assert 2 == len(host.requests)


# obeyed


def verified_by(monkeypatch: pytest.MonkeyPatch) -> None:
    """The system trusts the authority of the test."""
    real = ssl.SSLContext.load_default_certs

    def load(self: ssl.SSLContext, *arguments: Any) -> None:
        real(self, *arguments)
        AUTHORITY.configure_trust(self)

    monkeypatch.setattr(ssl.SSLContext, "load_default_certs", load)


def zone(server: ScriptedServer, *names: str) -> Zone:
    return Zone(tuple(Exchange(10, name) for name in names), {name: (HostPort("127.0.0.1", server.port),) for name in names})


BY_MX = Destination(DOMAIN, domain=DOMAIN)
CASES: dict[str, tuple[str, tuple[str, ...], Any, str]] = {
    "as the policy says": ("enforce", ("mx1.corp.example",), lambda: tls("mx1.corp.example"), ""),
    "by a star in the certificate": ("enforce", ("mx1.corp.example",), lambda: tls("*.corp.example"), ""),
    "no TLS": ("enforce", ("mx1.corp.example",), lambda: None, "The server does not offer STARTTLS"),
    "another authority": (
        "enforce", ("mx1.corp.example",), lambda: tls("mx1.corp.example", authority=trustme.CA()), "unable to get local issuer",
    ),
    "another name": ("enforce", ("mx1.corp.example",), lambda: tls("corp.example"), "its certificate is for corp.example, not for mx1"),
    "not in the policy": ("enforce", ("mx.evil.example",), lambda: tls("mx.evil.example"), "No mail server of the domain is in its"),
    "testing": ("testing", ("mx.evil.example",), lambda: None, ""),
    "none": ("none", ("mx.evil.example",), lambda: None, ""),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
async def test_a_policy_that_is_enforced_demands_a_certificate_for_a_server_of_the_policy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: str
):
    mode, names, make, expected = CASES[case]
    verified_by(monkeypatch)
    server = ScriptedServer(tls=make())
    async with (
        serving(server),
        hosted(PolicyHost(ENFORCE.replace("enforce", mode))) as host,
        a_deliverer(zone(server, *names), policies=host.policies(tmp_path)) as deliverer,
    ):
        if not expected:
            report = await deliver(deliverer, BY_MX)
            assert {1: TAKEN} == report.replies
            assert ("TLSv1.3,verified,mta-sts=one" if mode == "enforce" else "") == report.tls
            return
        with pytest.raises(TransientDeliveryError, match=expected) as caught:
            await deliver(deliverer, BY_MX)

    assert ("4.7.5", True) == (caught.value.reply.enhanced, caught.value.is_unreachable)
    assert not [line for line in server.lines if line.startswith("MAIL")]


@pytest.mark.parametrize("case", [case for case in CASES if CASES[case][0] == "enforce"])
async def test_a_policy_in_testing_lets_mail_go_on_and_tells_what_would_keep_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: str):
    _, names, make, expected = CASES[case]
    verified_by(monkeypatch)
    server = ScriptedServer(tls=make(), script={"DOT": ["250 2.0.0 taken", "421 4.3.2 bye"]})
    async with serving(server), hosted(PolicyHost(ENFORCE.replace("enforce", "testing"))) as host:
        policies = host.policies(tmp_path)
        with structlog.testing.capture_logs() as lines:
            for _ in range(2):
                async with a_deliverer(zone(server, *names), policies=policies, unused_seconds=0.0) as deliverer:
                    report = await deliver(deliverer, BY_MX)
                    server.script = {}
            told = [line for line in lines if line["event"] == "mta_sts.test_failed"]
            host.now += 3_601
            async with a_deliverer(zone(server, *names), policies=policies) as deliverer:
                await deliver(deliverer, BY_MX)
        again = [line for line in lines if line["event"] == "mta_sts.test_failed"]

    assert {1: TAKEN} == report.replies
    assert 3 == len(server.messages)
    assert ("" if expected else "TLSv1.3,verified,mta-sts=one") == report.tls  # else as without a policy: here that is none
    assert [(names[0], "mta-sts=one", True)] * bool(expected) == [
        (line["server"], line["policy"], expected in line["reason"]) for line in told
    ]
    assert 2 * bool(expected) == len(again)
    assert 3 * bool(expected) == policies.test_failures_count


async def test_of_several_exchanges_those_in_the_policy_are_tried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    verified_by(monkeypatch)
    server = ScriptedServer(tls=tls("mx1.corp.example"))
    async with serving(server), hosted(PolicyHost()) as host:
        exchanges = zone(server, "mx.evil.example", "mx1.corp.example")
        async with a_deliverer(exchanges, policies=host.policies(tmp_path)) as deliverer:
            report = await deliver(deliverer, BY_MX)

    assert report.server.startswith("mx1.corp.example [127.0.0.1]")


async def test_a_route_and_a_domain_without_a_record_ask_no_policy_host(tmp_path: Path):
    server = ScriptedServer()
    async with (
        serving(server),
        hosted(PolicyHost(record=())) as host,
        a_deliverer(zone(server, "mx1.corp.example"), policies=host.policies(tmp_path)) as deliverer,
    ):
        await deliver(deliverer, Destination("route", (HostPort("127.0.0.1", server.port),)))
        asked_by_route = list(host.asked)
        report = await deliver(deliverer, BY_MX)

    assert ([], [], {1: TAKEN}) == (asked_by_route, host.requests, report.replies)


async def test_policies_of_many_domains_do_not_fill_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(mta_sts, "DOMAINS_MAX", 3)
    monkeypatch.setattr(mta_sts, "WRITTEN_BEFORE_ROOM", 2)
    names = [f"d{number}.example" for number in range(9)]
    async with hosted(PolicyHost(), tls(*(f"mta-sts.{name}" for name in names))) as host:
        policies = host.policies(tmp_path)
        found = [await policies.of(name) for name in names]

    assert None not in found
    assert 3 <= len(list((tmp_path / "mta-sts").iterdir())) <= 4


CHUNKED = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nTransfer-Encoding: chunked\r\n\r\n|"
ENDLESS = {
    "interim answers": b"HTTP/1.1 100 Continue\r\n\r\n",
    "chunks of an octet": CHUNKED + b"1\r\nx\r\n",
    "what chunks may say of themselves": CHUNKED + b"1;a=b\r\nx\r\n",
}


@pytest.mark.parametrize("case", ENDLESS)
async def test_an_answer_that_never_ends_is_given_up_long_before_its_time(case: str, tmp_path: Path):
    """A stranger may own the policy host of a forged sender."""
    head, _, again = ENDLESS[case].rpartition(b"|")

    class Endless(PolicyHost):
        async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            try:
                await reader.readuntil(b"\r\n\r\n")
                writer.write(head)
                while True:
                    writer.write(again * 1_000)
                    await writer.drain()
            except (ConnectionError, asyncio.IncompleteReadError):
                pass
            finally:
                writer.transport.abort()

    async with hosted(Endless()) as host:
        with structlog.testing.capture_logs() as logs:
            found = await host.policies(tmp_path).of(DOMAIN)

    assert found is None
    assert ["it is too long"] == [line["reason"] for line in logs if line["event"] == "mta_sts.no_policy"]
