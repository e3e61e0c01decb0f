"""Settings that should be the same on all nodes: what is told, and what differs."""

from datetime import timedelta
from typing import Any

import pytest

from shadowrelay.model.ids import BoundaryName, DatabaseId, ServerName
from shadowrelay.model.peers import PeerIdentity
from shadowrelay.model.settings import Transport
from shadowrelay.model.values import replace
from shadowrelay.pipeline.common_settings import COMMON, common_settings, differences


def told(span: timedelta = timedelta(hours=3), **settings: Any) -> PeerIdentity:
    """By a peer with these settings."""
    common = common_settings(Transport.model_validate(settings))
    return PeerIdentity(ServerName("b"), BoundaryName("default"), DatabaseId("d"), 1, 0, 0, span, common=common)


def test_each_setting_is_told_by_its_name() -> None:
    assert COMMON == tuple(name for name, _ in common_settings(Transport()))
    assert ("safety_net_hold_time", "172800") in common_settings(Transport())


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("shadow_redundancy_enabled", False, ("true", "false")),
        ("reject_message_on_shadow_failure", True, ("false", "true")),
        ("shadow_heartbeat_frequency", "90s", ("2m", "90s")),
        ("shadow_message_auto_discard_interval", "1d", ("2d", "1d")),
        ("safety_net_hold_time", "36h", ("2d", "36h")),
        ("message_expiration_timeout", "0.5d", ("2d", "12h")),
    ],
)
def test_a_setting_that_differs_is_named_with_both_values(name: str, value: Any, expected: tuple[str, str]) -> None:
    assert {} == differences(Transport(), told())
    assert {name: expected} == differences(Transport(), told(**{name: value}))


def test_a_span_that_differs_is_one_of_them() -> None:
    assert {"shadow_resubmit_time_span": ("3h", "1h")} == differences(Transport(), told(timedelta(hours=1)))


def test_what_a_peer_of_another_version_does_not_say_or_says_otherwise_does_not_mislead() -> None:
    older = told()
    newer = PeerIdentity(*[getattr(older, name) for name in ("server", "boundary", "database")], 1, 0, 0, timedelta(hours=3))
    newer_said = PeerIdentity(newer.server, newer.boundary, newer.database, 1, 0, 0, newer.span, common=(("colour", "blue"),))
    strange = PeerIdentity(newer.server, newer.boundary, newer.database, 1, 0, 0, newer.span, common=(("safety_net_hold_time", "never"),))

    assert [{}, {}] == [differences(Transport(), each) for each in (newer, newer_said)]
    assert {"safety_net_hold_time": ("2d", "never")} == differences(Transport(), strange)


def test_a_peer_that_has_no_login_or_another_one_differs_and_one_that_says_nothing_does_not() -> None:
    here = {"routes_tls": "a" * 16, "routes_auth": "b" * 10}
    assert here.items() <= dict(common_settings(Transport(), here)).items()

    without = replace(told(), common=common_settings(Transport(), {"routes_tls": "a" * 16, "routes_auth": "none"}))
    assert {"routes_auth": ("b" * 10, "none")} == differences(Transport(), without, here)
    assert {} == differences(Transport(), told(), here)
