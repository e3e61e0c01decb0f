"""What Microsoft's pages and its support people's blogs say of Exchange's logs, each a boundary of its own. Names are invented.

Sources: msd-mt, msd-mt13, and in the docstring of a shape whatever else it is from."""

from typing import Any

from tests.sla.exchange_shapes import DAY, TWICE, WHOM, ExchangeShape, shape

TEAM = "team@nordhof.example"
PAIR = ("anna@nordhof.example", "bert@nordhof.example")
RULE = "Transport Rule Agent"


# ---- rules, as an administrator sees them


@shape(recipients_lost=0, messages_done=1)
def rule_redirects_by_a_failure(case: ExchangeShape) -> None:
    """A rule that redirects: the recipient is ended by a FAIL, the new one is put off for no time ("zero defer"), and delivered to."""
    case.receive(0)
    case.row("DEFER", "AGENT", 0.1, "a1", to=PAIR[:1], source_context=RULE)
    case.row("FAIL", "AGENT", 0.1, "a1", source_context=RULE)
    case.deliver(1, to=PAIR[:1])
    case.goes_on("a1")


@shape(recipients_lost=1)
def rule_redirects_and_it_is_lost(case: ExchangeShape) -> None:
    case.receive(0)
    case.row("DEFER", "AGENT", 0.1, "a1", to=PAIR[:1], source_context=RULE)
    case.row("FAIL", "AGENT", 0.1, "a1", source_context=RULE)
    case.goes_on("a1")


@shape(recipients_lost=0, messages_done=1, messages_acknowledged=1)
def rule_adds_without_a_row(case: ExchangeShape) -> None:
    """Only AGENTINFO says that a rule ran; the added recipient is first named when it is delivered to."""
    case.copied()
    case.row("AGENTINFO", "AGENT", 0.1, "a1", custom_data="S:TRA=ETR|ruleId=0d3b|st=2023-03-28|action=AddToRecipient")
    case.deliver(1, to=(*WHOM, "audit@nordhof.example"))
    case.discard(60)
    case.goes_on("a1", "a2")


@shape(recipients_lost=0, messages_done=1)
def rule_rejects(case: ExchangeShape) -> None:
    case.receive(0)
    case.row("FAIL", "AGENT", 0.1, "a1", source_context=RULE, recipient_status="550 5.7.1 TRANSPORT.RULES.RejectMessage; rejected")
    case.row("DSN", "DSN", 0.2, "a1", "dsn", ("ella@nordhof.example",), message_subject="Undeliverable: Hello", return_path="<>")
    case.goes_on("a1")


@shape(messages_acknowledged=0, recipients_lost=0, messages_done=0)
def refused_by_an_agent(case: ExchangeShape) -> None:
    """An agent of the Edge refused it before the 250."""
    case.row("FAIL", "AGENT", 0, "edge", source_context="Content Filter Agent", recipient_status="550 5.7.1 refused")
    case.goes_on("edge")


# ---- probes of managed availability


@shape(messages_acknowledged=2, recipients_lost=0, messages_done=2)
def probes(case: ExchangeShape) -> None:
    """One dropped by an agent, which says so; one delivered to the health mailbox."""
    health = ("healthmailbox1@nordhof.example",)
    case.receive(0, to=health, said="Failed", message="dropped", message_subject="Inbound proxy probe")
    case.row("FAIL", "AGENT", 0.1, "a1", "dropped", health, source_context="System Probe Drop Routing Agent")
    case.receive(300, to=health, said="Failed", message="kept", message_subject="MBTSubmission/StoreDriverSubmission/0028")
    case.deliver(301, to=health, message="kept")
    case.goes_on("a1")


# ---- recipients


@shape(recipients_lost=0, messages_done=1)
def member_resolved(case: ExchangeShape) -> None:
    case.receive(0, to=(TEAM,))
    case.row("EXPAND", "ROUTING", 0.1, "a1", to=("a.b@nordhof.example", PAIR[1]), related_recipient_address=TEAM)
    case.row("RESOLVE", "ROUTING", 0.2, "a1", to=PAIR[:1], related_recipient_address="a.b@nordhof.example")
    case.deliver(1, to=PAIR)
    case.goes_on("a1")


