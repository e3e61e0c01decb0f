from datetime import timedelta
from ipaddress import ip_network
from typing import Any

import pytest
from pydantic import ValidationError

from shadowrelay.model.back_pressure_settings import BackPressure, Transitions
from shadowrelay.model.ids import BoundaryName, ServerName, SiteName
from shadowrelay.model.receive_settings import ReceiveConnector
from shadowrelay.model.routing import HostPort
from shadowrelay.model.settings import Admin, Dns, Peer, Preference, Route, Send, Server, Settings, Tls, Tracking, Transport, WithoutLease
from shadowrelay.settings import consistency

MINUTE = timedelta(minutes=1)


def settings_with(**tables: Any) -> Settings:
    return Settings.model_validate({"server": {"name": "mx1.east.example", "site": "east"}, **tables})


def a_peer(name: str = "mx1.west.example", **keys: Any) -> dict[str, Any]:
    return {"name": name, "site": "west", "address": f"{name}:2525", **keys}


def test_the_defaults_are_those_of_the_design() -> None:
    transport = settings_with().transport

    assert (True, False, 1, Preference.PREFER_REMOTE, 4, 2) == (
        transport.shadow_redundancy_enabled,
        transport.reject_message_on_shadow_failure,
        transport.shadow_copies,
        transport.shadow_message_preference_setting,
        transport.max_retries_for_remote_site_shadow,
        transport.max_retries_for_local_site_shadow,
    )
    assert (2 * MINUTE, 180 * MINUTE, timedelta(days=2), timedelta(days=2), timedelta(days=2), 60 * MINUTE, 15 * MINUTE) == (
        transport.shadow_heartbeat_frequency,
        transport.shadow_resubmit_time_span,
        transport.shadow_message_auto_discard_interval,
        transport.safety_net_hold_time,
        transport.message_expiration_timeout,
        transport.duplicate_detection_window,
        transport.duplicate_cleanup_interval,
    )
    assert (timedelta(seconds=5), timedelta(seconds=1), WithoutLease.DELIVER) == (
        transport.shadow_timeout,
        transport.discard_poll_interval,
        transport.delivery_without_lease,
    )


def test_the_heartbeat_is_exchanges() -> None:
    """Of 2013 for copies; of 2010 after its service pack for what was relayed by TRACK. Source: seed-000, msp-tc"""
    transport = settings_with().transport

    assert (2 * MINUTE, 15 * MINUTE, 12) == (
        transport.shadow_heartbeat_frequency,
        transport.shadow_heartbeat_timeout_interval,
        transport.shadow_heartbeat_retry_count,
    )


def test_both_rights_to_xshadow_are_granted_by_default() -> None:
    """Source: seed-003"""
    connector = ReceiveConnector(name="in", listen=HostPort("127.0.0.1", 0))

    assert (True, True) == (connector.accept_xshadow, settings_with(peers=[a_peer()]).peers[0].send_xshadow)


def test_the_retry_ladder_is_exchanges() -> None:
    send = settings_with().send

    assert (4, MINUTE, 6, 5 * MINUTE, 10 * MINUTE, 15 * MINUTE, 240 * MINUTE, 10 * MINUTE, MINUTE, 20) == (
        send.queue_glitch_retry_count,
        send.queue_glitch_retry_interval,
        send.transient_failure_retry_count,
        send.transient_failure_retry_interval,
        send.outbound_connection_failure_retry_interval,
        send.message_retry_interval,
        send.delay_notification_timeout,
        send.connection_inactivity_timeout,
        send.peer_connection_inactivity_timeout,
        send.concurrency_per_destination,
    )


