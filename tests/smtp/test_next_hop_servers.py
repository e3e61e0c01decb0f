"""A server that refuses is not the last one, a limit is no outage, and a session that nobody uses is not kept for long."""

import asyncio
import contextlib
import socket

import pytest

from shadowrelay.model.queue import ServerState
from shadowrelay.model.replies import PermanentDeliveryError, Reply, TransientDeliveryError
from shadowrelay.model.routing import Destination, HostPort
from shadowrelay.model.values import replace
from shadowrelay.smtp import deliverer as deliverer_module
from shadowrelay.smtp import next_hop_rules as rules
from shadowrelay.smtp.client import dial
from shadowrelay.smtp.host_names import HostNames, Lookups
from shadowrelay.smtp.resolver import Exchange
from tests.kit.clock import until
from tests.kit.ledger import an_envelope
from tests.kit.smtp_servers import CLOSE, EXTENSIONS, HANG, ScriptedServer, Session, serving
from tests.smtp.deliverers import BODY, TAKEN, Zone, a_deliverer, a_job, at, deliver, route

BUSY = "451 4.3.2 maintenance"
ONE_BY_ONE = tuple(word for word in EXTENSIONS if word != "PIPELINING")


# refusals


@pytest.mark.parametrize("extensions", [EXTENSIONS, ONE_BY_ONE], ids=["pipelined", "one by one"])
@pytest.mark.parametrize(
    "script",
    [
        {"GREETING": "451 no"},
        {"EHLO": BUSY},
        {"MAIL": BUSY},
        {"MAIL": "421 4.3.2 closing"},
        {"MAIL": CLOSE},
        {"RCPT": "452 4.2.2 full", "DATA": "554 no recipients"},
        {"RCPT": "421 closing"},
        {"DATA": BUSY},
        {"DATA": CLOSE},
        {"DOT": "452 4.3.1 insufficient system storage"},
        {"DOT": "451 4.4.0 Message failed to be made redundant"},
        {"DOT": "421 4.3.2 closing"},
    ],
    ids=str,
)
async def test_what_a_server_refuses_for_now_the_next_one_gets_in_the_same_attempt(script, extensions):
    first, second = ScriptedServer(script, extensions), ScriptedServer()
    async with serving(first, second), a_deliverer() as deliverer:
        report = await deliver(deliverer, route(at(first), at(second)), 2)

    assert {1: TAKEN, 2: TAKEN} == report.replies
    assert f"127.0.0.1 [127.0.0.1]:{second.port}" == report.server
    assert [BODY] == second.messages


@pytest.mark.parametrize("script", [{"RCPT": "550 5.1.1 no", "DATA": "554 no"}, {"DOT": "554 5.7.1 spam"}, {"MAIL": "550 no"}], ids=str)
async def test_a_refusal_for_good_is_final(script):
    first, second = ScriptedServer(script), ScriptedServer()
    async with serving(first, second), a_deliverer() as deliverer:
        with contextlib.suppress(PermanentDeliveryError):
            report = await deliver(deliverer, route(at(first), at(second)))
            assert report.replies[1].is_permanent

    assert [] == second.sessions


LED_BACK = {"EHLO": "250 me.example"}  # a load balancer in front of this node


@pytest.mark.parametrize("better", [{"MAIL": BUSY}, {"GREETING": "421 no"}, {"GREETING": CLOSE}], ids=str)
async def test_a_worse_exchange_that_leads_back_here_returns_no_mail_of_a_better_one(better):
    first, second, third = ScriptedServer(better), ScriptedServer(LED_BACK), ScriptedServer()
    async with serving(first, second, third):
        exchanges = tuple(Exchange(number, name) for number, name in enumerate("abc"))
        zone = Zone(exchanges, {"a": (at(first),), "b": (at(second),), "c": (at(third),)})
        async with a_deliverer(zone) as deliverer:
            with pytest.raises(TransientDeliveryError):
                await deliver(deliverer, Destination("d.example", domain="d.example"))

    assert [] == third.sessions, "only better ones may be tried"


