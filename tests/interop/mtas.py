"""Postfix, Exim, OpenSMTPD and Sendmail as Debian packs them, each alone on loopback with the configuration of configs/mtas.

Debian installs one of them at a time. The others are unpacked below .venv/interop (`requirements/setup.sh interop`) and run
with users, names and directories of their own (`tests/kit/private.py`). Each is the final server of one domain, for users in
its /etc/passwd, and sends everything else to the nodes.
"""

import contextlib
import email
import os
import re
import shutil
import signal
import socket
import subprocess
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar

from tests.kit import private
from tests.kit.postfix import Postfix, stored_messages
from tests.kit.smtp_programs import greets

ROOT = Path(__file__).parents[2]
UNPACKED = ROOT / ".venv" / "interop"
SNIPPETS = ROOT / "configs" / "mtas"
STRICT = re.compile(r"(?m)^( *)(?:#|dnl)   (\S.*)$")
NODE_ADDRESSES = {"mx1.east.example": "127.0.0.2", "mx1.west.example": "127.0.0.3"}
HOSTS = {**{name: [address] for name, address in NODE_ADDRESSES.items()}, "nodes.corp.example": list(NODE_ADDRESSES.values())}
OTHER_NAMES = {name: f"other-{name}" for name in HOSTS}  # at the same addresses; no certificate has them


def write_identities(directory: Path, users: Sequence[str], hosts: Mapping[str, Sequence[str]]) -> dict[str, Path]:
    """/etc/passwd, /etc/group and /etc/hosts: what is there, and these. Returns the mounts.

    Shapes: `hosts` has the addresses of a name; every user has a group of its own name.
    """
    directory.mkdir(parents=True, exist_ok=True)
    own = socket.gethostname()
    lines = {
        "passwd": [f"{user}:x:{private.FIRST_ID + number}:{private.FIRST_ID + number}::/:/bin/false" for number, user in enumerate(users)],
        "group": [f"{user}:x:{private.FIRST_ID + number}:" for number, user in enumerate(users)],
        # Sendmail waits a minute for a qualified name of this machine
        "hosts": [f"127.0.1.1 {own}.example {own}", *(f"{address} {name}" for name, addresses in hosts.items() for address in addresses)],
    }
    for name, more in lines.items():
        (directory / name).write_text("".join(f"{line}\n" for line in more) + (Path("/etc") / name).read_text())
    return {f"/etc/{name}": directory / name for name in lines}


def with_strict_lines(text: str) -> str:
    """A recipe in which the lines that are commented out (three blanks behind the sign) hold, each in place of one that begins alike."""
    taken = [found[1] + found[2] for found in STRICT.finditer(text)]
    assert taken, "the recipe has no stricter lines"
    begins = tuple({" ".join(line.split()[:2]) for line in taken if " = " in line or line.startswith("action")})
    lines = [line for line in text.splitlines() if not (begins and line.startswith(begins))]
    return STRICT.sub(r"\1\2", "\n".join(lines) + "\n")


