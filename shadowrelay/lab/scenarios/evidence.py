"""Asking the witnesses: tracking logs, operator logs and admin addresses of the nodes, and the log of the sending Postfix."""

import json
import re
import subprocess
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime

from shadowrelay.lab.compose import Lab
from shadowrelay.lab.places import NODES, SENDER, LabError, machine
from shadowrelay.lab.reading import ask
from shadowrelay.lab.scenarios.figures import Database, Evidence, Told
from shadowrelay.lab.verification import Verification, injected, since
from shadowrelay.model.errors import WireError
from shadowrelay.wire.instants import format_instant
from shadowrelay.wire.tracking import parse_line

LOG_SECONDS_MAX = 60.0
TRACKING = "/var/log/shadowrelay/tracking"
# instants compare as text; header lines begin with #, which comes before any digit
ROWS_SINCE = "cat {directory}/MSGTRK*.LOG 2>/dev/null | awk -F, '$1 >= \"{instant}\"' || true"

_REPLY = re.compile(r"postfix/smtp\[\d+\]: .*host \S+\[[^\]]*\] said: ([45]\d\d [245]\.\d+\.\d+)")


def database(lab: Lab, node: str) -> Database:
    """What a living node says of its queue database. Raises: LabError if it does not answer."""
    told = ask(lab.engine, node, "/api/v1/node")
    started_at = datetime.fromisoformat(told["started_at"]).timestamp()
    return Database(str(told["database"]), int(told["incarnation"]), int(told["began"]), int(told["position"]), started_at)


def collect(
    lab: Lab,
    verification: Verification,
    began_at: float,
    databases: Mapping[str, Sequence[Database]],
    *,
    stopped: Iterable[str] = (),
    waiting: int = 0,
) -> Evidence:
    """All that is known of what was sent from `began_at` on. All nodes must be up. Units: `began_at` is time.time."""
    given, arrived = since(injected(lab.state.injected_lines()), lab.mail.arrivals(), began_at)
    return Evidence(
        verification=verification,
        told=tuple(sorted((told for node in NODES for told in _tracking(lab, node, began_at)), key=lambda told: told.event.at)),
        words=words(line for node in NODES for line in _log(lab, node, began_at)),
        replies=replies(_log(lab, SENDER, began_at)),
        databases={machine(node).server: (*series, database(lab, node)) for node, series in databases.items()},
        sent=tuple(lab.mail.sent(given)),
        arrived=tuple(arrived),
        stopped=frozenset(machine(node).server for node in stopped),
        waiting=waiting,
    )


def held_copies(lab: Lab) -> int:
    """Copies that all nodes hold for others now."""
    return sum(one.held or 0 for one in lab.status())


def words(lines: Iterable[str]) -> Counter[str]:
    """How often each event stands in operator logs (one JSON object a line; other lines are skipped)."""
    found: Counter[str] = Counter()
    for line in lines:
        try:
            value = json.loads(line)
        except ValueError:
            continue
        if isinstance(value, dict):
            found[str(value.get("event", ""))] += 1
    return found


def replies(lines: Iterable[str]) -> Counter[str]:
    """How often Postfix heard each negative reply, by its codes ("451 4.4.0")."""
    return Counter(match[1] for line in lines if (match := _REPLY.search(line)))


def rows(server: str, text: bytes) -> list[Told]:
    """Rows of a tracking log. Raises: LabError for one that cannot be read, because then nothing can be concluded."""
    try:
        return [Told(server, parse_line(line)) for line in text.splitlines(keepends=True)]
    except WireError as error:
        raise LabError(f"a row in the tracking log of {server} cannot be read: {error}") from error


def _tracking(lab: Lab, node: str, began_at: float) -> list[Told]:
    command = ROWS_SINCE.format(directory=TRACKING, instant=format_instant(datetime.fromtimestamp(began_at, UTC)))
    return rows(machine(node).server, lab.engine.execute(node, "sh", "-c", command))


def _log(lab: Lab, service: str, began_at: float) -> list[str]:
    # both streams: the nodes log to standard error, Postfix to standard output
    command = ["docker", "logs", "--since", f"{began_at:.3f}", lab.engine.container(service)]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=LOG_SECONDS_MAX, check=False)
    if done.returncode:
        raise LabError(f"the log of {service} cannot be read: {done.stdout.decode(errors='replace').strip()}")
    return done.stdout.decode(errors="replace").splitlines()
