"""A process that is killed in the middle of its work: everything it reported as committed is there, whole."""

import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from shadowrelay.model.ownership import Role
from shadowrelay.store import reading
from tests.kit.clock import PATIENCE_SECONDS
from tests.kit.ledger import THEIR_DATABASE, THERE, a_ledger

SCRIPT = """
import asyncio, sys
from pathlib import Path
from shadowrelay.store import Ledger, promises
from tests.kit.clock import PATIENCE_SECONDS
from tests.kit.ledger import HERE, NOW, a_content, a_new_message, all_done, an_attempt, choose

async def one(ledger, number):
    message = a_new_message()
    message_id = message.envelope.message_id
    await ledger.commit(promises.accepted, message, a_content(message_id.encode() * 100), decided=False)
    print("accepted", message_id, flush=True)
    await ledger.commit(promises.verdict, message_id, choose)
    with ledger.handling(message_id):
        pass
    await ledger.commit(promises.attempt, an_attempt(message_id), all_done)
    print("delivered", message_id, flush=True)

async def main():
    ledger = await Ledger.open(Path(sys.argv[1]), server=HERE, now=lambda: NOW)
    for batch in range(10_000):
        await asyncio.gather(*(one(ledger, number) for number in range(20)))

asyncio.run(main())
"""
LINES = (30, 333, 1000)


@pytest.mark.slow
@pytest.mark.parametrize("lines_count", LINES)
async def test_what_was_reported_before_a_kill_is_there_after_it(tmp_path: Path, lines_count: int) -> None:
    process = subprocess.Popen([sys.executable, "-c", SCRIPT, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    watchdog = threading.Timer(PATIENCE_SECONDS, process.kill)
    watchdog.start()
    lines = [process.stdout.readline() for _ in range(lines_count)]
    process.send_signal(signal.SIGKILL)
    lines.extend(process.stdout.readlines())
    watchdog.cancel()
    process.stdout.close()
    assert -signal.SIGKILL == process.wait()
    reported = [tuple(line.split()) for line in lines if line.endswith("\n")]
    accepted = [message_id for event, message_id in reported if event == "accepted"]
    delivered = {message_id for event, message_id in reported if event == "delivered"}

    async with a_ledger(tmp_path) as ledger:
        found = await ledger.read(reading.load_many, accepted)
        contents = [await ledger.read_content(message.place) for message in found if message.place]
        events = await ledger.discards_for(THERE, THEIR_DATABASE, 10_000)

    assert not ledger.was_damaged
    assert set(accepted) == {message.envelope.message_id for message in found}
    assert [message.envelope.message_id.encode() * 100 for message in found] == [content.data for content in contents]
    assert delivered <= {message.envelope.message_id for message in found if message.claim.role is Role.DELIVERED}
    assert delivered <= {event.message_id for event in events.events}
    assert len(events.events) == len({event.sequence for event in events.events})


@pytest.mark.slow
def test_the_process_ends_after_close(tmp_path: Path) -> None:
    script = """
import asyncio, sys
from pathlib import Path
from shadowrelay.store import Ledger, reading
from tests.kit.clock import PATIENCE_SECONDS
from tests.kit.ledger import HERE, NOW, accept

async def main():
    ledger = await Ledger.open(Path(sys.argv[1]), server=HERE, now=lambda: NOW)
    stored = await accept(ledger)
    await ledger.read(reading.load, stored.envelope.message_id)
    await ledger.close()

asyncio.run(main())
"""
    finished = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path)], check=False, timeout=PATIENCE_SECONDS, capture_output=True, text=True
    )

    assert (0, "") == (finished.returncode, finished.stderr)
