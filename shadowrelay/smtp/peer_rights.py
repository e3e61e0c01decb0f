"""Who may use XSHADOW, who says that it is which peer, and what its commands prove.

The rules kept here:

- Nothing of it is shown to, or usable by, a session that has not the right (docs/design.md 6.6).
- `proved` is reported for commands with which a new exchange begins, because a peer begins one only after it has read
  all replies of the one before. The other lines of a pipelined group may have been written before our reply was read.
"""

import ssl

from shadowrelay.model.errors import WireError
from shadowrelay.model.peers import PeerIdentity
from shadowrelay.model.replies import Reply
from shadowrelay.smtp.answers import (
    AUTHENTICATION_NEEDED,
    HELLO_FIRST,
    IN_TRANSACTION,
    NOT_IMPLEMENTED,
    NOT_YOUR_NAME,
    OTHER_BOUNDARY,
    XSHADOW_FIRST,
)
from shadowrelay.smtp.receiver import Receiver
from shadowrelay.smtp.tls import names_in_certificate
from shadowrelay.wire.xshadow import format_hello, format_keyword, parse_hello

EXCHANGE_STARTS = frozenset({"EHLO", "MAIL", "NOOP", "QUIT", "RSET", "XQDISCARD"})


class PeerRights(Receiver):
    """A session of which the client may be a peer."""

    identity: PeerIdentity | None = None
    _proved_names: frozenset[str] = frozenset()
    _answered_awake: float | None = None
    _heard_at = 0.0

    # rights

    def protected(self, session: ssl.SSLObject) -> None:
        """A client certificate that the peer authority signed proves its names."""
        super().protected(session)
        self.identity = None
        self.account.peer = ""
        self._proved_names = names_in_certificate(session.getpeercert()) & self.reception.peers.keys()

    def may_use_xshadow(self) -> bool:
        """This client may use the extension."""
        if not self.reception.connector.accept_xshadow:
            return False
        return bool(self._proved_names) or self.reception.rights.is_externally_secured(self.account.address)

    def require_right(self) -> None:
        """Raises: WireError 530, or 502 where nobody may."""
        if not self.may_use_xshadow():
            raise WireError(AUTHENTICATION_NEEDED if self.reception.connector.accept_xshadow else NOT_IMPLEMENTED)

    def require_peer(self) -> PeerIdentity:
        """The peer that this is. Raises: WireError 530, 502; 503 before its XSHADOW hello."""
        self.require_right()
        if self.identity is None:
            raise WireError(XSHADOW_FIRST)
        return self.identity

    def extensions(self) -> list[str]:
        """XSHADOW is shown only where it may be used."""
        lines = super().extensions()
        if self.reception.is_advertised and self.may_use_xshadow():
            lines.append(format_keyword(self.reception.desk.offers_hold()))
        return lines

    # proof of life

    def heard(self, name: str) -> None:
        """Each command of a peer proves that it lives; one that begins an exchange, that it has read our last reply."""
        if (identity := self.identity) is None:
            return
        if self._heard_at != self.progress_at:  # several commands that came together are one sign
            self._heard_at = self.progress_at
            self.reception.desk.heard(identity.server, identity.database)
        if self._answered_awake is not None and name in EXCHANGE_STARTS:
            self.reception.desk.proved(identity.server, identity.database, self._answered_awake)

    def writing(self) -> None:
        """The time that `proved` reports: before the write, so that it is not later than the peer can have read it."""
        if self.identity is not None:
            self._answered_awake = self.reception.clock.awake()

    # who I am

    async def meet(self, argument: str) -> None:
        """XSHADOW server=…: learn who that is, say who we are."""
        self.require_right()
        if not self.account.client_name:
            raise WireError(HELLO_FIRST)
        if self.transaction is not None:
            raise WireError(IN_TRANSACTION)
        identity = parse_hello(argument)
        reception = self.reception
        is_named = identity.server in self._proved_names or reception.rights.is_externally_secured(self.account.address)
        if identity.server == reception.name and (refusal := reception.desk.refusal(identity)) is not None:
            raise WireError(refusal)
        if identity.server not in reception.peers or not is_named:
            raise WireError(NOT_YOUR_NAME)
        if not identity.boundary == reception.boundary == reception.peers[identity.server].boundary:
            raise WireError(OTHER_BOUNDARY)
        if (refusal := reception.desk.refusal(identity)) is not None:
            raise WireError(refusal)
        await reception.desk.greeted(identity)
        self.identity = identity
        self._answered_awake = None  # what was answered before, was answered to nobody
        self.account.peer = identity.server
        reception.desk.heard(identity.server, identity.database)
        self.say(Reply(250, "2.0.0", format_hello(reception.desk.own_identity(identity.server))))
