import json
import os
import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import trustme

from shadowrelay.model.replies import ConfigurationError
from shadowrelay.model.routing import HostPort
from shadowrelay.model.settings import Settings, Transport
from shadowrelay.settings.configuration import LoadedSettings, ValueSource, address_and_rights, effective, example, load, warnings

SERVER = '[server]\nname = "mx1.east.example"\nsite = "east"\n'
CONNECTOR = (
    '[[receive_connectors]]\nname = "in"\nlisten = "127.0.0.1:2525"\nrelay_from = ["127.0.0.0/8"]\nexternally_secured = ["127.0.0.0/8"]\n'
)
PEER = '[[peers]]\nname = "mx1.west.example"\nsite = "west"\naddress = "mx1.west.example:2525"\n'
NODE = SERVER + CONNECTOR + PEER

Write = Callable[[str], Path]


def relaying(networks: str) -> str:
    """The ordinary node with these in `relay_from`."""
    return NODE.replace('relay_from = ["127.0.0.0/8"]', f"relay_from = {networks}")


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def _write(text: str) -> Path:
        path = tmp_path / "node.toml"
        path.write_text(text, encoding="utf-8")
        return path

    return _write


def problems_of(path: Path, environ: dict[str, str] | None = None) -> list[str]:
    """Without the numbers of lines, which `test_config_at_once.py` has."""
    with pytest.raises(ConfigurationError) as caught:
        load(path, environ or {})
    return [re.sub(rf"^{re.escape(str(path))}:\d+:", f"{path}:", line) for line in str(caught.value).splitlines()]


def warned(text: str, tmp_path: Path) -> str:
    path = tmp_path / "node.toml"
    path.write_text(text, encoding="utf-8")
    return "\n".join(warnings(load(path, {}).settings))


def test_a_file_needs_only_a_name_and_a_site(write: Write) -> None:
    loaded = load(write(SERVER), {})

    assert Settings.model_validate({"server": {"name": "mx1.east.example", "site": "east"}}).transport == loaded.settings.transport


def test_relative_paths_are_relative_to_the_file(write: Write, tmp_path: Path) -> None:
    text = SERVER + 'data_directory = "queue"\n[tracking]\ndirectory = "../tracking"\n[admin]\ntoken_file = "/etc/token"\n'

    settings = load(write(text), {}).settings

    assert (tmp_path / "queue", tmp_path.parent / "tracking", Path("/etc/token")) == (
        settings.server.data_directory,
        settings.tracking.directory,
        settings.admin.token_file,
    )


def test_the_environment_wins_over_the_file_and_the_file_over_the_default(write: Write) -> None:
    text = NODE + '[transport]\nshadow_timeout = "3s"\nshadow_heartbeat_frequency = "1m"\n'

    loaded = load(write(text), {"SHADOWRELAY_TRANSPORT__SHADOW_TIMEOUT": "2s", "SHADOWRELAY_PEERS__0__ADDRESS": "127.0.0.1:9", "HOME": "/"})

    assert (timedelta(seconds=2), timedelta(minutes=1)) == (
        loaded.settings.transport.shadow_timeout,
        loaded.settings.transport.shadow_heartbeat_frequency,
    )
    assert HostPort("127.0.0.1", 9) == loaded.settings.peers[0].address
    keys = ("transport.shadow_timeout", "transport.shadow_heartbeat_frequency", "transport.discard_poll_interval")
    assert [ValueSource.ENVIRONMENT, ValueSource.FILE, ValueSource.DEFAULT] == [loaded.origins[key] for key in keys]
    keys = ("peers[0].address", "peers[0].name", "peers[0].send_xshadow")
    assert [ValueSource.ENVIRONMENT, ValueSource.FILE, ValueSource.DEFAULT] == [loaded.origins[key] for key in keys]


