"""The hooks a plugin may implement: signatures, and one line each."""

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

WORKER_HOOKS = frozenset(
    {"supervisor_handlers", "supervisor_worker_started", "supervisor_worker_stopping", "supervisor_run"}
)
PARENT_HOOKS = frozenset(
    {"supervisor_sinks", "supervisor_events", "supervisor_started", "supervisor_stopping", "supervisor_stores"}
)
COMMAND_HOOKS = frozenset({"supervisor_commands"})


class Sink(Protocol):
    """A place for dead letters, built as `Sink(**keys)` from its entry in `dlq.sinks` (all keys but `type` and `name`).

    Runs on a thread of its own in the parent. A letter is the dict that `supervisor jobs show --json` prints.
    """

    def publish(self, dead_letters: Sequence[Mapping[str, Any]]) -> Iterable[int]:
        """Store the letters; give the ids of those that are safely there. What is left out is offered again, and if it raises
        all are, in smaller and smaller parts: one bad letter holds back no other."""

    def close(self) -> None:
        """Called once, after the last publish."""


class Specs:
    """Worker side first, then parent side, then the command line."""

    @hookspec
    def supervisor_handlers(self) -> Iterable[Handler]:
        """Handlers that the plugin brings besides those marked with @handler."""
        return ()

    @hookspec
    def supervisor_worker_started(self, worker: Any) -> None:
        """A worker process is about to take its first job; `worker` has `pid` and `number`."""

    @hookspec
    def supervisor_worker_stopping(self, worker: Any) -> None:
        """A worker process has run its last job and is about to exit in good order."""

    @hookspec(firstresult=True)
    def supervisor_run(self, job: Job) -> Any:
        """Middleware: a wrapper (`@hookimpl(wrapper=True)`) around each job."""

    @hookspec
    def supervisor_sinks(self) -> Mapping[str, type[Sink]]:
        """Dead-letter sinks by the `type` that `dlq.sinks` names."""
        return {}

    @hookspec
    def supervisor_events(self, events: Sequence[Any]) -> None:
        """A batch of what happened; see supervisor.events."""

    @hookspec
    def supervisor_started(self, info: Mapping[str, Any]) -> None:
        """The supervisor serves; `info` has `owner`, `host`, `pid` and `store`."""

    @hookspec
    def supervisor_stopping(self, reason: str) -> None:
        """The supervisor has begun to drain."""

    @hookspec
    def supervisor_stores(self) -> Mapping[str, Callable[..., Any]]:
        """Openers of stores by URL scheme or `type`; called as opener(settings, create=..., base=...): see stores.Opener."""
        return {}

    @hookspec
    def supervisor_commands(self, group: click.Group) -> None:
        """Add commands to the command line."""
