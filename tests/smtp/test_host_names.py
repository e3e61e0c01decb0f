"""Hosts by name: the hosts file, the search list, an old address where DNS gives none, and one address after the other."""

import asyncio
import contextlib
import socket
from pathlib import Path

import dns.name
import dns.rcode
import pytest

from shadowrelay.model.routing import HostPort
from shadowrelay.smtp.client import ConnectOptions, dial, open_session
from shadowrelay.smtp.client_session import SessionBroken
from shadowrelay.smtp.host_names import HostNames, Lookups, NoAddress, interleaved, names_to_try, parse_hosts
from tests.kit.clock import PATIENCE_SECONDS, Hands
from tests.kit.smtp_servers import CLOSE, HANG, ScriptedServer, name_server, serving

HOSTS = b"""127.0.0.1 localhost
# a comment
192.0.2.1\tMailstore.corp.example mailstore  # and one here
2001:db8::1 mailstore
192.0.2.2 mailstore
not-an-address nonsense
"""


def test_a_hosts_file_is_read_as_the_system_reads_it():
    expected = {
        "localhost": ("127.0.0.1",),
        "mailstore.corp.example": ("192.0.2.1",),
        "mailstore": ("192.0.2.1", "192.0.2.2", "2001:db8::1"),
    }
    assert expected == parse_hosts(HOSTS)


@pytest.mark.parametrize("data", [b"", b"\xff\xfe\x00", b"127.0.0.1", b"\n\n#"])
def test_nonsense_in_it_names_nobody(data):
    assert {} == parse_hosts(data)


NAMES = [
    ("one word, as in a container network", "mailstore", ["corp.example"], 0, ["mailstore.", "mailstore.corp.example."]),
    ("one word in an office", "mailstore", ["corp.example"], 1, ["mailstore.corp.example.", "mailstore."]),
    ("a full name", "mx1.west.example", ["corp.example"], 1, ["mx1.west.example.", "mx1.west.example.corp.example."]),
    ("a complete one", "mx1.west.example.", ["corp.example"], 1, ["mx1.west.example."]),
    ("no search list", "mailstore", [], 1, ["mailstore."]),
    ("many dots wanted", "a.b", ["corp.example"], 5, ["a.b.corp.example.", "a.b."]),
]


@pytest.mark.parametrize(("host", "search", "ndots", "expected"), [case[1:] for case in NAMES], ids=[case[0] for case in NAMES])
def test_what_a_name_may_stand_for(host, search, ndots, expected):
    found = names_to_try(host, [dns.name.from_text(each) for each in search], ndots)
    assert expected == [each.to_text() for each in found]


def test_families_take_turns():
    assert ("a", ":1", "b", ":2", "c") == interleaved(["a", "b", "c", ":1", ":2"])


# with a name server


async def nobody(host: HostPort) -> socket.socket:
    raise OSError("nobody connects here")


def names_of(tmp_path: Path, port: int, *, clock=None, connect=nobody, hosts: bytes = b"", search: str = "", **times: float) -> HostNames:
    (tmp_path / "hosts").write_bytes(hosts)
    lookups = Lookups(
        (HostPort("127.0.0.1", port),), clock=clock or Hands(1000.0), lifetime_seconds=times.pop("lifetime", PATIENCE_SECONDS)
    )
    if search:
        lookups.search = lambda: ((dns.name.from_text(search),), 1)  # type: ignore[method-assign]
    return HostNames(lookups, hosts_file=tmp_path / "hosts", clock=lookups._clock, connect=connect, **times)


async def test_the_hosts_file_comes_before_dns_and_is_read_again_when_it_changes(tmp_path: Path):
    clock = Hands(1000.0)
    async with name_server({("mailstore", "A"): ["192.0.2.9"]}) as (server, port):
        names = names_of(tmp_path, port, clock=clock, hosts=b"192.0.2.1 MailStore\n")
        first = await names.addresses("mailstore")
        assert [] == server.asked
        (tmp_path / "hosts").write_bytes(b"")
        clock.at += 2
        second = await names.addresses("mailstore")

    assert (("192.0.2.1",), ("192.0.2.9",)) == (first, second)


async def test_localhost_is_never_asked_for(tmp_path: Path):
    async with name_server({}) as (server, port):
        names = names_of(tmp_path, port)
        found = [await names.addresses(host) for host in ("localhost", "LOCALHOST.", "a.localhost", "192.0.2.1", "2001:db8::1")]
    assert [("127.0.0.1", "::1")] * 3 + [("192.0.2.1",), ("2001:db8::1",)] == found
    assert [] == server.asked


