"""Sessions of people who logged in: who it is, their CSRF token, and what was just done. docs/reference.md "Console".

A session is in memory only: it ends with the process, after `SESSION_LASTS`, or when somebody logs out. It keeps the person's token,
because what is done on another node is done there in the person's own name.
"""

import hmac
import secrets
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from hashlib import sha256

from shadowrelay.admin.people import Person

SESSION_LASTS = timedelta(hours=12)
SESSIONS_MAX = 200  # a further one ends the oldest
KEPT_MAX = 20  # lists of what acts on many were done to; a thousand names each
NOTES_MAX = 50  # one for each node of an act on all


@dataclass(frozen=True, slots=True)
class Note:
    """What an act did, for the next page; `undo` leads to what takes it back, or is empty."""

    text: str
    is_failure: bool = False
    undo: str = ""


@dataclass(slots=True)
class ConsoleSession:
    """One person at one browser."""

    person: Person
    token: str
    csrf: str
    ends_at: datetime
    notes: list[Note] = field(default_factory=list)
    _kept: dict[str, tuple[str, ...]] = field(default_factory=dict)

    def is_own(self, csrf: str) -> bool:
        """Whether a form is from one of this session's pages."""
        return hmac.compare_digest(self.csrf.encode(), csrf.encode("utf-8", "surrogateescape"))

    def note(self, note: Note) -> None:
        """To be shown on the next page."""
        self.notes = [*self.notes, note][-NOTES_MAX:]

    def keep(self, those: tuple[str, ...]) -> str:
        """What an act on many was done to, so that it can be taken back; returns its key. The oldest makes room."""
        key = secrets.token_urlsafe(8)
        self._kept[key] = those
        while len(self._kept) > KEPT_MAX:
            del self._kept[next(iter(self._kept))]
        return key

    def kept(self, key: str) -> tuple[str, ...]:
        """None of them if it is not known any more."""
        return self._kept.get(key, ())

    def told(self) -> list[Note]:
        """What is to be shown now, once."""
        notes, self.notes = self.notes, []
        return notes


class ConsoleSessions:
    """By the digest of the cookie: it is a secret, and is compared as one."""

    def __init__(self, now: Callable[[], datetime]) -> None:
        self._now = now
        self._sessions: dict[bytes, ConsoleSession] = {}

    def begin(self, person: Person, token: str) -> str:
        """Returns the cookie."""
        cookie = secrets.token_urlsafe(32)
        self._sessions[_key(cookie)] = ConsoleSession(person, token, secrets.token_urlsafe(32), self._now() + SESSION_LASTS)
        while len(self._sessions) > SESSIONS_MAX:
            del self._sessions[next(iter(self._sessions))]
        return cookie

    def find(self, cookie: str) -> ConsoleSession | None:
        """None: there is none, or it has ended."""
        session = self._sessions.get(_key(cookie)) if cookie else None
        if session is not None and session.ends_at <= self._now():
            self.end(cookie)
            return None
        return session

    def end(self, cookie: str) -> None:
        """Log out."""
        self._sessions.pop(_key(cookie), None)


def _key(cookie: str) -> bytes:
    return sha256(cookie.encode("utf-8", "surrogateescape")).digest()
