"""A file of recipients: an address a line, `@domain` or `*@domain` for all of a domain, comments. docs/reference.md "Known recipients".

The addresses of a large site are kept as hashes of 64 bits, eight octets each, sorted in buckets: a million takes 9 MB, as text it would
take 100. Python's hash of a text has a key of its own in each process, so that nobody can look for an address with the hash of another one;
an address that is not in the list is taken for one that is with a probability of a million in 2^64.
"""

import re
from array import array
from bisect import bisect_left
from typing import Final

from shadowrelay.model.printable import printable
from shadowrelay.protocol.addresses import canonical_local
from shadowrelay.protocol.fields import domain_of

LINE_CHARACTERS_MAX = 1_000  # an address has 254 octets
ENTRIES_MAX = 20_000_000  # 180 MB
SHOWN_CHARACTERS = 60
BUCKETS_COUNT = 1_024

_SPECIAL = r'\x00-\x20\x7f-\x9f"(),:;<>@\[\]\\'
_LOCAL = rf"[^{_SPECIAL}#][^{_SPECIAL}]*|\"(?:[^\"\\\x00-\x1f\x7f]|\\[ -~])*\"|"
# no pattern of domains: `*@*` would match nobody, and everybody would be refused
_ENTRY = re.compile(rf"(?P<local>{_LOCAL})@(?P<domain>[^{_SPECIAL}#*]+|\[[A-Za-z0-9.:]+\])(?:\s+#.*)?")


class BrokenList(Exception):
    """The file cannot be used; the text says why, with the number of the line."""


class Addresses:
    """What a file lists. Made by `ListReader`; never changes."""

    def __init__(self, buckets: tuple["array[int]", ...], count: int, *, is_case_sensitive: bool) -> None:
        self._buckets: Final = buckets
        self._is_case_sensitive: Final = is_case_sensitive
        self.count: Final = count  # of lines with an address or a domain

    def has(self, address: str, delimiters: str) -> bool:
        """Whether the address is listed, or without its subaddress (RFC 5233), or its domain. `delimiters`: characters before one."""
        domain = domain_of(address)
        local = _as_compared(address.rpartition("@")[0], is_case_sensitive=self._is_case_sensitive)
        if self._has(f"{local}@{domain}") or self._has(f"@{domain}"):
            return True
        at = min((found for one in delimiters if (found := local.find(one, 1)) > 0), default=0)
        return at > 0 and not local.startswith('"') and self._has(f"{local[:at]}@{domain}")

    def _has(self, key: str) -> bool:
        found = hash(key)
        bucket = self._buckets[found % BUCKETS_COUNT]
        index = bisect_left(bucket, found)
        return index < len(bucket) and bucket[index] == found


class ListReader:
    """Takes a file line by line, so that whoever reads it may pause."""

    def __init__(self, *, is_case_sensitive: bool) -> None:
        self._is_case_sensitive = is_case_sensitive
        self._buckets = [array("q") for _ in range(BUCKETS_COUNT)]
        self._number = 0
        self._count = 0

    def take(self, line: str) -> None:
        """The next line. Raises: BrokenList."""
        self._number += 1
        text = line.strip()
        if not text or text.startswith("#"):
            return
        found = _ENTRY.fullmatch(text) if len(text) <= LINE_CHARACTERS_MAX else None
        if found is None:
            shown = printable(text[:SHOWN_CHARACTERS])
            raise BrokenList(f"line {self._number} is neither an address nor a domain like @corp.example: {shown}")
        if self._count >= ENTRIES_MAX:
            raise BrokenList(f"it has more than {ENTRIES_MAX} addresses")
        local, domain = found["local"], found["domain"]
        local = "" if local == "*" else _as_compared(local, is_case_sensitive=self._is_case_sensitive)
        key = hash(f"{local}@{domain.lower() if domain.isascii() and domain[-1] not in '.]' else domain_of('@' + domain)}")
        self._buckets[key % BUCKETS_COUNT].append(key)
        self._count += 1

    def sort(self, index: int) -> None:
        """One of the buckets, after the last line: all at once would hold up the process."""
        self._buckets[index] = array("q", sorted(self._buckets[index]))

    def addresses(self) -> Addresses:
        """After all buckets were sorted. Raises: BrokenList if there is no address."""
        if not self._count:
            raise BrokenList("it has no address")
        return Addresses(tuple(self._buckets), self._count, is_case_sensitive=self._is_case_sensitive)


def _as_compared(local: str, *, is_case_sensitive: bool) -> str:
    local = canonical_local(local)
    return local if is_case_sensitive else local.lower()
