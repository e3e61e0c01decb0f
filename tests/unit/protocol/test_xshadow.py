import base64
import json
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shadowrelay.model.message import Envelope, Recipient
from shadowrelay.model.ownership import CopyNumber
from shadowrelay.model.peers import PeerIdentity, Seen
from shadowrelay.model.printable import printable
from shadowrelay.model.values import replace
from shadowrelay.protocol import xshadow
from shadowrelay.protocol.original_client import OriginalClient, format_original_client
from shadowrelay.protocol.xshadow import (
    COMMIT_OCTETS_MAX,
    ENVELOPE_OCTETS_MAX,
    HOLD_OCTETS_MAX,
    EnvelopeExtras,
    XshadowForm,
    format_commit,
    format_envelope,
    format_hello,
    format_hold,
    format_keyword,
    format_position,
    is_track,
    parse_commit,
    parse_envelope,
    parse_form,
    parse_hello,
    parse_hold,
    parse_position,
)
from tests.unit.protocol.strategies import ARRIVED, ID, A, B, counters, envelopes, identities, message_ids, ordinals, ranks, refusal

PLAIN = PeerIdentity("mx1.east.example", "default", A, 3, 120, 4711, timedelta(hours=3))
HELLOS = [
    (f"server=mx1.east.example boundary=default database={A} incarnation=3 began=120 position=4711 span=10800", PLAIN),
    (
        f"server=b boundary=DAG+201 database={B} incarnation=0 began=0 position=0 span=0.25 seen=3:120:4700",
        PeerIdentity("b", "DAG 1", B, 0, 0, 0, timedelta(milliseconds=250), Seen(3, 120, 4700)),
    ),
    (
        f"server=mx1.east.example boundary=default database={A} incarnation=3 began=120 position=4711 span=10800"
        " settings=reject_message_on_shadow_failure:true,safety_net_hold_time:172800.5",
        replace(PLAIN, common=(("reject_message_on_shadow_failure", "true"), ("safety_net_hold_time", "172800.5"))),
    ),
    (
        f"server=mx1.east.example boundary=default database={A} incarnation=3 began=120 position=4711 span=10800"
        f" machine={'0a' * 16} domains=rack7,hypervisor-3 version=1.4.0",
        replace(PLAIN, machine="0a" * 16, domains=("rack7", "hypervisor-3"), version="1.4.0"),
    ),
]
HELLO = HELLOS[1][0]
ENVELOPE = Envelope(ID, "a@b.example", (Recipient("c@d.example"),), ARRIVED)
BAD_ENVELOPE = "501 5.5.4 Bad XSHADOW ENVELOPE"


def encoded(value):
    return base64.urlsafe_b64encode(value if isinstance(value, bytes) else json.dumps(value).encode()).rstrip(b"=").decode()


def test_a_machine_or_label_of_another_form_means_nothing() -> None:
    """A later version may write them in another way: that is no reason to refuse it."""
    told = parse_hello(f"{HELLOS[0][0]} machine=0A version=<b> domains=rack7,,a/b,{'x' * 65},{','.join('abcdefgh')}")

    assert ("", ("rack7", "a", "b", "c", "d"), "") == (told.machine, told.domains, told.version)


@pytest.mark.parametrize(
    ("argument", "form", "rest"),
    [
        ("envelope abc", XshadowForm.ENVELOPE, "abc"),
        ("COMMIT size=1", XshadowForm.COMMIT, "size=1"),
        ("COMMIT", XshadowForm.COMMIT, ""),
        ("server=a", XshadowForm.HELLO, "server=a"),
        ("", XshadowForm.HELLO, ""),
    ],
)
def test_the_word_after_the_verb_decides_its_form(argument, form, rest):
    assert parse_form(argument) == (form, rest)


def test_the_keyword_says_whether_copies_and_relayed_messages_are_taken():
    offered = [format_keyword(hold=hold, track=track) for hold in (True, False) for track in (True, False)]
    assert offered == ["XSHADOW HOLD TRACK FORKS EARLY", "XSHADOW HOLD FORKS EARLY", "XSHADOW TRACK FORKS EARLY", "XSHADOW FORKS EARLY"]


@pytest.mark.parametrize(("text", "identity"), HELLOS)
def test_a_hello_is_the_same_in_both_directions(text, identity):
    assert text == format_hello(identity)
    assert identity == parse_hello(text)


