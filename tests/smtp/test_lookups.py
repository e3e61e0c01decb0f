"""Look-ups: asked once for everybody, remembered for the right time, and not in each other's way. With real DNS messages."""

import asyncio
from pathlib import Path

import dns.name
import dns.rcode
import pytest
import structlog

from shadowrelay.model.routing import HostPort
from shadowrelay.smtp import host_names
from shadowrelay.smtp.host_names import AnswerKind, Freshness, Lookups, resolver_of
from tests.kit.clock import PATIENCE_SECONDS, Hands
from tests.kit.smtp_servers import name_server


def name(text: str) -> dns.name.Name:
    return dns.name.from_text(text)


async def asked_twice(zone, seconds: float, negative_seconds: int | None = None) -> tuple[AnswerKind, int]:
    """What came for `x.example`, and how often the name server was asked when it was asked for again so much later."""
    clock = Hands(1000.0)
    async with name_server(zone) as (server, port):
        server.negative_seconds = negative_seconds
        asking = Lookups((HostPort("127.0.0.1", port),), lifetime_seconds=PATIENCE_SECONDS, clock=clock)
        first = await asking.ask(name("x.example"), "A")
        clock.at += seconds
        await asking.ask(name("x.example"), "A")
        return first.found, len(set(enumerate(server.asked)))


KEPT = [
    ("an answer, for its time to live", {("x.example", "A"): ["192.0.2.1"]}, None, 59, AnswerKind.RECORDS, 1),
    ("and no longer", {("x.example", "A"): ["192.0.2.1"]}, None, 61, AnswerKind.RECORDS, 2),
    ("no such name, for the SOA's minimum", {("x.example", "A"): dns.rcode.NXDOMAIN}, 120, 119, AnswerKind.NO_SUCH_NAME, 1),
    ("and no longer", {("x.example", "A"): dns.rcode.NXDOMAIN}, 120, 121, AnswerKind.NO_SUCH_NAME, 2),
    ("no records, likewise", {}, 120, 119, AnswerKind.NO_RECORDS, 1),
    ("and no longer", {}, 120, 121, AnswerKind.NO_RECORDS, 2),
    ("at most a quarter of an hour", {}, 86_400, 901, AnswerKind.NO_RECORDS, 2),
    ("without an SOA some minutes", {}, None, 299, AnswerKind.NO_RECORDS, 1),
    ("a refusal to answer, some seconds", {("x.example", "A"): dns.rcode.REFUSED}, None, 4, AnswerKind.NOTHING, 1),
    ("and no longer", {("x.example", "A"): dns.rcode.REFUSED}, None, 6, AnswerKind.NOTHING, 2),
]


@pytest.mark.parametrize(("zone", "negative", "later", "found", "count"), [case[1:] for case in KEPT], ids=[case[0] for case in KEPT])
async def test_what_was_answered_is_kept_for_its_time(zone, negative, later, found, count):
    assert (found, count) == await asked_twice(zone, later, negative)


async def test_a_name_that_nobody_answers_for_is_asked_for_less_and_less_often():
    clock = Hands(1000.0)
    async with name_server({("x.example", "A"): dns.rcode.REFUSED}) as (server, port):
        asking = Lookups((HostPort("127.0.0.1", port),), clock=clock)
        times = []
        for _ in range(600):
            before = len(server.asked)
            await asking.ask(name("x.example"), "A")
            if len(server.asked) > before:
                times.append(clock.at - 1000)
            clock.at += 1
    assert [0, 5, 15, 35, 75, 155, 315] == times


async def test_an_answer_may_be_too_old_for_who_asks():
    clock = Hands(1000.0)
    async with name_server({("x.example", "A"): ["192.0.2.1"]}) as (server, port):
        asking = Lookups((HostPort("127.0.0.1", port),), clock=clock)
        for _ in range(3):
            await asking.ask(name("x.example"), "A", freshness=Freshness(records=5.0, others=5.0))
            clock.at += 4
    assert 2 == len(server.asked)


async def test_a_burst_asks_once_and_who_leaves_ends_nothing():
    async with name_server({("x.example", "A"): ["192.0.2.1"]}) as (server, port):
        asking = Lookups((HostPort("127.0.0.1", port),))
        burst = [asyncio.ensure_future(asking.ask(name("x.example"), "A")) for _ in range(100)]
        await asyncio.sleep(0)
        burst[0].cancel()
        answers = await asyncio.gather(*burst[1:])

    assert {("192.0.2.1",)} == {answer.records for answer in answers}
    assert [("x.example", "A")] == server.asked