OVERRIDES: list[tuple[str, str, Callable[[Settings], Any], Any]] = [
    ("TRANSPORT__SHADOW_REDUNDANCY_ENABLED", "false", lambda s: s.transport.shadow_redundancy_enabled, False),
    ("SEND__CONCURRENCY_PER_DESTINATION", "7", lambda s: s.send.concurrency_per_destination, 7),
    ("TRACKING__MAX_FILE_SIZE", "5MB", lambda s: s.tracking.max_file_size, 5_000_000),
    ("DNS__NAMESERVERS", '["127.0.0.1:5353"]', lambda s: s.dns.nameservers, (HostPort("127.0.0.1", 5353),)),
    ("SERVER__DATA_DIRECTORY", "/queue", lambda s: s.server.data_directory, Path("/queue")),
    ("PEERS", '[{"name": "b", "site": "5", "address": "b:1"}]', lambda s: [p.site for p in s.peers], ["5"]),
    ("ROUTES", '[{"recipients": ["*"], "next_hop": "c"}]', lambda s: s.routes[0].next_hop, (HostPort("c", 25),)),
    ("RECEIVE_CONNECTORS__0__RELAY_FROM", "[]", lambda s: s.receive_connectors[0].relay_from, ()),
    ("RECEIVE_CONNECTORS__0__MAX_SESSIONS", "3", lambda s: s.receive_connectors[0].max_sessions, 3),
    ("BACK_PRESSURE__SUBMISSION_QUEUE__LOW_TO_MEDIUM", "5000", lambda s: dict(s.back_pressure.submission_queue)["low_to_medium"], 5000),
    ("BACK_PRESSURE__SUBMISSION_QUEUE", '{"low_to_medium": 5000}', lambda s: s.back_pressure.submission_queue.medium_to_low, 2000),
    ("SERVER__SITE", "5", lambda s: s.server.site, "5"),
    ("SHIPPING__TARGET", "s3://bucket/tracking", lambda s: s.shipping.target, "s3://bucket/tracking"),
    ("SHIPPING__OPTIONS", '{"anon": true}', lambda s: s.shipping.options, {"anon": True}),
    ("SHIPPING__OPTIONS__SECRET", "4711", lambda s: s.shipping.options, {"secret": "4711"}),
    ("PEERS__0__REQUIRE_TLS", "false", lambda s: s.peers[0].require_tls, False),
    ("PEERS__0__REQUIRE_TLS", "null", lambda s: s.peers[0].require_tls, None),
    ("ADMIN__LISTEN", "[::1]:8025", lambda s: s.admin.listen, HostPort("::1", 8025)),
    ("send__CONCURRENCY_per_destination", "7", lambda s: s.send.concurrency_per_destination, 7),
]


@pytest.mark.parametrize(("variable", "text", "value_in", "value"), OVERRIDES, ids=[" ".join(case[:2]) for case in OVERRIDES])
def test_every_kind_of_value_can_come_from_the_environment(
    write: Write, variable: str, text: str, value_in: Callable[[Settings], Any], value: Any
) -> None:
    assert value == value_in(load(write(NODE), {f"SHADOWRELAY_{variable}": text}).settings)


def test_a_table_or_list_in_the_environment_replaces_that_of_the_file_and_variables_change_it_further(write: Write) -> None:
    text = (
        NODE
        + '[transport]\nshadow_timeout = "3s"\n[shipping]\noptions = { key = "a", anon = false }\n[tls]\ncertificate = "a"\nkey = "a"\n'
    )
    whole = {
        "SHADOWRELAY_TLS": "null",
        "SHADOWRELAY_TRANSPORT": '{"shadow_heartbeat_frequency": "1m"}',
        "SHADOWRELAY_PEERS": '[{"name": "b", "site": "5", "address": "b:1"}, {"name": "c", "site": "6", "address": "c:1"}]',
        "SHADOWRELAY_SHIPPING__OPTIONS": '{"endpoint_url": "https://x.example"}',
    }
    further = {"SHADOWRELAY_TRANSPORT__DISCARD_POLL_INTERVAL": "2s", "SHADOWRELAY_PEERS__1__ADDRESS": "d:2"}

    loaded = load(write(text), whole | further | {"SHADOWRELAY_SHIPPING__OPTIONS__SECRET": "hunter2"})

    settings = loaded.settings
    expected = Transport(shadow_heartbeat_frequency=timedelta(minutes=1), discard_poll_interval=timedelta(seconds=2))
    assert (None, expected) == (settings.tls, settings.transport)
    assert [HostPort("b", 1), HostPort("d", 2)] == [peer.address for peer in settings.peers]
    assert {"endpoint_url": "https://x.example", "secret": "hunter2"} == settings.shipping.options
    assert {ValueSource.ENVIRONMENT} == {origin for key, origin in loaded.origins.items() if key.startswith(("transport.", "peers["))}


def test_options_come_from_the_environment_where_one_of_them_does(write: Write) -> None:
    loaded = load(write(NODE + '[shipping]\noptions = { key = "a" }\n'), {"SHADOWRELAY_SHIPPING__OPTIONS__SECRET": "b"})

    assert {"key": "a", "secret": "b"} == loaded.settings.shipping.options
    assert ValueSource.ENVIRONMENT == loaded.origins["shipping.options"]


def test_variables_that_name_no_table_are_left_alone(write: Write) -> None:
    assert load(write(NODE), {}).settings == load(write(NODE), {"SHADOWRELAY_TOKEN": "x", "SHADOWRELAY": "x"}).settings


LISTED = SERVER + '[[recipient_sources]]\nname = "corp"\nkind = "file"\nfile = "list"\n'

