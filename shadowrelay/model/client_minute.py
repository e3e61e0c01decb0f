"""A client as the receive connectors see it: what `clients list` shows. docs/reference.md "Limits for each client"."""

from enum import StrEnum

from shadowrelay.model.values import dataclass


class Counted(StrEnum):
    """What is counted of a client in its minute; the values are those of metrics and logs, and the names of `Minute`."""

    CONNECTIONS = "connections"
    MESSAGES = "messages"
    RECIPIENTS = "recipients"
    REFUSED_RECIPIENTS = "refused_recipients"
    OCTETS = "octets"


@dataclass(slots=True)
class Minute:
    """What a client did since its minute began. `limited_count`: how often it was refused for that. Units: `ends_at` in the loop's time."""

    ends_at: float
    connections: int = 0
    messages: int = 0
    recipients: int = 0
    refused_recipients: int = 0
    octets: int = 0
    limited_count: int = 0


@dataclass(frozen=True, slots=True)
class ClientView:
    """`client`: an IPv4 address, or an IPv6 network. `minute` is None where nothing is counted. Units: `seconds_left` of its minute."""

    connector: str
    client: str
    sessions_count: int
    minute: Minute | None
    seconds_left: float
