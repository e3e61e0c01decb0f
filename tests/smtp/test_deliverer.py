"""Whom delivery tries, in which order, over which session; and that nothing is left open."""

import asyncio
import contextlib
import gc
import ssl
from datetime import timedelta

import pytest
import structlog
import trustme

from shadowrelay.model.message import Content
from shadowrelay.model.replies import ContentCorrupt, LeaseTooShort, PermanentDeliveryError, Reply, TransientDeliveryError
from shadowrelay.model.routing import Destination, HostPort
from shadowrelay.model.values import replace
from shadowrelay.ports import DeliveryReport
from shadowrelay.smtp.client import ConnectOptions, dial
from shadowrelay.smtp.deliverer import MESSAGES_PER_SESSION_MAX, SmtpDeliverer
from shadowrelay.smtp.limits import Descriptors
from shadowrelay.smtp.outgoing_message import OutgoingMessage
from shadowrelay.smtp.resolver import Exchange
from shadowrelay.smtp.tls import opportunistic_context
from tests.kit.clock import PATIENCE_SECONDS, until
from tests.kit.ledger import a_content, an_envelope
from tests.kit.nodes import in_virtual_time
from tests.kit.smtp_servers import CLOSE, HANG, CancelledAt, ScriptedServer, cancelled_at, serving
from tests.smtp.deliverers import BODY, CONTENT, TAKEN, Zone, a_deliverer, a_job, at, deliver, route

NOBODY_THERE = HostPort("127.0.0.1", 1)


@pytest.mark.parametrize(("sends_8bit", "inside", "is_sent"), [(True, False, True), (False, False, False), (False, True, True)])
async def test_8bit_content_is_returned_only_outside_the_boundary_and_where_the_setting_says_so(
    sends_8bit: bool, inside: bool, is_sent: bool
) -> None:
    server = ScriptedServer(extensions=("PIPELINING",))
    async with serving(server), a_deliverer(sends_8bit=sends_8bit) as deliverer:
        job = a_job(replace(route(at(server)), inside_boundary=inside), an_envelope(), content=a_content(b"Subject: x\r\n\r\n\xe4\r\n"))
        with contextlib.nullcontext() if is_sent else pytest.raises(PermanentDeliveryError, match="8BITMIME"):
            await deliverer.deliver(job)

    assert is_sent == bool(server.messages)


# sessions


@pytest.mark.parametrize("is_utf8", [True, False], ids=["SMTPUTF8", "TLS"])
async def test_what_an_extension_is_needed_for_is_not_returned_where_ehlo_was_put_off(is_utf8: bool):
    server = ScriptedServer({"EHLO": ["451 4.3.0 busy", "250-x\r\n250 SMTPUTF8"], "MAIL": ["530 5.7.0 STARTTLS first", "250 ok"][is_utf8:]})
    envelope = an_envelope(sender="ä@a.example", smtputf8=True) if is_utf8 else an_envelope()
    async with serving(server), a_deliverer() as deliverer:
        with pytest.raises(TransientDeliveryError) as caught:
            await deliverer.deliver(a_job(route(at(server)), envelope))

    assert "451 4.3.0 busy" == str(caught.value.reply)
    assert "HELO me.example" == server.lines[1]


async def test_the_report_names_the_server_and_each_recipients_reply():
    server = ScriptedServer({"RCPT": ["250 ok", "550 5.1.1 no"]})
    async with serving(server), a_deliverer() as deliverer:
        report = await deliver(deliverer, Destination("k", (HostPort("localhost", server.port),)), 2)

    assert DeliveryReport(f"localhost [127.0.0.1]:{server.port}", {1: TAKEN, 2: Reply(550, "5.1.1", "no")}) == report


@pytest.mark.parametrize("extensions", [("DSN",), ()])
async def test_the_report_says_whether_the_next_hop_was_told_of_dsn_wishes(extensions):
    server = ScriptedServer(extensions=extensions)
    async with serving(server), a_deliverer() as deliverer:
        report = await deliver(deliverer, route(at(server)))

    assert bool(extensions) == report.passes_dsn


