"""I6, as far as a world can see it: what a node has open at once, and what is left in its memory when nothing is to be done.

Limits of single lines, replies and batches are in tests of their own: a world never reaches them.
"""

from collections import Counter

from shadowrelay.smtp.kept_sessions import SESSIONS_MAX
from shadowrelay.smtp.next_hop_rules import MUTE_MAX
from tests.simulation.machine import Machine

ROUTES_COUNT = 2  # to the same next hop, each with sessions of its own
ASKING_COUNT = 4  # sessions to a peer that carry no copy
TASKS_IDLE_MAX = 60


def exceeded(machine: Machine, sessions: Counter[tuple[str, str]], next_hop: str) -> list[str]:
    """`sessions` are the open connections, by who opened them and to whom."""
    node = machine.node
    if node is None or not hasattr(node, "_context"):
        return []
    found = []
    for (source, target), count in sessions.items():
        if source != machine.host:
            continue
        of_route = machine.settings.send.concurrency_per_destination + MUTE_MAX  # beside those that never greet, others are opened
        limit = of_route * ROUTES_COUNT if target == next_hop else SESSIONS_MAX + ASKING_COUNT
        if count > limit:
            found.append(f"{count} sessions to {target}, of {limit}")
    used, limit = node._context.budget.arriving_share
    if used > limit:
        found.append(f"{used} bytes of content are arriving, of {limit}")
    return found


def left_over(machine: Machine) -> list[str]:
    """What a node still has in memory for messages, although all are done."""
    node = machine.node
    if node is None or not hasattr(node, "_context"):
        return []
    context = node._context
    parts = {
        "leases": context.leases._copies,
        "confirmations": context.leases._confirmed,
        "flights": [message_id for message_id, flight in context.flights.items() if flight.is_busy or flight.is_copying],
    }
    found = [f"{len(part)} {name}: {sorted(part)[:3]}" for name, part in parts.items() if part]
    if context.budget.used:
        found.append(f"{context.budget.used} bytes of content")
    if (count := len(context.tasks)) > TASKS_IDLE_MAX:
        found.append(f"{count} tasks")
    return found