def test_keys_of_a_hello_come_in_any_order_and_case_and_unknown_ones_are_ignored():
    text = " ".join(reversed([f"{pair.split('=')[0].upper()}={pair.split('=')[1]}" for pair in HELLO.split(" ")]))

    assert parse_hello(f"colour=blue {text.replace(B, B.upper())} colour=red empty=") == HELLOS[1][1]


@pytest.mark.parametrize("key", ["server", "boundary", "database", "incarnation", "began", "position", "span"])
def test_a_hello_without_one_of_its_keys_is_refused(key):
    text = " ".join(pair for pair in HELLO.split(" ") if not pair.startswith(key))

    assert refusal(parse_hello, text) == f"501 5.5.4 XSHADOW without {key}="


@pytest.mark.parametrize("pair", HELLO.split(" "))
def test_a_hello_with_a_key_twice_is_refused(pair):
    assert refusal(parse_hello, f"{HELLO} {pair}") == f"501 5.5.4 XSHADOW with {pair.split('=')[0]}= twice"


@pytest.mark.parametrize(
    ("old", "new", "what"),
    [
        ("server=b", "server=", "server name"),
        ("server=b", "server=a..b", "server name"),
        ("server=b", "server=-a", "server name"),
        ("server=b", "server=" + "a." * 128, "server name"),
        ("server=b", "server=[::1]", "server name"),
        ("boundary=DAG+201", "boundary=", "boundary"),
        ("boundary=DAG+201", "boundary=+GG", "boundary"),
        ("boundary=DAG+201", "boundary=" + "x" * 65, "boundary"),
        (B, "1", "database id"),
        ("began=0", "began=-1", "began"),
        ("incarnation=0", "incarnation=9223372036854775808", "incarnation"),
        ("position=0", "position=00", "position"),
        ("span=0.25", "span=0", "span"),
        ("span=0.25", "span=0.0000001", "span"),
        ("span=0.25", "span=86400.1", "span"),
        ("span=0.25", "span=.5", "span"),
        ("span=0.25", "span=1e3", "span"),
        ("span=0.25", "span=\u0661", None),
        ("seen=3:120:4700", "seen=3:120", "seen"),
        ("seen=3:120:4700", "seen=3:120:4700:1", "seen"),
        ("seen=3:120:4700", "seen=", "seen"),
    ],
)
def test_a_hello_with_a_bad_value_is_refused(old, new, what):
    expected = "501 5.5.4 XSHADOW wants key=value" if what is None else f"501 5.5.4 Bad {what}"

    assert refusal(parse_hello, HELLO.replace(old, new)) == expected


@pytest.mark.parametrize("text", ["", " ", "HOLD", HELLO + "\r", HELLO + " x", HELLO.replace(" ", "  "), HELLO.replace(" ", "\t")])
def test_a_hello_that_is_not_pairs_is_refused(text):
    assert refusal(parse_hello, text) == "501 5.5.4 XSHADOW wants key=value"


STRANGE_SETTINGS = ["", "a", "a:", ":b", "a:b,", "a:b,,c:d", "a:b:c", "a" * 65 + ":b", "a:" + "b" * 65, ",".join(["a:b"] * 33)]


@pytest.mark.parametrize("value", STRANGE_SETTINGS)
def test_settings_that_are_not_understood_are_left_out_and_refuse_nobody(value):
    assert parse_hello(f"{HELLOS[0][0]} settings={value}") == PLAIN


def test_at_most_so_many_settings_of_such_a_length_are_read():
    pairs = tuple(("a" * 10 + str(number), "b" * 20) for number in range(32))

    assert pairs == parse_hello(format_hello(replace(PLAIN, common=pairs))).common
    assert refusal(parse_hello, f"{HELLO} settings=a:b settings=a:b") == "501 5.5.4 XSHADOW with settings= twice"


@pytest.mark.parametrize(("value", "is_draining"), [("draining", True), ("DRAINING", True), ("resting", False), ("", False)])
def test_a_state_that_is_not_known_means_nothing(value, is_draining):
    assert replace(PLAIN, is_draining=is_draining) == parse_hello(f"{HELLOS[0][0]} state={value}")


def test_a_state_is_said_once_and_only_while_draining():
    assert f"{HELLOS[0][0]} state=draining" == format_hello(replace(PLAIN, is_draining=True))
    assert refusal(parse_hello, f"{HELLO} state=draining state=draining") == "501 5.5.4 XSHADOW with state= twice"


def test_a_hello_is_bounded():
    assert refusal(parse_hello, HELLO + " x=" + "y" * 2_000) == "501 5.5.4 XSHADOW line too long"


@given(identities)
def test_any_identity_survives(identity):
    assert identity == parse_hello(format_hello(identity))


