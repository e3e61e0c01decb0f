"""Mail that would come back to this node is not sent: by address and port, and by the name that a server gives itself."""

import asyncio
import contextlib
import ipaddress
from collections.abc import AsyncIterator
from datetime import timedelta
from math import inf

import pytest

from shadowrelay.model.replies import DeliveryError, PermanentDeliveryError, Reply, TransientDeliveryError
from shadowrelay.model.routing import Destination, HostPort
from shadowrelay.ports import DeliveryJob, DeliveryReport
from shadowrelay.smtp.client import ConnectOptions, dial
from shadowrelay.smtp.deliverer import SmtpDeliverer
from shadowrelay.smtp.host_names import HostNames, Lookups
from shadowrelay.smtp.limits import Descriptors
from shadowrelay.smtp.listener import Listener
from shadowrelay.smtp.own_addresses import THIS_PROCESS, OwnAddresses, is_local
from shadowrelay.smtp.resolver import DnsResolver
from tests.kit.ledger import a_content, an_envelope
from tests.kit.smtp_servers import ScriptedServer, name_server, serving

ONE, ALL, ALL_6 = HostPort("127.0.0.1", 25), HostPort("0.0.0.0", 25), HostPort("::", 25)
LOOPS = "554 5.4.6 Mail for the domain would come back to this server"


@pytest.mark.parametrize(
    ("bound", "host", "expected"),
    [
        (ONE, "127.0.0.1", True),
        (ONE, "0.0.0.0", True),
        (ONE, "::ffff:127.0.0.1", True),
        (ONE, "127.0.0.2", False),
        (ONE, "192.0.2.1", False),
        (ALL, "127.0.0.1", True),
        (ALL, "127.9.9.9", True),
        (ALL, "0.0.0.0", True),
        (ALL, "192.0.2.1", False),
        (ALL, "::1", False),
        (ALL_6, "::1", True),
        (ALL_6, "::", True),
        (ALL_6, "127.0.0.1", False),
        (ALL_6, "2001:db8::1", False),
        (ALL, "a.name.example", False),
    ],
)
def test_an_address_is_ours_if_a_connection_to_it_would_come_here(bound: HostPort, host: str, expected: bool) -> None:
    own = OwnAddresses(lambda: [HostPort("192.0.2.77", 2525), bound])
    if bound == ALL_6 and not is_local(ipaddress.ip_address("::1")):
        pytest.skip("this machine has no IPv6")

    assert expected == (HostPort(host, 25) in own)
    assert HostPort(host, 26) not in own


async def test_what_a_listener_has_bound_is_known_until_it_closes() -> None:
    listener = await Listener.open(asyncio.Protocol, HostPort("127.0.0.1", 0), Descriptors(1_000_000))
    own = OwnAddresses(lambda: listener.addresses)

    assert listener.address in own
    listener.close()
    assert HostPort("127.0.0.1", 25) not in own
    assert [] == listener.addresses


@contextlib.asynccontextmanager
async def a_node_at(own: HostPort, zone: dict[tuple[str, str], tuple[str, ...]], mx_port: int) -> AsyncIterator[SmtpDeliverer]:
    addresses = OwnAddresses(lambda: [own])
    async with name_server(zone) as (_, port):
        lookups = Lookups((HostPort("127.0.0.1", port),))

        async def dial_other(host: HostPort):
            return await dial(host, is_own=addresses.__contains__)

        deliverer = SmtpDeliverer(
            ConnectOptions("me.example", dial=HostNames(lookups, connect=dial_other).dial),
            DnsResolver(("me.example",), lookups=lookups),
            concurrency_per_destination=2,
            connection_inactivity_timeout=timedelta(minutes=1),
            is_own=addresses.__contains__,
            mx_port=mx_port,
        )
        try:
            yield deliverer
        finally:
            await deliverer.close()


async def outcome(deliverer: SmtpDeliverer, destination: Destination) -> DeliveryReport | DeliveryError:
    envelope, content = an_envelope(), a_content(b"Subject: x\r\n\r\nx\r\n")

    async def read():
        return content

    try:
        return await deliverer.deliver(DeliveryJob(destination, envelope, envelope.ordinals, b"", read, lambda: True, lambda: inf))
    except DeliveryError as error:
        return error


