"""Copies of mail that its primary never accepted, because the client left first, and of mail of which nobody can tell.

Each is a boundary of its own."""

from tests.sla.exchange_shapes import ExchangeShape, shape

NEVER = {"messages_acknowledged": 0, "messages_reconstructed": 0, "messages_redundant": 0, "recipients_lost": 0, "messages_done": 0}
IN_DOUBT = {"messages_acknowledged": 1, "messages_reconstructed": 1, "recipients_lost": 1}


def _is_here(case: ExchangeShape, *seconds: float, server: str = "a1", **cells: str) -> None:
    """Its log has rows at these seconds, of nothing."""
    for each in seconds:
        case.row("AGENTINFO", "AGENT", each, server, f"other{each}", (), **cells)


def _left(case: ExchangeShape, **more: str) -> None:
    case.hold(0, **more)
    case.redirect(0.01, **more)
    case.goes_on("a2")


@shape(**NEVER, shadows_orphaned=1, causes={"orphans": {"never told"}})
def client_left(case: ExchangeShape) -> None:
    _left(case)
    _is_here(case, -600, 600)


@shape(**NEVER, shadows_orphaned=0, discards_late=0)
def client_left_and_discarded(case: ExchangeShape) -> None:
    _left(case)
    case.discard(3600)
    _is_here(case, -120, 120)


@shape("2013", messages_acknowledged=1, messages_reconstructed=0, messages_sent_again=0, messages_done=1, recipients_duplicated=0)
def client_left_and_came_back(case: ExchangeShape) -> None:
    _left(case, network_message_id=f"first-{case.name}")
    case.copied(60)
    case.deliver(61)
    case.discard(90)
    _is_here(case, -600, 600)


@shape(**NEVER)
def client_left_two_servers(case: ExchangeShape) -> None:
    """It tried the next server, and left again."""
    _left(case)
    case.hold(30, "a2", "a3")
    _is_here(case, -600, 600)
    _is_here(case, -600, 600, server="a3")


@shape(**IN_DOUBT)
def client_left_one_of_two_servers(case: ExchangeShape) -> None:
    """The log of the other one is not here."""
    _left(case)
    case.hold(30, "a2", "a3")
    _is_here(case, -600, 600)


@shape(**IN_DOUBT)
def primary_ended_then(case: ExchangeShape) -> None:
    """Its log ends with the copy: it was lost in that moment, and may have said 250."""
    _left(case)
    _is_here(case, -600, 0.01, 100)


@shape(**IN_DOUBT)
def primary_began_then(case: ExchangeShape) -> None:
    _left(case)
    _is_here(case, -100, 600)


@shape(**IN_DOUBT)
def file_for_that_time_is_missing(case: ExchangeShape) -> None:
    """There are files from before and after."""
    case.hold(0)
    _is_here(case, -600, 600)
    case.goes_on("a2")
    case.cut_at[case.called.get("a1", "a1")] = 0


@shape(**IN_DOUBT)
def line_that_cannot_be_read(case: ExchangeShape) -> None:
    """It may have been the RECEIVE."""
    _left(case)
    _is_here(case, -600, 600)
    _is_here(case, 1, total_bytes="many")


@shape(**IN_DOUBT)
def only_the_log_of_mailboxes(case: ExchangeShape) -> None:
    case.hold(0)
    _is_here(case, -600, 600)
    case.goes_on("a2")
    case.prefixes[case.called.get("a1", "a1")] = "MSGTRKMD"


@shape(messages_acknowledged=1, messages_reconstructed=1, recipients_lost=0, messages_done=1)
def accepted_by_another_row(case: ExchangeShape) -> None:
    """RECEIVE is missing, but the message was delivered."""
    _left(case)
    _is_here(case, -600, 600)
    case.deliver(1)


@shape(messages_acknowledged=1, messages_reconstructed=1, recipients_lost=1, promotions=1)
def client_left_and_taken_over(case: ExchangeShape) -> None:
    """Whoever takes it over has mail to deliver."""
    _left(case)
    _is_here(case, -600, 600)
    case.row("RESUBMIT", "REDUNDANCY", 10_800, "a2", reference=case.host("a1"))


@shape(**IN_DOUBT)
def primary_without_a_name(case: ExchangeShape) -> None:
    _left(case)
    _is_here(case, -600, 600)
    case.row("HARECEIVE", "SMTP", 1, "a2")