@shape(recipients_lost=1)
def member_resolved_and_lost(case: ExchangeShape) -> None:
    case.receive(0, to=(TEAM,))
    case.row("EXPAND", "ROUTING", 0.1, "a1", to=("a.b@nordhof.example", PAIR[1]), related_recipient_address=TEAM)
    case.row("RESOLVE", "ROUTING", 0.2, "a1", to=PAIR[:1], related_recipient_address="a.b@nordhof.example")
    case.deliver(1, to=PAIR[1:])
    case.goes_on("a1")


@shape(recipients_lost=0, messages_done=1)
def recipient_requested_by_its_sender(case: ExchangeShape) -> None:
    """ORAR: an alternate recipient that the sender asked for."""
    case.receive(0)
    case.row("REDIRECT", "ORAR", 0.1, "a1", to=PAIR[:1], related_recipient_address=WHOM[0])
    case.send(1, "a1", "mx.ziel.example", "SENDEXTERNAL", to=PAIR[:1])
    case.goes_on("a1")


@shape(recipients_lost=0, messages_done=1)
def public_folder(case: ExchangeShape) -> None:
    """To the mailbox of the folder's hierarchy, and on to the one that has its content."""
    case.receive(0, to=("folder@nordhof.example",))
    case.row("REDIRECT", "PUBLICFOLDER", 0.1, "a1", to=("pf2@nordhof.example",), related_recipient_address="folder@nordhof.example")
    case.row("DELIVER", "PUBLICFOLDER", 1, "a1", to=("pf2@nordhof.example",))
    case.goes_on("a1")


@shape(recipients_lost=0, messages_done=1)
def fax(case: ExchangeShape) -> None:
    case.receive(0, to=("IMCEAFAX-+49+20123@nordhof.example",))
    case.row("SEND", "GATEWAY", 1, "a1", to=("imceafax-+49+20123@nordhof.example",), connector_id="Fax connector")
    case.goes_on("a1")


@shape(recipients_lost=0, messages_done=1)
def remote_mailbox(case: ExchangeShape) -> None:
    """Hybrid: resolved to the routing address of the cloud, and sent there."""
    cloud = "otto@nordhof.mail.onmicrosoft.example"
    case.copied()
    case.row("RESOLVE", "ROUTING", 0.1, "a1", to=(cloud,), related_recipient_address=WHOM[0])
    case.send(1, "a1", "nordhof-mail.protection.outlook.example", "SENDEXTERNAL", to=(cloud,))
    case.discard(60)
    case.goes_on("a1", "a2")


@shape(recipients_lost=0, recipients_duplicated=0, messages_done=1, messages_acknowledged=1)
def centralized_transport(case: ExchangeShape) -> None:
    """Hybrid: out to the cloud and back under the same network id, then into the mailbox."""
    case.copied()
    case.send(1, "a1", "nordhof-mail.protection.outlook.example", "SENDEXTERNAL")
    case.receive(9, "b1", "mail-fr2.outbound.protection.outlook.example", said=case.host("a2"))
    case.deliver(10, "b1")
    case.discard(60)
    case.goes_on("a1", "a2", "b1")


@shape("2013", messages_acknowledged=1, messages_redundant=1, messages_exposed=0, messages_done=1, recipients_lost=0)
def received_in_parts(case: ExchangeShape) -> None:
    """Of many recipients there are several rows of one receipt, at one instant."""
    case.hold(-0.01, to=(*WHOM, *PAIR))
    case.redirect(0, to=(*WHOM, *PAIR))
    case.receive(0.003, to=WHOM)
    case.receive(0.003, to=PAIR)
    case.deliver(1, to=(*WHOM, *PAIR))
    case.discard(60)
    case.goes_on("a1", "a2")


@shape(messages_acknowledged=1, messages_redundant=0, messages_exposed=1, exposure_count=1, exposure_max_seconds=5.0)
def received_in_parts_without_a_copy(case: ExchangeShape) -> None:
    case.receive(0, to=WHOM, said="Failed")
    case.receive(0, to=PAIR, said="Failed")
    case.deliver(5, to=(*WHOM, *PAIR))


