"""What the receiving servers wrote down (`lab/mta/record.py`), as the account reads it. Pure.

Lines: {"at": time.time, "recipient", "head": header of the message as text, "own_sha256", "own_size"}.
"""

import json
import re
from collections.abc import Iterable
from email.parser import HeaderParser
from email.utils import parsedate_to_datetime

from shadowrelay.lab.sink import Arrival

_NETWORK_ID = re.compile(r"\bid ([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})")
_CLIENT = re.compile(r"from (?:\[\S+\] \((?:.*? )?helo=)?([^\s)]+)")  # Exim writes a name that DNS does not confirm as helo=
PROMOTED = "with ShadowRedundancy"
DELAY_SECONDS_MAX = 1.0  # Received: has whole seconds


def arrivals(lines: Iterable[str]) -> list[Arrival]:
    """One for each line. What the servers were late to write down counts from when they took it."""
    return [_arrival(json.loads(line)) for line in lines if line.strip()]


def _arrival(line: dict[str, str]) -> Arrival:
    header = HeaderParser().parsestr(line["head"])
    received = [" ".join(str(field).split()) for field in header.get_all("Received", [])]
    ids = [found[1] for field in received for found in [_NETWORK_ID.search(field)] if found is not None]
    client = _CLIENT.match(received[0]) if received else None
    written_at = float(line["at"])
    at = min(written_at, _taken_at(received[0]) + DELAY_SECONDS_MAX) if received else written_at
    return Arrival(
        at=at,
        recipient=line["recipient"],
        network_id=ids[-1] if ids else "",
        internet_message_id=str(header.get("Message-ID", "")),
        client_name=client[1] if client is not None else "",
        is_promoted=any(PROMOTED in field for field in received),
        own_sha256=line["own_sha256"],
    )


def _taken_at(received: str) -> float:
    return parsedate_to_datetime(received.rpartition(";")[2].strip()).timestamp()
