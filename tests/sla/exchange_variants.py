"""More of what real Exchange servers write, each a boundary of its own: what an auditor would ask about. Names are invented."""

from typing import Any

from tests.sla.exchange_shapes import DAY, MODERATED, TWICE, WHOM, ExchangeShape, shape

TEAM = "team@nordhof.example"
PAIR = ("anna@nordhof.example", "bert@nordhof.example")


def _only(case: ExchangeShape, *members: str, related: str = TEAM, at: float = 0.2, **more: Any) -> None:
    case.row("EXPAND", "ROUTING", at, "a1", to=members, related_recipient_address=related, **more)


def _notified(case: ExchangeShape, seconds: float, subject: str = "Undeliverable: Hello", **more: Any) -> None:
    about: dict[str, Any] = {"reference": f"<m.{case.name}@nordhof.example>", "return_path": "<>", "to": ("ella@nordhof.example",)}
    case.row("DSN", "DSN", seconds, "a1", f"dsn{seconds}", message_subject=subject, **about | more)


# ---- redundancy, by version


@shape(messages_redundant=4, messages_exposed=0)
def spelled_otherwise(case: ExchangeShape) -> None:
    for number, said in enumerate((case.host("a2").upper(), "OTHERDAG01", "Success", f" {case.host('a2')} ")):
        case.receive(number, said=said, message=f"m{number}")
        case.deliver(number + 0.5, message=f"m{number}")


@shape(messages_redundant=0, messages_exposed=5)
def said_without(case: ExchangeShape) -> None:
    for number, said in enumerate(("FAILED", "Failed:NoShadowServer", "NotRequired", case.host("a1").upper(), "Disabled")):
        case.receive(number, said=said, message=f"m{number}")
        case.deliver(number + 0.5, message=f"m{number}")


@shape(messages_redundant=1, messages_exposed=0)
def second_try(case: ExchangeShape) -> None:
    """The first shadow server did not take it, the second did, before the 250."""
    case.row("HAREDIRECTFAIL", "SMTP", -0.2, "a1", source_context="451 4.4.0 timeout")
    case.copied()
    case.deliver(1)
    case.discard(60)


@shape("2013", messages_redundant=0, messages_exposed=1, recipients_lost=0)
def refused_thirteen(case: ExchangeShape) -> None:
    """Refused for want of a copy, and received when the client came again."""
    case.row("HAREDIRECTFAIL", "SMTP", 0, "a1", source_context="No suitable shadow servers")
    case.row("HAREDIRECTFAIL", "SMTP", 60, "a1", source_context="No suitable shadow servers")
    case.receive(60)
    case.deliver(61)


@shape(messages_acknowledged=0, recipients_lost=0, shadows_orphaned=0)
def refused_sixteen(case: ExchangeShape) -> None:
    case.row("HAREDIRECTFAIL", "SMTP", 0, "a1", source_context="No suitable shadow servers")
    case.goes_on("a1")


@shape(messages_acknowledged=2, messages_redundant=1)
def submitted(case: ExchangeShape) -> None:
    """Between two mailboxes: submitted, received by transport with a copy, delivered. And from the pickup directory: no client was told."""
    case.row("NOTIFYMAPI", "STOREDRIVER", -0.3, "a1", to=(), message_id="", network_message_id="")
    case.row("RECEIVE", "STOREDRIVER", -0.2, "a1")
    case.row("SUBMIT", "STOREDRIVER", -0.1, "a1", to=())
    case.copied(client=case.host("a1"))
    case.send(0.5, "a1", case.host("a1"))
    case.deliver(1)
    case.discard(60)
    case.row("RECEIVE", "PICKUP", 5, "a1", "picked")
    case.deliver(6, message="picked")
    case.receive(7, said="Failed", message="other")
    case.deliver(8, message="other")


# ---- recipients


@shape(recipients_lost=1)
def nested(case: ExchangeShape) -> None:
    case.receive(0, to=(TEAM,))
    _only(case, "inner@nordhof.example", PAIR[0])
    _only(case, PAIR[1], "carl@nordhof.example", related="Inner@nordhof.example", at=0.3)
    case.deliver(1, to=PAIR)
    case.goes_on("a1")


@shape(recipients_lost=0, messages_done=1)
def empty_group(case: ExchangeShape) -> None:
    case.receive(0, to=(TEAM,))
    _only(case, recipient_status="250 2.1.5 RESOLVER.GRP.Expanded; distribution list expanded")
    case.goes_on("a1")


@shape(recipients_lost=0, messages_done=1)
def circle(case: ExchangeShape) -> None:
    """Two groups that are members of each other."""
    case.receive(0, to=(TEAM,))
    _only(case, "inner@nordhof.example", PAIR[0])
    _only(case, TEAM, PAIR[1], related="inner@nordhof.example", at=0.3)
    case.row("DUPLICATEEXPAND", "ROUTING", 0.3, "a1", to=(TEAM,), related_recipient_address="inner@nordhof.example")
    case.deliver(1, to=PAIR)
    case.goes_on("a1")


