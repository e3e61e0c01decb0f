"""A message as the oracle sees it: what its rows say, and what a row of Exchange does by the table of docs/sla.md."""

import re
from dataclasses import dataclass, field, replace
from pathlib import Path

from tests.sla.oracle_logs import Row

PAGE = Path(__file__).parents[2] / "docs" / "sla.md"
KEPT = "TRACK"  # source of what `_kept_copy` makes
ALREADY_RECIPIENTS = ("DUPLICATEEXPAND", "DUPLICATEREDIRECT")
REDIRECTING = ("REDIRECT", "DUPLICATEREDIRECT")
DECISIONS = ("MODERATORREJECT", "MODERATIONEXPIRE", "MODERATORSALLNDR")
NO_COPY = (
    "failed", "fail", "failure", "error", "timeout", "timedout", "rejected", "refused", "disabled", "none", "skipped", "ignored", "never",
    "notrequired", "notneeded", "notattempted", "notsupported", "notavailable", "unavailable", "pending", "unknown", "false", "off", "no",
    "noshadow", "noshadowserver", "noshadowservers", "noshadowserveravailable",
)  # fmt: skip


def _table() -> dict[tuple[str, str], str]:
    """(event, source) -> what it does, as the page has it."""
    part = PAGE.read_text(encoding="utf-8").partition("**Exchange, row by row.**")[2].partition("\n**")[0]
    cells = [[cell.strip().replace("`", "") for cell in line.split("|")[1:-1]] for line in part.splitlines() if line.startswith("| `")]
    return {
        (event, source.strip()): does for events, sources, does, *_ in cells for event in events.split() for source in sources.split(",")
    }


TABLE = _table()


def does(row: Row, *what: str) -> bool:
    """A row of Exchange that does one of these."""
    told = TABLE.get((row.event, row.source)) or TABLE.get((row.event, "any"), "nothing")
    return row.format != "shadowrelay" and told in what


def is_on_shared_fate(row: Row) -> bool:
    """HAREDIRECT: the copy may be lost together with its primary server, and does not count. RECEIVE: such a copy was made."""
    return row.format == "shadowrelay" and "SharedFate" in row.custom


def said_redundant(receive: Row) -> bool | None:
    """By S:Replication; None: it does not say."""
    told = receive.custom.get("Replication", "")
    if receive.format == "shadowrelay" or told in ("", "Success"):
        return told == "Success" if "Replication" in receive.custom and told else None
    word = re.match(r"\w*", told.lower())
    if told.lower() in ("n/a", "na") or not re.search("[a-z.:]", told.lower()):
        return False
    return word is not None and word[0] not in NO_COPY and told.lower().split(".")[0] != receive.server.lower().split(".")[0]


