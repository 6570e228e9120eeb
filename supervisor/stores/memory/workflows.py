"""Jobs that wait for their parents, in memory: see `supervisor.stores.workflows`. The record of a job has its links."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from supervisor.errors import NoSuchParent
from supervisor.jobs import JobState
from supervisor.stores.memory.state import JobRecord, MemoryState
from supervisor.stores.workflows import (
    CANCELLED_BY,
    DONE,
    WAITS,
    how_it_ended,
    no_such_parent,
    parent_failed,
    with_results,
)


class Workflows:
    """Changes the links between children and parents. The children of each job are an index of the state."""

    def __init__(self, state: MemoryState) -> None:
        self._state = state

    def link(self, child: JobRecord) -> list[JobRecord]:
        """Let this new job, which is blocked, wait for its parents. Return the jobs that go on: itself, if all have ended."""
        for parent in child.after:
            if parent not in self._state.jobs:
                raise NoSuchParent(no_such_parent(parent))
        parents = [self._state.jobs[parent] for parent in child.after]
        return self.resolve([parent for parent in parents if parent.state.terminal])

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

    def run_again(self, job: JobRecord) -> tuple[bool, list[JobRecord]]:
        """Let the children of this job, which is ready again, wait for it again. Return whether it has to wait for its own parents, and
        the jobs that go on."""
        jobs = self._state.jobs
        unfinished = {id for id in job.links if id in jobs and not jobs[id].state.terminal}
        self._set_links(job, {id: WAITS if id in unfinished else DONE for id in job.links})
        for child in self._children(job):
            if child.state is JobState.BLOCKED and child.waits_for_parents:
                self._set_links(child, {job.id: WAITS})
        return job.waits_for_parents, self._restore(job)

    def _restore(self, job: JobRecord) -> list[JobRecord]:
        """Let the jobs wait again that were cancelled because of this one."""
        restored, left = dict[int, JobRecord](), deque([job])
        while left:
            parent = left.popleft()
            for child in self._children(parent):
                if child.state is JobState.CANCELLED and child.links.get(parent.id) == CANCELLED_BY:
                    self._state.change(child, state=JobState.BLOCKED, finished_at=None)
                    restored[child.id] = child
                    left.append(child)
        ended = dict[int, JobRecord]()
        for child in restored.values():
            parents = [self._state.jobs[id] for id in child.links if id in self._state.jobs]
            undone = [parent for parent in parents if parent.state is not JobState.SUCCEEDED]
            self._set_links(child, dict.fromkeys(child.links, DONE) | {parent.id: WAITS for parent in undone})
            ended |= {parent.id: parent for parent in undone if parent.state.terminal}
        return self.resolve(ended.values())

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
        parents = [self._state.jobs[id] for id in job.links if id in self._state.jobs]
        given = [(parent.id, parent.state is JobState.SUCCEEDED, parent.result) for parent in parents]
        size = sum(len(result.encode()) for _, _, result in given if result is not None)
        self._state.change(job, row=job.row._replace(headers=with_results(job.row.headers, given, size)))