@shape(recipients_lost=0, messages_done=1, recipients_duplicated=0)
def two_aliases(case: ExchangeShape) -> None:
    case.receive(0, to=("o.t@nordhof.example", "ot@nordhof.example"))
    for alias in ("o.t@nordhof.example", "ot@nordhof.example"):
        case.row("RESOLVE", "RESOLVER", 0.1, "a1", related_recipient_address=alias)
    case.deliver(1)
    case.goes_on("a1")


@shape(recipients_lost=0, messages_done=1)
def smtp_prefix(case: ExchangeShape) -> None:
    """Proxy addresses, as the directory has them."""
    case.receive(0, to=("sales@nordhof.example",))
    case.row("RESOLVE", "RESOLVER", 0.1, "a1", to=("SMTP:Otto@nordhof.example",), related_recipient_address="smtp:sales@nordhof.example")
    case.deliver(1)
    case.goes_on("a1")


@shape(recipients_lost=1)
def smtp_prefix_lost(case: ExchangeShape) -> None:
    case.receive(0, to=(TEAM,))
    _only(case, "SMTP:anna@nordhof.example", "smtp:bert@nordhof.example", related=f"SMTP:{TEAM}")
    case.deliver(1, to=PAIR[:1])
    case.goes_on("a1")


@shape(recipients_lost=0, messages_done=1)
def alias_deferred(case: ExchangeShape) -> None:
    """Put off before its recipients were resolved, as while the directory was down."""
    case.receive(0, to=("sales@nordhof.example",))
    case.row("DEFER", "ROUTING", 0.1, "a1", to=("sales@nordhof.example",), source_context="Directory")
    case.row("RESOLVE", "RESOLVER", 60, "a1", related_recipient_address="sales@nordhof.example")
    case.deliver(61)
    case.goes_on("a1")


@shape(recipients_lost=1, recipients_duplicated=0)
def kept_and_forwarded_in_one(case: ExchangeShape) -> None:
    case.receive(0, to=("sales@nordhof.example",))
    both = ("sales@nordhof.example", "lacey@ziel.example")
    case.row("REDIRECT", "ROUTING", 0.1, "a1", to=both, related_recipient_address="sales@nordhof.example")
    case.send(1, "a1", "mx.ziel.example", "SENDEXTERNAL", to=("lacey@ziel.example",))
    case.goes_on("a1")


@shape(recipients_lost=0, messages_done=1)
def forwarded_on(case: ExchangeShape) -> None:
    case.receive(0)
    case.row("REDIRECT", "ROUTING", 0.1, "a1", to=PAIR[:1], related_recipient_address=WHOM[0])
    case.row("REDIRECT", "ROUTING", 0.2, "a1", to=PAIR[1:], related_recipient_address=PAIR[0])
    case.deliver(1, to=PAIR[1:])
    case.goes_on("a1")


@shape(recipients_lost=1)
def forwarded_to_a_recipient(case: ExchangeShape) -> None:
    """Keep and forward, to one who has it already; the mailbox that keeps it does not get it."""
    case.receive(0, to=(*WHOM, PAIR[0]))
    case.row("REDIRECT", "ROUTING", 0.1, "a1", related_recipient_address=WHOM[0])
    case.row("DUPLICATEREDIRECT", "ROUTING", 0.1, "a1", to=PAIR[:1], related_recipient_address=WHOM[0])
    case.deliver(1, to=PAIR[:1])
    case.goes_on("a1")


@shape(recipients_lost=0, messages_acknowledged=1, messages_done=1)
def rule_forwards(case: ExchangeShape) -> None:
    """A rule of the mailbox makes a message of its own of it, which nobody was told about."""
    case.receive(0)
    case.deliver(1)
    case.row("RECEIVE", "MAILBOXRULE", 1.1, "a1", "rule", to=("fwd@ziel.example",), reference=f"<m.{case.name}@nordhof.example>")
    case.row("SUBMIT", "STOREDRIVER", 1.2, "a1", "rule", to=())
    case.goes_on("a1")


@shape(recipients_lost=0, messages_acknowledged=1, messages_done=1)
def journaled(case: ExchangeShape) -> None:
    case.copied()
    case.row("RECEIVE", "AGENT", 0.5, "a1", "journal", to=("journal@nordhof.example",), reference=f"<m.{case.name}@nordhof.example>")
    case.deliver(1)
    case.deliver(2, to=("journal@nordhof.example",), message="journal")
    case.discard(60)