async def test_a_server_that_hangs_up_instead_of_greeting_is_said_to_have_done_that():
    server = ScriptedServer({"GREETING": CLOSE})
    async with serving(server), a_deliverer() as deliverer:
        with pytest.raises(TransientDeliveryError) as caught:
            await deliver(deliverer, route(at(server)))

    assert Reply(451, "4.4.2", "Connection lost before the greeting") == caught.value.reply


async def test_without_a_descriptor_to_spare_no_next_hop_is_connected_to():
    server = ScriptedServer()
    async with serving(server):
        with pytest.raises(OSError, match="as many connections open as it may"):
            await dial(at(server), refuses=Descriptors(0).refuses_next_hop)
        connection = await dial(at(server), refuses=Descriptors(20_000).refuses_next_hop)
        connection.close()

    assert 1 == len(server.sessions)


async def test_a_session_serves_many_messages_and_then_takes_leave():
    server = ScriptedServer()
    async with serving(server), a_deliverer() as deliverer:
        for _ in range(MESSAGES_PER_SESSION_MAX + 1):
            await deliver(deliverer, route(at(server)))
        await until(lambda: server.open_count == 1)

    assert [MESSAGES_PER_SESSION_MAX, 1] == [session.lines.count("DATA") for session in server.sessions]
    assert "QUIT" == server.sessions[0].lines[-1]


async def test_no_more_sessions_are_open_than_a_destination_may_have():
    server = ScriptedServer()
    async with serving(server), a_deliverer(concurrency=3) as deliverer:
        await asyncio.gather(*(deliver(deliverer, route(at(server))) for _ in range(30)))

    assert 30 == len(server.messages)
    assert 3 == server.open_count_max


async def test_an_idle_session_is_closed_after_its_time():
    server = ScriptedServer()
    async with serving(server), a_deliverer(idle_seconds=0.02) as deliverer:
        await deliver(deliverer, route(at(server)))
        await until(lambda: server.open_count == 0)

    assert "QUIT" == server.lines[-1]


@pytest.mark.parametrize("failure", [CLOSE, "421 4.4.2 idle for too long"])
async def test_a_session_that_went_stale_is_replaced_once_and_nobody_notices(failure):
    server = ScriptedServer({"MAIL": ["250 ok", failure, "250 ok"]})
    async with serving(server), a_deliverer() as deliverer:
        await deliver(deliverer, route(at(server)))
        report = await deliver(deliverer, route(at(server)))

    assert {1: TAKEN} == report.replies
    assert (2, 2) == (len(server.sessions), len(server.messages))


async def test_a_fresh_session_that_breaks_is_not_tried_again():
    server = ScriptedServer({"MAIL": CLOSE})
    async with serving(server), a_deliverer() as deliverer:
        with pytest.raises(TransientDeliveryError) as caught:
            await deliver(deliverer, route(at(server)))

    assert (True, False) == (caught.value.is_connection, caught.value.dot_sent_unanswered)
    assert 1 == len(server.sessions)


async def test_after_the_dot_nothing_is_repeated():
    server = ScriptedServer({"DOT": ["250 2.0.0 taken", CLOSE]})
    async with serving(server), a_deliverer() as deliverer:
        await deliver(deliverer, route(at(server)))
        with pytest.raises(TransientDeliveryError, match="Connection lost") as caught:
            await deliver(deliverer, route(at(server)))

    assert caught.value.dot_sent_unanswered
    assert 2 == len(server.messages)


async def test_refusals_stand_when_the_dot_gets_no_answer():
    server = ScriptedServer({"RCPT": ["550 5.1.1 no", "250 ok"], "DOT": CLOSE})
    async with serving(server), a_deliverer() as deliverer:
        report = await deliver(deliverer, route(at(server)), 2)

    assert (550, 451, True) == (report.replies[1].code, report.replies[2].code, report.dot_sent_unanswered)


async def test_a_lease_that_is_too_short_ends_the_attempt():
    server = ScriptedServer()
    async with serving(server), a_deliverer() as deliverer:
        with pytest.raises(LeaseTooShort):
            await deliver(deliverer, route(at(server)), may_end=False)
        await until(lambda: server.open_count == 0)

    assert [] == server.messages


# whom to try


