"""Memory budget for message content in this process, and the return of freed memory to the system. docs/design.md 3, I6.

The budget has two shares, so that neither kind of use can starve the other:

- *arriving*, three quarters: content that sessions and copies receive, until its last user drops it, and input that sessions
  have read but not yet processed. Content may stay in memory while at most two thirds of the share are in use; beyond that it
  is spooled to a file as it arrives, so that idle sessions cannot hold the last third. Nothing is read that does not fit into
  the share. When the share is full, sessions wait, and are then answered 452.
- *reading*, one quarter: content that is read from disk for an attempt or a copy. Readers wait their turn.
  One reader is always served, however large its content is.

A cache of content yields memory to both. No method blocks, and a `Portion` may be dropped on any thread.
"""

import asyncio
import contextlib
import ctypes
from collections import OrderedDict, deque
from collections.abc import Callable

DEFAULT_BYTES_MAX = 128_000_000
RETURNED_AT_ONCE_BYTES = 32_000_000  # freed since the last check: worth a malloc_trim of some milliseconds


class Portion:
    """The part of a share that one holder uses. Released by `release`, or at the latest with the last reference to this object."""

    __slots__ = ("_share", "size")

    def __init__(self, share: "_Share") -> None:
        self._share = share
        self.size = 0

    def keep(self, size: int) -> bool:
        """Use `size` more bytes if content may stay in memory now."""
        share = self._share
        if share.returned:
            share.collect()
        if share.in_use + size > share.keep_max:
            share.spooled_count += 1
            return False
        self.size += size
        share.take(size)
        return True

    @property
    def room(self) -> int:
        """Free bytes of the share, first come, first served."""
        share = self._share
        if share.returned:
            share.collect()
        return max(0, share.bytes_max - share.in_use)

    def count(self, size: int) -> None:
        """Use exactly `size` bytes from now on, whether there is room or not."""
        self._share.take(size - self.size)
        self.size = size

    def release(self) -> None:
        """Return all bytes. May be called twice, and on any thread."""
        if self.size:
            self._share.give_back(self.size)
            self.size = 0

    __del__ = release

    def __enter__(self) -> "Portion":
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


class _Share:
    """Bytes in use out of `bytes_max`, and the waiters for more. `Portion.keep` is granted up to `keep_max`."""

    def __init__(self, budget: "ContentBudget", bytes_max: int, keep_max: int) -> None:
        self.bytes_max = bytes_max
        self.keep_max = keep_max
        self.spooled_count = 0
        self._budget = budget
        self.in_use = 0  # without what `collect` takes off
        self.returned: deque[int] = deque()  # deque operations are atomic: the writer's thread may drop a portion
        # Waiters in order, each with its size. They are removed by key, because `wake` and the waiter's own cancellation may
        # both remove it, in either order.
        self._waiting: OrderedDict[asyncio.Future[None], int] = OrderedDict()
        self._loop: asyncio.AbstractEventLoop | None = None  # the waiters' loop

    def collect(self) -> None:
        """Take off what was returned."""
        while self.returned:
            self.in_use -= self.returned.popleft()

    def used(self) -> int:
        self.collect()
        return self.in_use

    def take(self, size: int) -> None:
        self.in_use += size
        budget = self._budget
        if self.in_use > budget.quiet_max or budget.is_squeezed:
            budget.squeeze()

    def give_back(self, size: int) -> None:
        self.returned.append(size)
        if self._waiting and self._loop is not None:
            with contextlib.suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(self.wake)

    def has_room(self, size: int) -> bool:
        return self.used() + size <= self.bytes_max

    @property
    def waiting_count(self) -> int:
        return len(self._waiting)

    async def turn(self, size: int) -> None:
        """Wait until `size` bytes are free and no earlier waiter remains, then use them. If nothing is in use, any size is
        served. Cancelling gives up the turn."""
        if not self._waiting and self._serves(size):
            self.take(size)
            return
        self._loop = asyncio.get_running_loop()
        future = self._loop.create_future()
        self._waiting[future] = size
        self.wake()  # bytes returned before this waiter was queued woke nothing
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
        """Serve waiters in order."""
        self._budget.squeeze()
        while self._waiting:
            future, size = next(iter(self._waiting.items()))
            if not future.done() and not self._serves(size):
                return
            del self._waiting[future]
            if not future.done():  # done here means cancelled, and not resumed yet
                self.take(size)
                future.set_result(None)


