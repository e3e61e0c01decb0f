"""MTA-STS for deliveries by MX: finds the policy of a domain, keeps it, and renews it in time. RFC 8461; docs/reference.md "MTA-STS"

The id in DNS says whether a policy is new; the policy comes over HTTPS from the domain's own host, whose certificate is verified. A policy
that is kept and has not ended counts, whatever DNS or the host say or do not say now (RFC 8461 5.1): else whoever can change the traffic
could take it away. What is kept is on disk, so that this holds from the first message after a start.

A host that hangs or lies costs the mail for its own domain a few seconds at most, once: then there is no policy for a while. Many such
hosts, to which whoever forges senders leads our notifications, cost the mail for others no more than a turn.
"""

import asyncio
import contextlib
import hashlib
import json
import os
import ssl
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from pathlib import Path

import httpx
import structlog

from shadowrelay.model.printable import printable
from shadowrelay.model.protection import Protection, TlsMode
from shadowrelay.model.replies import DeliveryError, Reply
from shadowrelay.model.routing import HostPort, Reach
from shadowrelay.model.values import dataclass
from shadowrelay.smtp.mta_sts_policy import POLICY_OCTETS_MAX, Mode, Policy, parse_policy, record_id
from shadowrelay.smtp.own_addresses import is_out_of_reach
from shadowrelay.smtp.turns import turn
from shadowrelay.smtp.web_answers import UNPACKED, BoundedTransport, octets_of, reason_of_request

HTTPS_PORT = 443
FETCH_SECONDS = 15.0  # RFC 8461 3.3 suggests a minute; mail waits for it
FETCHES_AT_ONCE_MAX = 20
PROMPT_SECONDS, LATE_MAX = 2.0, 100  # then a fetch is late and its place free: hosts that hang keep no other domain waiting
DOMAINS_MAX = 10_000
WRITTEN_BEFORE_ROOM = 1_000  # policies; then those that were written longest ago end on disk, too
PAUSE_SECONDS = 300.0  # after a failure: there is no policy, or the kept one
RENEWED_SHARE = 0.5  # of max_age, and a day at most: then it is fetched again, though its id is the same. RFC 8461 3.3, 5.1
RENEWED_SECONDS_MAX = 86_400.0
TRIED_AGAIN_SECONDS = 3_600.0  # a server whose TLS would fail a policy in testing
NOT_IN_POLICY = Reply(451, "4.7.5", "No mail server of the domain is in its MTA-STS policy")

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Kept:
    """A policy, its id in DNS, and when it was fetched. Units: seconds since 1970."""

    id: str
    policy: Policy
    at: float

    def is_valid(self, now: float) -> bool:
        """Also after the clock was set back."""
        return now < self.at + self.policy.max_age

    def is_old(self, now: float) -> bool:
        """Whether to fetch it again."""
        return now >= self.at + min(self.policy.max_age * RENEWED_SHARE, RENEWED_SECONDS_MAX)

    @property
    def protection(self) -> Protection | None:
        """What it demands of sessions with the domain's mail servers; of a policy that is tested, what it would."""
        if self.policy.mode is Mode.NONE:
            return None
        return Protection(TlsMode.VERIFIED, policy=f"mta-sts={self.id}", is_trial=self.policy.mode is Mode.TESTING)


AskTxt = Callable[[str], Awaitable[tuple[str, ...]]]
"""The TXT records of a name; empty if there are none, or nothing answers."""
AskAddresses = Callable[[str, int], Awaitable[tuple[HostPort, ...]]]
"""The addresses of a host, with this port. Raises DeliveryError."""