@shape(recipients_lost=0, messages_done=1)
def meeting_notice(case: ExchangeShape) -> None:
    """A meeting is forwarded; the notice to its organizer is a message of its own."""
    case.receive(0)
    case.row("PROCESSMEETINGMESSAGE", "MEETINGMESSAGEPROCESSOR", 0.9, "a1")
    case.deliver(1)
    notice = {"message_subject": "Meeting Forward Notification: Hello", "to": ("ella@nordhof.example",)}
    case.row("RECEIVE", "STOREDRIVER", 2, "a1", "notice", **notice)
    case.row("DELIVER", "STOREDRIVER", 3, "a1", "notice", **notice)
    case.goes_on("a1")


@shape(recipients_lost=0, messages_done=1)
def rule_redirects(case: ExchangeShape) -> None:
    case.receive(0)
    case.row("AGENTINFO", "AGENT", 0.1, "a1")
    case.row("REDIRECT", "AGENT", 0.1, "a1", to=("audit@nordhof.example",), related_recipient_address=WHOM[0])
    case.deliver(1, to=("audit@nordhof.example",))
    case.goes_on("a1")


@shape(recipients_lost=1)
def member_of_a_fork(case: ExchangeShape) -> None:
    """The message is split for a limit on recipients; one part has no end."""
    case.receive(0, to=(TEAM,))
    _only(case, *PAIR)
    for recipient in PAIR:
        case.row("TRANSFER", "ROUTING", 0.3, "a1", to=(recipient,), reference="7", source_context="Resolver")
    case.deliver(1, to=PAIR[:1])
    case.goes_on("a1")


@shape(recipients_lost=0, messages_done=1)
def contact(case: ExchangeShape) -> None:
    case.receive(0, to=("lieferant@nordhof.example",))
    case.row("RESOLVE", "RESOLVER", 0.1, "a1", to=("info@ziel.example",), related_recipient_address="lieferant@nordhof.example")
    case.send(1, "a1", "mx.ziel.example", "SENDEXTERNAL", to=("info@ziel.example",))
    case.goes_on("a1")


# ---- moderated mail


@shape(recipients_lost=0, messages_done=1)
def one_of_two_moderated(case: ExchangeShape) -> None:
    case.receive(0, to=(*WHOM, TEAM))
    case.row("INITMESSAGECREATED", "APPROVAL", 0.5, "a1", to=(TEAM.title(),))
    case.deliver(1)
    case.row("MODERATORREJECT", "APPROVAL", 3600, "a1", to=(TEAM,))
    case.goes_on("a1")


@shape(recipients_lost=1)
def other_one_lost(case: ExchangeShape) -> None:
    case.receive(0, to=(*WHOM, TEAM))
    case.row("INITMESSAGECREATED", "APPROVAL", 0.5, "a1", to=(TEAM,))
    case.goes_on("a1")


@shape(recipients_lost=0, messages_acknowledged=1)
def approved_elsewhere(case: ExchangeShape) -> None:
    """The arbitration mailbox is on another server, which sends the approved message on by SMTP under its own id."""
    case.receive(0, to=(TEAM,))
    case.row("INITMESSAGECREATED", "APPROVAL", 0.5, "a1", to=(TEAM,))
    again = {"network_message_id": f"again-{case.name}"}
    case.row("MODERATORAPPROVE", "APPROVAL", 3600, "b1", to=(TEAM,))
    case.row("RECEIVE", "APPROVAL", 3600.1, "b1", to=(TEAM,), **again)
    case.send(3600.2, "b1", case.host("a1"), to=(TEAM,), **again)
    case.receive(3600.3, "a1", case.host("b1"), to=(TEAM,), **again)
    _only(case, *PAIR, at=3600.4, **again)
    case.deliver(3601, to=PAIR, **again)
    case.goes_on("a1", "b1")


@shape(recipients_lost=0, messages_done=1)
def approval_dropped(case: ExchangeShape) -> None:
    """The request to the moderators is dropped when they have decided."""
    case.receive(0, to=(TEAM,))
    case.row("INITMESSAGECREATED", "APPROVAL", 0.5, "a1", to=(TEAM,))
    case.row("DROP", "APPROVAL", 3600, "a1", "init", to=("arbitration@nordhof.example",))
    case.row("MODERATORREJECT", "APPROVAL", 3600, "a1", to=())
    case.goes_on("a1")


# ---- what ends a recipient


@shape(recipients_lost=0, messages_done=6)
def reports_in_other_languages(case: ExchangeShape) -> None:
    for number, word in enumerate(
        ("Kan ikke leveres", "Ei voi toimittaa", "Nedoručitelná zpráva", "Kézbesíthetetlen", "配信不能", "无法送达")
    ):
        case.receive(number, message=f"m{number}")
        _notified(case, 10 + number, f"{word}: Hello", reference=f"<m{number}.{case.name}@nordhof.example>")
    case.goes_on("a1")


@shape(recipients_lost=0, messages_acknowledged=1, messages_done=1)
def report_under_its_id(case: ExchangeShape) -> None:
    """The DSN row has the network id of the message that it is about: that message stays what it was."""
    case.receive(0)
    _notified(case, 5, network_message_id=f"m-{case.name}")
    case.goes_on("a1")


