"""No 250 without its flushes: what the kernel was asked to do for one message, on the server that accepts it and on its shadow server."""

import asyncio
import re
import shutil
import smtplib
from pathlib import Path

import pytest

from shadowrelay.lab.cluster import Cluster, Place, free_ports
from shadowrelay.model.routing import HostPort
from tests.kit.clock import wait_until
from tests.kit.processes import wait_until_peers_know_each_other

TRACED = ("strace", "-D", "-f", "-q", "-y", "-ttt", "-s", "200", "-e", "trace=openat,write,read,recvfrom,sendto,fsync,fdatasync", "-o")
CALL = re.compile(r"^(?P<thread>\d+) +(?P<at>[\d.]+) (?:(?P<name>\w+)\((?P<text>.*)|<\.\.\. (?P<resumed>\w+) resumed>(?P<rest>.*))$")


def events_of(trace: Path) -> list[tuple[float, str, str]]:
    """When, what and about what, in order: what goes to a disk counts when it has returned, what goes to somebody when it began."""
    found: list[tuple[float, str, str]] = []
    begun: dict[str, str] = {}
    for line in trace.read_text(errors="replace").splitlines():
        if (call := CALL.match(line)) is None:
            continue
        thread, name, text = call["thread"], call["name"] or call["resumed"], call["text"] or call["rest"] or ""
        if name in ("fsync", "fdatasync") or ".segment>" in text or thread in begun:
            if call["name"] and "unfinished" in text:
                begun[thread] = text
                continue
            text = begun.pop(thread, text)
        found.append((float(call["at"]), name, text))
    return found


def flushed_between(events: list[tuple[float, str, str]], first: str, last: str) -> tuple[set[str], float]:
    """Names of the files that were flushed between the first octets and the reply to them; and when that reply was written. A segment is
    opened so that each write is a flush."""
    began = next(place for place, (_, _, text) in enumerate(events) if first in text)
    ended = next(place for place, (_, name, text) in enumerate(events) if place > began and name in ("write", "sendto") and last in text)
    is_written_through = any(name == "openat" and ".segment" in text and "O_DSYNC" in text for _, name, text in events[:ended])
    flushed = [
        text
        for _, name, text in events[began:ended]
        if name in ("fsync", "fdatasync") or (is_written_through and name == "write" and ".segment>" in text)
    ]
    return {Path(found[1]).name for text in flushed if (found := re.search(r"<([^>]+)>", text))}, events[ended][0]


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("strace") is None, reason="needs strace")
async def test_the_kernel_is_asked_to_flush_content_and_database_on_both_nodes_before_the_250(tmp_path: Path) -> None:
    traces = {name: tmp_path / f"{name}.trace" for name in ("a.east.example", "b.west.example")}
    places = [Place(name, name[2:6], inside=(*TRACED, str(trace))) for name, trace in traces.items()]
    (nowhere,) = free_ports(1)
    async with Cluster(places, HostPort("127.0.0.1", nowhere), directory=tmp_path, transport={"shadow_timeout": "30s"}) as cluster:
        nodes = list(cluster.nodes.values())
        await asyncio.to_thread(wait_until_peers_know_each_other, nodes)

        def submit() -> None:
            with smtplib.SMTP(nodes[0].address.host, nodes[0].address.port, timeout=60) as client:
                client.sendmail("sender@client.example", ["user@corp.example"], b"Subject: flushed\r\n\r\nhello\r\n")

        await asyncio.to_thread(submit)
    for trace in traces.values():
        wait_until(lambda trace=trace: "exited with" in trace.read_text(errors="replace"), what="the end of strace")

    here, there = (events_of(trace) for trace in traces.values())
    flushed_here, answered_at = flushed_between(here, "354 ", "250 2.0.0 Queued as ")
    flushed_there, held_at = flushed_between(there, "XSHADOW=HOLD:", "250 2.0.0 Held position=")

    for flushed in (flushed_here, flushed_there):
        assert "queue.db-wal" in flushed
        assert any(name.endswith(".segment") for name in flushed), flushed
    assert held_at <= answered_at
