"""What several rows of Exchange say together: who approved, who was primary, which hop, which stay, which report. docs/sla.md, 2."""

from collections import defaultdict
from dataclasses import replace

from tests.sla.oracle_logs import Logs, Row, first_label, meant
from tests.sla.oracle_messages import REDIRECTING, Message, does, said_redundant
from tests.sla.oracle_report import MINUTE

UNDELIVERABLE = (
    "undeliverable", "unzustellbar", "non remis", "non distribuable", "échec de la remise", "no se puede entregar", "no entregado",
    "no entregable", "non recapitabile", "mancato recapito", "onbestelbaar", "não entregue", "nao entregue", "não é possível entregar",
    "não foi possível entregar", "kan inte levereras", "kan ikke leveres", "ei voi toimittaa", "ei voida toimittaa", "toimittamaton",
    "nie można dostarczyć", "niedostarczon", "nedoručiteln", "nelze doručit", "nedoručiteľn", "kézbesíthetetlen", "nelivrabil",
    "imposibil de livrat", "teslim edileme", "недоставлено", "не удается доставить", "не доставлено", "недоставен", "μη παραδοτέο",
    "δεν είναι δυνατή η παράδοση", "neisporučivo", "配信不能", "配信できません", "无法送达", "无法传递", "未送达", "無法傳遞", "無法送達",
    "未傳遞", "배달되지 않음", "배달할 수 없음", "전달할 수 없음", "לא ניתן למסירה", "غير قابل للتسليم", "تعذر التسليم",
)  # fmt: skip

OF_MAILBOXES = ("DELIVER", "DUPLICATEDELIVER", "DELIVERFAIL", "PROCESS", "PROCESSMEETINGMESSAGE")


def approved(rows: list[Row]) -> list[Row]:
    """What a moderator approved goes on under another id; it is the message that waited. So may what was taken over, or sent again from
    Safety Net."""
    waited: dict[str, list[Row]] = defaultdict(list)
    begun: dict[str, dict[str, int]] = defaultdict(dict)  # Message-ID -> message -> when it was first received or held
    sent_to: dict[tuple[str, str], set[str]] = defaultdict(set)  # by Message-ID and message
    for row in rows:
        if does(row, "waits", "approves") and row.internet_message_id:
            waited[row.internet_message_id].append(row)
        if does(row, "acknowledges", "begins copy"):
            those = begun[row.internet_message_id]
            those[row.message] = min(row.at, those.get(row.message, row.at))
            sent_to[row.internet_message_id, row.message] |= {*row.recipients}
    first: dict[str, int] = {}
    for those in begun.values():
        for message, at in those.items():
            first[message] = min(at, first.get(message, at))
    again: dict[tuple[str, str], int] = {}
    for row in rows:
        if does(row, "promotes") or (does(row, "sends again") and row.source == "SAFETYNET"):
            key = row.internet_message_id, row.message
            again[key] = min(row.at, again.get(key, row.at))
            sent_to[key] |= {*row.recipients}
    original: dict[str, tuple[bool, int, str]] = {}
    for row in rows:
        if does(row, "goes on"):
            for one in waited[row.internet_message_id]:
                if one.at <= row.at and one.message != row.message:
                    is_alike = bool({*row.recipients} & {*one.recipients})
                    original[row.message] = max(original.get(row.message, (False, 0, "")), (is_alike, one.at, one.message))
    for (internet_id, message), at in again.items():
        if internet_id and not first.get(message, at + 1) <= at:
            for other, other_at in begun[internet_id].items():
                if other_at <= at and other != message:
                    is_alike = bool(sent_to[internet_id, message] & sent_to[internet_id, other])
                    original[message] = max(original.get(message, (False, 0, "")), (is_alike, other_at, other))
    return [replace(row, message=original[row.message][2]) if row.message in original else row for row in rows]