@shape(recipients_lost=1)
def only_some_accepted(case: ExchangeShape) -> None:
    """The next hop took two of three recipients, refused none, and the third has no end."""
    three = ("x@ziel.example", "y@ziel.example", "z@ziel.example")
    case.receive(0, to=three)
    case.send(1, "a1", "mx.ziel.example", "SENDEXTERNAL", to=three[:2])
    case.row("DEFER", "SMTP", 1, "a1", to=three[2:], recipient_status="[{LED=452 4.5.3 too many recipients};{MSG=};{FQDN=mx};{IP=}]")
    case.goes_on("a1")


@shape(recipients_lost=0, messages_done=1, recipients_duplicated=0)
def spelled_in_each_row_anew(case: ExchangeShape) -> None:
    case.receive(0, to=("Otto@NORDHOF.example",))
    case.row("RESOLVE", "ROUTING", 0.1, "a1", to=("otto@nordhof.example",), related_recipient_address="OTTO@nordhof.example")
    case.deliver(1, to=("SMTP:OTTO@nordhof.EXAMPLE",))
    case.goes_on("a1")


# ---- moderated mail


@shape(recipients_lost=0, messages_done=1)
def one_approved_one_refused(case: ExchangeShape) -> None:
    two = (TEAM, "all@nordhof.example")
    case.receive(0, to=two)
    for recipient in two:
        case.row("INITMESSAGECREATED", "APPROVAL", 0.5, "a1", to=(recipient,))
    case.row("MODERATORAPPROVE", "APPROVAL", 3600, "a1", to=two[:1])
    case.row("RECEIVE", "APPROVAL", 3600.1, "a1", to=two[:1])
    case.row("EXPAND", "ROUTING", 3600.2, "a1", to=PAIR, related_recipient_address=TEAM)
    case.deliver(3601, to=PAIR)
    case.row("MODERATORREJECT", "APPROVAL", 4000, "a1", to=two[1:])
    case.goes_on("a1")


@shape(recipients_lost=1)
def one_approved_and_lost(case: ExchangeShape) -> None:
    two = (TEAM, "all@nordhof.example")
    case.receive(0, to=two)
    for recipient in two:
        case.row("INITMESSAGECREATED", "APPROVAL", 0.5, "a1", to=(recipient,))
    case.row("MODERATORAPPROVE", "APPROVAL", 3600, "a1", to=two[:1])
    case.row("RECEIVE", "APPROVAL", 3600.1, "a1", to=two[:1])
    case.row("MODERATORREJECT", "APPROVAL", 4000, "a1", to=two[1:])
    case.goes_on("a1")


@shape(recipients_lost=0, messages_done=1)
def moderators_cannot_be_reached(case: ExchangeShape) -> None:
    """The request to each moderator came back as undeliverable."""
    case.receive(0, to=(TEAM,))
    case.row("INITMESSAGECREATED", "APPROVAL", 0.5, "a1", to=(TEAM,))
    case.row("MODERATORSALLNDR", "APPROVAL", 60, "a1", to=())
    case.goes_on("a1")


# ---- what ends a recipient


@shape(recipients_lost=1)
def failure_logged_after_its_report(case: ExchangeShape) -> None:
    """The report about one of two recipients is logged a moment before the FAIL that it tells of."""
    case.receive(0, to=(*WHOM, *PAIR[:1]))
    about: dict[str, Any] = {"reference": f"<m.{case.name}@nordhof.example>", "return_path": "<>", "to": ("ella@nordhof.example",)}
    case.row("DSN", "DSN", 2, "a1", "dsn", message_subject="Undeliverable: Hello", **about)
    case.row("FAIL", "ROUTING", 2.001, "a1")
    case.goes_on("a1")


@shape(recipients_lost=1)
def told_that_it_arrived(case: ExchangeShape) -> None:
    """A receipt of delivery of one recipient, a notice of relaying, an automatic reply and a recall: none ends anything."""
    case.receive(0, to=(*WHOM, *PAIR[:1]))
    case.deliver(1)
    for number, subject in enumerate(("Delivered: Hello", "Relayed: Hello", "Expanded: Hello")):
        about: dict[str, Any] = {"reference": f"<m.{case.name}@nordhof.example>", "return_path": "<>", "to": ("ella@nordhof.example",)}
        case.row("DSN", "DSN", 2 + number, "a1", f"dsn{number}", message_subject=subject, **about)
    case.goes_on("a1")