PROBLEMS = [
    (
        SERVER + '[[recipient_sources]]\nname = "corp"\nkind = "ldap"\n',
        ["{path}: recipient_sources[0].kind: \"ldap\" is unknown; write one of 'file' or 'call-ahead'"],
    ),
    (
        SERVER + '[[recipient_sources]]\nname = "corp"\nkind = "file"\n',
        ["{path}: recipient_sources[0]: kind file needs file; name the file with the addresses"],
    ),
    (
        LISTED.replace('"file"', '"call-ahead"'),
        ["{path}: recipient_sources[0]: file is for kind file; remove it, or write kind = 'file'"],
    ),
    (
        LISTED.replace("file = ", "sessions = 5\nfile = "),
        ["{path}: recipient_sources[0].sessions: 5 is too large; give at most 4"],
    ),
    (
        LISTED + CONNECTOR + 'recipients = ["corp", "staff"]\n',
        [
            "{path}: receive_connectors[0].recipients: no [[recipient_sources]] has the name staff, there are corp; add it",
        ],
    ),
    (
        LISTED + LISTED.removeprefix(SERVER),
        ["{path}: recipient_sources[1].name: corp is there more than once; keep one of each name"],
    ),
    ("[server]\nname = 'a'\n", ["{path}: server.site: is missing; add it"]),
    (SERVER + "sitt = 'x'\n", ["{path}: server.sitt: unknown key; did you mean site?"]),
    (
        "zzz = 1\n" + SERVER,
        [
            "{path}: zzz: unknown key; known here: "
            "server, transport, receive_connectors, recipient_sources, filters, peers, routes, site_links, sites, "
            "tls, send, back_pressure, tracking, shipping, admin, webhooks, dns"
        ],
    ),
    (
        SERVER + "[transport]\nshadow_timeout = 5\n",
        ['{path}: transport.shadow_timeout: 5 is not a duration; write a number and its unit, like "90s", "2m", "3h", "2d" or "250ms"'],
    ),
    (SERVER + "[transport]\nshadow_timeout = '1h'\n", ['{path}: transport.shadow_timeout: "1h" is too large; give at most "5m"']),
    (SERVER + "[send]\nconcurrency_per_destination = 0\n", ["{path}: send.concurrency_per_destination: 0 is too small; give at least 1"]),
    (
        SERVER + "[send]\nconcurrency_per_destination = '1'\n",
        ['{path}: send.concurrency_per_destination: "1" is not a whole number; write it without quotes'],
    ),
    (
        SERVER + "[dns]\nnameservers = ['192.0.2.53', 'ns.example']\n",
        [
            '{path}: dns.nameservers[1]: "ns.example" is not the address of a name server; write an IP address, with a port where it is '
            'not 53, like "192.0.2.53", "127.0.0.1:5353" or "[2001:db8::53]:5353"'
        ],
    ),
    (
        SERVER + "[transport]\nshadow_redundancy_enabled = 'si'\n",
        ['{path}: transport.shadow_redundancy_enabled: "si" is not a truth value; write true or false'],
    ),
    (
        SERVER + "[transport]\nshadow_message_preference_setting = 'Remote'\n",
        [
            '{path}: transport.shadow_message_preference_setting: "Remote" is unknown; '
            "write one of 'PreferRemote', 'RemoteOnly' or 'LocalOnly'"
        ],
    ),
    (
        SERVER + "[transport]\nshadow_message_preference_setting = 'LocalOnly'\nmax_retries_for_remote_site_shadow = 4\n",
        [
            "{path}: transport.max_retries_for_remote_site_shadow: 4 contradicts shadow_message_preference_setting = 'LocalOnly', which "
            "makes no such attempt: remove this key or set it to 0, or choose another shadow_message_preference_setting"
        ],
    ),
    (
        SERVER + CONNECTOR.replace('["127.0.0.0/8"]', '"127.0.0.0/8"', 1),
        [
            '{path}: receive_connectors[0].relay_from: "127.0.0.0/8" is not a list; '
            'write one like ["first", "second"], in the environment as JSON'
        ],
    ),
    (
        SERVER + "[peers]\nname = 'a'\n",
        ["{path}: peers: is not a list of tables; write [[peers]], with two brackets, above each one, in the environment a JSON list"],
    ),
    (SERVER + "[[routes]]\nrecipients = []\nnext_hop = 'a'\n", ["{path}: routes[0].recipients: [] is empty; give at least one"]),
    (
        SERVER + "[shipping]\ntarget = 'collector:hunter2@host/logs'\noptions = { secret = ['hunter2'] }\n",
        [
            '{path}: shipping.target: is neither a URL nor an absolute directory; write one like "s3://bucket/tracking" or "/srv/tracking"',
            "{path}: shipping.options: secret: is neither text, a whole number nor true or false; write it as one of them",
        ],
    ),
    (
        SERVER + "[shipping]\ntarget = 'simplecache::s3://bucket'\ninterval = '2h'\noptions = 5\n",
        [
            '{path}: shipping.target: has "::" in it, which would chain stores; name the one place where the files shall lie',
            '{path}: shipping.interval: is too large; give at most "1h"',
            "{path}: shipping.options: is not a table; "
            'write one like { endpoint_url = "https://store.example" }, in the environment as JSON',
        ],
    ),
    (
        SERVER + "[admin]\ntls_listen = '127.0.0.1:8026'\n",
        ["{path}: admin.tls_listen: needs [tls] with certificate and key; add them or remove it"],
    ),
    (SERVER + "[admin]\ntoken_file = 5\n", ["{path}: admin.token_file: 5 is not text; write it in quotes"]),
    ("admin = 5\n" + SERVER, ["{path}: admin: 5 is not a table; write its keys under [admin]"]),
    (
        "[server",
        [
            "{path}: is not valid TOML: Expected ']' at the end of a table declaration (at end of document); "
            "text needs quotes, tables look like [server]"
        ],
    ),
    (
        "[server]\nname = 'a'\n[admin]\nlisten = 'x'\n",
        [
            "{path}: server.site: is missing; add it",
            '{path}: admin.listen: "x" is not an address; write "host:port", like "mx1.example:25", "127.0.0.1:2525" or "[::1]:25"',
        ],
    ),
]


