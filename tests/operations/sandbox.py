"""What systemd does with a unit's hardening, as far as it can be done without systemd: run as root in a mount namespace of its own.

    python sandbox.py <unit> <uid> <directory that may be written>… -- <command>…

Done: read-only file system but for the given directories, empty /home, /root and /tmp (but for the checkout of this file, which a service
would have in /opt), /proc as ProtectProc and ProcSubset want,
the user, no privileges but those in CapabilityBoundingSet, no new ones, the system call filter (SystemCallFilter,
SystemCallErrorNumber, RestrictAddressFamilies, MemoryDenyWriteExecute) by libseccomp. Not done: cgroups, PrivateDevices, key rings.
Stands alone: it imports nothing of ours.
"""

import ctypes
import errno
import os
import subprocess
import sys

ALLOW, ERRNO = 0x7FFF0000, 0x00050000
EQ, MASKED_EQ = 4, 7
PROT_WRITE, PROT_EXEC = 2, 4
FAMILIES = {"AF_UNIX": 1, "AF_INET": 2, "AF_INET6": 10}
FAMILY_NUMBERS = range(46)
EMPTIED = ("/home", "/root", "/tmp")
CHECKOUT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
ASIDE = "/mnt"  # an empty directory of every Linux
MOUNT_SETATTR, AT_FDCWD, AT_RECURSIVE, ATTR_RDONLY = 442, -100, 0x8000, 1


class Comparison(ctypes.Structure):
    """`struct scmp_arg_cmp`."""

    _fields_ = (("arg", ctypes.c_uint), ("op", ctypes.c_int), ("a", ctypes.c_uint64), ("b", ctypes.c_uint64))


def settings_of(unit: str) -> dict[str, list[str]]:
    """Key -> its words, of all lines with that key."""
    found: dict[str, list[str]] = {}
    with open(unit, encoding="utf-8") as file:
        for line in file:
            key, separator, value = line.strip().partition("=")
            if separator and not line.startswith("#"):
                found.setdefault(key, []).extend(["~", *value[1:].split()] if value.startswith("~") else value.split())
    return found


def calls_in(group: str) -> set[str]:
    """System calls of a group of systemd, or the call itself."""
    if not group.startswith("@"):
        return {group}
    said = subprocess.run(["systemd-analyze", "syscall-filter", group], capture_output=True, text=True, check=True).stdout
    words = [line.strip() for line in said.splitlines()[1:] if line.strip() and not line.strip().startswith("#")]
    return set().union(*map(calls_in, words))


def allowed_calls(words: list[str]) -> set[str]:
    """Of SystemCallFilter: groups, and behind a ~ those that are taken out again."""
    allowed: set[str] = set()
    is_taken_out = False
    for word in words:
        if word == "~":
            is_taken_out = True
        elif is_taken_out:
            allowed -= calls_in(word)
        else:
            allowed |= calls_in(word)
    return allowed | calls_in("@default")


class Filter:
    """A filter of libseccomp."""

    def __init__(self, default: int) -> None:
        self._library = ctypes.CDLL("libseccomp.so.2")
        self._library.seccomp_init.restype = ctypes.c_void_p
        self._filter = ctypes.c_void_p(self._library.seccomp_init(ctypes.c_uint32(default)))

    def add(self, action: int, call: str, *comparisons: Comparison) -> None:
        """Calls that this kernel does not have are left out."""
        number = self._library.seccomp_syscall_resolve_name(call.encode())
        if number >= 0:
            array = (Comparison * len(comparisons))(*comparisons)
            done = self._library.seccomp_rule_add_array(self._filter, ctypes.c_uint32(action), number, len(comparisons), array)
            if done != 0:
                raise OSError(-done, f"seccomp rule for {call}")

    def load(self) -> None:
        """From now on, for this process and what it becomes."""
        done = self._library.seccomp_load(self._filter)
        if done != 0:
            raise OSError(-done, "seccomp_load")


def filter_calls(settings: dict[str, list[str]]) -> None:
    """What may not be called, first by its arguments, then by its name."""
    refusals = Filter(ALLOW)
    if settings.get("MemoryDenyWriteExecute") == ["yes"]:
        both = PROT_WRITE | PROT_EXEC
        refusals.add(ERRNO | errno.EPERM, "mmap", Comparison(2, MASKED_EQ, both, both))
        for call in ("mprotect", "pkey_mprotect"):
            refusals.add(ERRNO | errno.EPERM, call, Comparison(2, MASKED_EQ, PROT_EXEC, PROT_EXEC))
    families = {FAMILIES[word] for word in settings.get("RestrictAddressFamilies", [])}
    for number in FAMILY_NUMBERS:
        if families and number not in families:
            refusals.add(ERRNO | errno.EAFNOSUPPORT, "socket", Comparison(0, EQ, number))
    refusals.load()
    error = getattr(errno, settings["SystemCallErrorNumber"][0])
    by_name = Filter(ERRNO | error)
    for call in sorted(allowed_calls(settings["SystemCallFilter"])):
        by_name.add(ALLOW, call)
    by_name.load()


def set_read_only(path: str, *, is_read_only: bool, flags: int = AT_RECURSIVE) -> None:
    attributes = (ctypes.c_uint64 * 4)(ATTR_RDONLY if is_read_only else 0, 0 if is_read_only else ATTR_RDONLY, 0, 0)
    library = ctypes.CDLL(None, use_errno=True)
    if library.syscall(MOUNT_SETATTR, AT_FDCWD, path.encode(), flags, attributes, 32) != 0:
        raise OSError(ctypes.get_errno(), f"mount_setattr {path}")


def arrange_files(writable: list[str]) -> None:
    """ProtectSystem=strict, ProtectHome, PrivateTmp, ProtectProc=invisible, ProcSubset=pid."""
    run = lambda *words: subprocess.run(["mount", *words], check=True)  # noqa: E731
    hidden = [path for path in EMPTIED if CHECKOUT.startswith(f"{path}/")]
    for path in writable:
        run("--bind", path, path)
    if hidden:
        run("--bind", CHECKOUT, ASIDE)
    set_read_only("/", is_read_only=True)
    for path in writable:
        set_read_only(path, is_read_only=False)
    for path in EMPTIED:
        run("-t", "tmpfs", "-o", "mode=1777" if path == "/tmp" else "mode=0755", "tmpfs", path)
    if hidden:
        os.makedirs(CHECKOUT)
        run("--no-mtab", "--move", ASIDE, CHECKOUT)
    run("-t", "proc", "-o", "hidepid=invisible,subset=pid", "proc", "/proc")


def main() -> None:
    """Twice: with files as root, then as the user with the filter."""
    stage, unit, uid, *rest = sys.argv[1:]
    separator = rest.index("--")
    writable, command = rest[:separator], rest[separator + 1 :]
    settings = settings_of(unit)
    if stage == "files":
        arrange_files(writable)
        right = ",".join(["-all", *(f"+{word.lower().removeprefix('cap_')}" for word in settings["CapabilityBoundingSet"])])
        os.execvp(
            "setpriv",
            ["setpriv", "--reuid", uid, "--regid", uid, "--clear-groups", "--bounding-set", right, "--inh-caps", right,
             "--ambient-caps", right, "--no-new-privs", sys.executable, __file__, "calls", unit, uid, "--", *command],
        )  # fmt: skip
    filter_calls(settings)
    os.execvp(command[0], command)


if __name__ == "__main__":
    main()