class ContentBudget:
    """The memory that content may use in this process, in sessions, copies and attempts together.

    Shapes: used by one event loop; only `release` may be called from another thread.
    """

    def __init__(self, bytes_max: int = DEFAULT_BYTES_MAX) -> None:
        self.bytes_max = bytes_max
        self.refused_count = 0  # contents and copies refused after waiting for memory
        self.is_squeezed = False  # the cache's limit is below its maximum
        self.quiet_max = bytes_max * 3 // 8  # while no share uses more than this, the cache has its maximum
        self.is_dehydrated = False  # memory of the machine is short: the cache has nothing
        self._arriving = _Share(self, bytes_max * 3 // 4, bytes_max // 2)
        self._reading = _Share(self, bytes_max // 4, 0)
        self._cache_limit = bytes_max // 4
        self.limit_cache: Callable[[int], None] = lambda bytes_max: None
        """Called with the cache's new limit in bytes."""

    @property
    def used(self) -> int:
        """Bytes in use now, not counting the cache."""
        return self._arriving.used() + self._reading.used()

    @property
    def is_full(self) -> bool:
        """No more content can arrive; a session with content to read waits in `room`."""
        share = self._arriving
        if share.returned:
            share.collect()
        return share.in_use >= share.bytes_max

    @property
    def is_for_ours(self) -> bool:
        """What is left of the share, an eighth, is for peers and clients that may relay."""
        return self._arriving.used() >= self._arriving.bytes_max * 7 // 8

    @property
    def arriving_share(self) -> tuple[int, int]:
        """Bytes in use of the share for arriving content, and its size."""
        return self._arriving.used(), self._arriving.bytes_max

    @property
    def spooled_early_count(self) -> int:
        """Contents spooled to a file because memory was short."""
        return self._arriving.spooled_count

    @property
    def waiting_count(self) -> int:
        """Sessions and readers that are waiting."""
        return self._arriving.waiting_count + self._reading.waiting_count

    def portion(self) -> Portion:
        """An empty portion for arriving content; `Portion.keep` extends it."""
        return Portion(self._arriving)

    async def room(self) -> None:
        """Wait until content can arrive."""
        if self.is_full:
            await self._arriving.turn(1)
            self._arriving.give_back(1)

    async def reserve(self, size: int) -> Portion:
        """Wait for a turn to read content of this size from disk. The bytes are in use until the result is released.

        `with await budget.reserve(content_size): …` releases them at the end of the block.
        """
        await self._reading.turn(size)
        portion = Portion(self._reading)
        portion.size = size
        return portion

    def dehydrate(self, *, is_on: bool) -> None:
        """Give the cache up, or let it fill again."""
        if is_on is not self.is_dehydrated:
            self.is_dehydrated = is_on
            self.squeeze()

    def squeeze(self) -> None:
        """Limit the cache to what the shares leave of the budget, at most a quarter of it."""
        limit = 0 if self.is_dehydrated else min(self.bytes_max // 4, max(self.bytes_max - self.used, 0))
        self.is_squeezed = limit < self.bytes_max // 4
        if limit != self._cache_limit:
            self._cache_limit = limit
            self.limit_cache(limit)


class _MallInfo2(ctypes.Structure):
    """`struct mallinfo2` of glibc; `fordblks` is memory that was freed but not returned to the system."""

    _names = ("arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost")
    _fields_ = [(name, ctypes.c_size_t) for name in _names]


class FreedMemory:
    """Returns freed memory to the system after a burst: glibc keeps freed memory that lies below memory in use.

    1,200 sessions that had used 300 KB each left 550 MB that way. No effect where the C library has no malloc_trim.
    """

    def __init__(self) -> None:
        library = ctypes.CDLL(None)
        self._trim = getattr(library, "malloc_trim", None)
        self._info = getattr(library, "mallinfo2", None)
        if self._info is not None:
            self._info.restype = _MallInfo2
        self._lowest = self.free_bytes()

    def free_bytes(self) -> int:
        """Freed memory that the process still has; 0 if the C library does not report it."""
        return 0 if self._info is None else int(self._info().fordblks)

    def look(self) -> bool:
        """Call it every few seconds. True if memory was returned, because much was freed since the last call."""
        free = self.free_bytes()
        self._lowest = min(self._lowest, free)
        if self._trim is None or free - self._lowest < RETURNED_AT_ONCE_BYTES:
            return False
        self._trim(0)
        self._lowest = self.free_bytes()
        return True