@pytest.mark.parametrize(("text", "expected"), PROBLEMS, ids=[str(index) for index in range(len(PROBLEMS))])
def test_each_problem_names_file_key_and_remedy(write: Write, text: str, expected: list[str]) -> None:
    path = write(text)

    assert [line.replace("{path}", str(path)) for line in expected] == problems_of(path)


ENVIRONMENT_PROBLEMS = [
    ({"SHADOWRELAY_SEND__NOPE": "1"}, "environment SHADOWRELAY_SEND__NOPE: send.nope: unknown key; known here: queue_glitch_retry_count, "),
    ({"SHADOWRELAY_SENDD__NOPE": "1"}, "environment SHADOWRELAY_SENDD__NOPE: sendd: unknown key; did you mean send?"),
    (
        {"SHADOWRELAY_TRANSPORT__SHADOW_TIMEOUT": "5"},
        'environment SHADOWRELAY_TRANSPORT__SHADOW_TIMEOUT: transport.shadow_timeout: "5" is not a duration; ',
    ),
    (
        {"SHADOWRELAY_PEERS__1__SITE": "x"},
        "environment SHADOWRELAY_PEERS__1__SITE: there is no peers[1] to change: the list in the file has length 1, counted from 0; ",
    ),
    (
        {"SHADOWRELAY_PEERS__SITE": "x"},
        "environment SHADOWRELAY_PEERS__SITE: peers is a list, not a table; count its entries from 0, like SHADOWRELAY_PEERS__0__NAME",
    ),
    ({"SHADOWRELAY_PEERS__0": "{}"}, "environment SHADOWRELAY_PEERS__0: there is no peers[0] to change: "),
    ({"SHADOWRELAY_PEERS": '{"name": "a"}'}, "environment SHADOWRELAY_PEERS: peers: is not a list of tables; write [[peers]]"),
    ({"SHADOWRELAY_DNS": "null"}, "environment SHADOWRELAY_DNS: dns: null is not a table; write its keys under [dns]"),
    ({"SHADOWRELAY_ROUTES": "[{"}, "environment SHADOWRELAY_ROUTES: is not valid JSON at character "),
    ({"SHADOWRELAY_PEERS__0__REQUIRE_TLS": "[{"}, "environment SHADOWRELAY_PEERS__0__REQUIRE_TLS: is not valid JSON at character "),
    ({"SHADOWRELAY_TRANSPORT__SHADOW_TIMEOUT__X": "1"}, "environment SHADOWRELAY_TRANSPORT__SHADOW_TIMEOUT__X: transport.shadow_timeout: "),
]


@pytest.mark.parametrize(("environ", "beginning"), ENVIRONMENT_PROBLEMS, ids=[next(iter(case[0])) for case in ENVIRONMENT_PROBLEMS])
def test_a_problem_of_a_variable_names_the_variable(write: Write, environ: dict[str, str], beginning: str) -> None:
    assert [beginning] == [line[: len(beginning)] for line in problems_of(write(NODE), environ)]


def test_problems_of_variables_and_file_are_named_together(write: Write) -> None:
    environ = {"SHADOWRELAY_ROUTES": "[{", "SHADOWRELAY_PEERS__7__SITE": "x", "SHADOWRELAY_SENDD__NOPE": "1", "SHADOWRELAY_SEND__NOPE": "1"}

    problems = problems_of(write("zzz = 1\n[Server]\n" + NODE), environ)

    places = {"SHADOWRELAY_ROUTES", "SHADOWRELAY_PEERS__7__SITE", "SHADOWRELAY_SENDD__NOPE", "SHADOWRELAY_SEND__NOPE", "zzz", "Server"}
    assert [1] * 6 == [sum(f" {place}: " in line for line in problems) for place in places]
    assert 6 == len(problems)


