"""A 5xx that says that a session lost its step returns no mail; one that refuses a sender, a recipient or a content does."""

import pytest

from shadowrelay.model.message import Recipient
from shadowrelay.model.replies import DeliveryError, Reply
from shadowrelay.model.routing import Destination
from shadowrelay.model.values import replace
from shadowrelay.smtp.call_ahead import question
from shadowrelay.smtp.client import ConnectOptions, open_session
from shadowrelay.smtp.client_session import SessionBroken
from shadowrelay.smtp.deliverer import SmtpDeliverer
from tests.kit.ledger import an_envelope
from tests.kit.smtp_servers import EXTENSIONS, ScriptedServer, serving
from tests.smtp.deliverers import a_deliverer, a_job, at, deliver, route


async def outcome_of(deliverer: SmtpDeliverer, destination: Destination, address: str = "user1@corp.example") -> Reply:
    """What becomes of a message for one recipient."""
    envelope = replace(an_envelope(), recipients=(Recipient(address),))
    try:
        report = await deliverer.deliver(a_job(destination, envelope))
    except DeliveryError as error:
        return error.reply
    return report.replies[1]


OUT_OF_STEP = [
    ("MAIL", "503 5.5.1 nested MAIL"), ("MAIL", "500 what"), ("MAIL", "502 5.5.2 not recognized"), ("MAIL", "503 AUTH first (#5.5.1)"),
    ("RCPT", "503 5.5.1 need MAIL"), ("RCPT", "503 5.0.0 Need MAIL before RCPT"), ("RCPT", "500 5.5.2 bad syntax"), ("RCPT", "502 no"),
    ("DATA", "503 5.5.1 need RCPT"), ("DATA", "554 5.5.1 no valid recipients"), ("DATA", "501 5.5.4 syntax: DATA"), ("DATA", "500 what"),
    ("DOT", "503 5.5.1 need MAIL"), ("DOT", "500 5.5.1 what"), ("DOT", "502 5.5.1 what"), ("DOT", "501 what"), ("DOT", "504 what"),
]  # fmt: skip


@pytest.mark.parametrize("extensions", [EXTENSIONS, ()], ids=["pipelined", "one by one"])
@pytest.mark.parametrize(("verb", "reply"), OUT_OF_STEP)
async def test_a_server_that_lost_step_returns_nothing_and_another_session_or_server_gets_the_mail(verb, reply, extensions):
    lost, other = ScriptedServer({verb: reply}, extensions), ScriptedServer()
    async with serving(lost, other), a_deliverer() as deliverer:
        alone = await outcome_of(deliverer, route(at(lost)))
        lost.script = {verb: [reply, "354 go" if verb == "DATA" else "250 ok"]}
        report = await deliver(deliverer, route(at(lost), at(other)))

    assert Reply(451, "4.5.1", f"The next hop is out of step: {reply}") == alone
    assert {1: 250} == {ordinal: reply.code for ordinal, reply in report.replies.items()}
    assert [1] == [len(other.messages)]


@pytest.mark.parametrize(
    ("verb", "reply"),
    [
        ("MAIL", "501 5.1.7 bad sender"), ("MAIL", "504 5.5.2 no name"), ("MAIL", "555 5.5.4 unsupported option"),
        ("RCPT", "501 5.1.3 bad recipient"), ("RCPT", "501 what"), ("RCPT", "504 5.5.2 need fully-qualified address"),
        ("RCPT", "555 5.5.2 syntax"), ("RCPT", "550 5.5.0 mailbox unavailable"), ("RCPT", "553 5.5.4 domain name required"),
        ("RCPT", "500 5.1.3 bad address"), ("RCPT", "503 5.2.1 disabled"), ("RCPT", "554 5.5.1 no"),
        ("RCPT", "500 5.3.0 failed"), ("DOT", "500 5.3.0 failed"),
        ("DATA", "554 5.7.1 no"), ("DATA", "550 no"), ("DOT", "554 5.6.0 no"), ("DOT", "500 5.6.1 no"), ("DOT", "550 5.5.1 no"),
    ],
)  # fmt: skip
async def test_what_refuses_this_sender_recipient_or_content_is_returned_at_once(verb, reply):
    server = ScriptedServer({verb: reply})
    async with serving(server), a_deliverer() as deliverer:
        refused = await outcome_of(deliverer, route(at(server)))

    assert reply == str(refused)