async def test_names_that_nobody_answers_for_hold_up_no_others():
    zone = {**{(f"dead{number}.example", "A"): None for number in range(200)}, ("x.example", "A"): ["192.0.2.1"]}
    async with name_server(zone) as (_, port):
        clock = Hands(0.0)
        asking = Lookups((HostPort("127.0.0.1", port),), lifetime_seconds=0.2, clock=clock)
        for _ in range(2):  # from the second time on it is known which these are
            dead = [asyncio.ensure_future(asking.ask(name(f"dead{number}.example"), "A")) for number in range(host_names.AT_ONCE)]
            if _ == 0:
                await asyncio.wait(dead)
        clock.at = 1e9  # what was remembered holds no more
        more = [asyncio.ensure_future(asking.ask(name(f"dead{number}.example"), "A")) for number in range(host_names.AT_ONCE)]
        await asyncio.sleep(0)
        answer = await asking.ask(name("x.example"), "A")

        assert AnswerKind.RECORDS is answer.found
        assert not any(each.done() for each in more)
        await asking.close()
        await asyncio.gather(*dead, *more, return_exceptions=True)


async def test_new_names_that_nobody_answers_for_hold_up_no_others_either(monkeypatch):
    monkeypatch.setattr(host_names, "PROMPT_SECONDS", 0.02)
    monkeypatch.setattr(host_names, "LATE_MAX", 30)
    zone = {**{(f"dead{number}.example", "A"): None for number in range(200)}, ("x.example", "A"): ["192.0.2.1"]}
    async with name_server(zone) as (_, port):
        asking = Lookups((HostPort("127.0.0.1", port),), lifetime_seconds=PATIENCE_SECONDS)
        dead = [asyncio.ensure_future(asking.ask(name(f"dead{number}.example"), "A")) for number in range(200)]
        await asyncio.sleep(0)
        answer = await asking.ask(name("x.example"), "A")
        given_up = [each.result() for each in dead if each.done()]
        waiting_count = len(dead) - len(given_up)

        assert AnswerKind.RECORDS is answer.found
        assert 0 < waiting_count <= host_names.AT_ONCE + host_names.LATE_MAX
        assert {AnswerKind.NOTHING} == {each.found for each in given_up}
        assert all("too many names" in each.reason for each in given_up)
        await asking.close()
        await asyncio.gather(*dead, return_exceptions=True)


async def test_an_answer_that_comes_late_counts_and_holds_up_nobody(monkeypatch):
    monkeypatch.setattr(host_names, "PROMPT_SECONDS", 0.02)
    monkeypatch.setattr(host_names, "AT_ONCE", 1)
    zone = {("late.example", "A"): ["192.0.2.2"], ("x.example", "A"): ["192.0.2.1"]}
    async with name_server(zone) as (server, port):
        server.late_names = {"late.example"}
        asking = Lookups((HostPort("127.0.0.1", port),), lifetime_seconds=PATIENCE_SECONDS)
        late = asyncio.ensure_future(asking.ask(name("late.example"), "A"))
        await asyncio.sleep(0)
        others = [(await asking.ask(name("x.example"), "A")).records, late.done()]
        server.answer()

        assert [("192.0.2.1",), False] == others
        assert ("192.0.2.2",) == (await late).records
        assert ("192.0.2.1",) == (await asking.ask(name("x.example"), "A")).records  # its slot was given back once


async def test_at_the_end_nobody_waits_for_an_answer_but_the_peers():
    zone = {(f"dead{number}.example", "A"): None for number in range(200)}
    async with name_server(zone) as (_, port):
        asking = Lookups((HostPort("127.0.0.1", port),), lifetime_seconds=PATIENCE_SECONDS)
        dead = [asyncio.ensure_future(asking.ask(name(f"dead{number}.example"), "A")) for number in range(200)]
        peer = asyncio.ensure_future(asking.ask(name("dead0.example"), "A", lane="peers"))
        await asyncio.sleep(0.01)
        asking.let_go()
        async with asyncio.timeout(PATIENCE_SECONDS / 2):
            ended = await asyncio.gather(*dead, return_exceptions=True)

        assert {asyncio.CancelledError} == {type(each) for each in ended}
        assert not peer.done()
        await asking.close()
        await asyncio.gather(peer, return_exceptions=True)


