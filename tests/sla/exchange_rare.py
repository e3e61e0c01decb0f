"""Shapes that are rare: names that Windows cut, what S:Replication may also say, takeovers that do not go well, odd spellings.

Each is a boundary of its own. Names are invented."""

from typing import Any

from tests.sla.exchange_shapes import DAY, MODERATED, ExchangeShape, shape

GROUP = "team@nordhof.example"
PAIR = ("anna@nordhof.example", "bert@nordhof.example")


# ---- what S:Replication may say, too


@shape(messages_redundant=0, messages_exposed=1)
def replication_skipped(case: ExchangeShape) -> None:
    case.receive(0, said="Skipped:NoShadowServerAvailable")
    case.deliver(1)
    case.goes_on("a1")


@shape(messages_redundant=1, messages_exposed=0)
def replication_by_full_name_and_a_dot(case: ExchangeShape) -> None:
    case.receive(0, said=f"{case.host('a2')}.")
    case.deliver(1)
    case.goes_on("a1", "a2")


@shape(messages_redundant=1, messages_exposed=0)
def replication_by_address(case: ExchangeShape) -> None:
    case.receive(0, said="192.0.2.11")
    case.deliver(1)
    case.goes_on("a1")


@shape(messages_redundant=0, messages_exposed=1)
def replication_failed_in_capitals(case: ExchangeShape) -> None:
    case.receive(0, said="FAILED: timed out")
    case.deliver(1)
    case.goes_on("a1")


# ---- copies


@shape(messages_acknowledged=0, shadows_orphaned=1, recipients_lost=0)
def submitted_and_its_copy_left_over(case: ExchangeShape) -> None:
    """What a mailbox submits was acknowledged to nobody, but its copy uses disk space."""
    case.hold(0)
    case.redirect(0.1)
    case.row("RECEIVE", "STOREDRIVER", 0.2, "a1")
    case.deliver(1)
    case.goes_on("a1", "a2")


@shape(shadows_orphaned=0, messages_redundant=1, clock_skews=0)
def held_twice_and_discarded_twice(case: ExchangeShape) -> None:
    """The reply to the first copy was lost, and the primary server sent it again."""
    case.hold(-5)
    case.copied()
    case.deliver(1)
    case.discard(60)
    case.discard(61)
    case.goes_on("a1", "a2")


@shape(shadows_orphaned=1, messages_redundant=1)
def held_on_two_servers_and_discarded_on_one(case: ExchangeShape) -> None:
    case.hold(-5, "a3")
    case.copied()
    case.deliver(1)
    case.discard(60)
    case.goes_on("a1", "a2", "a3")


# ---- takeovers


def _taken_over(case: ExchangeShape, **more: Any) -> None:
    case.copied(**more)
    case.row("RESUBMIT", "REDUNDANCY", 10_800, "a2", reference=case.host("a1"), **more)


@shape(recipients_lost=0, messages_done=1, promotions=1)
def taken_over_and_returned(case: ExchangeShape) -> None:
    _taken_over(case)
    case.row("FAIL", "SMTP", 10_801, "a2", recipient_status="[{LED=550 5.1.1 no; such user};{MSG=};{FQDN=};{IP=}]")
    case.goes_on("a2")


@shape(recipients_lost=1, promotions=1)
def group_taken_over_and_expanded(case: ExchangeShape) -> None:
    """The server that took the group over expands it, and one member does not get it."""
    _taken_over(case, to=(GROUP,))
    case.row("EXPAND", "ROUTING", 10_800.5, "a2", to=PAIR, related_recipient_address=GROUP)
    case.deliver(10_801, "a2", to=PAIR[:1])
    case.goes_on("a2")


@shape(recipients_lost=0, messages_done=1, promotions=1, recipients_duplicated=0)
def group_expanded_on_both_servers(case: ExchangeShape) -> None:
    """The first server expanded it before it failed."""
    case.copied(to=(GROUP,))
    case.row("EXPAND", "ROUTING", 0.5, "a1", to=PAIR, related_recipient_address=GROUP)
    case.row("RESUBMIT", "REDUNDANCY", 10_800, "a2", reference=case.host("a1"), to=(GROUP,))
    case.row("EXPAND", "ROUTING", 10_800.5, "a2", to=PAIR, related_recipient_address=GROUP)
    case.deliver(10_801, "a2", to=PAIR)
    case.goes_on("a2")


@shape(recipients_lost=1, promotions=1)
def taken_over_in_vain(case: ExchangeShape) -> None:
    _taken_over(case)
    case.row("RESUBMITFAIL", "REDUNDANCY", 10_801, "a2")
    case.goes_on("a2")


@shape(recipients_lost=0, messages_done=1, promotions=1)
def taken_over_with_delay(case: ExchangeShape) -> None:
    _taken_over(case)
    case.row("RESUBMITDEFER", "REDUNDANCY", 10_801, "a2")
    case.deliver(11_000, "a2")
    case.goes_on("a2")


