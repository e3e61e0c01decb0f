"""`lab verify`: compares what the nodes acknowledged to Postfix with what arrived at the receiving servers. Pure. docs/lab.md.

The evidence comes from real mail servers; the nodes are asked only for their unfinished messages. `arrivals` parses the receiving servers'
records (`lab/mta/record.py`), a JSON object per line: {"at": time.time, "recipient", "head": header of the message as text,
"own_sha256", "own_size"}. `tries` parses the sending Postfix's log of its attempts, from `docker logs --timestamps`: an instant
(2026-11-21T12:00:00.123456789Z), a space, and Postfix's line. `lab.account` judges duplicates.
"""

import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass, field
from datetime import datetime
from email.parser import HeaderParser
from email.utils import parsedate_to_datetime

from shadowrelay.lab.account import Duplicate, Fault, FaultTimes, account
from shadowrelay.lab.traffic import Arrival, Sent, Submission, SubmissionResult

# ---- records of the receiving servers

_NETWORK_ID = re.compile(r"\bid ([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})")
_CLIENT = re.compile(r"from (?:\[\S+\] \((?:.*? )?helo=)?([^\s)]+)")  # Exim writes a name that DNS does not confirm as helo=
PROMOTED = "with ShadowRedundancy"
RESUBMITTED = "with SafetyNet"
DELAY_SECONDS_MAX = 1.0  # Received: has whole seconds


def arrivals(lines: Iterable[str]) -> list[Arrival]:
    """One arrival per line. If the server recorded it late, the time of the `Received` header counts."""
    return [_arrival(json.loads(line)) for line in lines if line.strip()]


def _arrival(line: dict[str, str]) -> Arrival:
    header = HeaderParser().parsestr(line["head"])
    received = [" ".join(str(field).split()) for field in header.get_all("Received", [])]
    ids = [found[1] for field in received for found in [_NETWORK_ID.search(field)] if found is not None]
    client = _CLIENT.match(received[0]) if received else None
    written_at = float(line["at"])
    at = written_at
    if received:
        taken_at = parsedate_to_datetime(received[0].rpartition(";")[2].strip()).timestamp()
        at = min(written_at, taken_at + DELAY_SECONDS_MAX)
    return Arrival(
        at=at,
        recipient=line["recipient"],
        network_id=ids[-1] if ids else "",
        internet_message_id=str(header.get("Message-ID", "")),
        client_name=client[1] if client is not None else "",
        is_promoted=any(PROMOTED in field for field in received),
        own_sha256=line["own_sha256"],
        is_resubmitted=any(RESUBMITTED in field for field in received),
    )


# ---- Postfix's log of replies from the nodes

SAME_TRY_SECONDS = 0.5  # Postfix logs one line for each recipient of a try
UNANSWERED = "message may be sent more than once"

_LINE = re.compile(r"(?P<at>\S+) .*postfix/smtp\[\d+\]: (?P<queue_id>[0-9A-Za-z]+): (?P<text>.*)")
_SENT = re.compile(r"relay=(?P<node>[^\[]+)\[.* status=sent \(250 .*Queued as (?P<id>[0-9a-f-]{36})")
_REFUSED = re.compile(r"host (?P<node>[^\[ ]+)\[[^\]]*\] said: [45]\d\d .*in reply to end of DATA command")
_BROKEN = re.compile(r"(?:lost connection with|conversation with) (?P<node>[^\[ ]+)\[")

Tries = dict[str, list[Submission]]


def tries(lines: Iterable[str]) -> Tries:
    """Tries by Postfix's queue id, in order. Only tries that reached the final dot: before it, a node has
    stored nothing."""
    found: Tries = defaultdict(list)
    for line in lines:
        match = _LINE.match(line)
        submission = _submission(_instant(match["at"]), match["text"]) if match else None
        if match and submission is not None and not _is_same(found[match["queue_id"]], submission):
            found[match["queue_id"]].append(submission)
    return dict(found)


def _submission(at: float, text: str) -> Submission | None:
    sent = _SENT.search(text)
    if sent is not None:
        return Submission(at, sent["node"], SubmissionResult.ACKNOWLEDGED, sent["id"])
    broken = _BROKEN.search(text)
    if broken is not None:
        return Submission(at, broken["node"], SubmissionResult.NOTHING) if UNANSWERED in text else None
    refused = _REFUSED.search(text)
    return Submission(at, refused["node"], SubmissionResult.REFUSED) if refused is not None else None


def _is_same(before: list[Submission], one: Submission) -> bool:
    return any(
        (other.node, other.answer, other.network_id) == (one.node, one.answer, one.network_id) and one.at - other.at < SAME_TRY_SECONDS
        for other in before
    )


def _instant(text: str) -> float:
    """Docker writes nanoseconds; Python parses six digits."""
    return datetime.fromisoformat(re.sub(r"(\.\d{6})\d*", r"\1", text).replace("Z", "+00:00")).timestamp()


# ---- the comparison

TIMES = FaultTimes(span=20.0, heartbeat=2.0, poll=1.0)  # as in lab/nodes/*.toml; a test compares
NOTICES_TO = "@client.example"  # DSNs return to this sender: they are not mail that it sent


@dataclass(frozen=True, slots=True)
class Injected:
    """A message given to the sending Postfix, which queued it as `queue_id` (empty: refused). Units: `at` is time.time."""

    number: int
    internet_message_id: str
    recipients: tuple[str, ...]
    own_sha256: str
    queue_id: str
    at: float