@shape(recipients_lost=1, messages_acknowledged=1)
def delay_under_its_id(case: ExchangeShape) -> None:
    case.receive(0)
    _notified(case, 5, "Delivery delayed: Hello", network_message_id=f"m-{case.name}")
    case.goes_on("a1")


@shape(recipients_lost=0, messages_acknowledged=1, messages_done=1)
def report_travels(case: ExchangeShape) -> None:
    """A report is a message of its own, and another server of ours receives it by SMTP. Nobody outside was told 250 about it."""
    case.receive(0)
    case.row("FAIL", "ROUTING", 2, "a1")
    _notified(case, 2.1)
    said = {"message": "dsn2.1", "to": ("ella@nordhof.example",), "message_subject": "Undeliverable: Hello", "return_path": "<>"}
    case.send(2.2, "a1", case.host("b1"), **said)
    case.receive(2.3, "b1", case.host("a1"), **said)
    case.goes_on("a1", "b1")


@shape(recipients_lost=1, causes={"losses": {"set aside"}})
def poisoned(case: ExchangeShape) -> None:
    case.receive(0)
    case.row("POISONMESSAGE", "POISONMESSAGE", 5, "a1")
    case.goes_on("a1")


@shape(recipients_lost=0, messages_done=1)
def poison_released(case: ExchangeShape) -> None:
    case.receive(0)
    case.row("POISONMESSAGE", "POISONMESSAGE", 5, "a1")
    case.row("POISONMESSAGE", "POISONMESSAGE", 600, "a1")
    case.deliver(601)
    case.goes_on("a1")


@shape(recipients_lost=0, messages_done=1)
def quarantined(case: ExchangeShape) -> None:
    """The content filter: FAIL, and a report to the quarantine mailbox."""
    case.receive(0)
    case.row("FAIL", "AGENT", 1, "a1", recipient_status="550 5.2.1 Content Filter agent quarantined this message")
    _notified(case, 1.1, to=("quarantine@nordhof.example",))
    case.goes_on("a1")


@shape(recipients_lost=1)
def tried_by_the_store(case: ExchangeShape) -> None:
    case.receive(0)
    for number in range(4):
        case.row("DEFER", "STOREDRIVER", 60 * number, "a1", recipient_status="[{LRT=};{LED=432 4.2.0 STOREDRV; busy};{FQDN=};{IP=}]")
        case.row("DELIVERFAIL", "STOREDRIVER", 60 * number + 1, "a1")
    case.goes_on("a1")


@shape(recipients_lost=0, messages_done=1)
def expired_in_queue(case: ExchangeShape) -> None:
    case.receive(0)
    case.row("DEFER", "SMTP", 60, "a1")
    case.row("FAIL", "QUEUE", 2 * DAY, "a1", recipient_status="[{LED=550 4.4.7 QUEUE.Expired; message expired};{MSG=};{FQDN=}]")
    case.goes_on("a1")


@shape(recipients_lost=1)
def sender_without_path(case: ExchangeShape) -> None:
    """A report about mail of another sender with the same Message-ID."""
    case.receive(0, sender_address="kai@nordhof.example", return_path="kai@nordhof.example")
    _notified(case, 5)
    case.goes_on("a1")


@shape(recipients_lost=0, messages_done=1)
def subject_not_logged(case: ExchangeShape) -> None:
    """Subjects are not logged; the FAIL tells."""
    case.receive(0, message_subject="")
    case.row("FAIL", "SMTP", 5, "a1", message_subject="")
    _notified(case, 5.1, "")
    case.goes_on("a1")


# ---- hops


@shape(recipients_lost=0, recipients_duplicated=0, messages_done=2, clock_skews=0)
def namesake_outside(case: ExchangeShape) -> None:
    """A server of ours whose directory has a short name; a next hop outside has that first label."""
    case.copied()
    case.send(1, "a1", f"{case.host('b1', is_full=False)}.ziel.example", "SENDEXTERNAL")
    case.discard(60)
    case.receive(5, "b1", message="other", said="Failed")
    case.send(5.5, "a1", case.host("b1"), message="third")
    case.deliver(6, "b1", message="other")
    case.goes_on("a1", "a2", "b1")


@shape(recipients_lost=1, causes={"losses": {"not in the next log"}})
def hop_by_full_name(case: ExchangeShape) -> None:
    """The same directory, and the next hop is that server."""
    case.copied()
    case.send(1, "a1", case.host("b1"))
    case.discard(60)
    case.receive(5, "b1", message="other", said="Failed")
    case.deliver(6, "b1", message="other")
    case.goes_on("a1", "a2", "b1")