async def test_a_name_of_one_word_is_found_through_the_search_list_or_as_it_is(tmp_path: Path):
    zone = {
        ("mailstore.corp.example", "A"): ["192.0.2.1"],
        ("other.corp.example", "A"): dns.rcode.SERVFAIL,
        ("other.corp.example", "AAAA"): dns.rcode.SERVFAIL,
        ("other", "A"): ["192.0.2.2"],
    }
    async with name_server(zone) as (_, port):
        names = names_of(tmp_path, port, search="corp.example", lifetime=1.0)
        found = [await names.addresses(host) for host in ("mailstore", "other")]
    assert [("192.0.2.1",), ("192.0.2.2",)] == found


async def test_a_name_without_an_address_is_no_address(tmp_path: Path):
    async with name_server({("gone.example", "A"): dns.rcode.NXDOMAIN}) as (_, port):
        names = names_of(tmp_path, port)
        for host in ("gone.example", "empty.example", "a..b", "a" * 300):
            with pytest.raises(NoAddress):
                await names.addresses(host)


async def test_the_last_good_address_is_used_while_the_resolver_fails(tmp_path: Path):
    clock = Hands(1000.0)
    zone = {("mx1.example", "A"): ["192.0.2.1"]}
    async with name_server(zone) as (server, port):
        names = names_of(tmp_path, port, clock=clock)
        first = await names.addresses("mx1.example")
        server.zone = {("mx1.example", "A"): dns.rcode.REFUSED, ("mx1.example", "AAAA"): dns.rcode.REFUSED}
        clock.at += 3600
        later = await names.addresses("mx1.example")
        clock.at += 4 * 86_400
        with pytest.raises(NoAddress):
            await names.addresses("mx1.example")

    assert (("192.0.2.1",), ("192.0.2.1",)) == (first, later)


async def test_a_resolver_that_is_silent_does_not_hold_up_a_peer_whose_address_was_known(tmp_path: Path):
    clock = Hands(1000.0)
    async with name_server({("mx1.example", "A"): ["192.0.2.1"]}) as (server, port):
        names = names_of(tmp_path, port, clock=clock, stale_after_seconds=0.05)
        await names.addresses("mx1.example")
        server.zone = {("mx1.example", "A"): None, ("mx1.example", "AAAA"): None}
        clock.at += 3600

        assert ("192.0.2.1",) == await names.addresses("mx1.example")
        await names._lookups.close()


async def test_a_name_that_is_gone_is_gone(tmp_path: Path):
    clock = Hands(1000.0)
    async with name_server({("mx1.example", "A"): ["192.0.2.1"]}) as (server, port):
        names = names_of(tmp_path, port, clock=clock)
        await names.addresses("mx1.example")
        server.zone = {("mx1.example", "A"): dns.rcode.NXDOMAIN, ("mx1.example", "AAAA"): dns.rcode.NXDOMAIN}
        clock.at += 3600
        with pytest.raises(NoAddress):
            await names.addresses("mx1.example")


async def test_an_address_where_nobody_was_reached_is_asked_for_again_before_its_time(tmp_path: Path):
    clock = Hands(1000.0)
    async with name_server({("mx1.example", "A"): ["192.0.2.1"]}) as (server, port):

        async def connect(host: HostPort) -> socket.socket:
            clock.at += 0.1
            return await nobody(host)

        names = names_of(tmp_path, port, clock=clock, connect=connect)
        with pytest.raises(OSError, match="nobody connects"):
            await names.dial_peer(HostPort("mx1.example", 25))
        server.zone = {("mx1.example", "A"): ["192.0.2.2"]}
        clock.at += 1.5

        assert ("192.0.2.2",) == await names.addresses("mx1.example")


async def test_the_address_that_was_reached_is_tried_first_the_next_time(tmp_path: Path):
    dialled: list[str] = []
    pair = socket.socketpair()

    async def connect(host: HostPort) -> socket.socket:
        dialled.append(host.host)
        if host.host == "2001:db8::1":
            return pair[0]
        raise OSError("unreachable")

    zone = {("mx1.example", "A"): ["192.0.2.1", "192.0.2.2"], ("mx1.example", "AAAA"): ["2001:db8::1"]}
    async with name_server(zone) as (_, port):
        names = names_of(tmp_path, port, connect=connect)
        for _ in range(2):
            await names.dial(HostPort("mx1.example", 25))
    for each in pair:
        each.close()

    assert dialled[0].startswith("192.0.2.")
    assert ["2001:db8::1", "2001:db8::1"] == dialled[1:]