@pytest.mark.parametrize("greeting", ["421 busy", "554 no service", "garbage", CLOSE])
async def test_an_alternate_route_is_tried_when_the_first_does_not_greet(greeting):
    first, second = ScriptedServer({"GREETING": greeting}), ScriptedServer()
    async with serving(first, second), a_deliverer() as deliverer:
        report = await deliver(deliverer, route(at(first), at(second)))

    assert f"127.0.0.1 [127.0.0.1]:{second.port}" == report.server


async def test_a_host_that_failed_lately_is_tried_last():
    first, second = ScriptedServer({"GREETING": "421 busy"}), ScriptedServer()
    async with serving(first, second), a_deliverer() as deliverer:
        for _ in range(3):
            await deliver(deliverer, route(at(first), at(second)))

    assert (1, 3) == (len(first.sessions), len(second.messages))


@in_virtual_time
async def test_a_host_that_let_us_wait_in_vain_is_left_alone_where_there_is_another():
    dials: list[str] = []

    async def dial(host: HostPort):
        dials.append(host.host)
        if host.host == "192.0.2.1":
            await asyncio.Event().wait()
        raise ConnectionRefusedError

    deliverer = SmtpDeliverer(
        ConnectOptions("me.example", dial=dial, connect_seconds=1.0),
        Zone((), {}),
        concurrency_per_destination=1,
        connection_inactivity_timeout=timedelta(seconds=1),
    )

    for _ in range(3):
        with pytest.raises(TransientDeliveryError) as caught:
            await deliver(deliverer, route(HostPort("192.0.2.1"), HostPort("192.0.2.2")))
        assert caught.value.is_unreachable
    for _ in range(2):  # the only one: its queue's ladder decides how often
        with pytest.raises(TransientDeliveryError, match="timed out"):
            await deliver(deliverer, route(HostPort("192.0.2.1")))

    assert ["192.0.2.1", "192.0.2.2"] == dials[:2]
    assert (3, 3) == (dials.count("192.0.2.1"), dials.count("192.0.2.2"))


async def test_content_is_read_when_a_session_is_open_and_not_before():
    reads: list[int] = []
    server = ScriptedServer()

    async def read_content() -> Content:
        reads.append(len(server.sessions))
        return CONTENT

    async with serving(server), a_deliverer(concurrency=1) as deliverer:
        for hop in (route(NOBODY_THERE), route(at(server))):
            job = replace(a_job(hop, an_envelope()), content=read_content)
            with contextlib.suppress(TransientDeliveryError):
                await deliverer.deliver(job)

    assert [1] == reads


async def test_content_that_cannot_be_read_leaves_the_session_as_it_was():
    server = ScriptedServer()

    async def read_content() -> Content:
        raise ContentCorrupt("planted")

    async with serving(server), a_deliverer(concurrency=1) as deliverer:
        with pytest.raises(ContentCorrupt):
            await deliverer.deliver(replace(a_job(route(at(server)), an_envelope()), content=read_content))
        await deliver(deliverer, route(at(server)))

    assert (1, 1) == (len(server.sessions), len(server.messages))


async def test_what_failed_is_not_kept_alive_by_the_failure_that_is_remembered():
    """An exception object that is raised again keeps the frames of every attempt that met it, with their contents."""

    async def dial(host: HostPort):
        await asyncio.Event().wait()

    deliverer = SmtpDeliverer(
        ConnectOptions("me.example", dial=dial, connect_seconds=0.01),
        Zone((), {}),
        concurrency_per_destination=1,
        connection_inactivity_timeout=timedelta(seconds=1),
    )
    for _ in range(20):
        with pytest.raises(TransientDeliveryError, match="timed out"):
            await deliver(deliverer, route(HostPort("192.0.2.1")))

    gc.collect()
    assert 0 == sum(isinstance(found, OutgoingMessage) for found in gc.get_objects())


async def test_content_is_let_go_with_its_delivery_and_not_only_by_the_garbage_collector():
    """The memory budget counts it until then."""
    content = replace(CONTENT)
    server = ScriptedServer()
    gc.disable()
    try:
        async with serving(server), a_deliverer() as deliverer:
            await deliverer.deliver(replace(a_job(route(at(server)), an_envelope(), content=content), reply_seconds=lambda: 30.0))
            kept = [found for found in gc.get_objects() if isinstance(found, OutgoingMessage) and found.content is content]
    finally:
        gc.enable()

    assert (1, []) == (len(server.messages), kept)