@shape(recipients_lost=0, messages_done=1, messages_acknowledged=1, clock_skews=0)
def inbound_by_edge(case: ExchangeShape) -> None:
    case.receive(0, "edge", said="Failed")
    case.send(1, "edge", case.host("a1"))
    case.hold(0.9, "a2", "a1")
    case.redirect(0.95, "a1", "a2")
    case.receive(0.97, "a1", case.host("edge"), said=case.host("a2"))
    case.deliver(2)
    case.discard(60)
    case.goes_on("edge", "a1", "a2")


@shape(recipients_lost=0, messages_done=1, exposure_max_seconds=4.0)
def both_ways_of_a_split(case: ExchangeShape) -> None:
    """Two recipients go to two servers; one of them has no copy there."""
    case.copied(to=PAIR)
    case.send(1, "a1", case.host("b1"), to=PAIR[:1])
    case.send(1, "a1", case.host("c1"), to=PAIR[1:])
    case.receive(1, "b1", case.host("a1"), said="Failed", to=PAIR[:1])
    case.receive(1, "c1", case.host("a1"), said=case.host("a2"), to=PAIR[1:])
    case.deliver(5, "b1", to=PAIR[:1])
    case.deliver(9, "c1", to=PAIR[1:])
    case.discard(60)
    case.goes_on("a1", "a2", "b1", "c1")


@shape("2010", recipients_lost=0, messages_done=1, recipients_duplicated=0)
def old_hubs(case: ExchangeShape) -> None:
    case.receive(0)
    case.send(1, "a1", case.host("b1"))
    case.receive(1.1, "b1", case.host("a1"))
    case.row("EXPAND", "ROUTING", 1.2, "b1", to=PAIR, related_recipient_address=WHOM[0])
    case.deliver(2, "b1", to=PAIR)
    case.row("DUPLICATEDELIVER", "STOREDRIVER", 2.5, "b1", to=PAIR[:1])
    case.goes_on("a1", "b1")


@shape("2010", recipients_lost=1)
def old_hub_lost(case: ExchangeShape) -> None:
    case.receive(0)
    case.send(1, "a1", case.host("b1"))
    case.receive(1.1, "b1", case.host("a1"))
    case.goes_on("a1", "b1")


@shape(messages_acknowledged=1, recipients_lost=0, recipients_duplicated=0, exposure_max_seconds=1.0)
def bounced_between(case: ExchangeShape) -> None:
    """To the edge and back, and on: three stays, of which the second has no copy."""
    case.copied()
    case.send(1, "a1", case.host("edge"))
    case.receive(1, "edge", case.host("a1"), said="Failed")
    case.send(2, "edge", case.host("a1"))
    case.receive(2, "a1", case.host("edge"), said=case.host("a2"))
    case.deliver(3)
    case.discard(60)
    case.goes_on("a1", "a2", "edge")


# ---- Exchange's own redeliveries


@shape(recipients_lost=0, recipients_duplicated=0, messages_done=1)
def safety_net_had_it(case: ExchangeShape) -> None:
    """After a failover Safety Net sends again; the mailbox had it."""
    case.copied()
    case.deliver(1)
    case.row("RESUBMIT", "SAFETYNET", 7200, "a2")
    case.row("RESUBMITDEFER", "SAFETYNET", 7201, "a2")
    case.row("DUPLICATEDELIVER", "STOREDRIVER", 7202, "a3")
    case.discard(60)


@shape(messages_acknowledged=1, causes={"duplicates": {"Safety Net"}}, **TWICE)
def safety_net_anew(case: ExchangeShape) -> None:
    """Sent again under an id of its own: nobody was told 250 about it, and it is what the mailbox had already."""
    case.copied()
    case.deliver(1)
    case.row("RESUBMIT", "SAFETYNET", 7200, "a2", network_message_id=f"anew-{case.name}")
    case.deliver(7202, "a3", network_message_id=f"anew-{case.name}")
    case.discard(60)


@shape(promotions=1, recipients_duplicated=0, recipients_lost=0, messages_done=1, messages_exposed=0, messages_exposure_unknown=1)
def failed_server(case: ExchangeShape) -> None:
    case.copied()
    case.row("RESUBMIT", "REDUNDANCY", 10_800, "a2", reference=case.host("a1", is_full=False))
    case.hold(10_800.1, "a3", "a2")
    case.redirect(10_800.2, "a2", "a3")
    case.deliver(10_801, "a2")
    case.discard(10_860, "a3", "a2")
    case.goes_on("a2", "a3")


@shape(promotions=1, recipients_lost=1, messages_exposure_unknown=1)
def failed_server_and_lost(case: ExchangeShape) -> None:
    case.copied()
    case.row("RESUBMIT", "REDUNDANCY", 10_800, "a2", reference=case.host("a1"))
    case.goes_on("a2")