class Mta(ABC):
    """`relay_port` is that of all nodes. `users` are the local parts of `<name>.example` that exist."""

    name: ClassVar[str]
    program: ClassVar[Path]
    own_users: ClassVar[tuple[str, ...]] = ()
    deferral: ClassVar[str]  # what it says of a delivery that it puts off

    def __init__(self, directory: Path, port: int, relay_port: int, users: Sequence[str]) -> None:
        self.directory, self.port, self.relay_port, self.users = directory, port, relay_port, users
        self.domain = f"{self.name}.example"
        self.mail = directory / "mail"
        self.log = directory / "log"
        self.authority: Path | None = None  # set: with the stricter lines of the recipe, and this file for that of the nodes' authority
        self.called: Mapping[str, str] = {}  # other names for the nodes, by which to call them
        self._process: subprocess.Popen[bytes] | None = None
        self._mounts: dict[str, Path] = {}

    @classmethod
    def missing(cls) -> str:
        """Why it cannot run here; empty if it can."""
        if not private.is_possible():
            return "needs root, and mount and process namespaces (unshare)"
        return "" if cls.program.exists() else f"needs {cls.name}: requirements/setup.sh interop"

    @abstractmethod
    def write(self) -> Mapping[str, Path]:
        """Configuration and directories. Returns more mounts."""

    @property
    @abstractmethod
    def command(self) -> list[str]:
        """In the foreground."""

    def configure(self) -> None:
        """Write everything that it needs."""
        self.mail.mkdir(parents=True)
        self.mail.chmod(0o1777)
        others = {other: HOSTS[name] for name, other in OTHER_NAMES.items()}
        mounts = write_identities(self.directory / "etc", [*self.own_users, *self.users], HOSTS | others)
        self._mounts = {**mounts, **self.write()}

    def snippet(self, name: str) -> str:
        """As an operator would paste it, with the nodes' port, and retries after a second."""
        text = (SNIPPETS / name).read_text(encoding="utf-8")
        if self.authority is not None:
            text = with_strict_lines(text).replace("/etc/shadowrelay/peers.pem", str(self.authority))
            text = text.replace("/etc/shadowrelay", str(self.authority.parent))
        for name, other in self.called.items():
            text = text.replace(name, other)
        return text.replace("2525", str(self.relay_port)).replace("60s", "1s").replace("F,2h,1m", "F,2h,1s").replace("`1m'", "`1s'")

    def start(self) -> None:
        """Returns when it answers."""
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                private.private_command(self.command, self._mounts),
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip
        process = self._process
        if not greets(self.port, lambda: process.poll() is None):
            self.stop()
            raise RuntimeError(f"{self.name} does not answer: {self.logged()}")

    def stop(self) -> None:
        """It and all that it started is gone."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                for first in private.children_of(self._process.pid):
                    os.kill(first, signal.SIGKILL)
            self._process.kill()
            self._process.wait()
            self._process = None

    def retry_now(self) -> None:
        """Deliver what is queued; those that look every second by themselves need no word."""
        return

    def run(self, *command: str | Path) -> str:
        """A command where it runs. Its output."""
        assert self._process is not None
        first = str(private.children_of(self._process.pid)[0])
        done = subprocess.run(["nsenter", "--target", first, "--mount", *command], capture_output=True, text=True, check=False)
        return done.stdout + done.stderr

    def stored(self) -> dict[str, list[bytes]]:
        """Local part -> messages, LF line ends."""
        return stored_messages(self.mail)

    def logged(self) -> str:
        """The end of what it said."""
        return self.log.read_text(errors="replace")[-3000:] if self.log.exists() else ""


class PostfixMta(Mta):
    """Debian's, installed."""

    name = "postfix"
    program = Path("/usr/sbin/postfix")
    deferral = "status=deferred"

    def write(self) -> Mapping[str, Path]:
        settings = dict(
            (word.strip() for word in line.split("=", 1))
            for line in self.snippet("postfix-main.cf").splitlines()
            if "=" in line and not line.startswith("#")
        )
        storing = {
            "mydestination": self.domain, "local_transport": "store", "local_recipient_maps": "unix:passwd.byname",
            "mynetworks": "127.0.0.0/8", "maximal_backoff_time": "1s", "transport_retry_time": "1s",
            "store_destination_recipient_limit": "1",
            "myhostname": "mta.postfix.example",
        }  # fmt: skip
        self._postfix = Postfix(self.directory, self.port, {**settings, **storing, "smtp_host_lookup": "native"})
        self._postfix.write()
        with (self.directory / "config" / "master.cf").open("a") as file:
            file.write(
                f"store unix - n n - - pipe flags=R user=nobody null_sender= argv={store_program(self.directory, self.mail)} ${{user}}\n"
            )
        return {}

    @property
    def command(self) -> list[str]:
        return [str(self.program), "-c", str(self.directory / "config"), "start-fg"]

    def logged(self) -> str:
        return self._postfix.log.read_text()[-3000:] if self._postfix.log.exists() else super().logged()


