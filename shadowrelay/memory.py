"""One budget for the contents that a node holds in memory, and giving back to the system what was freed.

The budget has two shares, so that neither side can starve the other:

- *arriving*, three quarters: contents that sessions and copies collect, until the last part of the node has dropped them,
  and what sessions have read of contents and not yet taken. A content may be kept in memory while the share is at most two
  thirds used; beyond that it goes to a file as it arrives. So the last third only passes through: no session can hold it
  by doing nothing. Nothing is read for which the share has no room. When it is full, sessions wait, and are then answered 452.
- *reading*, one quarter: contents that are read from disk for an attempt or a copy. Whoever wants to read waits for its turn.
  One reader is always served, however large its content is.

A cache of contents gives way to both. No method blocks, and a `Portion` may be dropped on any thread.
"""

import asyncio
import contextlib
import ctypes
from collections import OrderedDict, deque
from collections.abc import Callable

DEFAULT_BYTES_MAX = 128_000_000
RETURNED_AT_ONCE_BYTES = 32_000_000  # freed since the last look: worth a call of some milliseconds


class Portion:
    """What one holder has of a share. It goes back with `release`, at the latest with the last reference to this object."""

    __slots__ = ("_share", "size")

    def __init__(self, share: "_Share") -> None:
        self._share = share
        self.size = 0

    def keep(self, size: int) -> bool:
        """Take so many bytes more, if contents may be kept in memory now."""
        share = self._share
        if share.used() + size > share.keep_max:
            share.spooled_count += 1
            return False
        self.size += size
        share.take(size)
        return True

    @property
    def room(self) -> int:
        """Bytes that are free in the share, for whoever takes them first."""
        return max(0, self._share.bytes_max - self._share.used())

    def count(self, size: int) -> None:
        """This many bytes are held now, whether there is room or not."""
        self._share.take(size - self.size)
        self.size = size

    def release(self) -> None:
        """Give it all back. May be called twice, and on any thread."""
        if self.size:
            self._share.give_back(self.size)
            self.size = 0

    __del__ = release

    def __enter__(self) -> "Portion":
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


class _Share:
    """Bytes in use out of `bytes_max`, and who waits for some. `keep_max`: up to there `Portion.keep` is granted."""

    def __init__(self, budget: "ContentBudget", bytes_max: int, keep_max: int) -> None:
        self.bytes_max = bytes_max
        self.keep_max = keep_max
        self.spooled_count = 0
        self._budget = budget
        self._used = 0
        self._returned: deque[int] = deque()  # its operations are atomic: a portion may be dropped by the writer's thread
        # Whoever waits, in order, and for how much. A waiter leaves by its own name: `wake` and its own cancellation may both
        # take it out, in either order.
        self._waiting: OrderedDict[asyncio.Future[None], int] = OrderedDict()
        self._loop: asyncio.AbstractEventLoop | None = None  # of those who wait

    def used(self) -> int:
        while self._returned:
            self._used -= self._returned.popleft()
        return self._used

    def take(self, size: int) -> None:
        self._used += size
        budget = self._budget
        if self._used > budget.quiet_max or budget.is_squeezed:
            budget.squeeze()

    def give_back(self, size: int) -> None:
        self._returned.append(size)
        if self._waiting and self._loop is not None:
            with contextlib.suppress(RuntimeError):  # their loop has ended
                self._loop.call_soon_threadsafe(self.wake)

    def has_room(self, size: int) -> bool:
        return self.used() + size <= self.bytes_max

    @property
    def waiting_count(self) -> int:
        return len(self._waiting)

    async def turn(self, size: int) -> None:
        """Wait until so many bytes are free and nobody waits longer; then they are taken. One that finds nothing in use is
        served whatever its size. Cancelling gives up the turn."""
        if not self._waiting and self._serves(size):
            self.take(size)
            return
        self._loop = asyncio.get_running_loop()
        future = self._loop.create_future()
        self._waiting[future] = size
        self.wake()  # what was given back before we stood in the line woke nobody
        try:
            await future
        except asyncio.CancelledError:
            if future.cancelled():
                self._waiting.pop(future, None)
            else:
                self.give_back(size)
            self.wake()
            raise

    def _serves(self, size: int) -> bool:
        return self.has_room(size) or not self.used()

    def wake(self) -> None:
        """Serve those who wait, in order."""
        self._budget.squeeze()
        while self._waiting:
            future, size = next(iter(self._waiting.items()))
            if not future.done() and not self._serves(size):
                return
            del self._waiting[future]
            if not future.done():  # one that is done was cancelled, and has not run since
                self.take(size)
                future.set_result(None)


