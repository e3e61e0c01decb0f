"""IPv6 like IPv4: listeners for both families, an address that does not answer beside one that does, and the address that a session
comes from."""

import asyncio
import socket
from pathlib import Path

import pytest
from pydantic import ValidationError

from shadowrelay.model.protection import Protection
from shadowrelay.model.routing import Destination, HostPort
from shadowrelay.model.settings import Route, Send
from shadowrelay.smtp import deliverer as deliverer_module
from shadowrelay.smtp.client import dial
from shadowrelay.smtp.host_names import HostNames, Lookups
from shadowrelay.smtp.limits import Descriptors
from shadowrelay.smtp.listener import Listener
from shadowrelay.smtp.own_addresses import OwnAddresses
from tests.kit.clients import Client
from tests.kit.loopback import needs_loopback
from tests.kit.postfix import free_port
from tests.kit.receiving import receiving
from tests.kit.smtp_servers import ScriptedServer, serving
from tests.smtp.deliverers import TAKEN, a_deliverer, at, deliver, route

pytestmark = pytest.mark.skipif(not socket.has_ipv6, reason="needs IPv6")


async def refused(host: HostPort) -> bool:
    try:
        _, writer = await asyncio.open_connection(host.host, host.port)
    except OSError:
        return True
    writer.close()
    return False


@needs_loopback
async def test_a_connector_on_all_addresses_takes_clients_of_both_families_each_by_its_own_address(tmp_path: Path) -> None:
    async with receiving(tmp_path, listen="[::]:0", relay_from=["127.0.0.0/8"], accepted_domains=["here.example"]) as station:
        port = station.server.address.port
        assert {HostPort("::", port), HostPort("0.0.0.0", port)} == set(station.server.addresses)
        own = OwnAddresses(lambda: station.server.addresses)
        assert HostPort("127.0.0.1", port) in own
        assert HostPort("::1", port) in own
        for address in ("127.0.0.1", "::1"):
            client = await Client.to(HostPort(address, port))
            await client.begin("EHLO c.example", "MAIL FROM:<a@x.example>")
            reply = await client.ask("RCPT TO:<b@elsewhere.example>")
            assert reply == ("250 2.1.5 Recipient OK" if address == "127.0.0.1" else "550 5.7.1 Relaying denied")
            await client.ask("RCPT TO:<b@here.example>")
            await client.send(b"BDAT 4 LAST\r\n\r\na\n".replace(b"a\n", b"a\r"))  # refused, and the session goes on
            await client.reply()
            assert await client.mail(["b@here.example"]) == "250 2.0.0 Queued"
            await client.close()

    addresses = [envelope.client_address for envelope, _, _ in station.acceptor.accepted]
    literals = [octets.split(b"\r\n")[0] for _, _, octets in station.acceptor.accepted]
    assert ["127.0.0.1", "::1"] == addresses
    assert [b"Received: from c.example ([127.0.0.1])", b"Received: from c.example ([IPv6:::1])"] == literals


@needs_loopback
@pytest.mark.parametrize("hosts", [["0.0.0.0", "::"], ["127.0.0.1", "::"]])
async def test_a_connector_of_ipv4_on_the_same_port_keeps_its_clients(hosts: list[str]) -> None:
    port = free_port()
    first, second = [await Listener.open(asyncio.Protocol, HostPort(host, port), Descriptors(20_000)) for host in hosts]
    try:
        assert [HostPort(hosts[0], port)] == first.addresses
        assert HostPort("::", port) in second.addresses
        assert not await refused(HostPort("::1", port))
    finally:
        first.close()
        second.close()


@needs_loopback
async def test_a_literal_of_ipv6_leads_to_its_server() -> None:
    server = ScriptedServer()
    listener = await asyncio.start_server(lambda reader, writer: server._accept(reader, writer), "::1", 0)
    async with listener, a_deliverer(mx_port=25) as deliverer:
        port = listener.sockets[0].getsockname()[1]
        report = await deliver(deliverer, Destination("[::1]", (HostPort("::1", port),), is_literal=True))

    assert {1: TAKEN} == report.replies
    assert report.server.endswith(f"[::1]:{port}")


# an address that does not answer


class TwoAddresses(HostNames):
    """A name whose first address is never connected."""

    def __init__(self, dead: str, alive: str) -> None:
        super().__init__(Lookups())
        self.dead, self.alive = dead, alive
        self.dialled: list[str] = []

    async def addresses(self, host: str, lane: str = "") -> tuple[str, ...]:
        return (self.dead, self.alive) if host == "hop.example" else (host,)

    async def dial(self, host: HostPort, *source: object) -> socket.socket:
        self.dialled.append(host.host)
        if host.host == self.dead:
            await asyncio.Event().wait()
        return await dial(host)


