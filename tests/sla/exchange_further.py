"""Shapes of logs as auditors collect them: without some of a server's files, of early builds, of servers that stand in for others.

Each is a boundary of its own. Names are invented."""

from typing import Any

from tests.sla.exchange_shapes import TWICE, WHOM, ExchangeShape, shape

TEAM = "team@nordhof.example"
PAIR = ("anna@nordhof.example", "bert@nordhof.example")


# ---- mailboxes on another server, whose log of them was collected or not


@shape(
    messages_acknowledged=1, messages_redundant=1, messages_exposed=0, messages_done=1, recipients_lost=0, recipients_duplicated=0,
    shadows_orphaned=0, clock_skews=0,
)  # fmt: skip
def mailbox_on_the_shadow_server(case: ExchangeShape) -> None:
    """The usual path of a DAG: the mailbox is on the server that has the copy, and its transport delivers there."""
    case.copied()
    case.send(1, "a1", case.host("a2"))
    case.deliver(1.5, "a2")
    case.discard(60)
    case.goes_on("a1", "a2")


@shape(messages_done=2, recipients_lost=0, recipients_duplicated=0, shadows_orphaned=0)
def mailbox_log_elsewhere_missing(case: ExchangeShape) -> None:
    """The same, and MSGTRKMD of that server was not collected: it never received anything by SMTP, and has no delivery at all."""
    case.copied()
    case.send(1, "a1", case.host("a2"))
    case.discard(60)
    case.receive(70, "a2", message="other", said=case.host("a1"))
    case.send(71, "a2", case.host("a1"), message="other")
    case.deliver(72, "a1", message="other")
    case.goes_on("a1", "a2")


@shape(recipients_lost=1, causes={"losses": {"not in the next log"}})
def only_its_copy_in_the_next_log(case: ExchangeShape) -> None:
    """The next server receives from this one, and of this message has rows about its copy alone: hours of its log are missing."""
    case.copied()
    case.send(1, "a1", case.host("a2"))
    case.discard(60)
    case.receive(69, message="other", said=case.host("a2"))
    case.send(70, "a1", case.host("a2"), message="other")
    case.receive(70.1, "a2", case.host("a1"), message="other", said=case.host("a1"))
    case.send(71, "a2", "mx.ziel.example", "SENDEXTERNAL", message="other")
    case.goes_on("a1", "a2")


@shape(recipients_lost=0, recipients_duplicated=0, messages_done=1)
def mailbox_moved_to_another_server(case: ExchangeShape) -> None:
    """The first server's database went offline; the second had it when it was tried there."""
    case.copied()
    case.send(1, "a1", case.host("a2"))
    case.row("DELIVERFAIL", "STOREDRIVER", 2, "a2", recipient_status="[{LRT=};{LED=432 4.2.0 STOREDRV.Deliver; offline};{FQDN=};{IP=}]")
    case.row("DEFER", "STOREDRIVER", 3, "a1", recipient_status="[{LRT=};{LED=432 4.2.0 STOREDRV.Deliver; offline};{FQDN=};{IP=}]")
    case.send(60, "a1", case.host("a3"))
    case.deliver(61, "a3")
    case.discard(120)
    case.goes_on("a1", "a2", "a3")


@shape(recipients_lost=0, messages_done=1, messages_acknowledged=1)
def mailbox_was_full(case: ExchangeShape) -> None:
    """Refused by the store of another server, which writes the report."""
    case.copied()
    case.send(1, "a1", case.host("a2"))
    case.row("FAIL", "STOREDRIVER", 2, "a2", recipient_status="[{LED=554 5.2.2 STOREDRV.Deliver; mailbox full};{MSG=};{FQDN=};{IP=}]")
    about: dict[str, Any] = {"reference": f"<m.{case.name}@nordhof.example>", "return_path": "<>", "to": ("ella@nordhof.example",)}
    case.row("DSN", "DSN", 2.1, "a2", "dsn", message_subject="Undeliverable: Hello", **about)
    case.discard(60)
    case.goes_on("a1", "a2")


# ---- early builds


@shape("2010 RTM", messages_acknowledged=1, messages_redundant=0, messages_exposed=0, recipients_lost=0, messages_done=1)
def first_build_of_2010(case: ExchangeShape) -> None:
    """21 fields: directionality and what follows it came with a service pack."""
    case.receive(0)
    case.send(1, "a1", case.host("b1"))
    case.receive(1.2, "b1", case.host("a1"))
    case.deliver(2, "b1")
    case.goes_on("a1", "b1")


@shape("2010 RTM", recipients_lost=1)
def first_build_of_2010_and_lost(case: ExchangeShape) -> None:
    case.receive(0, to=PAIR)
    case.deliver(2, to=PAIR[:1])
    case.goes_on("a1")