@shape(recipients_lost=0, messages_done=1)
def removed_by_an_administrator(case: ExchangeShape) -> None:
    """Suspended, then removed with a report."""
    case.receive(0)
    case.row("DEFER", "QUEUE", 60, "a1")
    case.row("FAIL", "ADMIN", 3600, "a1", source_context="Deleted by admin")
    case.goes_on("a1")


@shape(recipients_lost=0, messages_done=1)
def submitted_again_by_an_administrator(case: ExchangeShape) -> None:
    """`Retry-Queue -Resubmit $true`: categorized anew."""
    case.receive(0)
    case.row("DEFER", "DNS", 60, "a1")
    case.row("RESUBMIT", "ADMIN", 3600, "a1")
    case.row("TRANSFER", "ROUTING", 3600.1, "a1")
    case.send(3601, "a1", "mx.ziel.example", "SENDEXTERNAL")
    case.goes_on("a1")


@shape(recipients_lost=0, recipients_duplicated=0, messages_done=1, messages_acknowledged=1)
def loop_ended(case: ExchangeShape) -> None:
    """A gateway gives it back until the limit of hops."""
    for number in range(3):
        case.receive(number, "a1", "gw.kunde.example" if number else "mx.ziel.example", said=case.host("a2"))
        if number < 2:
            case.send(number + 0.5, "a1", "gw.kunde.example", "SENDEXTERNAL")
    case.row("FAIL", "ROUTING", 2.5, "a1", recipient_status="550 5.4.6 ROUTING.LoopDetected; message loop")
    case.goes_on("a1")


@shape(recipients_lost=0, messages_acknowledged=1, messages_done=1)
def report_that_cannot_be_delivered(case: ExchangeShape) -> None:
    """The report on a failure is dropped itself: it has no sender to be returned to."""
    case.receive(0, sender_address="robot@weg.example", return_path="robot@weg.example")
    case.row("FAIL", "ROUTING", 1, "a1", sender_address="robot@weg.example")
    about = {"message_subject": "Undeliverable: Hello", "return_path": "<>", "to": ("robot@weg.example",)}
    case.row("DSN", "DSN", 1.1, "a1", "dsn", **about)
    case.row("DEFER", "DNS", 2, "a1", "dsn", **about)
    case.row("FAIL", "QUEUE", 2 * DAY, "a1", "dsn", **about)
    case.row("BADMAIL", "DSN", 2 * DAY + 1, "a1", "dsn", **about)
    case.goes_on("a1")


@shape("2010", recipients_lost=0, messages_done=1, messages_acknowledged=1)
def report_of_old(case: ExchangeShape) -> None:
    """2010 has no network id: the report is known by the Message-ID to which it refers."""
    case.receive(0)
    about: dict[str, Any] = {"reference": f"<m.{case.name}@nordhof.example>", "return_path": "<>", "to": ("ella@nordhof.example",)}
    case.row("DSN", "DSN", 5, "a1", "dsn", message_subject="Undeliverable: Hello", **about)
    case.goes_on("a1")


@shape("2010", recipients_lost=1)
def delay_of_old(case: ExchangeShape) -> None:
    case.receive(0)
    about: dict[str, Any] = {"reference": f"<m.{case.name}@nordhof.example>", "return_path": "<>", "to": ("ella@nordhof.example",)}
    case.row("DSN", "DSN", 5, "a1", "dsn", message_subject="Delivery delayed: Hello", **about)
    case.goes_on("a1")


@shape("2010", recipients_lost=0, messages_acknowledged=1, messages_done=1)
def submitted_of_old(case: ExchangeShape) -> None:
    """A mailbox server submits, a hub receives it by the store driver, and sends it to another hub."""
    case.row("SUBMIT", "STOREDRIVER", -1, "mbx", to=(), source_context="MDB:1, Mailbox:2, Event:3, MessageClass:IPM.Note, ClientType:OWA")
    case.row("RECEIVE", "STOREDRIVER", 0, "a1")
    case.send(1, "a1", case.host("b1"))
    case.receive(1.1, "b1", case.host("a1"))
    case.deliver(2, "b1")
    case.goes_on("a1", "b1", "mbx")


# ---- copies