@dataclass
class Message:
    """What the rows say about one message. `server` is who acknowledged it; `other` the shadow server of its pair."""

    id: str
    rows: list[Row]
    is_acknowledged: bool = False
    is_reconstructed: bool = False
    is_dsn: bool = False
    acknowledged_at: int = 0
    server: str = ""
    other: str | None = None
    receive: Row | None = None
    addressed: frozenset[str] = frozenset()  # by RECEIVE, or by those who hold it
    recipients: frozenset[str] = frozenset()  # those, and who took their place
    deliveries: dict[str, list[tuple[int, str]]] = field(default_factory=dict)
    ends: dict[str, int] = field(default_factory=dict)
    known_until: int | None = None
    done_at: int | None = None

    def those(self, *events: str) -> list[Row]:
        """Rows of these events, oldest first."""
        return [row for row in self.rows if row.event in events]

    @property
    def sender(self) -> str:
        """Of all that the rows say, the last by spelling."""
        return max(row.sender for row in self.rows)

    @property
    def subject(self) -> str:
        """Likewise."""
        return max(row.subject for row in self.rows)

    @property
    def replacements(self) -> list[Row]:
        """Exchange: the row's recipients take the place of the related ones."""
        return [row for row in self.rows if does(row, "replaces") and (row.related or row.event not in ALREADY_RECIPIENTS)]

    @property
    def added(self) -> list[Row]:
        """Exchange: it names recipients that are such from then on."""
        return [row for row in self.rows if does(row, "adds", "puts off")]

    @property
    def is_of_exchange(self) -> bool:
        """Has it a row of Exchange?"""
        return any(row.format != "shadowrelay" for row in self.rows)

    @property
    def kept(self) -> set[str]:
        """Recipients that stay, though others get the message for them."""
        return {address for row in self.replacements if row.event in REDIRECTING for address in {*row.related} & {*row.recipients}}

    @staticmethod
    def replaced(row: Row) -> set[str]:
        """Whose place the row's recipients take."""
        return {*row.related} if row.event == "EXPAND" else {*row.related} - {*row.recipients}

    @property
    def ends_of_exchange(self) -> list[Row]:
        """Exchange: the row's recipients get nothing more."""
        return [row for row in self.rows if does(row, "ends")]

    @property
    def is_waiting(self) -> bool:
        """Did a recipient of it wait for a moderator?"""
        return any(does(row, "waits") for row in self.rows)

    @property
    def takeovers(self) -> list[Row]:
        """RESUBMIT of source REDUNDANCY."""
        return [row for row in self.rows if row.event == "RESUBMIT" and row.source == "REDUNDANCY"]

    @property
    def is_redundant(self) -> bool | None:
        """Had it a synced second copy when it was acknowledged? `None`: Exchange 2010 does not write it."""
        if self.receive is None:
            return self.is_reconstructed
        if self.receive.format == "exchange2010":
            return None
        if self.receive.format != "shadowrelay" and not any(row.recipients for row in self.those("RECEIVE")):
            return None
        told = said_redundant(self.receive)
        if told is not None:
            return told
        return any(row.at <= self.receive.at for row in self.those("HAREDIRECT") if not is_on_shared_fate(row))

    @property
    def copies(self) -> int:
        """How many it had when it was acknowledged, beside the primary server's."""
        told = self.receive.custom.get("Copies", "") if self.receive is not None else ""
        made, slash, _ = told.partition("/")
        return int(made) if slash else int(bool(self.is_redundant))

    @property
    def way(self) -> str:
        """Where the second copy of a redundant message was."""
        if self.receive is not None:
            if self.receive.format == "shadowrelay" and self.receive.context == "delayed: done":
                return "next_hop"
            made = [row for row in self.those("HAREDIRECT") if row.server == self.server and row.at <= self.acknowledged_at]
            return "previous_hop" if "ShadowAt" in self.receive.custom and not made else "shadow_server"
        held = self.those("HARECEIVE")
        is_kept = bool(held) and min(held, key=lambda row: (row.at, row.server)).source == KEPT
        return "previous_hop" if is_kept else "shadow_server"

    def has_another(self, loss: Row) -> bool:
        """Whether a third server kept its copy through the loss of a primary server."""
        lost = {row.reference for row in self.takeovers if row.at <= loss.at}
        since = loss.instant("SilentSince")
        assert since is not None
        for server in {row.server for row in self.those("HARECEIVE")} - {loss.server, loss.reference}:
            seen = [row.at for row in [*self.those("HADISCARD"), *self.takeovers] if row.server == server]
            seen += [row.at for row in self.those("HAREDIRECT") if row.server_hostname == server]
            givers = {row.client for row in self.those("HARECEIVE") if row.server == server}
            if givers <= lost and any(at > since for at in seen):
                return True
        return False


def is_by_next_hop(row: Row) -> bool:
    return row.source in ("SMTP", "DNS") or (row.format != "shadowrelay" and row.source in ("STOREDRIVER", "GATEWAY"))


def is_relayed_and_kept(row: Row) -> bool:
    return row.format == "shadowrelay" and row.event in ("SEND", "SENDEXTERNAL") and row.context.startswith("shadow kept as ")


def kept_copy(row: Row) -> Row:
    """What such a row says of the message that it names."""
    message = row.context.removeprefix("shadow kept as ")
    return replace(row, event="HARECEIVE", source=KEPT, message=message, client=row.server_hostname, custom={})
