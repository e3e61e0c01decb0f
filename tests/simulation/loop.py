"""Virtual time for many processes in one event loop: each has its own rate of time, and can be stopped like by SIGSTOP.

Whatever a process starts runs in a context that names it. So the loop knows whose callback it is about to run: that of a
stopped process is put aside until it goes on. async-solipsism does the rest: no real time passes, no real socket is there.
"""

import asyncio
import contextvars
import heapq
import selectors
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any
from unittest import mock

import async_solipsism
import async_solipsism.selector

GRAIN_SECONDS = 2e-6  # two ticks of the clock
CANCELLED_MAX = 200  # timers that are kept for nothing
PROCESS: contextvars.ContextVar["Process | None"] = contextvars.ContextVar("process", default=None)


class Process:
    """One run of one program. `rate`: its seconds for each second of the world, for timers and clocks."""

    def __init__(self, host: str, rate: float = 1.0) -> None:
        self.host = host
        self.rate = rate
        self.is_paused = False
        self.is_dead = False
        self.parked: deque[asyncio.Handle] = deque()
        self.tasks: dict[asyncio.Task[Any], None] = {}
        self.context = contextvars.copy_context()
        self.context.run(PROCESS.set, self)

    def spawn(self, work: Coroutine[Any, Any, Any], name: str = "") -> "asyncio.Task[Any]":
        """A task of this process."""
        return asyncio.get_running_loop().create_task(work, name=name or None, context=self.context)


class HotSelector(async_solipsism.selector.Selector):  # type: ignore[misc]
    """Looks only at sockets that something happened to: hundreds are open, and nearly all of them are quiet."""

    def __init__(self) -> None:
        super().__init__()
        self.hot: dict[Any, None] = {}

    def register(self, fileobj: Any, events: int, data: Any = None) -> Any:
        key = super().register(fileobj, events, data)
        self.hot[key.fd.socket] = None
        return key

    def select(self, timeout: float | None = None) -> Any:
        self._check_closed()
        ready = []
        for socket in tuple(self.hot):
            key = self._fd_to_key.get(socket.fileno())
            events = 0
            if key is not None and key.events & selectors.EVENT_READ and socket.read_ready():
                events |= selectors.EVENT_READ
            if key is not None and key.events & selectors.EVENT_WRITE and socket.write_ready():
                events |= selectors.EVENT_WRITE
            if events:
                ready.append((key, events))
            elif key is None or not key.events & selectors.EVENT_WRITE:
                del self.hot[socket]
        if ready:
            return ready
        if timeout is None or timeout >= asyncio.base_events.MAXIMUM_SELECT_TIMEOUT:
            raise async_solipsism.SleepForeverError("nothing will ever happen again")
        if timeout > 0:
            self.clock.advance(timeout)
        return []


def _run(handle: Any) -> None:
    """Of a handle, as the usual one does it: this runs for everything that happens in a world."""
    process = handle._context.get(PROCESS)
    if process is not None and process.is_paused:
        process.parked.append(handle)
        return
    try:
        handle._context.run(handle._callback, *handle._args)
    except (SystemExit, KeyboardInterrupt):
        raise
    except BaseException as error:
        handle._loop.call_exception_handler({"message": f"Exception in callback {handle!r}", "exception": error, "handle": handle})


class _Handle(asyncio.Handle):
    _run = _run


class _TimerHandle(asyncio.TimerHandle):
    _run = _run


class WorldLoop(async_solipsism.EventLoop):  # type: ignore[misc]
    """`listen` is set by the network: what a server socket of a process is."""

    listen: Callable[[Any, str, int], Any]

    def __init__(self) -> None:
        with mock.patch("async_solipsism.selector.Selector", HotSelector):
            super().__init__()
        self.world_time: Callable[[], float] = self._selector.clock.time  # seconds of the world
        self._timers_count = 0
        self.set_task_factory(_make_task)

    def touch(self, socket: Any) -> None:
        """Something happened to it."""
        self._selector.hot[socket] = None

    def time(self) -> float:
        """As the calling process sees it."""
        process = PROCESS.get()
        return self.world_time() if process is None else self.world_time() * process.rate

    def call_soon(self, callback: Any, *args: Any, context: Any = None) -> asyncio.Handle:
        self._check_closed()
        handle = _Handle(callback, args, self, context)
        self._ready.append(handle)
        return handle

    def call_later(self, delay: float, callback: Any, *args: Any, context: Any = None) -> asyncio.TimerHandle:
        return self.call_at(self.time() + delay, callback, *args, context=context)

    def call_at(self, when: float, callback: Any, *args: Any, context: Any = None) -> asyncio.TimerHandle:
        process = PROCESS.get()
        at = when if process is None else when / process.rate
        # Never early, or who looks at the clock then would sleep again for nothing, for ever: time stands still meanwhile.
        timer = _TimerHandle(at + GRAIN_SECONDS, callback, args, self, context)
        self._timers_count += 1
        heapq.heappush(self._scheduled, (at + GRAIN_SECONDS, self._timers_count, timer))
        timer._scheduled = True  # type: ignore[attr-defined]
        return timer

    def _run_once(self) -> None:
        """As usual, in one piece: it runs for nearly every callback, because nearly each has an instant of its own."""
        ready, scheduled = self._ready, self._scheduled
        if self._timer_cancelled_count > CANCELLED_MAX:
            self._timer_cancelled_count = 0
            scheduled[:] = [entry for entry in scheduled if not entry[2]._cancelled]
            heapq.heapify(scheduled)
        while scheduled and scheduled[0][2]._cancelled:
            heapq.heappop(scheduled)
        if ready or self._stopping or self._selector.hot or not scheduled:
            timeout = 0 if ready or self._stopping else None if not scheduled else max(0.0, scheduled[0][0] - self.world_time())
            if events := self._selector.select(timeout):
                self._process_events(events)
        elif (wait := scheduled[0][0] - self.world_time()) > 0:
            self._selector.clock.advance(wait)
        until = self.world_time() + self._clock_resolution
        while scheduled and scheduled[0][0] < until:
            ready.append(heapq.heappop(scheduled)[2])
        for _ in range(len(ready)):
            handle = ready.popleft()
            if not handle._cancelled:
                handle._run()

    def go_on(self, process: Process) -> None:
        """End a pause: what was put aside runs now, in its order."""
        process.is_paused = False
        self._ready.extend(process.parked)
        process.parked.clear()

    start_tls = asyncio.BaseEventLoop.start_tls  # async-solipsism refuses it; its transports can do it

    async def create_server(self, protocol_factory: Any, host: Any = None, port: Any = None, **kwargs: Any) -> Any:
        return self.listen(protocol_factory, host, port)


def _make_task(loop: Any, work: Any, context: Any = None) -> "asyncio.Task[Any]":
    process = PROCESS.get() if context is None else context.get(PROCESS)
    task: asyncio.Task[Any] = asyncio.Task(work, loop=loop, context=context)
    if process is not None:
        process.tasks[task] = None
        task.add_done_callback(lambda done: process.tasks.pop(done, None))
    return task
