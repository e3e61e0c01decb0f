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


@contextlib.contextmanager
def running_smart_host(directory: Path) -> Iterator[Postfix]:
    """It knows the user `relay`, stores mail of user@corp.example in `mail`, and `authority.pem` is of its certificate."""
    for path in (directory, *directory.parents):  # daemons of other users go through it
        if path.stat().st_mode & 0o001:
            break
        path.chmod(path.stat().st_mode | 0o011)
    authority = trustme.CA()
    issued = authority.issue_cert("localhost")
    authority.cert_pem.write_to_path(directory / "authority.pem")
    issued.cert_chain_pems[0].write_to_path(directory / "host.pem")
    issued.private_key_pem.write_to_path(directory / "host.key")
    with running_dovecot(directory / "dovecot") as socket:
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
