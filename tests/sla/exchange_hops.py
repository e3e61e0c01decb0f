"""Hops by address, and under names of connectors, to servers whose clocks are right or wrong; and what only looks like one.

Each is a boundary of its own."""

from tests.sla.exchange_shapes import ExchangeShape, shape

CONNECTOR = "smtp.nordhof.example"  # what the sending server calls itself
OUT = {"client_ip": "10.0.0.1", "server_ip": "10.0.0.5"}
LOST = {"recipients_lost": 1, "recipients_duplicated": 0, "messages_acknowledged": 1}
DONE = {"recipients_lost": 0, "recipients_duplicated": 0, "messages_acknowledged": 1, "messages_done": 1}


def _handed(case: ExchangeShape, behind: float, event: str = "SEND", **received: str) -> None:
    """a1 gives it to b1 by its address, and b1's clock is so much behind."""
    case.copied(300, client_ip="192.0.2.7", server_ip="10.0.0.1")
    case.send(301, "a1", "10.0.0.5", event, **OUT)
    case.copied(301.2 - behind, "b1", "b2", client=CONNECTOR, **(received or OUT))
    case.discard(360)
    case.goes_on("a1", "a2", "b1", "b2")


@shape(**LOST)
def by_address_and_lost(case: ExchangeShape) -> None:
    _handed(case, 0)


@shape(**LOST, causes={"losses": {"no trace"}})
def by_address_to_a_clock_behind_and_lost(case: ExchangeShape) -> None:
    _handed(case, 3)


@shape(**LOST)
def by_address_to_a_clock_five_minutes_behind_and_lost(case: ExchangeShape) -> None:
    _handed(case, 300, "SENDEXTERNAL")


@shape(**LOST)
def through_a_balancer_to_a_clock_behind_and_lost(case: ExchangeShape) -> None:
    """The address to which it was sent is the balancer's; from where it came is seen."""
    _handed(case, 200, client_ip="10.0.0.1", server_ip="10.0.7.9")


@shape(**LOST)
def through_a_proxy_to_a_clock_behind_and_lost(case: ExchangeShape) -> None:
    _handed(case, 200, client_ip="10.0.7.9", server_ip="10.0.0.5")


@shape(**LOST)
def without_addresses_to_a_clock_behind_and_lost(case: ExchangeShape) -> None:
    """b1 handed it to nobody, so that a1 does not have it from there."""
    _handed(case, 200, client_ip="")


@shape(**DONE)
def by_address_to_a_clock_behind_and_delivered(case: ExchangeShape) -> None:
    _handed(case, 200)
    case.deliver(110, "b1")


@shape("2013", **DONE)
def by_address_to_a_clock_behind_and_sent_on(case: ExchangeShape) -> None:
    _handed(case, 30)
    case.send(272, "b1", "mx.ziel.example", client_ip="10.0.0.5", server_ip="192.0.2.9")


@shape(**DONE)
def to_a_clock_behind_and_sent_on(case: ExchangeShape) -> None:
    """By name: what a1 received from a stranger is no sign that b1 handed it to a1."""
    case.copied(300)
    case.send(301, "a1", case.host("b1"))
    case.copied(271.2, "b1", "b2", client=case.host("a1"))
    case.send(272, "b1", "mx.ziel.example")
    case.discard(360)
    case.goes_on("a1", "a2", "b1", "b2")


@shape(recipients_lost=1, messages_acknowledged=1, recipients_duplicated=0)
def back_through_a_filter_and_lost(case: ExchangeShape) -> None:
    """b1 has it from a1, and gives it back through a filter; then a1 loses it."""
    case.copied(0)
    case.send(1, "a1", case.host("b1"))
    case.copied(1.2, "b1", "b2", client=case.host("a1"))
    case.send(2, "b1", "filter.nordhof.example")
    case.receive(4, "a1", "filter.nordhof.example", said=case.host("a2"))
    case.goes_on("a1", "a2", "b1", "b2")


@shape(recipients_lost=1, messages_acknowledged=1)
def submitted_and_lost_behind_a_connector(case: ExchangeShape) -> None:
    """A mailbox submitted it, so that the only receipt by SMTP is that of b1, which calls a1 by another name."""
    case.row("RECEIVE", "STOREDRIVER", 0, "a1")
    case.send(1, "a1", "10.0.0.5", client_ip="", server_ip="10.0.0.5")
    case.copied(1.2, "b1", "b2", client=CONNECTOR)
    case.goes_on("a1", "b1", "b2")


@shape(**DONE)
def out_by_the_second_server(case: ExchangeShape) -> None:
    """b1 had it first, and gave it to a1 under its connector's name; from there it went out."""
    case.copied(0, "b1", "b2", client="gw.kunde.example", client_ip="192.0.2.7", server_ip="10.0.0.5")
    case.send(1, "b1", "10.0.0.1", client_ip="10.0.0.5", server_ip="10.0.0.1")
    case.copied(1.2, client=CONNECTOR, client_ip="10.0.0.5", server_ip="10.0.0.1")
    case.send(2, "a1", "mx.ziel.example", "SENDEXTERNAL", client_ip="10.0.0.1", server_ip="192.0.2.9")
    case.goes_on("a1", "a2", "b1", "b2")


@shape(recipients_lost=0, messages_acknowledged=1, messages_done=1, promotions=1)
def out_after_a_takeover(case: ExchangeShape) -> None:
    """a1 never received it: it had the copy, and took over from b1, which handed nothing on."""
    case.copied(0, "b1", "a1", client="gw.kunde.example")
    case.row("RESUBMIT", "REDUNDANCY", 300, "a1", reference=case.host("b1"))
    case.send(301, "a1", "mx.ziel.example", "SENDEXTERNAL", **OUT)
    case.goes_on("a1", "b1")


@shape(**DONE)
def out_over_the_loopback(case: ExchangeShape) -> None:
    """A filter on each machine itself: its address proves nothing."""
    case.copied(0, "b1", "b2", client="gw.kunde.example", client_ip="127.0.0.1", server_ip="::1")
    case.send(1, "b1", case.host("a1"), client_ip="127.0.0.1", server_ip="127.0.0.1")
    case.copied(1.2, client=case.host("b1"), client_ip="127.0.0.1", server_ip="127.0.0.1")
    case.send(2, "a1", "mx.ziel.example", "SENDEXTERNAL", client_ip="127.0.0.1", server_ip="::1")
    case.goes_on("a1", "a2", "b1", "b2")


@shape(**DONE, messages_redundant=1, messages_exposed=1, exposure_max_seconds=30.0, causes={"exposures": {"no copy on a further hop"}})
def over_an_edge_that_makes_no_copy(case: ExchangeShape) -> None:
    """The client's 250 had its copy; what has one copy only is the Edge's."""
    case.copied(300)
    case.send(301, "a1", case.host("edge"), "SENDEXTERNAL")
    case.receive(302, "edge", case.host("a1"), said="Failed")
    case.send(332, "edge", "mx.ziel.example", "SENDEXTERNAL")
    case.discard(360)
    case.goes_on("a1", "a2", "edge")


@shape(messages_redundant=0, messages_exposed=1, causes={"exposures": {"no copy at acknowledgement"}})
def without_a_copy_at_the_first_hop(case: ExchangeShape) -> None:
    case.receive(300, "a1", said="Failed")
    case.deliver(310, "a1")
    case.goes_on("a1", "a2")