@shape(promotions=1, messages_done=1, messages_exposed=0, messages_exposure_unknown=0)
def failed_server_had_delivered(case: ExchangeShape) -> None:
    """It was done with the message while it was there; its copy was taken over, and nothing was left to do."""
    case.copied()
    case.deliver(1)
    case.row("RESUBMIT", "REDUNDANCY", 10_800, "a2", reference=case.host("a1"))
    case.goes_on("a2")


@shape(promotions=2, messages_promoted=1, messages_done=1, recipients_lost=0, messages_exposure_unknown=1, shadows_orphaned=0)
def failed_server_after_server(case: ExchangeShape) -> None:
    """Who took over failed, too, before it had delivered."""
    case.copied()
    case.row("RESUBMIT", "REDUNDANCY", 10_800, "a2", reference=case.host("a1"))
    case.hold(10_800.1, "a3", "a2")
    case.redirect(10_800.2, "a2", "a3")
    case.row("RESUBMIT", "REDUNDANCY", 21_600, "a3", reference=case.host("a2", is_full=False))
    case.deliver(21_601, "a3")
    case.goes_on("a3")


@shape("2013", promotions=1, messages_done=1, messages_exposed=0, messages_exposure_unknown=1)
def failed_server_thirteen(case: ExchangeShape) -> None:
    case.copied()
    case.row("RESUBMIT", "REDUNDANCY", 10_800, "a2", reference=case.host("a1"))
    case.deliver(10_801, "a2")
    case.goes_on("a2")


@shape(promotions=1, messages_exposed=1, exposure_max_seconds=700.0, messages_exposure_unknown=1)
def failed_server_without_a_copy_at_first(case: ExchangeShape) -> None:
    """Of the time before its copy the log tells, of that after the loss it does not."""
    case.receive(0, said="Failed")
    case.hold(699.9)
    case.redirect(700)
    case.row("RESUBMIT", "REDUNDANCY", 10_800, "a2", reference=case.host("a1"))
    case.deliver(10_801, "a2")
    case.goes_on("a2")


@shape(messages_reconstructed=1, recipients_lost=1, messages_exposure_unknown=1)
def log_of_the_failed_lost(case: ExchangeShape) -> None:
    """The failed server's log is gone, too, and the shadow server never ends it."""
    case.hold(0, "a2", "a1")
    case.row("RESUBMIT", "REDUNDANCY", 10_800, "a2", reference=case.host("a1"))
    case.goes_on("a2")


@shape(causes={"duplicates": {"Safety Net"}}, **TWICE)
def safety_net_elsewhere(case: ExchangeShape) -> None:
    case.copied()
    case.send(1, "a1", "mx.ziel.example", "SENDEXTERNAL")
    case.discard(60)
    case.row("RESUBMIT", "SAFETYNET", 3600, "a3")
    case.send(3601, "a3", "mx.ziel.example", "SENDEXTERNAL")


# ---- one log under several names


@shape(messages_acknowledged=2, messages_redundant=2, messages_exposed=0, shadows_orphaned=0, recipients_lost=0)
def one_directory(case: ExchangeShape) -> None:
    """The logs of two servers in one directory."""
    case.copied()
    case.deliver(1)
    case.discard(60)
    case.copied(10, "a2", "a1", message="back")
    case.deliver(11, "a2", message="back")
    case.discard(70, "a1", "a2", message="back")
    case.goes_on("a1", "a2")
    case.together = ("a1", "a2")


# ---- what is not known


@shape(recipients_lost=0, messages_acknowledged=2)
def zero_id(case: ExchangeShape) -> None:
    """Rows without a network id, or with one of zeros, are known by their Message-ID: they are not one message."""
    nothing = {"network_message_id": "00000000-0000-0000-0000-000000000000"}
    for number, id in enumerate((nothing, {"network_message_id": ""})):
        case.receive(number, message=f"m{number}", **id)
        case.deliver(number + 0.5, message=f"m{number}", **id)


@shape(recipients_lost=1, messages_acknowledged=2)
def zero_id_lost(case: ExchangeShape) -> None:
    nothing = {"network_message_id": "00000000-0000-0000-0000-000000000000"}
    for number in range(2):
        case.receive(number, message=f"m{number}", **nothing)
    case.deliver(5, message="m0", **nothing)
    case.goes_on("a1")


@shape(recipients_lost=0, messages_done=1, recipients_duplicated=0)
def without_mailbox_log(case: ExchangeShape) -> None:
    """MSGTRKMD, which has what was delivered to mailboxes, was not collected."""
    case.copied()
    case.send(1, "a1", case.host("a1"))
    case.discard(60)
    case.goes_on("a1", "a2")


@shape(recipients_lost=1)
def with_mailbox_log(case: ExchangeShape) -> None:
    case.copied()
    case.send(1, "a1", case.host("a1"))
    case.discard(60)
    case.receive(70, message="other", said="Failed")
    case.send(71, "a1", case.host("a1"), message="other")
    case.deliver(72, message="other")
    case.goes_on("a1", "a2")


