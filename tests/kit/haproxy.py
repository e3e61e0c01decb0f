"""A real haproxy of its own on loopback, and what it thinks of the servers behind it."""

import asyncio
import contextlib
import shutil
from collections.abc import AsyncIterator, Mapping
from pathlib import Path

from shadowrelay.model.routing import HostPort
from tests.kit.clock import until
from tests.kit.postfix import free_port

HAPROXY = shutil.which("haproxy", path="/usr/sbin:/usr/bin")
CONFIGURATION = """
global
    stats socket {socket} mode 600 level admin
defaults
    mode tcp
    timeout connect 5s
    timeout client 60s
    timeout server 60s
listen smtp
    bind 127.0.0.1:{port}
    option smtpchk EHLO haproxy.corp.example
    default-server {options} check inter 200ms
"""


async def states_of(socket: Path) -> dict[str, list[str]]:
    """What it says of each server: the state, and of the last health check the result and the code of the reply."""
    reader, writer = await asyncio.open_unix_connection(socket)
    writer.write(b"show stat\n")
    lines = (await reader.read()).decode().lstrip("# ").splitlines()
    writer.close()
    await writer.wait_closed()
    rows = [dict(zip(lines[0].split(","), line.split(","), strict=False)) for line in lines if line.startswith("smtp,")]
    return {row["svname"]: [row["status"], row["check_status"], row["check_code"]] for row in rows}


@contextlib.asynccontextmanager
async def haproxy(directory: Path, servers: Mapping[str, HostPort], options: str = "") -> AsyncIterator[tuple[HostPort, Path]]:
    """In front of these servers: its port, and the socket to ask it."""
    port, socket = free_port(), directory / "haproxy.sock"
    file = directory / "haproxy.cfg"
    lines = "".join(f"    server {name} 127.0.0.1:{address.port}\n" for name, address in servers.items())
    file.write_text(CONFIGURATION.format(socket=socket, port=port, options=options) + lines)
    process = await asyncio.create_subprocess_exec(str(HAPROXY), "-db", "-f", str(file), stderr=asyncio.subprocess.DEVNULL)
    try:
        await until(socket.exists)
        yield HostPort("127.0.0.1", port), socket
    finally:
        process.terminate()
        await process.wait()
