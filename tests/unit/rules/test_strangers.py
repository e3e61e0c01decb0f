"""What a stranger can make a node send to others."""

import pytest

from shadowrelay.model.ids import MessageId
from shadowrelay.model.message import Recipient
from shadowrelay.model.routing import HostPort, Reach
from shadowrelay.model.settings import Route, Settings
from shadowrelay.model.values import replace
from shadowrelay.protocol.addresses import canonical, has_routing, mailbox
from shadowrelay.rules import strangers
from shadowrelay.rules.router import Router, routes_of
from shadowrelay.smtp.own_addresses import is_out_of_reach
from tests.kit.ledger import an_envelope
from tests.kit.receiving import settings_for

DSN_ID = MessageId("00000000-0000-5000-8000-000000000001")


@pytest.mark.parametrize(
    "written",
    ['"boss"@corp.example', '"b\\oss"@corp.example', "boss@CORP.example", "boss@corp.example.", '"\\b\\o\\s\\s"@Corp.Example.'],
)
def test_one_mailbox_has_one_form(written: str) -> None:
    assert ("boss@corp.example", "boss@corp.example") == (canonical(written), mailbox(written))


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ('"john."@x.example', '"john."@x.example'),
        ('"a b"@x.example', '"a b"@x.example'),
        ('"a\\ b"@x.example', '"a b"@x.example'),
        ('"a\\"b"@x.example', '"a\\"b"@x.example'),
        ('""@x.example', '""@x.example'),
        ("Boss@x.example", "Boss@x.example"),
        ('"Boss"@bücher.example', "Boss@xn--bcher-kva.example"),
        ("bu\u0308ro@x.example", "b\u00fcro@x.example"),
        ("a@[IPv6:2001:DB8:0::1]", "a@[ipv6:2001:db8::1]"),
        ("Postmaster", "postmaster"),
    ],
)
def test_what_needs_its_quotes_keeps_them(written: str, expected: str) -> None:
    assert expected == canonical(written)
    assert expected == canonical(canonical(written))


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("u%e@c", True),
        ("e!u@c", True),
        ('"u@e"@c', True),
        ('"u\\@e"@c', True),
        ("u\uff20e@c", True),
        ("u\uff01e@c", True),
        ("IMCEASMTP-u+40e@c", True),
        ('"IMCEASMTP-u+40e"@c', True),
        ('"\\IMCEASMTP-u+40e"@c', True),
        ('"imcea\\smtp-u+40e"@c', True),
        ('"u\\%e"@c', True),
        ('"imceasmtp-u+40e"@c', True),
        ("\uff29MCEASMTP-u+40e@c", True),
        ("IMCEAEX-_O=X_CN=u@c", False),
        ("u@c", False),
        ("u+tag=x/y@c", False),
        ('"a b"@c', False),
        ("Postmaster", False),
    ],
)
def test_a_local_part_that_asks_to_be_passed_on_is_recognised(address: str, expected: bool) -> None:
    assert expected == has_routing(address)


@pytest.mark.parametrize(
    ("asked", "expected"),
    [("SUCCESS", "NEVER"), ("DELAY", "NEVER"), ("NEVER", "NEVER"), ("success,failure,delay", "FAILURE"), ("FAILURE", "FAILURE")],
)
def test_only_the_wish_to_hear_of_failures_remains(asked: str, expected: str) -> None:
    assert expected == strangers.notify(asked)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, True),
        ({"client_address": "10.1.1.1"}, False),
        ({"client_address": ""}, False),
        ({"client_address": "10.1.1.1", "original_client": "ADDR=10.1.1.1 BY=192.0.2.9"}, True),  # a client that was named
        ({"original_client": "ADDR=192.0.2.9 BY=10.1.1.1"}, False),
        ({"connector": "gone"}, False),
        ({"relayed_from": DSN_ID}, False),
        ({"recipients": (Recipient("a@here.example", strangers.NOTIFY_OF_OURS),)}, False),
        ({"recipients": (Recipient("a@here.example", "FAILURE"),)}, True),
        ({"recipients": (Recipient("a@here.example"), Recipient("a@elsewhere.example"))}, False),  # a client of another node's relay_from
    ],
)
def test_a_stranger_is_known_by_its_connector_and_address(changes: dict[str, object], expected: bool) -> None:
    settings = settings_for(relay_from=["10.0.0.0/8"])
    here = (Recipient("a@here.example"),)
    envelope = replace(an_envelope(1), connector="in", client_address="192.0.2.9", recipients=here)

    assert expected == strangers.is_stranger(replace(envelope, **changes), settings)


@pytest.mark.parametrize(
    ("sender", "expected"),
    [
        ("victim%elsewhere.example@here.example", True),
        ("victim%elsewhere.example@sub.here.example", True),
        ("elsewhere.example!victim@routed.example", True),
        ("bounce-me%here.example@esp.example", False),
        ("a!b@esp.example", False),
        ("a@here.example", False),
    ],
)
def test_only_servers_that_trust_this_node_would_obey_a_route_in_a_sender(sender: str, expected: bool) -> None:
    settings = settings_for(accepted_domains=["here.example", "*.here.example"])
    routed = [Route(recipients=("*@routed.example",), next_hop="store.here.example:25")]
    settings = Settings.model_validate(dict(settings) | {"routes": routed})
    envelope = replace(an_envelope(1), connector="in", sender=sender)

    assert expected == strangers.is_laundered(envelope, settings, Router(routes_of(settings)).destination)


