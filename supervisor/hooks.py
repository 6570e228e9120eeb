"""The hooks that a plugin may implement."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import pluggy

from supervisor.handlers import Handler
from supervisor.jobs import Job

if TYPE_CHECKING:
    import click

PROJECT = "supervisor"

hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)

PARENT_HOOKS = frozenset(
    {"supervisor_sinks", "supervisor_events", "supervisor_started", "supervisor_stopping", "supervisor_stores"}
)
COMMAND_HOOKS = frozenset({"supervisor_commands"})


class Sink(Protocol):
    """A destination of dead letters, built as `Sink(**keys)` from its entry in `dlq.sinks` (all keys but `type` and `name`).

    It runs on a thread of its own in the supervisor. A dead letter is the dict that `supervisor jobs show --json` prints.
    """

    def publish(self, dead_letters: Sequence[Mapping[str, Any]]) -> Iterable[int]:
        """Store the dead letters, and return the ids of those that are safely stored.

        The others are offered again. If this raises, all are offered again, in smaller and smaller batches, so that one bad
        dead letter does not block the others. If it raises NotAccepted, only those that are not accepted are offered again.
        """

    def close(self) -> None:
        """Close the sink: called once, after the last publish."""


class Specs:
    """The hooks of the worker side, then of the parent side, then of the command line."""

    @hookspec
    def supervisor_handlers(self) -> Iterable[Handler]:
        """Return handlers besides those marked with @handler."""
        return ()

    @hookspec
    def supervisor_worker_started(self, worker: Any) -> None:
        """A worker process is about to take its first job; `worker` has `pid` and `number`."""

    @hookspec
    def supervisor_worker_stopping(self, worker: Any) -> None:
        """A worker process has run its last job and is about to exit; not called if it is killed or crashes."""

    @hookspec(firstresult=True)
    def supervisor_run(self, job: Job) -> Any:
        """Run a job. Implement it as a wrapper (`@hookimpl(wrapper=True)`): middleware around each job. If it is an `async def`, it
        wraps async handlers only."""

    @hookspec
    def supervisor_sinks(self) -> Mapping[str, type[Sink]]:
        """Return types of dead-letter sinks, by the `type` in `dlq.sinks`."""
        return {}

    @hookspec
    def supervisor_events(self, events: Sequence[Any]) -> None:
        """Receive a batch of events: values of the types in `supervisor.events` and `supervisor.kafka.events`."""

    @hookspec
    def supervisor_started(self, info: Mapping[str, Any]) -> None:
        """The supervisor has started; `info` has `owner`, `host`, `pid` and `store`."""

    @hookspec
    def supervisor_stopping(self, reason: str) -> None:
        """The supervisor has begun to drain."""

    @hookspec
    def supervisor_stores(self) -> Mapping[str, Callable[..., Any]]:
        """Return openers of stores, by URL scheme or `type`. An opener is called as `opener(settings, create=..., base=...)`."""
        return {}

    @hookspec
    def supervisor_commands(self, group: click.Group) -> None:
        """Add commands to `group`, the command line."""
