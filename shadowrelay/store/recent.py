"""Contents that were just written, so that a delivery right after the acceptance does not read the disk."""

from collections import OrderedDict
from threading import Lock

from shadowrelay.model.message import ContentPlace

RECENT_BYTES_MAX = 64_000_000


class RecentContents:
    """The latest contents up to a number of bytes; may be used from any thread."""

    def __init__(self, bytes_max: int = RECENT_BYTES_MAX) -> None:
        self._bytes_max = bytes_max
        self._size = 0
        self._contents: OrderedDict[tuple[int, int], bytes] = OrderedDict()
        self._lock = Lock()

    def put(self, place: ContentPlace, data: bytes) -> None:
        with self._lock:
            self._contents[place.segment, place.offset] = data
            self._size += len(data)
            self._shrink()

    def get(self, place: ContentPlace) -> bytes | None:
        return self._contents.get((place.segment, place.offset))

    def drop(self, place: ContentPlace) -> None:
        """It will not be asked for again."""
        with self._lock:
            dropped = self._contents.pop((place.segment, place.offset), None)
            if dropped is not None:
                self._size -= len(dropped)

    def limit(self, bytes_max: int) -> None:
        """Hold no more than this from now on, or `RECENT_BYTES_MAX`: a cache gives way where memory is short."""
        with self._lock:
            self._bytes_max = min(bytes_max, RECENT_BYTES_MAX)
            self._shrink()

    def _shrink(self) -> None:
        while self._size > self._bytes_max:
            _, dropped = self._contents.popitem(last=False)
            self._size -= len(dropped)

    @property
    def size(self) -> int:
        return self._size
