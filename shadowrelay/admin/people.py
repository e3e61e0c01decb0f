"""Who asks, and what they may do: the tokens of the node, and named people with roles. docs/reference.md "People and roles".

The node's own token is the administrator's. Whoever has the read-only token, or a peer's certificate, may read what monitoring and other
nodes need. `[[admin.users]]` adds people with tokens of their own, of which the configuration has only hashes. A hash takes a core for some
hundredths of a second: a token that was right is recognised without it from then on, and who gives wrong ones has to wait.
"""

import asyncio
import hmac
import math
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from hashlib import sha256

import structlog

from shadowrelay.model.client_address import client_network
from shadowrelay.model.replies import ShadowrelayError
from shadowrelay.model.settings import AdminRole, AdminUser
from shadowrelay.model.values import dataclass

RECOGNISED_MAX = 200  # tokens, by their digest
FAILURES_MAX = 5  # of one network in `FAILURES_SECONDS`; a person who mistypes has that many
FAILURES_SECONDS = 60.0
NETWORKS_MAX = 1_000  # that failed lately
WAITING_MAX = 8  # tokens whose hash is to be computed; one at a time is, so that mail keeps the other cores

_log = structlog.get_logger()


class Right(frozenset[AdminRole]):
    """Who has it."""


READ = Right(AdminRole)
ACT = Right({AdminRole.OPERATOR, AdminRole.ADMINISTRATOR})
CONTENT = ACT  # of messages
AUDIT = Right({AdminRole.AUDITOR, AdminRole.OPERATOR, AdminRole.ADMINISTRATOR})
FORCE = Right({AdminRole.ADMINISTRATOR})  # what may deliver mail again


@dataclass(frozen=True, slots=True)
class Person:
    """Who asks. `is_named`: by `[[admin.users]]`; then what they say of themselves (`by`) does not count."""

    name: str
    role: AdminRole
    sees_messages: bool = True
    is_named: bool = False

    def may(self, right: Right) -> bool:
        """Whether the role has it."""
        return self.role in right


ADMINISTRATOR = Person("administrator", AdminRole.ADMINISTRATOR)
READER = Person("read-only", AdminRole.VIEWER)


class TooManyFailures(ShadowrelayError):
    """Wrong tokens came from there lately. Units: `seconds` until the next one is looked at."""

    def __init__(self, seconds: float) -> None:
        super().__init__(f"too many wrong tokens: try again in {math.ceil(seconds)} s")
        self.seconds = math.ceil(seconds)


class People:
    """Recognises tokens. `clock`: seconds that only grow."""

    def __init__(
        self, token: str, read_only_token: str = "", users: Sequence[AdminUser] = (), clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._token, self._read_only_token, self._users, self._clock = token, read_only_token, users, clock
        self._recognised: OrderedDict[bytes, Person] = OrderedDict()
        self._failures: OrderedDict[str, list[float]] = OrderedDict()
        self._hashing = asyncio.Semaphore(1)
        self._waiting_count = 0

    def withdraw(self, users: Sequence[AdminUser]) -> None:
        """Only these of the people are left, with these roles: what others had counts no more."""
        self._users = users
        self._recognised = OrderedDict((digest, person) for digest, person in self._recognised.items() if self.counts(person))

    def counts(self, person: Person) -> bool:
        """Whether a person who was recognised still has these rights."""
        return not person.is_named or any(_person(user) == person for user in self._users)

    def known(self, token: str) -> Person | None:
        """Without the computation of a hash. Takes the same time for every wrong token."""
        given = token.encode("utf-8", "surrogateescape")
        is_administrator = hmac.compare_digest(self._token.encode(), given)
        is_reader = hmac.compare_digest(self._read_only_token.encode(), given) and bool(token)
        if is_administrator or is_reader:
            return ADMINISTRATOR if is_administrator else READER
        return self._recognised.get(sha256(given).digest()) if self._users else None

    async def recognise(self, token: str, address: str, *, is_at_the_door: bool = False) -> Person | None:
        """The owner of the token. `is_at_the_door`: wrong ones count also where no hash is computed.

        Raises: TooManyFailures.
        """
        if (found := self.known(token)) is not None:
            return found
        if not (self._users or is_at_the_door):
            return None
        network = client_network(address)
        self._refuse(network)
        found = await self._owner_of(token) if token else None
        if found is None:
            self._note_failure(network, address)
        else:
            self._failures.pop(network, None)
        return found

    def _refuse(self, network: str) -> None:
        now = self._clock()
        recent = [at for at in self._failures.get(network, ()) if at > now - FAILURES_SECONDS]
        if len(recent) >= FAILURES_MAX:
            raise TooManyFailures(recent[-FAILURES_MAX] + FAILURES_SECONDS - now)
        if self._waiting_count >= WAITING_MAX:
            raise TooManyFailures(1.0)

    def _note_failure(self, network: str, address: str) -> None:
        now = self._clock()
        recent = [at for at in self._failures.pop(network, ()) if at > now - FAILURES_SECONDS]
        self._failures[network] = [*recent, now]
        if len(self._failures) > NETWORKS_MAX:
            self._failures.popitem(last=False)
        _log.warning("admin.token_refused", client=address, failures=len(recent) + 1)

    async def _owner_of(self, token: str) -> Person | None:
        self._waiting_count += 1
        try:
            async with self._hashing:
                user = await asyncio.to_thread(_owner, token, self._users)
        finally:
            self._waiting_count -= 1
        if user is None:
            return None
        person = _person(user)
        if not self.counts(person):  # withdrawn while the hash was computed
            return None
        self._recognised[sha256(token.encode("utf-8", "surrogateescape")).digest()] = person
        if len(self._recognised) > RECOGNISED_MAX:
            self._recognised.popitem(last=False)
        return person


def _owner(token: str, users: Sequence[AdminUser]) -> AdminUser | None:
    from argon2 import PasswordHasher  # only where there are people
    from argon2.exceptions import InvalidHashError, VerificationError

    for user in users:
        try:
            if PasswordHasher().verify(user.token_hash, token):
                return user
        except (VerificationError, InvalidHashError):
            continue
    return None


def _person(user: AdminUser) -> Person:
    return Person(user.name, user.role, user.sees_messages or user.role is not AdminRole.VIEWER, is_named=True)


def hashed(token: str) -> str:
    """For `token_hash`."""
    from argon2 import PasswordHasher

    return PasswordHasher().hash(token)
