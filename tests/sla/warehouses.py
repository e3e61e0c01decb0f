"""Warehouses of the report, filled from logs."""

from datetime import timedelta

from shadowrelay.sla.land import land_here
from shadowrelay.sla.logs import list_logs, source_of
from shadowrelay.sla.warehouse import begin
from tests.kit.log_files import STARTED, a_log, an_event


def fill(directory, servers=("mx1", "007"), hours=9, days=2):
    """A log for each hour, each repeated once under another name; gives the warehouse."""
    paths = []
    for server in servers:
        for hour in range(hours):
            events = [an_event(f"{server}-{day}-{hour}", at=STARTED + timedelta(days=day, hours=hour)) for day in range(days)]
            for instance in (1, 2):
                path = directory / "logs" / server / f"MSGTRK20261121{hour:02}-{instance}.LOG"
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(a_log(events))
                paths.append(source_of(str(path)))
    begin(str(directory / "w"))
    land_here(paths, str(directory / "w"), "b")
    return directory / "w"


def warehouse_of(directory, servers=("mx1", "mx=2"), batch="run-000000"):
    for server in servers:
        for hour in (12, 13):
            path = directory / "logs" / server / f"MSGTRK20261121{hour}-1.LOG"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(a_log(an_event(f"{server}-{hour}-{number}", at=STARTED) for number in range(3)))
    begin(str(directory / "w"))
    land_here(list_logs(str(directory / "logs")), str(directory / "w"), batch)
    return directory / "w"


def torn(path):
    path.write_bytes(path.read_bytes()[:-10])
