"""`sla trace` of few logs: in this process, and what it leaves out. docs/sla.md, 6."""

import json
from datetime import timedelta

import pytest
from typer.testing import CliRunner

from shadowrelay.cli.main import app
from shadowrelay.model.tracking import EventId
from shadowrelay.sla.trace import rows_of_logs, rows_of_warehouse, trace
from tests.kit.log_files import STARTED, a_log, an_event
from tests.sla.warehouses import torn, warehouse_of


def test_every_server_is_asked_and_the_rows_are_in_order(tmp_path):
    for server, seconds in (("mx2", 1), ("mx1", 2), ("mx3", 0)):
        path = tmp_path / server / "MSGTRK2026112112-1.LOG"
        path.parent.mkdir()
        log = a_log([an_event("m1", at=STARTED + timedelta(seconds=seconds)), an_event("m2")])
        path.write_bytes(log + b"half a li")
        (tmp_path / server / "MSGTRK2026112112-2.LOG").write_bytes(log)  # shipped again under another name
    (tmp_path / "mx4").mkdir()
    (tmp_path / "mx4" / "MSGTRK2026112112-1.LOG").mkdir()

    rows = trace(rows_of_logs(str(tmp_path)), "m1")

    assert [("mx3", "m1"), ("mx2", "m1"), ("mx1", "m1")] == [(row["server"], row["message"]) for row in rows]
    assert [] == trace(rows_of_logs(str(tmp_path)), "m3")


def test_a_warehouse_is_traced_by_its_complete_batches(tmp_path):
    warehouse = warehouse_of(tmp_path)
    warehouse_of(tmp_path, servers=("mx3",), batch="run-000001")
    (warehouse / "files" / "batch=run-000001" / "_SUCCESS").unlink()
    for path in (warehouse / "events").glob("date=*/server=mx3/batch=run-000001/*.parquet"):
        torn(path)

    assert ["mx1"] == [row["server"] for row in trace(rows_of_warehouse(str(warehouse)), "mx1-12-0")]
    assert [] == trace(rows_of_warehouse(str(warehouse)), "mx3-12-0")


@pytest.mark.parametrize("number", [0, 1, 2])
def test_a_message_that_was_relayed_and_kept_is_followed_from_hop_to_hop(tmp_path, number):
    ids = [f"{each}1111111-6f1e-7c3a-9c57-0d1f2e3a4b5c" for each in range(3)]
    hops = ("edge", "hub", "store")
    for hop, server in enumerate(hops):
        shadow = {} if hop == 0 else {"reference": ids[hop - 1], "custom_data": (("Replication", "Success"), ("ShadowAt", hops[hop - 1]))}
        context = "" if hop == 2 else f"shadow kept as {ids[hop + 1]}"
        rows = [
            an_event(ids[hop], at=STARTED + timedelta(seconds=hop), **shadow),
            an_event(
                ids[hop], EventId.SEND, at=STARTED + timedelta(seconds=hop + 0.5), source_context=context, recipients=("a@x.example",)
            ),
        ]
        (tmp_path / server).mkdir()
        (tmp_path / server / "MSGTRK2026112112-1.LOG").write_bytes(a_log(rows))

    result = CliRunner().invoke(app, ["sla", "trace", ids[number], "--logs", str(tmp_path), "--json"])

    told = [(row["server"], row["event"]) for row in json.loads(result.stdout)]
    assert [(hop, event) for hop in hops for event in ("RECEIVE", "SEND")] == told


def test_a_next_hop_that_took_it_and_whose_reply_was_lost_is_followed_too(tmp_path):
    """Only its own log says so: RECEIVE names the id at the previous hop."""
    first, taken = (f"{each}1111111-6f1e-7c3a-9c57-0d1f2e3a4b5c" for each in range(2))
    shadow = {"reference": first, "custom_data": (("Replication", "Success"), ("ShadowAt", "edge"))}
    logs = {
        "edge": [an_event(first), an_event(first, EventId.DEFER, at=STARTED + timedelta(seconds=2))],
        "hub": [
            an_event(taken, at=STARTED + timedelta(seconds=1), **shadow),
            an_event(taken, EventId.SEND, at=STARTED + timedelta(seconds=3), recipients=("a@x.example",)),
        ],
    }
    for server, rows in logs.items():
        (tmp_path / server).mkdir()
        (tmp_path / server / "MSGTRK2026112112-1.LOG").write_bytes(a_log(rows))

    result = CliRunner().invoke(app, ["sla", "trace", first, "--logs", str(tmp_path), "--json"])

    told = [(row["server"], row["event"]) for row in json.loads(result.stdout)]
    assert [("edge", "RECEIVE"), ("hub", "RECEIVE"), ("edge", "DEFER"), ("hub", "SEND")] == told