@shape(recipients_lost=1, causes={"losses": {"not in the next log"}})
def gap_in_the_next_log(case: ExchangeShape) -> None:
    """The server that got it has a log, which has nothing about it: hours of it are missing."""
    case.copied()
    case.send(1, "a1", case.host("b1"))
    case.discard(60)
    case.receive(70, "b1", message="other", said="Failed")
    case.deliver(71, "b1", message="other")
    case.goes_on("a1", "a2", "b1")


@shape(recipients_duplicated=0, recipients_lost=0, messages_done=2, messages_acknowledged=2)
def through_a_filter(case: ExchangeShape) -> None:
    """A filter without a log here takes it from one server, and gives it to another one, or back."""
    for number, server in enumerate(("b1", "a1")):
        message = f"m{number}" if number else "m"
        case.copied(100 * number, message=message)
        case.send(100 * number + 1, "a1", "filter.nordhof.example", message=message)
        case.receive(100 * number + 3, server, "filter.nordhof.example", said=case.host("a2"), message=message)
        case.deliver(100 * number + 4, server, message=message)
        case.discard(100 * number + 60, message=message)
    case.goes_on("a1", "a2", "b1")


@shape(recipients_lost=1, recipients_duplicated=0)
def lost_after_a_filter(case: ExchangeShape) -> None:
    case.copied()
    case.send(1, "a1", "filter.nordhof.example")
    case.receive(3, "b1", "filter.nordhof.example", said=case.host("a2"))
    case.goes_on("a1", "a2", "b1")


@shape("2010", recipients_duplicated=1, recipients_lost=0)
def sent_twice_by_its_client(case: ExchangeShape) -> None:
    """2010 knows a message by its Message-ID: what a client sent again is the same one."""
    for seconds in (0, 60):
        case.receive(seconds)
        case.send(seconds + 1, "a1", "mx.ziel.example", "SENDEXTERNAL")


@shape(recipients_duplicated=1, causes={"slow": set(), "duplicates": {"Safety Net"}})
def again_is_not_late(case: ExchangeShape) -> None:
    case.copied()
    case.deliver(1)
    case.row("RESUBMIT", "SAFETYNET", 7200, "a2")
    case.deliver(7202, "a3")
    case.discard(60)


# ---- further variants of what servers do with recipients, reports and hops


@shape(recipients_lost=0, messages_done=1, recipients_duplicated=0)
def resolved_over_four_addresses(case: ExchangeShape) -> None:
    """An old address, its alias, the mailbox, and the mailbox in another letter case."""
    case.receive(0, to=("old@nordhof.example",))
    for old, new in (("old", "alias"), ("alias", "otto.meier"), ("otto.meier", "Otto.Meier")):
        case.row("RESOLVE", "ROUTING", 0.1, "a1", to=(f"{new}@nordhof.example",), related_recipient_address=f"{old}@nordhof.example")
    case.deliver(1, to=("OTTO.MEIER@nordhof.example",))
    case.goes_on("a1")


@shape(recipients_lost=1, messages_done=0)
def resolved_over_four_addresses_and_lost(case: ExchangeShape) -> None:
    case.receive(0, to=("old@nordhof.example",))
    for old, new in (("old", "alias"), ("alias", "otto.meier"), ("otto.meier", "Otto.Meier")):
        case.row("RESOLVE", "ROUTING", 0.1, "a1", to=(f"{new}@nordhof.example",), related_recipient_address=f"{old}@nordhof.example")
    case.goes_on("a1")


@shape(recipients_lost=1)
def three_groups_in_each_other(case: ExchangeShape) -> None:
    """A member of two of them is one recipient; the last group is empty; one member does not get it."""
    groups = [f"group{number}@nordhof.example" for number in range(3)]
    case.receive(0, to=(groups[0],))
    case.row("EXPAND", "ROUTING", 0.1, "a1", to=(groups[1], *WHOM), related_recipient_address=groups[0])
    case.row("EXPAND", "ROUTING", 0.2, "a1", to=("pia@nordhof.example", groups[2]), related_recipient_address=groups[1])
    case.row("DUPLICATEEXPAND", "ROUTING", 0.2, "a1", to=WHOM, related_recipient_address=groups[1])
    case.row("EXPAND", "ROUTING", 0.3, "a1", to=(), related_recipient_address=groups[2])
    case.deliver(1)
    case.goes_on("a1")


@shape(recipients_lost=0, messages_done=1, messages_dsn=2)
def delayed_then_failed(case: ExchangeShape) -> None:
    case.receive(0)
    about = {"reference": f"<m.{case.name}@nordhof.example>", "return_path": "<>", "to": ("ella@nordhof.example",)}
    case.row("DSN", "DSN", 14_400, "a1", "late", message_subject="Delivery delayed: Hello", **about)
    case.row("FAIL", "SMTP", DAY, "a1", recipient_status="[{LED=550 4.4.7 QUEUE.Expired};{MSG=};{FQDN=mx.ziel.example};{IP=192.0.2.1}]")
    case.row("DSN", "DSN", DAY + 1, "a1", "gone", message_subject="Undeliverable: Hello", **about)
    case.goes_on("a1")


