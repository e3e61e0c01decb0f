"""The key by which a message that is sent again is recognised."""

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shadowrelay.model.ids import MessageId
from shadowrelay.model.message import Envelope, Recipient
from shadowrelay.model.values import replace
from shadowrelay.protocol.xshadow import format_envelope, parse_envelope
from shadowrelay.rules.delivery import DATE_CHARACTERS_MAX, MESSAGE_ID_CHARACTERS_MAX, duplicate_keys
from shadowrelay.smtp import limits

ENVELOPE = Envelope(
    MessageId("11111111-1111-4111-8111-111111111111"),
    "Alice@x.example",
    (Recipient("Bob@corp.example"), Recipient("carol@corp.example")),
    datetime(2026, 3, 1, 12, tzinfo=UTC),
    internet_message_id="<1@x.example>",
    date="Sun, 1 Mar 2026 12:00:00 +0000",
    fingerprint="0" * 32,
    client_address="192.0.2.1",
    connector="inbound",
)
SENT_AGAIN = replace(
    ENVELOPE,
    message_id=MessageId("22222222-2222-4222-8222-222222222222"),
    arrived_at=datetime(2026, 3, 1, 12, 5, tzinfo=UTC),
    subject="not part of it",
    envid="neither",
)


def key(envelope: Envelope, ordinal: int = 1) -> bytes | None:
    return duplicate_keys(envelope, frozenset({ordinal})).get(ordinal)


def test_a_message_that_is_sent_again_has_the_same_keys() -> None:
    assert duplicate_keys(ENVELOPE, ENVELOPE.ordinals) == duplicate_keys(SENT_AGAIN, SENT_AGAIN.ordinals)
    assert 2 == len(set(duplicate_keys(ENVELOPE, ENVELOPE.ordinals).values())), "one for each recipient"


def test_keys_of_mail_of_the_same_second_are_neighbours_in_the_database() -> None:
    def places(second: int) -> set[bytes]:
        sent = [
            key(replace(ENVELOPE, date=f"Sun, 01 Mar 2026 12:00:{second:02d} +0000", internet_message_id=f"<{number}@c.example>"))
            for number in range(20)
        ]
        assert 20 == len(set(sent)), "they differ"
        return {each[:4] for each in sent if each is not None}

    assert [1] * 60 == [len(places(second)) for second in range(60)]
    assert 60 == len(set().union(*map(places, range(60)))), "elsewhere for each second"


def test_the_place_of_a_recipient_does_not_matter() -> None:
    assert key(ENVELOPE, 1) == key(replace(ENVELOPE, recipients=ENVELOPE.recipients[::-1]), 2)


@pytest.mark.parametrize(
    "change",
    [
        {"internet_message_id": "<2@x.example>"},
        {"date": "Sun, 1 Mar 2026 12:00:01 +0000"},
        {"sender": "mallory@x.example"},
        {"sender": ""},
        {"sender": "alice@x.example"},  # local parts have case, RFC 5321 2.4
        {"recipients": (Recipient("bob@corp.example"),)},
        {"recipients": (Recipient("Bob@corp2.example"),)},
        {"fingerprint": "1" * 32},
        {"client_address": "192.0.2.7"},
        {"connector": "from-the-filter"},
    ],
)
def test_a_message_that_differs_in_one_of_these_is_another(change: dict[str, object]) -> None:
    assert key(ENVELOPE) != key(replace(ENVELOPE, **change))


@pytest.mark.parametrize(
    "change",
    [{"sender": "Alice@X.Example"}, {"recipients": (Recipient("Bob@CORP.example"),)}],
)
def test_domains_are_compared_without_case(change: dict[str, object]) -> None:
    assert key(ENVELOPE) == key(replace(ENVELOPE, **change))


def test_the_domain_of_the_sender_may_be_that_of_the_node() -> None:
    at_nodes = [replace(ENVELOPE, sender=f"root@{node}") for node in ("mx1.east.example", "mx1.west.example")]

    assert 1 == len({key(envelope) for envelope in at_nodes})


def test_a_message_resubmitted_from_safety_net_is_no_duplicate_of_its_original() -> None:
    assert {} == duplicate_keys(replace(SENT_AGAIN, resubmitted_from=ENVELOPE.message_id), ENVELOPE.ordinals)


def test_postmaster_has_no_case() -> None:
    assert key(replace(ENVELOPE, recipients=(Recipient("Postmaster"),))) == key(replace(ENVELOPE, recipients=(Recipient("POSTMASTER"),)))


@pytest.mark.parametrize(
    "change",
    [
        {"internet_message_id": ""},
        {"date": ""},
        {"fingerprint": ""},
        {"internet_message_id": "<" + "x" * MESSAGE_ID_CHARACTERS_MAX},
        {"date": "x" * (DATE_CHARACTERS_MAX + 1)},
        {"internet_message_id": "<\ufffd@x.example>"},
        {"date": "\ufffd"},
        {"internet_message_id": "<a\nb@x.example>"},
    ],
)
def test_a_message_that_cannot_be_told_from_another_has_no_key(change: dict[str, object]) -> None:
    assert {} == duplicate_keys(replace(ENVELOPE, **change), frozenset({1}))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"internet_message_id": "<1>a", "date": "b"}, {"internet_message_id": "<1>", "date": "ab"}),
        ({"sender": "a@x.example", "date": "d"}, {"sender": "@x.example", "date": "da"}),
    ],
)
def test_parts_do_not_run_into_each_other(one: dict[str, object], other: dict[str, object]) -> None:
    assert key(replace(ENVELOPE, **one)) != key(replace(ENVELOPE, **other))


def over_the_wire(sent: Envelope) -> Envelope:
    extras = parse_envelope(format_envelope(sent, frozenset()))
    return extras.envelope(sent.message_id, sent.sender, sent.recipients, sent.body, smtputf8=sent.smtputf8)


@given(st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=limits.MESSAGE_ID_CHARACTERS_MAX))
def test_a_field_that_was_cut_for_a_peer_has_no_key(message_id: str) -> None:
    envelope = replace(ENVELOPE, internet_message_id=message_id)
    received = over_the_wire(envelope)

    assert duplicate_keys(received, frozenset({1})) in (duplicate_keys(envelope, frozenset({1})), {})
    if received.internet_message_id != message_id:
        assert {} == duplicate_keys(received, frozenset({1}))


def test_a_field_that_the_receiver_has_cut_has_no_key() -> None:
    assert DATE_CHARACTERS_MAX < limits.DATE_CHARACTERS_MAX
    assert MESSAGE_ID_CHARACTERS_MAX < limits.MESSAGE_ID_CHARACTERS_MAX


def test_not_even_one_that_is_all_quotes() -> None:
    for length in range(MESSAGE_ID_CHARACTERS_MAX, limits.MESSAGE_ID_CHARACTERS_MAX + 1):
        envelope = replace(ENVELOPE, internet_message_id='"' * length)
        received = over_the_wire(envelope)
        assert duplicate_keys(envelope, frozenset({1})) == duplicate_keys(received, frozenset({1})), length
