"""Who may relay where, as plain values."""

import pytest

from shadowrelay.model.client_address import client_ip
from shadowrelay.model.receive_settings import ReceiveConnector
from shadowrelay.model.settings import Route
from shadowrelay.smtp.limits import Rights, postmaster_homes
from tests.kit.receiving import settings_for


def a_connector(**settings: object) -> ReceiveConnector:
    return settings_for().receive_connectors[0].model_copy(update=settings)


@pytest.mark.parametrize(
    ("recipient", "expected"),
    [
        ("a@here.example", True),
        ("A@HERE.example", True),
        ("a@sub.here.example", False),
        ("a@xhere.example", False),
        ("a@sub.wild.example", True),
        ("a@deep.sub.wild.example", True),
        ("a@wild.example", False),
        ("a@notwild.example", False),
        ("a@bücher.example", True),
        ("a@xn--bcher-kva.example", True),
        ('"b@here.example"@elsewhere.example', False),
        ("a@[192.0.2.1]", False),
    ],
)
def test_a_recipient_is_accepted_by_its_domain_in_any_equal_form(recipient: str, expected: bool) -> None:
    rights = Rights(a_connector(accepted_domains=("here.example", "*.wild.example", "bücher.example")))

    assert expected == rights.accepts(recipient)


def test_without_accepted_domains_nobody_is_accepted() -> None:
    rights = Rights(a_connector(accepted_domains=()))

    assert [False, False] == [rights.accepts(recipient) for recipient in ("a@here.example", "Postmaster")]


@pytest.mark.parametrize(
    ("domains", "patterns", "expected"),
    [
        ((), (), ("", "")),
        ((), ("*",), ("", "a.example")),
        ((), ("*@*",), ("", "a.example")),
        ((), ("*@elsewhere.example", "*"), ("", "a.example")),
        ((), ("postmaster@a.example",), ("a.example", "a.example")),
        ((), ("*.example",), ("a.example", "a.example")),
        (("here.example",), (), ("here.example", "here.example")),
        (("*.wild.example", "here.example"), ("*",), ("here.example", "here.example")),
        (("here.example", "a.example"), (), ("a.example", "a.example")),
        (("*.wild.example",), (), ("", "")),
    ],
)
def test_a_bare_postmaster_lives_where_his_mail_can_be_delivered(
    domains: tuple[str, ...], patterns: tuple[str, ...], expected: tuple[str, str]
) -> None:
    connector = a_connector(accepted_domains=domains)
    routes = tuple(Route.model_validate({"recipients": [pattern], "next_hop": "127.0.0.1:9"}) for pattern in patterns)

    assert expected == postmaster_homes(Rights(connector), connector, "a.example", routes)


@pytest.mark.parametrize(
    ("domains", "patterns", "expected"),
    [
        (("here.example", "a.example"), (), ("", "corp.example")),
        (("here.example", "corp.example"), (), ("corp.example", "corp.example")),
        ((), ("*@corp.example",), ("corp.example", "corp.example")),
        ((), ("*",), ("", "corp.example")),
    ],
)
def test_a_default_domain_is_that_of_strangers_too_where_its_mail_can_be_delivered(
    domains: tuple[str, ...], patterns: tuple[str, ...], expected: tuple[str, str]
) -> None:
    connector = a_connector(accepted_domains=domains, default_domain="corp.example")
    routes = tuple(Route.model_validate({"recipients": [pattern], "next_hop": "127.0.0.1:9"}) for pattern in patterns)

    assert expected == postmaster_homes(Rights(connector), connector, "a.example", routes)


@pytest.mark.parametrize(("pattern", "expected"), [("*.example", ("a.example", "a.example")), ("*", ("", "a.example"))])
def test_a_route_that_has_only_a_site_is_one(pattern: str, expected: tuple[str, str]) -> None:
    connector = a_connector(accepted_domains=())
    routes = (Route.model_validate({"recipients": [pattern], "site": "dublin"}),)

    assert expected == postmaster_homes(Rights(connector), connector, "a.example", routes)


@pytest.mark.parametrize(
    ("address", "expected"),
    [("10.1.2.3", True), ("11.1.2.3", False), ("2001:db8::5", True), ("2001:db9::5", False), ("", False), ("nonsense", False)],
)
def test_relaying_is_granted_by_address(address: str, expected: bool) -> None:
    connector = settings_for(relay_from=["10.0.0.0/8", "2001:db8::/32"]).receive_connectors[0]

    assert expected == Rights(connector).may_relay(address)


def test_without_relay_from_nobody_relays() -> None:
    assert not Rights(a_connector()).may_relay("127.0.0.1")


@pytest.mark.parametrize(
    ("peername", "expected"),
    [
        (("192.0.2.1", 1), "192.0.2.1"),
        (("::ffff:192.0.2.1", 1, 0, 0), "192.0.2.1"),
        (("fe80::1%eth0", 1, 0, 2), "fe80::1"),
        ("/run/socket", ""),
        (None, ""),
    ],
)
def test_a_clients_address_is_read_from_any_peername(peername: object, expected: str) -> None:
    assert expected == client_ip(peername)
