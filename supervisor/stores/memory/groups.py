"""The turns of groups in memory: see `supervisor.stores.groups`."""

from __future__ import annotations

from functools import partial

from supervisor.jobs import JobState, Tier
from supervisor.stores.groups import NO_GROUP, UNIT, Shares, spacing, start_of
from supervisor.stores.memory.job_record import JobRecord
from supervisor.stores.memory.state import MemoryState, Turns


class Groups:
    """Gives turns to jobs."""

    def __init__(self, state: MemoryState) -> None:
        self._state = state

    def take_turn(self, job: JobRecord) -> None:
        """Give the job a turn if it is ready and fresh, and shares its queue by groups."""
        name, place = job.group or NO_GROUP, (job.row.queue, job.row.priority)
        if job.state is not JobState.READY or job.tier != Tier.FRESH or not (name or place in self._state.turns):
            return
        turns = self._state.turns.get(place) or self._begin(job)
        self._reach(turns, self._reached(turns, job))
        start = start_of(turns.positions.get(name), turns.reached)
        self._state.change(job, age=start // UNIT)
        self._set(turns, name, start + self._width(job))

    def free_turn(self, job: JobRecord) -> None:
        """Free the turn of a job that waits for it, and is about to be cancelled or deleted."""
        name, turns = job.group or NO_GROUP, self._state.turns.get((job.row.queue, job.row.priority))
        if turns is not None and job.state is JobState.READY and job.tier == Tier.FRESH and name in turns.positions:
            self._set(turns, name, turns.positions[name] - self._width(job))

    def _width(self, job: JobRecord) -> int:
        return spacing(self._state.shares.get((job.row.queue, job.group or NO_GROUP), 1))

    def claimed(self, job: JobRecord) -> None:
        """Note that the job is claimed."""
        turns = self._state.turns.get((job.row.queue, job.row.priority))
        if turns is not None and job.tier == Tier.FRESH:
            self._reach(turns, job.age)

    def forget_idle(self, limit: int) -> None:
        """Remove what no longer counts, of `limit` groups at most."""
        all_turns = self._state.turns
        for place, turns in list(all_turns.items()):
            idle = not self._state.counts[place[0], Tier.FRESH, JobState.READY]
            names = [name for name, position in turns.positions.items() if idle or position <= turns.reached * UNIT]
            for name in names[:limit]:
                self._set(turns, name, None)
            if idle and not turns.positions:
                del all_turns[place]
                self._state.undoing.append(partial(all_turns.__setitem__, place, turns))

    def set_shares(self, shares: Shares, queues: frozenset[str] | None) -> None:
        """Set the shares of all groups of these queues, of all queues if it is None."""
        with self._state.lock:
            kept = {} if queues is None else {it: n for it, n in self._state.shares.items() if it[0] not in queues}
            new = {(queue, name): n for queue, of in shares.items() for name, n in of.items()}
            self._state.shares = kept | new

    def _begin(self, job: JobRecord) -> Turns:
        """Begin turns. Jobs that wait since before have no group, and keep their places."""
        row, place = job.row, (job.row.queue, job.row.priority)
        before = [
            it.age
            for it in self._state.jobs.values()
            if it.state is JobState.READY and it.tier == Tier.FRESH and (it.row.queue, it.row.priority) == place
            if it is not job
        ]
        turns = self._state.turns[row.queue, row.priority] = Turns(min(before, default=0))
        self._state.undoing.append(lambda: self._state.turns.pop(place))
        if before:
            turns.positions[NO_GROUP] = (max(before) + 1) * UNIT
        return turns

    def _reached(self, turns: Turns, job: JobRecord) -> int:
        """Return the round of the first job that waits besides this one, which has no turn yet. If a job of a higher priority is in
        front, it is that of the last one that was claimed. If none waits, the groups start level, behind
        all positions."""
        waiting = [it for it in self._state.candidates(job.row.queue, Tier.FRESH, 2) if it is not job]
        if not waiting:
            return self._state.last_id
        return waiting[0].age if waiting[0].row.priority == job.row.priority else turns.reached

    def _reach(self, turns: Turns, reached: int) -> None:
        if reached > turns.reached:
            before, turns.reached = turns.reached, reached
            self._state.undoing.append(lambda: setattr(turns, "reached", before))

    def _set(self, turns: Turns, name: str, position: int | None) -> None:
        before = turns.positions.get(name)
        _put(turns, name, position)
        self._state.undoing.append(lambda: _put(turns, name, before))


def _put(turns: Turns, name: str, position: int | None) -> None:
    if position is None:
        turns.positions.pop(name, None)
    else:
        turns.positions[name] = position
