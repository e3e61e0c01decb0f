"""Waiting until what was started works."""

import time
from collections.abc import Callable, Sequence

from shadowrelay.lab.engine import Engine
from shadowrelay.lab.places import LabError

SECONDS_MAX = 90.0
POLL_SECONDS = 0.5
ENDED = ("exited", "dead")


def until_healthy(engine: Engine, nodes: Sequence[str]) -> None:
    """Until the health checks of all of them say so. Raises: LabError, at once for a node that has ended, with its last words."""

    def is_healthy() -> bool:
        states = engine.states()
        for node in nodes:
            if states.get(node) in ENDED:
                raise LabError(f"{node} has ended; its log: {engine.log_tail(node) or '(empty)'}")
        return all(states.get(node) == "healthy" for node in nodes)

    _until(is_healthy, f"not healthy: {', '.join(nodes)}")


def until_listening(engine: Engine, services: Sequence[str]) -> None:
    """Until each takes connections for SMTP. Raises: LabError."""
    _until(lambda: all(_listens(engine, service) for service in services), "the mail servers around the nodes do not answer")


def _listens(engine: Engine, service: str) -> bool:
    try:
        engine.execute(service, "bash", "-c", "</dev/tcp/127.0.0.1/25")
    except LabError:
        return False
    return True


def _until(is_so: Callable[[], bool], complaint: str) -> None:
    deadline = time.monotonic() + SECONDS_MAX
    while not is_so():
        if time.monotonic() > deadline:
            raise LabError(f"{complaint} after {SECONDS_MAX:.0f} s; see `docker-compose logs`")
        time.sleep(POLL_SECONDS)