def test_a_variable_inside_the_value_of_another_is_refused(write: Write) -> None:
    environ = {"SHADOWRELAY_TRANSPORT__SHADOW_TIMEOUT": "2s", "SHADOWRELAY_TLS": "null"}

    problems = problems_of(write(NODE), environ | {"SHADOWRELAY_TRANSPORT__SHADOW_TIMEOUT__X": "1", "SHADOWRELAY_TLS__KEY": "k"})

    assert [
        "environment SHADOWRELAY_TLS__KEY: tls is not a table; remove this variable",
        "environment SHADOWRELAY_TRANSPORT__SHADOW_TIMEOUT__X: transport.shadow_timeout is not a table; remove this variable",
    ] == problems


def test_a_file_may_be_a_pipe() -> None:
    reading, writing = os.pipe()
    os.write(writing, SERVER.encode())
    os.close(writing)

    assert "mx1.east.example" == load(f"/dev/fd/{reading}", {}).settings.server.name
    os.close(reading)


def test_a_file_that_cannot_be_read_is_a_configuration_error(tmp_path: Path) -> None:
    missing = tmp_path / "missing.toml"
    binary = tmp_path / "binary.toml"
    binary.write_bytes(b"\xff\xfe")
    huge = tmp_path / "huge.toml"
    huge.write_bytes(b"#" * (1024 * 1024 + 1))

    assert [f"{missing}: cannot be read (No such file or directory); give an existing file with --config"] == problems_of(missing)
    assert [f"{tmp_path}: cannot be read (Is a directory); give an existing file with --config"] == problems_of(tmp_path)
    assert [f"{binary}: is not UTF-8 text (octet 0); save it as UTF-8"] == problems_of(binary)
    assert [f"{huge}: has more than 1048576 bytes; this is not a configuration of shadowrelay"] == problems_of(huge)


def test_effective_values_are_plain_json_in_the_order_of_the_settings(write: Write) -> None:
    loaded = load(write(NODE), {})

    rows = effective(loaded)

    assert ("server.name", "mx1.east.example") == rows[0]
    assert ("transport.shadow_heartbeat_frequency", "2m") in rows
    assert ("receive_connectors[0].relay_from", ["127.0.0.0/8"]) in rows
    assert ("receive_connectors[0].max_message_size", "36MB") in rows
    assert ("tls", None) in rows
    assert [list(row) for row in rows] == json.loads(json.dumps(rows))
    assert list(loaded.origins) == [key for key, _ in rows]


def test_secrets_of_the_shipping_are_not_among_the_effective_values(write: Write) -> None:
    options = '{ key = "hunter2", endpoint_url = "https://u:hunter2@x.example", username = "bob", sas_token = "hunter2", anon = false }'
    text = f'{NODE}[shipping]\ntarget = "sftp://bob:hun@hunter2@collector.example:22/logs?x=hunter2"\noptions = {options}\n'

    shown = dict(effective(load(write(text), {})))

    assert "sftp://bob:[left out]@collector.example:22/logs?[left out]" == shown["shipping.target"]
    assert {
        "key": "[left out]",
        "endpoint_url": "[left out]",
        "username": "bob",
        "sas_token": "[left out]",
        "anon": False,
    } == shown["shipping.options"]


def test_the_shipped_example_is_the_one_that_the_settings_make() -> None:
    shipped = Path(__file__).parents[2] / "configs" / "example.toml"

    assert example() == shipped.read_text(encoding="utf-8")


def test_the_example_with_every_comment_removed_is_valid_and_says_the_defaults(tmp_path: Path) -> None:
    plain = tmp_path / "plain.toml"
    plain.write_text(example(), encoding="utf-8")
    full = tmp_path / "full.toml"
    everything_set = re.sub(r"(?m)^#(?=\S)", "", example())
    full.write_text(everything_set.replace('tls = "opportunistic"', 'tls = "verified"'), encoding="utf-8")
    authority = trustme.CA()
    certificate = authority.issue_cert("mx1.east.example")
    certificate.cert_chain_pems[0].write_to_path(tmp_path / "node.pem")
    certificate.private_key_pem.write_to_path(tmp_path / "node.key")
    certificate.cert_chain_pems[0].write_to_path(tmp_path / "client.pem")
    certificate.private_key_pem.write_to_path(tmp_path / "client.key")
    certificate.cert_chain_pems[0].write_to_path(tmp_path / "mail.pem")
    certificate.private_key_pem.write_to_path(tmp_path / "mail.key")
    for name in ("peers.pem", "authority.pem"):
        authority.cert_pem.write_to_path(tmp_path / name)
    (tmp_path / "revoked.pem").touch()
    (tmp_path / "secret").write_text("swordfish")
    (tmp_path / "secret").chmod(0o600)

    expected = load(plain, {})
    everything = load(full, {})

    assert (expected.settings.transport, expected.settings.send, expected.settings.tracking) == (
        everything.settings.transport,
        everything.settings.send,
        everything.settings.tracking,
    )
    assert expected.settings.receive_connectors == everything.settings.receive_connectors
    assert {ValueSource.FILE} == {origin for key, origin in everything.origins.items() if ".auth." not in key}