async def test_an_address_that_does_not_connect_holds_nothing_up_and_is_not_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deliverer_module, "HEAD_START_SECONDS", 0.02)
    names, server = TwoAddresses("2001:db8::1", "127.0.0.1"), ScriptedServer()
    async with serving(server), a_deliverer(names=names) as deliverer:
        async with asyncio.timeout(4.0):  # less than is waited for an address, ADDRESS_SECONDS
            for _ in range(3):
                report = await deliver(deliverer, route(HostPort("hop.example", server.port)))
                assert {1: TAKEN} == report.replies

    assert ["2001:db8::1", "127.0.0.1"] == names.dialled


async def test_where_no_address_is_prompt_the_first_one_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deliverer_module, "HEAD_START_SECONDS", 0.02)
    server = ScriptedServer()

    class Slow(TwoAddresses):
        async def dial(self, host: HostPort, *source: object) -> socket.socket:
            self.dialled.append(host.host)
            await asyncio.sleep(0.2)
            if host.host == self.alive:
                raise ConnectionRefusedError
            return await dial(HostPort("127.0.0.1", host.port))

    names = Slow("127.0.0.2", "127.0.0.3")
    async with serving(server), a_deliverer(names=names) as deliverer:
        report = await deliver(deliverer, route(HostPort("hop.example", server.port)))

    assert {1: TAKEN} == report.replies
    assert ["127.0.0.2", "127.0.0.3"] == names.dialled


async def test_a_better_exchange_of_another_name_keeps_its_place_though_it_is_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deliverer_module, "HEAD_START_SECONDS", 0.02)
    first, second = ScriptedServer(), ScriptedServer()

    class SlowToConnect(HostNames):
        async def dial(self, host: HostPort, *source: object) -> socket.socket:
            await asyncio.sleep(0.2)
            return await dial(host)

    async with serving(first, second), a_deliverer(names=SlowToConnect(Lookups())) as deliverer:
        await deliver(deliverer, route(at(first), at(second)))

    assert (1, 0) == (len(first.messages), len(second.messages))


# where a session comes from


def from_(*source: str) -> Protection:
    return Protection(source=source)


async def test_a_session_comes_from_the_address_that_the_route_says() -> None:
    server = ScriptedServer()
    hosts = (HostPort("127.0.0.1", server.port),)
    async with serving(server), a_deliverer(source=["127.0.0.4"]) as deliverer:
        hosts = (at(server),)
        for protection in (from_("127.0.0.2", "::1"), from_("127.0.0.3"), None):
            report = await deliver(deliverer, Destination("route", hosts, protection=protection))
            assert {1: TAKEN} == report.replies

    assert ["127.0.0.2", "127.0.0.3", "127.0.0.4"] == [session.host for session in server.sessions]


async def test_without_a_route_that_says_it_sessions_come_from_the_address_of_send() -> None:
    server = ScriptedServer()
    async with serving(server), a_deliverer(source=["::1", "127.0.0.4"]) as deliverer:
        await deliver(deliverer, route(at(server)))

    assert ["127.0.0.4"] == [session.host for session in server.sessions]


async def test_an_address_that_the_machine_has_not_makes_the_mail_wait_and_says_why() -> None:
    server = ScriptedServer()
    async with serving(server), a_deliverer() as deliverer:
        with pytest.raises(Exception, match="annot assign requested address") as caught:
            await deliver(deliverer, Destination("route", (at(server),), protection=from_("192.0.2.1")))

    assert caught.value.is_unreachable  # type: ignore[attr-defined]
    assert not server.sessions


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("192.0.2.1", ("192.0.2.1",)),
        (["192.0.2.1", "2001:DB8::0:1"], ("192.0.2.1", "2001:db8::1")),
        (["192.0.2.1", "192.0.2.2"], None),
        ("mx1.example", None),
        ("0.0.0.0", None),
        ("fe80::1%eth0", None),
    ],
)
def test_a_source_is_an_address_or_one_of_each_family(given: object, expected: tuple[str, ...] | None) -> None:
    if expected is None:
        with pytest.raises(ValidationError, match="must be an IP address of this machine, or one of IPv4 and one of IPv6"):
            Send.model_validate({"source_ip_address": given})
    else:
        assert expected == Send.model_validate({"source_ip_address": given}).source_ip_address
        made = Route.model_validate({"recipients": ["*"], "next_hop": "a.example", "source_ip_address": given})
        assert made.protection == Protection(source=expected)
