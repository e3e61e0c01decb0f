"""One transaction with a next hop: what is said to it, what its replies mean, and what it gets byte for byte."""

import asyncio
import contextlib
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shadowrelay.model.message import BodyType, Content, Recipient
from shadowrelay.model.replies import DeliveryError, LeaseTooShort, PermanentDeliveryError, Reply, TransientDeliveryError
from shadowrelay.model.routing import HostPort
from shadowrelay.model.values import replace
from shadowrelay.smtp import client_session, delivery_transaction
from shadowrelay.smtp.client import ConnectOptions, TlsUse, open_session
from shadowrelay.smtp.data import DotStuffer, stuffed_with_end
from shadowrelay.smtp.delivery_transaction import DeliveryTransaction, Unfinished
from shadowrelay.smtp.outgoing_message import Limits, OutgoingMessage
from shadowrelay.smtp.tls import opportunistic_context
from tests.kit.clock import PATIENCE_SECONDS, until
from tests.kit.ledger import a_content, a_spooled_content, an_envelope
from tests.kit.smtp_servers import CLOSE, EXTENSIONS, HANG, ScriptedServer, serving
from tests.smtp.transactions import BODY, FULL, a_session, run, run_in, some_work

SENDER = an_envelope().sender
SHORT = Limits(command=0.2, data=0.2, block=0.2, dot=0.2)  # where the server never answers before the content
SHORT_AT_DOT = Limits(dot=0.2)


# what is said


async def test_sender_recipients_and_data_go_in_one_order_and_the_content_arrives_unchanged():
    server = ScriptedServer()

    result = await run(server, some_work(2, prefix=b"Received: by us\r\n"))

    assert {1: "250 2.0.0 taken", 2: "250 2.0.0 taken"} == result.replies
    assert [b"Received: by us\r\n" + BODY] == server.messages
    size = len(b"Received: by us\r\n" + BODY)
    expected = [
        "EHLO me.example",
        f"MAIL FROM:<{SENDER}> SIZE={size}",
        "RCPT TO:<user1@corp.example>",
        "RCPT TO:<user2@corp.example>",
        "DATA",
    ]
    assert expected == server.lines
    assert result.is_usable


async def test_without_pipelining_no_command_goes_before_the_last_one_is_answered():
    waiting: list[int] = []
    server = ScriptedServer(extensions=("8BITMIME",))
    server.script = {"RCPT": lambda line: waiting.append(len(server.lines)) or "250 ok"}  # type: ignore[func-returns-value]

    result = await run(server, some_work(3))

    assert [3, 4, 5] == waiting
    assert {1, 2, 3} == set(result.replies)


async def test_the_null_sender_is_angle_brackets_on_the_wire():
    server = ScriptedServer(extensions=())

    await run(server, some_work(sender=""))

    assert "MAIL FROM:<>" == server.lines[1]


async def test_dsn_parameters_are_passed_on_where_dsn_is_offered():
    server = ScriptedServer()
    recipients = (Recipient("r@b.example", notify="SUCCESS,FAILURE", orcpt="rfc822;o@c.example"),)

    await run(server, some_work(recipients=recipients, ret="HDRS", envid="abc+2B"))

    assert server.lines[1].endswith("RET=HDRS ENVID=abc+2B")
    assert "RCPT TO:<r@b.example> NOTIFY=SUCCESS,FAILURE ORCPT=rfc822;o@c.example" == server.lines[2]


async def test_dsn_parameters_are_dropped_where_dsn_is_not_offered():
    server = ScriptedServer(extensions=("PIPELINING",))

    await run(server, some_work(recipients=(Recipient("r@b.example", notify="NEVER"),), ret="HDRS", envid="e"))

    assert [f"MAIL FROM:<{SENDER}>", "RCPT TO:<r@b.example>"] == server.lines[1:3]


async def test_eight_bit_content_is_declared_even_if_its_client_did_not():
    server = ScriptedServer()

    await run(server, some_work(data=b"Subject: x\r\n\r\n\xc3\xa4\r\n"))

    assert server.lines[1].endswith("BODY=8BITMIME")


