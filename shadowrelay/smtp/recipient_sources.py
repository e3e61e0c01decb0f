"""Whether a recipient exists, by the sources that a receive connector names. RFC 5321 3.3, 4.5.1; docs/reference.md "Known recipients".

The rules here:

- Only recipients of `accepted_domains` are looked up, and only those of clients: what a peer sends was promised before.
- `Postmaster` of an accepted domain always exists.
- Of several sources it is enough that one knows the recipient. Where none does and one is undecided, the client is told to come again, or
  the recipient is accepted, as that source is set.
"""

import asyncio
import contextlib
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Final, Protocol

import structlog

from shadowrelay.model.receive_settings import ReceiveConnector, RecipientSource, SourceKind, Undecided
from shadowrelay.model.replies import Reply
from shadowrelay.model.settings import Settings
from shadowrelay.protocol.addresses import canonical_local
from shadowrelay.smtp.call_ahead import Asking, CallAhead
from shadowrelay.smtp.recipient_answers import IS_KNOWN, IS_UNKNOWN, NO_SUCH_RECIPIENT, Answer, Existence
from shadowrelay.smtp.recipient_file import LOOK_SECONDS, RecipientFile

ADDRESS_CHARACTERS_SHOWN = 254

_log = structlog.get_logger()


class KnowsRecipients(Protocol):
    """One of [[recipient_sources]]."""

    @property
    def settings(self) -> RecipientSource: ...

    @property
    def problem(self) -> str:
        """What an operator should repair, or empty."""
        ...

    async def answer(self, address: str) -> Answer:
        """Whether it knows this recipient. Never raises."""
        ...


class FileSource:
    """Answers from memory."""

    def __init__(self, settings: RecipientSource, file: RecipientFile) -> None:
        self.settings: Final = settings
        self.file: Final = file

    @property
    def problem(self) -> str:
        """What an operator should repair, or empty."""
        return f"recipient source {self.settings.name}: {self.file.problem}" if self.file.problem else ""

    @property
    def known_count(self) -> int:
        """Addresses in the list."""
        return 0 if self.file.known is None else self.file.known.count

    async def answer(self, address: str) -> Answer:
        """Undecided until the file was read once."""
        if (known := self.file.known) is None:
            return Answer(Existence.UNDECIDED, self.file.problem or "the file was not read yet")
        return IS_KNOWN if known.has(address, self.settings.subaddress_delimiters) else IS_UNKNOWN


class RecipientCheck:
    """What one receive connector asks at RCPT."""

    def __init__(self, connector: str, sources: Sequence[KnowsRecipients], counts: "Counter[Existence]") -> None:
        self._connector = connector
        self._sources = sources
        self._counts = counts

    async def refusal(self, address: str, client: str) -> Reply | None:
        """Why this recipient of an accepted domain is refused, or None."""
        if canonical_local(address.rpartition("@")[0]).lower() == "postmaster":
            return None
        undecided: list[tuple[KnowsRecipients, Answer]] = []
        for source in self._sources:
            found = await source.answer(address)
            if found.existence is Existence.KNOWN:
                self._counts[Existence.KNOWN] += 1
                return None
            if found.existence is Existence.UNDECIDED:
                undecided.append((source, found))
        if not undecided:
            self._counts[Existence.UNKNOWN] += 1
            self._log_refusal(address, client, NO_SUCH_RECIPIENT, "no source knows it")
            return NO_SUCH_RECIPIENT
        self._counts[Existence.UNDECIDED] += 1
        accepting = next((source for source, _ in undecided if source.settings.unavailable is Undecided.ACCEPT), None)
        source, found = undecided[0]
        if accepting is not None:
            _log.info(
                "recipient.unverified", connector=self._connector, recipient=address[:ADDRESS_CHARACTERS_SHOWN],
                source=source.settings.name, reason=found.reason,
            )  # fmt: skip
            return None
        self._log_refusal(address, client, found.reply, f"{source.settings.name}: {found.reason}")
        return found.reply

    def _log_refusal(self, address: str, client: str, reply: Reply, reason: str) -> None:
        _log.info(
            "recipient.refused", connector=self._connector, client=client, recipient=address[:ADDRESS_CHARACTERS_SHOWN],
            reply=str(reply), reason=reason,
        )  # fmt: skip


