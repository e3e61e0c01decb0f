"""A node closes what it opened, in its order, also after a start that failed half-way; no failure keeps anything else open."""

import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import structlog

from shadowrelay.admin.server import AdminServer
from shadowrelay.model.replies import STORE_UNAVAILABLE, ConfigurationError, LedgerUnavailable
from shadowrelay.pipeline.context import Tasks
from shadowrelay.smtp.deliverer import SmtpDeliverer
from shadowrelay.smtp.host_names import Lookups
from shadowrelay.smtp.listener import ReceiverServer
from shadowrelay.smtp.peer_link import SmtpPeerLink
from shadowrelay.store import peer_promises
from shadowrelay.store.ledger import Ledger
from shadowrelay.store.work import UnitOfWork
from shadowrelay.tracking.shipper import Shipper
from shadowrelay.tracking.writer import FileTrackingLog
from tests.process.conftest import a_node

CLOSES = {
    ReceiverServer: "close",
    AdminServer: "stop",
    Tasks: "close",
    SmtpPeerLink: "close",
    SmtpDeliverer: "close",
    Lookups: "close",
    FileTrackingLog: "close",
    Shipper: "close",
    Ledger: "close",
}
NAMES = [part.__name__ for part in CLOSES]  # in the order of closing


@pytest.fixture
def closed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The parts of the node that were closed, in order."""
    names: list[str] = []

    def counted(part: type, name: str) -> Callable[..., object]:
        close = getattr(part, name)

        async def close_and_count(self: object) -> None:
            names.append(part.__name__)
            await close(self)

        return close_and_count

    for part, name in CLOSES.items():
        monkeypatch.setattr(part, name, counted(part, name))
    return names


@pytest.fixture
def taken_port() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield listening.getsockname()[1]


async def test_everything_is_closed_in_order_whatever_fails_and_each_failure_is_logged(
    tmp_path: Path, closed: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for part in (SmtpDeliverer, FileTrackingLog):
        close = getattr(part, "close")  # noqa: B009

        async def close_badly(self: object, close: Callable[..., object] = close) -> None:
            await close(self)  # type: ignore[misc]
            raise AttributeError("a bug in closing")

        monkeypatch.setattr(part, "close", close_badly)
    node = a_node(tmp_path)
    await node.start()

    with structlog.testing.capture_logs() as said:
        await node.stop()

    assert NAMES == closed
    assert ["node.close_failed"] * 2 == [line["event"] for line in said if line["log_level"] == "error"]


async def test_a_start_that_fails_half_way_closes_what_was_opened(tmp_path: Path, closed: list[str], taken_port: int) -> None:
    node = a_node(tmp_path, taken_port)

    with structlog.testing.capture_logs() as said:
        with pytest.raises(ConfigurationError, match="cannot listen"):
            await node.start()
        await node.abort()
        await node.abort()

    assert NAMES[1:] == closed  # AdminServer.stop does nothing before its start
    assert [] == [line for line in said if line["event"] == "node.close_failed"]


async def test_a_queue_that_cannot_be_opened_leaves_no_tracking_log_open(
    tmp_path: Path, closed: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def unavailable(*_: object, **__: object) -> None:
        raise LedgerUnavailable(STORE_UNAVAILABLE, "no room")

    monkeypatch.setattr(Ledger, "open", unavailable)
    node = a_node(tmp_path)

    with pytest.raises(LedgerUnavailable):
        await node.start()
    await node.abort()

    assert ["FileTrackingLog", "Shipper"] == closed


@pytest.mark.parametrize("is_stopped", [False, True])
async def test_a_node_on_an_older_copy_ends_when_its_new_id_is_recorded_or_when_it_is_to_stop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_stopped: bool
) -> None:
    """Peers know an older copy by its opening: one more under the old id would look like the present database."""
    recorded = peer_promises.database_renamed.run
    tries: list[str] = []

    def recorded_late(work: UnitOfWork) -> None:
        tries.append(work.state.identity.database)
        if is_stopped and len(tries) == 2:
            node.stopping()
        if is_stopped or len(tries) < 3:
            raise LedgerUnavailable(STORE_UNAVAILABLE, "disk full")
        recorded(work)

    monkeypatch.setattr(peer_promises.database_renamed, "run", recorded_late)
    monkeypatch.setattr("shadowrelay.node.node.RENAME_AGAIN_SECONDS", 0.01)
    node = a_node(tmp_path)
    await node.start()
    before = node._ledger.identity.database
    node._services.rolled_back.found.set()

    with structlog.testing.capture_logs() as said:
        await node.stop()
    following = a_node(tmp_path)
    await following.start()
    after = following._ledger.identity
    await following.abort()

    assert [before] * (2 if is_stopped else 3) == tries
    assert 1 == [line["event"] for line in said].count("database.not_renamed")
    assert (before == after.database, "" if is_stopped else before) == (is_stopped, after.former)