class Exim(Mta):
    """exim4-daemon-light."""

    name = "exim"
    program = UNPACKED / "exim4-daemon-light/usr/sbin/exim4"
    own_users = ("Debian-exim",)
    deferral = " == "

    def write(self) -> Mapping[str, Path]:
        for name in ("spool", "logs"):
            (self.directory / name).mkdir()
            os.chown(self.directory / name, private.FIRST_ID, private.FIRST_ID)
        parts = dict(part.split("\n", 1) for part in self.snippet("exim.conf").split("\nbegin ")[1:])
        text = f"""
exim_path = {self.program}
spool_directory = {self.directory}/spool
log_file_path = {self.directory}/logs/%slog
pid_file_path = {self.directory}/pid
primary_hostname = mta.exim.example
local_interfaces = 127.0.0.1
daemon_smtp_ports = {self.port}
tls_advertise_hosts =
domainlist local_domains = {self.domain}
acl_smtp_rcpt = check
begin acl
check:
  defer condition = ${{if exists{{{self.directory}/busy}}}}
  accept domains = +local_domains
    verify = recipient
  deny domains = +local_domains
  accept hosts = 127.0.0.1
begin routers
{parts["routers"]}
stored:
  driver = accept
  domains = +local_domains
  check_local_user
  transport = store
begin transports
{parts["transports"]}
store:
  driver = appendfile
  directory = {self.mail}/$local_part_data
  create_directory
  maildir_format
  return_path_add
  delivery_date_add = false
begin retry
{parts["retry"]}
"""
        place = self.directory / "lib/exim4"  # with -C it would give up the right to deliver as its recipients
        place.mkdir(parents=True)
        (place / "config.autogenerated").write_text(text)
        return {"/var/lib": place.parent}

    @property
    def command(self) -> list[str]:
        return [str(self.program), "-bdf", "-q1s"]

    def logged(self) -> str:
        return super().logged() + "".join(path.read_text(errors="replace")[-3000:] for path in (self.directory / "logs").glob("*"))


class OpenSmtpd(Mta):
    """opensmtpd."""

    name = "opensmtpd"
    program = UNPACKED / "opensmtpd/usr/sbin/smtpd"
    own_users = ("opensmtpd", "opensmtpq")
    deferral = "TempFail"

    def write(self) -> Mapping[str, Path]:
        for name in ("spool/smtpd", "lib/opensmtpd/empty", "run"):
            (self.directory / name).mkdir(parents=True)
        (self.directory / "spool/smtpd").chmod(0o711)
        (self.directory / "smtpd.conf").write_text(f"""
listen on 127.0.0.1 port {self.port} hostname mta.opensmtpd.example
action "stored" maildir "{self.mail}/%{{user.username}}"
match from any for domain "{self.domain}" action "stored"
{self.snippet("opensmtpd.conf")}
""")
        packed = UNPACKED / "opensmtpd"
        control = shutil.copy(packed / "usr/sbin/smtpctl", self.directory)
        os.chown(control, 0, private.FIRST_ID + self.own_users.index("opensmtpq"))
        os.chmod(control, 0o2755)
        mounts = {"/var/spool": "spool", "/var/lib": "lib", "/run": "run"}
        own = {"/usr/libexec": packed / "usr/libexec", **{target: self.directory / source for target, source in mounts.items()}}
        return own if self.authority is None else own | {"/etc/ssl/certs/ca-certificates.crt": self.authority}

    @property
    def command(self) -> list[str]:
        return [str(self.program), "-d", "-f", str(self.directory / "smtpd.conf")]

    def retry_now(self) -> None:
        self.run(self.directory / "smtpctl", "schedule", "all")


