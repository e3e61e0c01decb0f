"""Opens sessions as a route demands: its TLS context and certificates. docs/operations.md "TLS to next hops".

A route without demands costs a comparison. What a route demands and cannot have ends the opening with a reply that says why; it never
falls back to less. Files are read in a thread when the first session needs them, and again after SIGHUP.
"""

import asyncio
import ssl
from functools import partial

from shadowrelay import credentials
from shadowrelay.model.counts import SessionCounts, TlsFailure
from shadowrelay.model.protection import Protection, TlsMode
from shadowrelay.model.replies import ConfigurationError
from shadowrelay.model.values import replace
from shadowrelay.smtp.client import ConnectOptions, Opened, TlsFailed, TlsUse
from shadowrelay.smtp.client_session import TLS_FAILED, SessionBroken

_USES = {
    TlsMode.NONE: TlsUse.NEVER,
    TlsMode.OPPORTUNISTIC: TlsUse.OPPORTUNISTIC,
    TlsMode.REQUIRED: TlsUse.REQUIRED,
    TlsMode.VERIFIED: TlsUse.REQUIRED,
}


class RouteSessions:
    """What routes demand of their sessions, and what came of it."""

    def __init__(self) -> None:
        self.counts = SessionCounts()
        self._contexts: dict[Protection, ssl.SSLContext] = {}

    def reload(self) -> None:
        """Files are read again for the next sessions."""
        self._contexts.clear()

    async def options(self, base: ConnectOptions, protection: Protection | None) -> ConnectOptions:
        """How to open a session. Raises: SessionBroken if a file cannot be used."""
        if protection is None:
            return base
        context = self._contexts.get(protection)
        if context is None:
            try:
                context = self._contexts[protection] = await asyncio.to_thread(credentials.client_context, protection)
            except ConfigurationError as error:
                raise self._failed(TlsFailed(TLS_FAILED._replace(text=f"{TLS_FAILED.text}: {error}"), TlsFailure.SETTINGS)) from error
        refusal = partial(credentials.refusal_of, protection) if protection.tls is TlsMode.VERIFIED else None
        return replace(base, tls=_USES[protection.tls], context=context, refusal=refusal)

    def opened(self, session: Opened, protection: Protection | None) -> Opened:
        """Count it."""
        kind = session.tls or "none"
        self.counts.opened[kind] = self.counts.opened.get(kind, 0) + 1
        if session.tls_failure is not None:
            self._failed(session.tls_failure)
        if protection is not None and protection.policy and session.tls:
            session.tls = f"{session.tls},{protection.policy}"
        return session

    def note_failure(self, error: SessionBroken) -> None:
        """Count it, if it is of TLS."""
        if isinstance(error, TlsFailed):
            self._failed(error)

    def _failed(self, error: TlsFailed) -> TlsFailed:
        self.counts.tls_failures[error.why] += 1
        return error