def test_thresholds_of_back_pressure_are_shown_with_the_origin_of_each(write: Write) -> None:
    loaded = load(write(NODE + "[back_pressure]\nused_disk_space = { low_to_medium = 85, high_to_medium = 86 }\n"), {})
    shown = dict(effective(loaded))

    assert [(85, "file"), (99, "default"), (86, "file"), (80, "default")] == [
        (shown[key], loaded.origins[key])
        for key in (f"back_pressure.used_disk_space.{name}" for name in type(loaded.settings.back_pressure.used_disk_space).model_fields)
    ]
    assert {"default"} == {origin for key, origin in loaded.origins.items() if key.startswith("back_pressure.") and "used_disk" not in key}


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("used_disk_space = { low_to_medum = 85 }", "back_pressure.used_disk_space.low_to_medum: unknown key; did you mean low_to_medium?"),
        ("used_disk_space = { low_to_medium = 100 }", "back_pressure.used_disk_space: must be in order"),
        ("used_disk_space = 89", "back_pressure.used_disk_space: 89 is not a table"),
        ('used_disk_space = { low_to_medium = "85" }', 'back_pressure.used_disk_space.low_to_medium: "85" is not a whole number'),
        ("used_disk_space = { medium_to_low = -1 }", "back_pressure.used_disk_space.medium_to_low: -1 is too small; give at least 0"),
        (
            "smtp_max_throttling_delay_interval = '5m'",
            'back_pressure.smtp_max_throttling_delay_interval: "5m" is too large',
        ),
    ],
)
def test_a_wrong_threshold_is_named_with_its_remedy(write: Write, text: str, problem: str) -> None:
    path = write(NODE + f"[back_pressure]\n{text}\n")

    (found,) = problems_of(path)

    assert found.startswith(f"{path}: {problem}")


def with_certificate(tmp_path: Path, name: str, not_after: datetime | None = None) -> str:
    authority = trustme.CA()
    certificate = authority.issue_cert(name, not_after=not_after)
    certificate.cert_chain_pems[0].write_to_path(tmp_path / "node.pem")
    certificate.private_key_pem.write_to_path(tmp_path / "node.key")
    authority.cert_pem.write_to_path(tmp_path / "peers.pem")
    return NODE + '[tls]\ncertificate = "node.pem"\nkey = "node.key"\npeer_authority = "peers.pem"\n'


def test_certificates_are_tried_before_anything_is_opened(write: Write, tmp_path: Path) -> None:
    path = write(with_certificate(tmp_path, "mx1.east.example"))
    assert tmp_path / "node.pem" == getattr(load(path, {}).settings.tls, "certificate", None)

    (tmp_path / "node.key").write_text("no key", encoding="utf-8")
    (tmp_path / "peers.pem").write_text("no certificate", encoding="utf-8")
    problems = problems_of(path)
    assert [True, True] == ["node.key has no private key" in problems[0], "peers.pem has no certificate" in problems[1]]

    (tmp_path / "node.key").unlink()
    problem = "cannot be read (No such file or directory); give an existing PEM file that this user may read"
    assert [
        f"{path}: tls.key: {tmp_path / 'node.key'} {problem}",
        f"{path}: tls.peer_authority: {tmp_path / 'peers.pem'} has no certificate in PEM form; give the authority's PEM file",
    ] == problems_of(path)


def test_a_certificate_about_to_end_is_warned_of(tmp_path: Path) -> None:
    soon = datetime.now(UTC) + timedelta(days=3)

    assert "peers refuse it from then on" in warned(with_certificate(tmp_path, "mx1.east.example", soon), tmp_path)
    assert "" == warned(with_certificate(tmp_path, "mx1.east.example"), tmp_path)