async def test_where_the_best_exchange_leads_back_here_the_mail_is_returned():
    first, second = ScriptedServer(LED_BACK), ScriptedServer()
    async with serving(first, second):
        zone = Zone((Exchange(1, "a"), Exchange(2, "b")), {"a": (at(first),), "b": (at(second),)})
        async with a_deliverer(zone) as deliverer:
            with pytest.raises(PermanentDeliveryError, match=r"5\.4\.6"):
                await deliver(deliverer, Destination("d.example", domain="d.example"))

    assert [] == second.sessions


SMALL = (*(word for word in EXTENSIONS if not word.startswith("SIZE")), "SIZE 1")


async def test_a_server_that_cannot_take_the_message_is_passed_over_if_there_is_another():
    first, second = ScriptedServer(extensions=SMALL), ScriptedServer()
    async with serving(first, second), a_deliverer() as deliverer:
        report = await deliver(deliverer, route(at(first), at(second)))
        assert {1: TAKEN} == report.replies

    first, second = ScriptedServer({"MAIL": BUSY}), ScriptedServer(extensions=SMALL)
    async with serving(first, second), a_deliverer() as deliverer:
        with pytest.raises(TransientDeliveryError, match="maintenance"):
            await deliver(deliverer, route(at(first), at(second)))

    first, second = ScriptedServer(extensions=SMALL), ScriptedServer(extensions=SMALL)
    async with serving(first, second), a_deliverer() as deliverer:
        with pytest.raises(PermanentDeliveryError, match="larger"):
            await deliver(deliverer, route(at(first), at(second)))


@pytest.mark.parametrize("rset", ["500 what", "503 no", "421 closing", "250-\xff\r\n250 ok", CLOSE], ids=repr)
async def test_a_session_whose_rset_is_refused_serves_no_other_message(rset):
    """The next MAIL in it would be one too many, and its 5xx would return the next message."""

    class Strict(ScriptedServer):
        async def answer(self, verb: str, session: Session, default: str) -> str:
            if verb == "MAIL" and sum(line[:4] == "MAIL" for line in session.lines) > 1:
                return "503 5.5.1 nested MAIL"
            return await super().answer(verb, session, default)

    server = Strict({"RCPT": ["550 5.1.1 no", "250 ok"], "DATA": ["554 no", "354 go"], "RSET": rset})
    async with serving(server), a_deliverer() as deliverer:
        assert 550 == (await deliver(deliverer, route(at(server)))).replies[1].code
        assert {1: TAKEN} == (await deliver(deliverer, route(at(server)))).replies

    assert [BODY] == server.messages


async def test_after_a_lost_reply_to_the_dot_no_other_server_gets_the_message():
    first, second = ScriptedServer({"DOT": CLOSE}), ScriptedServer()
    async with serving(first, second), a_deliverer() as deliverer:
        with pytest.raises(TransientDeliveryError) as caught:
            await deliver(deliverer, route(at(first), at(second)))

    assert caught.value.dot_sent_unanswered
    assert [] == second.sessions


async def test_recipients_refused_for_good_keep_their_reply_and_the_others_go_on():
    first = ScriptedServer({"RCPT": ["550 5.1.1 no", "450 4.2.0 later"], "DATA": "554 no"})
    second = ScriptedServer()
    async with serving(first, second), a_deliverer() as deliverer:
        report = await deliver(deliverer, route(at(first), at(second)), 2)

    assert {1: Reply(550, "5.1.1", "no"), 2: TAKEN} == report.replies
    assert ["RCPT TO:<user2@corp.example>"] == [line for line in second.lines if line.startswith("RCPT")]


async def test_where_one_recipient_was_accepted_the_others_wait_for_the_next_attempt():
    first, second = ScriptedServer({"RCPT": ["250 ok", "450 4.2.0 later"]}), ScriptedServer()
    async with serving(first, second), a_deliverer() as deliverer:
        report = await deliver(deliverer, route(at(first), at(second)), 2)

    assert {1: 250, 2: 450} == {ordinal: reply.code for ordinal, reply in report.replies.items()}
    assert [] == second.sessions


