"""Commands on all jobs that match a filter. They find the jobs first, and then change these in batches: a job that matches again
meanwhile, such as one that is retried and fails again, is changed once. One that has left the state in which it was found is left
alone, unless the command itself may have moved it: the end of a job makes those that wait for it ready, or cancels them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import NamedTuple, Protocol, TypeVar

from supervisor.jobs import JobState
from supervisor.stores.operator_commands import BATCH, refuse_delete, refuse_purge, refuse_redrive, refuse_retry
from supervisor.stores.protocol import Store
from supervisor.stores.records import OperatorResult
from supervisor.stores.search import FoundJobs, JobFilter, SearchLimits
from supervisor.text.units import counted

Answer = TypeVar("Answer")
PAGE = 10_000
"""The ids that are found by one call."""
LIMITS = SearchLimits(searched=2000)
"""A page looks at so many jobs only, since there may be many pages: one that sorts all jobs of a state would take too long."""
ENDED = tuple(state for state in JobState if state.terminal)
UNFINISHED = tuple(state for state in JobState if not state.terminal)
WAITING = tuple(state for state in UNFINISHED if state is not JobState.IN_FLIGHT)
AT_REST = tuple(state for state in JobState if state is not JobState.IN_FLIGHT)
DEAD_LETTER_STATES = ("pending", "delivered")

States = tuple[JobState, ...]

Report = Callable[[int, int | None], None]
"""Called with how many jobs are done, of how many (None while they are being found)."""


class Ask(Protocol):
    """Makes a call to the store, if need be again while it is unavailable."""

    def __call__(self, question: Callable[[Store], Answer], /) -> Answer: ...


class Command(NamedTuple):
    """`states` are those in which jobs can be changed; without one in the filter, jobs in `usual` states are. A job that has not ended
    when it is found, by a filter without a state, is changed if it is in one of the states `follows` by then. The oldest jobs
    are changed first, so that they run in this order, or those that wait for others before these if `ends` them: then none of the jobs
    becomes ready meanwhile, and starts. `refuse` returns why a job with this state and this dead letter is left alone, or None."""

    change: Callable[[Store, Sequence[int], bool, States], OperatorResult]
    refuse: Callable[[JobState, str | None, bool], str | None] = lambda state, dead_letter, force: None
    states: tuple[JobState, ...] = ()
    usual: tuple[JobState, ...] = ()
    follows: tuple[JobState, ...] = ()
    ends: bool = False
    of_dead_letters: bool = False

    def parts(self, where: JobFilter) -> Mapping[str, JobFilter]:
        """Return the filters that make up this one, by the state of their jobs, or by that of their dead letters."""
        if self.of_dead_letters:
            wanted = DEAD_LETTER_STATES if where.dead_letter is None else (where.dead_letter,)
            return {state: where._replace(dead_letter=state) for state in wanted}
        states = self.usual if where.state is None else (where.state,)
        return {state.value: where._replace(state=state) for state in states}

    def only(self, where: JobFilter, label: str) -> States:
        """Return the states in one of which a job must be still, that was found by the part `label`."""
        if self.of_dead_letters:
            return (JobState.FAILED,)
        state = JobState(label)
        return self.follows if self.follows and where.state is None and not state.terminal else (state,)


COMMANDS: Mapping[str, Command] = {
    "cancel": Command(
        lambda store, ids, force, only: store.cancel(ids, only=only), states=UNFINISHED, usual=UNFINISHED,
        follows=tuple(JobState), ends=True,
    ),
    "retry": Command(
        lambda store, ids, force, only: store.retry(ids, force, only=only), refuse_retry,
        (JobState.SCHEDULED, *ENDED), (JobState.FAILED,),
    ),
    "delete": Command(
        lambda store, ids, force, only: store.delete(ids, force, only=only), refuse_delete, AT_REST, AT_REST,
        follows=(*WAITING, JobState.CANCELLED), ends=True,
    ),
    "redrive": Command(
        lambda store, ids, force, only: store.redrive(ids, force, only=only), refuse_redrive, of_dead_letters=True
    ),
    "purge": Command(lambda store, ids, force, only: store.purge(force, ids), refuse_purge, of_dead_letters=True),
}  # fmt: skip


def move_to(queue: str) -> Command:
    """Return the command to move waiting jobs to a queue."""
    return Command(
        lambda store, ids, force, only: store.move(ids, queue, only=only),
        states=WAITING,
        usual=WAITING,
        follows=WAITING,
    )


EMPTY = COMMANDS["cancel"]._replace(states=WAITING, usual=WAITING, follows=WAITING)
"""Cancel waiting jobs, and none that has started meanwhile."""
DELETE_WAITING = COMMANDS["delete"]._replace(states=WAITING, usual=WAITING)


class Found(NamedTuple):
    """The jobs that match, the oldest first, each with the part of the filter by which it was found; and for those that are going
    to be left alone, the reason."""

    jobs: Mapping[int, str]
    refused: Mapping[int, str]

    @property
    def changeable(self) -> Mapping[int, str]:
        return {id: label for id, label in self.jobs.items() if id not in self.refused}

    @property
    def text(self) -> str:
        """Return the number of those that can be changed, by state if there are several."""
        states = Counter(self.changeable.values())
        number = counted(states.total(), "job")
        parts = ", ".join(f"{n:,} {state.replace('_', ' ')}" for state, n in states.most_common())
        return f"{number} ({parts})" if parts else number


class Changed(NamedTuple):
    """The number of jobs that were changed, and of those that were left alone, by the reason."""

    changed: int
    left: Mapping[str, int]


def _nothing(done: int, of: int | None) -> None: ...


def find_all(
    ask: Ask, command: Command, where: JobFilter, limit: int | None, report: Report = _nothing, *, force: bool = False
) -> Found:
    """Find the jobs for which the command is, `limit` at most: then the newest of each state."""
    found: dict[int, str] = {}
    for label, part in command.parts(where).items():
        for ids in pages(ask, part, None if limit is None else limit - len(found)):
            found |= dict.fromkeys(ids, label)
            report(len(found), None)
    jobs = {id: found[id] for id in sorted(found)}
    return Found(jobs, {id: reason for id, reason in _refused(ask, command, where, jobs, force) if id in jobs})


def _refused(
    ask: Ask, command: Command, where: JobFilter, jobs: Mapping[int, str], force: bool
) -> Iterator[tuple[int, str]]:
    """Yield the jobs that the command refuses, and maybe others, with the reason."""
    for label in dict.fromkeys(jobs.values()):
        dead_letter = label if command.of_dead_letters else None
        state = JobState.FAILED if dead_letter else JobState(label)
        if (reason := command.refuse(state, dead_letter, force)) is not None:
            yield from ((id, reason) for id, its in jobs.items() if its == label)
        elif label == JobState.FAILED and (reason := command.refuse(state, "pending", force)) is not None:
            pending = command.parts(where)[label]._replace(dead_letter="pending")
            yield from ((id, reason) for ids in pages(ask, pending, None) for id in ids)


def pages(ask: Ask, where: JobFilter, limit: int | None) -> Iterator[list[int]]:
    """Yield the ids of the jobs that match, the newest first."""
    before: str | None = None
    while limit is None or limit > 0:
        size = PAGE if limit is None else min(PAGE, limit)
        found = ask(partial(_page, where, before, size))
        limit = None if limit is None else limit - len(found.ids)
        yield found.ids
        if (before := found.next) is None:
            return


def _page(where: JobFilter, before: str | None, limit: int, store: Store) -> FoundJobs:
    return store.find_jobs(where, before=before, limit=limit, limits=LIMITS)


def change_all(
    ask: Ask, command: Command, where: JobFilter, found: Found, *, force: bool = False, report: Report = _nothing,
    each: Callable[[OperatorResult], None] = lambda result: None,
) -> Changed:  # fmt: skip
    """Change the jobs in batches, with a commit for each; `each` is called with what became of a batch."""
    changed, left = 0, Counter[str]()
    for only, ids in _batches(command, where, found):
        result = ask(partial(_change, command, ids, force, only))
        changed += len(result.changed)
        left.update(result.refused.values())
        each(result)
        report(changed + left.total(), len(found.jobs))
    return Changed(changed, left)


def _change(command: Command, ids: Sequence[int], force: bool, only: States, store: Store) -> OperatorResult:
    return command.change(store, ids, force, only)


def _batches(command: Command, where: JobFilter, found: Found) -> Iterator[tuple[States, list[int]]]:
    """Yield the jobs in batches that must be in the same states still."""
    only = {label: command.only(where, label) for label in command.parts(where)}
    groups: dict[States, list[int]] = {states: [] for states in only.values()}
    for id, label in found.jobs.items():
        groups[only[label]].append(id)
    for states, ids in groups.items():
        for start in range(0, len(ids), BATCH):
            yield states, ids[-start - BATCH : len(ids) - start] if command.ends else ids[start : start + BATCH]
