"""`python -m shadowrelay` without its imports, which are nine tenths of a node's start.

A process that has imported everything forks for each start. What comes of it is a child of whoever asked, like any other, with arguments,
variables, a directory and standard files of its own, to be waited for, signalled and killed. tests/process/test_two_nodes.py starts cold,
and so do tests in which a library reads variables when it is imported, as fsspec does.

At its end the interpreter does not tidy up its memory, which costs nearly as much as a start: each page that it shares is copied for that.
"""

import atexit
import ctypes
import gc
import json
import os
import runpy
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from importlib import import_module
from typing import Any, NoReturn

import typer.main

PROGRAM = ("-m", "shadowrelay")
IMPORTED = (
    "shadowrelay.cli.main",
    "shadowrelay.node.process",
    "aiosqlite",
    "pydantic.v1",
    "uvicorn.lifespan.off",
)  # the last three: by a start
CHANGED = ("from shadowrelay.cli.main import app", "from shadowrelay.cli import main")  # in a `-c`: the program with something replaced
REQUEST_BYTES_MAX = 128 * 1024
SUBREAPER = 36  # PR_SET_CHILD_SUBREAPER: who inherits the children of those that have ended
NONE = -1  # a standard file that is the starter's own


class Warm:
    """Starts them in the place of `subprocess`, which starts other programs as ever. So does whoever uses a shell, or another module."""

    def __init__(self) -> None:
        self._start = subprocess._fork_exec  # type: ignore[attr-defined]
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, REQUEST_BYTES_MAX)
        self._socket = ours
        self._prctl = ctypes.CDLL(None).prctl
        with theirs:
            self._process = subprocess.Popen([sys.executable, "-P", __file__, str(theirs.fileno())], pass_fds=(theirs.fileno(),))

    def close(self) -> None:
        self._socket.close()
        self._process.wait()

    def __call__(self, arguments: Sequence[str | bytes], *others: Any) -> int:
        """In the place of `_fork_exec`, with its arguments."""
        _, _, kept, directory, variables, stdin, _, _, stdout, _, stderr, _, _, _, is_session, *_ = others
        python, *words = (os.fsdecode(each) for each in arguments)
        is_ours = tuple(words[:2]) == PROGRAM or (words[:1] == ["-c"] and any(text in words[1] for text in CHANGED))
        if python != sys.executable or not is_ours or len(kept) > 1:  # one is for the news of a failed start
            return self._start(arguments, *others)
        told = [text.split(b"=", 1) for text in variables] if variables is not None else os.environb.items()
        request = {
            "words": words,
            "directory": os.fsdecode(directory or os.getcwd()),
            "variables": {os.fsdecode(name): os.fsdecode(value) for name, value in told},
            "is_session": bool(is_session),
        }
        files = [own if given == NONE else given for own, given in enumerate((stdin, stdout, stderr))]
        self._prctl(SUBREAPER, 1, 0, 0, 0)
        try:
            socket.send_fds(self._socket, [json.dumps(request).encode()], files)
            return int(self._socket.recv(16))
        finally:
            self._prctl(SUBREAPER, 0, 0, 0, 0)


def main(requests: socket.socket) -> None:
    """Each request becomes a process, which goes on behind `next_request`."""
    for name in IMPORTED:
        import_module(name)
    commands = typer.main.get_command(sys.modules["shadowrelay.cli.main"].app)  # of each command its options: half of what one costs
    typer.main.get_command = lambda _: commands
    gc.freeze()  # what all share is not written to
    request = next_request(requests)
    if request["is_session"]:
        os.setsid()
    os.chdir(request["directory"])
    os.environ.clear()
    os.environ.update(request["variables"])
    time.tzset()
    option, program, *arguments = request["words"]
    sys.argv = [option, *arguments]
    try:
        if option == "-c":
            exec(program, {"__name__": "__main__"})
        else:
            runpy.run_module(program, run_name="__main__", alter_sys=True)
    except SystemExit as ended:
        if not isinstance(ended.code, int):
            raise
        end(ended.code)
    end(0)


def end(code: int) -> NoReturn:
    """As the interpreter ends, but for its memory."""
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def next_request(requests: socket.socket) -> dict[str, Any]:
    """Returns in the new process, once. Without its parent it is the starter's child, if that has asked to inherit."""
    while True:
        data, files, _, _ = socket.recv_fds(requests, REQUEST_BYTES_MAX, 3)
        if not data:
            sys.exit()
        answer, told = os.pipe()
        parent = os.fork()
        if not parent:
            process = os.fork()
            if process:
                os.write(told, str(process).encode())
                os._exit(0)
            for number, file in enumerate(files):
                os.dup2(file, number)
            for file in (*files, answer, told, requests.detach()):
                os.close(file)
            return dict(json.loads(data))
        os.waitpid(parent, 0)
        requests.send(os.read(answer, 16))
        for file in (*files, answer, told):
            os.close(file)


if __name__ == "__main__":
    main(socket.socket(fileno=int(sys.argv[1])))