@shape(recipients_lost=0, messages_done=1, promotions=1, recipients_duplicated=0)
def taken_over_after_the_moderator_got_it(case: ExchangeShape) -> None:
    case.copied(to=MODERATED)
    case.row("INITMESSAGECREATED", "APPROVAL", 0.5, "a1", to=MODERATED)
    case.row("RESUBMIT", "REDUNDANCY", 10_800, "a2", reference=case.host("a1"), to=MODERATED)
    case.goes_on("a2")


# ---- moderators


@shape(recipients_lost=0, messages_done=1, recipients_duplicated=0)
def approved_by_two_moderators(case: ExchangeShape) -> None:
    case.receive(0, to=MODERATED)
    case.row("INITMESSAGECREATED", "APPROVAL", 0.5, "a1", to=MODERATED)
    for seconds in (600, 601):
        case.row("MODERATORAPPROVE", "APPROVAL", seconds, "a1", to=MODERATED)
    again = {"network_message_id": f"again-{case.name}"}
    case.row("RECEIVE", "APPROVAL", 601.1, "a1", to=MODERATED, **again)
    case.deliver(602, to=MODERATED, **again)
    case.goes_on("a1")


@shape(recipients_lost=0, messages_done=1)
def approved_by_one_and_too_late_by_another(case: ExchangeShape) -> None:
    case.receive(0, to=MODERATED)
    case.row("INITMESSAGECREATED", "APPROVAL", 0.5, "a1", to=MODERATED)
    case.row("MODERATORAPPROVE", "APPROVAL", 600, "a1", to=MODERATED)
    again = {"network_message_id": f"again-{case.name}"}
    case.row("RECEIVE", "APPROVAL", 600.1, "a1", to=MODERATED, **again)
    case.deliver(601, to=MODERATED, **again)
    case.row("MODERATIONEXPIRE", "APPROVAL", 2 * DAY, "a1", to=MODERATED)
    case.goes_on("a1")


@shape(messages_acknowledged=0, recipients_lost=0)
def approved_before_the_logs_begin(case: ExchangeShape) -> None:
    """What waited is in an older log."""
    case.row("RECEIVE", "APPROVAL", 0, "a1", to=MODERATED)
    case.deliver(1, to=MODERATED)
    case.goes_on("a1")


# ---- recipients


@shape(recipients_lost=0, messages_done=1)
def address_with_a_tag(case: ExchangeShape) -> None:
    case.receive(0, to=("otto+news@nordhof.example",))
    case.row("RESOLVE", "ROUTING", 0.1, "a1", related_recipient_address="otto+news@nordhof.example")
    case.deliver(1)
    case.goes_on("a1")


@shape(recipients_lost=0, messages_done=1)
def umlauts_in_another_letter_case(case: ExchangeShape) -> None:
    case.receive(0, to=("MÜLLER@nordhof.example", "ÅSE@nordhof.example"))
    case.deliver(1, to=("müller@nordhof.example", "åse@nordhof.example"))
    case.goes_on("a1")


@shape(recipients_lost=0, messages_done=1)
def address_of_the_old_directory(case: ExchangeShape) -> None:
    """An answer to mail of a mailbox that was moved: its X.500 address, packed into SMTP, is resolved."""
    old = "IMCEAEX-_O=NORDHOF_OU=FIRST+20ADMINISTRATIVE+20GROUP_CN=RECIPIENTS_CN=OTTO@nordhof.example"
    case.receive(0, to=(old,))
    case.row("RESOLVE", "ROUTING", 0.1, "a1", related_recipient_address=old)
    case.deliver(1)
    case.goes_on("a1")


@shape(recipients_lost=0, messages_done=1, recipients_duplicated=0)
def suppressed_for_one_of_two(case: ExchangeShape) -> None:
    case.receive(0, to=PAIR)
    case.deliver(1, to=PAIR[:1])
    case.row("SUPPRESSED", "STOREDRIVER", 1, "a1", to=PAIR[1:])
    case.goes_on("a1")


@shape(recipients_lost=1)
def dropped_for_one_and_forgotten_for_another(case: ExchangeShape) -> None:
    case.receive(0, to=PAIR)
    case.row("DROP", "AGENT", 1, "a1", to=PAIR[:1])
    case.goes_on("a1")


# ---- hops and reports


@shape(recipients_lost=1, clock_skews=0)
def hop_to_a_clock_that_is_behind_and_lost(case: ExchangeShape) -> None:
    """The next server's clock is five minutes behind, and it loses the message."""
    case.copied(300)
    case.send(301, "a1", case.host("b1"))
    case.copied(2, "b1", "b2", client=case.host("a1"))
    case.discard(360)
    case.goes_on("a1", "a2", "b1", "b2")


