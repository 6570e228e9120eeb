"""Run the parent-side hooks of plugins on a thread of its own, behind a bounded queue, so that no hook can block the loop."""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from collections import deque
from collections.abc import Callable
from time import monotonic
from typing import Any

from supervisor.events import Bus, Dropped, Event, HookFailed, HookWarning, LoopGap, Subscriber
from supervisor.plugins.manager import HookCall, PluginManager
from supervisor.runtime.tasks import cancel, run_every, start_task
from supervisor.text.units import format_duration
from supervisor.threads import start_thread

_logger = logging.getLogger(__name__)
MAX_QUEUED = 10_000
BATCH = 1000
MAX_CALLS = 32  # of hooks that are remembered
SLOW = 5.0  # seconds after which a hook that has not returned is reported
LOOK_EVERY = 1.0  # seconds
HANGS = "has not returned for {}: {}; look where with: py-spy dump -p {}, and give what it waits for a time limit"
RETURNED = "has returned after {}"
CUT_OFF = "has not returned at the end, and is cut off: hooks and events that waited for it are lost"
STOOD_STILL = "ran while the supervisor stood still for {}: C code in it that keeps the GIL stops all of the supervisor"
_MEANWHILE = dict.fromkeys(("supervisor_sinks", "supervisor_stores"), "the start waits for it")


class HookWatch:
    """Reports hooks that do not return: while they run, when they return, at the end, and those that ran in a gap of the loop."""

    def __init__(self, emit: Subscriber, clock: Callable[[], float] = monotonic) -> None:
        self.calls: deque[HookCall] = deque(maxlen=MAX_CALLS)
        self._emit = emit
        self._clock = clock
        self._slow: list[HookCall] = []

    def look(self) -> None:
        now = self._clock()
        for call in [call for call in self._slow if call.ended is not None]:
            self._slow.remove(call)
            self._warn(call, RETURNED.format(format_duration(round(self._until(call) - call.begun))))
        for call in self._running():
            if now - call.begun >= SLOW and call not in self._slow:
                self._slow.append(call)
                meanwhile = _MEANWHILE.get(call.hook, "jobs run, and other hooks and events wait for it")
                self._warn(call, HANGS.format(format_duration(SLOW), meanwhile, os.getpid()))

    def note_gap(self, gap: LoopGap) -> None:
        now = self._clock()
        for call in list(self.calls):
            overlap = min(now, self._until(call)) - max(call.begun, now - gap.seconds)
            if overlap > gap.seconds / 2:
                self._warn(call, STOOD_STILL.format(format_duration(round(gap.seconds, 1))))

    def cut_off(self) -> None:
        for call in self._running():
            self._warn(call, CUT_OFF)

    def _running(self) -> list[HookCall]:
        return [call for call in list(self.calls) if call.ended is None]

    def _until(self, call: HookCall) -> float:
        return self._clock() if call.ended is None else call.ended

    def _warn(self, call: HookCall, message: str) -> None:
        self._emit(HookWarning(call.hook, call.plugin, message))


class HookRunner:
    """Passes events to `supervisor_events` in batches. If the queue is full, events are dropped, counted and reported."""

    def __init__(self, plugins: PluginManager, bus: Bus, emit_from_thread: Subscriber) -> None:
        self._plugins = plugins
        self._bus = bus
        self._emit = emit_from_thread
        self._queue: deque[Event | Callable[[], None]] = deque()
        self._dropped = 0
        self._wake = threading.Event()
        self._stopping = False
        self._thread: threading.Thread | None = None
        self._watch = HookWatch(bus.emit)
        self._watching: asyncio.Task[None] | None = None
        self._called: set[tuple[str, str]] = set()
        plugins.on_call = self._note_call

    def start(self) -> None:
        """Start the thread, once the plugins are loaded."""
        if self._plugins.hook.supervisor_events.get_hookimpls():
            self._bus.subscribe(self._put)
        self._bus.subscribe(self._watch.note_gap, LoopGap)
        self._watching = start_task(run_every(LOOK_EVERY, self._watch.look))
        self._thread = start_thread(self._run, "hooks")

    def call(self, hook: str, **arguments: Any) -> None:
        """Call `hook` after the events that came before."""
        self._queue.append(lambda: self._plugins.call(hook, **arguments))
        self._wake.set()

    def _note_call(self, call: HookCall) -> None:
        """Name each hook in the log before its first call, at debug level: a hook may end the process, as by `os._exit`."""
        self._watch.calls.append(call)
        if (call.hook, call.plugin) not in self._called:
            self._called.add((call.hook, call.plugin))
            if _logger.isEnabledFor(logging.DEBUG):
                _logger.debug("hook %s of plugin %s is called for the first time", call.hook, call.plugin)
                for output in logging.getLogger().handlers:
                    output.flush()

    async def stop(self) -> None:
        """Wait until everything that was queued before is done. A hook may hang: it is reported if this is cancelled."""
        self._stopping = True
        self._wake.set()
        try:
            while self._thread is not None and self._thread.is_alive():
                await asyncio.sleep(0.002)
        except asyncio.CancelledError:
            self._watch.cut_off()
            raise
        finally:
            if self._watching is not None:
                await cancel(self._watching)

    def _put(self, event: Event) -> None:
        if isinstance(event, HookFailed) and event.hook == "supervisor_events":
            return  # the hook would get the event of its own failure, fail again, and so on
        if len(self._queue) >= MAX_QUEUED:
            self._dropped += 1
            return
        self._queue.append(event)
        self._wake.set()

    def _run(self) -> None:
        while True:
            self._wake.wait()
            self._wake.clear()
            stopping = self._stopping
            while self._queue:
                self._run_batch()
            if stopping:
                return

    def _run_batch(self) -> None:
        events: list[Event] = []
        while self._queue and len(events) < BATCH:
            item = self._queue.popleft()
            if callable(item):
                self._deliver(events)
                events = []
                item()
            else:
                events.append(item)
        self._deliver(events)
        dropped, self._dropped = self._dropped, 0
        if dropped:
            self._emit(Dropped("hooks", dropped))

    def _deliver(self, events: list[Event]) -> None:
        if events:
            self._plugins.call("supervisor_events", events=events)