@shape(messages_acknowledged=1, messages_redundant=1, messages_exposed=0, shadows_orphaned=0, clock_skews=0)
def shadow_server_ahead(case: ExchangeShape) -> None:
    """Its clock is three seconds ahead."""
    case.hold(3)
    case.redirect(0)
    case.receive(0.003, said=case.host("a2"))
    case.deliver(1)
    case.discard(63)
    case.goes_on("a1", "a2")


@shape(messages_acknowledged=1, messages_redundant=1, messages_exposed=0, shadows_orphaned=0, recipients_lost=0)
def mixed_versions(case: ExchangeShape) -> None:
    """The primary server is of 2013, and its shadow server of 2016, as during a migration."""
    case.versions["a1"] = "2013"
    case.hold(-0.01)
    case.redirect(0)
    case.receive(0.003)
    case.deliver(1)
    case.discard(60)
    case.goes_on("a1", "a2")


@shape(messages_acknowledged=1, recipients_lost=0, recipients_duplicated=0, messages_done=1)
def from_new_to_old(case: ExchangeShape) -> None:
    """2016 hands it to a hub of 2010, which knows it by another id: a delivery, and there one that 2010 has from a server of ours."""
    case.versions["b1"] = "2010"
    case.copied()
    case.send(1, "a1", case.host("b1"))
    case.discard(60)
    case.row("RESOLVE", "RESOLVER", 1.1, "b1", related_recipient_address="o.t@nordhof.example")
    case.goes_on("a1", "a2", "b1")


@shape(messages_acknowledged=1, messages_redundant=1, messages_exposed=0, messages_done=1, recipients_lost=0)
def with_a_field_more(case: ExchangeShape) -> None:
    """A later build writes a field that no page describes yet."""
    for server in ("a1", "a2"):
        case.versions[server] = "later"
    case.copied()
    case.receive(0.003, said=case.host("a2"))
    case.deliver(1)
    case.discard(60)
    case.goes_on("a1", "a2")


@shape(promotions=1, messages_promoted=1, messages_done=1, recipients_lost=0)
def taken_over_from_nobody_named(case: ExchangeShape) -> None:
    """The resubmission does not say of whom: the row of its copy does."""
    case.copied()
    case.row("RESUBMIT", "REDUNDANCY", 10_800, "a2")
    case.deliver(10_801, "a2")
    case.goes_on("a2")


@shape(messages_redundant=1, messages_done=1, recipients_lost=0, shadows_orphaned=0)
def drained(case: ExchangeShape) -> None:
    """`Redirect-Message` for maintenance: queued mail goes to another server, which makes its own copy."""
    case.copied()
    case.row("DEFER", "SMTP", 1, "a1")
    case.send(600, "a1", case.host("a3"))
    case.copied(600.1, "a3", "a2", client=case.host("a1"))
    case.deliver(601, "a3")
    case.discard(660)
    case.discard(661, "a2", "a3")
    case.goes_on("a1", "a2", "a3")


@shape(recipients_lost=0, messages_done=1, shadows_orphaned=1, causes={"orphans": {"left when the log ends"}})
def shadow_server_failed(case: ExchangeShape) -> None:
    """The server with the copy failed, and came back without a row about it."""
    case.copied()
    case.deliver(1)
    case.goes_on("a1")


# ---- rows that no page explains


@shape(messages_acknowledged=1, recipients_lost=1, recipients_duplicated=0, messages_exposed=0)
def events_that_no_page_has(case: ExchangeShape) -> None:
    """Seen by administrators, and asked for in MicrosoftDocs/OfficeDocs-o365seccomp#937 and OfficeDocs-Exchange#2996: they end nothing."""
    case.copied()
    for event in ("RECIPIENTINFO", "SETROUTE", "REPLICATION", "NOTIFYSHADOW"):
        case.row(event, "ROUTING", 0.1, "a1")
        case.row("AGENTINFO", event, 0.1, "a1")
    case.goes_on("a1", "a2")


