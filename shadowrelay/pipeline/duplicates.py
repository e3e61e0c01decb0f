"""Recognises a message that a client sends again: the key of a delivery to one recipient. docs/design.md 6.5. Source: seed-004

Two messages are the same for a recipient if Message-ID, Date, sender and recipient are. The key is a hash of the four, because they
may be long. No loss is worth an avoided duplicate: a message without one of the two header fields has no key, and neither has one
whose fields may have been cut, here or on the wire, or are not printable ASCII.
"""

from hashlib import blake2b

from shadowrelay.model.message import Envelope, Ordinals

KEY_OCTETS = 16
# Longer ones may have been cut: XSHADOW ENVELOPE leaves at least 1,100 / 2 x 7/8 characters of a Message-ID, docs/protocol.md 6.
MESSAGE_ID_CHARACTERS_MAX = 450
DATE_CHARACTERS_MAX = 99  # the receiver records 100


def keys_of(envelope: Envelope, ordinals: Ordinals) -> dict[int, bytes]:
    """The key of each of these recipients; empty if the message cannot be recognised.

    Domains are compared without case, local parts with it, and `Postmaster` without. RFC 5321 2.4, 4.5.1.
    """
    message_id, date = envelope.internet_message_id, envelope.date
    if envelope.resubmitted_from:
        return {}  # it is delivered again on request
    if not message_id or not date or len(message_id) > MESSAGE_ID_CHARACTERS_MAX or len(date) > DATE_CHARACTERS_MAX:
        return {}
    both = message_id + date
    if not both.isascii() or not both.isprintable():
        return {}
    local, at, domain = envelope.sender.rpartition("@")
    # No part has a line end, so two parts cannot run into each other.
    begun = blake2b(f"{message_id}\n{date}\n{local}{at}{domain.lower()}\n".encode("utf-8", "surrogatepass"), digest_size=KEY_OCTETS)
    keys = {}
    for ordinal in ordinals:
        local, at, domain = envelope.recipients[ordinal - 1].address.rpartition("@")
        whole = begun.copy()
        whole.update(f"{local}{at}{domain.lower()}".encode("utf-8", "surrogatepass"))
        keys[ordinal] = whole.digest()
    return keys
