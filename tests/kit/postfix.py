"""A real Postfix of its own on loopback: configuration, queue and log in one directory. Needs root and Debian's package."""

import contextlib
import os
import pwd
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

from shadowrelay.lab.cluster import free_ports
from tests.kit.smtp_programs import greets

MASTER_CF = Path("/usr/share/postfix/master.cf.dist")
OWNER, OWNER_GROUP = "nobody", "nogroup"  # of the maildirs: Postfix never delivers as root
SERVICE = "{listen}      inet  n       -       n       -       -       smtpd"


def is_available() -> bool:
    """Root, and Debian's package."""
    return os.geteuid() == 0 and shutil.which("postfix") is not None and shutil.which("smtp-sink", path="/usr/sbin:/usr/bin") is not None


def free_port() -> int:
    """A port of 127.0.0.1 that was free a moment ago, and that no outgoing connection gets meanwhile."""
    return free_ports(1)[0]


class Postfix:
    """`port` listens. `settings` go to main.cf over what is needed to stand alone. `inside`: a command that starts it, such as strace."""

    def __init__(self, directory: Path, port: int, settings: dict[str, str], inside: Sequence[str] = ()) -> None:
        self._inside = inside
        self.directory = directory
        self.port = port
        self.log = directory / "mail.log"
        self._settings = {
            "compatibility_level": "3.6",
            "queue_directory": str(directory / "queue"),
            "data_directory": str(directory / "data"),
            "mail_owner": "postfix",
            "setgid_group": "postdrop",
            "command_directory": "/usr/sbin",
            "daemon_directory": "/usr/lib/postfix/sbin",
            "mynetworks": "127.0.0.0/8",
            "inet_interfaces": "127.0.0.1",
            "inet_protocols": "ipv4",
            "myhostname": "postfix.example",
            "mydestination": "",
            "alias_maps": "",
            "alias_database": "",
            "smtpd_relay_restrictions": "permit_mynetworks, reject",
            "maillog_file": str(self.log),
            "maillog_file_prefixes": str(directory),
            "disable_dns_lookups": "yes",
            **settings,
        }

    def write(self) -> None:
        """The configuration, and the directories that it names."""
        config = self.directory / "config"
        for path in (config, self.directory / "queue", self.directory / "data"):
            path.mkdir(parents=True, exist_ok=True)
        for path in (self.directory, *self.directory.parents):
            if path.stat().st_mode & 0o001:
                break  # nothing above is opened: it is not ours
            path.chmod(path.stat().st_mode | 0o011)
        shutil.chown(self.directory / "data", "postfix")
        (config / "main.cf").write_text("".join(f"{key} = {value}\n" for key, value in self._settings.items()))
        lines = [line for line in MASTER_CF.read_text().splitlines() if not line.startswith("smtp      inet")]
        (config / "master.cf").write_text("\n".join([SERVICE.format(listen=f"127.0.0.1:{self.port}"), *lines]) + "\n")
        self._run("postconf", "-c", str(config), "-F", "*/*/chroot = n")

    def start(self) -> None:
        """Write the configuration and start the daemons; returns when it answers."""
        self.write()
        if self._inside:  # what stays may keep the pipes of its output open
            command = [*self._inside, "/usr/sbin/postfix", "-c", str(self.directory / "config"), "start"]
            subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=True, timeout=60)
        else:
            self._run("postfix", "-c", str(self.directory / "config"), "start")
        if not greets(self.port):
            raise RuntimeError(f"postfix does not answer; its log: {self.log.read_text()[-2000:]}")

    def stop(self) -> None:
        """Stop the daemons of this instance."""
        subprocess.run(["/usr/sbin/postfix", "-c", str(self.directory / "config"), "stop"], capture_output=True, check=False, timeout=60)

    def queue(self) -> str:
        """What `postqueue -p` prints."""
        return self._run("postqueue", "-c", str(self.directory / "config"), "-p")

    def flush(self) -> None:
        """Try everything again now."""
        self._run("postqueue", "-c", str(self.directory / "config"), "-f")

    def _run(self, program: str, *arguments: str) -> str:
        done = subprocess.run([f"/usr/sbin/{program}", *arguments], capture_output=True, text=True, check=False, timeout=60)
        if done.returncode != 0:
            log = self.log.read_text()[-2000:] if self.log.exists() else ""
            raise RuntimeError(f"{program} {' '.join(arguments)}: {done.stderr or done.stdout}{log}")
        return done.stdout


def storing_settings(directory: Path, domain: str, known: Sequence[str]) -> dict[str, str]:
    """What makes a Postfix the final server of `domain`: the local parts `known` have a maildir `<directory>/<local part>/`
    each; the others are refused with 550 5.1.1."""
    directory.mkdir(parents=True, exist_ok=True)
    shutil.chown(directory, OWNER, OWNER_GROUP)
    table = directory.parent / f"{directory.name}.recipients"
    table.write_text("".join(f"{name}@{domain} {name}/\n" for name in known))
    owner = pwd.getpwnam(OWNER)
    return {
        "virtual_mailbox_domains": domain,
        "virtual_mailbox_base": str(directory),
        "virtual_mailbox_maps": f"texthash:{table}",
        "virtual_uid_maps": f"static:{owner.pw_uid}",
        "virtual_gid_maps": f"static:{owner.pw_gid}",
    }


def stored_messages(directory: Path) -> dict[str, list[bytes]]:
    """Local part -> the messages in its maildir, with LF line ends as Postfix writes them."""
    found: dict[str, list[bytes]] = {}
    for path in sorted(directory.glob("*/new/*")):
        with contextlib.suppress(FileNotFoundError):
            found.setdefault(path.parent.parent.name, []).append(path.read_bytes())
    return found


@contextlib.contextmanager
def running_postfix(directory: Path, settings: dict[str, str], inside: Sequence[str] = ()) -> Iterator[Postfix]:
    """Start one, and stop it whatever happens."""
    postfix = Postfix(directory, free_port(), settings, inside)
    try:
        postfix.start()
        yield postfix
    finally:
        postfix.stop()