def test_a_notification_to_a_domain_below_ours_may_go_to_a_private_network() -> None:
    settings = settings_for(accepted_domains=["*.here.example"])

    assert Reach.ANYWHERE == strangers.reach(a_notification_to("a@sub.here.example"), settings)
    assert Reach.PUBLIC == strangers.reach(a_notification_to("a@here.example"), settings)


def a_notification_to(address: str, connector: str = "in") -> object:
    return replace(an_envelope(1), sender="", message_id=DSN_ID, connector=connector, recipients=(Recipient(address, "NEVER"),))


@pytest.mark.parametrize(
    ("address", "connector", "is_allowed", "expected"),
    [
        ("a@elsewhere.example", "in", False, Reach.PUBLIC),
        ("a@elsewhere.example", "in", True, Reach.BEYOND_THIS_MACHINE),
        ("a@here.example", "in", False, Reach.ANYWHERE),
        ("a@elsewhere.example", "", False, Reach.ANYWHERE),
    ],
)
def test_notifications_for_strangers_stay_out_of_our_networks(address: str, connector: str, is_allowed: bool, expected: Reach) -> None:
    settings = settings_for()
    send = settings.send.model_copy(update={"dsn_to_private_networks": is_allowed})
    settings = Settings.model_validate(dict(settings) | {"send": send})

    assert expected == strangers.reach(a_notification_to(address, connector), settings)


PRIVATE = ["10.0.0.1", "172.16.0.1", "192.168.1.1", "100.64.0.1", "fc00::1", "fd12::1", "fec0::1", "::ffff:10.0.0.1", "2002:a00:1::"]
PRIVATE += ["64:ff9b::a00:1", "64:ff9b:1::a00:1", "::ffff:0:a00:1"]
NEAR = ["127.0.0.1", "127.1.2.3", "0.0.0.0", "0.1.2.3", "169.254.169.254", "224.0.0.1", "255.255.255.255", "240.0.0.1"]
NEAR += ["::1", "::", "fe80::1", "ff02::1", "::ffff:127.0.0.1", "::ffff:0.0.0.0", "::127.0.0.1", "64:ff9b::7f00:1", "2002:7f00:1::1"]
NEAR += ["::ffff:0:7f00:1"]


@pytest.mark.parametrize("address", PRIVATE)
def test_private_networks_are_out_of_reach_by_setting(address: str) -> None:
    host = HostPort(address)

    assert [False, False, True] == [is_out_of_reach(host, reach) for reach in Reach]


@pytest.mark.parametrize("address", NEAR)
def test_this_machine_and_its_link_are_always_out_of_reach(address: str) -> None:
    host = HostPort(address)

    assert [False, True, True] == [is_out_of_reach(host, reach) for reach in Reach]


@pytest.mark.parametrize("address", ["8.8.8.8", "2600::1", "::ffff:8.8.8.8", "64:ff9b::808:808", "::ffff:0:808:808"])
def test_the_internet_is_within_reach(address: str) -> None:
    assert not is_out_of_reach(HostPort(address), Reach.PUBLIC)


def test_a_domain_gets_few_notifications_at_once_and_then_one_by_one() -> None:
    rate = strangers.DsnRate()

    assert strangers.DSNS_AT_ONCE == sum(rate.takes("victim.example", 100.0) for _ in range(500))
    assert rate.takes("other.example", 100.0)
    assert [False, True, False] == [rate.takes("victim.example", at) for at in (102.0, 103.1, 103.2)]


def test_names_below_one_domain_get_ten_times_that_together() -> None:
    rate = strangers.DsnRate()

    assert 10 * strangers.DSNS_AT_ONCE == sum(rate.takes(f"{number}.of.victim.example", 100.0) for number in range(1000))
    assert not rate.takes("victim.example", 100.0)
    assert rate.takes("other.example", 100.0)
    assert [False, True, False] == [rate.takes("new.victim.example", at) for at in (100.2, 100.31, 100.32)]


@pytest.mark.parametrize("literal", ["[192.0.2.{}]", "[ipv6:2001:db8::{:x}]", "[ipv6:::ffff:192.0.2.{}]"])
def test_addresses_of_one_network_get_ten_times_that_together(literal: str) -> None:
    rate = strangers.DsnRate()

    assert 10 * strangers.DSNS_AT_ONCE == sum(rate.takes(literal.format(number % 250), 100.0) for number in range(5000))
    assert rate.takes("[203.1.2.3]", 100.0)
    assert rate.takes("[ipv6:2001:db8:1::1]", 100.0)


def test_domains_that_were_forgotten_cost_no_memory() -> None:
    rate = strangers.DsnRate()
    for number in range(strangers.DOMAINS_MAX + 100):
        rate.takes(f"{number}.example", 1.0)

    assert strangers.DOMAINS_MAX == len(rate._free_at)


@pytest.mark.parametrize(("flooded", "is_told"), [("n{}.corp.co.uk", True), ("n{}.other.example", True), ("n{}.shop.co.uk", False)])
def test_names_below_one_owner_share_a_rate_and_those_below_a_country_do_not(flooded: str, is_told: bool) -> None:
    rate = strangers.DsnRate()
    for number in range(1_000):
        rate.takes(flooded.format(number), 0.0)

    assert is_told == rate.takes("mail.shop.co.uk", 0.0)
