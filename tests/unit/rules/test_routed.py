"""What is compared when a message is sent again to another node: also where it goes from there. docs/design.md 6.5."""

from datetime import UTC, datetime

from shadowrelay.model.ids import MessageId
from shadowrelay.model.message import Envelope, Recipient
from shadowrelay.model.routing import Destination, HostPort
from shadowrelay.rules.delivery import routed

AT = datetime(2026, 11, 21, 10, tzinfo=UTC)
STORE, OTHER, FILTER = HostPort("store.corp.example", 25), HostPort("store2.corp.example", 25), HostPort("127.0.0.1", 10025)
ENVELOPE = Envelope(
    MessageId("00000000-0000-4000-8000-000000000001"), "a@x.example", (Recipient("b@corp.example"),), AT, fingerprint="ab" * 16
)


def fingerprint(*hosts: HostPort, domain: str = "") -> str:
    return routed(ENVELOPE, lambda address: Destination("key", hosts, domain)).fingerprint


def test_nodes_with_the_same_next_hops_in_any_order_recognise_it() -> None:
    assert fingerprint(STORE, OTHER) == fingerprint(OTHER, STORE)
    assert len(ENVELOPE.fingerprint) == len(fingerprint(STORE))


def test_a_filter_between_two_nodes_is_no_client_that_sends_again() -> None:
    assert 4 == len({fingerprint(FILTER), fingerprint(STORE), fingerprint(domain="corp.example"), ENVELOPE.fingerprint})


def test_what_has_no_fingerprint_gets_none() -> None:
    bare = Envelope(ENVELOPE.message_id, "", ENVELOPE.recipients, AT)

    assert bare is routed(bare, lambda address: Destination("key", (STORE,)))
