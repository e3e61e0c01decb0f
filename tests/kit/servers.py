"""Whole servers for recipes: each has an address, directories and processes of its own, in which what a document prints is typed.

A server is a machine (`tests/kit/machines.py`) with the files of this one: what is written in /etc, /var, /run and /root is its own, in
memory, and gone with it. There is no systemd: `systemctl` starts what Debian's units start. The program is that of this checkout, at the
places where an installation has it. docs/setup.md "On servers"
"""

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from tests.kit import private
from tests.kit.machines import LinuxMachine, inside, machines
from tests.kit.pages import OPERATORS
from tests.tidy.house import ROOT

OWN = ("/etc", "/var", "/root", "/opt", "/usr/local")
SECONDS_MAX = 180
# the lines of "Virtual environment" that follow those of pip
INSTALL = OPERATORS.partition("--no-build-isolation --no-deps .\nuseradd ")[2].partition("```")[0].join(["useradd ", ""])
PROGRAM = f"""#!/bin/sh
export PYTHONPATH=/opt/checkout
exec "{sys.executable.replace(str(ROOT), "/opt/checkout")}" -m shadowrelay "$@"
"""
SYSTEMCTL = r"""#!/bin/bash -e
# what systemctl does here: it knows the units of these tests
act=$1; shift
while [[ $1 == --* ]]; do case $1 in --signal) name=$2; shift 2 ;; *) shift ;; esac; done
pid=/run/$1.pid
ended() { while [ -s "$pid" ] && grep -Eqs '^State:\s+[^ZX]' "/proc/$(cat "$pid")/status"; do sleep 0.1; done; rm -f "$pid"; }
begin() {
    case $1 in
    shadowrelay)
        install -d -m 700 -o shadowrelay -g shadowrelay /var/lib/shadowrelay
        install -d -m 750 -o shadowrelay -g shadowrelay /var/log/shadowrelay
        setpriv --reuid shadowrelay --regid shadowrelay --clear-groups --inh-caps +net_bind_service --ambient-caps +net_bind_service \
            /opt/shadowrelay/bin/shadowrelay serve --config /etc/shadowrelay/node.toml >> /var/log/shadowrelay.log 2>&1 &
        echo $! > "$pid" ;;
    rspamd)
        install -d -o _rspamd -g _rspamd /run/rspamd
        rspamd -f -u _rspamd -g _rspamd -c /etc/rspamd/rspamd.conf >> /var/log/rspamd.out 2>&1 &
        echo $! > "$pid" ;;
    haproxy) install -d /run/haproxy; haproxy -W -db -f /etc/haproxy/haproxy.cfg >> /var/log/haproxy.out 2>&1 & echo $! > "$pid" ;;
    dovecot) dovecot -F >> /var/log/dovecot.out 2>&1 & echo $! > "$pid" ;;
    postfix) postfix start ;;
    esac
}
case $act-$1 in
enable-* | start-*) begin "$1" ;;
reload-haproxy | restart-haproxy | restart-rspamd | restart-shadowrelay | restart-dovecot)
    if [ -s "$pid" ]; then kill "$(cat "$pid")"; ended; fi; begin "$1" ;;
reload-shadowrelay) kill -HUP "$(cat "$pid")" ;;
*-postfix) postfix "$act" ;;
stop-*) kill "$(cat "$pid")"; ended ;;
kill-*) kill -s "${name:-TERM}" "$(cat "$pid")"; [ "$name" != KILL ] || ended ;;
*) echo "systemctl $act $1 is not played here" >&2; exit 1 ;;
esac
"""


