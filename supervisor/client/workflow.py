"""Jobs that wait for each other and are enqueued together: all of them, or none."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from enum import Enum, auto
from itertools import islice
from operator import index
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple, SupportsIndex

from supervisor.client.by_function import job_of
from supervisor.client.new_jobs import AnyJob, batch_of, enqueue_row
from supervisor.config.settings import Settings
from supervisor.errors import InvalidJob
from supervisor.stores.extras import NO_EXTRAS, Place
from supervisor.stores.records import EnqueueBatch, EnqueueRow

if TYPE_CHECKING:
    from supervisor.stores.protocol import Store

COUNTED_AT_ONCE = 1000
DELETED = "deleted"
"""The key of the counts by state for jobs that are not in the store any more."""
_UNIQUE_CALLBACK = (
    'unique: a job that has the key already would not run after this batch; expected on_conflict="reject" with it, which refuses '
    "the batch then, or no unique key"
)


class Stage(Enum):
    """DROPPED is a workflow whose block was left by an error, or whose enqueue has failed."""

    NEW = auto()
    OPEN = auto()
    ENQUEUED = auto()
    DROPPED = auto()


class Step:
    """A job of a workflow. Other jobs name it in `after`; its `id` is known once the workflow is enqueued."""

    def __init__(self, workflow: Workflow, place: int) -> None:
        self._workflow, self._place = workflow, place

    @property
    def id(self) -> int:
        if not self._workflow.is_enqueued:
            raise InvalidJob("after: a job of a workflow that is not enqueued yet has no id")
        return self._workflow.ids[self._place]

    def __index__(self) -> int:
        return self.id

    def __repr__(self) -> str:
        return f"Step({self.id if self._workflow.is_enqueued else f'place {self._place}'})"


class Workflow:
    """Collects jobs, which are enqueued at the end of a `with` block; nothing is enqueued if it is left by an error."""

    def __init__(self, settings: Settings) -> None:
        self._settings, self._batch = settings, EnqueueBatch()
        self.ids: list[int] = []
        """The ids of the jobs in the order in which they were added, once they are enqueued."""
        self._stage = Stage.NEW

    @property
    def is_enqueued(self) -> bool:
        return self._stage is Stage.ENQUEUED

    def add(
        self, handler: str | Callable[..., Any], /, *arguments: Any, after: Sequence[SupportsIndex] = (),
        on_parent_failed: str | None = None, **named: Any,
    ) -> Step:  # fmt: skip
        """Add a job, and return it. `after` are jobs of this workflow, or ids of jobs that are enqueued already.

        The other arguments are those of `Client.enqueue`: a name with a payload and options, or a function with the arguments of
        its call, whose options are given by `options`. Raises InvalidJob, TypeError as `Client.enqueue` does, and RuntimeError
        outside of the block.
        """
        return self.options(after=after, on_parent_failed=on_parent_failed).add(handler, *arguments, **named)

    def options(self, **options: Any) -> WithOptions:
        """Return an object whose `add` gives a job these options of `Client.enqueue`."""
        return WithOptions(self, options)

    def _add(self, handler: Any, arguments: Any, named: Mapping[str, Any], options: Mapping[str, Any]) -> Step:
        self._require(Stage.OPEN)
        given = {**options, "after": [self._parent(each) for each in options.get("after") or ()]}
        if callable(handler):
            job = job_of(self._settings, handler, arguments, named) | given
        else:
            job = {"handler": handler, **_payload(*arguments), **named, **given}
        self._batch.append(enqueue_row(self._settings, job))
        return Step(self, len(self._batch) - 1)

    def _parent(self, parent: SupportsIndex) -> int:
        if isinstance(parent, Step) and parent._workflow is self and not self.is_enqueued:
            return Place(-1 - parent._place)
        return index(parent)

    def _require(self, stage: Stage) -> None:
        if self._stage is not stage:
            raise RuntimeError(_WRONG[self._stage])

    def _open(self) -> None:
        self._require(Stage.NEW)
        self._stage = Stage.OPEN

    def _drop(self) -> None:
        self._stage = Stage.DROPPED

    def _done(self, ids: Sequence[int]) -> None:
        self.ids, self._stage = list(ids), Stage.ENQUEUED


_WRONG = {
    Stage.NEW: "a workflow enqueues its jobs at the end of its block: add them inside of `with client.workflow() as flow:`, or of "
    "`async with` for an AsyncClient",
    Stage.OPEN: "the block of the workflow runs already: make another workflow",
    Stage.ENQUEUED: "the workflow is enqueued already: make another one, with the ids of its jobs in `after`",
    Stage.DROPPED: "the block of the workflow has ended with an error: make another one",
}
"""The messages about a workflow that is at another stage than a call needs."""


class WithOptions:
    """Adds jobs that have the same options to a workflow, apart from the arguments of their handlers."""

    def __init__(self, workflow: Workflow, options: Mapping[str, Any]) -> None:
        self._workflow, self._options = workflow, options

    def add(self, handler: str | Callable[..., Any], /, *arguments: Any, **named: Any) -> Step:
        """Add a job as `Workflow.add` does, by name or by function."""
        return self._workflow._add(handler, arguments, named, self._options)


class ClientWorkflow(Workflow):
    """A workflow for `with`."""

    def __init__(self, settings: Settings, enqueue: Callable[[EnqueueBatch], list[int]]) -> None:
        super().__init__(settings)
        self._enqueue = enqueue

    def __enter__(self) -> ClientWorkflow:
        self._open()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._drop()
        if kind is None:
            self._done(self._enqueue(self._batch))


class AsyncWorkflow(Workflow):
    """A workflow for `async with`."""

    def __init__(self, settings: Settings, enqueue: Callable[[EnqueueBatch], Awaitable[list[int]]]) -> None:
        super().__init__(settings)
        self._enqueue = enqueue

    async def __aenter__(self) -> AsyncWorkflow:
        self._open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        self._drop()
        if kind is None:
            self._done(await self._enqueue(self._batch))


class Batch(NamedTuple):
    """Jobs that were enqueued together, and the jobs that run once all of these have succeeded, or have ended."""

    ids: list[int]
    on_success: int | None
    on_finished: int | None


def with_callbacks(
    settings: Settings, jobs: Iterable[AnyJob], on_success: str | AnyJob | None, on_finished: str | AnyJob | None
) -> EnqueueBatch:
    """Return a batch with the jobs, and behind them those that run once all have succeeded, and once all have ended."""
    batch = batch_of(settings, jobs)
    places = tuple(-1 - place for place in range(len(batch)))
    for name, job, on_failed in (("on_success", on_success, "cancel"), ("on_finished", on_finished, "run")):
        if job is not None:
            try:
                row = enqueue_row(settings, (job, None) if isinstance(job, str) else job)
            except InvalidJob as error:
                raise InvalidJob(f"{name}: {error}") from None
            if row.extras is not None and row.extras.unique is not None and row.extras.on_conflict != "reject":
                raise InvalidJob(f"{name}: {_UNIQUE_CALLBACK}")
            batch.append(_after_all(row, places, on_failed))
    return batch


def batch_with(ids: Sequence[int], on_success: object, on_finished: object) -> Batch:
    """Return the batch that was enqueued by `with_callbacks`, from the ids of all its jobs."""
    rest = list(ids)
    finished = rest.pop() if on_finished is not None else None
    success = rest.pop() if on_success is not None else None
    return Batch(rest, success, finished)


def _after_all(row: EnqueueRow, places: tuple[int, ...], on_failed: str) -> EnqueueRow:
    extras = row.extras or NO_EXTRAS
    after = dict.fromkeys((*places, *extras.after))
    return row._replace(extras=extras._replace(after=tuple(after), on_parent_failed=on_failed))


def counts_of(store: Store, ids: Iterable[int]) -> dict[str, int]:
    """Return how many of these jobs are in each state; those that are not in the store any more are "deleted"."""
    wanted, counts = iter(dict.fromkeys(ids)), Counter[str]()
    while part := [*islice(wanted, COUNTED_AT_ONCE)]:
        for state, n in store.counts_by_state(part).items():
            counts[state or DELETED] += n
    return dict(counts)


def _payload(payload: Any = None) -> dict[str, Any]:
    return {"payload": payload}