@shape("2013", messages_redundant=1, messages_exposed=0, shadows_orphaned=0)
def redirect_without_a_reply(case: ExchangeShape) -> None:
    """server-hostname is the shadow server, and source-context has no reply."""
    case.hold(-0.01)
    case.row("HAREDIRECT", "SMTP", 0, "a1", server_hostname=case.host("a2"))
    case.receive(0.003)
    case.deliver(1)
    case.discard(60)
    case.goes_on("a1", "a2")


@shape("2010", promotions=1, **TWICE)
def edge_failed_of_old(case: ExchangeShape) -> None:
    """The hub keeps the shadow of what it gave to an Edge, which failed after it had sent the message on."""
    case.receive(0)
    case.send(1, "a1", case.host("edge"))
    case.receive(1.1, "edge", case.host("a1"))
    case.send(2, "edge", "mx.ziel.example")
    case.row("RESUBMIT", "REDUNDANCY", 3600, "a1", reference=case.host("edge"))
    case.send(3601, "a1", "mx.ziel.example")
    case.goes_on("a1", "edge")


@shape("2010", recipients_lost=0, messages_done=1, recipients_duplicated=0)
def edge_failed_of_old_before_it_sent(case: ExchangeShape) -> None:
    """The same by a name that no log has; the Edge had not sent it on, and the hub did."""
    case.receive(0)
    case.send(1, "a1", "smarthost.nordhof.example")
    case.receive(1.1, "edge", case.host("a1"))
    case.row("RESUBMIT", "REDUNDANCY", 3600, "a1", reference=case.host("edge"))
    case.send(3601, "a1", "mx.ziel.example")
    case.goes_on("a1", "edge")


# ---- copies


@shape(messages_redundant=1, messages_exposed=0, shadows_orphaned=0, recipients_lost=0, discards_late=0)
def copy_from_nobody_named(case: ExchangeShape) -> None:
    """The shadow server knows its client by address alone, and names it only when it discards."""
    case.row("HARECEIVE", "SMTP", -0.01, "a2", client_ip="10.0.0.1")
    case.redirect(0)
    case.receive(0.003, said=case.host("a2"))
    case.deliver(1)
    case.discard(60)
    case.goes_on("a1", "a2")


@shape(messages_redundant=1, shadows_orphaned=0, recipients_lost=0, messages_done=1)
def copies_of_nobody(case: ExchangeShape) -> None:
    """Rows about the copy have no recipients."""
    case.hold(-0.01, to=())
    case.redirect(0, to=())
    case.receive(0.003, said=case.host("a2"))
    case.deliver(1)
    case.discard(60, to=())
    case.goes_on("a1", "a2")


@shape(messages_acknowledged=1, messages_dsn=1, shadows_orphaned=0, recipients_lost=0, messages_exposed=0)
def copy_of_a_report(case: ExchangeShape) -> None:
    """A non-delivery report has a copy of its own while it is under way."""
    case.copied()
    case.row("FAIL", "ROUTING", 1, "a1")
    about: dict[str, Any] = {"message_subject": "Undeliverable: Hello", "return_path": "<>", "to": ("ella@nordhof.example",)}
    case.row("DSN", "DSN", 1.1, "a1", "dsn", **about)
    case.hold(1.2, message="dsn", to=about["to"])
    case.redirect(1.3, message="dsn", to=about["to"])
    case.deliver(2, to=about["to"], message="dsn")
    case.discard(60)
    case.discard(61, message="dsn", to=about["to"])
    case.goes_on("a1", "a2")


@shape(messages_acknowledged=1, promotions=1, recipients_lost=0, messages_done=1, messages_exposure_unknown=1)
def taken_over_under_another_id(case: ExchangeShape) -> None:
    """What was taken over goes on under a network id of its own: the same message to its client."""
    anew = {"network_message_id": f"anew-{case.name}"}
    case.copied()
    case.row("RESUBMIT", "REDUNDANCY", 10_800, "a2", reference=case.host("a1"), **anew)
    case.hold(10_800.1, "a3", "a2", **anew)
    case.redirect(10_800.2, "a2", "a3", **anew)
    case.deliver(10_801, "a2", **anew)
    case.discard(10_860, "a3", "a2", **anew)
    case.goes_on("a2", "a3")


@shape(messages_acknowledged=1, promotions=1, causes={"duplicates": {"taken over"}}, **TWICE)
def taken_over_again_under_another_id(case: ExchangeShape) -> None:
    """The same, and the failed server had delivered it."""
    anew = {"network_message_id": f"anew-{case.name}"}
    case.copied()
    case.deliver(1)
    case.row("RESUBMIT", "REDUNDANCY", 10_800, "a2", reference=case.host("a1"), **anew)
    case.deliver(10_801, "a2", **anew)
    case.goes_on("a2")


@shape(messages_acknowledged=1, messages_reconstructed=1, promotions=1, recipients_lost=1)
def log_lost_and_taken_over_under_another_id(case: ExchangeShape) -> None:
    case.hold(0, "a2", "a1")
    case.row("RESUBMIT", "REDUNDANCY", 10_800, "a2", reference=case.host("a1"), network_message_id=f"anew-{case.name}")
    case.goes_on("a2")