TRANSPORT = NODE + "[transport]\n"
LOCAL_PEER = PEER.replace("west", "east").replace("mx1", "mx2")
WARNINGS = [
    (
        TRANSPORT + "shadow_redundancy_enabled = false\nreject_message_on_shadow_failure = true\n",
        "has no meaning while shadow_redundancy_enabled is false",
    ),
    (
        SERVER + CONNECTOR + "[transport]\nreject_message_on_shadow_failure = true\n",
        "every message will be refused with 451; add [[peers]]",
    ),
    (SERVER + CONNECTOR, "messages are accepted without a copy; add [[peers]]"),
    (NODE + 'boundary = "other"\n', "peer mx1.west.example is of boundary other, this node of default"),
    (NODE + "send_xshadow = false\n", "peer mx1.west.example has send_xshadow = false"),
    (
        SERVER + CONNECTOR + LOCAL_PEER + "[transport]\nshadow_message_preference_setting = 'RemoteOnly'\n",
        "the own site is used whatever the preference says",
    ),
    (
        TRANSPORT + "shadow_message_preference_setting = 'LocalOnly'\n",
        "but no peer stands in site east: messages are accepted without a copy",
    ),
    (TRANSPORT + "max_retries_for_remote_site_shadow = 0\n", "without a copy; raise max_retries_for_remote_site_shadow"),
    (
        SERVER + CONNECTOR + LOCAL_PEER + "[transport]\nmax_retries_for_local_site_shadow = 0\n",
        "without a copy; raise max_retries_for_local_site_shadow",
    ),
    (
        TRANSPORT + "shadow_message_preference_setting = 'RemoteOnly'\nmax_retries_for_local_site_shadow = 3\n",
        "max_retries_for_local_site_shadow has no effect",
    ),
    (TRANSPORT + "shadow_copies = 2\n", "shadow_copies is 2, but only 1 of the peers may get copies: messages have fewer copies"),
    (
        NODE + LOCAL_PEER + "[transport]\nshadow_copies = 2\nshadow_message_preference_setting = 'LocalOnly'\n"
        "reject_message_on_shadow_failure = true\n",
        "only 1 of the peers may get copies: every message will be refused with 451",
    ),
    (TRANSPORT + "shadow_resubmit_time_span = '2m'\n", "one missed heartbeat takes mail over"),
    (TRANSPORT + "shadow_resubmit_time_span = '29m'\n", "with 580 s left for its reply"),
    (TRANSPORT + "discard_poll_interval = '5m'\n", "discard_poll_interval is longer than shadow_heartbeat_frequency"),
    (relaying('["0.0.0.0/0"]'), "this is an open relay"),
    (
        relaying('["0.0.0.0/1", "128.0.0.0/1"]'),
        "of the Internet, in pieces: this is an open relay",
    ),
    (relaying('["64.0.0.0/2", "65.0.0.0/8"]'), "25% of the Internet, in pieces"),
    (relaying('["2000::/4"]'), "50% of the Internet"),
    (relaying('["2a00::/12"]'), "12% of the Internet"),
    (relaying('["2001::/16", "2400::/12", "2600::/12", "2800::/12", "2a00::/12", "2c00::/12"]'), "of the Internet, in pieces: this is"),
    (
        relaying('["::ffff:10.0.0.0/104"]'),
        "clients of IPv4 are known by their address of IPv4; write 10.0.0.0/8",
    ),
    (relaying('["224.0.0.0/4"]'), "these are addresses of groups"),
    (NODE.replace('externally_secured = ["127.0.0.0/8"]', 'externally_secured = ["::/0"]'), "anybody may place and ask for copies"),
    (NODE.replace('name = "in"', 'name = "in"\naccept_xshadow = false'), "externally_secured has no effect"),
    (NODE.replace('externally_secured = ["127.0.0.0/8"]', ""), "no peer can place copies here"),
    (NODE.replace('name = "in"', 'name = "in"\nmax_message_size = 1000'), "max_message_size is below the 64000 bytes"),
    (NODE.replace('name = "in"', 'name = "in"\nmax_recipients_per_message = 99'), "max_recipients_per_message is below the 100"),
    (SERVER + '[[receive_connectors]]\nname = "in"\nlisten = "127.0.0.1:1"\n', "every recipient is refused with 550"),
    (
        SERVER + CONNECTOR.replace("127.0.0.1:2525", "0.0.0.0:25") + 'accepted_domains = ["a.example"]\n',
        "is returned to senders who may be",
    ),
    (LISTED + CONNECTOR + 'recipients = "corp"\n', "recipients has no effect without accepted_domains"),
    (SERVER + PEER, "there is no receive connector"),
    (NODE + '[tracking]\ndirectory = "/var/lib/shadowrelay/log"\n', "tracking.directory is inside server.data_directory"),
    (NODE + '[admin]\nlisten = "0.0.0.0:8025"\n', "the token travels unencrypted"),
    (
        NODE.replace('name = "in"', 'name = "in"\nmax_message_size = "36001kB"'),
        "one message may fill the disk; make it 54001500B",
    ),
    (TRANSPORT + "shadow_redundancy_promotion = true\n", "has no effect, because no receive connector delays its 250"),
    (
        (SERVER + CONNECTOR).replace('name = "in"', 'name = "in"\nredundancy = "previous-hop"')
        + "[transport]\nshadow_redundancy_promotion = true\n",
        "shadow_redundancy_promotion has no effect, because no peer may hold copies",
    ),
    (
        NODE.replace('name = "in"', 'name = "in"\nredundancy = "previous-hop"'),
        "mail of clients there is on this disk only when it is acknowledged by best effort",
    ),
    (NODE + "[back_pressure]\nenable_resource_monitoring = false\n", "mail is accepted until the disk is full"),
    (NODE + '[back_pressure]\nprivate_bytes_limit = "200MB"\n', "ordinary load refuses mail"),
]


