"""What SIGHUP changes, and what waits for a restart: kept as it runs, and named."""

import re
from typing import Any

import pytest

from shadowrelay.model.settings import Send, Settings, Transport
from shadowrelay.settings.reload import FIXED_SEND, FIXED_TABLES, FIXED_TRANSPORT, adopted
from tests.tidy.house import ROOT

READ_AT_THE_START = ("shadowrelay/node.py", "shadowrelay/smtp/listener.py", "shadowrelay/tracking/shipper.py")
RUNNING: dict[str, Any] = {
    "server": {"name": "mx1.east.example", "site": "east"},
    "receive_connectors": [{"name": "inbound", "listen": "127.0.0.1:2525"}, {"name": "inside", "listen": "127.0.0.1:2526"}],
}
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


@pytest.mark.parametrize("table", [name for name in FIXED_TABLES if name in ("tracking", "shipping", "admin", "dns", "server", "peers")])
def test_a_table_that_parts_were_made_with_is_kept_and_named(table: str) -> None:
    changes: dict[str, object] = {
        "server": {"name": "mx2.east.example", "site": "east"},
        "peers": [{"name": "mx2.east.example", "site": "east", "address": "127.0.0.1:1"}],
        "tracking": {"max_age": "1d"},
        "shipping": {"interval": "1m"},
        "admin": {"listen": "127.0.0.1:1"},
        "dns": {"nameservers": ["127.0.0.1"]},
    }
    in_force, needs_restart = adopted(settings(), settings(**{table: changes[table]}))

    assert [table] == needs_restart
    assert settings() == in_force


def test_everything_else_is_followed_at_once() -> None:
    connectors = [{**RUNNING["receive_connectors"][0], "relay_from": ["10.0.0.0/8"], "max_sessions": 7}, RUNNING["receive_connectors"][1]]
    found = settings(
        transport={"reject_message_on_shadow_failure": True, "discard_poll_interval": "2s", "delivery_without_lease": "defer"},
        send={"message_retry_interval": "1m"},
        back_pressure={"submission_queue": {"low_to_medium": 7, "medium_to_low": 3}},
        routes=[{"recipients": ["*"], "next_hop": "mail.example"}],
        receive_connectors=connectors,
    )

    assert (found, []) == adopted(settings(), found)


def test_a_connector_keeps_its_address_and_follows_in_the_rest() -> None:
    moved = [RUNNING["receive_connectors"][1], {**RUNNING["receive_connectors"][0], "listen": "127.0.0.1:25", "max_sessions": 7}]
    in_force, needs_restart = adopted(settings(), settings(receive_connectors=moved))

    assert ["receive_connectors[1].listen"] == needs_restart
    assert [("inbound", 2525, 7), ("inside", 2526, 5000)] == [
        (connector.name, connector.listen.port, connector.max_sessions) for connector in in_force.receive_connectors
    ]


def test_connectors_that_come_or_go_wait_for_a_restart() -> None:
    other = [RUNNING["receive_connectors"][0], {"name": "new", "listen": "127.0.0.1:2527"}]
    in_force, needs_restart = adopted(settings(), settings(receive_connectors=other))

    assert ["receive_connectors"] == needs_restart
    assert settings() == in_force


def test_every_key_that_is_read_while_a_node_is_put_together_is_kept() -> None:
    texts = [(ROOT / name).read_text(encoding="utf-8") for name in READ_AT_THE_START]
    read = {match for text in texts for match in re.findall(r"settings\.(\w+)\.(\w+)", text)}
    kept = {("transport", name) for name in FIXED_TRANSPORT} | {("send", name) for name in FIXED_SEND}

    assert len(read) > 10
    assert set() == {(table, name) for table, name in read if table not in FIXED_TABLES} - kept
    assert set() == kept - {(table, name) for table, fields in (("transport", Transport), ("send", Send)) for name in fields.model_fields}