@shape(messages_acknowledged=2, recipients_lost=0, messages_done=2, messages_dsn=0)
def report_of_a_strange_server(case: ExchangeShape) -> None:
    """The cloud took the message, and sends a report about it later: mail like any other."""
    case.copied()
    case.send(1, "a1", "nordhof-example.mail.protection.outlook.com", "SENDEXTERNAL")
    case.discard(60)
    case.receive(90, client="mail-eur.outbound.protection.outlook.com", message="report", to=("ella@nordhof.example",),
                 message_subject="Undeliverable: Hello", return_path="<>", sender_address="postmaster@kunde.example")  # fmt: skip
    case.deliver(91, message="report", to=("ella@nordhof.example",))
    case.goes_on("a1", "a2")


@shape("2013", recipients_lost=1, messages_dsn=1)
def report_of_thirteen_names_one_of_two(case: ExchangeShape) -> None:
    """Undeliverable for one; nobody says what became of the other."""
    case.receive(0, to=PAIR)
    about = {"reference": f"<m.{case.name}@nordhof.example>", "return_path": "<>", "to": ("ella@nordhof.example",)}
    case.row("FAIL", "ROUTING", 1, "a1", to=PAIR[:1], recipient_status="550 5.1.1 RESOLVER.ADR.RecipNotFound; not found")
    case.row("DSN", "DSN", 2, "a1", "report", message_subject="Undeliverable: Hello", **about)
    case.goes_on("a1")


@shape("2010", recipients_lost=0, recipients_duplicated=0, messages_done=1)
def hub_to_hub_of_old_by_upper_case_names(case: ExchangeShape) -> None:
    case.receive(0)
    case.send(1, "a1", case.host("a2").upper())
    case.receive(1.2, "a2", case.host("a1").upper())
    case.deliver(2, "a2")
    case.goes_on("a1", "a2")


# ---- names that Windows cut


def _cut_and_handed_on(case: ExchangeShape, *, is_full: bool) -> None:
    """Servers write their own names cut at 15 characters, and those of others in full; the second server loses the message."""
    case.is_cut, case.has_full_directories = True, is_full
    case.copied()
    case.send(1, "a1", case.host("b1"))
    case.copied(1.5, "b1", "b2", client=case.host("a1"))
    case.discard(60)
    case.discard(70, "b2", "b1")
    case.goes_on("a1", "a2", "b1", "b2")


CUT = {"messages_redundant": 1, "messages_exposed": 0, "recipients_lost": 1, "shadows_orphaned": 0, "clock_skews": 0}


@shape(**CUT, causes={"losses": {"discarded, end not logged"}})
def windows_cuts_names(case: ExchangeShape) -> None:
    _cut_and_handed_on(case, is_full=False)


@shape(**CUT, causes={"losses": {"discarded, end not logged"}})
def names_cut_by_windows_in_full_directories(case: ExchangeShape) -> None:
    _cut_and_handed_on(case, is_full=True)


@shape(messages_acknowledged=1, recipients_duplicated=0, recipients_lost=0, shadows_orphaned=0)
def one_log_under_the_cut_name_and_the_full_one(case: ExchangeShape) -> None:
    case.is_cut = True
    case.copied()
    case.deliver(1)
    case.discard(60)
    case.goes_on("a1", "a2")
    case.copied_to = {"again": "a1"}
    case.called = {"again": "a1"}


@shape(messages_acknowledged=2, messages_redundant=1, messages_exposed=1, recipients_lost=1, shadows_orphaned=0)
def two_servers_with_one_cut_name(case: ExchangeShape) -> None:
    """Whose rows these are is known by the directories; the first has its copy on the second."""
    case.is_cut, case.has_full_directories = True, True
    first, second = "mailboxserver-p1", "mailboxserver-p2"
    case.copied(0, first, second, message="one")
    case.receive(5, second, message="two", said="Failed")
    case.deliver(1, first, message="one")
    case.discard(60, second, first, message="one")
    case.goes_on(first, second)


@shape(recipients_lost=0, messages_done=1)
def handed_to_its_own_mailboxes_by_the_cut_name(case: ExchangeShape) -> None:
    """Without the log of its mailboxes (MSGTRKMD), the server by its full name hands mail to itself by its cut one."""
    case.is_cut = True
    case.copied()
    case.row("SEND", "SMTP", 1, "a1", client_hostname=case.host("a1"), server_hostname=case.host("a1", is_full=False))
    case.discard(60)
    case.goes_on("a1", "a2")


@shape("2010", recipients_lost=0, messages_done=1)
def in_2010_handed_to_its_own_mailboxes_by_the_cut_name(case: ExchangeShape) -> None:
    case.is_cut = True
    case.receive(0)
    case.row("SEND", "SMTP", 1, "a1", client_hostname=case.host("a1"), server_hostname=case.host("a1", is_full=False))
    case.goes_on("a1")


@shape(messages_redundant=0, messages_exposed=1)
def its_own_cut_name_is_no_copy(case: ExchangeShape) -> None:
    case.is_cut, case.has_full_directories = True, True
    case.receive(0, said=case.host("a1", is_full=False))
    case.deliver(1)
    case.goes_on("a1")