def mailboxes_untold(logs: Logs) -> set[str]:
    """Servers whose logs do not have what they delivered to mailboxes."""
    of_exchange = [row for row in logs.rows if row.format != "shadowrelay"]
    delivering = {row.server for row in of_exchange if row.event in OF_MAILBOXES}
    to_itself, handed, receiving = set(), set(), set()
    for row in of_exchange:
        is_sending = row.event in ("SEND", "SENDEXTERNAL") and row.client != ""
        if is_sending and first_label(row.client) == first_label(row.server_hostname):
            to_itself.add(row.server)
        elif row.event == "SEND" and row.format != "exchange2010":
            other = meant(row.server_hostname, logs.formats, logs.domains)
            if other != row.server and logs.formats.get(other, "shadowrelay") not in ("shadowrelay", "exchange2010"):
                handed.add(other)
        if does(row, "acknowledges"):
            other = meant(row.client, logs.formats, logs.domains)
            if other != row.server and logs.formats.get(other, "shadowrelay") != "shadowrelay":
                receiving.add(row.server)
    return (to_itself | (handed - receiving)) - delivering


def with_primaries(rows: list[Row]) -> list[Row]:
    """A takeover that names nobody is of whom its server had the message from, last."""
    copies: dict[tuple[str, str], list[tuple[int, str]]] = defaultdict(list)
    for row in rows:
        if does(row, "begins copy"):
            copies[row.message, row.server].append((row.at, row.client))

    def primary(row: Row) -> str:
        return max((copy for copy in copies[row.message, row.server] if copy[0] <= row.at), default=(0, ""))[1]

    return [replace(row, reference=primary(row)) if does(row, "promotes") and not row.reference else row for row in rows]


def notified(rows: list[Row], messages: list[Message]) -> dict[str, int]:
    """When a report came of which no FAIL tells, by the message that it is about."""
    named = {row.reference for row in rows if row.format != "shadowrelay" and row.event != "DSN"} - {""}
    by_id: dict[str, list[Message]] = defaultdict(list)
    for message in messages:
        if not message.is_dsn:
            by_id[max((row.internet_message_id for row in message.rows if row.event != "DSN"), default="")].append(message)
    acknowledged = {message.id: message for message in messages if message.receive is not None}
    found: dict[str, int] = {}
    for row in rows:
        is_failure = row.subject.strip().lower().startswith(UNDELIVERABLE)
        if not does(row, "reports") or not is_failure:
            continue
        candidates = [acknowledged[row.message]] if row.message in acknowledged else []
        bearers = list(candidates)
        if not candidates and row.reference and row.internet_message_id not in named:
            told = {*row.recipients}
            bearers = [one for one in by_id[row.reference] if not told or {one.sender.lower(), _path(one)} & told]
            candidates = [one for one in bearers if one.receive is not None and one.acknowledged_at <= row.at]
        if candidates:
            owner = max(candidates, key=lambda one: (one.acknowledged_at, one.id))
            fails = {one.id: [fail.at for fail in one.those("FAIL") if fail.format != "shadowrelay"] for one in bearers}
            is_told = any(at <= row.at + MINUTE for at in fails[owner.id])
            is_of_another = any(abs(at - row.at) <= MINUTE for those in fails.values() for at in those)
            if not is_told and not is_of_another:
                found[owner.id] = min(row.at, found.get(owner.id, row.at))
    return found


def bare_stays(message: Message) -> list[tuple[int, int | None, str]]:
    """(begin, end, server) of each time that a server of Exchange had the message without a copy."""
    found = []
    for server in {row.server for row in message.rows}:
        own = [row for row in message.rows if row.server == server]
        received = [
            row for row in own if does(row, "goes on") or (does(row, "acknowledges") and row.format != "exchange2010" and row.recipients)
        ]
        made = [row.at for row in own if row.event == "HAREDIRECT"]
        for row in received:
            after = min((other.at for other in received if other.at > row.at), default=None)
            before = max((other.at for other in received if other.at < row.at), default=None)
            told = said_redundant(row)
            has_copy = any(at <= row.at and (before is None or at > before) for at in made) if told is None else told
            if has_copy or does(row, "goes on"):
                continue
            ends = [at for at in made if at > row.at][:1]
            over = []
            for entered, handed in handled(message, server).values():
                if any(row.at <= at and (after is None or at < after) for at in entered):
                    over.append(min((at for at in handed if at >= row.at), default=None))
            if over and None not in over:
                ends.append(max(at for at in over if at is not None))
            if message.done_at is not None:
                ends.append(message.done_at)
            found.append((row.at, min(ends, default=None), server))
    return found


