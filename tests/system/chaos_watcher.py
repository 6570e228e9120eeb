"""Reads the store while the chaos test runs, and checks at each look what must hold at every moment."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from supervisor.stores.codes import DELIVERED, FAILED, IN_FLIGHT, SUCCEEDED
from supervisor.stores.fencing import COUNT_BITS
from tests.system.chaos_environments import Environment, Unreadable
from tests.system.chaos_load import LIMIT, dead_letters_in

INTERVAL = 0.2  # seconds
MAX_SHARE = 0.1  # of the time is spent reading

ROWS = "select id, state, token, finished_at, retries, owner, lease_until, tier, queue, handler from jobs"
COUNTS = "select state, queue, tier, sum(n) from counts group by state, queue, tier having sum(n) != 0"
Counts = dict[tuple[int, str, int], int]


def claim_count(token: int) -> int:
    return token & (2**COUNT_BITS - 1)


class Row(NamedTuple):
    id: int
    state: int
    token: int
    finished_at: int | None
    retries: int
    owner: int | None
    lease_until: int | None
    tier: int
    queue: str
    handler: str

    @property
    def terminal(self) -> bool:
        return self.state >= SUCCEEDED


class StoreWatcher:
    """A thread from `start` to `stop`. `problems` are its findings; `looks` is how often it has read the store."""

    def __init__(self, folder: Path, environment: Environment) -> None:
        self._folder, self._environment = folder, environment
        self._before: dict[int, Row] = {}
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.problems: list[str] = []
        self.looks = 0

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        pause = INTERVAL
        while not self._stopped.wait(pause):
            begun = time.monotonic()
            try:
                self._look()
            except Exception as error:  # an exception of a thread would be lost
                self.problems.append(f"the watcher failed: {error!r}")
                return
            pause = max(INTERVAL, (time.monotonic() - begun) / MAX_SHARE)

    def _look(self) -> None:
        """Read the store before the dead-letter file: a dead letter that is delivered by then must be in the file already."""
        try:
            with self._environment.snapshot() as query:
                rows = [Row(*row) for row in query(ROWS)]
                counts = {(state, queue, tier): number for state, queue, tier, number in query(COUNTS)}
                dead_letters = dict(query("select job_id, state from dead_letters"))
        except Unreadable:
            return
        self.looks += 1
        self._note(problem for row in rows for problem in self._row_problems(row))
        self._note(self._count_problems(rows, counts))
        self._note(self._limit_problems(rows))
        self._note(self._dead_letter_problems(rows, dead_letters))
        self._before = {row.id: row for row in rows}

    def _note(self, problems: Iterable[str]) -> None:
        self.problems += [problem for problem in problems if problem not in self.problems]

    def _row_problems(self, row: Row) -> Iterator[str]:
        before = self._before.get(row.id)
        if (row.state == IN_FLIGHT) != (row.owner is not None) or (row.owner is None) != (row.lease_until is None):
            yield f"job {row.id}: a lease without a claim, or a claim without one: {row}"
        if before is None:
            return
        if claim_count(row.token) < claim_count(before.token) or (
            row.state == IN_FLIGHT != before.state and row.token == before.token
        ):
            yield f"job {row.id}: claimed without a new token: {before} then {row}"
        if row.retries < before.retries:
            yield f"job {row.id}: its retries became fewer: {before} then {row}"
        if before.terminal and row != before:
            yield f"job {row.id}: changed after its end: {before} then {row}"

    def _count_problems(self, rows: list[Row], counts: Counts) -> Iterator[str]:
        recount: Counts = {}
        for row in rows:
            key = row.state, row.queue, row.tier
            recount[key] = recount.get(key, 0) + 1
        if counts != recount:
            yield f"the counts are {counts}, counted {recount}"

    def _limit_problems(self, rows: list[Row]) -> Iterator[str]:
        """Leases that have expired count until they are recovered, so there is no exception."""
        in_flight = [row for row in rows if row.state == IN_FLIGHT and row.handler == "limited"]
        if len(in_flight) > LIMIT:
            yield f"{len(in_flight)} jobs in flight under a limit of {LIMIT}: {in_flight}"

    def _dead_letter_problems(self, rows: list[Row], dead_letters: dict[int, int]) -> Iterator[str]:
        in_file, _ = dead_letters_in(self._folder)
        for id, state in dead_letters.items():
            if state == DELIVERED and id not in in_file:
                yield f"job {id}: its dead letter is delivered, and not in the file"
        for row in rows:
            if row.state == FAILED and row.id not in dead_letters:
                yield f"job {row.id}: failed for good without a dead letter"
