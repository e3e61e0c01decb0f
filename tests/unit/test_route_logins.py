"""The login of a route in the configuration: what contradicts itself, and that no secret is ever shown; what peers compare."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from shadowrelay import credentials
from shadowrelay.cli.main import app
from shadowrelay.model.protection import Login, Protection, TlsMode
from shadowrelay.model.replies import ConfigurationError
from shadowrelay.model.routing import HostPort
from shadowrelay.settings.configuration import effective, load

Write = Callable[[str], Path]
SECRET = "sw0rdfish-Sesame/42"
HEAD = """
[server]
name = "mx1.east.example"
site = "east"
data_directory = "data"

[[routes]]
recipients = ["*@corp.example"]
next_hop = "a.example:587"
"""


@pytest.fixture
def write(tmp_path: Path) -> Write:
    for name, mode in (("secret", 0o600), ("open", 0o644)):
        (tmp_path / name).write_text(f"{SECRET}\n")
        (tmp_path / name).chmod(mode)

    def _write(text: str) -> Path:
        path = tmp_path / "node.toml"
        path.write_text(f"{HEAD}{text}\n", encoding="utf-8")
        return path

    return _write


def token(text: str) -> str:
    return f'auth = {{ user = "relay", token = {{ {text} }} }}'


ENDPOINT = 'endpoint = "https://login.example/token", client_id = "app"'
PROBLEMS = [
    ('auth = { user = "relay", secret_file = "secret" }\ntls = "opportunistic"', 'auth: tls = "opportunistic" would send the secret'),
    ('auth = { user = "relay", secret_file = "secret" }\ntls = "none"', 'auth: tls = "none" would send the secret'),
    ('auth = { user = "relay" }', "auth: needs one of secret_file, credential and token"),
    ('auth = { user = "relay", secret_file = "secret", credential = "x" }', "auth: needs one of"),
    ('auth = { user = "", secret_file = "secret" }', "auth.user: is empty"),
    ('auth = { secret_file = "secret" }', "auth.user: is missing"),
    ('auth = { user = "relay", secret_file = "gone" }', "auth.secret_file: "),
    ('auth = { user = "relay", secret_file = "open" }', "open is no place for a secret: others may read or change it (mode 0644)"),
    ('auth = { user = "relay", credential = "x" }', "auth.credential: systemd has passed no credentials"),
    ('auth = { user = "relay", credential = "../x" }', "auth.credential: "),
    ('auth = { user = "relay", secret_file = "secret", mechanism = "XOAUTH2" }', "auth.mechanism: XOAUTH2 needs token"),
    ('auth = { user = "relay", secret_file = "secret", mechanism = "NTLM" }', "auth.mechanism: "),
    (f'auth = {{ user = "relay", secret = "{SECRET}" }}', "auth.secret: unknown key; did you mean secret_file?"),
    (f'auth = "relay:{SECRET}"', "routes[0].auth: is not a table"),
    (f'auth = {{ user = "relay", secret_file = ["{SECRET}"] }}', "routes[0].auth.secret_file: "),
    (token(""), "auth.token.endpoint: is not an https URL"),
    (token('endpoint = "http://login.example/token", client_id = "a", client_secret_file = "secret"'), "auth.token.endpoint: "),
    (token('endpoint = "https://u:p@login.example/token", client_id = "a", client_secret_file = "secret"'), "auth.token.endpoint: "),
    (token(ENDPOINT), "auth.token.client_secret_file: is missing"),
    (token(f'{ENDPOINT}, grant = "refresh-token"'), "auth.token.refresh_token_file: is missing"),
    (token(f'{ENDPOINT}, client_secret_file = "open"'), "auth.token.client_secret_file: "),
    (token(f'{ENDPOINT}, client_secret_file = "secret", client_credential = "x"'), "a secret both as a file and as a credential"),
    (token('endpoint = "https://login.example/token", client_secret_file = "secret"'), "auth.token.client_id: is missing"),
    (token('command = ["token"]'), "auth.token.command: does not begin with an absolute path"),
    (token(f'command = ["/bin/token"], {ENDPOINT}'), "auth.token.command: is there beside an endpoint"),
]


@pytest.mark.parametrize(("text", "expected"), PROBLEMS)
def test_a_login_that_cannot_be_used_is_an_error_that_names_the_key_and_never_the_secret(write: Write, text: str, expected: str) -> None:
    path = write(text)
    with pytest.raises(ConfigurationError) as caught:
        load(path, {})

    assert expected in str(caught.value)
    assert SECRET not in str(caught.value)
    checked = CliRunner().invoke(app, ["check", "--config", str(path)])
    assert (True, False) == (checked.exit_code != 0, SECRET in checked.output)


def test_a_login_demands_verified_tls_unless_the_route_says_required(write: Write) -> None:
    login = 'auth = { user = "relay", secret_file = "secret" }'

    found = [load(write(text), {}).settings.routes[0].tls for text in (login, f'{login}\ntls = "required"')]

    assert [TlsMode.VERIFIED, TlsMode.REQUIRED] == found


def test_what_is_shown_of_a_login_are_names_and_paths(write: Write, tmp_path: Path) -> None:
    path = write(token(f'{ENDPOINT}, client_secret_file = "secret"'))
    shown = json.dumps(effective(load(path, {})), default=str)
    checked = CliRunner().invoke(app, ["check", "--config", str(path), "--json"])

    assert f"{tmp_path}/secret" in shown
    assert (0, False) == (checked.exit_code, SECRET in shown + checked.output)


# what peers compare


def digest(secret: Path, user: str = "relay", **changes: object) -> dict[str, str]:
    login = Login(user=user, secret_file=secret)
    protection = Protection(TlsMode.VERIFIED, login=login)
    return dict(credentials.digests([(["*@corp.example"], [HostPort("a.example", 587)], protection)], "default"))


def test_peers_compare_what_routes_demand_by_hashes_that_tell_nobody_a_secret(tmp_path: Path) -> None:
    one, same, other = tmp_path / "one", tmp_path / "same", tmp_path / "other"
    for path, text in ((one, SECRET), (same, f"{SECRET}\n"), (other, "another")):
        path.write_text(text)
        path.chmod(0o600)

    here = digest(one)

    assert here == digest(same)
    assert here["routes_auth"] != digest(other)["routes_auth"] != digest(one, "other")["routes_auth"]
    assert here["routes_tls"] == digest(other)["routes_tls"]
    assert 10 == len(here["routes_auth"])  # forty bits of a slow hash
    assert {"routes_tls": "none", "routes_auth": "none"} == credentials.digests([], "default")
    assert not any(SECRET in value for value in here.values())