async def test_the_next_address_of_a_name_and_the_next_exchange_are_tried():
    servers = [ScriptedServer({"MAIL": BUSY}), ScriptedServer({"RCPT": BUSY, "DATA": "503 no"}), ScriptedServer()]
    async with serving(*servers):
        exchanges = (Exchange(1, "near"), Exchange(2, "far"))
        zone = Zone(exchanges, {"near": (at(servers[0]), at(servers[1])), "far": (at(servers[2]),)})
        async with a_deliverer(zone) as deliverer:
            report = await deliver(deliverer, Destination("d.example", domain="d.example"))

    assert f"far [127.0.0.1]:{servers[2].port}" == report.server


async def test_the_addresses_of_a_name_in_a_route_are_tried_one_by_one_and_remembered_apart(tmp_path):
    first, second = ScriptedServer({"MAIL": BUSY}), ScriptedServer()
    servers = {"192.0.2.1": first, "192.0.2.2": second}
    (tmp_path / "hosts").write_text("192.0.2.1 hop.example\n192.0.2.2 hop.example\n")

    async def connect(host: HostPort) -> socket.socket:
        return await dial(HostPort("127.0.0.1", servers[host.host].port))

    async with serving(first, second):
        names = HostNames(Lookups(), hosts_file=tmp_path / "hosts", connect=connect)
        async with a_deliverer(names=names) as deliverer:
            reports = [await deliver(deliverer, route(HostPort("hop.example"))) for _ in range(3)]
            states = {one.server.partition("[")[2][:9]: one.state for one in deliverer.servers("route")}

    assert [{1: TAKEN}] * 3 == [report.replies for report in reports]
    assert (1, 1) == (len(first.sessions), len(second.sessions))
    assert {"192.0.2.1": ServerState.REFUSED, "192.0.2.2": ServerState.READY} == states


async def test_a_deliverer_that_is_closed_ends_what_waits_and_opens_nothing_more():
    first, second = ScriptedServer({"MAIL": HANG}), ScriptedServer()
    async with serving(first, second), a_deliverer(concurrency=1) as deliverer:
        jobs = [asyncio.ensure_future(deliver(deliverer, route(at(first), at(second)))) for _ in range(3)]
        await until(lambda: any(line.startswith("MAIL") for line in first.lines))
        await deliverer.close()
        results = await asyncio.gather(*jobs, return_exceptions=True)

    assert [True] * 3 == [isinstance(result, TransientDeliveryError) for result in results]
    assert [] == second.sessions


async def test_an_answer_counts_more_than_a_server_that_cannot_be_reached():
    """The next hop answered: the message waits, not its whole queue."""
    server = ScriptedServer({"DOT": "451 4.7.1 greylisted"})
    async with serving(server), a_deliverer() as deliverer:
        report = await deliver(deliverer, route(HostPort("127.0.0.1", 1), at(server), HostPort("127.0.0.1", 2)))

    assert {1: Reply(451, "4.7.1", "greylisted")} == report.replies


async def test_a_server_that_refuses_is_tried_last_until_it_is_probed_and_then_first_again(monkeypatch):
    first, second = ScriptedServer({"MAIL": BUSY}), ScriptedServer()
    async with serving(first, second), a_deliverer() as deliverer:
        for _ in range(3):
            await deliver(deliverer, route(at(first), at(second)))
        assert (1, 3) == (len(first.sessions), len(second.messages))

        first.script = {}
        monkeypatch.setattr(rules, "is_tried_late", lambda trouble, now: False)  # its time has come
        for _ in range(2):
            await deliver(deliverer, route(at(first), at(second)))

    assert (2, 3) == (len(first.messages), len(second.messages))


async def test_without_leases_no_further_server_is_tried():
    first, second = ScriptedServer({"MAIL": BUSY}), ScriptedServer()
    async with serving(first, second), a_deliverer() as deliverer:
        with pytest.raises(TransientDeliveryError, match="maintenance"):
            await deliver(deliverer, route(at(first), at(second)), may_end=False)

    assert [] == second.sessions


async def test_no_attempt_gives_a_message_to_more_servers_than_its_limit():
    servers = [ScriptedServer({"DOT": "451 4.7.1 later"}) for _ in range(rules.SERVERS_MAX + 2)]
    async with serving(*servers), a_deliverer() as deliverer:
        report = await deliver(deliverer, route(*map(at, servers)))

    assert 451 == report.replies[1].code
    assert rules.SERVERS_MAX == sum(len(server.messages) for server in servers)


