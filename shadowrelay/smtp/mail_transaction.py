"""A client's transaction, from MAIL to the reply to its content: which recipients it may have, and when its content may come. RFC 5321 3.3,
4.5.1; docs/security.md "Strangers".

Decides; the `Receiver` answers.
"""

from dataclasses import field

from shadowrelay.model.message import BodyType, Recipient
from shadowrelay.model.replies import Reply, WireError
from shadowrelay.model.values import dataclass, replace
from shadowrelay.protocol.addresses import has_routing
from shadowrelay.protocol.fields import MailValues
from shadowrelay.rules import strangers
from shadowrelay.smtp.arriving_content import ArrivingContent
from shadowrelay.smtp.limits import (
    BDAT_WANTED,
    BINARY_NEEDS_BDAT,
    CHUNKS_HAVE_BEGUN,
    HOLD_HAS_FAILED,
    HOLD_RECIPIENTS_MAX,
    NO_POSTMASTER,
    NO_VALID_RECIPIENTS,
    RCPT_FIRST,
    RELAYING_DENIED,
    ROUTING_DENIED,
    TOO_MANY_RECIPIENTS,
)
from shadowrelay.smtp.peer_part import PeerTransaction
from shadowrelay.smtp.reception import Reception, SessionState


@dataclass(slots=True)
class MailTransaction:
    """What is known of it. `hold`: it is a peer's copy, or a message whose shadow the peer keeps."""

    sender: str
    values: MailValues
    is_lenient: bool
    takes_bare: bool  # addresses without a domain
    recipients: list[Recipient] = field(default_factory=list)
    refused_count: int = 0
    hold: PeerTransaction | None = None
    arriving: ArrivingContent | None = None  # since the first chunk of a client
    small_chunks_count: int = 0

    def refusal_of(self, recipient: Recipient, reception: Reception, state: SessionState, *, has_source_route: bool) -> Reply | None:
        """Why the recipient is refused. A copy must have all original recipients, or it fails."""
        if (hold := self.hold) is not None:
            if hold.has_failed:
                return HOLD_HAS_FAILED
            return TOO_MANY_RECIPIENTS if len(self.recipients) >= HOLD_RECIPIENTS_MAX else None
        if len(self.recipients) >= reception.connector.max_recipients_per_message:
            return TOO_MANY_RECIPIENTS
        if reception.may_relay(state):
            return None
        if not reception.rights.accepts(recipient.address):
            return RELAYING_DENIED
        if state.peer or reception.connector.allow_untrusted_routing:
            return None
        return ROUTING_DENIED if has_source_route or has_routing(recipient.address) else None

    def with_home(self, address: str, reception: Reception, state: SessionState) -> str:
        """A bare `Postmaster` gets the domain where it can be delivered (RFC 5321 4.5.1), as other names of clients that may relay; in
        a copy, its primary added it.

        Raises: WireError 550 if there is no such domain: if accepted, it would bounce to a sender that may be forged.
        """
        if self.hold is not None:
            return address
        home = reception.postmaster_home(may_relay=reception.may_relay(state))
        if not home:
            raise WireError(NO_POSTMASTER)
        return f"{address}@{home}"

    def refusal_of_data(self) -> Reply | None:
        """Why DATA is refused."""
        if self.hold is not None:
            return BDAT_WANTED
        if self.arriving is not None:
            return CHUNKS_HAVE_BEGUN
        if self.values.body is BodyType.BINARY_MIME:
            return BINARY_NEEDS_BDAT
        return self.lack_of_recipients()

    def lack_of_recipients(self) -> Reply | None:
        """Why no content may come."""
        if self.recipients:
            return None
        return NO_VALID_RECIPIENTS if self.refused_count else RCPT_FIRST


def notified(recipient: Recipient, *, is_of_peer: bool, is_trusted: bool) -> Recipient:
    """A stranger's mail causes few notifications; that of a peer was accepted by it, and keeps what its own client was promised."""
    if is_of_peer:
        return recipient if recipient.notify else replace(recipient, notify=strangers.NOTIFY_OF_OURS)
    if recipient.notify is None or is_trusted:
        return recipient
    return replace(recipient, notify=strangers.notify(recipient.notify))
