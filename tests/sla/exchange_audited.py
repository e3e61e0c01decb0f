"""Shapes in which a loss was hidden, or mail was counted that nobody handed over in these logs. Each is a boundary of its own."""

from tests.sla.exchange_shapes import WHOM, ExchangeShape, shape

TEAM = "team@nordhof.example"
PAIR = ("anna@nordhof.example", "bert@nordhof.example")


def _reported(case: ExchangeShape, seconds: float) -> None:
    about = {"reference": f"<m.{case.name}@nordhof.example>", "return_path": "<>"}
    case.row("DSN", "DSN", seconds, "a1", f"dsn{seconds}", ("ella@nordhof.example",), message_subject="Undeliverable: Hello", **about)


# ---- reports


def _in_two_parts(case: ExchangeShape) -> dict[str, str]:
    """A client sends one message to each recipient by itself, with one Message-ID; the first part fails."""
    second = {"network_message_id": f"second-{case.name}"}
    case.receive(0, to=PAIR[:1])
    case.receive(1, to=PAIR[1:], **second)
    case.row("FAIL", "ROUTING", 5, "a1", to=PAIR[:1])
    _reported(case, 5.1)
    case.goes_on("a1")
    return second


@shape(messages_acknowledged=2, recipients_lost=1, messages_done=1)
def first_part_reported_and_second_lost(case: ExchangeShape) -> None:
    _in_two_parts(case)


@shape(messages_acknowledged=2, recipients_lost=0, messages_done=2)
def both_parts_reported(case: ExchangeShape) -> None:
    second = _in_two_parts(case)
    case.row("FAIL", "ROUTING", 600, "a1", to=PAIR[1:], **second)
    _reported(case, 600.1)


@shape(messages_acknowledged=2, recipients_lost=0, messages_done=2)
def second_part_reported_later_without_a_failure(case: ExchangeShape) -> None:
    _in_two_parts(case)
    _reported(case, 7200)


@shape(messages_acknowledged=1, recipients_lost=1)
def submitted_part_reported_and_other_lost(case: ExchangeShape) -> None:
    """A mailbox submitted the part that fails: nobody was told 250 about it."""
    submitted = {"network_message_id": f"submitted-{case.name}"}
    case.row("RECEIVE", "STOREDRIVER", -0.5, "a1", to=PAIR[:1], **submitted)
    case.receive(0, to=PAIR[1:])
    case.row("FAIL", "ROUTING", 5, "a1", to=PAIR[:1], **submitted)
    _reported(case, 5.1)
    case.goes_on("a1")


@shape(messages_redundant=0, messages_exposed=8)
def words_for_no_copy(case: ExchangeShape) -> None:
    for number, word in enumerate(("Error", "Timeout:451", "pending", "NoShadowServer", "NotNeeded", "0", "-", "N/A")):
        case.receive(number, said=word, message=f"m{number}")
        case.deliver(number + 0.5, message=f"m{number}")


# ---- recipients


@shape(recipients_lost=1)
def recipient_already_and_lost(case: ExchangeShape) -> None:
    """The row that says so names no group."""
    case.receive(0, to=(PAIR[0], TEAM))
    case.row("EXPAND", "ROUTING", 0.2, "a1", to=PAIR[1:], related_recipient_address=TEAM)
    case.row("DUPLICATEEXPAND", "ROUTING", 0.2, "a1", to=PAIR[:1])
    case.deliver(1, to=PAIR[1:])
    case.goes_on("a1")


@shape(recipients_lost=1)
def moderated_group_refused_and_other_one_lost(case: ExchangeShape) -> None:
    """The decision names nobody: it is about the group that waited."""
    case.receive(0, to=(*WHOM, TEAM))
    case.row("INITMESSAGECREATED", "APPROVAL", 0.5, "a1", to=(TEAM,))
    case.row("MODERATORREJECT", "APPROVAL", 3600, "a1", to=())
    case.goes_on("a1")


@shape(recipients_lost=1)
def approved_without_a_name_and_lost(case: ExchangeShape) -> None:
    case.receive(0, to=(TEAM,))
    case.row("INITMESSAGECREATED", "APPROVAL", 0.5, "a1", to=(TEAM,))
    case.row("MODERATORAPPROVE", "APPROVAL", 600, "a1", to=())
    case.goes_on("a1")


