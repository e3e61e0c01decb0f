"""One row of the message tracking log, with the fields of Exchange 2016/2019. docs/operations.md "The message tracking log"."""

from datetime import datetime
from enum import StrEnum

from shadowrelay.model.values import dataclass


class EventId(StrEnum):
    """All events that this relay writes."""

    HAREDIRECT = "HAREDIRECT"  # primary: a shadow copy was made
    HAREDIRECTFAIL = "HAREDIRECTFAIL"  # primary: no shadow copy was made, source-context says why
    HARECEIVE = "HARECEIVE"  # shadow: the copy is stored
    HADISCARD = "HADISCARD"  # shadow: discarded, the primary was done
    RECEIVE = "RECEIVE"  # primary: acknowledged to the client; of source AGENT: a journal report was made
    TRANSFER = "TRANSFER"  # primary: forks were made
    SEND = "SEND"  # primary: delivered to a next hop by a route inside the boundary
    SENDEXTERNAL = "SENDEXTERNAL"  # primary: delivered to a next hop outside
    DEFER = "DEFER"  # primary: an attempt failed for now
    FAIL = "FAIL"  # primary: recipients failed for good
    DUPLICATEDELIVER = "DUPLICATEDELIVER"  # primary: not delivered, because it was delivered before
    DSN = "DSN"  # primary: a delivery status notification was made
    SUPPRESSED = "SUPPRESSED"  # primary: a delivery status notification was not made, source-context says why
    RESUBMIT = "RESUBMIT"  # new primary: promoted, or resubmitted from Safety Net
    LOAD = "LOAD"  # primary: loaded at start
    POISONMESSAGE = "POISONMESSAGE"  # set aside, or taken back
    EXPIRE = "EXPIRE"  # primary: expired; shadow: expired unacknowledged


class EventSource(StrEnum):
    """Component that caused the event."""

    SMTP = "SMTP"
    ROUTING = "ROUTING"
    DNS = "DNS"
    DSN = "DSN"
    REDUNDANCY = "REDUNDANCY"
    SAFETYNET = "SAFETYNET"
    BOOTLOADER = "BOOTLOADER"
    POISONMESSAGE = "POISONMESSAGE"
    QUEUE = "QUEUE"
    ADMIN = "ADMIN"
    AGENT = "AGENT"  # journaling


class Replication(StrEnum):
    """`S:Replication` of RECEIVE: whether the message had a synced second copy when it was acknowledged."""

    SUCCESS = "Success"
    FAILED = "Failed"
    DISABLED = "Disabled"  # shadow_redundancy_enabled is off


class Acknowledged(StrEnum):
    """Why a 250 that had waited was given. docs/design.md 6.7."""

    DONE = "done"  # every recipient is done here
    COPIED = "copied"  # a shadow server has a copy
    HANDED_OVER = "handed over"  # another server has taken it over, or was sent `yours`
    REMOVED = "removed"  # by an administrator
    BEST_EFFORT = "best effort"  # the time was over: until it is relayed, the message is on this disk only
    STOPPING = "stopping"  # this node stops taking mail: likewise
    SET_ASIDE = "set aside"  # nothing is attempted any more: likewise

    @property
    def is_safe(self) -> bool:
        """Whether this server's disk may burn."""
        return self not in (Acknowledged.BEST_EFFORT, Acknowledged.STOPPING, Acknowledged.SET_ASIDE)


class ResubmitReason(StrEnum):
    """`S:Reason` of RESUBMIT: why the shadow server became primary. docs/design.md 6.1."""

    SILENCE = "Silence"  # no session with the primary for shadow_resubmit_time_span
    DATABASE_CHANGED = "DatabaseChanged"
    DATABASE_ROLLED_BACK = "DatabaseRolledBack"
    HANDOVER = "Handover"  # the primary sent `yours`


@dataclass(frozen=True, slots=True)
class TrackingEvent:
    """Shapes: recipients and their statuses in the same order; `custom_data` in output order. Empty text = empty field."""

    at: datetime
    event: EventId
    source: EventSource
    internal_message_id: int
    network_message_id: str
    message_id: str = ""
    client_ip: str = ""
    client_hostname: str = ""
    server_ip: str = ""
    server_hostname: str = ""
    source_context: str = ""
    connector_id: str = ""
    recipients: tuple[str, ...] = ()
    recipient_statuses: tuple[str, ...] = ()
    total_bytes: int = 0
    reference: str = ""
    subject: str = ""
    sender: str = ""
    message_info: str = ""
    original_client_ip: str = ""
    custom_data: tuple[tuple[str, str], ...] = ()