async def test_when_nobody_can_be_reached_the_last_failure_is_told():
    async with a_deliverer() as deliverer:
        with pytest.raises(TransientDeliveryError, match=r"4\.4\.1 Could not connect") as caught:
            await deliver(deliverer, route(NOBODY_THERE))

    assert (True, "127.0.0.1 [127.0.0.1]:1") == (caught.value.is_connection, caught.value.server)


async def test_exchanges_are_tried_by_preference_and_shuffled_among_equals():
    servers = [ScriptedServer({"GREETING": "421 busy"}) for _ in range(3)]
    order: list[str] = []
    async with serving(*servers):
        exchanges = (Exchange(10, "a"), Exchange(10, "b"), Exchange(5, "c"))
        zone = Zone(exchanges, {name: (at(server),) for name, server in zip("abc", servers, strict=True)})
        async with a_deliverer(zone) as deliverer:
            for name, server in zip("abc", servers, strict=True):
                server.script = {"GREETING": lambda _, name=name: order.append(name) or "421 busy"}  # type: ignore[func-returns-value]
            with pytest.raises(TransientDeliveryError, match="421 busy"):
                await deliver(deliverer, Destination("d.example", domain="d.example"))

    assert ["c", "b", "a"] == order


async def test_an_exchange_without_address_is_passed_over():
    server = ScriptedServer()
    async with serving(server):
        zone = Zone((Exchange(1, "gone"), Exchange(2, "there")), {"there": (NOBODY_THERE, at(server))})
        async with a_deliverer(zone) as deliverer:
            report = await deliver(deliverer, Destination("d.example", domain="d.example"))

    assert f"there [127.0.0.1]:{server.port}" == report.server


@pytest.mark.parametrize(("addresses", "text"), [({"gone": ()}, "No mail server"), ({}, "none")], ids=["none", "nobody knows"])
async def test_a_domain_without_any_reachable_exchange_is_transient_and_says_why(addresses, text):
    async with a_deliverer(Zone((Exchange(1, "gone"),), addresses)) as deliverer:
        with pytest.raises(TransientDeliveryError, match=rf"4\.4\.3 {text}"):
            await deliver(deliverer, Destination("d.example", domain="d.example"))


def without(*servers: HostPort) -> Destination:
    return Destination("d.example~lost", domain="d.example", avoided=frozenset(servers))


async def test_an_exchange_that_is_to_be_avoided_is_not_connected_to_under_any_name_or_address():
    lost, other = ScriptedServer(), ScriptedServer()
    async with serving(lost, other):
        exchanges = (Exchange(1, "mail.d.example"), Exchange(2, "other.d.example"))
        zone = Zone(exchanges, {"mail.d.example": (at(lost),), "other.d.example": (at(other),), "hub1.example": (at(lost),)})
        async with a_deliverer(zone) as deliverer:
            for avoided in (at(lost), HostPort("hub1.example", lost.port), HostPort("mail.d.example")):
                report = await deliver(deliverer, without(avoided))
                assert f"other.d.example [127.0.0.1]:{other.port}" == report.server
            whole = await deliver(deliverer, Destination("d.example", domain="d.example"))

    assert f"mail.d.example [127.0.0.1]:{lost.port}" == whole.server


async def test_where_only_avoided_servers_are_left_the_failure_is_transient_and_says_so():
    lost = ScriptedServer()
    async with serving(lost):
        zone = Zone((Exchange(1, "mail.d.example"),), {"mail.d.example": (at(lost),)})
        async with a_deliverer(zone) as deliverer:
            with pytest.raises(TransientDeliveryError) as caught:
                await deliver(deliverer, without(at(lost)))

    text = f"There is no other route than by 127.0.0.1:{lost.port}: its MX records name no other server"
    assert (Reply(451, "4.4.4", text), True) == (caught.value.reply, caught.value.is_unreachable)
    assert 0 == lost.open_count_max


async def test_a_domain_without_mail_servers_is_no_reason_to_return_what_avoids_a_server():
    async with a_deliverer(Zone((), {})) as deliverer:
        with pytest.raises(TransientDeliveryError, match=r"4\.4\.4 There is no other route than by hub1:25: 550 5\.1\.2"):
            await deliver(deliverer, without(HostPort("hub1")))
        with pytest.raises(PermanentDeliveryError):
            await deliver(deliverer, Destination("d.example", domain="d.example"))


