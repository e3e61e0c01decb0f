"""Opens sessions as a route demands: its TLS context and certificates, its login. docs/operations.md "TLS to next hops"

A route without demands costs a comparison. What a route demands and cannot have ends the opening with a reply that says why; it never
falls back to less. Files are read in a thread when the first session needs them, and again after SIGHUP.
"""

import ssl
from functools import partial
from pathlib import Path

from shadowrelay import credentials
from shadowrelay.bounded import FILES
from shadowrelay.model.counts import SessionCounts, TlsFailure
from shadowrelay.model.protection import Login, Protection, TlsMode
from shadowrelay.model.replies import ConfigurationError
from shadowrelay.model.values import replace
from shadowrelay.smtp.client import ConnectOptions, Opened, TlsFailed, TlsUse
from shadowrelay.smtp.client_session import TLS_FAILED, SessionBroken
from shadowrelay.smtp.logins import LoginAt
from shadowrelay.smtp.tokens import TokenSource

_USES = {
    TlsMode.NONE: TlsUse.NEVER,
    TlsMode.OPPORTUNISTIC: TlsUse.OPPORTUNISTIC,
    TlsMode.REQUIRED: TlsUse.REQUIRED,
    TlsMode.VERIFIED: TlsUse.REQUIRED,
}


class RouteSessions:
    """What routes demand of their sessions, and what came of it. `state_directory`: for refresh tokens that were replaced."""

    def __init__(self, state_directory: Path | None = None) -> None:
        self.counts = SessionCounts()
        self._state_directory = state_directory
        self._contexts: dict[Protection, ssl.SSLContext] = {}
        self._logins: dict[tuple[Protection, str], LoginAt] = {}
        self._tokens: dict[Login, TokenSource] = {}

    def reload(self) -> None:
        """Files are read again for the next sessions, and what was refused is tried again."""
        self.close()
        self._contexts.clear()
        self._logins.clear()
        self._tokens.clear()

    def close(self) -> None:
        """Nothing is asked for any more."""
        for tokens in self._tokens.values():
            tokens.close()

    @property
    def failing_logins_count(self) -> int:
        """Logins whose last trial came to nothing, for another reason than a 4xx."""
        return sum(login.is_failing for login in self._logins.values())

    async def options(self, base: ConnectOptions, protection: Protection | None, name: str) -> ConnectOptions:
        """How to open a session with the server of this name. Raises: SessionBroken if a file cannot be used, or there is no secret."""
        if protection is None:
            return base
        context = self._contexts.get(protection)
        if context is None:
            try:
                context = await FILES.read(credentials.certificates_of(protection), partial(credentials.client_context, protection))
                self._contexts[protection] = context
            except (ConfigurationError, TimeoutError) as error:
                raise self._failed(TlsFailed(TLS_FAILED._replace(text=f"{TLS_FAILED.text}: {error}"), TlsFailure.SETTINGS)) from error
        is_verified = protection.tls is TlsMode.VERIFIED
        refusal = partial(credentials.refusal_of, protection) if is_verified else None
        options = replace(base, tls=_USES[protection.tls], context=context, refusal=refusal)
        if protection.login is None:
            return options
        login = self._login_at(protection, protection.login, name)
        return replace(options, login=partial(login.run, await login.secret()))

    def _login_at(self, protection: Protection, login: Login, name: str) -> LoginAt:
        found = self._logins.get((protection, name))
        if found is None:
            tokens = None
            if login.token is not None:
                tokens = self._tokens.setdefault(login, TokenSource(login, self.counts, self._state_directory))
            is_verified = protection.tls is TlsMode.VERIFIED
            found = self._logins[protection, name] = LoginAt(login, name, self.counts, tokens, is_verified=is_verified)
        return found

    def opened(self, session: Opened, protection: Protection | None) -> Opened:
        """Count it."""
        kind = session.tls or "none"
        self.counts.opened[kind] = self.counts.opened.get(kind, 0) + 1
        if session.tls_failure is not None:
            self._failed(session.tls_failure)
        if protection is not None and protection.policy and session.tls.endswith(",verified"):
            session.tls = f"{session.tls},{protection.policy}"
        return session

    def note_failure(self, error: SessionBroken) -> None:
        """Count it, if it is of TLS."""
        if isinstance(error, TlsFailed):
            self._failed(error)

    def _failed(self, error: TlsFailed) -> TlsFailed:
        self.counts.tls_failures[error.why] += 1
        return error
