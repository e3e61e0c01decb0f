"""Posts events to other programs: signed, one after the other, and again until they are taken. docs/operations.md "Webhooks".

Each webhook goes along the events by itself, so a slow one holds up neither another one nor mail. What is not taken in time leaves the
node's memory with the oldest events.
"""

import asyncio
import hashlib
import hmac
import json
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

import httpx
import structlog

from shadowrelay.model.settings import Webhook
from shadowrelay.smtp.web_answers import UNPACKED, BoundedTransport, reason_of_request
from shadowrelay.tracking.event_tap import EventTap

PATIENCE_SECONDS = 10.0
AGAIN_SECONDS_MIN, AGAIN_SECONDS_MAX = 1.0, 300.0
SIGNATURE = "X-Shadowrelay-Signature"

_log = structlog.get_logger()


def signature(secret: str, at: int, body: bytes) -> str:
    """As in the header: the time, and the HMAC-SHA256 of time, a dot, and body. Units: seconds since 1970."""
    digest = hmac.new(secret.encode(), f"{at}.".encode() + body, hashlib.sha256).hexdigest()
    return f"t={at},v1={digest}"


class Webhooks:
    """Call `run`. `server` is the node's name; `sleep` is for tests."""

    def __init__(
        self,
        hooks: Sequence[Webhook],
        tap: EventTap,
        server: str,
        *,
        transport: httpx.AsyncBaseTransport | None = None,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._hooks, self._tap, self._server, self._transport, self._sleep = hooks, tap, server, transport, sleep

    async def run(self) -> None:
        """Forever."""
        async with asyncio.TaskGroup() as group:
            for hook in self._hooks:
                group.create_task(self._serve(hook), name=f"webhook {hook.url}")

    async def _serve(self, hook: Webhook) -> None:
        position = self._tap.position
        loop, news = asyncio.get_running_loop(), asyncio.Event()
        end = self._tap.listen(lambda: loop.call_soon_threadsafe(news.set))
        try:
            transport = self._transport or BoundedTransport(0)
            async with httpx.AsyncClient(
                timeout=PATIENCE_SECONDS, trust_env=False, follow_redirects=False, transport=transport, headers=UNPACKED
            ) as client:
                while True:
                    news.clear()
                    for event in self._tap.since(position):
                        if not hook.events or event["event"] in hook.events:
                            await self._post(client, hook, event)
                        position = event["position"]
                    await news.wait()
        finally:
            end()

    async def _post(self, client: httpx.AsyncClient, hook: Webhook, event: Mapping[str, Any]) -> None:
        body = json.dumps({"node": self._server, **event}, default=str, separators=(",", ":")).encode()
        pause, failures_count = AGAIN_SECONDS_MIN, 0
        while True:
            at = int(time.time())
            headers = {"Content-Type": "application/json", SIGNATURE: signature(hook.secret, at, body)}
            try:
                async with asyncio.timeout(PATIENCE_SECONDS), client.stream("POST", hook.url, content=body, headers=headers) as response:
                    reason = "" if response.is_success else f"it answered {response.status_code}"  # nobody reads more than that
            except TimeoutError:
                reason = f"it did not answer in {PATIENCE_SECONDS:.0f} s"
            except (httpx.HTTPError, httpx.InvalidURL) as error:
                reason = reason_of_request(error)
            if not reason:
                if failures_count:
                    _log.info("webhook.recovered", url=hook.url, failures=failures_count)
                return
            failures_count += 1
            if failures_count == 1:
                _log.warning("webhook.failed", url=hook.url, reason=reason)
            await self._sleep(pause)
            pause = min(2 * pause, AGAIN_SECONDS_MAX)