@shape(messages_acknowledged=2, recipients_lost=0, messages_done=2)
def two_parts_approved_at_once(case: ExchangeShape) -> None:
    """Both decisions are logged before the parts go on, each under an id of its own."""
    for number, recipient in enumerate(PAIR):
        part = {"network_message_id": f"part{number}-{case.name}"}
        case.receive(number, to=(recipient,), **part)
        case.row("INITMESSAGECREATED", "APPROVAL", number + 0.5, "a1", to=(recipient,), **part)
        case.row("MODERATORAPPROVE", "APPROVAL", 600, "a1", to=(recipient,), **part)
        again = {"network_message_id": f"again{number}-{case.name}"}
        case.row("RECEIVE", "APPROVAL", 601, "a1", to=(recipient,), **again)
        case.deliver(602, to=(recipient,), **again)
    case.goes_on("a1")


# ---- takeovers


def _two_parts_taken_over(case: ExchangeShape, *delivered: str) -> None:
    """Two parts with one Message-ID go on under ids of their own, and are told apart by their recipients."""
    for number, recipient in enumerate(PAIR):
        case.copied(number, to=(recipient,), network_message_id=f"part{number}-{case.name}")
    for number, recipient in enumerate(PAIR):
        anew = {"network_message_id": f"anew{number}-{case.name}"}
        case.row("RESUBMIT", "REDUNDANCY", 10_800, "a2", reference=case.host("a1"), to=(recipient.title(),), **anew)
        if recipient in delivered:
            case.deliver(10_801, "a2", to=(recipient,), **anew)
    case.goes_on("a2")


@shape(messages_acknowledged=2, recipients_lost=0, recipients_duplicated=0, messages_done=2, promotions=1)
def two_parts_taken_over_under_other_ids(case: ExchangeShape) -> None:
    _two_parts_taken_over(case, *PAIR)


@shape(messages_acknowledged=2, recipients_lost=1, messages_done=1, causes={"losses": {"no trace"}})
def two_parts_taken_over_and_the_first_lost(case: ExchangeShape) -> None:
    _two_parts_taken_over(case, PAIR[1])


@shape(recipients_lost=1, promotions=1, messages_reconstructed=1, causes={"losses": {"discarded, end not logged"}})
def taken_over_without_an_end(case: ExchangeShape) -> None:
    """The failed server's log is gone; the one that took over has its log here, and no end in it, though its own copy was discarded."""
    case.hold(0)
    case.row("RESUBMIT", "REDUNDANCY", 10_800, "a2", reference=case.host("a1"))
    case.hold(10_800.1, "a3", "a2")
    case.redirect(10_800.2, "a2", "a3")
    case.discard(10_900, "a3", "a2")
    case.goes_on("a2", "a3")


@shape(recipients_lost=0, messages_reconstructed=1, messages_done=1)
def log_gone_and_discarded(case: ExchangeShape) -> None:
    """Nobody took over: the discard is all that is left, with recipients and without."""
    case.hold(0)
    case.discard(60, to=())
    case.goes_on("a2")


# ---- Safety Net


@shape(messages_acknowledged=0, recipients_lost=0, recipients_duplicated=0)
def safety_net_of_mail_before_the_logs(case: ExchangeShape) -> None:
    """It was acknowledged and delivered yesterday; after a failover it goes out again, with a copy, and by way of another server."""
    case.row("RESUBMIT", "SAFETYNET", 0, "a2")
    case.hold(0.1, "a3", "a2")
    case.redirect(0.2, "a2", "a3")
    case.send(1, "a2", case.host("b1"))
    case.receive(1.1, "b1", case.host("a2"), said=case.host("a2"))
    case.row("DUPLICATEDELIVER", "STOREDRIVER", 2, "b1")
    case.discard(60, "a3", "a2")
    case.goes_on("a2", "a3", "b1")


@shape(messages_acknowledged=0, recipients_lost=0)
def safety_net_of_mail_before_the_logs_without_an_end(case: ExchangeShape) -> None:
    case.row("RESUBMIT", "SAFETYNET", 0, "a2")
    case.hold(0.1, "a3", "a2")
    case.redirect(0.2, "a2", "a3")
    case.discard(60, "a3", "a2")
    case.goes_on("a2", "a3")


@shape(messages_acknowledged=1, messages_reconstructed=1, recipients_lost=0, messages_done=1)
def safety_net_of_mail_whose_log_is_gone(case: ExchangeShape) -> None:
    """Its copy came first, and counts."""
    case.hold(0)
    case.discard(60)
    case.row("RESUBMIT", "SAFETYNET", 7200, "a2")
    case.row("DUPLICATEDELIVER", "STOREDRIVER", 7201, "a2")
    case.goes_on("a2")