def test_a_copy_offers_its_number():
    text = f"HOLD:{ID}:1.2"

    assert text == format_hold(ID, CopyNumber(1, 2, A))
    assert (ID, CopyNumber(1, 2, A)) == parse_hold(text, A)
    assert (ID, CopyNumber(1, 2, A)) == parse_hold(text.upper(), A)


@pytest.mark.parametrize("value", ["TRACK", "track:x", f"TRACK:{ID}", f"TRACK:{ID}:1.2:3"])
def test_a_bad_track_is_refused_like_a_bad_hold(value):
    assert is_track(value)
    assert refusal(parse_hold, value, A) == "501 5.5.4 Bad XSHADOW parameter"


def test_track_is_the_hold_of_the_previous_hop():
    number = CopyNumber(1, 2, A)

    assert f"TRACK:{ID}:1.2" == format_hold(ID, number, is_tracked=True)
    assert (ID, number) == parse_hold(f"track:{ID}:1.2", A)
    assert not is_track(f"HOLD:{ID}:1.2")


@pytest.mark.parametrize(
    ("value", "what"),
    [
        ("", "XSHADOW parameter"),
        ("HOLD", "XSHADOW parameter"),
        (f"HOLD:{ID}", "XSHADOW parameter"),
        (f"KEEP:{ID}:1.2", "XSHADOW parameter"),
        (f"HOLD:{ID}:1.2:3", "XSHADOW parameter"),
        (f"HOLD:{ID}:1", "copy number"),
        (f"HOLD:{ID}:1.2.3", "copy number"),
        (f"HOLD:{ID}:1.x", "copy number"),
        (f"HOLD:{ID}:1.2 ", "copy number"),
        ("HOLD:1:1.2", "message id"),
    ],
)
def test_anything_else_is_no_copy(value, what):
    assert refusal(parse_hold, value, A) == f"501 5.5.4 Bad {what}"


@given(message_ids, ranks, ranks)
def test_any_copy_survives(message_id, ownership, placement):
    text = format_hold(message_id, CopyNumber(ownership, placement, A))

    assert (message_id, CopyNumber(ownership, placement, A)) == parse_hold(text, A)
    assert len(text) <= HOLD_OCTETS_MAX


@given(counters, st.binary(min_size=32, max_size=32))
def test_any_commit_survives(size, sha256):
    text = format_commit(size, sha256)

    assert (size, sha256) == parse_commit(text)
    assert (size, sha256) == parse_commit(text.upper())
    assert len(text) <= COMMIT_OCTETS_MAX


@pytest.mark.parametrize(
    "text",
    [
        "",
        "size=1",
        f"sha256={'0' * 64}",
        f"size=1 sha256={'0' * 63}",
        f"size=1 sha256={'0' * 65}",
        f"size=-1 sha256={'0' * 64}",
        f"size=1  sha256={'0' * 64}",
        f"size=1 sha256={'g' * 64}",
        f"size=1 sha256={'0' * 64}\n",
    ],
)
def test_anything_else_is_no_commit(text):
    assert refusal(parse_commit, text) == "501 5.5.4 XSHADOW COMMIT wants size= and sha256="


def test_a_commit_that_no_database_can_hold_is_refused():
    assert refusal(parse_commit, f"size=9999999999999999999 sha256={'0' * 64}") == "501 5.5.4 Bad size"


@given(counters)
def test_any_position_is_found_in_a_reply(position):
    assert position == parse_position(format_position(position))
    assert position == parse_position(f"2.0.0 Held {format_position(position)}")
    assert position == parse_position(f"position=1 x\nremaining=0 {format_position(position)}")


@pytest.mark.parametrize(
    "text", ["", "2.0.0 Held", "position=", "xposition=1", "position=1x", "position=-1", "position=01", "position=9223372036854775808"]
)
def test_a_reply_without_a_position_has_none(text):
    assert parse_position(text) is None


def received(sent, extras):
    return extras.envelope(sent.message_id, sent.sender, sent.recipients, sent.body, smtputf8=sent.smtputf8)


def test_an_envelope_carries_what_mail_and_rcpt_do_not():
    envelope = replace(
        ENVELOPE,
        client_address="192.0.2.1",
        client_name="client.example",
        connector="inbound",
        subject="Gr\u00fc\u00dfe\ud800",
        internet_message_id="<1@x>",
        date="Sun, 1 Mar 2026 12:00:00 +0100",
        original_client=format_original_client(OriginalClient("203.0.113.5", 40_000, "n" * 255, "é" * 30, "ESMTP", '"ann"', "10.0.0.1")),
        ret="FULL",
        envid="QQ314159",
    )
    extras = parse_envelope(format_envelope(envelope, frozenset({1, 3})))

    assert extras.done == frozenset({1, 3})
    assert received(ENVELOPE, extras) == replace(envelope, subject="Gr\u00fc\u00dfe\\ud800")