class ContentBudget:
    """The bytes of contents that a node may hold in memory at one time, in sessions, copies and attempts together.

    Shapes: used by one event loop; `release` alone may come from another thread.
    """

    def __init__(self, bytes_max: int = DEFAULT_BYTES_MAX) -> None:
        self.bytes_max = bytes_max
        self.refused_count = 0  # contents and copies that waited for memory in vain
        self.is_squeezed = False  # the cache may hold less than it may when nothing else needs memory
        self.quiet_max = bytes_max * 3 // 8  # while neither share has more in use, the cache has all its room
        self._arriving = _Share(self, bytes_max * 3 // 4, bytes_max // 2)
        self._reading = _Share(self, bytes_max // 4, 0)
        self._cache_limit = bytes_max // 4
        self.limit_cache: Callable[[int], None] = lambda bytes_max: None
        """Told how much a cache of contents may hold from now on."""

    @property
    def used(self) -> int:
        """Bytes in use now, without the cache."""
        return self._arriving.used() + self._reading.used()

    @property
    def is_full(self) -> bool:
        """No more content can arrive; a session that has some to read waits with `room`."""
        return self._arriving.used() >= self._arriving.bytes_max

    @property
    def spooled_early_count(self) -> int:
        """Contents that went to a file because memory was short."""
        return self._arriving.spooled_count

    @property
    def waiting_count(self) -> int:
        """Sessions and readers that wait."""
        return self._arriving.waiting_count + self._reading.waiting_count

    def portion(self) -> Portion:
        """An empty portion for a content that arrives; `Portion.keep` makes it grow."""
        return Portion(self._arriving)

    async def room(self) -> None:
        """Wait until content can arrive."""
        if self.is_full:
            await self._arriving.turn(1)
            self._arriving.give_back(1)

    async def reserve(self, size: int) -> Portion:
        """Wait for the turn to read a content of this size from disk. The bytes are in use until the result is released.

        `with await budget.reserve(content_size): …` gives them back at the end of the block.
        """
        await self._reading.turn(size)
        portion = Portion(self._reading)
        portion.size = size
        return portion

    def squeeze(self) -> None:
        """The cache has what the shares leave of the budget, a quarter of it at most."""
        limit = min(self.bytes_max // 4, max(self.bytes_max - self.used, 0))
        self.is_squeezed = limit < self.bytes_max // 4
        if limit != self._cache_limit:
            self._cache_limit = limit
            self.limit_cache(limit)


class _MallInfo2(ctypes.Structure):
    """`struct mallinfo2` of glibc; `fordblks` is what was freed and not given back."""

    _names = ("arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost")
    _fields_ = [(name, ctypes.c_size_t) for name in _names]


class FreedMemory:
    """Gives freed memory back to the system after a burst: glibc keeps what lies below anything that is still in use.

    1,200 sessions that had held 300 KB each left 550 MB behind that way. Does nothing where the C library has no malloc_trim.
    """

    def __init__(self) -> None:
        library = ctypes.CDLL(None)
        self._trim = getattr(library, "malloc_trim", None)
        self._info = getattr(library, "mallinfo2", None)
        if self._info is not None:
            self._info.restype = _MallInfo2
        self._lowest = self.free_bytes()

    def free_bytes(self) -> int:
        """Freed, and still the process's; 0 where the C library does not say."""
        return 0 if self._info is None else int(self._info().fordblks)

    def look(self) -> bool:
        """Call it every few seconds. True when memory was given back: much was freed since the last time."""
        free = self.free_bytes()
        self._lowest = min(self._lowest, free)
        if self._trim is None or free - self._lowest < RETURNED_AT_ONCE_BYTES:
            return False
        self._trim(0)
        self._lowest = self.free_bytes()
        return True
