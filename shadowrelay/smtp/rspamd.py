"""Asks rspamd about a message: HTTP /checkv2. docs/reference.md "Filters before the copy". Its reply: `protocol.rspamd_reply`."""

import contextlib
from ipaddress import ip_address

import httpx

from shadowrelay.model.filtering import FilterVerdict
from shadowrelay.model.receive_settings import Filter
from shadowrelay.protocol.original_client import encoded
from shadowrelay.protocol.rspamd_reply import REPLY_OCTETS_MAX, BadVerdict, parse_reply
from shadowrelay.smtp.mail_filters import FilterFailed, Passage
from shadowrelay.smtp.web_answers import UNPACKED, BoundedTransport

RECIPIENTS_MAX = 100  # told; a header line each
KEPT_SECONDS = 30.0  # connections


class Rspamd:
    """One rspamd. See `mail_filters.MailFilter`."""

    def __init__(self, settings: Filter) -> None:
        self._name = settings.name
        # trust_env off: a proxy from the environment must not see mail. The caller limits the time.
        self._http = httpx.AsyncClient(
            base_url=settings.address,
            timeout=None,
            trust_env=False,
            transport=BoundedTransport(
                REPLY_OCTETS_MAX, limits=httpx.Limits(max_connections=settings.concurrency, keepalive_expiry=KEPT_SECONDS)
            ),
        )

    async def judge(self, passage: Passage) -> FilterVerdict:
        """See `mail_filters.MailFilter`."""
        headers = [*_headers(passage), ("Content-Length", str(passage.size)), *UNPACKED.items()]
        try:
            async with self._http.stream("POST", "/checkv2", headers=headers, content=passage.blocks()) as response:
                if response.status_code != 200:
                    raise FilterFailed(f"HTTP status {response.status_code}")
                octets = bytearray()
                async for block in response.aiter_raw():
                    octets += block
                    if len(octets) > REPLY_OCTETS_MAX:
                        raise FilterFailed(f"a reply longer than {REPLY_OCTETS_MAX} octets")
        except (httpx.HTTPError, httpx.InvalidURL, httpx.StreamError) as error:
            raise FilterFailed(f"{type(error).__name__}: {error}"[:200]) from error
        try:
            return parse_reply(bytes(octets), self._name)
        except BadVerdict as error:
            raise FilterFailed(f"a reply that means nothing: {error}") from error

    async def close(self) -> None:
        """See `mail_filters.MailFilter`."""
        await self._http.aclose()


def _headers(passage: Passage) -> list[tuple[str, str]]:
    """What rspamd is told of the message's envelope."""
    envelope = passage.envelope
    told = [("Queue-Id", envelope.message_id), ("From", _plain(envelope.sender)), ("Helo", _plain(envelope.client_name))]
    told += [("Rcpt", _plain(recipient.address)) for recipient in envelope.recipients[:RECIPIENTS_MAX]]
    with contextlib.suppress(ValueError):
        told.append(("Ip", str(ip_address(envelope.client_address))))
    if passage.client:
        told.append(("Hostname", _plain(passage.client)))
    if passage.login:
        told.append(("User", _plain(passage.login)))
    return told


def _plain(text: str) -> str:
    """For a line of HTTP: UTF-8 octets and controls as xtext has them."""
    return text if text.isascii() and text.isprintable() else encoded(text)
