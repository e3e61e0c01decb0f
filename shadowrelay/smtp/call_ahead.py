"""A source of recipients that asks the next hop: MAIL FROM:<>, RCPT, RSET. docs/reference.md "Known recipients".

The questions go over the sessions of deliveries, to the same servers in the same order (`next_hop_questions`). The rules here:

- Only a 5xx about the address is a no. A 4xx is none, nor is a refusal by policy, of the session or of the null sender.
- Few questions at once to a next hop, one for an address that several clients name, and none for a while after it did not answer.
- Whoever was known before is known while the next hop does not answer.
- A next hop that takes an address that nobody can have knows nothing of that domain. It is said, and not asked any more for an hour.
"""

import asyncio
import secrets
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from typing import Final

import structlog

from shadowrelay.model.message import Recipient
from shadowrelay.model.receive_settings import RecipientSource
from shadowrelay.model.replies import DeliveryError, Reply
from shadowrelay.model.routing import Destination
from shadowrelay.model.values import dataclass
from shadowrelay.protocol.addresses import canonical
from shadowrelay.protocol.fields import domain_of, format_rcpt
from shadowrelay.smtp.answer_cache import AnswerCache
from shadowrelay.smtp.client import Opened
from shadowrelay.smtp.next_hop_questions import Question, Said
from shadowrelay.smtp.recipient_answers import IS_KNOWN, IS_UNKNOWN, NOT_KNOWN_NOW, Answer, Existence

NO_ANSWER = Reply(450, "4.4.1", "The recipient cannot be verified now, try again later")  # RFC 3463 X.4.1
MAILBOX_FULL = Reply(450, "4.2.2", "The mailbox is full, try again later")  # RFC 3463 X.2.2
NEEDS_SMTPUTF8 = Reply(550, "5.6.7", "The next hop does not offer SMTPUTF8")  # RFC 6531 3.5
QUIET_SECONDS, QUIET_SECONDS_MAX = 2.0, 60.0  # after a next hop did not answer; doubled each time
PROBE_HOLDS_SECONDS = 3600.0
NEXT_HOPS_MAX, DOMAINS_MAX = 200, 1_000  # remembered; domains below *.corp.example are without number
ASKING_MAX = 1_000  # addresses in question at a time

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Asking:
    """How next hops are asked, and which one a recipient has. Late: a node is put together in another order."""

    ask: Callable[[Destination, Question, float], Awaitable[Said]]  # `NextHopQuestions.ask`
    destination_of: Callable[[str], Destination]


def judged(said: Said) -> Answer:
    """What the replies of a next hop say of the recipient."""
    if said.mail.code >= 300:
        return Answer(Existence.UNDECIDED, f"the next hop refuses MAIL FROM:<>: {said.mail}")
    reply = said.rcpt
    if reply.code < 300:
        return IS_KNOWN
    if reply.code < 500:
        return Answer(Existence.UNDECIDED, f"the next hop says {reply}")
    if reply is NEEDS_SMTPUTF8:
        return Answer(Existence.UNKNOWN, str(reply))
    subject = reply.enhanced.split(".")[1] if reply.enhanced else ""
    if reply.enhanced == "5.2.2" or (not subject and reply.code == 552):
        return Answer(Existence.UNDECIDED, f"the next hop says {reply}", MAILBOX_FULL)
    # 5.4.1: what Microsoft 365 says of an address that is not in its directory
    if subject in ("1", "2") or reply.enhanced == "5.4.1" or (not subject and reply.code in (550, 551, 553)):
        return Answer(Existence.UNKNOWN, f"the next hop says {reply}")
    return Answer(Existence.KNOWN, f"the next hop refuses it, but not for its address: {reply}")