# TLS


@pytest.fixture(scope="module")
def server_tls() -> ssl.SSLContext:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    trustme.CA().issue_cert("localhost").configure_cert(context)
    return context


async def test_tls_is_used_where_it_is_offered_without_asking_who_it_is(server_tls):
    server = ScriptedServer(tls=server_tls)
    async with serving(server), a_deliverer(tls=opportunistic_context()) as deliverer:
        for _ in range(2):
            await deliver(deliverer, route(at(server)))

    assert [True] == [session.is_tls for session in server.sessions]
    assert [BODY, BODY] == server.messages


@pytest.mark.parametrize("reply", ["454 4.7.0 no TLS now", "gibberish", CLOSE])
async def test_broken_tls_is_tried_again_without(server_tls, reply):
    server = ScriptedServer({"STARTTLS": reply}, tls=server_tls)
    async with serving(server), a_deliverer(tls=opportunistic_context()) as deliverer:
        report = await deliver(deliverer, route(at(server)))

    assert {1: TAKEN} == report.replies
    assert [False, False] == [session.is_tls for session in server.sessions]


async def test_a_failed_handshake_is_tried_again_without_tls():
    server = ScriptedServer(tls=ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER))  # it has no certificate
    async with serving(server), a_deliverer(tls=opportunistic_context()) as deliverer:
        report = await deliver(deliverer, route(at(server)))

    assert {1: TAKEN} == report.replies
    assert 2 == len(server.sessions)


# nothing is left


@pytest.mark.parametrize("script", [{}, {"RCPT": "550 no"}, {"DOT": CLOSE}], ids=["taken", "refused", "lost"])
async def test_a_cancellation_at_any_await_leaves_neither_a_connection_nor_a_slot(script, server_tls):
    server = ScriptedServer(script, tls=server_tls)
    async with serving(server):
        for suspension in range(1, 100):
            async with a_deliverer(concurrency=1, tls=opportunistic_context()) as deliverer:
                attempt = CancelledAt(deliver(deliverer, route(at(server))), suspension)
                async with asyncio.timeout(PATIENCE_SECONDS):
                    await cancelled_at(attempt)
                server.script = {}
                report = await deliver(deliverer, route(at(server)))
                server.script = script
                assert {1: TAKEN} == report.replies
            await until(lambda: server.open_count == 0)
            if not attempt.was_reached:
                break
        else:
            pytest.fail("the attempt never ends")

    assert suspension > 3  # for a session, and for replies


async def test_close_ends_idle_and_busy_sessions():
    server = ScriptedServer({"DOT": ["250 ok", HANG]})
    async with serving(server), a_deliverer(concurrency=2) as deliverer:
        await deliver(deliverer, route(at(server)))
        busy = asyncio.ensure_future(deliver(deliverer, route(at(server))))
        await until(lambda: len(server.messages) == 2)
        await deliverer.close()

        with pytest.raises(TransientDeliveryError):
            await busy
        with pytest.raises(TransientDeliveryError, match="Could not connect"):
            await deliver(deliverer, route(at(server)))
        await until(lambda: server.open_count == 0)


async def test_each_attempt_ends_in_one_line_of_the_operator_log():
    server = ScriptedServer({"RCPT": ["250 ok", "550 5.1.1 no"]})
    with structlog.testing.capture_logs() as lines:
        async with serving(server), a_deliverer() as deliverer:
            await deliver(deliverer, route(at(server)), 2)
            with pytest.raises(TransientDeliveryError):
                await deliver(deliverer, Destination("dead", (NOBODY_THERE,)))
            server.script["RCPT"] = "250 ok"
            await deliver(deliverer, route(at(server)))

    facts = [(line["event"], line["next_hop"], line["recipients"], line["accepted"], line["reply"][:9]) for line in lines]
    assert [("attempt.finished", "route", 2, 1, "550 5.1.1"), ("attempt.finished", "dead", 1, 0, "451 4.4.1")] == facts[:2]
    assert ["info", "info", "debug"] == [line["log_level"] for line in lines]  # what was accepted is in the tracking log
