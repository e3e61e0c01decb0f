"""What an episode with refused recipients, edges and cuts must show besides what `evidence` asks: every failed recipient is returned and no
other, somebody owns what waits, and what a previous hop did explains what the next hops could not know."""

import asyncio
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from shadowrelay.admin.api_client import NodeError
from shadowrelay.lab.account import Account, Cause, Fault, cause_of, reached
from shadowrelay.lab.traffic import Arrival, Sent, SubmissionResult
from tests.crash.evidence import NO_REPLY, Line
from tests.crash.layout import Layout
from tests.crash.outage_plan import TIMES
from tests.crash.site import GONE, Site
from tests.kit.processes import api_of

SPANS_MAX = 4  # from the end of the faults until every message has its one primary server
BUSY_SECONDS = 40.0  # more, on a busy machine
MESSAGES_LISTED = 1000
ON_ITS_WAY = 1.0  # seconds: a busy hub takes a message whose edge has just lost power


def recipients_of(number: int) -> tuple[str, ...]:
    """Every third message has two forks; every fifth has a recipient who no longer exists."""
    found = [f"user{number % 50}@corp.example"]
    if number % 3 == 0:
        found.append(f"user{number % 50}@branch.example")
    if number % 5 == 0:
        found.append(f"user{number % 50}@{GONE}")
    return tuple(found)


def deliverable(sent: Iterable[Sent], unpromised: Iterable[str] = ()) -> list[Sent]:
    """The same without recipients who no longer exist, and without acknowledgements that promised no second copy."""
    excepted = set(unpromised)
    found = []
    for one in sent:
        tries = [replace(made, answer=SubmissionResult.NOTHING) if made.network_id in excepted else made for made in one.tries]
        found.append(replace(one, recipients=tuple(name for name in one.recipients if not name.endswith(GONE)), tries=tries))
    return found


def unpromised(lines: Iterable[Line], sent: Iterable[Sent]) -> set[str]:
    """Acknowledged messages of which the RECEIVE row says that there is no second copy."""
    rows = defaultdict(str)
    for line in lines:
        if line.event == "RECEIVE":
            rows[line.message_id, line.node] += line.custom
    acknowledged = [made for one in sent for made in one.tries if made.answer is SubmissionResult.ACKNOWLEDGED]
    return {made.network_id for made in acknowledged if "S:Replication=Success" not in rows[made.network_id, made.node]}


def unreturned(sent: Iterable[Sent], returned: Iterable[tuple[int, str]]) -> list[str]:
    """Failed recipients of acknowledged messages of which the sender has heard nothing."""
    told = set(returned)
    return [
        f"neither delivered nor returned: message {one.number} for {name}"
        for one in sent
        if one.acknowledged_ids
        for name in one.recipients
        if name.endswith(GONE) and (one.number, name) not in told
    ]


def returned_falsely(returned: Iterable[tuple[int, str]]) -> list[str]:
    """DSNs about recipients whom nobody refused."""
    return [f"returned, and not refused: message {number} for {name}" for number, name in sorted(set(returned)) if not name.endswith(GONE)]


async def without_one_owner(site: Site, sent: Sequence[Sent], arrivals: Callable[[], list[Arrival]]) -> list[str]:
    """Wait until each message that waits has exactly one primary server, or four spans have passed. Those that have not."""
    deadline = time.monotonic() + SPANS_MAX * TIMES.span + BUSY_SECONDS
    former: list[str] = ["not looked yet"]
    while True:
        try:
            found = await asyncio.to_thread(_without_one_owner, site, sent, arrivals)
        except NodeError as error:  # a node that has recognised its older copy starts again
            found = [f"not all nodes could be asked: {error}"]
        if not (found or former) or time.monotonic() > deadline:
            return found
        former = found
        await asyncio.sleep(TIMES.heartbeat)


