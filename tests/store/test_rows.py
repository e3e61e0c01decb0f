"""Values and column texts are exact inverses; nonsense is a ValueError and nothing else."""

import json
from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shadowrelay.model.ids import NO_DATABASE, DatabaseId, ServerName
from shadowrelay.model.message import BodyType, Recipient
from shadowrelay.model.ownership import Choice, Copy
from shadowrelay.model.queue import Delivery
from shadowrelay.model.values import replace
from shadowrelay.store import rows
from tests.kit.ledger import an_envelope

ORDINALS = [("", ()), ("1", (1,)), ("7", (7,)), ("1-40", range(1, 41)), ("1-2,4,6-8", (1, 2, 4, 6, 7, 8)), ("3,5", (5, 3))]
SERVER = ServerName("mx1.east.example")


@pytest.mark.parametrize(("text", "ordinals"), ORDINALS)
def test_ordinals_are_ranges(text: str, ordinals: tuple[int, ...]) -> None:
    assert text == rows.encode_ordinals(frozenset(ordinals))
    assert frozenset(ordinals) == rows.decode_ordinals(text)


@given(st.frozensets(st.integers(1, 3000)))
def test_any_ordinals_come_back(ordinals: frozenset[int]) -> None:
    assert ordinals == rows.decode_ordinals(rows.encode_ordinals(ordinals))


@given(st.datetimes(timezones=st.just(UTC), min_value=datetime(1970, 1, 1), max_value=datetime(9999, 1, 1)))
def test_instants_come_back_to_the_microsecond(at: datetime) -> None:
    assert at == rows.decode_instant(rows.encode_instant(at))


def test_an_instant_of_another_zone_is_the_same_instant() -> None:
    at = datetime(2026, 3, 1, 12, tzinfo=timezone(timedelta(hours=5)))

    assert at == rows.decode_instant(rows.encode_instant(at))


COPIES = [
    (),
    (Copy(SERVER, NO_DATABASE),),
    (Copy(SERVER, DatabaseId("d"), Choice.CHOSEN, 7), Copy(ServerName("s"), DatabaseId("e"))),
    tuple(Copy(ServerName(f"s{choice}"), DatabaseId("d"), choice) for choice in Choice),
]


@pytest.mark.parametrize("copies", COPIES, ids=len)
def test_copies_come_back_in_their_order(copies: tuple[Copy, ...]) -> None:
    assert copies == rows.decode_copies(rows.encode_copies(copies))


def test_an_envelope_comes_back_with_every_field() -> None:
    envelope = replace(
        an_envelope(),
        sender="",
        recipients=(Recipient("a@b"), Recipient("é@b", "NEVER", None), Recipient('"x y"@b', None, "rfc822;x+20y@b")),
        body=BodyType.EIGHT_BIT_MIME,
        smtputf8=True,
        ret="FULL",
        envid="1+2",
        subject='a "quoted"\ttab, lone surrogate \udce9',
    )

    assert envelope == rows.decode_envelope(envelope.message_id, rows.encode_envelope(envelope, rows.encode_instant(envelope.arrived_at)))


@pytest.mark.parametrize(("original", "values"), [("", 14), ("ADDR=203.0.113.5 BY=10.0.0.1", 17)])
def test_an_original_client_comes_back_and_none_takes_no_room(original: str, values: int) -> None:
    envelope = an_envelope(original_client=original)

    text = rows.encode_envelope(envelope, rows.encode_instant(envelope.arrived_at))

    assert (envelope, values) == (rows.decode_envelope(envelope.message_id, text), len(json.loads(text)))


@pytest.mark.parametrize("text", ["", "{", "[]", "[1]", "null", "3", '{"a":1}', '["a",1,1,"7BIT",0,null,null,"","","","",""]', "[" * 5000])
def test_a_text_that_is_no_envelope_is_a_value_error(text: str) -> None:
    with pytest.raises((ValueError, RecursionError)):
        rows.decode_envelope(an_envelope().message_id, text)


@pytest.mark.parametrize("text", ["x", "1-", "-", "1,,2", "1-2-3"])
def test_a_text_that_is_no_ordinals_is_a_value_error(text: str) -> None:
    with pytest.raises(ValueError, match="invalid literal"):
        rows.decode_ordinals(text)


@pytest.mark.parametrize("text", ["a", "a b", "a b 9", "a b c", "a b 0 d"])
def test_a_text_that_is_no_copies_is_a_value_error(text: str) -> None:
    with pytest.raises(ValueError, match=r"unpack|Choice|invalid literal"):
        rows.decode_copies(text)


# deliveries
@given(
    st.lists(
        st.builds(
            Delivery,
            st.datetimes(timezones=st.just(UTC), min_value=datetime(1970, 1, 1), max_value=datetime(8999, 12, 31)),
            st.text(st.characters(exclude_categories=["Cc", "Cs", "Zl", "Zp"]), min_size=1),
            st.frozensets(st.integers(1, 300), min_size=1),
            st.booleans(),
        )
    )
)
def test_any_deliveries_come_back(deliveries: list[Delivery]) -> None:
    lines = [rows.encode_delivery(rows.encode_instant(each.at), each.next_hop, each.ordinals, each.is_inside) for each in deliveries]

    assert tuple(deliveries) == rows.decode_deliveries("".join(lines))


@pytest.mark.parametrize("text", ["rubbish", "1 i 1", "x i 1 hop", "1 i x hop", "999999999999999999999999 i 1 hop", "\x00"])
def test_deliveries_that_make_no_sense_are_none_and_those_before_them_stay(text: str) -> None:
    whole = rows.encode_delivery(1, "store:25", frozenset({1}), is_inside=True)

    assert ["store:25"] == [each.next_hop for each in rows.decode_deliveries(whole + text)]