@shape(recipients_lost=1, messages_dsn=1)
def delayed_and_then_nothing(case: ExchangeShape) -> None:
    case.receive(0)
    case.row("DEFER", "SMTP", 10, "a1", recipient_status="[{LED=451 4.4.0 Primary target IP address responded with: 421};{MSG=}]")
    about = {"reference": f"<m.{case.name}@nordhof.example>", "return_path": "<>", "to": ("ella@nordhof.example",)}
    case.row("DSN", "DSN", 14_400, "a1", "late", message_subject="Delivery delayed: Hello", **about)
    case.goes_on("a1")


@shape(clock_skews=0, recipients_lost=0, discards_late=0, shadows_orphaned=0, messages_exposed=0, recipients_duplicated=0)
def to_another_dag_whose_clock_is_behind(case: ExchangeShape) -> None:
    case.copied()
    case.send(40, "a1", case.host("b1"))
    case.copied(10, "b1", "b2", client=case.host("a1"))
    case.discard(100)
    case.deliver(11, "b1")
    case.discard(70, "b2", "b1")
    case.goes_on("a1", "a2", "b1", "b2")


@shape(causes={"duplicates": {"Safety Net"}}, **TWICE)
def safety_net_on_another_server(case: ExchangeShape) -> None:
    """The database moved to another server, which asks all Safety Nets of the DAG for the last hours."""
    case.copied()
    case.deliver(1)
    case.discard(60)
    case.row("RESUBMIT", "SAFETYNET", 1800, "a2")
    case.deliver(1801, "a2")
    case.goes_on("a1", "a2")


@shape(recipients_lost=0, recipients_duplicated=0, messages_done=1)
def safety_net_found_it_there(case: ExchangeShape) -> None:
    """The same, and the mailbox has it: a duplicate that Exchange detects."""
    case.copied()
    case.deliver(1)
    case.discard(60)
    case.row("RESUBMIT", "SAFETYNET", 1800, "a2")
    case.row("DUPLICATEDELIVER", "STOREDRIVER", 1801, "a2")
    case.goes_on("a1", "a2")


@shape(recipients_lost=1, messages_done=1)
def one_of_two_with_a_rules_recipient(case: ExchangeShape) -> None:
    """Two messages at once; of the second the copy for the archive is not delivered."""
    case.copied(message="one")
    case.copied(0.5, message="two")
    for message in ("one", "two"):
        case.row("TRANSFER", "ROUTING", 0.7, "a1", message, to=("archive@nordhof.example",))
        case.deliver(1, message=message)
        case.discard(60, message=message)
    case.deliver(1, to=("archive@nordhof.example",), message="one")
    case.goes_on("a1", "a2")


@shape("2010", recipients_lost=0, messages_done=1)
def moderated_of_old(case: ExchangeShape) -> None:
    """Before network ids, all rows have the Message-ID only."""
    case.receive(0, to=MODERATED)
    case.row("INITMESSAGECREATED", "APPROVAL", 0.5, "a1", to=MODERATED)
    case.row("MODERATORAPPROVE", "APPROVAL", 600, "a1", to=MODERATED)
    case.row("RECEIVE", "APPROVAL", 600.1, "a1", to=MODERATED)
    case.row("EXPAND", "ROUTING", 600.2, "a1", to=("otto@nordhof.example", "pia@nordhof.example"), related_recipient_address=MODERATED[0])
    case.deliver(601, to=("otto@nordhof.example", "pia@nordhof.example"))
    case.goes_on("a1")


@shape(recipients_lost=0, messages_done=1)
def expired_with_the_moderator(case: ExchangeShape) -> None:
    case.receive(0, to=MODERATED)
    case.row("INITMESSAGECREATED", "APPROVAL", 0.5, "a1", to=MODERATED)
    case.row("MODERATIONEXPIRE", "APPROVAL", 2 * DAY, "a1", to=MODERATED)
    case.goes_on("a1")


@shape(recipients_lost=1, recipients_duplicated=0)
def kept_and_forwarded_twice(case: ExchangeShape) -> None:
    """Kept, and forwarded to one that keeps and forwards to a stranger, who does not get it."""
    first, second, last = "sales@nordhof.example", "lacey@nordhof.example", "lacey@privat.example"
    case.receive(0, to=(first,))
    for whom, of in ((first, first), (second, first), (second, second), (last, second)):
        case.row("REDIRECT", "ROUTING", 0.1, "a1", to=(whom,), related_recipient_address=of)
    case.deliver(1, to=(first, second))
    case.goes_on("a1")