async def test_an_address_of_the_hosts_file_that_was_reached_is_tried_first_the_next_time(tmp_path: Path):
    """The first one may be dead, and takes its time whenever it is tried."""
    dialled: list[str] = []
    pair = socket.socketpair()

    async def connect(host: HostPort) -> socket.socket:
        dialled.append(host.host)
        if host.host == "2001:db8::1":
            return pair[0]
        raise OSError("unreachable")

    names = names_of(tmp_path, 9, connect=connect, hosts=HOSTS)
    for _ in range(2):
        await names.dial_peer(HostPort("mailstore", 25))
    names.gave_no_session(HostPort("mailstore", 25))
    for each in pair:
        each.close()

    assert ["192.0.2.1", "2001:db8::1", "2001:db8::1"] == dialled
    assert "192.0.2.1" == (await names.addresses("mailstore"))[0]


@pytest.mark.parametrize("greeting", ["421 4.3.2 busy", "451 no", CLOSE, HANG])
async def test_after_an_address_that_gives_no_session_the_next_one_is_tried(tmp_path: Path, greeting: str):
    first, second = ScriptedServer({"GREETING": greeting}), ScriptedServer()
    servers = {"192.0.2.1": first, "192.0.2.2": second}

    async def connect(host: HostPort) -> socket.socket:
        return await dial(HostPort("127.0.0.1", servers[host.host].port))

    async with serving(first, second), name_server({("mx1.example", "A"): list(servers)}) as (_, port):
        names = names_of(tmp_path, port, connect=connect)
        options = ConnectOptions("me.example", dial=names.dial_peer, greeting_seconds=0.1, not_opened=names.gave_no_session)
        with contextlib.suppress(SessionBroken):  # the order of the addresses is that of the answer
            (await open_session(HostPort("mx1.example"), "mx1.example", options)).pipeline.abort()
        session = await open_session(HostPort("mx1.example"), "mx1.example", options)
        session.pipeline.abort()
        await session.pipeline.closed()

    assert second.sessions


async def refusal(tmp_path: Path, errors: dict[str, OSError]) -> OSError:
    """What a peer's name with these addresses comes to."""

    async def connect(host: HostPort) -> socket.socket:
        raise errors[host.host]

    names = names_of(tmp_path, 1, connect=connect, hosts="".join(f"{address} mx1.example\n" for address in errors).encode())
    with pytest.raises(OSError) as caught:  # noqa: PT011 - which one is what this is about
        await names.dial_peer(HostPort("mx1.example", 25))
    return caught.value


async def test_a_name_is_refused_when_all_its_addresses_refuse(tmp_path: Path):
    error = await refusal(tmp_path, {address: ConnectionRefusedError(111, "no") for address in ("192.0.2.1", "2001:db8::1")})

    assert ConnectionRefusedError is type(error)
    assert "192.0.2.1: connection refused; 2001:db8::1: connection refused" == str(error)


async def test_an_address_that_cuts_the_connection_is_told_from_one_that_does_not_answer(tmp_path):
    """A load balancer with dead servers behind it may cut the next connection, or not."""
    cut, refused, silent = ConnectionResetError(104, "cut"), ConnectionRefusedError(111, "no"), OSError(113, "no answer")
    alone = await refusal(tmp_path, {"192.0.2.1": cut})
    both = await refusal(tmp_path, {"192.0.2.1": cut, "2001:db8::1": refused})
    one = await refusal(tmp_path, {"192.0.2.1": cut, "2001:db8::1": silent})

    assert [True, True, False] == [isinstance(error, ConnectionResetError) for error in (alone, both, one)]


async def test_a_name_is_not_refused_when_one_address_says_nothing_and_the_text_has_all_reasons(tmp_path: Path):
    error = await refusal(tmp_path, {"192.0.2.1": ConnectionRefusedError(111, "no"), "2001:db8::1": OSError(113, "no answer")})

    assert not isinstance(error, ConnectionRefusedError)
    assert "192.0.2.1: connection refused; 2001:db8::1: [Errno 113] no answer" == str(error)


async def test_peers_are_found_while_two_hundred_next_hops_are_not(tmp_path: Path):
    zone = {(f"dead{number}.example", kind): None for number in range(200) for kind in ("A", "AAAA")}
    async with name_server({**zone, ("mx1.example", "A"): ["192.0.2.1"]}) as (_, port):
        names = names_of(tmp_path, port)
        dead = [asyncio.ensure_future(names.dial(HostPort(f"dead{number}.example", 25))) for number in range(200)]
        await asyncio.sleep(0)

        with pytest.raises(OSError, match="nobody connects"):
            await names.dial_peer(HostPort("mx1.example", 25))
        assert not any(each.done() for each in dead)
        for each in dead:
            each.cancel()
        await asyncio.gather(*dead, return_exceptions=True)
        await names._lookups.close()
