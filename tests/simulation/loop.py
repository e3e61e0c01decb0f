"""Virtual time for many processes in one event loop: each has its own rate of time, and can be stopped like by SIGSTOP.

Whatever a process starts runs in a context that names it. So the loop knows whose callback it is about to run: that of a
stopped process is put aside until it goes on. async-solipsism does the rest: no real time passes, no real socket is there.
"""

import asyncio
import contextvars
import heapq
import selectors
import weakref
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any
from unittest import mock

import async_solipsism
import async_solipsism.selector

GRAIN_SECONDS = 2e-6  # two ticks of the clock
CANCELLED_MAX = 200  # timers that are kept for nothing
TASKS_MIN = 200  # of a process, before it looks which are done
PROCESS: contextvars.ContextVar["Process | None"] = contextvars.ContextVar("process", default=None)


class Process:
    """One run of one program. `rate`: its seconds for each second of the world, for timers and clocks."""

    def __init__(self, host: str, rate: float = 1.0) -> None:
        self.host = host
        self.rate = rate
        self.is_paused = False
        self.is_dead = False
        self.parked: deque[asyncio.Handle] = deque()
        self._tasks: list[weakref.ref[asyncio.Task[Any]]] = []  # also some that are done
        self._tasks_max = TASKS_MIN
        self.context = contextvars.copy_context()
        self.context.run(PROCESS.set, self)

    def spawn(self, work: Coroutine[Any, Any, Any], name: str = "") -> "asyncio.Task[Any]":
        """A task of this process."""
        return asyncio.get_running_loop().create_task(work, name=name or None, context=self.context)

    def keep(self, task: "asyncio.Task[Any]") -> None:
        """Remember it until it is done. Those that are done are looked for now and then: a callback of each would be an event."""
        self._tasks.append(weakref.ref(task))
        if len(self._tasks) > self._tasks_max:
            self._tasks_max = TASKS_MIN + 2 * len(self.undone())

    def undone(self) -> "list[asyncio.Task[Any]]":
        """Its tasks, in the order in which they began."""
        found = [task for reference in self._tasks if (task := reference()) is not None and not task.done()]
        self._tasks = [weakref.ref(task) for task in found]
        return found


class WorldClock(async_solipsism.clock.Clock):  # type: ignore[misc]
    """`now` is its time: it is looked at several times for each callback."""

    def __init__(self) -> None:
        super().__init__()
        self.now: float = super().time()

    def time(self) -> float:
        return self.now

    def advance(self, delta: float) -> None:
        self._ticks += round(delta / self._resolution)
        self.now = self._ticks * self._resolution


class HotSelector(async_solipsism.selector.Selector):  # type: ignore[misc]
    """Looks only at sockets that something happened to: hundreds are open, and nearly all of them are quiet."""

    def __init__(self) -> None:
        super().__init__(WorldClock())
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
    def __init__(self, callback: Any, args: Any, loop: Any, context: Any) -> None:  # like the usual one without debugging
        self._context = contextvars.copy_context() if context is None else context
        self._loop, self._callback, self._args, self._cancelled = loop, callback, args, False
        self._repr = self._source_traceback = None  # type: ignore[assignment]

    _run = _run


class _TimerHandle(asyncio.TimerHandle):
    def __init__(self, when: float, callback: Any, args: Any, loop: Any, context: Any) -> None:
        self._context = contextvars.copy_context() if context is None else context
        self._loop, self._callback, self._args, self._cancelled = loop, callback, args, False
        self._repr = self._source_traceback = None
        self._when, self._scheduled = when, True

    _run = _run


class WorldLoop(async_solipsism.EventLoop):  # type: ignore[misc]
    """`listen` is set by the network: what a server socket of a process is."""

    listen: Callable[[Any, str, int], Any]

    def __init__(self) -> None:
        with mock.patch("async_solipsism.selector.Selector", HotSelector):
            super().__init__()
        self._clock: WorldClock = self._selector.clock
        self.world_time = self._clock.time  # seconds of the world
        self._timers_count = 0
        self.set_task_factory(_make_task)

    def touch(self, socket: Any) -> None:
        """Something happened to it."""
        self._selector.hot[socket] = None

    def time(self) -> float:
        """As the calling process sees it."""
        process = PROCESS.get()
        return self._clock.now if process is None else self._clock.now * process.rate

    def call_soon(self, callback: Any, *args: Any, context: Any = None) -> asyncio.Handle:
        self._check_closed()
        handle = _Handle(callback, args, self, context)
        self._ready.append(handle)
        return handle

    def call_later(self, delay: float, callback: Any, *args: Any, context: Any = None) -> asyncio.TimerHandle:
        process = PROCESS.get()
        now = self._clock.now
        return self._timer(now + delay if process is None else (now * process.rate + delay) / process.rate, callback, args, context)

    def call_at(self, when: float, callback: Any, *args: Any, context: Any = None) -> asyncio.TimerHandle:
        process = PROCESS.get()
        return self._timer(when if process is None else when / process.rate, callback, args, context)

    def _timer(self, at: float, callback: Any, args: tuple[Any, ...], context: Any) -> asyncio.TimerHandle:
        """`at`: of the world."""
        # Never early, or who looks at the clock then would sleep again for nothing, for ever: time stands still meanwhile.
        timer = _TimerHandle(at + GRAIN_SECONDS, callback, args, self, context)
        self._timers_count += 1
        heapq.heappush(self._scheduled, (at + GRAIN_SECONDS, self._timers_count, timer))
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
        clock = self._selector.clock
        if self._selector.hot or not (ready or self._stopping or scheduled):
            timeout = 0 if ready or self._stopping else None if not scheduled else max(0.0, scheduled[0][0] - clock.now)
            if events := self._selector.select(timeout):
                self._process_events(events)
        elif not ready and not self._stopping and (wait := scheduled[0][0] - clock.now) > 0:
            clock.advance(wait)
        until = clock.now + self._clock_resolution
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
        process.keep(task)
    return task
