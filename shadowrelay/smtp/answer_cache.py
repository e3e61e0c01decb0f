"""What next hops have said of recipients, for a time, in bounded memory. The time is passed in. docs/reference.md "Known recipients".

Who exists and who does not are kept apart: whoever tries addresses fills one with noes, and the other stays. An answer that has ended is
kept as long as there is room, for the time in which the next hop cannot be asked.
"""

from collections import OrderedDict

POSITIVE_MAX, NEGATIVE_MAX = 100_000, 50_000  # x 250 octets = 38 MB for each source
WAS_KNOWN_SECONDS = 7 * 86_400.0  # so long after the last yes


class AnswerCache:
    """Units: seconds; `now` in any clock that does not go back."""

    def __init__(
        self, positive_seconds: float, negative_seconds: float, positive_max: int = POSITIVE_MAX, negative_max: int = NEGATIVE_MAX
    ):
        self._seconds = {True: positive_seconds, False: negative_seconds}
        self._max = {True: positive_max, False: negative_max}
        self._until: dict[bool, OrderedDict[str, float]] = {True: OrderedDict(), False: OrderedDict()}

    def __len__(self) -> int:
        return len(self._until[True]) + len(self._until[False])

    @property
    def known_count(self) -> int:
        """Addresses that existed when they were asked for."""
        return len(self._until[True])

    def get(self, address: str, now: float) -> bool | None:
        """Whether it exists, as far as that was said lately."""
        for exists, until in self._until.items():
            if until.get(address, now) > now:
                until.move_to_end(address)
                return exists
        return None

    def was_known(self, address: str, now: float) -> bool:
        """Whether it existed once, not too long ago."""
        until = self._until[True].get(address)
        return until is not None and now < until - self._seconds[True] + WAS_KNOWN_SECONDS

    def put(self, address: str, now: float, *, exists: bool, is_sure: bool = True) -> None:
        """The next hop has said so. What is not sure holds no longer than a no."""
        self._until[not exists].pop(address, None)
        until = self._until[exists]
        if address not in until and len(until) >= self._max[exists]:
            until.popitem(last=False)
        until[address] = now + (self._seconds[exists] if is_sure else min(self._seconds.values()))
        until.move_to_end(address)

    def forget_negative(self) -> None:
        """Who did not exist is asked for again."""
        self._until[False].clear()
