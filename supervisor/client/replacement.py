"""The stores that tests put in place of those of all clients of this process."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from supervisor.stores.protocol import Store


class Replacement(NamedTuple):
    """`open` opens the store of one client, whatever its settings. `enqueuing` gets each function by which a job is enqueued, and
    `waiting` the ids and the timeout of each wait for results that blocks its thread, before it begins."""

    open: Callable[[], Store]
    enqueuing: Callable[[Callable[..., Any]], None] = lambda function: None
    waiting: Callable[[Collection[int], float | None], None] = lambda ids, timeout: None


_current: Replacement | None = None


def current() -> Replacement | None:
    return _current


def replace_stores(replacement: Replacement | None) -> None:
    """Let all clients use this replacement from now on; with None, their own stores again."""
    global _current
    _current = replacement