# ---- hops


@shape(recipients_lost=0, recipients_duplicated=0, messages_done=1, messages_acknowledged=1)
def smart_host_by_address(case: ExchangeShape) -> None:
    """The Edge sends to an address, which is a server of ours."""
    case.receive(0, "edge", said="Failed")
    case.send(1, "edge", "10.0.0.5", "SENDEXTERNAL", server_ip="10.0.0.5")
    case.receive(1.1, "a1", case.host("edge"), said=case.host("a2"))
    case.deliver(2)
    case.goes_on("a1", "edge")


@shape(recipients_lost=0, recipients_duplicated=0, messages_done=1)
def expanded_on_another_server(case: ExchangeShape) -> None:
    """The group has an expansion server, which gives one member's mail back."""
    case.copied(to=(TEAM,))
    case.send(1, "a1", case.host("b1"), to=(TEAM,))
    case.receive(1.1, "b1", case.host("a1"), to=(TEAM,), said=case.host("a2"))
    case.row("EXPAND", "ROUTING", 1.2, "b1", to=PAIR, related_recipient_address=TEAM)
    case.deliver(2, "b1", to=PAIR[:1])
    case.send(2, "b1", case.host("a1"), to=PAIR[1:])
    case.receive(2.1, "a1", case.host("b1"), to=PAIR[1:], said=case.host("a2"))
    case.deliver(3, to=PAIR[1:])
    case.discard(60, to=(TEAM,))
    case.goes_on("a1", "a2", "b1")


@shape(recipients_lost=1)
def expanded_on_another_server_and_lost(case: ExchangeShape) -> None:
    case.copied(to=(TEAM,))
    case.send(1, "a1", case.host("b1"), to=(TEAM,))
    case.receive(1.1, "b1", case.host("a1"), to=(TEAM,), said=case.host("a2"))
    case.row("EXPAND", "ROUTING", 1.2, "b1", to=PAIR, related_recipient_address=TEAM)
    case.deliver(2, "b1", to=PAIR[:1])
    case.goes_on("a1", "a2", "b1")


@shape(recipients_lost=0, messages_done=1, recipients_duplicated=0)
def one_way_delivers_the_other_fails(case: ExchangeShape) -> None:
    case.copied(to=("x@ziel.example", *WHOM))
    case.send(1, "a1", "mx.ziel.example", "SENDEXTERNAL", to=("x@ziel.example",))
    case.row("FAIL", "STOREDRIVER", 2, "a1")
    case.discard(60)
    case.goes_on("a1", "a2")


@shape(recipients_duplicated=1, recipients_duplicated_unexplained=0, messages_sent_again=1, causes={"duplicates": {"e"}})
def sent_again_to_another_server(case: ExchangeShape) -> None:
    """Its client got no reply in time: two network ids, one Message-ID."""
    case.receive(0, said=case.host("a2"))
    case.deliver(1)
    second = {"network_message_id": f"second-{case.name}"}
    case.receive(30, "a3", said=case.host("a2"), **second)
    case.deliver(31, "a3", **second)


# ---- what an auditor must not write to anybody about, and what he must


@shape(recipients_lost=1, causes={"losses": {"discarded, end not logged"}})
def discarded_and_no_end(case: ExchangeShape) -> None:
    """Its copy was discarded as of mail that is done with; the row that says how is missing, as with the log of an hour."""
    case.copied()
    case.discard(60)
    case.goes_on("a1", "a2")


@shape(recipients_lost=1, causes={"losses": {"no trace"}})
def discarded_for_the_hop_before(case: ExchangeShape) -> None:
    """The first server was done when it had handed the message on; the second one has it, and never ends it."""
    case.copied()
    case.send(1, "a1", case.host("b1"))
    case.receive(1.1, "b1", case.host("a1"), said=case.host("b2"))
    case.discard(60)
    case.goes_on("a1", "a2", "b1")


# ---- what an administrator does


@shape(recipients_lost=0, messages_done=1)
def poison_removed(case: ExchangeShape) -> None:
    case.receive(0)
    case.row("POISONMESSAGE", "POISONMESSAGE", 5, "a1")
    case.row("FAIL", "ADMIN", 7200, "a1", source_context="Deleted by admin")
    case.goes_on("a1")


@shape(messages_acknowledged=2, recipients_lost=0, messages_done=2, clock_skews=0, recipients_duplicated=0)
def there_and_back(case: ExchangeShape) -> None:
    """Two servers, each of which is the next hop of the other."""
    case.copied()
    case.send(1, "a1", case.host("b1"))
    case.receive(1.1, "b1", case.host("a1"), said=case.host("a2"))
    case.deliver(2, "b1")
    case.discard(60)
    case.receive(90, "b1", message="back", said=case.host("a2"))
    case.send(91, "b1", case.host("a1"), message="back")
    case.receive(91.1, "a1", case.host("b1"), message="back", said=case.host("a2"))
    case.deliver(92, message="back")
    case.goes_on("a1", "a2", "b1")
