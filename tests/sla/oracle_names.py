"""The oracle's own reading of who is who in Exchange's logs. docs/sla.md, section 2. Plain Python, nothing of the job."""

from collections.abc import Collection
from dataclasses import replace

from tests.sla.oracle_logs import Row


def meant(name: str, logged: Collection[str]) -> str:
    """The logged server that Exchange means by a name; the name itself where none, or where it might be several."""
    if name == "" or name in logged:
        return name
    alike = [server for server in logged if server.lower() == name.lower()]
    if len(alike) == 1:
        return alike[0]
    namesakes = [server for server in logged if server.lower().split(".")[0] == name.lower().split(".")[0]]
    if len(namesakes) == 1 and not ("." in name and "." in namesakes[0]):
        return namesakes[0]
    return name


def with_logged_names(row: Row, logged: Collection[str]) -> Row:
    """A row of Exchange as if it named servers as the directories do; ours says what it means."""
    if row.format == "shadowrelay":
        return row
    named = replace(row, client=meant(row.client, logged), server_hostname=meant(row.server_hostname, logged))
    if (row.event, row.source) == ("RESUBMIT", "REDUNDANCY"):
        named = replace(named, reference=meant(row.reference, logged))
    return named