@shape(messages_acknowledged=1, recipients_lost=1, messages_done=0)
def lost_after_an_edge(case: ExchangeShape) -> None:
    """The Edge's connector to its organization logs SENDEXTERNAL, too: a hop, after which the mailbox server has no end."""
    case.receive(0, "edge", said="Failed")
    case.send(1, "edge", case.host("a1"), "SENDEXTERNAL", connector_id="EdgeSync - Inbound to Default-First-Site-Name")
    case.hold(0.9, "a2", "a1")
    case.redirect(0.95, "a1", "a2")
    case.receive(0.97, "a1", case.host("edge"), said=case.host("a2"))
    case.row("DEFER", "STOREDRIVER", 2, "a1", recipient_status="432 4.2.0 STOREDRV.Deliver; mailbox database is offline")
    case.goes_on("edge", "a1", "a2")


@shape(messages_acknowledged=1, messages_redundant=1, messages_exposed=0, messages_done=1, recipients_lost=0)
def sent_between_two_mailboxes_of_one_server(case: ExchangeShape) -> None:
    """The eight rows of msd-mt's example, in their order."""
    case.row("NOTIFYMAPI", "STOREDRIVER", -0.3, "a1", to=(), message_id="", network_message_id="")
    case.row("RECEIVE", "STOREDRIVER", -0.2, "a1")
    case.row("SUBMIT", "STOREDRIVER", -0.1, "a1", source_context="MDB:1, Mailbox:2, Event:3, MessageClass:IPM.Note, ClientType:OWA")
    case.redirect(0)
    case.receive(0.003, client=case.host("a1"), said=case.host("a2", is_full=False))
    case.row("AGENTINFO", "AGENT", 0.01, "a1")
    case.send(0.5, "a1", case.host("a1"), reference="12345")
    case.deliver(1)
    case.goes_on("a1", "a2")


@shape(recipients_lost=0, messages_acknowledged=1, messages_done=1)
def replayed_by_an_administrator(case: ExchangeShape) -> None:
    """A file in the Replay directory: msd-mt has it as RECEIVE of SMTP, or of ADMIN, from no client."""
    case.receive(0, client="", message="replay")
    case.deliver(1, message="replay")
    case.row("RECEIVE", "ADMIN", 10, "a1", "admin")
    case.deliver(11, message="admin")
    case.goes_on("a1")


@shape(recipients_lost=0, messages_done=1, recipients_duplicated=0)
def moderated_in_two_logs(case: ExchangeShape) -> None:
    """MSGTRKMA of another server has the decision, while the message waits on the first."""
    case.receive(0, to=(TEAM,))
    case.row("INITMESSAGECREATED", "APPROVAL", 0.5, "a1", to=(TEAM,))
    case.row("MODERATORREJECT", "APPROVAL", 3600, "b1", to=(TEAM,))
    case.goes_on("a1", "b1")


# ---- redeliveries


@shape(causes={"duplicates": {"a"}}, **TWICE)
def loaded_at_boot(case: ExchangeShape) -> None:
    """The service ended after the delivery and before its record; it loads the message when it starts, and delivers it again."""
    case.copied()
    case.deliver(1)
    case.row("LOAD", "BOOTLOADER", 600, "a1")
    case.deliver(601)
    case.discard(660)
    case.goes_on("a1", "a2")


@shape(recipients_lost=0, recipients_duplicated=0, messages_done=1)
def safety_net_failed(case: ExchangeShape) -> None:
    """A request for what Safety Net has: put off, tried, given up. The mail had been delivered before."""
    case.copied()
    case.deliver(1)
    case.discard(60)
    case.row("RESUBMITDEFER", "SAFETYNET", 7200, "a2", to=())
    case.row("RESUBMITFAIL", "SAFETYNET", 7300, "a2", to=())
    case.goes_on("a1", "a2")


@shape(recipients_lost=0, recipients_duplicated=0, messages_done=1, messages_acknowledged=1)
def submission_tried_twice(case: ExchangeShape) -> None:
    """The mailbox's submission is put off, fails, and works; one message comes of it."""
    for event, at in (("NOTIFYMAPI", -60), ("SUBMITDEFER", -50), ("NOTIFYMAPI", -40), ("SUBMITFAIL", -30), ("NOTIFYMAPI", -20)):
        case.row(event, "STOREDRIVER", at, "a1", to=(), message_id="", network_message_id="")
    case.row("SUBMIT", "STOREDRIVER", -1, "a1", to=())
    case.copied(client=case.host("a1"))
    case.deliver(1)
    case.discard(60)
    case.goes_on("a1", "a2")