@pytest.mark.parametrize(
    ("role", "inactivity", "total"),
    [("transport", 5 * MINUTE, 10 * MINUTE), ("frontend", 5 * MINUTE, 10 * MINUTE), ("edge", MINUTE, 5 * MINUTE)],
)
def test_the_role_decides_the_default_timeouts(role: str, inactivity: timedelta, total: timedelta) -> None:
    connector = ReceiveConnector.model_validate({"name": "in", "listen": "127.0.0.1:0", "role": role})

    assert (inactivity, total) == (connector.connection_inactivity_timeout, connector.connection_timeout)


def test_a_connector_grants_nothing_that_it_does_not_list() -> None:
    connector = ReceiveConnector(name="in", listen=HostPort("127.0.0.1", 0))

    assert ((), (), ()) == (connector.relay_from, connector.accepted_domains, connector.externally_secured)
    assert (36_000_000, 5000, 5000, 200, 5, 60) == (
        connector.max_message_size,
        connector.max_recipients_per_message,
        connector.max_sessions,
        connector.max_sessions_per_address,
        connector.max_protocol_errors,
        connector.max_hop_count,
    )


def test_the_inactivity_timeout_must_be_less_than_the_connection_timeout() -> None:
    with pytest.raises(ValidationError, match="connection_inactivity_timeout must be less than connection_timeout"):
        ReceiveConnector(name="in", listen=HostPort("127.0.0.1", 0), connection_timeout=5 * MINUTE)


@pytest.mark.parametrize(("preference", "remote", "local"), [("PreferRemote", 4, 2), ("RemoteOnly", 4, 2), ("LocalOnly", 0, 2)])
def test_an_unset_retry_count_follows_the_preference(preference: str, remote: int, local: int) -> None:
    transport = Transport.model_validate({"shadow_message_preference_setting": preference})

    assert (remote, local) == (transport.max_retries_for_remote_site_shadow, transport.max_retries_for_local_site_shadow)


def test_only_an_explicit_contradiction_of_preference_and_retry_count_is_an_error() -> None:
    key, local_only = "max_retries_for_remote_site_shadow", {"shadow_message_preference_setting": "LocalOnly"}
    assert 0 == getattr(Transport.model_validate({key: 0, **local_only}), key)
    with pytest.raises(ValidationError, match="remove this key or set it to 0, or choose another shadow_message_preference_setting"):
        Transport.model_validate({key: 3, **local_only})


def test_remote_only_may_have_a_local_count_for_a_boundary_of_one_site() -> None:
    transport = {"shadow_message_preference_setting": "RemoteOnly", "max_retries_for_local_site_shadow": 3}

    assert 3 == Transport.model_validate(transport).max_retries_for_local_site_shadow


RANGES = [
    ("transport", "shadow_copies", 0, 1, 3, 4),
    ("transport", "max_retries_for_remote_site_shadow", -1, 0, 255, 256),
    ("transport", "shadow_heartbeat_frequency", "0.9s", "1s", "1d", "25h"),
    ("transport", "shadow_resubmit_time_span", "0.9s", "1s", "1d", "25h"),
    ("transport", "shadow_message_auto_discard_interval", "4s", "5s", "90d", "91d"),
    ("transport", "message_expiration_timeout", "4s", "5s", "90d", "91d"),
    ("transport", "duplicate_detection_window", "-1s", "0s", "49d", "50d"),
    ("transport", "duplicate_cleanup_interval", "0.9s", "1s", "1d", "25h"),
    ("send", "peer_connection_inactivity_timeout", "9ms", "10ms", "1d", "25h"),
    ("send", "concurrency_per_destination", 0, 1, 1000, 1001),
]


@pytest.mark.parametrize(("table", "key", "below", "least", "most", "above"), RANGES)
def test_a_value_outside_its_range_is_refused(table: str, key: str, below: Any, least: Any, most: Any, above: Any) -> None:
    for value in (least, most):
        settings_with(**{table: {key: value}})
    for value in (below, above):
        with pytest.raises(ValidationError, match=key):
            settings_with(**{table: {key: value}})