async def test_a_recipient_that_is_out_of_step_waits_in_a_fresh_session_while_the_others_get_the_message():
    server = ScriptedServer({"RCPT": ["250 ok", "503 5.5.1 bad sequence of commands", "550 5.1.1 nobody", "250 ok"]})
    async with serving(server), a_deliverer() as deliverer:
        report = await deliver(deliverer, route(at(server)), 3)
        await deliver(deliverer, route(at(server)))

    assert [250, 451, 550] == [reply.code for _, reply in sorted(report.replies.items())]
    assert 2 == len(server.sessions)


async def test_500_to_a_line_that_no_server_has_to_take_refuses_its_recipient():
    server = ScriptedServer({"RCPT": "500 5.5.2 Line too long"})
    async with serving(server), a_deliverer() as deliverer:
        replies = [await outcome_of(deliverer, route(at(server)), f"{'x' * octets}@corp.example") for octets in (600, 60)]

    assert [500, 451] == [reply.code for reply in replies]


CHUNKING = (*EXTENSIONS, "CHUNKING")
WAYS = [EXTENSIONS, (), CHUNKING]
WAYS_IDS = ["pipelined", "one by one", "chunks"]


@pytest.mark.parametrize("extensions", WAYS, ids=WAYS_IDS)
@pytest.mark.parametrize(
    "said",
    ["250 2.0.0 of RCPT\r\n452 4.2.2 full", "250 2.0.0 of RCPT\r\n550 5.7.1 no", "550 5.1.1 of RCPT\r\n250 2.0.0 taken",
     "220 test ESMTP", "221 2.0.0 bye", "354 go on"],
)  # fmt: skip
async def test_a_reply_that_may_be_that_to_another_command_neither_delivers_nor_returns(said, extensions):
    server = ScriptedServer({"BDAT": said, "DOT": said}, extensions)
    async with serving(server), a_deliverer() as deliverer:
        replies = [await outcome_of(deliverer, route(at(server))) for _ in range(2)]

    assert [451, 451] == [reply.code for reply in replies]


@pytest.mark.parametrize("extensions", WAYS, ids=WAYS_IDS)
@pytest.mark.parametrize("more", ["221 2.0.0 bye", "421 4.4.2 idle", "250 2.0.0 ok", "welcome"])
async def test_what_contradicts_no_reply_to_the_content_makes_no_duplicate(more, extensions):
    server = ScriptedServer({"BDAT": (said := f"250 2.0.0 taken\r\n{more}"), "DOT": said}, extensions)
    async with serving(server), a_deliverer() as deliverer:
        report = await deliver(deliverer, route(at(server)), 3)

    assert [250] * 3 == [reply.code for reply in report.replies.values()]


@pytest.mark.parametrize("surplus", ["250 2.0.0 ok", "550 5.1.1 no", "220 test ESMTP", "354 go on"])
@pytest.mark.parametrize(
    ("verb", "extensions"),
    [(verb, way) for verb in ("EHLO", "MAIL", "RCPT", "DATA") for way in WAYS if verb != "DATA" or way is not CHUNKING],
)
async def test_one_reply_too_many_returns_no_mail_and_counts_none_as_delivered(verb, surplus, extensions):
    """It comes with its own reply, or with the next one."""
    own = {"EHLO": "\r\n".join([f"250-{text}" for text in extensions] + ["250 HELP"]), "DATA": "354 go on"}.get(verb, "250 2.0.0 ok")
    for said in (f"{own}\r\n{surplus}", f"{surplus}\r\n{own}"):
        server = ScriptedServer({verb: [said, own], "DOT": "452 4.2.2 full", "BDAT": "452 4.2.2 full"}, extensions)
        async with serving(server), a_deliverer() as deliverer:
            try:
                codes = [reply.code for reply in (await deliver(deliverer, route(at(server)), 3)).replies.values()]
            except DeliveryError as error:
                codes = [error.reply.code]
        assert {4} == {code // 100 for code in codes}, said


async def test_the_reply_to_data_that_comes_for_rset_takes_the_refusal_before_it_back():
    server = ScriptedServer({"DATA": "550 5.1.1 of RCPT", "RSET": "354 go on\r\n250 2.0.0 ok"})
    async with serving(server), a_deliverer() as deliverer:
        assert 451 == (await outcome_of(deliverer, route(at(server)))).code


@pytest.mark.parametrize("extensions", [EXTENSIONS, ()], ids=["pipelined", "one by one"])
async def test_a_question_with_one_reply_too_many_is_no_answer(extensions):
    server = ScriptedServer({"MAIL": "250 2.1.0 ok\r\n550 5.1.1 no"}, extensions)
    async with serving(server):
        session = await open_session(at(server), "hop.example", ConnectOptions("me.example"))
        with pytest.raises(SessionBroken):
            await question("boss@corp.example", session, 5.0)
