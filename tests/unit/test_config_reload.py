"""What SIGHUP changes, and what waits for a restart: kept as it runs, and named."""

import re
from typing import Any

import pytest

from shadowrelay.model.settings import Admin, AdminRole, Send, Settings, Tracking, Transport
from shadowrelay.settings.reload import FIXED_KEYS, FIXED_SEND, FIXED_TABLES, FIXED_TRANSPORT, adopted, reason
from tests.kit.consoles import HASHES
from tests.tidy.house import ROOT

READ_AT_THE_START = (
    "shadowrelay/node/node.py",
    "shadowrelay/node/connectors.py",
    "shadowrelay/smtp/listener.py",
    "shadowrelay/tracking/shipper.py",
)
RUNNING: dict[str, Any] = {
    "server": {"name": "mx1.east.example", "site": "east"},
    "receive_connectors": [{"name": "inbound", "listen": "127.0.0.1:2525"}, {"name": "inside", "listen": "127.0.0.1:2526"}],
    "peers": [{"name": "mx9.west.example", "site": "west", "address": "192.0.2.2:2525"}],
}
PEER = {"name": "mx9.west.example", "site": "west", "address": "192.0.2.2:2525"}
OTHER = {
    "max_outbound_connections": 7,  # of the keys that are no durations
    "shadow_redundancy_enabled": False,
    "shadow_heartbeat_retry_count": 7,
    "concurrency_per_destination": 7,
    "chunking_enabled": False,
    "eight_bit_without_8bitmime": False,
    "mta_sts": True,
    "source_ip_address": ["127.0.0.2"],
}


def settings(**tables: object) -> Settings:
    return Settings.model_validate({**RUNNING, **tables})


@pytest.mark.parametrize("key", [*(f"transport.{name}" for name in FIXED_TRANSPORT), *(f"send.{name}" for name in FIXED_SEND)])
def test_a_key_that_parts_were_made_with_is_kept_and_named(key: str) -> None:
    table, name = key.split(".")
    running = settings()
    in_force, needs_restart = adopted(running, settings(**{table: {name: OTHER.get(name, "77m")}}))

    assert [key] == needs_restart
    assert running == in_force


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("server", {"server": {"name": "mx2.east.example", "site": "east"}}),
        ("shipping", {"shipping": {"interval": "1m"}}),
        ("tracking.directory", {"tracking": {"directory": "/elsewhere"}}),
        ("admin.token_file", {"admin": {"token_file": "/elsewhere"}}),
        ("peers[0].boundary", {"peers": [{**PEER, "boundary": "other"}]}),
        ("peers[0].send_xshadow", {"peers": [{**PEER, "send_xshadow": False}]}),
    ],
)
def test_what_parts_were_made_with_is_kept_and_named_with_the_reason(name: str, change: dict[str, object]) -> None:
    in_force, needs_restart = adopted(settings(), settings(**change))

    assert [name] == needs_restart
    assert settings() == in_force
    assert reason(name)


@pytest.mark.parametrize(
    ("before", "after", "in_force", "waits"),
    [
        (("operator", False), ("viewer", False), ("viewer", False), False),
        (("operator", False), ("viewer", True), ("viewer", True), False),  # an operator sees them, too
        (("viewer", True), ("viewer", False), ("viewer", False), False),
        (("viewer", False), ("operator", False), ("viewer", False), True),
        (("viewer", False), ("viewer", True), ("viewer", False), True),
        (("administrator", False), ("auditor", False), ("auditor", False), False),
    ],
)
def test_a_lesser_role_counts_at_once_and_a_greater_one_waits(
    before: tuple[str, bool], after: tuple[str, bool], in_force: tuple[str, bool], waits: bool
) -> None:
    def people(role: str, sees_messages: bool) -> Settings:
        return settings(
            admin={"users": [{"name": "kim", "role": role, "sees_messages": sees_messages, "token_hash": HASHES[AdminRole.VIEWER]}]}
        )

    found, needs_restart = adopted(people(*before), people(*after))
    (user,) = found.admin.users

    assert (in_force, ["admin.users"] * waits) == ((user.role.value, user.sees_messages), needs_restart)


def test_everything_else_is_followed_at_once() -> None:
    connectors = [{**RUNNING["receive_connectors"][0], "relay_from": ["10.0.0.0/8"], "max_sessions": 7}, RUNNING["receive_connectors"][1]]
    found = settings(
        transport={"reject_message_on_shadow_failure": True, "discard_poll_interval": "2s", "delivery_without_lease": "defer"},
        send={"message_retry_interval": "1m"},
        back_pressure={"submission_queue": {"low_to_medium": 7, "medium_to_low": 3}},
        routes=[{"recipients": ["*"], "next_hop": "mail.example"}],
        receive_connectors=connectors,
        peers=[{**PEER, "address": "192.0.2.9:2525", "site": "south", "admin": "https://192.0.2.9:8026"}, {**PEER, "name": "mx3.example"}],
        dns={"nameservers": ["192.0.2.53"]},
        tracking={"max_age": "1d", "max_directory_size": "2GB", "message_subject_logging_enabled": False},
        admin={"listen": "127.0.0.1:8125"},
        sites=[{"name": "east", "hub_site_enabled": True}],
    )

    assert (found, []) == adopted(settings(), found)


@pytest.mark.parametrize(
    "connectors",
    [
        [{**RUNNING["receive_connectors"][0], "listen": "127.0.0.1:25", "reuse_port": True, "accept_xshadow": False}],
        [RUNNING["receive_connectors"][1], {"name": "new", "listen": "127.0.0.1:2525"}],
    ],
    ids=["another address, and one less", "one more that has the address of one that goes"],
)
def test_connectors_that_come_move_and_go_are_followed(connectors: list[dict[str, object]]) -> None:
    found = settings(receive_connectors=connectors)

    assert (found, []) == adopted(settings(), found)


def test_every_key_that_is_read_while_a_node_is_put_together_is_kept() -> None:
    texts = [(ROOT / name).read_text(encoding="utf-8") for name in READ_AT_THE_START]
    read = {match for text in texts for match in re.findall(r"settings\.(\w+)\.(\w+)", text)}
    kept = {(table, name) for table, names in FIXED_KEYS.items() for name in names}
    followed = {
        ("admin", "listen"),
        ("admin", "tls_listen"),
        ("dns", "nameservers"),
        *(("tracking", name) for name in Tracking.model_fields),
    }

    assert len(read) > 10
    assert set() == {(table, name) for table, name in read if table not in FIXED_TABLES} - kept - followed
    tables = {"transport": Transport, "send": Send, "tracking": Tracking, "admin": Admin}
    assert set() == kept - {(table, name) for table, fields in tables.items() for name in fields.model_fields}
