"""The independent oracle: every figure of docs/sla.md in plain Python, from rows to report. Slow, literal, and nothing of the job.

It holds everything in memory and walks the rows of each message again for every question, because that is how one can see
that it says what the page says. Instants and spans are whole microseconds; `None` is "no events".
"""

import tomllib
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

from tests.sla.oracle_exchange import approved, bare_stays, handled, mailboxes_untold, next_server, notified, with_primaries
from tests.sla.oracle_logs import Logs, Row, meant, read_logs, with_logged_names
from tests.sla.oracle_messages import (
    DECISIONS,
    KEPT,
    REDIRECTING,
    Message,
    does,
    is_by_next_hop,
    is_on_shared_fate,
    is_relayed_and_kept,
    kept_copy,
)
from tests.sla.oracle_report import DAY, DEFAULTS, HOUR, MINUTE, SECOND, finished, instant, objective, span

CAUSED = ("duplicates", "losses", "orphans", "exposures")
SHORT = 3 * HOUR
PUTTING_OFF = ("DEFER", "RESUBMITDEFER", "SUBMITDEFER", "THROTTLE")


def _bare_cause(message: Message, server: str) -> str:
    return "no copy at acknowledgement" if server == message.server else "no copy on a further hop"


class Oracle:
    """Facts of all messages, and the figures made of them."""

    def __init__(
        self, logs: Logs, *, now: int | None = None, is_final: bool = False, objectives: Path | None = None, clock: int | None = None
    ) -> None:
        settings = tomllib.loads(objectives.read_text(encoding="utf-8")) if objectives else {}
        times = DEFAULTS["times"] | settings.get("times", {})
        self.objectives = DEFAULTS["objectives"] | settings.get("objectives", {})
        self.heartbeat, self.span = span(times["shadow_heartbeat_frequency"]), span(times["shadow_resubmit_time_span"])
        self.expiration = span(times["message_expiration_timeout"])
        self.hold = span(times["safety_net_hold_time"]) + self.expiration
        self.logs = logs
        limit = None if clock is None or now is not None else clock + HOUR
        believed = [row for row in logs.rows if limit is None or row.at <= limit]
        self.now = max((row.at for row in believed), default=clock or 0) if now is None else now
        self.is_final = is_final
        self.untold = 0  # messages of which the logs do not tell for how long there was one copy
        rows = [row.at for row in logs.rows]
        self.is_short = bool(rows) and max((row.at for row in believed), default=0) - min(rows) <= SHORT
        self.instants: dict[str, list[int]] = defaultdict(list)  # of each server's rows
        self.copied: dict[tuple[str, str], list[int]] = defaultdict(list)  # (primary, shadow server): when copies arrived
        self.outages: list[tuple[str, int, int, int]] | None = None
        for row in logs.rows:
            self.instants[row.server].append(row.at)
            if row.event == "HARECEIVE" and row.format == "shadowrelay":
                self.copied[row.client, row.server].append(row.at)
        self.last_row: dict[str, int] = {}
        for row in believed:
            self.last_row[row.server] = max(row.at, self.last_row.get(row.server, row.at))
        by_message: dict[str, list[Row]] = defaultdict(list)
        named = with_primaries(approved([with_logged_names(row, logs.logged, logs.domains) for row in logs.rows]))
        self.without_deliveries = mailboxes_untold(logs)
        takeovers = [row for row in named if row.event == "RESUBMIT" and row.source == "REDUNDANCY"]
        self.lost = {row.reference for row in takeovers if row.at >= self.last_row.get(row.reference, row.at)}
        named += [kept_copy(row) for row in named if is_relayed_and_kept(row)]
        for row in sorted(named, key=lambda row: (row.at, row.server, row.file, row.line)):
            by_message[row.message].append(row)
        self.messages = [self._message(id, rows) for id, rows in by_message.items()]
        self.notified = notified(named, self.messages)
        for message in self.messages:
            self._end_all(message)
        self.figures: dict[tuple[str, str | None, str, str, str], dict[str, Any]] = {}
        self.events: dict[str, list[tuple[int, bool]]] = defaultdict(list)
        self.tables: dict[str, list[dict[str, Any]]] = {name: [] for name in (*CAUSED, "takeovers", "slow")}
        self._count()

    def time_is_up(self, at: int) -> bool:
        """Section 2."""
        return self.is_final or self.now >= at

    def known_until(self, server: str) -> int | None:
        """Until when the logs tell what it did; None: they never do."""
        if server in self.lost:
            return self.now
        return min(self.last_row[server], self.now) if server in self.last_row else None

    # facts of one message

    def _message(self, id: str, rows: list[Row]) -> Message:
        found = Message(id, rows)
        receives = [row for row in found.those("RECEIVE") if row.source == "SMTP"]
        copies, takeovers = found.those("HARECEIVE"), found.takeovers
        begun = min((row.at for row in [*receives, *copies, *takeovers]), default=0)
        is_older = any(row.source == "SAFETYNET" and row.format != "shadowrelay" and row.at <= begun for row in found.those("RESUBMIT"))
        made = found.those("DSN")
        found.is_dsn = bool(made) and (not receives or made[0].format == "shadowrelay" or made[0].at <= receives[0].at)
        named = found.those("RECEIVE") if receives and not found.is_dsn and not is_older else [*copies, *takeovers]
        found.addressed = frozenset(address for row in named for address in row.recipients)
        stepping_in = {address for row in found.replacements for address in {*row.recipients} - found.replaced(row)}
        found.recipients = found.addressed | stepping_in | {address for row in found.added for address in row.recipients}
        if is_older:
            pass
        elif receives and not found.is_dsn:
            found.receive = receives[0]
            found.is_acknowledged, found.acknowledged_at, found.server = True, receives[0].at, receives[0].server
            made = [row for row in found.those("HAREDIRECT") if row.server == found.server and row.at <= found.acknowledged_at]
            found.other = max((row.at, row.server_hostname) for row in made)[1] if made else receives[0].custom.get("ShadowAt")
            told = receives[0].custom.get("Replication", "")
            if found.other is None and receives[0].format != "shadowrelay" and told != "Success" and found.is_redundant:
                found.other = meant(told, self.logs.logged, self.logs.domains) or None
        elif (copies or takeovers) and not found.those("RECEIVE") and not found.is_dsn and not self._is_refused_or_made_here(found):
            first = min([*copies, *takeovers], key=lambda row: (row.at, row.primary))
            found.is_acknowledged = found.is_reconstructed = True
            found.acknowledged_at, found.server = first.at, first.primary
            found.other = copies[0].server if copies else None
        holders = [row.server for row in receives if row.format != "shadowrelay"][-1:] or [found.server]
        known = [self.known_until(server) for server in (*holders, *(row.server for row in takeovers))]
        found.known_until = max((at for at in known if at is not None), default=None)
        self._deliveries(found)
        self._ends(found)
        return found

    def _is_refused_or_made_here(self, message: Message) -> bool:
        made = [row for row in message.those("RESUBMIT") if row.source == "SAFETYNET" and row.format == "shadowrelay"]
        return bool(made) or self._is_refused(message) or self._was_never_accepted(message)

    def _was_never_accepted(self, message: Message) -> bool:
        """There are copies of it, and nothing else in the logs of those who would have accepted it."""
        for row in message.rows:
            is_copy = row.event in ("HARECEIVE", "HAREDIRECT", "HADISCARD") or (row.event == "EXPIRE" and row.client != "")
            is_told = row.format == "shadowrelay" and row.tells_delivery
            if not is_copy or row.source == KEPT or is_told:
                return False
            if row.event == "HARECEIVE":
                spans = [(first, last) for server, first, last in self.logs.whole_files if server == row.client]
                if not any(first + 2 * MINUTE <= row.at <= last - 2 * MINUTE for first, last in spans):
                    return False
        return bool(message.those("HARECEIVE"))

    def _is_refused(self, message: Message) -> bool:
        if message.those("HAREDIRECTFAIL"):
            return True
        holders = {row.server for row in message.those("HARECEIVE")}
        released = {row.server for row in message.those("HADISCARD") if row.context == "released"}
        other_ends = [row for row in message.those("HADISCARD") if row.tells_delivery]
        other_ends += message.those("SEND", "SENDEXTERNAL", "DELIVER", "FAIL", "DUPLICATEDELIVER")
        other_ends += [row for row in message.those("EXPIRE") if not row.client] + message.ends_of_exchange
        return bool(holders) and holders <= released and not message.those("RESUBMIT") and not other_ends

    def _deliveries(self, message: Message) -> None:
        offered: dict[str, int] = {}
        for row in filter(is_relayed_and_kept, message.rows):
            offered[row.context] = min(row.at, offered.get(row.context, row.at))
        for row in message.rows:
            if is_relayed_and_kept(row) and row.at > offered[row.context]:
                continue
            is_own = row.format == "shadowrelay" and row.event in ("SEND", "SENDEXTERNAL")
            if is_own or does(row, "delivers") or (does(row, "hands on") and self._next_server(message, row) is None):
                for recipient in {*row.recipients}:
                    message.deliveries.setdefault(recipient, []).append((row.at, row.server))

    def _ends(self, message: Message) -> None:
        ends: dict[str, list[int]] = defaultdict(list)
        for recipient, deliveries in message.deliveries.items():
            ends[recipient] += [at for at, _ in deliveries]
        for row in message.those("FAIL", "DUPLICATEDELIVER", "EXPIRE"):
            if row.event != "EXPIRE" or not row.client:
                for recipient in row.recipients:
                    ends[recipient].append(row.at)
        for row in message.ends_of_exchange + [row for row in message.those("FAIL", "DUPLICATEDELIVER") if row.format != "shadowrelay"]:
            is_of_waiting = not row.recipients and row.event in DECISIONS and message.is_waiting
            for recipient in () if is_of_waiting else row.recipients or message.recipients:
                ends[recipient].append(row.at)
        for row in message.replacements:
            for recipient in message.replaced(row) - (message.kept if row.event in REDIRECTING else set()):
                ends[recipient].append(row.at)
        approving = [row for row in message.rows if does(row, "approves", "goes on")]
        released = {recipient for row in approving for recipient in row.recipients}
        if any(not row.recipients for row in approving) and not any(not row.recipients for row in message.those(*DECISIONS)):
            released |= {recipient for row in message.rows if does(row, "waits") for recipient in row.recipients}
        for row in message.rows:
            if does(row, "waits"):
                for recipient in {*row.recipients} - released:
                    ends[recipient].append(row.at)
        if message.is_reconstructed:
            for row in message.those("HADISCARD"):
                is_told_elsewhere = row.format != "shadowrelay" and row.client in self.logs.logged and row.client != message.server
                if row.tells_delivery and not is_told_elsewhere:
                    for recipient in row.recipients or message.recipients:
                        ends[recipient].append(row.at)
        message.ends = {recipient: min(instants) for recipient, instants in ends.items() if recipient in message.recipients}

    def _end_all(self, message: Message) -> None:
        """After the reports about messages are known."""
        if message.id in self.notified:
            for recipient in message.recipients - message.ends.keys():
                message.ends[recipient] = self.notified[message.id]
        if message.recipients and message.ends.keys() == message.recipients:
            message.done_at = max(message.ends.values())
        if not message.recipients and message.receive is not None and message.is_of_exchange:
            message.done_at = message.acknowledged_at

    # figures

    def _figure(self, at: int, server: str, pair: tuple[str, str] | None) -> list[dict[str, Any]]:
        """Every window and scope that something belongs to."""
        site, boundary = self.logs.places.get(server, ("", ""))
        scopes = [("all", "", ""), ("boundary", boundary, ""), ("site", site, ""), ("server", server, "")]
        if pair is not None:
            scopes.append(("pair", *pair))
        windows = [("all", None), ("day", at // DAY * DAY), ("hour", at // HOUR * HOUR)]
        keys = [(window, instant(start), *scope) for window, start in windows for scope in scopes if scope[0] == "all" or scope[1]]
        if self.is_short:
            keys.append(("minute", instant(at // MINUTE * MINUTE), "all", "", ""))
        return [self.figures.setdefault(key, defaultdict(list)) for key in keys]

    def _add(self, at: int, server: str, pair: tuple[str, str] | None, **values: Any) -> None:
        for figure in self._figure(at, server, pair):
            for name, value in values.items():
                figure[name].append(value)

    def _elapsed(self, belongs: tuple[int, str, tuple[str, str] | None], name: str, elapsed: int) -> int:
        if elapsed < 0:
            self._add(*belongs, clock_skews=1)
        elapsed = max(elapsed, 0)
        self._add(*belongs, **{name: elapsed // 1000})
        return elapsed

    def _count(self) -> None:
        acknowledged = [message for message in self.messages if message.is_acknowledged]
        sent: dict[Any, list[Message]] = defaultdict(list)  # by clients, under an id and to recipients
        for message in acknowledged:
            if (mark := self._mark(message)) is not None:
                sent[mark].append(message)
        again = {id(each) for those in sent.values() for each in those if each.acknowledged_at > min(one.acknowledged_at for one in those)}
        self.repeats = {id(message): self._sent_before(message, those) for those in sent.values() for message in those}
        for message in acknowledged:
            belongs = message.acknowledged_at, message.server, (message.server, message.other) if message.other else None
            self._acknowledged(message, belongs, id(message) in again)
        for message in self.messages:
            if message.is_dsn:
                row = message.those("DSN")[0]
                self._add(row.at, row.server, None, messages_dsn=1)
            self._copies(message)
        self._takeovers()

    @staticmethod
    def _sent_before(message: Message, alike: list[Message]) -> list[Message]:
        """Those that the same client had acknowledged earlier."""
        if message.receive is None or not message.receive.client:
            return []
        return [
            each
            for each in alike
            if each.receive is not None and each.receive.client == message.receive.client and each.acknowledged_at < message.acknowledged_at
        ]

    def _mark(self, message: Message) -> tuple[str, frozenset[str]] | None:
        """What a client that sends it again would write again; None: there is nothing to know it by, or a logged server sent it."""
        held = min([*message.those("HARECEIVE"), *message.takeovers], key=lambda row: (row.at, row.primary), default=None)
        row = message.receive or held
        assert row is not None
        is_relayed = message.receive is not None and row.client in self.logs.logged
        spelled = row.spelled or row.recipients
        if row.internet_message_id == "" or is_relayed or len({*spelled}) < len(spelled):
            return None
        return row.internet_message_id, frozenset(spelled)

    def _acknowledged(self, message: Message, belongs: tuple[int, str, tuple[str, str] | None], is_again: bool) -> None:
        at = message.acknowledged_at
        self._add(*belongs, messages_acknowledged=1, messages_reconstructed=message.is_reconstructed)
        self._add(
            *belongs, messages_redundant=bool(message.is_redundant), messages_done=message.done_at is not None, messages_sent_again=is_again
        )
        if message.is_redundant is not None:
            self._add(*belongs, messages_judged=1, copies=min(message.copies, 3), **({"way": message.way} if message.is_redundant else {}))
            self.events["redundancy_ratio"].append((at, message.is_redundant))
            self._exposures(message, belongs)
        shadow, ack = (message.receive.elapsed(key) if message.receive else None for key in ("ShadowElapsed", "AckElapsed"))
        if shadow is not None:
            self._add(*belongs, shadow_latency_ms=shadow // 1000)
            self.events["shadow_latency"].append((at, shadow <= self._within("shadow_latency")))
            if shadow > self._within("shadow_latency"):
                cause = "a server took no copy" if message.those("HAREDIRECTFAIL") else self._why_slow(at - shadow, at, message.server)
                self._slow("shadow_latency", message, message.server, message.other or "", at, shadow, cause)
            if ack is not None:
                self._add(*belongs, shadow_us=shadow, ack_us=ack)
        if message.deliveries and not message.is_reconstructed:
            first_or_last = min if message.is_of_exchange else max
            last = max(first_or_last(when for when, _ in each) for each in message.deliveries.values())
            if message.receive is not None and message.receive.format == "shadowrelay" and message.receive.context.startswith("delayed: "):
                last = max(last, at)
            elapsed = self._elapsed(belongs, "delivery_latency_ms", last - at)
            self.events["delivery_latency"].append((at, elapsed <= self._within("delivery_latency")))
            if elapsed > self._within("delivery_latency"):
                is_deferred = any(row.at <= last for row in message.those("DEFER") if is_by_next_hop(row))
                is_taken = any(row.at <= last for row in message.takeovers)
                reasons = ["next hop was down"] * is_deferred + ["server lost or cut off"] * is_taken
                cause = " and ".join(reasons) or "our own delay"
                if message.is_of_exchange and not reasons:
                    is_put_off = any(row.event in PUTTING_OFF and row.format != "shadowrelay" for row in message.rows)
                    cause = "put off by Exchange" if is_put_off else "delay within Exchange"
                if any(does(row, "waits", "approves") for row in message.rows):
                    cause = "waited for approval"
                self._slow("delivery_latency", message, message.server, "", at, elapsed, cause)
        self._lost_and_duplicated(message, belongs)

    def _slow(self, objective: str, what: Message | Row, server: str, other: str, at: int, slow: int, cause: str) -> None:
        message = what.id if isinstance(what, Message) else what.message
        self.tables["slow"].append(
            {
                "objective": objective,
                "message": message,
                "server": server,
                "other": other,
                "at": instant(at),
                "slow_us": slow,
                "cause": cause,
            }
        )

    def _why_late(self, since: int, until: int, *servers: str) -> str:
        is_out = any(server in servers and begin <= until and end >= since for server, begin, end, _ in self._all_outages())
        return "server lost or cut off" if is_out else "our own delay"

    def _why_slow(self, since: int, until: int, primary: str) -> str:
        for server, begin, end, taken in self._all_outages():
            is_tried = begin <= until and since <= min(end, taken + self.heartbeat)
            if is_tried and self._boundary(server) == self._boundary(primary):
                return "server lost or cut off"
        return "our own delay"

    def _boundary(self, server: str) -> str:
        return self.logs.places.get(server, ("", ""))[1]

    def _all_outages(self) -> list[tuple[str, int, int, int]]:
        """When each server that was taken over was out, and the last RESUBMIT."""
        if self.outages is None:
            self.outages = []
            for (new, old, reason, _), rows in self._taken().items():
                first = min(row.at for row in rows)
                since = min([at for row in rows if (at := row.instant("SilentSince")) is not None], default=first)
                alive = [at for at in self.instants.get(old, ()) if since < at <= first]
                is_cut = reason == "Silence" and max(alive, default=0) > since + self.heartbeat
                ends = self.copied.get((old, new), []) + self.copied.get((new, old), []) if is_cut else self.instants.get(old, [])
                back = min([at for at in ends if at > first], default=self.now)
                self.outages.append((old, since, back, max(row.at for row in rows)))
        return self.outages

    def _taken(self) -> dict[tuple[str, str, str, int | None], list[Row]]:
        groups: dict[tuple[str, str, str, int | None], list[Row]] = defaultdict(list)
        for message in self.messages:
            for row in message.takeovers:
                groups[row.server, row.reference, row.custom.get("Reason", ""), row.instant("DetectedAt")].append(row)
        return groups

    def _within(self, name: str) -> int:
        return span(self.objectives[name]["within"])

    def _exposures(self, message: Message, belongs: tuple[int, str, tuple[str, str] | None]) -> None:
        is_bare = message.copies == 0 and not message.is_of_exchange
        is_shared = message.receive is not None and is_on_shared_fate(message.receive)
        bare = "copy only on a shared fate" if is_shared else "no copy at acknowledgement"
        began = [(message.acknowledged_at, 0, bare, message.server)] if is_bare else []
        for row in message.takeovers:
            since = row.instant("SilentSince")
            if since is not None and not message.has_another(row):
                began.append((max(since, message.acknowledged_at), 1, "holder lost", message.server))
        made = [row.at for row in message.those("HAREDIRECT") if not is_on_shared_fate(row)]
        merged: list[list[Any]] = []
        over = self.now if message.known_until is None else message.known_until
        parts = []
        for begin, is_lost, cause, server in began:
            ends = [at for at in made if at > begin][:1] + ([message.done_at] if message.done_at is not None else [])
            parts.append((begin, is_lost, min(ends, default=over), cause, server, not ends))
        if message.receive is not None:
            for begin, ended, server in bare_stays(message):
                parts.append((begin, 0, over if ended is None else ended, _bare_cause(message, server), server, ended is None))
        for begin, _, end, cause, server, is_open in sorted(
            (part for part in parts if part[2] > part[0]), key=lambda part: (part[0], part[1], part[4])
        ):
            if merged and begin < merged[-1][1]:
                merged[-1][1] = max(merged[-1][1], end)
                merged[-1][3] = merged[-1][3] or is_open
            else:
                merged.append([begin, end, cause, is_open, server])
        self._add(*belongs, messages_exposed=bool(merged))
        for begin, end, cause, is_open, server in merged:
            self._add(*belongs, exposure_us=end - begin)
            self.tables["exposures"].append(
                {"message": message.id, "server": server, "began_at": instant(begin), "ended_at": instant(end),
                 "seconds": (end - begin) / SECOND, "is_open": is_open, "cause": cause}
            )  # fmt: skip
        total = sum(end - begin for begin, end, *_ in merged)
        is_told = not any(
            row.format != "shadowrelay" and row.instant("SilentSince") is None and (message.done_at is None or row.at < message.done_at)
            for row in message.takeovers
        )
        self._add(*belongs, messages_exposure_unknown=not is_told)
        is_good = total <= self._within("exposure")
        if is_told or not is_good:
            self.events["exposure"].append((message.acknowledged_at, is_good))
        else:
            self.untold += 1

    def _lost_and_duplicated(self, message: Message, belongs: tuple[int, str, tuple[str, str] | None]) -> None:
        for recipient, deliveries in sorted(message.deliveries.items()):
            if len(deliveries) > 1:
                (first_at, earlier), (later_at, later) = sorted(deliveries)[:2]
                cause = self._why_twice(message, earlier, first_at, later, later_at)
                self._add(*belongs, recipients_duplicated=1, recipients_duplicated_unexplained=cause == "unexplained")
                self.tables["duplicates"].append(
                    {"message": message.id, "recipient": recipient, "count": len(deliveries), "cause": cause, "first_server": earlier,
                     "first_at": instant(first_at), "later_server": later, "later_at": instant(later_at),
                     "sender": message.sender, "subject": message.subject}
                )  # fmt: skip
                continue
            had = [min(each.deliveries[recipient]) for each in self.repeats.get(id(message), ()) if each.deliveries.get(recipient)]
            if had and deliveries:
                (first_at, earlier), (later_at, later) = sorted((min(had), min(deliveries)))
                self._add(*belongs, recipients_duplicated=1)
                self.tables["duplicates"].append(
                    {"message": message.id, "recipient": recipient, "count": 2, "cause": "e", "first_server": earlier,
                     "first_at": instant(first_at), "later_server": later, "later_at": instant(later_at),
                     "sender": message.sender, "subject": message.subject}
                )  # fmt: skip
        due = message.acknowledged_at + self.expiration
        if self.time_is_up(due):
            is_known = self.is_final or (message.known_until is not None and message.known_until >= due)
            for recipient in sorted(message.recipients - message.ends.keys()):
                self._add(*belongs, recipients_lost=is_known)
                self.tables["losses"].append(
                    {"message": message.id, "recipient": recipient, "acknowledged_at": instant(message.acknowledged_at),
                     "server": self._last_holder(message, recipient),
                     "cause": self._why_lost(message, recipient) if is_known else "unknown: log ends",
                     "sender": message.sender, "subject": message.subject}
                )  # fmt: skip

    def _why_twice(self, message: Message, earlier: str, first_at: int, later: str, later_at: int) -> str:
        takeovers = message.takeovers
        between = [row for row in takeovers if first_at <= row.at <= later_at]
        for one in between:
            for another in between:
                if one.reference != another.reference and abs(one.at - another.at) <= self.span + self.heartbeat:
                    return "d"
        for one in takeovers:
            for another in takeovers:
                is_one_of_each = earlier != later and (one.server, another.server) == (earlier, later)
                if is_one_of_each and one.reference == another.reference and abs(one.at - another.at) <= self.span + self.heartbeat:
                    return "d"
        mutual = _reasons(takeovers, earlier, later) | _reasons(takeovers, later, earlier)
        if mutual & {"DatabaseChanged", "DatabaseRolledBack"}:
            return "b"
        if "Silence" in mutual:
            return "c"
        loads = [row for row in message.those("LOAD") if row.server == earlier and first_at <= row.at <= later_at]
        if loads or any(row.custom.get("Reason") == "Handover" for row in takeovers):
            return "a"
        if message.is_of_exchange:
            if any(row.at <= later_at for row in takeovers):
                return "taken over"
            if any(first_at <= row.at <= later_at for row in message.those("LOAD")):
                return "a"
            if any(row.at <= later_at and row.source == "SAFETYNET" and does(row, "sends again") for row in message.rows):
                return "Safety Net"
            if any(first_at < row.at <= later_at and does(row, "acknowledges") for row in message.rows):
                return "received again"
            return "not told by Exchange"
        return "unexplained"

    def _handed_on(self, message: Message, recipient: str) -> list[tuple[int, str]]:
        """The rows by which it went to a server whose log is here, with when and to whom."""
        handing = [row for row in message.rows if does(row, "hands on") and recipient in row.recipients]
        return [(row.at, to) for row in handing if (to := self._next_server(message, row)) is not None]

    def _next_server(self, message: Message, row: Row) -> str | None:
        return next_server(message, row, self.logs, self.without_deliveries)

    def _last_holder(self, message: Message, recipient: str) -> str:
        """Who acknowledged it; of Exchange, who had it last."""
        hops = self._handed_on(message, recipient)
        taken = [(row.at, row.server) for row in message.takeovers] + hops
        return max(taken)[1] if taken and message.is_of_exchange else message.server

    def _why_lost(self, message: Message, recipient: str) -> str:
        up = message.acknowledged_at + self.expiration
        if message.rows[-1].event == "POISONMESSAGE":
            return "set aside"
        if message.is_of_exchange and (message.known_until is None or message.known_until < up):
            return "no end in the logs"
        handed = self._handed_on(message, recipient)
        if handed:
            _, last = max(handed)
            of_exchange = [row for row in message.rows if row.format != "shadowrelay"]
            if last not in {row.server for row in of_exchange if not does(row, "begins copy", "ends copy")}:
                return "not in the next log"
        for row in message.those("HADISCARD"):
            if row.tells_delivery and (not row.recipients or recipient in row.recipients):
                if not message.is_of_exchange:
                    return "discarded without delivery"
                if row.client in ("", self._last_holder(message, recipient)):
                    return "discarded, end not logged"
        if not message.takeovers and self.last_row.get(message.server, -1) < up:
            is_held = any(self.last_row.get(row.server, -1) >= up for row in message.those("HARECEIVE"))
            return "copy not taken over" if is_held else "both copies gone"
        if any(row.at >= up for row in message.those("DEFER", "RESUBMIT")):
            return "still queued"
        return "no trace"

    def _copies(self, message: Message) -> None:
        held: dict[tuple[str, str], list[Row]] = {}
        for row in message.those("HARECEIVE"):
            first = next((rows[0] for (server, _), rows in held.items() if server == row.server), row)
            key = row.server, "" if first.format == "shadowrelay" else row.client
            held.setdefault(key, []).append(row)
        for (server, _), rows in held.items():
            row = rows[0]
            is_own = row.format == "shadowrelay"
            belongs = row.at, row.client, (row.client, server)
            others = {each.client for each in message.those("HARECEIVE") if each.server == server}
            discards = [each for each in message.those("HADISCARD") if each.server == server]
            if not is_own:
                discards = [each for each in discards if each.client == row.client or each.client not in others]
            named = {recipient for each in discards for recipient in (each.recipients or message.addressed)}
            told = [each.at for each in discards if each.tells_delivery]
            since = rows[-1].at if len(rows) > 1 else None
            done = message.done_at if is_own else self._hop_done(message, row.client, since)
            if told and done is not None and not message.is_reconstructed:
                lag = self._elapsed(belongs, "discard_lag_ms", max(told) - done)
                self._add(*belongs, discards_late=lag > self.heartbeat)
                self.events["discard_lag"].append((row.at, lag <= self.heartbeat))
                if lag > self.heartbeat:
                    cause = self._why_late(max(told) - lag, max(told), server, row.client)
                    if cause == "our own delay" and self.logs.formats.get(server, "shadowrelay") != "shadowrelay":
                        cause = "delay within Exchange"
                    self._slow("discard_lag", message, server, row.client, max(told), lag, cause)
            is_discarded = bool(discards) and (
                named >= message.addressed if is_own else bool(told) and (since is None or max(told) >= since)
            )
            is_promoted = any(each.server == server for each in message.takeovers)
            is_kept = row.source == KEPT
            sent_to = {each.server_hostname for each in message.those("SEND", "SENDEXTERNAL") if each.server == server and each.recipients}
            is_taken_back = is_kept and is_promoted
            self._add(*belongs, shadows_kept=is_kept, shadows_taken_back=is_taken_back)
            self._add(*belongs, shadows_rerouted=is_taken_back and bool(sent_to - {row.client}))
            due = row.at + self.hold
            if not is_discarded and not is_promoted and self.time_is_up(due):
                cause, is_known = "never told", (self.known_until(server) or -1) >= due
                if any(each.server == server and each.client for each in message.those("EXPIRE")):
                    cause = "expired"
                elif not self.is_final and not is_known:
                    cause = "unknown: log ends"
                elif server not in self.last_row or (self.last_row[server] < due and is_known):
                    cause = "log missing"
                elif self.last_row[server] < due:
                    cause = "left when the log ends"
                self._add(*belongs, shadows_orphaned=cause != "unknown: log ends")
                self.tables["orphans"].append(
                    {"message": message.id, "server": server, "primary": row.client, "at": instant(row.at), "cause": cause}
                )

    def _hop_done(self, message: Message, server: str, since: int | None) -> int | None:
        """When that server was done with all that it had of the message."""
        first = [
            min((at for at in handed if since is None or at >= since), default=None) for _, handed in handled(message, server).values()
        ]
        return max((at for at in first if at is not None), default=None)

    def _takeovers(self) -> None:
        done = {message.id: message.done_at for message in self.messages}
        for (new, old, reason, detected), rows in self._taken().items():
            first = min(row.at for row in rows)
            self._add(first, new, (old, new), promotions=1)
            judged = [(row.message, self._resubmitted(row)) for row in rows]
            in_time = len({message for message, _ in judged} - {message for message, is_in_time in judged if not is_in_time})
            ends = [done[row.message] for row in rows]
            returned = [at for at in self.instants.get(old, ()) if at > first]
            since = [at for row in rows if (at := row.instant("SilentSince")) is not None]
            seen = [at for at in self.instants.get(old, ()) if since and min(since) < at <= first]
            touched = [at for at in self.copied.get((old, new), []) + self.copied.get((new, old), []) if at > first]
            self.tables["takeovers"].append(
                {"old_primary": old, "new_primary": new, "reason": reason, "silent_since": instant(min(since, default=None)),
                 "detected_at": instant(detected), "first_resubmit_at": instant(first),
                 "last_resubmit_at": instant(max(row.at for row in rows)),
                 "messages": len({row.message for row in rows}), "delivered_at": None if None in ends else instant(max(ends)),
                 "returned_at": instant(min(returned, default=None)), "seen_at": instant(max(seen, default=None)),
                 "in_touch_at": instant(min(touched, default=None)),
                 "in_time": None if None in (is_in_time for _, is_in_time in judged) else in_time}
            )  # fmt: skip

    def _resubmitted(self, row: Row) -> bool | None:
        """Whether it was in time; None: the row does not say."""
        belongs = row.at, row.server, (row.reference, row.server)
        self._add(*belongs, messages_promoted=row.message)
        detected, since = row.instant("DetectedAt"), row.instant("SilentSince")
        if detected is not None:
            self._elapsed(belongs, "takeover_detection_ms", row.at - detected)
        if since is not None:
            self._elapsed(belongs, "takeover_silence_ms", row.at - since)
        limit = None if detected is None else detected + self.heartbeat
        if row.custom.get("Reason") == "Silence":
            limit = None if since is None else since + self.span + self.heartbeat
        if limit is None:
            return None
        self._add(*belongs, takeovers_late=row.at > limit)
        self.events["takeover"].append((row.at, row.at <= limit))
        if row.at > limit:
            begin = since if row.custom.get("Reason") == "Silence" else detected
            assert begin is not None
            cause = self._why_late(begin, row.at, row.server)
            self._slow("takeover", row, row.server, row.reference, row.at, row.at - begin, cause)
        return row.at <= limit

    # the report

    def report(self) -> dict[str, Any]:
        """Overall, figures by (window, start, scope, name, other), objectives, causes and the tables, whole and sorted."""
        figures = {key: finished(values) for key, values in self.figures.items()}
        nothing: dict[str, list[Any]] = {}
        overall = figures.get(("all", None, "all", "", "")) or finished(nothing)
        reasons = Counter(reason for *_, reason in self.logs.quarantine)
        formats = {row.format for row in self.logs.rows}
        return {
            "now": instant(self.now),
            "overall": overall | {"lines_quarantined": len(self.logs.quarantine)},
            "figures": figures,
            "objectives": [
                objective(name, wanted, overall, self.events[name], formats=formats, untold=self.untold, now=self.now)
                for name, wanted in self.objectives.items()
            ],
            "causes": {name: dict(Counter(row["cause"] for row in rows)) for name, rows in self.tables.items() if name in CAUSED},
            "slow_causes": {
                objective: dict(Counter(row["cause"] for row in self.tables["slow"] if row["objective"] == objective))
                for objective in {row["objective"] for row in self.tables["slow"]}
            },
            "quarantine": dict(reasons),
            "input": {
                "files": self.logs.files,
                "lines": self.logs.lines,
                "rows": len(self.logs.rows) + len(self.logs.repeats),
                "rows_repeated": len(self.logs.repeats),
            },
            **{name: sorted(rows, key=lambda row: [str(value) for value in row.values()]) for name, rows in self.tables.items()},
        }


def _reasons(takeovers: list[Row], one: str, other: str) -> set[str | None]:
    """Of all takeovers on all ways from one server to the other."""
    on_a_way = [row for row in takeovers if row.reference in _heirs(takeovers, one) and other in _heirs(takeovers, row.server)]
    return {row.custom.get("Reason") for row in on_a_way}


def _heirs(takeovers: list[Row], server: str) -> set[str]:
    """It, and all to whom its mail came, over others too."""
    found, more = set(), {server}
    while more:
        found |= more
        more = {row.server for row in takeovers if row.reference in found} - found
    return found


def judge(
    directory: Path,
    *,
    sites: Path | None = None,
    now: int | None = None,
    is_final: bool = False,
    objectives: Path | None = None,
    clock: int | None = None,
) -> dict[str, Any]:
    """The whole report on a directory of logs. `clock`: of the machine that makes the report."""
    return Oracle(read_logs(directory, sites), now=now, is_final=is_final, objectives=objectives, clock=clock).report()