async def question(address: str, session: Opened, seconds: float) -> Said:
    """Ask in this session, which is as before afterwards. Raises: SessionBroken."""
    pipeline = session.pipeline
    extra = "" if address.isascii() else " SMTPUTF8"
    if extra and "smtputf8" not in session.extensions:
        return Said(Reply(250, "", ""), NEEDS_SMTPUTF8)
    mail, rcpt, rset = f"MAIL FROM:<>{extra}\r\n".encode(), f"RCPT {format_rcpt(Recipient(address), dsn=False)}\r\n".encode(), b"RSET\r\n"
    if "pipelining" in session.extensions:
        pipeline.write(mail + rcpt + rset, 3)
        answers = await pipeline.answers(3, seconds)
    else:
        answers = []
        for line in (mail, rcpt, rset):
            pipeline.write(line, 1)
            answers.append(await pipeline.answer(seconds))
    if pipeline.surplus and pipeline.broken is not None:  # each may be the reply to another line
        raise pipeline.broken.error()
    if answers[2].code >= 300:  # the next MAIL would be refused as one too many
        pipeline.abort()
    return Said(answers[0].reply, answers[1].reply)


@dataclass(slots=True, eq=False)
class AskedHop:
    """A next hop. `reason`: why it did not answer last; empty while it does. Units: the loop's time."""

    turns: asyncio.Semaphore
    reason: str = ""
    failures_count: int = 0
    quiet_until: float = 0.0