@dataclass(slots=True)
class Verification:
    """Figures in messages. Shapes: `lost`, `changed` and `still_queued` are network message ids; a queued message may have arrived too, and
    missing messages may be on `silent` nodes.

    `not_acknowledged`: accepted by no node; `unaccounted` of these (internet message ids) are not queued at Postfix either.
    """

    acknowledged: int = 0
    arrived: int = 0
    taken_over: int = 0
    not_acknowledged: int = 0
    notices: int = 0
    lost: list[str] = field(default_factory=list)
    changed: list[str] = field(default_factory=list)
    still_queued: list[str] = field(default_factory=list)
    unaccounted: list[str] = field(default_factory=list)
    silent: list[str] = field(default_factory=list)
    duplicates: list[Duplicate] = field(default_factory=list)
    last_taken_over_at: float = 0.0
    resubmitted: list[Arrival] = field(default_factory=list)  # from Safety Net, on request: no duplicates

    @property
    def unexplained(self) -> list[Duplicate]:
        """Duplicates without a cause of I4."""
        return [duplicate for duplicate in self.duplicates if duplicate.cause == "unexplained"]

    @property
    def is_good(self) -> bool:
        """Nothing lost, changed, still queued or unaccounted for; every duplicate has a cause."""
        return not (self.lost or self.changed or self.still_queued or self.unaccounted or self.unexplained)

    @property
    def causes(self) -> dict[str, int]:
        """Number of duplicates by cause."""
        return dict(sorted(Counter(str(duplicate.cause) for duplicate in self.duplicates).items()))

    def line(self) -> str:
        """The last line of `lab verify`."""
        causes = ", ".join(f"{cause}: {count}" for cause, count in self.causes.items())
        duplicated = f"{len(self.duplicates)} ({causes})" if causes else "0"
        return (
            f"acknowledged {self.acknowledged}, arrived {self.arrived}, lost {len(self.lost)}, duplicated {duplicated}, "
            f"taken over {self.taken_over}, still queued {len(self.still_queued)}"
        )


def injected(lines: Iterable[str]) -> list[Injected]:
    """From the lines of `lab/mta/inject.py`."""
    values = (json.loads(line) for line in lines if line.strip())
    return [Injected(**{**value, "recipients": tuple(value["recipients"])}) for value in values]


def sent_messages(given: Iterable[Injected], heard: Tries) -> list[Sent]:
    """The client's records: each message with its tries. Messages that Postfix refused count as not sent."""
    return [
        Sent(one.number, one.internet_message_id, one.recipients, one.own_sha256, list(heard.get(one.queue_id, ())))
        for one in given
        if one.queue_id
    ]


def since(
    given: Iterable[Injected], arrived: Iterable[Arrival], began_at: float, later: Iterable[Injected] = ()
) -> tuple[list[Injected], list[Arrival]]:
    """Only messages sent from `began_at` on, and arrivals without those of other mail: earlier mail, and mail in `later`.

    Shapes: `later` is everything known now; what is not in `given` was sent while the evidence was collected.
    """
    everything = list(given)
    mine = [one for one in everything if one.at >= began_at]
    wanted = {one.internet_message_id for one in mine}
    others = {one.internet_message_id for one in (*everything, *later)} - wanted
    return mine, [one for one in arrived if one.internet_message_id not in others]


def verify(
    sent: Sequence[Sent],
    arrived: Iterable[Arrival],
    faults: Sequence[Fault],
    queued: Set[str],
    *,
    at_sender: Set[str] = frozenset(),
    is_receiver_busy: bool = False,
    silent: Sequence[str] = (),
) -> Verification:
    """Compare. Shapes: `queued` has the network ids of unfinished messages on running nodes, `at_sender` the internet message ids that
    Postfix still has. `is_receiver_busy`: a receiving server has accepted mail that it has not recorded yet, which may be the missing
    mail; so may mail on the `silent` nodes, which are down or paused. Nothing is called lost before all servers were asked."""
    mail = list(arrived)
    notices = [arrival for arrival in mail if arrival.recipient.endswith(NOTICES_TO)]
    again = [arrival for arrival in mail if arrival.is_resubmitted]
    mine = [arrival for arrival in mail if not (arrival.is_resubmitted or arrival.recipient.endswith(NOTICES_TO))]
    result = account(sent, mine, faults, TIMES)
    missing = result.lost
    taken = [network_id for one in sent for network_id in one.acknowledged_ids]
    maybe = set(missing) if is_receiver_busy or silent else set()
    still_queued = [network_id for network_id in taken if network_id in queued or network_id in maybe]
    untaken = [one.internet_message_id for one in sent if not one.acknowledged_ids]
    return Verification(
        acknowledged=result.accepted,
        arrived=result.delivered,
        taken_over=result.taken_over,
        not_acknowledged=len(untaken),
        notices=len(notices),
        lost=[network_id for network_id in missing if network_id not in set(still_queued)],
        changed=result.changed,
        still_queued=still_queued,
        unaccounted=[message_id for message_id in untaken if message_id not in at_sender],
        silent=list(silent),
        duplicates=result.duplicates,
        last_taken_over_at=result.last_taken_over_at,
        resubmitted=again,
    )
