"""Webhooks: signed events, tried again, each by itself."""

import asyncio
import contextlib
import hmac
import json
from collections import Counter
from hashlib import sha256

import httpx
import pytest
from pydantic import ValidationError
from structlog.testing import capture_logs

from shadowrelay.console import webhooks
from shadowrelay.console.webhooks import AGAIN_SECONDS_MAX, SIGNATURE, Webhooks
from shadowrelay.model.settings import Webhook
from shadowrelay.tracking.event_tap import EventTap
from tests.kit.clock import PATIENCE_SECONDS, until

SECRET = "a-secret-of-some-length"


class Receiver(httpx.AsyncBaseTransport):
    """Answers with these statuses, then 204; keeps what it took."""

    def __init__(self, *statuses):
        self.statuses, self.taken = list(statuses), []

    async def handle_async_request(self, request):
        status = self.statuses.pop(0) if self.statuses else 204
        if status == 0:
            raise httpx.ConnectError("refused")
        if status < 300:
            self.taken.append((request.headers, request.content))
        return httpx.Response(status)


async def told(hooks, receiver, *names, count):
    tap, pauses = EventTap(), []

    async def sleep(seconds):
        pauses.append(seconds)
        await asyncio.sleep(0)

    running = asyncio.create_task(Webhooks(hooks, tap, "mx1", transport=receiver, sleep=sleep).run())
    await asyncio.sleep(0)
    for name in names:
        await asyncio.sleep(0)
        tap(None, "info", {"event": name})
    async with asyncio.timeout(20):
        while len(receiver.taken) < count:
            await asyncio.sleep(0)
    running.cancel()
    return pauses


async def test_an_event_is_posted_with_a_signature_of_time_and_body():
    receiver = Receiver()
    await told([Webhook(url="https://x.example/hook", secret=SECRET)], receiver, "peer.lost", count=1)
    ((headers, body),) = receiver.taken
    at, digest = headers[SIGNATURE].removeprefix("t=").split(",v1=")

    assert ("peer.lost", "mx1") == ((event := json.loads(body))["event"], event["node"])
    assert hmac.new(SECRET.encode(), f"{at}.".encode() + body, sha256).hexdigest() == digest


async def test_what_is_not_taken_is_tried_again_ever_less_often_and_in_order():
    receiver = Receiver(0, 500, 503, 302, *[500] * 8)
    hooks = [Webhook(url="https://x.example/hook", secret=SECRET)]
    pauses = await told(hooks, receiver, "peer.lost", "peer.session_opened", count=2)

    assert [1, 2, 4, 8, 16, 32, 64, 128, 256, *[AGAIN_SECONDS_MAX] * 3] == pauses
    assert ["peer.lost", "peer.session_opened"] == [json.loads(body)["event"] for _, body in receiver.taken]


BEGUN = {
    "well": b"HTTP/1.1 204 No Content\r\n\r\n",
    "drips": b"",
    "endless": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n",
}
GOES_ON = {"drips": b"HTTP/1.1 102 Processing\r\n\r\n", "endless": b"1\r\nx\r\n"}


async def test_a_receiver_that_hangs_or_answers_without_end_is_given_up_and_holds_up_no_other(monkeypatch):
    """Of three, one says only that it goes on, one says 200 at once and then goes on for ever, and one is well."""
    monkeypatch.setattr(webhooks, "PATIENCE_SECONDS", 0.3)
    asked = Counter()

    async def answer(reader, writer):
        answering.append((asyncio.current_task(), writer))
        await reader.readuntil(b"\r\n\r\n")
        kind = port_of[writer.get_extra_info("sockname")[1]]
        asked[kind] += 1
        with contextlib.suppress(ConnectionError):
            writer.write(BEGUN[kind])
            while kind != "well":
                writer.write(GOES_ON[kind])
                await writer.drain()
                await asyncio.sleep(0.05)

    port_of, servers, hooks, answering = {}, [], [], []
    for kind in ("drips", "endless", "well"):
        servers.append(server := await asyncio.start_server(answer, "127.0.0.1", 0))
        port_of[port := server.sockets[0].getsockname()[1]] = kind
        hooks.append(Webhook(url=f"http://127.0.0.1:{port}/", secret=SECRET))
    tap = EventTap()
    with capture_logs() as logs:
        running = asyncio.create_task(Webhooks(hooks, tap, "mx1", sleep=lambda _: asyncio.sleep(0)).run())
        for name in ("peer.lost", "peer.session_opened"):
            for _ in range(3):  # all listen
                await asyncio.sleep(0)
            tap(None, "info", {"event": name})
        await until(lambda: asked["drips"] > 1 and asked["endless"] == asked["well"] == 2, what=lambda: str(asked))
    running.cancel()
    for server in servers:
        server.close()
    for task, writer in answering:
        task.cancel()
        writer.transport.abort()
    await asyncio.wait([task for task, _ in answering])

    assert ["it did not answer in 0 s"] == [line["reason"] for line in logs if line["event"] == "webhook.failed"]


SAYS_MUCH = {"interim": b"HTTP/1.1 102 Processing\r\n\r\n" * 5_000, "fields": b"HTTP/1.1 204 No Content\r\n" + b"X-Y: z\r\n" * 20_000}


@pytest.mark.parametrize("said", SAYS_MUCH.values(), ids=SAYS_MUCH)
async def test_of_a_receiver_that_says_much_before_its_status_no_more_is_read_than_a_status_needs(said, monkeypatch):
    monkeypatch.setattr(webhooks, "PATIENCE_SECONDS", PATIENCE_SECONDS)
    answering = []

    async def answer(reader, writer):
        answering.append((asyncio.current_task(), writer))
        with contextlib.suppress(ConnectionError):
            while True:
                writer.write(said)
                await writer.drain()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    tap, paused = EventTap(), asyncio.Event()

    async def sleep(seconds):
        paused.set()
        await asyncio.Event().wait()

    hooks = [Webhook(url=f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/", secret=SECRET)]
    with capture_logs() as logs:
        running = asyncio.create_task(Webhooks(hooks, tap, "mx1", sleep=sleep).run())
        for _ in range(3):
            await asyncio.sleep(0)
        tap(None, "info", {"event": "peer.lost"})
        async with asyncio.timeout(PATIENCE_SECONDS):
            await paused.wait()
    running.cancel()
    server.close()
    for task, writer in answering:
        task.cancel()
        writer.transport.abort()
    await asyncio.wait([task for task, _ in answering])

    assert ["it is too long"] == [line["reason"] for line in logs if line["event"] == "webhook.failed"]


async def test_only_the_events_that_were_asked_for_are_posted():
    receiver = Receiver()
    hooks = [Webhook(url="https://x.example/hook", secret=SECRET, events=("drain.began",))]
    await told(hooks, receiver, "peer.lost", "drain.began", count=1)

    assert ["drain.began"] == [json.loads(body)["event"] for _, body in receiver.taken]


@pytest.mark.parametrize("wrong", [{"url": "ftp://x"}, {"url": "x.example"}, {"secret": "short"}, {"events": ("peer.loss",)}])
def test_a_webhook_that_could_not_work_is_a_mistake_of_the_configuration(wrong):
    with pytest.raises(ValidationError):
        Webhook.model_validate({"url": "https://x.example/hook", "secret": SECRET} | wrong)


def test_the_secret_is_not_shown():
    assert SECRET not in str(Webhook(url="https://x.example/hook", secret=SECRET).model_dump(mode="json"))