@pytest.mark.parametrize(("text", "part"), WARNINGS, ids=[case[1][:40] for case in WARNINGS])
def test_what_is_probably_not_meant_is_warned_of(text: str, part: str, tmp_path: Path) -> None:
    assert part in warned(text, tmp_path)


@pytest.mark.parametrize(
    "text",
    [
        NODE,
        NODE.replace('name = "in"', 'name = "in"\nredundancy = "previous-hop"') + "[transport]\nshadow_redundancy_promotion = true\n",
        NODE + LOCAL_PEER,
        NODE + LOCAL_PEER + "[transport]\nshadow_copies = 2\n",
        NODE + '[admin]\nlisten = "localhost:8025"\n',
    ],
)
def test_an_ordinary_configuration_is_not_warned_of(text: str, tmp_path: Path) -> None:
    assert "" == warned(text, tmp_path)


@pytest.mark.parametrize("name", ["east1", "east2", "west1"])
def test_the_shipped_nodes_know_each_other_and_raise_no_doubt_but_their_short_span(name: str) -> None:
    directory = Path(__file__).parents[2] / "configs"
    nodes: dict[str, LoadedSettings] = {stem: load(directory / f"{stem}.toml", {}) for stem in ("east1", "east2", "west1")}
    listening = {loaded.settings.server.name: loaded.settings.receive_connectors[0].listen for loaded in nodes.values()}

    settings = nodes[name].settings

    (doubt,) = warnings(settings)
    assert doubt.startswith("transport.shadow_resubmit_time_span allows")
    assert {peer.name: peer.address for peer in settings.peers} == {
        key: value for key, value in listening.items() if key != settings.server.name
    }
    assert ["east", "east", "west"] == [loaded.settings.server.site for loaded in nodes.values()]


def test_recipients_may_name_one_source_or_several_and_files_are_relative_to_the_configuration(write: Write, tmp_path: Path) -> None:
    one, two = (load(write(f"{LISTED}{CONNECTOR}recipients = {names}\n"), {}).settings for names in ('"corp"', '["corp", "corp"]'))

    assert (("corp",), ("corp", "corp")) == (one.receive_connectors[0].recipients, two.receive_connectors[0].recipients)
    assert tmp_path / "list" == one.recipient_sources[0].file
    assert ("+", False, "defer") == (
        one.recipient_sources[0].subaddress_delimiters,
        one.recipient_sources[0].case_sensitive,
        one.recipient_sources[0].unavailable,
    )


@pytest.mark.parametrize(
    ("mistake", "names"),
    [
        ("", ["b.example", "c.example"]),
        ('[transport]\nshadow_timout = "5s"\n', ["b.example", "c.example"]),
        ('[transport]\nshadow_timeout = "5s\n', ["b.example", "c.example"]),
        ('[[peers]]\nname = "d.example"\nsite = "east"\naddress = "d"\n', ["b.example", "c.example", "d.example"]),
        ('[[peers]]\nname = "d.example\n', ["b.example", "c.example"]),
        ("[[peers]]\nnam = 3\n", ["b.example", "c.example"]),
    ],
)
def test_a_command_finds_its_node_in_spite_of_mistakes_elsewhere(tmp_path: Path, mistake: str, names: list[str]) -> None:
    peers = "".join(f'[[peers]]\nname = "{name}"\nsite = "east"\naddress = "{name}:25"\n' for name in ("b.example", "c.example"))
    path = tmp_path / "node.toml"
    path.write_text(f'[server]\nname = "a.example"\nsite = "east"\n[admin]\nlisten = "127.0.0.1:7777"\n{CONNECTOR}{peers}{mistake}')

    settings, said = address_and_rights(path)

    assert ("a.example", "127.0.0.1:7777", tmp_path / "token") == (
        settings.server.name,
        str(settings.admin.listen),
        settings.admin.token_file,
    )
    assert (names, bool(mistake)) == ([peer.name for peer in settings.peers], bool(said))


@pytest.mark.parametrize("mistake", ['[admin]\nlisten = "127.0.0.1"\n', '[admin]\nlisten = "127.0.0.1:7777\n', "[admin]\nlistn = 1\n"])
def test_where_the_mistake_is_in_its_address_no_node_is_asked(tmp_path: Path, mistake: str) -> None:
    path = tmp_path / "node.toml"
    path.write_text(f'[server]\nname = "a.example"\nsite = "east"\n{CONNECTOR}{mistake}')

    with pytest.raises(ConfigurationError):
        address_and_rights(path)