class MtaSts:
    """The policies of all domains. `directory`: where they are kept. `context`: for tests, whom to trust."""

    def __init__(
        self,
        txt: AskTxt,
        addresses: AskAddresses,
        directory: Path | None,
        *,
        port: int = HTTPS_PORT,
        reach: Reach = Reach.PUBLIC,
        context: ssl.SSLContext | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._txt, self._addresses, self._directory = txt, addresses, directory
        self.counts = {True: 0, False: 0}  # policies asked for: whether one came
        self.test_failures_count = 0  # sessions that a policy in testing would have refused
        self._failing: OrderedDict[tuple[str, str], tuple[float, str]] = OrderedDict()  # server and policy: until when, and why
        self._port, self._reach, self._context, self._clock = port, reach, context, clock
        self._kept: OrderedDict[str, Kept | None] = OrderedDict()  # None: looked for on disk, and not there
        self._paused_until: OrderedDict[str, float] = OrderedDict()
        self._fetches: dict[str, asyncio.Task[None]] = {}
        self._room = asyncio.Semaphore(FETCHES_AT_ONCE_MAX)
        self._late: dict[asyncio.Timeout, None] = {}
        self._written_count = 0

    async def of(self, domain: str) -> Kept | None:
        """The policy in force for mail to this domain, if it has one."""
        domain = domain.lower().rstrip(".")
        if not domain or domain.startswith("[") or "." not in domain:
            return None
        kept = await self._known(domain)
        found = record_id(await self._txt(f"_mta-sts.{domain}"))
        now = self._clock()
        if kept is not None and not kept.is_valid(now):
            kept = None
        if not found or now < self._paused_until.get(domain, 0.0):
            return kept
        if kept is None or kept.id != found:
            await asyncio.shield(self._fetch(domain, found))
            kept = self._kept.get(domain) or kept
            return kept if kept is not None and kept.is_valid(now) else None
        if kept.is_old(now):
            self._fetch(domain, found)  # mail need not wait for it
        return kept

    # policies in testing: RFC 8461 5

    def would_fail(self, server: str, policy: str, reply: Reply) -> None:
        """Under this policy, which is being tested, mail would wait. Said once an hour for each reason; mail goes on."""
        self.test_failures_count += 1
        now, key = self._clock(), (server, policy)
        said = self._failing.get(key)
        if said is None or now >= said[0] or said[1] != reply.text:
            _log.warning("mta_sts.test_failed", server=server, policy=policy, reason=reply.text)
            self._failing[key] = now + TRIED_AGAIN_SECONDS, reply.text
            self._failing.move_to_end(key)
        while len(self._failing) > DOMAINS_MAX:
            self._failing.popitem(last=False)

    def is_known_to_fail(self, server: str, policy: str) -> bool:
        """Whether its TLS failed within the hour: then it is not tried for each session."""
        said = self._failing.get((server, policy))
        return said is not None and said[1] != NOT_IN_POLICY.text and self._clock() < said[0]

    def fails_still(self) -> None:
        """A session goes to a server that is known to fail."""
        self.test_failures_count += 1

    def passed(self, server: str) -> None:
        """It has all that its policies demand."""
        for key in [key for key, (_, why) in self._failing.items() if key[0] == server and why != NOT_IN_POLICY.text]:
            del self._failing[key]

    async def close(self) -> None:
        """End what is being fetched."""
        fetches = list(self._fetches.values())
        for fetch in fetches:
            fetch.cancel()
        await asyncio.gather(*fetches, return_exceptions=True)

    def _fetch(self, domain: str, found: str) -> "asyncio.Task[None]":
        running = self._fetches.get(domain)
        if running is None:
            running = self._fetches[domain] = asyncio.get_running_loop().create_task(self._renew(domain, found))
            running.add_done_callback(lambda _: self._fetches.pop(domain, None))
        return running

    async def _renew(self, domain: str, found: str) -> None:
        try:
            async with turn(self._room, self._late, PROMPT_SECONDS, LATE_MAX), asyncio.timeout(FETCH_SECONDS):
                policy = parse_policy(await self._downloaded(f"mta-sts.{domain}"))
        except TimeoutError:
            reason = f"no answer in {FETCH_SECONDS:.0f} s, or too many hosts do not answer"
        except (httpx.HTTPError, OSError, ValueError, DeliveryError) as error:
            reason = printable(reason_of_request(error))[:300]
        else:
            before = self._kept.get(domain)
            kept = Kept(found, policy, self._clock())
            self._remember(domain, kept)
            self.counts[True] += 1
            if before is None or (before.id, before.policy) != (kept.id, kept.policy):
                _log.info("mta_sts.policy", domain=domain, mode=policy.mode.value, id=found, max_age=policy.max_age)
            await asyncio.to_thread(self._write, domain, kept)
            return
        self.counts[False] += 1
        self._paused_until[domain] = self._clock() + PAUSE_SECONDS
        while len(self._paused_until) > DOMAINS_MAX:
            self._paused_until.popitem(last=False)
        _log.warning("mta_sts.no_policy", domain=domain, reason=reason)

    async def _downloaded(self, host: str) -> bytes:
        """From one of its addresses, which are looked up as those of mail servers are; never from this network."""
        addresses = [each for each in await self._addresses(host, self._port) if not is_out_of_reach(each, self._reach)]
        if not addresses:
            raise ValueError(f"{host} has no address that may be asked")
        context = await asyncio.to_thread(ssl.create_default_context) if self._context is None else self._context
        transport = BoundedTransport(POLICY_OCTETS_MAX, verify=context)
        async with httpx.AsyncClient(transport=transport, timeout=FETCH_SECONDS, follow_redirects=False, trust_env=False) as client:
            for place, address in enumerate(addresses[:2]):
                request = client.build_request(
                    "GET",
                    f"https://{address}/.well-known/mta-sts.txt",
                    headers={"Host": host, **UNPACKED},
                    extensions={"sni_hostname": host},
                )
                try:
                    answer = await client.send(request, stream=True)
                except httpx.ConnectError:
                    if place + 1 < len(addresses[:2]):
                        continue
                    raise
                try:
                    if answer.status_code != 200:
                        raise ValueError(f"{host} answers {answer.status_code}")
                    if answer.headers.get("content-type", "").partition(";")[0].strip().lower() != "text/plain":
                        raise ValueError(f"what {host} answers is not text/plain")
                    return await octets_of(answer, POLICY_OCTETS_MAX)
                finally:
                    await answer.aclose()
        raise AssertionError("the last address answers or raises")

    # what is kept

    async def _known(self, domain: str) -> Kept | None:
        if domain not in self._kept:
            self._remember(domain, await asyncio.to_thread(self._read, domain))
        else:
            self._kept.move_to_end(domain)
        return self._kept[domain]

    def _remember(self, domain: str, kept: Kept | None) -> None:
        self._kept[domain] = kept
        self._kept.move_to_end(domain)
        while len(self._kept) > DOMAINS_MAX:
            self._kept.popitem(last=False)

    def _path(self, domain: str) -> Path | None:
        if self._directory is None:
            return None
        return self._directory / "mta-sts" / hashlib.sha256(domain.encode("utf-8", "replace")).hexdigest()[:32]

    def _read(self, domain: str) -> Kept | None:
        path = self._path(domain)
        if path is None:
            return None
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            found = json.loads(path.read_bytes())
            if found["domain"] == domain:
                return Kept(str(found["id"]), parse_policy(str(found["policy"]).encode()), float(found["at"]))
        return None

    def _write(self, domain: str, kept: Kept) -> None:
        path = self._path(domain)
        if path is None:
            return
        policy = kept.policy
        lines = ["version: STSv1", f"mode: {policy.mode.value}", f"max_age: {policy.max_age}", *(f"mx: {one}" for one in policy.patterns)]
        text = "\n".join(lines)
        try:
            path.parent.mkdir(mode=0o700, exist_ok=True)
            new = path.with_suffix(f".{os.getpid()}")
            new.write_text(json.dumps({"domain": domain, "id": kept.id, "at": kept.at, "policy": text}))
            new.replace(path)
            self._written_count += 1
            if self._written_count % WRITTEN_BEFORE_ROOM == 1:
                _make_room(path.parent)
        except OSError as error:
            _log.warning("mta_sts.not_kept", domain=domain, reason=error.strerror)


def _make_room(directory: Path) -> None:
    """Whoever has many domains has many policies: the disk keeps those that were renewed last. Raises: OSError."""
    written: list[tuple[float, Path]] = []
    for path in directory.iterdir():
        with contextlib.suppress(FileNotFoundError):
            written.append((path.stat().st_mtime, path))
    for _, path in sorted(written)[: max(0, len(written) - DOMAINS_MAX)]:
        path.unlink(missing_ok=True)
