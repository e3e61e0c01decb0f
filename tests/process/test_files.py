"""What a node writes is private whatever the umask, and who could read or change it is named. docs/security.md"""

import os
import stat
import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import pytest

from shadowrelay.lab.cluster import NodeProcess
from shadowrelay.lab.traffic import Sink
from shadowrelay.settings.authority import make_authority, signed_pems
from tests.kit.clock import until
from tests.kit.processes import a_node_process, api_of, client_of

LARGE = b"Subject: the secret plan\r\n\r\n" + b"secret\r\n" * 200_000  # more than what stays in memory


@pytest.fixture
def lax_umask():
    before = os.umask(0)
    yield
    os.umask(before)


def a_node(directory: Path, next_hop: object = "127.0.0.1:9") -> NodeProcess:
    """What `next_hop` takes for c@here.example is reported to a journal, whose server does not answer."""
    node = a_node_process(directory / "a.example")
    path = node.directory / "node.toml"
    route = f'[[routes]]\nrecipients = ["c@here.example"]\nnext_hop = "{next_hop}"\njournal_recipient = "journal@archive.example"\n\n'
    path.write_text(path.read_text().replace("[[routes]]\n", f"{route}[[routes]]\n"))
    return node


async def send(node: NodeProcess, content: bytes) -> None:
    client = await client_of(node, "EHLO c.example")
    try:
        assert (await client.mail(["c@here.example"], content)).startswith("250")
    finally:
        await client.close()


def modes(top: Path) -> dict[str, int]:
    return {str(path.relative_to(top)): stat.S_IMODE(path.lstat().st_mode) for path in [top, *top.rglob("*")]}


async def test_all_that_a_node_writes_is_private_whatever_the_umask(tmp_path, lax_umask):
    store = Sink()
    node = a_node(tmp_path, await store.start())
    try:
        await node.start()
        await send(node, LARGE)
        with api_of(node) as client:
            await until(lambda: [queue for queue in client.queues() if queue["next_hop"] == "127.0.0.1:9" and queue["count"]])
        large = list((node.directory / "data" / "content" / "large").iterdir())
        data, tracking, token = modes(node.directory / "data"), modes(node.directory / "tracking"), modes(node.directory / "token")
        export = [sys.executable, "-m", "shadowrelay", "messages"]
        with api_of(node) as client:
            message = client.messages()[0]["message_id"]
        subprocess.run([*export, "export", message, "--config", str(node.directory / "node.toml")], cwd=tmp_path, check=True)
        exported = stat.S_IMODE((tmp_path / f"{message}.eml").stat().st_mode)
    finally:
        await node.stop()
        await store.close()

    assert len(large) >= 2
    assert {} == {name: oct(mode) for name, mode in data.items() if mode & 0o077}
    assert {} == {name: oct(mode) for name, mode in tracking.items() if mode & 0o027}
    assert {} == {name: oct(mode) for name, mode in token.items() if mode & 0o077}
    assert 0o600 == exported


async def test_no_subject_is_logged_where_that_is_switched_off(tmp_path):
    node = a_node(tmp_path)
    path = node.directory / "node.toml"
    path.write_text(path.read_text().replace("[tracking]\n", "[tracking]\nmessage_subject_logging_enabled = false\n"))
    try:
        await node.start()
        await send(node, LARGE)
    finally:
        await node.stop()

    logged = "".join(path.read_text() for path in (node.directory / "tracking").glob("*.LOG"))
    assert "c@here.example" in logged
    assert "secret plan" not in logged


