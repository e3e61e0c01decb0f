"""The TLS and login of a route in the configuration: how it is written, what contradicts itself, which files cannot be used."""

from collections.abc import Callable
from pathlib import Path

import pytest
import trustme

from shadowrelay.model.protection import Protection, TlsMode, TlsVersion
from shadowrelay.model.replies import ConfigurationError
from shadowrelay.model.routing import HostPort
from shadowrelay.model.setting_texts import format_next_hop, parse_next_hop
from shadowrelay.model.settings import Route
from shadowrelay.rules.router import Router
from shadowrelay.settings.configuration import effective, load

Write = Callable[[str], Path]
HEAD = '[server]\nname = "mx1.east.example"\nsite = "east"\n\n[[routes]]\nrecipients = ["*@corp.example"]\n'


@pytest.fixture
def write(tmp_path: Path) -> Write:
    authority = trustme.CA()
    own = authority.issue_cert("mx1.east.example")
    authority.cert_pem.write_to_path(tmp_path / "authority.pem")
    own.cert_chain_pems[0].write_to_path(tmp_path / "client.pem")
    own.private_key_pem.write_to_path(tmp_path / "client.key")

    def _write(text: str) -> Path:
        path = tmp_path / "node.toml"
        path.write_text(f"{HEAD}{text}\n", encoding="utf-8")
        return path

    return _write


def problems_of(path: Path) -> str:
    with pytest.raises(ConfigurationError) as caught:
        load(path, {})
    return str(caught.value)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("mailstore.example", HostPort("mailstore.example", 25)),
        ("smtps://relay.example", HostPort("relay.example", 465, "smtps")),
        ("SMTPS://relay.example:1465", HostPort("relay.example", 1465, "smtps")),
        ("smtps://[::1]:465", HostPort("::1", 465, "smtps")),
    ],
)
def test_a_next_hop_is_read_as_it_is_written(text: str, expected: HostPort) -> None:
    assert expected == parse_next_hop(text)
    assert expected == parse_next_hop(format_next_hop(expected))


@pytest.mark.parametrize("text", ["http://relay.example:465", "smtps://", "://relay.example", "smtps://a b:1"])
def test_a_next_hop_with_a_strange_scheme_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="write"):
        parse_next_hop(text)


def test_paths_of_a_route_are_relative_to_the_file_and_shown_as_the_other_settings(write: Write, tmp_path: Path) -> None:
    loaded = load(write('next_hop = "smtps://relay.example"\ntls = "verified"\ntls_authority = "authority.pem"'), {})
    shown = dict(effective(loaded))

    assert Protection(TlsMode.VERIFIED, (), tmp_path / "authority.pem") == loaded.settings.routes[0].protection
    assert (["smtps://relay.example:465"], "verified") == (shown["routes[0].next_hop"], shown["routes[0].tls"])


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('next_hop = "smtps://a.example"\ntls = "none"', 'routes[0].tls: "none" contradicts smtps://'),
        (
            'next_hop = "a.example"\ntls = "required"\ntls_names = ["b.example"]',
            'routes[0].tls_names: nobody compares it with tls = "required"',
        ),
        ('next_hop = "a.example"\ntls_authority = "authority.pem"', "routes[0].tls_authority: nobody compares it"),
        ('next_hop = "a.example"\ntls = "verified"\ntls_authority = "gone.pem"', "tls_authority: "),
        ('next_hop = "a.example"\ntls = "verified"\ntls_authority = "client.key"', "client.key cannot be used"),
        ('next_hop = "a.example"\ntls_certificate = "client.pem"', "routes[0].tls_key: is missing"),
        ('next_hop = "a.example"\ntls_key = "client.key"', "routes[0].tls_certificate: is missing"),
        ('next_hop = "a.example"\ntls_certificate = "authority.pem"\ntls_key = "client.key"', "tls_certificate: "),
        ('site = "east"\ntls = "verified"', "routes[0].tls: has no effect without next_hop"),
        ('next_hop = "a.example"\ntls_minimum_version = "1.1"', "write one of '1.2' or '1.3'"),
        (
            'next_hop = "b.example:2525"\ntls = "verified"\n[[peers]]\nname = "b.example"\nsite = "west"\naddress = "b.example:2525"',
            "routes[0].tls: a next_hop is a peer",
        ),
    ],
)
def test_what_contradicts_itself_is_an_error_that_names_key_and_remedy(write: Write, text: str, expected: str) -> None:
    assert expected in problems_of(write(text))


def test_a_route_that_sets_nothing_has_no_protection_and_one_that_does_has_a_queue_of_its_own() -> None:
    plain, other = (Route(recipients=(one,), next_hop=(HostPort("a.example"),)) for one in ("*@a.example", "*@b.example"))
    secure = Route(recipients=("*@c.example",), next_hop=(HostPort("a.example"),), tls=TlsMode.VERIFIED)
    newer = secure.model_copy(update={"recipients": ("*@d.example",)})
    router = Router((plain, other, secure, newer))

    found = [router.destination(f"x@{one}.example") for one in "abcd"]

    assert ["a.example:25", "a.example:25", "a.example:25#2", "a.example:25#2"] == [one.key for one in found]
    assert [None, None, Protection(TlsMode.VERIFIED), Protection(TlsMode.VERIFIED)] == [one.protection for one in found]
    assert TlsVersion.TLS_1_2 == Protection().minimum_version