# limits


class ServerWithLimits(ScriptedServer):
    """Takes so many sessions at once, and refuses others as it is told; `messages_max` in each."""

    sessions_max = 5
    messages_max = 1_000_000
    refusal = "421 4.3.2 too many connections"
    refused_count = 0

    async def answer(self, verb: str, session: Session, default: str) -> str:
        if verb == "GREETING" and self.open_count > self.sessions_max:
            self.refused_count += 1
            return self.refusal
        if verb == "MAIL" and session.lines.count("DATA") >= self.messages_max:
            return "421 4.7.0 too many messages in this session"
        if verb == "DOT":
            await asyncio.sleep(0)
        return await super().answer(verb, session, default)


@pytest.mark.parametrize("refusal", ["421 4.3.2 too many connections", "450 4.7.1 too many", CLOSE])
async def test_a_server_with_a_limit_gets_all_mail_over_the_sessions_that_it_takes(refusal):
    server = ServerWithLimits()
    server.refusal = refusal
    async with serving(server), a_deliverer(concurrency=20) as deliverer:
        await asyncio.gather(*(deliver(deliverer, route(at(server))) for _ in range(100)))

    assert (100, True) == (len(server.messages), 0 < server.refused_count <= 15)


async def test_a_limit_of_messages_in_each_session_costs_a_session_and_no_message():
    server = ServerWithLimits()
    server.messages_max = 3
    async with serving(server), a_deliverer(concurrency=20) as deliverer:
        await asyncio.gather(*(deliver(deliverer, route(at(server))) for _ in range(60)))

    assert 60 == len(server.messages)


@pytest.mark.parametrize("refusal", ["452 4.5.3 too many messages", "450 4.7.1 too many messages in this session", "451 enough"])
async def test_a_refusal_that_may_be_about_the_kept_session_is_tried_in_another_one(refusal):
    server = ScriptedServer({"MAIL": ["250 ok", refusal, "250 ok"]})
    async with serving(server), a_deliverer() as deliverer:
        reports = [await deliver(deliverer, route(at(server))) for _ in range(2)]

    assert [{1: TAKEN}, {1: TAKEN}] == [report.replies for report in reports]
    assert 2 == len(server.sessions)


async def test_a_session_with_a_refusal_of_the_server_is_not_used_again():
    server = ScriptedServer({"RCPT": ["450 4.3.2 Service currently unavailable", "250 ok"], "DATA": ["554 no", "354 go"]})
    async with serving(server), a_deliverer() as deliverer:
        first, second = [await deliver(deliverer, route(at(server))) for _ in range(2)]

    assert (450, {1: TAKEN}) == (first.replies[1].code, second.replies)
    assert [1, 1] == [sum(line.startswith("MAIL") for line in session.lines) for session in server.sessions]


@pytest.mark.parametrize(("is_served", "expected"), [(True, True), (False, False)])
async def test_a_server_that_took_a_message_just_before_has_a_limit_and_is_probed_soon(is_served, expected):
    server = ScriptedServer({"GREETING": ["220 hello", "421 too often"] if is_served else "421 too often"})
    async with serving(server), a_deliverer(idle_seconds=0.01) as deliverer:
        if is_served:
            await deliver(deliverer, route(at(server)))
            await until(lambda: server.open_count == 0)
        with pytest.raises(TransientDeliveryError) as caught:
            await deliver(deliverer, route(at(server)))

    assert (True, expected) == (caught.value.is_unreachable, caught.value.is_limited)


@pytest.mark.parametrize("verb", ["GREETING", "EHLO"])
@pytest.mark.parametrize("cuts_count", [1, 2])
async def test_an_address_that_cuts_connections_is_tried_again_before_its_queue_waits(verb, cuts_count):
    """A load balancer with dead servers behind it: two of three connections are cut."""
    usual = {"GREETING": "220 hello", "EHLO": "250 hello"}[verb]
    server = ScriptedServer({verb: [CLOSE] * cuts_count + [usual]})
    async with serving(server), a_deliverer() as deliverer:
        report = await deliver(deliverer, route(at(server)))

    assert (250, cuts_count + 1) == (report.replies[1].code, len(server.sessions))