async def test_why_there_is_no_answer_is_said_shortly():
    zone = {("x.example", "A"): dns.rcode.REFUSED, ("y.example", "A"): None}
    async with name_server(zone) as (_, port):
        asking = Lookups((HostPort("127.0.0.1", port),), lifetime_seconds=0.2)
        reasons = [(await asking.ask(name(each), "A")).reason for each in ("x.example", "y.example")]

    assert [f"x.example: 127.0.0.1:{port}: REFUSED", f"y.example: 127.0.0.1:{port}: no answer"] == reasons


async def test_a_lane_of_its_own_waits_for_nobody():
    zone = {**{(f"dead{number}.example", "A"): None for number in range(200)}, ("x.example", "A"): ["192.0.2.1"]}
    async with name_server(zone) as (_, port):
        asking = Lookups((HostPort("127.0.0.1", port),), lifetime_seconds=PATIENCE_SECONDS)
        dead = [asyncio.ensure_future(asking.ask(name(f"dead{number}.example"), "A")) for number in range(200)]
        await asyncio.sleep(0)

        assert AnswerKind.RECORDS is (await asking.ask(name("x.example"), "A", lane="peers")).found
        assert 200 == asking.running_count
        await asking.close()
        await asyncio.gather(*dead, return_exceptions=True)


async def test_what_is_remembered_is_bounded(monkeypatch):
    monkeypatch.setattr(host_names, "REMEMBERED_MAX", 10)
    async with name_server({}) as (server, port):
        asking = Lookups((HostPort("127.0.0.1", port),))
        for number in range(30):
            await asking.ask(name(f"n{number}.example"), "A")
        for number in range(20, 30):
            await asking.ask(name(f"n{number}.example"), "A")
        assert 30 == len(server.asked)
        await asking.ask(name("n0.example"), "A")
    assert 31 == len(server.asked)


async def test_the_systems_file_is_read_again_when_it_changes(tmp_path: Path):
    clock = Hands(1000.0)
    conf = tmp_path / "resolv.conf"
    asking = Lookups(clock=clock, resolv_conf=conf)
    missing = asking.search()
    conf.write_text("nameserver 192.0.2.53\nsearch corp.example site.example\noptions ndots:2\n")
    first = asking.search()
    conf.write_text("nameserver 192.0.2.53\ndomain other.example\n")
    clock.at += 2
    second = asking.search()

    assert ((), 1) == missing
    assert ((name("corp.example"), name("site.example")), 2) == first
    assert ((name("other.example"),), 1) == second


@pytest.mark.parametrize(
    "bad",
    ["nameserver 192.0.2.300", "nameserver", "nameserver ns.example", "search a..b", "domain " + "x" * 64, "\xff\x00 x", "options ndots:x"],
)
async def test_a_bad_line_of_the_systems_file_is_skipped(bad: str, tmp_path: Path) -> None:
    conf = tmp_path / "resolv.conf"
    conf.write_bytes(f"search corp.example\n{bad}\nnameserver 192.0.2.53\nnameserver fe80::1%eth0\n".encode("latin-1"))

    with structlog.testing.capture_logs() as lines:
        resolver = resolver_of(conf)

    assert ["192.0.2.53", "fe80::1%eth0"] == [str(server) for server in resolver.nameservers]
    assert [name("corp.example")] == resolver.search
    assert {"resolver.line_skipped"} >= {line["event"] for line in lines}


@pytest.mark.parametrize("worse", ["", "nameserver nowhere\n", "# nothing\n", None])
async def test_a_file_that_is_worse_than_the_last_one_does_not_stop_dns(worse: str | None, tmp_path: Path) -> None:
    clock = Hands(1000.0)
    conf = tmp_path / "resolv.conf"
    asking = Lookups(clock=clock, resolv_conf=conf)
    conf.write_text("nameserver 192.0.2.53\nsearch corp.example\n")
    first = asking.search()
    if worse is None:
        conf.unlink()
    else:
        conf.write_text(worse)
    with structlog.testing.capture_logs() as lines:
        for _ in range(3):
            clock.at += 2
            assert first == asking.search()
    conf.write_text("nameserver 192.0.2.54\nsearch site.example\n")
    clock.at += 2

    assert ((name("site.example"),), 1) == asking.search()
    assert 1 == [line["event"] for line in lines].count("resolver.file_kept")


async def test_without_any_configuration_nobody_knows():
    answer = await Lookups(resolv_conf=Path("/nowhere/resolv.conf")).ask(name("x.example"), "A")
    assert AnswerKind.NOTHING is answer.found