def test_an_envelope_without_anything_is_short():
    assert format_envelope(ENVELOPE, frozenset()) == encoded(b'{"arrived":"2026-11-21T12:00:00.250000Z"}')


def test_long_texts_are_cut_and_the_envelope_stays_within_its_limit():
    long = "\U0001f600" * 5_000
    envelope = replace(
        ENVELOPE,
        client_address=long,
        client_name=long,
        connector=long,
        internet_message_id=long,
        subject=long,
        date=long,
        ret="FULL",
        envid="x" * 100,
    )
    text = format_envelope(envelope, frozenset(range(1, 5_001, 2)))
    extras = parse_envelope(text)

    assert len(text) <= ENVELOPE_OCTETS_MAX
    assert long.startswith(extras.subject)
    assert 100 <= len(extras.subject) <= 125  # 1,500 octets at 12 a character, less at most an eighth
    assert extras.done == frozenset(range(1, 5_001, 2))


def test_a_message_id_as_long_as_a_header_line_is_not_cut():
    envelope = replace(ENVELOPE, internet_message_id="<" + "x" * 996 + ">")

    assert parse_envelope(format_envelope(envelope, frozenset())).internet_message_id == envelope.internet_message_id


def test_names_of_an_envelope_that_we_do_not_know_are_ignored():
    extras = parse_envelope(encoded({"arrived": "2026-11-21T12:00:00.250000Z", "priority": 3, "x": {"y": [1]}}))

    assert extras == EnvelopeExtras(ARRIVED)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "=",
        "A",
        "e30=",
        "e30 ",
        "\u00e9",
        encoded(b"{"),
        encoded(b"[]"),
        encoded(b"\xff\xfe"),
        encoded(b"[" * 6_000),
        encoded(b"1" * 5_000),
        encoded({}),
        encoded({"arrived": 1}),
        encoded({"arrived": "2026-11-21T12:00:00.250000Z", "subject": None}),
        encoded({"arrived": "2026-11-21T12:00:00.250000Z", "ret": "FULL\r\nRSET"}),
        encoded({"arrived": "2026-11-21T12:00:00.250000Z", "envid": "a b"}),
        encoded({"arrived": "2026-11-21T12:00:00.250000Z", "envid": "x" * 101}),
        "A" * 8_193,
    ],
)
def test_anything_else_is_no_envelope(text):
    assert refusal(parse_envelope, text) == BAD_ENVELOPE


@given(envelopes, ordinals)
def test_any_envelope_survives(envelope, done):
    text = format_envelope(envelope, done)
    extras = parse_envelope(text)

    assert received(ENVELOPE, extras) == replace(
        ENVELOPE,
        arrived_at=envelope.arrived_at,
        client_address=printable(envelope.client_address),
        client_name=printable(envelope.client_name),
        connector=printable(envelope.connector),
        internet_message_id=printable(envelope.internet_message_id),
        subject=printable(envelope.subject),
        date=printable(envelope.date),
        resubmitted_from=envelope.resubmitted_from,
        ret=envelope.ret,
        envid=envelope.envid,
    )
    assert extras.done == done
    assert len(text) <= ENVELOPE_OCTETS_MAX


@given(st.text(max_size=60) | st.from_regex(r"[a-z]{1,9}=[!-~]{0,9}( [a-z]{1,9}=[!-~]{0,9})*", fullmatch=True))
def test_any_text_is_read_or_refused(text):
    for name in ("parse_hello", "parse_commit", "parse_envelope"):
        assert (refusal(getattr(xshadow, name), text) or "501 5.5.4").startswith("501 5.5.4")
    assert (refusal(parse_hold, text, A) or "501 5.5.4")[:9] in ("501 5.5.4", "504 5.5.4")
    parse_form(text)
    parse_position(text)


@given(
    st.binary(max_size=200)
    | st.recursive(st.none() | st.text(max_size=9), lambda inner: st.lists(inner) | st.dictionaries(st.text(max_size=9), inner))
)
def test_any_content_of_an_envelope_is_read_or_refused(value):
    assert (refusal(parse_envelope, encoded(value)) or "501 5.5.4").startswith("501 5.5.4")
