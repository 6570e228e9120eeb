"""The bus that passes events from those who emit them to their subscribers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Event = Any
Subscriber = Callable[[Event], None]


class Bus:
    """Passes each event to its subscribers, in the order of their subscription. A subscriber must be quick and must not raise."""

    __slots__ = ("_by_type", "_subscriptions")

    def __init__(self) -> None:
        self._subscriptions: list[tuple[Subscriber, tuple[type[Any], ...]]] = []
        self._by_type: dict[type[Any], tuple[Subscriber, ...]] = {}

    def subscribe(self, subscriber: Subscriber, *types: type[Any]) -> None:
        """Call `subscriber` with each event of these types; with every event, if no type is given."""
        self._subscriptions.append((subscriber, types))
        self._by_type = {}

    def emit(self, event: Event) -> None:
        kind = type(event)
        if (subscribers := self._by_type.get(kind)) is None:
            subscribers = self._by_type[kind] = tuple(
                subscriber for subscriber, types in self._subscriptions if not types or kind in types
            )
        for subscriber in subscribers:
            subscriber(event)