async def test_an_address_that_cuts_each_connection_is_left_after_three():
    server = ScriptedServer({"GREETING": CLOSE})
    async with serving(server), a_deliverer() as deliverer:
        for _ in range(2):
            with pytest.raises(TransientDeliveryError, match="Connection lost before the greeting"):
                await deliver(deliverer, route(at(server)))

    assert 6 == len(server.sessions)


async def test_where_there_is_another_server_no_connection_is_tried_again():
    first, second = ScriptedServer({"GREETING": CLOSE}), ScriptedServer()
    async with serving(first, second), a_deliverer() as deliverer:
        await deliver(deliverer, route(at(first), at(second)))

    assert (1, 1) == (len(first.sessions), len(second.messages))


@pytest.mark.parametrize("refusal", ["421 4.3.2 not now", "554 5.3.2 no"])
async def test_a_server_that_says_no_is_not_asked_again_at_once(refusal):
    server = ScriptedServer({"GREETING": refusal})
    async with serving(server), a_deliverer() as deliverer:
        with pytest.raises(TransientDeliveryError):
            await deliver(deliverer, route(at(server)))

    assert 1 == len(server.sessions)


async def test_a_server_that_took_a_message_just_before_and_cuts_connections_is_probed_soon():
    server = ScriptedServer({"GREETING": ["220 hello", CLOSE]})
    async with serving(server), a_deliverer(idle_seconds=0.01) as deliverer:
        await deliver(deliverer, route(at(server)))
        await until(lambda: server.open_count == 0)
        with pytest.raises(TransientDeliveryError) as caught:
            await deliver(deliverer, route(at(server)))

    assert (True, True) == (caught.value.is_unreachable, caught.value.is_limited)


async def test_a_session_that_has_forgotten_its_sender_returns_no_recipient():
    lost_count = "503 5.5.1 need MAIL"
    first, second = ScriptedServer({"RCPT": ["250 ok", lost_count, "250 ok"]}), ScriptedServer({"RCPT": ["250 ok", lost_count, "250 ok"]})
    async with serving(first, second), a_deliverer() as deliverer:
        reports = []
        for server, recipients_count in ((first, 2), (second, 1)):
            await deliver(deliverer, route(at(server)))
            reports.append(await deliver(deliverer, route(at(server)), recipients_count))

    assert [[451, 250], [250]] == [[reply.code for _, reply in sorted(report.replies.items())] for report in reports]
    assert [1, 2] == [len(server.sessions) for server in (first, second)]


async def test_listings_show_each_server_and_why_it_is_not_used():
    first, second = ScriptedServer({"MAIL": BUSY}), ServerWithLimits()
    second.sessions_max = 1
    async with serving(first, second), a_deliverer() as deliverer:
        await deliver(deliverer, route(at(first), at(second)))
        await asyncio.gather(*(deliver(deliverer, route(at(first), at(second))) for _ in range(3)))
        shown = {one.server.rpartition(":")[2]: one for one in deliverer.servers("route")}
        assert () == tuple(deliverer.servers("another"))

    refused, limited = shown[str(first.port)], shown[str(second.port)]
    assert (ServerState.REFUSED, BUSY, 0) == (refused.state, refused.reply, refused.sessions_count)
    assert 0 < refused.probe_seconds <= rules.PROBE_SECONDS
    assert (ServerState.LIMITED, second.refusal, 1) == (limited.state, limited.reply, limited.sessions_max)


# sessions


async def test_all_domains_of_a_server_share_its_sessions_under_their_own_names():
    server = ScriptedServer()
    async with serving(server):

        class OneServer(Zone):
            async def exchanges(self, domain: str) -> tuple[Exchange, ...]:
                return (Exchange(1, f"mx.{domain}"),)

            async def addresses(self, host: str, port: int = 25) -> tuple[HostPort, ...]:
                return (at(server),)

        async with a_deliverer(OneServer((), {})) as deliverer:
            domains = [f"d{number}.example" for number in range(30)]
            reports = [await deliver(deliverer, Destination(domain, domain=domain)) for domain in domains]

    assert 1 == len(server.sessions)
    assert [f"mx.{domain} [127.0.0.1]:{server.port}" for domain in domains] == [report.server for report in reports]