NO_UTF8 = "550 5.6.7 The message needs SMTPUTF8 and the next hop does not offer it"
NOT_OFFERED = [
    ("size", ("SIZE 10",), {}, BODY, "552 5.3.4 The message is larger than the next hop takes"),
    ("8bit", (), {}, b"x\r\n\r\n\xe4\r\n", "554 5.6.3 The content is 8-bit and the next hop does not offer 8BITMIME"),
    ("utf8 sender", (), {"sender": "ä@a.example", "smtputf8": True}, BODY, NO_UTF8),
    ("utf8 header", ("8BITMIME",), {"smtputf8": True}, b"Subject: \xc3\xa4\r\n\r\nx\r\n", NO_UTF8),
    ("bare LF", (), {}, b"a\n.\r\nMAIL FROM:<x>\r\n", "554 5.6.0 The content has a CR or LF that is not a line end"),
    ("bare LF in chunks", ("CHUNKING",), {}, b"a\n.\r\nMAIL FROM:<x>\r\n", "554 5.6.0 The content has a CR or LF that is not a line end"),
    ("bare CR", (), {}, b"a\r.\r\n", "554 5.6.0 The content has a CR or LF that is not a line end"),
    ("injection", (), {"sender": "a\r\nDATA"}, BODY, "554 5.5.2 The envelope cannot be written as SMTP commands"),
]


NOT_OFFERED_IDS = [case[0] for case in NOT_OFFERED]


@pytest.mark.parametrize(("extensions", "changes", "data", "expected"), [case[1:] for case in NOT_OFFERED], ids=NOT_OFFERED_IDS)
async def test_what_the_next_hop_cannot_take_is_refused_for_good_and_no_content_is_sent(extensions, changes, data, expected):
    server = ScriptedServer(extensions=extensions)

    result = await run(server, some_work(data=data, **changes))

    assert isinstance(result.error, PermanentDeliveryError)
    assert expected == str(result.error.reply)
    assert [] == server.messages


async def test_smtputf8_that_nothing_needs_is_not_asked_for():
    server = ScriptedServer(extensions=())

    result = await run(server, some_work(smtputf8=True))

    assert f"MAIL FROM:<{SENDER}>" == server.lines[1]
    assert {1: "250 2.0.0 taken"} == result.replies


BIG = 1_200_000
NOT_ASCII = "x\xe4".encode("latin-1")


