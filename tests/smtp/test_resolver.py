"""Where a domain's mail goes, asked of a real name server on loopback."""

import dns.rcode
import pytest

from shadowrelay.model.replies import DeliveryError, PermanentDeliveryError, TransientDeliveryError
from shadowrelay.model.routing import HostPort
from shadowrelay.smtp.resolver import DnsResolver, Exchange
from tests.kit.clock import PATIENCE_SECONDS
from tests.kit.smtp_servers import name_server

ZONE = {
    ("two.example", "MX"): ["20 b.mx.example.", "10 a.mx.example."],
    ("bare.example", "A"): ["192.0.2.7"],
    ("bare6.example", "AAAA"): ["2001:db8::7"],
    ("null.example", "MX"): ["0 ."],
    ("gone.example", "MX"): dns.rcode.NXDOMAIN,
    ("broken.example", "MX"): dns.rcode.SERVFAIL,
    ("refused.example", "MX"): dns.rcode.REFUSED,
    ("silent.example", "MX"): None,
    ("half.example", "A"): dns.rcode.SERVFAIL,
    ("half.example", "AAAA"): dns.rcode.SERVFAIL,
    ("loop.example", "MX"): ["10 ME.example.", "20 other.example."],
    ("behind.example", "MX"): ["10 first.example.", "20 me.example.", "30 last.example."],
    ("me.example", "A"): ["192.0.2.1"],
    ("a.mx.example", "A"): ["192.0.2.10", "192.0.2.11"],
    ("a.mx.example", "AAAA"): ["2001:db8::10"],
    ("xn--bcher-kva.example", "MX"): ["5 a.mx.example."],
}


async def exchanges_of(domain: str) -> tuple[Exchange, ...]:
    async with name_server(ZONE) as (_, port):
        return await DnsResolver(("me.example",), (HostPort("127.0.0.1", port),), lifetime_seconds=PATIENCE_SECONDS).exchanges(domain)


async def refusal_of(domain: str) -> DeliveryError:
    with pytest.raises(DeliveryError) as caught:
        await exchanges_of(domain)
    return caught.value


FOUND = [
    ("by preference", "two.example", (Exchange(10, "a.mx.example"), Exchange(20, "b.mx.example"))),
    ("case and final dot do not matter", "TWO.example.", (Exchange(10, "a.mx.example"), Exchange(20, "b.mx.example"))),
    ("implicit MX by A", "bare.example", (Exchange(0, "bare.example"),)),
    ("implicit MX by AAAA", "bare6.example", (Exchange(0, "bare6.example"),)),
    ("only what is better than ourselves", "behind.example", (Exchange(10, "first.example"),)),
    ("a name in Unicode", "bücher.example", (Exchange(5, "a.mx.example"),)),
    ("an address literal", "[192.0.2.5]", (Exchange(0, "192.0.2.5"),)),
]


@pytest.mark.parametrize(("domain", "expected"), [case[1:] for case in FOUND], ids=[case[0] for case in FOUND])
async def test_the_exchanges_of_a_domain_are_found(domain, expected):
    assert expected == await exchanges_of(domain)


REFUSED = [
    ("no such domain", "gone.example", PermanentDeliveryError, (550, "5.1.2")),
    ("neither MX nor address", "empty.example", PermanentDeliveryError, (550, "5.1.2")),
    ("null MX", "null.example", PermanentDeliveryError, (556, "5.1.10")),
    ("we are the best exchange", "loop.example", PermanentDeliveryError, (554, "5.4.6")),
    ("we are the implicit exchange", "me.example", PermanentDeliveryError, (554, "5.4.6")),
    ("no possible name", "a..b", PermanentDeliveryError, (550, "5.1.2")),
    ("a label too long", "a" * 64 + ".example", PermanentDeliveryError, (550, "5.1.2")),
    ("server failure", "broken.example", TransientDeliveryError, (451, "4.4.3")),
    ("refused", "refused.example", TransientDeliveryError, (451, "4.4.3")),
    ("failure at the address", "half.example", TransientDeliveryError, (451, "4.4.3")),
]


@pytest.mark.parametrize(("domain", "kind", "codes"), [case[1:] for case in REFUSED], ids=[case[0] for case in REFUSED])
async def test_a_no_is_permanent_and_no_answer_is_transient(domain, kind, codes):
    error = await refusal_of(domain)

    assert kind is type(error)
    assert codes == (error.reply.code, error.reply.enhanced)


async def test_a_name_server_that_never_answers_is_transient():
    async with name_server(ZONE) as (_, port):
        resolver = DnsResolver((), (HostPort("127.0.0.1", port),), lifetime_seconds=0.1)
        with pytest.raises(TransientDeliveryError, match=r"4\.4\.3"):
            await resolver.exchanges("silent.example")


@pytest.mark.parametrize("domain", ["refused.example", "half.example"])
async def test_a_name_that_could_not_be_looked_up_says_why(domain):
    text = (await refusal_of(domain)).reply.text

    assert text.startswith(f"The domain name could not be looked up: {domain}: 127.0.0.1:")
    assert text.endswith(("REFUSED", "SERVFAIL"))


async def test_addresses_are_those_of_both_families():
    async with name_server(ZONE) as (_, port):
        resolver = DnsResolver((), (HostPort("127.0.0.1", port),))
        found = await resolver.addresses("a.mx.example", 2525)
        none = await resolver.addresses("empty.example")

    first, last = found[:2], found[2:]  # of one family in the order in which the name server gave them: any
    assert {HostPort("192.0.2.10", 2525), HostPort("192.0.2.11", 2525)} == set(first)
    assert (HostPort("2001:db8::10", 2525),) == last
    assert () == none


@pytest.mark.parametrize(("literal", "address"), [("[192.0.2.5]", "192.0.2.5"), ("[IPv6:2001:db8::5]", "2001:db8::5")])
async def test_an_address_literal_is_its_own_address(literal, address):
    assert (HostPort(address, 25),) == await DnsResolver(()).addresses(literal)


async def test_an_answer_is_kept_for_its_time_to_live():
    async with name_server(ZONE) as (server, port):
        resolver = DnsResolver((), (HostPort("127.0.0.1", port),))
        for _ in range(3):
            await resolver.exchanges("two.example")

    assert [("two.example", "MX")] == server.asked
