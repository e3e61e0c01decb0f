"""Counters, UUIDs and copy numbers. Identifiers are case-insensitive on the wire and lower case inside."""

import re

from shadowrelay.model.ids import DatabaseId, MessageId
from shadowrelay.model.ownership import RANK_MAX, CopyNumber
from shadowrelay.wire.refusals import bad_argument

COUNTER_MAX = 2**63 - 1  # what SQLite stores: 19 digits. Sequences, positions, incarnations, sizes
UUID_OCTETS = 36
NUMBER_OCTETS_MAX = 10 + 1 + 10 + 1 + UUID_OCTETS  # 58

_COUNTER = re.compile(r"0|[1-9][0-9]{0,18}")
_UUID = re.compile(r"[0-9A-Fa-f]{8}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{12}")


def parse_counter(text: str, what: str, highest: int = COUNTER_MAX) -> int:
    """A decimal number without sign or leading zeros. `what` names it in the reply.

    Raises: WireError 501 5.5.4.
    """
    if _COUNTER.fullmatch(text) is None or (value := int(text)) > highest:
        raise bad_argument(f"Bad {what}")
    return value


def parse_uuid(text: str, what: str) -> str:
    """A UUID with dashes, in lower case. Raises: WireError 501 5.5.4."""
    if _UUID.fullmatch(text) is None:
        raise bad_argument(f"Bad {what}")
    return text.lower()


def parse_message_id(text: str) -> MessageId:
    """A network message id. Raises: WireError 501 5.5.4."""
    return MessageId(parse_uuid(text, "message id"))


def parse_database_id(text: str) -> DatabaseId:
    """A database id. Raises: WireError 501 5.5.4."""
    return DatabaseId(parse_uuid(text, "database id"))


def format_number(number: CopyNumber) -> str:
    """`<ownership>.<placement>.<database id>`."""
    return f"{number.ownership}.{number.placement}.{number.database}"


def parse_number(text: str) -> CopyNumber:
    """Inverse of `format_number`. Raises: WireError 501 5.5.4."""
    parts = text.split(".", 3)
    if len(parts) != 3:
        raise bad_argument("Bad copy number")
    rank = parse_rank(parts[0], parts[1])
    return CopyNumber(rank[0], rank[1], parse_database_id(parts[2]))


def parse_rank(ownership: str, placement: str) -> tuple[int, int]:
    """The two counters of a copy number. Placement 0 asks without choosing (docs/protocol.md 7.3).

    Raises: WireError 501 5.5.4.
    """
    return parse_counter(ownership, "copy number", RANK_MAX), parse_counter(placement, "copy number", RANK_MAX)