def _without_one_owner(site: Site, sent: Sequence[Sent], arrivals: Callable[[], list[Arrival]]) -> list[str]:
    owners: dict[str, list[str]] = defaultdict(list)
    ids: dict[str, set[str]] = defaultdict(set)
    for node in site.cluster.nodes.values():
        with api_of(node) as client:
            for message in client.messages(limit=MESSAGES_LISTED):
                if message["role"] == "primary":
                    owners[message["internet_message_id"]].append(f"{node.name} ({message['message_id'][:8]})")
                    ids[message["internet_message_id"]].add(message["message_id"])
    got: dict[str, list[Arrival]] = defaultdict(list)
    for arrival in arrivals():
        got[arrival.internet_message_id].append(arrival)
    found = []
    for one in sent:
        acknowledged = [made for made in one.tries if made.answer is SubmissionResult.ACKNOWLEDGED]
        if not acknowledged:
            continue
        has_all = set(one.recipients) <= reached(one, acknowledged[0], got[one.internet_message_id])
        mine = owners[one.internet_message_id]
        is_wrong = (not mine and not has_all) or len(mine) > len(ids[one.internet_message_id])
        if is_wrong:
            found.append(f"message {one.number} {acknowledged[0].network_id} waits, and its primary servers are {mine or 'nobody'}")
    return found


def with_causes_of_edges(
    result: Account,
    layout: Layout,
    sent: Sequence[Sent],
    arrivals: Sequence[Arrival],
    faults: Sequence[Fault],
    lines: Iterable[Line],
) -> None:
    """An edge has a message delivered by another hub because of what became of *its* connection to the first one: judge such a repetition
    as if the edge had delivered it, then or when it relayed it. If it had no reply to the final dot, or lost power before it had one, that
    is the cause (docs/design.md 6.7, Relaying)."""
    unanswered, relayed = set(), defaultdict(list)
    came_from: dict[tuple[str, str], list[float]] = defaultdict(list)  # by edge and message: when hubs took it
    for line in lines:
        if line.event == "RECEIVE":
            for edge in layout.entrances:
                if f"S:ShadowAt={edge}" in line.custom:
                    came_from[edge, line.internet_message_id].append(line.at)
        for name in line.recipients:
            if line.event == "DEFER" and NO_REPLY in line.status:
                unanswered.add((line.message_id, name))
                if line.node in layout.entrances:  # which may have taken it back from a hub, under the id that it had there
                    unanswered.add((line.internet_message_id, name))
            elif line.event == "SEND":
                relayed[line.node, line.message_id, name].append(line.at)
    by_number = {one.number: one for one in sent}
    for index, duplicate in enumerate(result.duplicates):
        if duplicate.cause is not Cause.NONE or not duplicate.network_id:
            continue
        message_id = by_number[duplicate.number].internet_message_id
        got = sorted(
            (one for one in arrivals if one.internet_message_id == message_id and one.recipient == duplicate.recipient),
            key=lambda arrival: arrival.at,
        )
        if layout.is_chain and {(duplicate.network_id, duplicate.recipient), (message_id, duplicate.recipient)} & unanswered:
            result.duplicates[index] = replace(duplicate, cause=Cause.DIED_BEFORE_RECORD)
            continue
        for edge in layout.entrances:
            times = relayed[edge, duplicate.network_id, duplicate.recipient]
            if _lost_power_before_reply(edge, sorted(came_from[edge, message_id]), times, faults):
                result.duplicates[index] = replace(duplicate, cause=Cause.DIED_BEFORE_RECORD)
                break
            causes = [
                cause_of(judged, faults, TIMES)
                for judged in (
                    [got[0], *(replace(arrival, client_name=edge) for arrival in got[1:])],
                    [replace(got[0], client_name=edge, at=at) for at in times],  # SEND is written before its commit
                )
                if len(judged) > 1
            ]
            if found := [cause for cause in causes if cause is not Cause.NONE]:
                result.duplicates[index] = replace(duplicate, cause=found[0])
                break


def _lost_power_before_reply(edge: str, came_at: Sequence[float], relayed_at: Sequence[float], faults: Sequence[Fault]) -> bool:
    """A hub took a message from this edge, which lost power then, without a row about it, and relayed it again."""
    if len(came_at) < 2:
        return False
    lost_at = [fault.began_at for fault in faults if fault.node == edge and fault.stops_node]
    return any(came_at[0] - ON_ITS_WAY <= at < came_at[1] and not any(row_at <= at for row_at in relayed_at) for at in lost_at)