@pytest.mark.parametrize(
    "tables",
    [
        {"transprot": {}},
        {"transport": {"shadow_time_out": "5s"}},
        {"receive_connectors": [{"name": "in", "listen": "127.0.0.1:0", "realy_from": []}]},
        {"peers": [a_peer(adress="x")]},
        {"routes": [{"recipients": ["*"], "next_hop": "a:1", "inside": True}]},
    ],
)
def test_an_unknown_key_is_an_error_wherever_it_stands(tables: dict[str, Any]) -> None:
    with pytest.raises(ValidationError, match="Extra inputs are not permitted"):
        settings_with(**tables)


def test_text_becomes_the_values_that_the_program_works_with() -> None:
    settings = settings_with(
        receive_connectors=[{"name": "in", "listen": "[::1]:2525", "relay_from": ["10.0.0.0/8"], "accepted_domains": ["Corp.Example"]}],
        peers=[a_peer("MX1.West.Example")],
        routes=[{"recipients": ["*@corp.example"], "next_hop": ["a.example", "b.example:2525"]}],
        dns={"nameservers": ["127.0.0.1:5353", "192.0.2.1"]},
    )

    connector = settings.receive_connectors[0]
    assert (HostPort("::1", 2525), (ip_network("10.0.0.0/8"),), ("corp.example",)) == (
        connector.listen,
        connector.relay_from,
        connector.accepted_domains,
    )
    assert "mx1.west.example" == settings.peers[0].name
    assert (HostPort("a.example", 25), HostPort("b.example", 2525)) == settings.routes[0].next_hop
    assert (HostPort("127.0.0.1", 5353), HostPort("192.0.2.1", 53)) == settings.dns.nameservers


def test_settings_are_immutable() -> None:
    with pytest.raises(ValidationError, match="frozen"):
        settings_with().transport.shadow_redundancy_enabled = False


def test_code_can_make_settings_without_text() -> None:
    server = Server(name=ServerName("mx1.east.example"), site=SiteName("east"))
    peer = Peer(name=ServerName("b"), site=SiteName("west"), address=HostPort("b", 25), boundary=BoundaryName("other"))
    route = Route(recipients=("*",), next_hop=(HostPort("c", 25),))

    settings = Settings(server=server, peers=(peer,), routes=(route,), transport=Transport(shadow_timeout=timedelta(seconds=2)))

    assert (BoundaryName("default"), timedelta(seconds=2)) == (settings.server.boundary, settings.transport.shadow_timeout)


def test_candidates_for_copies_are_the_peers_of_the_boundary_that_may_get_them() -> None:
    settings = settings_with(peers=[a_peer("a"), a_peer("b", boundary="other"), a_peer("c", send_xshadow=False), a_peer("d", site="east")])

    assert ["a", "d"] == [peer.name for peer in settings.shadow_candidates]


def test_a_boundary_that_nobody_names_spans_all_sites_of_the_peers_that_name_none_either() -> None:
    settings = settings_with(peers=[a_peer("a"), a_peer("b", boundary="other"), a_peer("c", send_xshadow=False), a_peer("d", site="east")])

    assert BoundaryName("default") == settings.server.boundary
    assert {"east": ("d", "mx1.east.example"), "west": ("a", "c")} == settings.servers_by_site


@pytest.mark.parametrize(
    ("tables", "message"),
    [
        ({"peers": [a_peer("MX1.east.example")]}, "peers[0].name: mx1.east.example is this node itself"),
        ({"peers": [a_peer("a"), a_peer("A")]}, "peers[1].name: a is there more than once"),
        ({"receive_connectors": [{"name": "in", "listen": "127.0.0.1:0"}] * 2}, "receive_connectors[1].name: in is there more than once"),
        ({"peers": [a_peer(require_tls=True)]}, "peers[0].require_tls: needs [tls]"),
    ],
)
def test_what_cannot_be_true_at_the_same_time_is_a_problem(tables: dict[str, Any], message: str) -> None:
    (problem,) = consistency.problems(settings_with(**tables))

    assert problem.startswith(message)