class CallAhead:
    """See `recipient_sources.KnowsRecipients`."""

    def __init__(self, settings: RecipientSource, asking: Asking) -> None:
        self.settings: Final = settings
        self.cache: Final = AnswerCache(settings.positive_cache.total_seconds(), settings.negative_cache.total_seconds())
        self._asking = asking
        self._seconds = settings.timeout.total_seconds()
        self._hops: OrderedDict[str, AskedHop] = OrderedDict()
        self._probed: OrderedDict[str, tuple[float, bool]] = OrderedDict()  # by domain: until when it holds, and whether all is accepted
        self._running: dict[str, asyncio.Task[Answer]] = {}
        self._probes: dict[str, asyncio.Task[None]] = {}

    @property
    def known_count(self) -> int:
        """Addresses that are remembered to exist."""
        return self.cache.known_count

    @property
    def problem(self) -> str:
        """What an operator should repair, or empty."""
        return "; ".join(self._problems())

    def _problems(self) -> Iterator[str]:
        name = self.settings.name
        for key, hop in self._hops.items():
            if hop.reason:
                yield f"recipient source {name}: {key} does not say who its recipients are ({hop.reason})"
        if domains := self.accepting_all():
            some = ", ".join(domains[:5])
            yield f"recipient source {name}: the next hop accepts every address of {some}: it knows nothing, name a file or change it"

    def accepting_all(self) -> list[str]:
        """Domains of which every address is accepted."""
        return [domain for domain, (_, accepts_all) in self._probed.items() if accepts_all]

    def forget_refused(self) -> None:
        """An operator has changed something: who did not exist may exist now."""
        self.cache.forget_negative()
        self._probed.clear()
        for hop in self._hops.values():
            hop.quiet_until = 0.0

    async def answer(self, address: str) -> Answer:
        """From memory, or from the next hop. Never raises, and takes as long as `timeout` at most."""
        key = canonical(address) if self.settings.case_sensitive else canonical(address).lower()
        now = asyncio.get_running_loop().time()
        if (exists := self.cache.get(key, now)) is not None:
            return IS_KNOWN if exists else IS_UNKNOWN
        until, accepts_all = self._probed.get(domain_of(address), (0.0, False))
        if accepts_all and now < until:
            return IS_KNOWN
        found = await self._answer_of_next_hop(key, address)
        if found.existence is Existence.UNDECIDED and self.cache.was_known(key, now):
            return IS_KNOWN
        return found

    async def _answer_of_next_hop(self, key: str, address: str) -> Answer:
        running = self._running.get(key)
        if running is None:
            if len(self._running) >= ASKING_MAX:
                return Answer(Existence.UNDECIDED, "too many recipients are asked for", NO_ANSWER)
            running = self._running[key] = asyncio.get_running_loop().create_task(self._asked(key, address), name="call ahead")
            running.add_done_callback(lambda _: self._running.pop(key, None))
        try:
            return await asyncio.shield(running)
        except asyncio.CancelledError:
            if not running.cancelled():
                raise  # the session of this client
            return Answer(Existence.UNDECIDED, "the node stops", NO_ANSWER)

    async def _asked(self, key: str, address: str) -> Answer:
        destination = self._asking.destination_of(address)
        loop, hop = asyncio.get_running_loop(), self._hop(destination.key)
        if loop.time() < hop.quiet_until:
            return Answer(Existence.UNDECIDED, hop.reason, NO_ANSWER)
        found = await self._judged(destination, hop, address)
        now = loop.time()
        if found.existence is Existence.UNDECIDED:
            return found
        is_sure = found is IS_KNOWN
        self.cache.put(key, now, exists=found.existence is Existence.KNOWN, is_sure=is_sure)
        if is_sure and self._probed.get(domain := domain_of(address), (0.0, False))[0] <= now and domain not in self._probes:
            self._probes[domain] = probe = loop.create_task(self._probe(domain, destination, hop), name="call ahead")
            probe.add_done_callback(lambda _: self._probes.pop(domain, None))
        return found

    async def _judged(self, destination: Destination, hop: AskedHop, address: str) -> Answer:
        """Ask, and note what that says of the next hop."""
        has_turn = False
        try:
            async with asyncio.timeout(self._seconds), hop.turns:
                has_turn = True
                said = await self._asking.ask(destination, partial(question, address), self._seconds)
        except TimeoutError:
            if not has_turn:
                return Answer(Existence.UNDECIDED, "too many questions to the next hop wait", NO_ANSWER)
            return self._failed(destination.key, hop, f"no answer in {self._seconds:g} s")
        except DeliveryError as error:
            return self._failed(destination.key, hop, str(error.reply))
        except Exception:
            _log.exception("recipients.failed", source=self.settings.name, next_hop=destination.key)
            return Answer(Existence.UNDECIDED, "a bug", NOT_KNOWN_NOW)
        found = judged(said)
        if said.mail.code >= 500:
            return self._failed(destination.key, hop, found.reason)
        if hop.reason:
            _log.info("recipients.asked_again", source=self.settings.name, next_hop=destination.key)
        hop.reason, hop.failures_count, hop.quiet_until = "", 0, 0.0
        return found

    def _failed(self, next_hop: str, hop: AskedHop, reason: str) -> Answer:
        """The next hop is left alone for a while."""
        now = asyncio.get_running_loop().time()
        if not hop.reason:
            _log.error("recipients.unanswered", source=self.settings.name, next_hop=next_hop, reason=reason)
        if now >= hop.quiet_until:  # not for each of those that waited at the same time
            hop.quiet_until = now + min(QUIET_SECONDS * 2**hop.failures_count, QUIET_SECONDS_MAX)
            hop.failures_count = min(hop.failures_count + 1, 10)
        hop.reason = reason
        return Answer(Existence.UNDECIDED, reason, NO_ANSWER)

    async def _probe(self, domain: str, destination: Destination, hop: AskedHop) -> None:
        """Ask for an address that nobody has."""
        found = await self._judged(destination, hop, f"{secrets.token_hex(12)}@{domain}")
        if found.existence is Existence.UNDECIDED:
            return
        accepts_all = found is IS_KNOWN
        _, before = self._probed.pop(domain, (0.0, False))
        if accepts_all and not before:
            _log.warning("recipients.all_accepted", source=self.settings.name, domain=domain, next_hop=destination.key)
        if len(self._probed) >= DOMAINS_MAX:
            self._probed.popitem(last=False)
        self._probed[domain] = asyncio.get_running_loop().time() + PROBE_HOLDS_SECONDS, accepts_all

    def _hop(self, key: str) -> AskedHop:
        hop = self._hops.get(key)
        if hop is None:
            if len(self._hops) >= NEXT_HOPS_MAX:
                self._hops.popitem(last=False)
            hop = self._hops[key] = AskedHop(asyncio.Semaphore(self.settings.sessions))
        return hop

    async def close(self) -> None:
        """End all questions."""
        tasks = [*self._running.values(), *self._probes.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
