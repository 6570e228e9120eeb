"""Jobs that wait for their parents, in memory: see `supervisor.stores.workflows`. The record of a job has its links."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence

from supervisor.errors import NoSuchParent, ParentsInCircle
from supervisor.jobs import JobState
from supervisor.stores.memory.job_record import JobRecord
from supervisor.stores.memory.state import MemoryState
from supervisor.stores.memory.unique import UniqueKeys
from supervisor.stores.workflows import (
    CANCELLED_BY,
    DONE,
    IGNORED,
    WAITS,
    how_it_ended,
    no_such_parent,
    parent_failed,
    waits_for_itself,
    with_results,
)


class Workflows:
    """Changes the links between children and parents. The children of each job are an index of the state."""

    def __init__(self, state: MemoryState) -> None:
        self._state, self._unique = state, UniqueKeys(state)

    def link(self, child: JobRecord) -> list[JobRecord]:
        """Let this job, which is new or replaced, and blocked, wait for its parents. Return the jobs that go on: itself, if all have
        ended."""
        for parent in child.after:
            if parent not in self._state.jobs:
                raise NoSuchParent(no_such_parent(parent, self._state.unique.key_of(parent, self._state.now())))
        self._refuse_circle(child)
        parents = [self._state.jobs[parent] for parent in child.after]
        return self.resolve([parent for parent in parents if parent.state.terminal])

    def _refuse_circle(self, child: JobRecord) -> None:
        """Raise ParentsInCircle if one of its parents, or of theirs, is the job itself: no new job is, but one that is replaced may be."""
        left, found = [*child.links] if child.id in self._state.children else [], set[int]()
        while left:
            if (id := left.pop()) == child.id:
                raise ParentsInCircle(waits_for_itself(id))
            if id not in found and id in self._state.jobs:
                found.add(id)
                left += self._state.jobs[id].links

    def ended(self, job: JobRecord, deleted: bool = False) -> list[JobRecord]:
        """Return the jobs that go on now that this one has ended, or is `deleted`. Cancel those that can't."""
        if job.waits_for_parents:
            self._wait_no_longer(job)
        return self.resolve([job], deleted) if job.id in self._state.children else []

    def resolve(self, ended: Iterable[JobRecord], deleted: bool = False) -> list[JobRecord]:
        """Cancel the children of these jobs that can't go on, with their own. Return those that wait no longer."""
        left, free = deque((job, deleted) for job in ended), list[JobRecord]()
        while left:
            parent, gone = left.popleft()
            for child in self._waiting_for(parent):
                on_failed = child.row.extras.on_parent_failed if child.row.extras is not None else "cancel"
                if on_failed == "run" or parent.state is JobState.SUCCEEDED:
                    self._set_links(child, {parent.id: DONE})
                    if not child.waits_for_parents:
                        free.append(child)
                elif on_failed == "cancel" or gone:
                    self._cancel(child, parent, gone)
                    left.append((child, False))
        return [job for job in free if job.state is JobState.BLOCKED]

    def _waiting_for(self, parent: JobRecord) -> list[JobRecord]:
        return [
            it for it in self._children(parent) if it.links.get(parent.id) == WAITS and it.state is JobState.BLOCKED
        ]

    def _cancel(self, child: JobRecord, parent: JobRecord, deleted: bool) -> None:
        now = self._state.now()
        error = parent_failed(parent.id, how_it_ended(parent.state, deleted), now)
        self._wait_no_longer(child)
        self._set_links(child, {parent.id: CANCELLED_BY})
        self._state.change(
            child, state=JobState.CANCELLED, token=child.token + 1, finished_at=now, errors=(*child.errors, error)
        )

    def run_again(self, jobs: Sequence[JobRecord]) -> tuple[set[int], list[JobRecord]]:
        """Let the children of these jobs, which are ready again, wait for them again. Return those of these jobs that have to wait for
        their own parents, and the jobs that go on."""
        for job in jobs:
            self._wait_again(job)
        free = [each for job in jobs for each in self._restore(job)]
        for job in jobs:
            parents = {id: self._state.jobs[id] for id in job.links if id in self._state.jobs}
            links = dict.fromkeys(job.links, DONE) | {
                id: IGNORED if parent.state.terminal else WAITS
                for id, parent in parents.items()
                if parent.state is not JobState.SUCCEEDED
            }
            self._set_links(job, links)
        return {job.id for job in jobs if job.waits_for_parents}, free

    def _wait_again(self, parent: JobRecord) -> None:
        """Let children that are still blocked wait for this job, which is going to run again."""
        for child in self._children(parent):
            if child.links[parent.id] == IGNORED:
                self._set_links(child, {parent.id: DONE})
            if child.state is JobState.BLOCKED and child.waits_for_parents and child.links[parent.id] == DONE:
                self._set_links(child, {parent.id: WAITS})

    def _restore(self, job: JobRecord) -> list[JobRecord]:
        """Let the jobs wait again that were cancelled because of this one. A job whose unique key another one has stays cancelled, and so
        do its own children."""
        restored, left = dict[int, JobRecord](), deque([job])
        while left:
            parent = left.popleft()
            cancelled = [
                it.id
                for it in self._children(parent)
                if it.state is JobState.CANCELLED and it.links.get(parent.id) == CANCELLED_BY
            ]
            refused = self._unique.retake(cancelled)
            for child in (self._state.jobs[id] for id in cancelled if id not in refused):
                self._state.change(child, state=JobState.BLOCKED, finished_at=None)
                restored[child.id] = child
                left.append(child)
        ended = dict[int, JobRecord]()
        for child in restored.values():
            known = {
                id: self._state.jobs[id]
                for id, link in child.links.items()
                if id in self._state.jobs and link != IGNORED
            }
            undone = {id: parent for id, parent in known.items() if parent.state is not JobState.SUCCEEDED}
            self._set_links(child, dict.fromkeys(known, DONE) | dict.fromkeys(undone, WAITS))
            ended |= {id: parent for id, parent in undone.items() if parent.state.terminal}
        free = self.resolve(ended.values())
        for child in restored.values():
            if child.state is JobState.BLOCKED:
                self._wait_again(child)
        return free

    def _children(self, parent: JobRecord) -> list[JobRecord]:
        return [self._state.jobs[id] for id in sorted(self._state.children.get(parent.id, ()))]

    def _wait_no_longer(self, child: JobRecord) -> None:
        self._set_links(child, {id: DONE for id, link in child.links.items() if link == WAITS})

    def _set_links(self, child: JobRecord, links: dict[int, int]) -> None:
        if links:
            self._state.change(child, links={**child.links, **links})

    def give_results(self, job: JobRecord) -> None:
        """Give the job the results of its parents with its headers."""
        if not job.links:
            return
        parents = {id: self._state.jobs.get(id) for id in job.links}
        given = [
            (id, False, None) if parent is None else (id, parent.state is JobState.SUCCEEDED, parent.result)
            for id, parent in parents.items()
        ]
        size = sum(len(result.encode()) for _, _, result in given if result is not None)
        self._state.change(job, row=job.row._replace(headers=with_results(job.row.headers, given, size)))
