"""Run the parent-side hooks of plugins on a thread of its own, behind a bounded queue, so that no hook can block the loop."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from typing import Any

from supervisor.events import Bus, Dropped, Event, HookFailed, Subscriber
from supervisor.plugins.manager import PluginManager
from supervisor.threads import start_thread

MAX_QUEUED = 10_000
BATCH = 1000


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

    def start(self) -> None:
        """Start the thread, once the plugins are loaded."""
        if self._plugins.hook.supervisor_events.get_hookimpls():
            self._bus.subscribe(self._put)
        self._thread = start_thread(self._run, "hooks")

    def call(self, hook: str, **arguments: Any) -> None:
        """Call `hook` after the events that came before."""
        self._queue.append(lambda: self._plugins.call(hook, **arguments))
        self._wake.set()

    async def stop(self) -> None:
        """Wait until everything that was queued before is done; a hook may hang."""
        self._stopping = True
        self._wake.set()
        while self._thread is not None and self._thread.is_alive():
            await asyncio.sleep(0.002)

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