def with_tls(node: NodeProcess) -> None:
    """An authority, a list of what was revoked, and three keys: of the node, of another name, and for a next hop."""
    authority = make_authority("tests", timedelta(days=99))
    certificate, key = signed_pems(authority, "a.example", timedelta(days=99))
    for name, data in (("node", key), ("mail", key), ("hop", key)):
        (node.directory / f"{name}.key").touch(mode=0o600)
        (node.directory / f"{name}.key").write_bytes(data)
    (node.directory / "node.pem").write_bytes(certificate)
    (node.directory / "peers.pem").write_bytes(authority.pem)
    (node.directory / "revoked.pem").write_text("")
    for name in ("peers.pem", "revoked.pem", "node.pem"):
        (node.directory / name).chmod(0o644)
    path = node.directory / "node.toml"
    route = '[[routes]]\nrecipients = ["d@here.example"]\nnext_hop = "127.0.0.1:9"\ntls_certificate = "node.pem"\ntls_key = "hop.key"\n\n'
    further = 'certificates = [{ certificate = "node.pem", key = "mail.key" }]\n'
    tls = f'[tls]\ncertificate = "node.pem"\nkey = "node.key"\npeer_authority = "peers.pem"\npeer_revoked = "revoked.pem"\n{further}\n'
    path.write_text(path.read_text().replace("[[routes]]\n", f"{route}[[routes]]\n", 1) + tls)


def warned(file: Path) -> str:
    """What `check` says of it, at most as warnings."""
    done = subprocess.run([sys.executable, "-m", "shadowrelay", "check", "--config", str(file)], capture_output=True, text=True, check=True)
    return done.stdout.replace("\n", " ")


@pytest.mark.parametrize(("name", "mode", "key"), [
    ("data", 0o755, "server.data_directory"), ("data", 0o770, "server.data_directory"), ("tracking", 0o777, "tracking.directory"),
    ("token", 0o644, "admin.token_file"), ("token", 0o620, "admin.token_file"), ("node.toml", 0o666, "--config"),
    ("node.key", 0o644, "tls.key"), ("mail.key", 0o604, "tls.certificates[0].key"), ("hop.key", 0o660, "routes[0].tls_key"),
    ("peers.pem", 0o664, "tls.peer_authority"), ("revoked.pem", 0o646, "tls.peer_revoked"),
])  # fmt: skip
def test_check_names_what_others_may_read_or_change(tmp_path, name, mode, key):
    node = a_node(tmp_path)
    with_tls(node)
    (node.directory / "data").mkdir(mode=0o700)
    (node.directory / "tracking").mkdir(mode=0o750)
    (node.directory / "token").write_text("a-token-of-sixteen-or-more\n")
    (node.directory / "token").chmod(0o600)
    file = node.directory / "node.toml"
    file.chmod(0o644)
    assert "(mode " not in warned(file)

    (node.directory / name).chmod(mode)

    assert f"warning: {key}: " in warned(file)
    assert f"(mode {mode:04o}): chmod" in warned(file)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file to somebody else")
@pytest.mark.parametrize(("name", "key"), [("token", "admin.token_file"), ("node.key", "tls.key"), ("tracking", "tracking.directory")])
def test_check_names_what_belongs_to_somebody_else(tmp_path, name, key):
    node = a_node(tmp_path)
    with_tls(node)
    (node.directory / "tracking").mkdir(mode=0o750)
    (node.directory / "token").write_text("a-token-of-sixteen-or-more\n")
    (node.directory / "token").chmod(0o600)
    assert " owns " not in warned(node.directory / "node.toml")

    os.chown(node.directory / name, 12345, 12345)

    assert f"warning: {key}: user 12345 owns {node.directory / name}" in warned(node.directory / "node.toml")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make a link of somebody else")
@pytest.mark.parametrize(
    ("name", "key"), [("data", "server.data_directory"), ("token", "admin.token_file"), ("tracking", "tracking.directory")]
)
def test_check_names_a_link_that_somebody_else_made(tmp_path, name, key):
    node = a_node(tmp_path)
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    if name == "token":
        (tmp_path / "elsewhere" / "token").write_text("a-token-of-sixteen-or-more\n")
    (node.directory / name).symlink_to(tmp_path / "elsewhere" / ("token" if name == "token" else ""))
    assert "is a link" not in warned(node.directory / "node.toml")

    os.lchown(node.directory / name, 12345, 12345)

    assert f"warning: {key}: {node.directory / name} is a link that user 12345 made" in warned(node.directory / "node.toml")


def test_check_names_a_place_that_every_user_may_replace(tmp_path):
    node = a_node(tmp_path)
    (node.directory / "data").mkdir(mode=0o700)
    node.directory.chmod(0o777)

    assert f"every user may replace {node.directory / 'data'}: chmod o-w {node.directory}" in warned(node.directory / "node.toml")
