"""Contents that are files of their own: synced beside the writer, so that 36 MB hold up nobody's promise."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar

from shadowrelay.model.message import Content, ContentPlace
from shadowrelay.store import errors
from shadowrelay.store.content import ContentStore

Answer = TypeVar("Answer")
FILE_THREADS_COUNT = 2
Places = list[ContentPlace | None]


class LargeContents:
    """Shapes: numbers of files are unique because no two openings have the same incarnation."""

    def __init__(self, contents: ContentStore, incarnation: int, *, is_inline: bool) -> None:
        self._contents = contents
        self._is_inline = is_inline
        self._files = ThreadPoolExecutor(FILE_THREADS_COUNT, "ledger files")
        self._number = incarnation << 32
        self._tasks: set[asyncio.Task[Any]] = set()

    async def promise(self, contents: Sequence[Content], run: Callable[[Places], Awaitable[Any]], is_kept: Callable[[Any], bool]) -> Any:
        """First the files, then what `run` promises with their places. In a task: cancelling the waiter stops nothing.

        Raises: LedgerUnavailable; what `run` raises. The file is then still the caller's.
        """
        if self._is_inline:
            return await self._keep(contents, run, is_kept)
        task = asyncio.create_task(self._keep(contents, run, is_kept))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return await asyncio.shield(task)

    async def _keep(self, contents: Sequence[Content], run: Callable[[Places], Awaitable[Any]], is_kept: Callable[[Any], bool]) -> Any:
        places: Places = []
        was_kept = False
        try:
            for content in contents:
                place = None
                if content.path is not None:
                    self._number += 1
                    place = await self.on_file_thread(partial(self._contents.keep_large, content, self._number))
                places.append(place)
            result = await run(places)
            was_kept = is_kept(result)
        except OSError as error:
            raise errors.unavailable(error) from error
        finally:
            for place, content in zip(places, contents, strict=False):
                if place is None or content.path is None:
                    continue
                with contextlib.suppress(OSError):  # else an orphan, for the next opening
                    if was_kept:
                        content.path.unlink(missing_ok=True)
                    else:
                        self._contents.unlink_large(place.offset)
        return result

    async def on_file_thread(self, call: Callable[[], Answer]) -> Answer:
        """Blocking work on files."""
        if self._is_inline:
            return call()
        return await asyncio.get_running_loop().run_in_executor(self._files, call)

    async def wait(self) -> None:
        """Until what was promised is done."""
        while self._tasks:
            await asyncio.wait(self._tasks)

    def close(self) -> None:
        self._files.shutdown(wait=True)