class Sendmail(Mta):
    """sendmail-bin, with a configuration made by m4 from sendmail-cf."""

    name = "sendmail"
    program = UNPACKED / "sendmail-bin/usr/libexec/sendmail/sendmail"
    own_users = ("smmta", "smmsp")
    deferral = "\nM"  # in its queue file: the status of a message

    def write(self) -> Mapping[str, Path]:
        (self.directory / "queue").mkdir()
        (self.directory / "switch").write_text("hosts files\naliases files\n")
        library = UNPACKED / "sendmail-bin/usr/share/sendmail/cf"
        source = self.directory / "sendmail.mc"
        recipe = self.snippet("sendmail.mc")
        access = "".join(f"{line}\n" for line in recipe.splitlines() if line.startswith("TLS_Srv:"))
        recipe = "".join(f"{line}\n" for line in recipe.splitlines() if not line.startswith("TLS_Srv:"))
        (self.directory / "access").write_text(access)
        source.write_text(f"""divert(0)dnl
OSTYPE(`linux')dnl
define(`confSERVICE_SWITCH_FILE', `{self.directory}/switch')dnl
define(`confDOMAIN_NAME', `mta.sendmail.example')dnl
define(`QUEUE_DIR', `{self.directory}/queue')dnl
define(`STATUS_FILE', `{self.directory}/statistics')dnl
define(`confPID_FILE', `{self.directory}/pid')dnl
define(`HELP_FILE', `')dnl
define(`MAIL_SETTINGS_DIR', `{self.directory}/')dnl
define(`ALIAS_FILE', `')dnl
define(`confDONT_BLAME_SENDMAIL', `GroupWritableDirPathSafe,MapInUnsafeDirPath')dnl
define(`confRUN_AS_USER', `root')dnl
define(`confDEF_USER_ID', `nobody')dnl
define(`LOCAL_MAILER_PATH', `{store_program(self.directory, self.mail)}')dnl
define(`LOCAL_MAILER_ARGS', `store $u')dnl
define(`LOCAL_MAILER_FLAGS', `PSn')dnl
MODIFY_MAILER_FLAGS(`LOCAL', `-A')dnl
define(`confDELIVERY_MODE', `background')dnl
define(`confREFUSE_LA', `999')dnl a busy machine is no reason to refuse the test
define(`confQUEUE_LA', `999')dnl
define(`confDELAY_LA', `999')dnl
{recipe}FEATURE(`no_default_msa')dnl
FEATURE(`nocanonify')dnl
FEATURE(`accept_unresolvable_domains')dnl
FEATURE(`relay_entire_domain')dnl
DAEMON_OPTIONS(`Name=MTA, Addr=127.0.0.1, Port={self.port}')dnl
MAILER(`local')dnl
MAILER(`smtp')dnl
LOCAL_CONFIG
Cw{self.domain}
CR127.0.0.1
""")
        made = subprocess.run(
            ["m4", f"-D_CF_DIR_={library}/", f"{library}/m4/cf.m4", str(source)], capture_output=True, text=True, check=True
        )
        (self.directory / "sendmail.cf").write_text(made.stdout)
        makemap = [self.program.parent / "makemap", f"-C{self.directory}/sendmail.cf", "hash", self.directory / "access"]
        subprocess.run(makemap, input=access, text=True, check=True)
        return {}

    @property
    def command(self) -> list[str]:
        return [str(self.program), f"-C{self.directory}/sendmail.cf", "-bD", "-q1s"]

    def logged(self) -> str:
        return super().logged() + "".join(path.read_text(errors="replace") for path in (self.directory / "queue").glob("qf*"))


def store_program(directory: Path, mail: Path) -> Path:
    """A program that takes a local part and puts its input into a maildir."""
    path = directory / "store"
    path.write_text(f"""#!/bin/sh -e
mkdir -p {mail}/"$1"/tmp {mail}/"$1"/new
name=$(mktemp {mail}/"$1"/tmp/XXXXXXXX)
cat >"$name"
mv "$name" {mail}/"$1"/new/
""")
    path.chmod(0o755)
    return path


MTAS: tuple[type[Mta], ...] = (PostfixMta, Exim, OpenSmtpd, Sendmail)


# what they stored
def body_of(message: bytes) -> bytes:
    """Everything after the headers, with CRLF again."""
    return message.partition(b"\n\n")[2].replace(b"\n", b"\r\n")


def head_of(message: bytes) -> str:
    return message.partition(b"\n\n")[0].decode("ascii")


def subject_of(message: bytes) -> str:
    return str(email.message_from_bytes(message)["Subject"])
