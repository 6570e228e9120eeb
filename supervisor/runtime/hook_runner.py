"""Parent-side hooks of plugins run here, behind a bounded queue, so that none of them can hold up the loop."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from typing import Any

from supervisor.events import Bus, Dropped, Event, HookFailed
from supervisor.plugins.manager import PluginManager

MAX_QUEUE = 10_000
BATCH = 1000


class HookThread:
    """Events are handed to `supervisor_events` in batches; what overflows is dropped, counted and said."""

    def __init__(self, plugins: PluginManager, bus: Bus, call_in_loop: Callable[..., Any]) -> None:
        self._plugins = plugins
        self._bus = bus
        self._call_in_loop = call_in_loop
        self._queue: deque[Event | Callable[[], None]] = deque()
        self._dropped = 0
        self._wake = threading.Event()
        self._ended = False
        self._thread = threading.Thread(target=self._run, name="hooks", daemon=True)
        if plugins.hook.supervisor_events.get_hookimpls():
            bus.subscribe(self._take)
        self._thread.start()

    def call(self, hook: str, **arguments: Any) -> None:
        """Call `hook` after the events that came before."""
        self._queue.append(lambda: self._plugins.call(hook, **arguments))
        self._wake.set()

    async def stop(self) -> None:
        """After what was handed over before; a hook may hang."""
        self._ended = True
        self._wake.set()
        while self._thread.is_alive():
            await asyncio.sleep(0.002)

    def _take(self, event: Event) -> None:
        if isinstance(event, HookFailed) and event.hook == "supervisor_events":
            return  # it would fail at being told of its failure, and so on
        if len(self._queue) >= MAX_QUEUE:
            self._dropped += 1
            return
        self._queue.append(event)
        self._wake.set()

    def _run(self) -> None:
        while True:
            self._wake.wait()
            self._wake.clear()
            ended = self._ended
            while self._queue:
                self._hand_over()
            if ended:
                return

    def _hand_over(self) -> None:
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
            self._call_in_loop(self._bus.emit, Dropped("hooks", dropped))

    def _deliver(self, events: list[Event]) -> None:
        if events:
            self._plugins.call("supervisor_events", events=events)