class Server:
    """`types` is what an administrator who is root does on it."""

    def __init__(self, machine: LinuxMachine, address: str, directory: Path) -> None:
        self.address, self.directory = address, directory
        self._machine, self._first = machine, 0
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, hosts: Mapping[str, str]) -> None:
        """It knows the others by these names."""
        mounts = ""
        for own in OWN:
            ours = f"{self.directory}{own}"
            layers = f"lowerdir={own},upperdir={ours}/changed,workdir={ours}/scratch"
            mounts += f"mkdir -p {ours}/changed {ours}/scratch && mount -t overlay overlay -o {layers} {own} && "
        script = (
            f"mount -t tmpfs memory {self.directory} && {mounts}mount -t tmpfs run /run && mkdir -p /opt/checkout /opt/shadowrelay/bin && "
            f"mount --bind {ROOT} /opt/checkout && mount -t proc proc /proc && "
            f"echo {uuid.uuid4()} > /run/boot_id && mount --bind /run/boot_id /proc/sys/kernel/random/boot_id && "
            "echo begun && exec cat"  # it ends with its input, so a test that is killed leaves no server behind
        )
        command = [*self._machine.inside, *private.UNSHARE, "sh", "-c", script]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True)
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == b"begun\n"
        (self._first,) = private.children_of(self._process.pid)
        others = "".join(f"{address} {name} {name.partition('.')[0]}\n" for name, address in hosts.items())
        name = next(name for name, address in hosts.items() if address == self.address)
        self.writes("/etc/hosts", f"127.0.0.1 localhost\n{others}")
        self.writes("/etc/resolv.conf", "nameserver 127.0.0.1\noptions timeout:1 attempts:1\n")
        self.writes("/etc/mailname", f"{name}\n")
        here = {"/usr/local/bin/systemctl": SYSTEMCTL, "/usr/local/bin/apt-get": "#!/bin/sh\n", "/opt/shadowrelay/bin/shadowrelay": PROGRAM}
        for path, text in here.items():
            self.writes(path, text)
            self.path(path).chmod(0o755)
        self.types(INSTALL)
        self.types(
            "postconf -e myhostname=$(cat /etc/mailname) mydestination= maillog_file=/var/log/mail.log; rm -f /var/lib/postfix/*.pid"
        )

    def types(self, command: str, code: int | None = 0, seconds: float = SECONDS_MAX) -> str:
        """What it says. `code`: with which it has to end."""
        with tempfile.TemporaryFile("w+") as said:  # services that it starts would keep a pipe open
            words = ["nsenter", "--target", str(self._first), "--mount", "--net", "--pid", "bash", "-e", "-c", f"cd /root; {command}"]
            environment = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root", "COLUMNS": "200"}
            shell = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=said, stderr=subprocess.STDOUT, env=environment)
            with contextlib.suppress(subprocess.TimeoutExpired):
                shell.wait(seconds)
            shell.kill()
            said.seek(0)
            text = said.read()
        assert code in (None, shell.wait()), f"{command}: {shell.returncode}\n{text[-3000:]}{self.logs()}"
        return text

    def writes(self, path: str, text: str) -> None:
        """A file of it."""
        self.path(path).write_text(text)

    def path(self, name: str) -> Path:
        """A file of it, from outside."""
        return Path(f"/proc/{self._first}/root{name}")

    def logs(self) -> str:
        """The ends of what its services said."""
        names = ("shadowrelay.log", "rspamd.out", "haproxy.out", "dovecot.out", "mail.log")
        found = [(name, self.path(f"/var/log/{name}")) for name in names]
        return "".join(f"\n{name}:\n{path.read_text(errors='replace')[-1500:]}" for name, path in found if path.exists())

    def stop(self) -> None:
        if self._process is not None:
            if self._first:  # 0 is the process group of the test
                with contextlib.suppress(ProcessLookupError):
                    os.kill(self._first, signal.SIGKILL)
            self._process.kill()
            self._process.communicate()


def obstacle(programs: Sequence[str]) -> str:
    """Why there can be no such servers here; empty: there can."""
    from tests.kit import machines as linux

    if why := linux.obstacle():
        return why
    if not private.is_possible():
        return "needs mount and process namespaces (unshare)"
    missing = [name for name in programs if not Path("/usr/sbin", name).exists() and not Path("/usr/bin", name).exists()]
    return f"needs {', '.join(missing)}: requirements/setup.sh interop" if missing else ""


@contextlib.contextmanager
def servers(addresses: Mapping[str, str]) -> Iterator[dict[str, Server]]:
    """By the first words of their names; each reaches each at the address that it is given."""
    with contextlib.ExitStack() as stack:
        hub = stack.enter_context(machines(list(addresses)))
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="shadowrelay-servers-", dir="/tmp")))
        found: dict[str, Server] = {}
        for (name, address), machine in zip(addresses.items(), hub.machines.values(), strict=True):
            with inside(machine.namespace):
                _ip(f"address add {address}/32 dev hub", f"route replace default via 10.77.{machine.number}.1 src {address}")
            with inside(hub.namespace):
                _ip(f"route add {address} via {machine.host}")
            place = directory / name
            place.mkdir()
            server = found[name.partition(".")[0]] = Server(machine, address, place)
            stack.callback(server.stop)
            server.start(addresses)
        yield found


def _ip(*commands: str) -> None:
    for command in commands:
        subprocess.run(["ip", *command.split()], check=True, capture_output=True, text=True)