def handled(message: Message, server: str) -> dict[str, tuple[list[int], list[int]]]:
    """When a server got each recipient, and when it was done with it."""
    found: dict[str, tuple[list[int], list[int]]] = defaultdict(lambda: ([], []))
    own = [row for row in message.rows if row.server == server]
    replacing, ending = message.replacements, message.ends_of_exchange
    kept = {
        address
        for row in own
        if row in replacing and row.event in REDIRECTING
        for address in {*row.related} & {*row.recipients}
    }  # fmt: skip
    for row in own:
        if does(row, "acknowledges", "adds", "puts off"):
            for recipient in row.recipients:
                found[recipient][0].append(row.at)
        if does(row, "hands on", "delivers", "waits") or row in ending or (row.event == "FAIL" and row.format != "shadowrelay"):
            for recipient in row.recipients:
                found[recipient][1].append(row.at)
        if row in replacing:
            for recipient in {*row.recipients} - message.replaced(row):
                found[recipient][0].append(row.at)
            for recipient in message.replaced(row) - (kept if row.event in REDIRECTING else set()):
                found[recipient][1].append(row.at)
    return found


def is_to_logged(row: Row, logs: Logs, without_deliveries: set[str]) -> bool:
    """Did it go to a server that knows the message by this id, and whose log is here?"""
    other = logs.formats.get(row.server_hostname, "shadowrelay")
    if other == "shadowrelay" or row.server_hostname in without_deliveries:
        return False
    return (other == "exchange2010") == (row.format == "exchange2010")


def next_server(message: Message, row: Row, logs: Logs, without_deliveries: set[str]) -> str | None:
    """The server that goes on with the message under its id, so that it is a hop; None: the logs do not tell of one."""
    if is_to_logged(row, logs, without_deliveries):
        return row.server_hostname
    received = [one for one in message.rows if does(one, "acknowledges")]
    handing = {one.server for one in message.rows if does(one, "hands on", "delivers") and one.event in ("SEND", "SENDEXTERNAL")}
    has_received = any(one.server == row.server and one.format != "shadowrelay" for one in message.those("RECEIVE"))
    found = []
    for one in received:
        if not {*row.recipients} <= {*one.recipients}:
            continue
        is_other, is_near = one.server != row.server, abs(one.at - row.at) <= 10 * MINUTE
        is_from_it = one.client == row.server or _is_by_address(row, one)
        is_after = one.at >= row.at - 2 * MINUTE if is_other else one.at > row.at
        is_first = one.at == min(each.at for each in received)
        is_of_stranger = row.format != "exchange2010" and one.client not in logs.logged
        is_earliest = is_other and one.at == min(each.at for each in received if each.server == one.server)
        sources = [each for each in received if each.server == row.server]
        is_where_it_came_from = any(
            one.server == each.client or (_tells(each.client_ip) and each.client_ip == one.server_ip) for each in sources
        )
        if is_earliest and is_where_it_came_from:
            is_of_stranger = False
        is_wrong_clock = is_other and is_near and has_received and one.server not in handing
        if (is_other and is_near and is_from_it) or (is_of_stranger and ((is_after and not is_first) or is_wrong_clock)):
            found.append((one.at, one.server))
    return max(found)[1] if found else None


def _is_by_address(row: Row, arrival: Row) -> bool:
    here = {each for each in (row.server_ip, row.server_hostname.lower().strip("[]")) if _tells(each)}
    return arrival.server_ip in here or (_tells(row.client_ip) and arrival.client_ip == row.client_ip)


def _tells(address: str) -> bool:
    return address not in ("", "::1") and not address.startswith("127.")


def _path(message: Message) -> str:
    return max((row.return_path.lower() for row in message.those("RECEIVE") if row.format != "shadowrelay"), default="")
