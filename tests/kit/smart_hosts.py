"""Debian's Postfix as a smart host that wants TLS and a login, which Debian's Dovecot checks. Needs root."""

import contextlib
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import trustme

from tests.kit.auth_servers import SECRET
from tests.kit.postfix import Postfix, running_postfix, storing_settings

DOVECOT = shutil.which("dovecot", path="/usr/sbin:/usr/bin")
CONFIGURATION = """
base_dir = {directory}/run
state_dir = {directory}/state
log_path = {directory}/dovecot.log
protocols =
ssl = no
auth_mechanisms = {mechanisms}
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
MECHANISMS = "plain login cram-md5 scram-sha-1 scram-sha-256"
BEARER = """
passdb {{
  driver = oauth2
  mechanisms = xoauth2 oauthbearer
  args = {directory}/oauth2.conf
}}
"""
OAUTH2 = """
introspection_url = {introspection}
introspection_mode = post
username_attribute = username
active_attribute = active
active_value = true
"""


@contextlib.contextmanager
def running_dovecot(directory: Path, introspection: str = "") -> Iterator[Path]:
    """Only its SASL; the socket. With the URL that says whose a token is it takes tokens only."""
    assert DOVECOT is not None
    directory.mkdir()
    (directory / "users").write_text(f"relay:{{PLAIN}}{SECRET}\n")
    (directory / "oauth2.conf").write_text(OAUTH2.format(introspection=introspection))
    text = CONFIGURATION + BEARER if introspection else CONFIGURATION
    mechanisms = "xoauth2 oauthbearer" if introspection else MECHANISMS
    (directory / "dovecot.conf").write_text(text.format(directory=directory, mechanisms=mechanisms))
    for path in (directory / "users", directory / "oauth2.conf", directory):
        path.chmod(0o755)
    with subprocess.Popen([DOVECOT, "-F", "-c", str(directory / "dovecot.conf")]) as process:
        try:
            yield directory / "auth-client"
        finally:
            process.terminate()
            process.wait(timeout=30)


@contextlib.contextmanager
def running_smart_host(directory: Path, introspection: str = "") -> Iterator[Postfix]:
    """It knows the user `relay`, stores mail of user@corp.example in `mail`, and `authority.pem` is of its certificate. `introspection`: of
    `running_dovecot`."""
    for path in (directory, *directory.parents):  # daemons of other users go through it
        if path.stat().st_mode & 0o001:
            break
        path.chmod(path.stat().st_mode | 0o011)
    authority = trustme.CA()
    issued = authority.issue_cert("localhost")
    authority.cert_pem.write_to_path(directory / "authority.pem")
    issued.cert_chain_pems[0].write_to_path(directory / "host.pem")
    issued.private_key_pem.write_to_path(directory / "host.key")
    with running_dovecot(directory / "dovecot", introspection) as socket:
        settings = storing_settings(directory / "mail", "corp.example", ["user"]) | {
            "mynetworks": "192.0.2.1/32",
            "smtpd_tls_security_level": "may",
            "smtpd_tls_cert_file": str(directory / "host.pem"),
            "smtpd_tls_key_file": str(directory / "host.key"),
            "smtpd_tls_auth_only": "yes",
            "smtpd_sasl_auth_enable": "yes",
            "smtpd_sasl_type": "dovecot",
            "smtpd_sasl_path": str(socket),
            "smtpd_sasl_security_options": "noanonymous",
            "smtpd_client_restrictions": "permit_sasl_authenticated, reject",
            "smtpd_relay_restrictions": "permit_sasl_authenticated, reject",
        }
        with running_postfix(directory / "postfix", settings) as postfix:
            yield postfix