class RecipientSources:
    """All sources of a node. Follows the settings, and the files."""

    def __init__(self, settings: Settings, asking: Asking) -> None:
        self.counts: Counter[Existence] = Counter(dict.fromkeys(Existence, 0))
        self._asking = asking
        self._sources: dict[str, FileSource | CallAhead] = {}
        self._gone: list[CallAhead] = []
        self._woken, self._was_read = asyncio.Event(), asyncio.Event()
        self.adopt(settings)

    def adopt(self, settings: Settings) -> None:
        """Follow changed settings, and have all files read at once. A list stays where its file is the same, and a source that is gone
        where a connector that waits for the restart still names it."""
        before, wanted = self._sources, {name for connector in settings.receive_connectors for name in connector.recipients}
        self._sources = {name: source for name, source in before.items() if name in wanted}
        self._sources |= {each.name: self._made(each, before.get(each.name)) for each in settings.recipient_sources}
        self._gone += [one for one in before.values() if isinstance(one, CallAhead) and one not in self._sources.values()]
        self._woken.set()

    def _made(self, settings: RecipientSource, before: FileSource | CallAhead | None) -> FileSource | CallAhead:
        if settings.kind is SourceKind.CALL_AHEAD:
            if isinstance(before, CallAhead) and before.settings == settings:
                before.forget_refused()
                return before
            return CallAhead(settings, self._asking)
        assert settings.file is not None, "a validator saw to that"
        if isinstance(before, FileSource) and (before.file.path, before.file.is_case_sensitive) == (settings.file, settings.case_sensitive):
            return FileSource(settings, before.file)
        return FileSource(settings, RecipientFile(settings.name, settings.file, is_case_sensitive=settings.case_sensitive))

    def check_for(self, connector: ReceiveConnector) -> RecipientCheck | None:
        """None if the connector names no source. Every name is known: `settings.consistency`."""
        sources = [self._sources[name] for name in connector.recipients]
        return RecipientCheck(connector.name, sources, self.counts) if sources else None

    def _files(self) -> list[RecipientFile]:
        return [source.file for source in self._sources.values() if isinstance(source, FileSource)]

    def _calling(self) -> dict[str, CallAhead]:
        return {name: source for name, source in self._sources.items() if isinstance(source, CallAhead)}

    async def run(self) -> None:
        """Look at the files, forever; at once after `adopt`."""
        while True:
            is_asked = self._woken.is_set()
            self._woken.clear()
            await self.read(is_asked=is_asked)
            self._was_read.set()
            try:
                async with asyncio.timeout(LOOK_SECONDS if self._files() else None):
                    await self._woken.wait()
            except TimeoutError:
                continue

    async def read(self, *, is_asked: bool = True) -> None:
        """Look at all files; `is_asked`: read them, changed or not."""
        await asyncio.gather(*(file.look(is_asked=is_asked) for file in self._files()))

    async def first_look(self, seconds: float) -> None:
        """Wait until `run` has tried to read all files once; at most so long, because a node does not wait for a file system that hangs."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._was_read.wait()

    async def close(self) -> None:
        """End all questions to next hops."""
        await asyncio.gather(*(source.close() for source in (*self._calling().values(), *self._gone)))

    def problems(self) -> Iterator[str]:
        """What an operator should repair."""
        for source in self._sources.values():
            if source.problem:
                yield source.problem

    def known(self) -> dict[str, int]:
        """How many addresses each list has, or are remembered from answers."""
        return {name: source.known_count for name, source in self._sources.items()}

    def broken(self) -> dict[str, int]:
        """1 where the list in use is not that of the file, or a next hop does not answer or accepts everything."""
        return {name: int(bool(source.problem)) for name, source in self._sources.items()}

    def accepting_all(self) -> dict[str, int]:
        """Of how many domains the next hop accepts every address."""
        return {name: len(source.accepting_all()) for name, source in self._calling().items()}
