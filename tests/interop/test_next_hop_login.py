"""Debian's Postfix as a smart host that wants TLS and a login, which Dovecot checks: mail reaches it by each mechanism."""

import contextlib
import re
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import trustme

from tests.kit.auth_servers import SECRET
from tests.kit.clients import talking_to
from tests.kit.clock import until
from tests.kit.postfix import Postfix, is_available, running_postfix, stored_messages, storing_settings
from tests.kit.processes import a_node_process, operator_events, whole_lines

DOVECOT = shutil.which("dovecot", path="/usr/sbin:/usr/bin")
MECHANISMS = ("PLAIN", "LOGIN", "CRAM-MD5", "SCRAM-SHA-1", "SCRAM-SHA-256")
CONFIGURATION = """
base_dir = {directory}/run
state_dir = {directory}/state
log_path = {directory}/dovecot.log
protocols =
ssl = no
auth_mechanisms = plain login cram-md5 scram-sha-1 scram-sha-256
passdb {{
  driver = passwd-file
  args = scheme=PLAIN {directory}/users
}}
userdb {{
  driver = static
  args = uid=65534 gid=65534 home=/nonexistent
}}
service auth {{
  unix_listener {directory}/auth-client {{
    mode = 0666
  }}
}}
"""

pytestmark = [
    pytest.mark.interop,
    pytest.mark.slow,
    pytest.mark.skipif(not is_available(), reason="needs root and Debian's postfix"),
    pytest.mark.skipif(DOVECOT is None, reason="needs Debian's dovecot-core"),
]


@contextlib.contextmanager
def running_dovecot(directory: Path) -> Iterator[Path]:
    """Only its SASL; the socket."""
    assert DOVECOT is not None
    directory.mkdir()
    (directory / "users").write_text(f"relay:{{PLAIN}}{SECRET}\n")
    (directory / "dovecot.conf").write_text(CONFIGURATION.format(directory=directory))
    for path in (directory / "users", directory):
        path.chmod(0o755)
    with subprocess.Popen([DOVECOT, "-F", "-c", str(directory / "dovecot.conf")]) as process:
        try:
            yield directory / "auth-client"
        finally:
            process.terminate()
            process.wait(timeout=30)


@pytest.fixture
def smart_host(tmp_path: Path) -> Iterator[Postfix]:
    for path in (tmp_path, *tmp_path.parents):  # daemons of other users go through it
        if path.stat().st_mode & 0o001:
            break
        path.chmod(path.stat().st_mode | 0o011)
    authority = trustme.CA()
    issued = authority.issue_cert("localhost")
    authority.cert_pem.write_to_path(tmp_path / "authority.pem")
    issued.cert_chain_pems[0].write_to_path(tmp_path / "host.pem")
    issued.private_key_pem.write_to_path(tmp_path / "host.key")
    with running_dovecot(tmp_path / "dovecot") as socket:
        settings = storing_settings(tmp_path / "mail", "corp.example", ["user"]) | {
            "mynetworks": "192.0.2.1/32",
            "smtpd_tls_security_level": "may",
            "smtpd_tls_cert_file": str(tmp_path / "host.pem"),
            "smtpd_tls_key_file": str(tmp_path / "host.key"),
            "smtpd_tls_auth_only": "yes",
            "smtpd_sasl_auth_enable": "yes",
            "smtpd_sasl_type": "dovecot",
            "smtpd_sasl_path": str(socket),
            "smtpd_sasl_security_options": "noanonymous",
            "smtpd_client_restrictions": "permit_sasl_authenticated, reject",
            "smtpd_relay_restrictions": "permit_sasl_authenticated, reject",
        }
        with running_postfix(tmp_path / "postfix", settings) as postfix:
            yield postfix


async def test_a_smart_host_takes_mail_by_each_mechanism_and_none_without_the_secret(smart_host: Postfix, tmp_path: Path) -> None:
    directory = tmp_path / "a.example"
    directory.mkdir()
    secret = directory / "secret"
    secret.write_text("wrong")
    secret.chmod(0o600)
    node = a_node_process(directory, connector='relay_from = ["127.0.0.1/32"]')
    file = directory / "node.toml"
    elsewhere = '[[routes]]\nrecipients = ["*"]\nnext_hop = "127.0.0.1:9"\n'
    routes = (
        '[send]\nqueue_glitch_retry_interval = "300ms"\nunused_session_timeout = "10ms"\n'
        f'[[routes]]\nrecipients = ["*"]\nnext_hop = "localhost:{smart_host.port}"\ntls_authority = "{tmp_path}/authority.pem"\n'
        'auth = { user = "relay", secret_file = "secret", mechanism = "auto" }\n'
    )
    file.write_text(file.read_text().replace(elsewhere, routes))
    mail = tmp_path / "mail"
    try:
        await node.start()
        async with talking_to(node.address) as client:
            await client.mail(["user@corp.example"])
        await until(lambda: bool(operator_events(node, "login.refused")))
        assert not stored_messages(mail)
        secret.write_text(SECRET)
        await until(lambda: len(stored_messages(mail).get("user", [])) == 1)
        for number, mechanism in enumerate(MECHANISMS):
            file.write_text(re.sub(r'mechanism = "[^"]+"', f'mechanism = "{mechanism}"', file.read_text()))
            before = len(operator_events(node, "configuration.reloaded"))
            node.signal(signal.SIGHUP)
            await until(lambda before=before: len(operator_events(node, "configuration.reloaded")) > before)
            async with talking_to(node.address) as client:
                await client.mail(["user@corp.example"])
            await until(lambda number=number: len(stored_messages(mail).get("user", [])) == number + 2)
        log = whole_lines(next((directory / "tracking").rglob("*.LOG")))
    finally:
        await node.stop()

    said = "\n".join(log)
    assert [] == [mechanism for mechanism in MECHANISMS if f"S:Tls=TLSv1.3,verified;S:Auth={mechanism} relay" not in said]
    assert "SCRAM-SHA-256: 535 5.7.8" in str(operator_events(node, "login.refused"))
    assert SECRET not in said + str(operator_events(node))
