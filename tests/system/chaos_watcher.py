"""Looks into the store while the chaos goes on, reading only; what must hold at every moment is checked at each look."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import NamedTuple

from supervisor.stores.codes import DELIVERED, FAILED, IN_FLIGHT, SUCCEEDED
from tests.system.chaos_grounds import Ground, Unseen
from tests.system.chaos_load import dead_letters_in

EVERY = 0.2
SHARE = 0.1  # of the time, at most, is spent looking

ROWS = "select id, state, token, finished_at, retries, owner, lease_until, tier, queue from jobs"
COUNTS = "select state, queue, tier, sum(n) from counts group by state, queue, tier having sum(n) != 0"


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

    @property
    def terminal(self) -> bool:
        return self.state >= SUCCEEDED


class Watch:
    """A thread from `start` to `end`. `problems` are what it has found; `looks` is how often it looked."""

    def __init__(self, folder: Path, ground: Ground) -> None:
        self._folder, self._ground = folder, ground
        self._before: dict[int, Row] = {}
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self.problems: list[str] = []
        self.looks = 0

    def start(self) -> None:
        self._thread.start()

    def end(self) -> None:
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join()

    def _watch(self) -> None:
        pause = EVERY
        while not self._ended.wait(pause):
            begun = time.monotonic()
            try:
                self._look()
            except Exception as error:  # told with the rest: a thread's own would be lost
                self.problems.append(f"the watch failed: {error!r}")
                return
            pause = max(EVERY, (time.monotonic() - begun) / SHARE)

    def _look(self) -> None:
        """The store first: a letter that it calls delivered must be in the file already."""
        try:
            with self._ground.moment() as ask:
                rows = [Row(*row) for row in ask(ROWS)]
                counts = {(s, q, t): n for s, q, t, n in ask(COUNTS)}
                dead_letters = dict(ask("select job_id, state from dead_letters"))
        except Unseen:
            return
        self.looks += 1
        self._tell(problem for row in rows for problem in self._row_problems(row))
        self._tell(self._count_problems(rows, counts))
        self._tell(self._dead_letter_problems(rows, dead_letters))
        self._before = {row.id: row for row in rows}

    def _tell(self, problems) -> None:  # type: ignore[no-untyped-def]
        self.problems += [problem for problem in problems if problem not in self.problems]

    def _row_problems(self, row: Row):  # type: ignore[no-untyped-def]
        before = self._before.get(row.id)
        if (row.state == IN_FLIGHT) != (row.owner is not None) or (row.owner is None) != (row.lease_until is None):
            yield f"job {row.id}: a lease without a claim, or a claim without one: {row}"
        if before is None:
            return
        if row.token < before.token or (row.state == IN_FLIGHT != before.state and row.token == before.token):
            yield f"job {row.id}: claimed without a new token: {before} then {row}"
        if row.retries < before.retries:
            yield f"job {row.id}: retries were taken back: {before} then {row}"
        if before.terminal and row != before:
            yield f"job {row.id}: changed after its end: {before} then {row}"

    def _count_problems(self, rows: list[Row], counts: dict[tuple[int, str, int], int]):  # type: ignore[no-untyped-def]
        recount: dict[tuple[int, str, int], int] = {}
        for row in rows:
            key = row.state, row.queue, row.tier
            recount[key] = recount.get(key, 0) + 1
        if counts != recount:
            yield f"the counts are {counts}, counted {recount}"

    def _dead_letter_problems(self, rows: list[Row], dead_letters: dict[int, int]):  # type: ignore[no-untyped-def]
        there, _ = dead_letters_in(self._folder)
        for id, state in dead_letters.items():
            if state == DELIVERED and id not in there:
                yield f"job {id}: its letter is delivered, and not in the file"
        for row in rows:
            if row.state == FAILED and row.id not in dead_letters:
                yield f"job {row.id}: failed for good without a letter"