def test_what_cannot_be_true_at_the_same_time_in_one_table_is_an_error() -> None:
    with pytest.raises(ValidationError, match="max_file_size must not be larger"):
        settings_with(tracking={"max_file_size": "2GB"})


def test_sessions_to_peers_use_mutual_tls_where_an_authority_is_configured() -> None:
    tls = {"certificate": "a.pem", "key": "a.key"}
    plain = settings_with(peers=[a_peer()], tls=tls)
    mutual = settings_with(peers=[a_peer("a"), a_peer("b", require_tls=False)], tls={**tls, "peer_authority": "p.pem"})

    assert [False] == [plain.peer_requires_tls(peer) for peer in plain.peers]
    assert [True, False] == [mutual.peer_requires_tls(peer) for peer in mutual.peers]


def test_every_setting_says_what_it_is_for() -> None:
    sections = [Server, Transport, ReceiveConnector, Peer, Route, Tls, Send, BackPressure, Transitions, Tracking, Admin, Dns]
    undocumented = [
        f"{section.__name__}.{name}" for section in sections for name, field in section.model_fields.items() if not field.description
    ]

    assert [] == undocumented


def test_a_client_has_no_limits_unless_they_are_set() -> None:
    connector = ReceiveConnector.model_validate({"name": "in", "listen": "127.0.0.1:0", "limits": {"octets_per_minute": "1MB"}})

    assert [0] * 4 == [
        getattr(connector.limits, f"{what}_per_minute") for what in ("connections", "messages", "recipients", "refused_recipients")
    ]
    assert (1_000_000, (), timedelta(0)) == (connector.limits.octets_per_minute, connector.limits.exempt, connector.limits.greeting_delay)


@pytest.mark.parametrize(("key", "value"), [("messages_per_minute", -1), ("messages_per_minute", 1_000_001), ("greeting_delay", "61s")])
def test_limits_for_a_client_have_a_range(key: str, value: object) -> None:
    with pytest.raises(ValidationError):
        ReceiveConnector.model_validate({"name": "in", "listen": "127.0.0.1:0", "limits": {key: value}})


def a_filter(**keys: Any) -> dict[str, Any]:
    return {"name": "rspamd", "address": "http://127.0.0.1", **keys}


def test_a_filter_has_its_defaults() -> None:
    (found,) = settings_with(filters=[a_filter()]).filters

    assert ("rspamd", "http://127.0.0.1:11333", timedelta(seconds=20), "defer", 50) == (
        found.kind,
        found.address,
        found.timeout,
        found.on_failure,
        found.concurrency,
    )


def test_a_milter_is_not_there_yet() -> None:
    with pytest.raises(ValidationError, match='is not there yet; use kind = "rspamd"'):
        settings_with(filters=[a_filter(kind="milter")])
    with pytest.raises(ValidationError, match="rspamd"):
        settings_with(filters=[a_filter(kind="spamassassin")])


@pytest.mark.parametrize("address", ["", "127.0.0.1:11333", "ftp://x", "http://", "http://x:0", "http://x/path", "http://a b"])
def test_a_filter_has_a_url(address: str) -> None:
    with pytest.raises(ValidationError, match="is not the URL of a filter"):
        settings_with(filters=[a_filter(address=address)])


def test_a_connector_names_filters_that_there_are() -> None:
    def problems(filters: list[str]) -> list[str]:
        connector = {"name": "in", "listen": "127.0.0.1:0", "filters": filters}
        return list(consistency.problems(settings_with(receive_connectors=[connector], filters=[a_filter()])))

    assert [] == problems(["rspamd"])
    assert ["receive_connectors[0].filters[0]: there is no filter spam; write one of these: rspamd"] == problems(["spam"])
    assert ["receive_connectors[0].filters[1]: rspamd is there more than once; keep one"] == problems(["rspamd", "rspamd"])
