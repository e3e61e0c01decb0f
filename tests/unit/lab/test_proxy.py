"""The wires of the lab do to connections what they say."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from shadowrelay.lab.cluster import Passing, Wire
from shadowrelay.model.routing import HostPort
from tests.kit.clock import PATIENCE_SECONDS

Ends = tuple[asyncio.StreamReader, asyncio.StreamWriter]
CONFIRMED = b"250 2.0.0 Held\r\n"


@asynccontextmanager
async def a_wire() -> AsyncIterator[tuple[Wire, Ends, Ends]]:
    """The wire, the caller's end of one session, and the far end."""
    called: asyncio.Queue[Ends] = asyncio.Queue()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await called.put((reader, writer))

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    wire = Wire(HostPort("127.0.0.1", int(server.sockets[0].getsockname()[1])))
    address = await wire.start()
    near = await asyncio.open_connection(address.host, address.port)
    far = await called.get()
    try:
        async with asyncio.timeout(PATIENCE_SECONDS):
            yield wire, near, far
    finally:
        await wire.close()
        for _, writer in (near, far):
            writer.close()
            await asyncio.gather(writer.wait_closed(), return_exceptions=True)
        server.close()
        await server.wait_closed()


async def test_a_whole_wire_passes_everything_both_ways() -> None:
    async with a_wire() as (_, near, far):
        near[1].write(b"question\r\n")
        far[1].write(b"answer\r\n")

        assert (b"question\r\n", b"answer\r\n") == (await far[0].readline(), await near[0].readline())


async def test_what_is_sent_over_a_cut_wire_arrives_when_it_is_healed() -> None:
    async with a_wire() as (wire, near, far):
        wire.cut()
        near[1].write(b"question\r\n")
        waiting = asyncio.ensure_future(far[0].readline())
        for _ in range(50):
            await asyncio.sleep(0)
        arrived_before = waiting.done()
        wire.heal()

        assert (False, b"question\r\n") == (arrived_before, await waiting)


async def test_a_broken_session_ends_for_both() -> None:
    async with a_wire() as (wire, near, far):
        wire.break_sessions()
        ends = await asyncio.gather(near[0].read(), far[0].read(), return_exceptions=True)

        assert [True, True] == [end == b"" or isinstance(end, ConnectionError) for end in ends]


async def test_a_copy_breaks_off_in_the_middle_once() -> None:
    async with a_wire() as (wire, near, far):
        wire.copies_to_break = 1
        copy = b"MAIL FROM:<> XSHADOW=HOLD:1:1.1\r\n" + b"x" * 200
        near[1].write(copy)
        (arrived,) = await asyncio.gather(far[0].read(), return_exceptions=True)

        assert isinstance(arrived, ConnectionError) or (copy.startswith(arrived) and 0 < len(arrived) < len(copy))
        assert 0 == wire.copies_to_break


async def test_the_commit_of_a_copy_and_its_confirmation_are_seen_before_and_after_they_pass() -> None:
    async with a_wire() as (wire, near, far):
        seen: list[Passing] = []
        wire.on_passing = seen.append
        near[1].write(b"XSHADOW COMMIT size=1\r\n")
        await far[0].readline()
        far[1].write(CONFIRMED)
        await near[0].readline()
        while len(seen) < 4:
            await asyncio.sleep(0)

        assert [Passing.COMMIT_ARRIVES, Passing.COMMIT_PASSED, Passing.HELD_ARRIVES, Passing.HELD_PASSED] == seen