class ServerOfWorkers(ScriptedServer):
    """So many sessions are served; the others wait for a greeting until one of these ends."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.workers = asyncio.Semaphore(count)

    async def _converse(self, session: Session, reader: asyncio.StreamReader) -> None:
        async with self.workers:
            await super()._converse(session, reader)


async def test_what_waits_for_a_greeting_takes_a_session_that_became_free():
    server = ServerOfWorkers(2)
    async with serving(server), a_deliverer(concurrency=20) as deliverer:
        await asyncio.gather(*(deliver(deliverer, route(at(server))) for _ in range(40)))

        assert 40 == len(server.messages)


async def test_connections_that_nobody_waits_for_any_more_are_ended():
    server = ServerOfWorkers(2)
    async with serving(server), a_deliverer(concurrency=20, idle_seconds=0.05) as deliverer:
        await asyncio.gather(*(deliver(deliverer, route(at(server))) for _ in range(40)))
        await until(lambda: server.open_count == 0)


async def test_one_connection_that_never_greets_does_not_stop_what_comes_after_it(monkeypatch):
    monkeypatch.setattr(rules, "MUTE_SECONDS", 0.05)
    server = ScriptedServer({"GREETING": [HANG, "220 back again"]})
    async with serving(server), a_deliverer() as deliverer:
        await asyncio.gather(deliver(deliverer, route(at(server))))

    assert 2 == len(server.sessions)


async def test_where_there_is_another_address_nobody_waits_long_for_a_greeting(monkeypatch):
    monkeypatch.setattr(deliverer_module, "PATIENCE_SECONDS", 0.05)
    first, second = ScriptedServer({"GREETING": HANG}), ScriptedServer()
    async with serving(first, second), a_deliverer() as deliverer:
        report = await deliver(deliverer, route(at(first), at(second)))

    assert {1: TAKEN} == report.replies


async def test_a_kept_session_that_does_not_answer_is_replaced(monkeypatch):
    monkeypatch.setattr(deliverer_module, "RESTED_SECONDS", 0.0)
    monkeypatch.setattr(deliverer_module, "FIRST_REPLY_SECONDS", 0.05)
    server = ScriptedServer({"MAIL": ["250 ok", HANG, "250 ok"]})
    async with serving(server), a_deliverer() as deliverer:
        for _ in range(2):
            await deliver(deliverer, route(at(server)))

    assert (2, 2) == (len(server.sessions), len(server.messages))


async def test_concurrency_is_that_of_the_route_where_it_has_one():
    server = ScriptedServer()
    async with serving(server), a_deliverer(concurrency=20) as deliverer:
        destination = replace(route(at(server)), concurrency=2)
        await asyncio.gather(*(deliver(deliverer, destination) for _ in range(30)))

    assert (30, 2) == (len(server.messages), server.open_count_max)


async def test_a_cancelled_delivery_passes_its_session_on():
    server = ServerOfWorkers(1)
    async with serving(server), a_deliverer(concurrency=1) as deliverer:
        await deliver(deliverer, route(at(server)))
        jobs = [asyncio.ensure_future(deliverer.deliver(a_job(route(at(server)), an_envelope()))) for _ in range(5)]
        await asyncio.sleep(0)
        for job in jobs[:4]:
            job.cancel()
        report = await jobs[4]
        await asyncio.gather(*jobs[:4], return_exceptions=True)

    assert {1: TAKEN} == report.replies


async def test_a_session_that_nobody_uses_is_closed_after_its_own_time():
    server = ScriptedServer()
    async with serving(server), a_deliverer(unused_seconds=0.02) as deliverer:
        await deliver(deliverer, route(at(server)))
        await until(lambda: server.open_count == 0)

    assert "QUIT" == server.lines[-1]


async def test_a_session_in_use_that_stands_still_is_ended_after_its_time():
    server = ScriptedServer({"DOT": HANG})
    async with serving(server), a_deliverer(idle_seconds=0.1) as deliverer:
        with pytest.raises(TransientDeliveryError, match="Timed out"):
            await deliver(deliverer, route(at(server)))