ZONE = {
    ("alias.example", "MX"): ("10 mail.alias.example.",),
    ("mail.alias.example", "A"): ("127.0.0.1",),
    ("mail.alias.example", "AAAA"): (),
    ("implicit.example", "MX"): (),
    ("implicit.example", "A"): ("127.0.0.1",),
    ("implicit.example", "AAAA"): (),
    ("zero.example", "MX"): ("10 zero.mx.example.",),
    ("zero.mx.example", "A"): ("0.0.0.0",),
    ("zero.mx.example", "AAAA"): (),
    ("worse.example", "MX"): ("10 mail.alias.example.", "20 other.example."),
    ("better.example", "MX"): ("5 other.example.", "10 mail.alias.example.", "20 third.example."),
    ("other.example", "A"): ("127.0.0.2",),
    ("other.example", "AAAA"): (),
    ("third.example", "A"): ("127.0.0.3",),
    ("third.example", "AAAA"): (),
}


@pytest.mark.parametrize("domain", ["alias.example", "implicit.example", "zero.example", "worse.example", "[127.0.0.1]", "[0.0.0.0]"])
async def test_a_domain_that_leads_here_is_returned_at_once_and_nothing_is_connected(domain: str) -> None:
    server = ScriptedServer()
    async with serving(server), a_node_at(HostPort("127.0.0.1", server.port), ZONE, server.port) as deliverer:
        error = await outcome(deliverer, Destination(domain, domain=domain))

    assert isinstance(error, PermanentDeliveryError)
    assert LOOPS == str(error.reply)
    assert [] == server.sessions


async def test_a_better_exchange_than_this_node_is_tried_and_no_worse_one() -> None:
    server = ScriptedServer()
    async with serving(server), a_node_at(HostPort("127.0.0.1", server.port), ZONE, server.port) as deliverer:
        error = await outcome(deliverer, Destination("better.example", domain="better.example"))

    assert isinstance(error, TransientDeliveryError)
    assert "other.example [127.0.0.2]" in error.server
    assert [] == server.sessions


async def test_another_server_of_this_machine_gets_its_mail() -> None:
    server = ScriptedServer()
    async with serving(server), a_node_at(HostPort("127.0.0.9", server.port), ZONE, server.port) as deliverer:
        report = await outcome(deliverer, Destination("alias.example", domain="alias.example"))

    assert isinstance(report, DeliveryReport)
    assert {1: Reply(250, "2.0.0", "taken")} == report.replies


async def test_a_server_with_our_name_behind_a_domain_is_this_node() -> None:
    """A load balancer, or a translated address."""
    server = ScriptedServer({"EHLO": "250-Me.Example. greets you\r\n250 PIPELINING"})
    async with serving(server), a_node_at(HostPort("192.0.2.1", 25), ZONE, server.port) as deliverer:
        looped = await outcome(deliverer, Destination("alias.example", domain="alias.example"))
        routed = await outcome(deliverer, Destination("route", (HostPort("127.0.0.1", server.port),)))

    assert isinstance(looped, PermanentDeliveryError)
    assert LOOPS == str(looped.reply)
    assert isinstance(routed, DeliveryReport)  # a filter of this machine may have its name


@pytest.mark.parametrize(
    ("word", "is_here"),
    [(f"XSELF {THIS_PROCESS}", True), (f"XSELF {THIS_PROCESS[:-1]}", False), ("XSELF", False)],
    ids=["ours", "another", "bare"],
)
async def test_a_route_through_a_load_balancer_that_leads_here_is_deferred(word: str, is_here: bool) -> None:
    server = ScriptedServer({"EHLO": f"250-me.example greets you\r\n250-{word}\r\n250 PIPELINING"})
    async with serving(server), a_node_at(HostPort("192.0.2.1", 25), ZONE, server.port) as deliverer:
        found = await outcome(deliverer, Destination("route", (HostPort("127.0.0.1", server.port),)))

    assert isinstance(found, TransientDeliveryError if is_here else DeliveryReport)
    assert (0 if is_here else 1) == len(server.messages)


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "mail.alias.example"])
async def test_a_route_that_leads_here_is_deferred_with_the_reason(host: str) -> None:
    server = ScriptedServer()
    async with serving(server), a_node_at(HostPort("127.0.0.1", server.port), ZONE, server.port) as deliverer:
        error = await outcome(deliverer, Destination("route", (HostPort(host, server.port),)))

    assert isinstance(error, TransientDeliveryError)
    assert "this is an address of this server" in str(error.reply)
    assert [] == server.sessions