@pytest.mark.parametrize("size", [10, BIG])
@pytest.mark.parametrize(
    ("header", "body", "changes", "expected"),
    [
        (b"x", b"x", {"smtputf8": True}, "taken"),
        (b"x", b"x", {"body": BodyType.EIGHT_BIT_MIME}, "taken"),
        (b"x", b"x", {"body": BodyType.EIGHT_BIT_MIME, "smtputf8": True}, "taken"),
        (b"x", NOT_ASCII, {"body": BodyType.EIGHT_BIT_MIME}, "5.6.3"),
        (NOT_ASCII, b"x", {"body": BodyType.EIGHT_BIT_MIME}, "5.6.3"),
        (NOT_ASCII, b"x", {"body": BodyType.EIGHT_BIT_MIME, "smtputf8": True}, "5.6.3"),
        (b"x", b"x", {"sender": "\u00e4@a.example", "smtputf8": True}, "5.6.7"),
    ],
)
async def test_a_message_of_any_size_needs_what_its_octets_need(
    size: int, header: bytes, body: bytes, changes: dict[str, object], expected: str, tmp_path: Path
) -> None:
    server = ScriptedServer(extensions=())
    data = b"Subject: " + header + b"\r\n\r\n" + (b"y" * 70 + b"\r\n") * (size // 72) + body + b"\r\n"
    content = a_spooled_content(tmp_path, data) if size == BIG else a_content(data)

    result = await run(server, replace(some_work(**changes), content=content))

    assert expected in str(result.replies or result.error)
    assert [data][: expected == "taken"] == server.messages


@pytest.mark.parametrize("size", [10, BIG])
async def test_8bit_content_goes_as_it_is_where_that_is_allowed(size: int, tmp_path: Path) -> None:
    server = ScriptedServer(extensions=())
    data = b"Subject: x\r\n\r\n" + (b"y" * 70 + b"\r\n") * (size // 72) + NOT_ASCII + b"\r\n"
    content = a_spooled_content(tmp_path, data) if size == BIG else a_content(data)
    work = replace(some_work(body=BodyType.EIGHT_BIT_MIME), content=content, may_send_8bit=True)

    result = await run(server, work)

    assert {1: "250 2.0.0 taken"} == result.replies
    assert f"MAIL FROM:<{SENDER}>" == server.lines[1]
    assert [data] == server.messages


# what the replies mean


@pytest.mark.parametrize("text", ["552 5.5.3 Too many recipients", "552 too many"])
@pytest.mark.parametrize("extensions", [EXTENSIONS, ()], ids=["pipelined", "one by one"])
async def test_552_to_a_recipient_is_for_another_transaction(extensions, text):
    server = ScriptedServer({"RCPT": ["250 ok", text, "550 5.1.1 no"]}, extensions)

    result = await run(server, some_work(3))

    assert {1: "250 2.0.0 taken", 2: text.replace("552 5.", "452 4.").replace("552", "452"), 3: "550 5.1.1 no"} == result.replies


async def test_552_to_the_content_stays_final():
    assert {1: "552 5.3.4 too big"} == (await run(ScriptedServer({"DOT": "552 5.3.4 too big"}), some_work())).replies


@pytest.mark.parametrize("verb", ["MAIL", "RCPT"])
@pytest.mark.parametrize("extensions", [EXTENSIONS, ()], ids=["pipelined", "one by one"])
async def test_a_demand_for_tls_after_tls_failed_is_no_reason_to_return_mail(extensions, verb):
    server = ScriptedServer({verb: "530 5.7.0 Must issue STARTTLS first"}, (*extensions, "STARTTLS"))
    async with serving(server):
        options = ConnectOptions("me.example", TlsUse.OPPORTUNISTIC, opportunistic_context())
        session = await open_session(HostPort("127.0.0.1", server.port), "hop.example", options)
        result = await run_in(session, some_work())
        session.pipeline.abort()

    said = result.replies.get(1) or str(result.error.reply)
    assert said.startswith("451 4.7.5 TLS could not be negotiated")
    assert "530 5.7.0 Must issue STARTTLS first" in said
    assert not isinstance(result.error, PermanentDeliveryError)


async def test_a_demand_for_tls_that_the_server_does_not_offer_is_final():
    result = await run(ScriptedServer({"MAIL": "530 5.7.0 Must issue STARTTLS first"}), some_work())

    assert isinstance(result.error, PermanentDeliveryError)


@pytest.mark.parametrize("extensions", [EXTENSIONS, ()], ids=["pipelined", "one by one"])
async def test_each_refused_recipient_has_its_own_reply_and_the_others_the_final_one(extensions):
    server = ScriptedServer({"RCPT": ["550 5.1.1 no such user", "250 ok", "452 4.2.2 full"]}, extensions)

    result = await run(server, some_work(3))

    assert {1: "550 5.1.1 no such user", 2: "250 2.0.0 taken", 3: "452 4.2.2 full"} == result.replies
    assert [BODY] == server.messages


async def test_a_multi_line_reply_is_one_text_with_one_enhanced_code():
    server = ScriptedServer({"DOT": "550-5.7.1 first\r\n550-5.7.1 second\r\n550 5.7.1 third"})

    result = await run(server, some_work())

    assert {1: "550 5.7.1 first second third"} == result.replies
    assert result.is_usable


@pytest.mark.parametrize("extensions", [EXTENSIONS, ()], ids=["pipelined", "one by one"])
async def test_nothing_is_sent_when_all_recipients_are_refused_and_the_session_serves_again(extensions):
    data = ["554 5.5.1 no recipients", "354 go"] if extensions else "354 go"
    server = ScriptedServer({"RCPT": ["550 no", "551 no", "250 ok"], "DATA": data}, extensions)

    async with a_session(server) as session:
        first = await run_in(session, some_work(2))
        second = await run_in(session, some_work(1))

    assert {1: "550 no", 2: "551 no"} == first.replies
    assert {1: "250 2.0.0 taken"} == second.replies
    assert [BODY] == server.messages
    assert 1 == server.lines.count("RSET")


async def test_data_accepted_for_nobody_is_ended_by_a_lone_dot():
    server = ScriptedServer({"RCPT": ["550 no", "250 ok"], "DOT": ["554 5.5.1 no valid recipients", "250 taken"]})

    async with a_session(server) as session:
        first = await run_in(session, some_work(1))
        second = await run_in(session, some_work(1))

    assert {1: "550 no"} == first.replies
    assert [b"", BODY] == server.messages
    assert {1: "250 taken"} == second.replies


@pytest.mark.parametrize("extensions", [EXTENSIONS, ()], ids=["pipelined", "one by one"])
@pytest.mark.parametrize("verb", ["MAIL", "DATA"])
@pytest.mark.parametrize(("reply", "kind"), [("451 4.7.1 later", TransientDeliveryError), ("550 5.7.1 never", PermanentDeliveryError)])
async def test_a_refused_sender_or_content_decides_for_all_and_keeps_the_session(extensions, verb, reply, kind):
    script = {verb: [reply, "354 go" if verb == "DATA" else "250 ok"]}
    if verb == "MAIL" and extensions:
        script |= {"RCPT": ["503 no mail", "250 ok"], "DATA": ["503 no mail", "354 go"]}
    server = ScriptedServer(script, extensions)

    async with a_session(server) as session:
        first = await run_in(session, some_work())
        second = await run_in(session, some_work())

    assert kind is type(first.error)
    assert isinstance(first.error, DeliveryError)
    assert (reply, False) == (str(first.error.reply), first.error.is_connection)
    assert {1: "250 2.0.0 taken"} == second.replies


async def test_a_refusal_counts_although_the_server_closes_right_behind_it():
    server = ScriptedServer({"MAIL": "554 5.7.1 go away", "RCPT": CLOSE})

    result = await run(server, some_work())

    assert isinstance(result.error, PermanentDeliveryError)
    assert "554 5.7.1 go away" == str(result.error.reply)


HANGS_WHEN_ALL_IS_DECIDED = [
    ({"RCPT": "550 no", "DATA": "354 go", "DOT": HANG}, "550 no"),
    ({"RCPT": "550 no", "DATA": "354 go", "DOT": CLOSE}, "550 no"),
    ({"RCPT": "550 no", "DATA": HANG, "RSET": HANG}, "550 no"),
    ({"RCPT": "550 no", "DATA": CLOSE, "RSET": CLOSE}, "550 no"),
    ({"RCPT": "550 no", "DATA": "hello", "RSET": "hello"}, "550 no"),
    ({"RCPT": "550 no", "DATA": "421 4.7.0 enough", "RSET": "421 4.7.0 enough"}, "550 no"),
    ({"RCPT": "550 no", "DATA": "503 no", "RSET": HANG}, "550 no"),
    ({"RCPT": "550 no", "DATA": "503 no", "RSET": "451 no"}, "550 no"),
    ({"DATA": "554 no", "RSET": HANG}, "554 no"),
    ({"MAIL": "550 no", "RCPT": "503 no", "DATA": HANG}, "550 no"),
    ({"MAIL": "550 no", "RCPT": "503 no", "DATA": CLOSE}, "550 no"),
    ({"MAIL": "550 no", "RCPT": "250 ok", "DATA": CLOSE}, "550 no"),
]


@pytest.mark.parametrize("extensions", [EXTENSIONS, ()], ids=["pipelined", "one by one"])
@pytest.mark.parametrize(("script", "reply"), HANGS_WHEN_ALL_IS_DECIDED, ids=[str(case[0]) for case in HANGS_WHEN_ALL_IS_DECIDED])
async def test_a_refusal_counts_whatever_the_server_does_after_it(script, reply, extensions, monkeypatch):
    monkeypatch.setattr(delivery_transaction, "SETTLE_SECONDS", 0.1)

    result = await run(ScriptedServer(script, extensions), some_work())

    if result.error is None:
        assert {1: reply} == result.replies
    else:
        assert isinstance(result.error, PermanentDeliveryError)
        assert reply == str(result.error.reply)


async def test_refused_recipients_are_known_although_the_session_breaks_at_data():
    result = await run(ScriptedServer({"RCPT": ["550 no", "250 ok"], "DATA": CLOSE}), some_work(2))

    assert {1: "550 no"} == result.replies
    assert isinstance(result.error, Unfinished)


# sessions that break

MUCH = 1_200_000
BROKEN = [
    ("garbage", "hello there"),
    ("code too high", "650 what"),
    ("code too low", "150 what"),
    ("no code", "25 short"),
    ("glued", "250no space"),
    ("eight bit garbage", "\udcff\udcfe\udc80"),
    ("continue out of place", "354 go on"),
    ("endless line", "250 " + "x" * MUCH),
    ("endless line that is no reply", "x" * 5000),
    ("endless reply", "\r\n".join(["250-" + "x" * 900] * (MUCH // 900))),
    ("closing", "421 4.3.2 shutting down"),
    ("end", CLOSE),
    ("silence", HANG),
    ("two replies", "250 one\r\n250 two"),
]


EVERYWHERE = [(verb, *case) for verb in ("MAIL", "RCPT", "DATA") for case in BROKEN if (verb, case[1]) != ("DATA", "354 go on")]


@pytest.mark.parametrize(
    ("verb", "reply"), [(case[0], case[2]) for case in EVERYWHERE], ids=[f"{case[1]} to {case[0]}" for case in EVERYWHERE]
)
@pytest.mark.parametrize("extensions", [EXTENSIONS, ()], ids=["pipelined", "one by one"])
async def test_a_session_that_breaks_before_the_content_ends_the_attempt_and_nothing_is_delivered(verb, reply, extensions, monkeypatch):
    monkeypatch.setattr(client_session, "NONSENSE_SECONDS", 0.05)  # without PIPELINING another line may be the reply
    if reply == "250 one\r\n250 two" and extensions:
        reply = "250 one\r\n250 two\r\n250 three\r\n250 four"
    server = ScriptedServer({verb: reply}, extensions)

    result = await run(server, some_work(limits=SHORT if reply == HANG else FULL))

    assert isinstance(result.error, Unfinished)
    assert 451 == result.error.error.reply.code or "421 4.3.2 shutting down" == str(result.error.error.reply)
    assert (False, False) == (result.error.dot_sent, result.is_usable)
    assert [] == server.messages


@pytest.mark.parametrize("reply", [case[1] for case in BROKEN[:-3]], ids=[case[0] for case in BROKEN[:-3]])
async def test_nonsense_after_the_dot_leaves_open_whether_it_was_delivered(reply):
    server = ScriptedServer({"DOT": reply})

    result = await run(server, some_work())

    if reply.startswith("421"):  # an answer: it was not taken
        assert {1: reply} == result.replies
    else:
        assert isinstance(result.error, Unfinished)
        assert result.error.dot_sent
    assert not result.is_usable


@pytest.mark.parametrize("reply", [CLOSE, HANG])
async def test_no_answer_to_the_dot_leaves_open_whether_it_was_delivered(reply):
    server = ScriptedServer({"DOT": reply, "RCPT": ["550 no", "250 ok"]})

    result = await run(server, some_work(2, limits=SHORT_AT_DOT))

    assert isinstance(result.error, Unfinished)
    assert result.error.dot_sent
    assert Reply(451, "4.4.2", result.error.error.reply.text) == result.error.error.reply
    assert {1: "550 no"} == result.replies
    assert [BODY] == server.messages


UNDERSTOOD = {
    "two CRs": "250 ok\r",
    "two CRs in two lines": "250-a\r\r\n250 b\r\r",
    "codes that differ": "250-a\r\n251 b",
    "a CR": "250 a\rb",
    "a code": "250",
    "an empty line before it": "\r\n250 ok",
    "empty lines behind it": "250 ok\r\n\r\n\n",
    "an empty line within": "250-a\r\n\r\n250 b",
    "a line of 5 kB": "250 " + "x" * 5_000,
    "a line of 300 kB": "250 " + "x" * 300_000,
    "a line of 4096 octets": "250 " + "x" * 4_090,
    "a line of 4097 octets": "250 " + "x" * 4_091,
    "CRs": "250" + "\r" * 5_000,
    "a long line among others": "250-a\r\n250-" + "x" * 10_000 + "\r\n250 b",
    "many lines": "\r\n".join(["250-" + "x" * 900] * 40 + ["250 end"]),
    "many long lines": "\r\n".join(["250-" + "x" * 5_000] * 40 + ["250 " + "y" * 5_000]),
    "many short lines": "\r\n".join(["250-"] * 20_000 + ["250 end"]),
}


@pytest.mark.parametrize("extensions", [EXTENSIONS, ()], ids=["pipelined", "one by one"])
@pytest.mark.parametrize("reply", UNDERSTOOD.values(), ids=UNDERSTOOD)
async def test_a_reply_that_others_understand_is_understood(reply, extensions):
    server = ScriptedServer(dict.fromkeys(("MAIL", "RCPT", "DOT"), reply) | {"DATA": "354 go\r"}, extensions)

    result = await run(server, some_work())

    assert result.error is None
    assert [BODY] == server.messages
    assert result.replies[1].startswith("25")
    assert result.is_usable


@pytest.mark.parametrize("extensions", [EXTENSIONS, ()], ids=["pipelined", "one by one"])
@pytest.mark.parametrize("reply", ["250-a\r\n550 b", "450-a\r\n550 b", "250-a\r\n450 b", "550-a\r\n451 b"])
@pytest.mark.parametrize("verb", ["MAIL", "RCPT", "DATA", "DOT"])
async def test_nothing_is_returned_by_a_reply_of_which_a_line_says_otherwise(verb, reply, extensions):
    server = ScriptedServer({verb: reply}, extensions)

    result = await run(server, some_work())

    said = result.replies.get(1, "") or str(result.error.reply)  # type: ignore[union-attr]
    assert said.startswith("45")
    assert BODY not in server.messages[verb == "DOT" :]


@pytest.mark.parametrize("extensions", [EXTENSIONS, ()], ids=["pipelined", "one by one"])
@pytest.mark.parametrize("reply", ["550-a\r\n250 b", "450-a\r\n250 b", "354-a\r\n250 b"])
async def test_of_the_codes_of_a_reply_the_last_one_counts_and_the_reply_to_the_content_must_not_deny_itself(reply, extensions):
    server = ScriptedServer(dict.fromkeys(("EHLO", "MAIL", "RCPT"), reply) | {"DATA": "550-a\r\n354 b"}, extensions)

    assert {1: "250 2.0.0 taken"} == (await run(server, some_work())).replies

    result = await run(ScriptedServer({"DOT": reply}, extensions), some_work())
    if reply.startswith("354"):
        assert {1: "250 a b"} == result.replies
    else:
        assert isinstance(result.error, Unfinished)
        assert result.error.dot_sent


NONSENSE = ["hello there", "250no space", "25 short", "650 what", "\udcff\udcfe", "x" * 20_000, "a\r\nb\r\nc"]


@pytest.mark.parametrize("seconds_per_octet", [0.0, 0.0001])
@pytest.mark.parametrize("nonsense", NONSENSE, ids=range(len(NONSENSE)))
async def test_without_pipelining_lines_that_are_no_reply_do_not_count(nonsense, seconds_per_octet):
    seconds_per_octet *= len(nonsense) < 1_000
    replies = dict.fromkeys(("MAIL", "RCPT", "DOT"), f"{nonsense}\r\n250-a\r\n{nonsense}\r\n250 b\r\n{nonsense}")
    script = replies | {"EHLO": f"250-me\r\n250 8BITMIME\r\n{nonsense}", "DATA": f"{nonsense}\r\n354 go"}
    server = ScriptedServer(script, seconds_per_octet=seconds_per_octet)

    result = await run(server, some_work())

    assert {1: "250 a b"} == result.replies
    assert result.is_usable
    assert [BODY] == server.messages


async def test_a_success_before_the_content_is_none_for_the_content():
    result = await run(ScriptedServer({"DATA": "354 go\r\n250 queued"}), some_work())

    assert isinstance(result.error, Unfinished)
    assert not result.error.dot_sent
    assert "unexpected data: '250 queued" in result.error.error.reply.text


@pytest.mark.parametrize("extensions", [EXTENSIONS, ()], ids=["pipelined", "one by one"])
@pytest.mark.parametrize("reply", ["350 go", "355 go", "354-a\r\n354 b", "399"])
async def test_any_code_that_means_go_on_lets_the_content_follow(reply, extensions):
    server = ScriptedServer({"DATA": reply}, extensions)

    result = await run(server, some_work())

    assert {1: "250 2.0.0 taken"} == result.replies
    assert result.is_usable


GREETINGS = ["250 hi", "200 x", "220", "228-a\r\n228 b", "\r\n220 x", "\r\n\r\n250-a\r\n\r\n250 b", "220-\r\n220 "]


@pytest.mark.parametrize("seconds_per_octet", [0.0, 0.001])
@pytest.mark.parametrize("greeting", GREETINGS)
async def test_a_greeting_that_others_understand_is_understood(greeting, seconds_per_octet):
    server = ScriptedServer({"GREETING": greeting}, seconds_per_octet=seconds_per_octet)

    assert {1: "250 2.0.0 taken"} == (await run(server, some_work())).replies


@pytest.mark.parametrize("reply", ["251 s", "220-s\r\n220 PIPELINING", "354 s", "451 s", "450-s\r\n450 s", "500 s", "550 s"])
async def test_a_server_that_does_not_answer_ehlo_with_250_is_asked_by_helo(reply):
    server = ScriptedServer({"EHLO": reply})

    assert {1: "250 2.0.0 taken"} == (await run(server, some_work())).replies
    assert "HELO me.example" == server.lines[1]


@pytest.mark.parametrize("size", [1, 3, 4_095, 4_096, 4_097, 100_000])
async def test_a_long_reply_is_understood_however_it_is_cut_on_the_way(size):
    replies = "".join(f"{text}\r\n" for text in UNDERSTOOD.values()).encode()

    async with a_session(ScriptedServer()) as session:
        pipeline, whole = session.pipeline, len(UNDERSTOOD)
        pipeline.write(b"", whole)
        for start in range(0, len(replies), size):
            pipeline.data_received(replies[start : start + size])
            pipeline._batch_octets = 0  # as if each were read at once
        answers = await pipeline.answers(whole, PATIENCE_SECONDS)

    assert {250, 251} == {answer.code for answer in answers}
    assert [max(map(len, answer.lines)) <= 4_096 for answer in answers] == [True] * whole


async def test_a_reply_that_nobody_asked_for_ends_the_session():
    server = ScriptedServer({"NOOP": "250 ok\r\n250 unasked"})

    async with a_session(server) as session:
        session.pipeline.write(b"NOOP\r\n", 1)
        await session.pipeline.answer(PATIENCE_SECONDS)
        await session.pipeline.closed()

        assert not session.pipeline.is_usable


async def test_the_dot_is_not_sent_when_the_lease_would_end_before_its_reply():
    server = ScriptedServer()
    work = replace(some_work(), may_end_data=lambda: False)

    result = await run(server, work)

    assert isinstance(result.error, LeaseTooShort)
    assert [] == server.messages
    assert not result.is_usable


@pytest.mark.parametrize("is_large", [False, True])
async def test_the_content_is_marked_as_handled_only_by_steps_that_wait_for_nothing(is_large: bool, tmp_path: Path):
    """A process that is killed while it waits for the next hop did not die of the message."""
    handled: list[bool] = []
    waited: list[bool] = []

    @contextlib.contextmanager
    def handling() -> Iterator[None]:
        handled.append(True)
        yield
        handled.append(False)

    async def watch() -> None:  # runs whenever the transaction waits for anything
        while True:
            waited.append(bool(handled) and handled[-1])
            await asyncio.sleep(0)

    server = ScriptedServer({"DOT": HANG})
    content = a_content(BODY * (40_000 if is_large else 1))
    if is_large:
        (tmp_path / "content").write_bytes(content.data or b"")
        content = replace(content, data=None, path=tmp_path / "content")
    work = replace(some_work(limits=SHORT_AT_DOT), content=content, handling=handling)

    watching = asyncio.create_task(watch())
    result = await run(server, work)
    watching.cancel()

    assert isinstance(result.error, Unfinished)
    assert 1 == len(server.messages)
    assert [True, False] * (len(handled) // 2) == handled
    assert len(handled) >= (12 if is_large else 2)
    assert {False} == set(waited)


# content


async def test_a_large_content_is_streamed_from_its_file(tmp_path: Path):
    data = (b"." * 70 + b"\r\n") * 20_000
    asked: list[int] = []
    server = ScriptedServer()
    content = a_spooled_content(tmp_path, data)
    work = OutgoingMessage(an_envelope(), (1,), content, b"Received: x\r\n", lambda: asked.append(len(server.messages)) is None)

    result = await run(server, work)

    assert {1: "250 2.0.0 taken"} == result.replies
    assert [b"Received: x\r\n" + data] == server.messages
    assert [0] == asked


async def test_a_content_file_that_is_gone_is_our_trouble_and_transient(tmp_path: Path):
    content = Content(5, b"", path=tmp_path / "gone")
    work = OutgoingMessage(an_envelope(), (1,), content, b"", lambda: True)

    result = await run(ScriptedServer(), work)

    assert isinstance(result.error, TransientDeliveryError)
    assert "4.3.0" == result.error.reply.enhanced
    assert not result.is_usable


LINE = st.binary(max_size=6).map(lambda line: line.replace(b"\r", b".").replace(b"\n", b"."))
LINES = st.lists(LINE | st.sampled_from([b".", b"..", b""]), max_size=12)


def unstuffed(stream: bytes) -> bytes:
    """A strict reading of RFC 5321 4.5.2: line by line up to the dot, which must be the very end."""
    lines = stream.split(b"\r\n")
    end = lines.index(b".")
    assert [b""] == lines[end + 1 :]
    return b"".join((line[1:] if line.startswith(b".") else line) + b"\r\n" for line in lines[:end])


@given(lines=LINES, has_end=st.booleans())
def test_a_strict_reader_gets_every_content_back_byte_for_byte(lines: list[bytes], has_end: bool):
    data = b"\r\n".join(lines) + (b"\r\n" if has_end and lines else b"")

    received = unstuffed(stuffed_with_end(data))

    assert (data if data.endswith(b"\r\n") or not data else data + b"\r\n") == received


@given(lines=LINES, cuts=st.lists(st.integers(0, 60), max_size=6), is_checked=st.booleans())
@settings(suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow])
def test_blocks_cut_anywhere_make_the_same_stream(lines: list[bytes], cuts: list[int], is_checked: bool):
    data = b"".join(line + b"\r\n" for line in lines)
    places = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    stuffer = DotStuffer("x", is_checked=is_checked)

    parts = [stuffer.feed(data[start:end]) for start, end in pairwise(places)]

    assert stuffed_with_end(data) == b"".join((*parts, stuffer.end()))


def test_a_bare_line_end_is_refused_wherever_the_blocks_are_cut():
    for cut in range(6):
        data = b"ab\rcd\n"
        stuffer = DotStuffer("x")
        with pytest.raises(PermanentDeliveryError, match="not a line end"):
            _all_of(stuffer, data[:cut], data[cut:])


def _all_of(stuffer: DotStuffer, *blocks: bytes) -> None:
    for block in blocks:
        stuffer.feed(block)
    stuffer.end()


# cancellation


async def test_a_cancelled_attempt_ends_its_session_wherever_it_was():
    server = ScriptedServer({"DOT": HANG})

    async with a_session(server) as session:
        task = asyncio.ensure_future(DeliveryTransaction(session, some_work()).run())
        await until(lambda: server.messages)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await until(lambda: server.open_count == 0)

        assert not session.pipeline.is_usable
