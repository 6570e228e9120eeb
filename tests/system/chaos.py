"""The chaos as a whole: seats, a load, a hand and a watch over one ground, from the first act to the evidence."""

from __future__ import annotations

from collections import Counter
from typing import Any

from tests.system.chaos_checks import Evidence
from tests.system.chaos_faults import Deed, Executor, plan
from tests.system.chaos_grounds import Ground, Span, Unseen
from tests.system.chaos_load import CONFIG, PLUGIN, Load, accepted, dead_letters_in, runs_of
from tests.system.chaos_runs import Line, Seat
from tests.system.chaos_watch import Watch
from tests.system.command import Command, wait_for

BATCHES_PER_SECOND = 14.0


class Chaos:
    """In the folder of `command`, whose disks are there already. `without` are acts that can't be done."""

    def __init__(self, command: Command, ground: Ground, seed: str, without: frozenset[str]) -> None:
        self._command, self._ground, self._seed, self._without = command, ground, seed, without
        command.write(plugins={"load.py": PLUGIN})
        for name, store in ground.configs().items():
            (command.folder / f"{name}.yaml").write_text(f"store: {store}\n{CONFIG}")
        self._seats = [Seat(command, stand) for stand in ground.stands]
        self._load = Load(command, seed, BATCHES_PER_SECOND, ground.url)
        self._executor = Executor(self._seats, self._load, ground)
        self.watch = Watch(command.folder, ground)

    def rage(self, seconds: float) -> None:
        wait_for(lambda: all(seat.serves for seat in self._seats))
        self._load.start()
        self.watch.start()
        self._executor.follow(plan(self._seed, seconds, tricks_of(self._ground), self._without))

    def calm_down(self, timeout: float) -> None:
        """What is left is done within `patience` seconds; whoever serves then ends well, and nothing is left."""
        self._executor.rest()
        self._load.end()
        wait_for(self._all_is_done, timeout, every=0.2)
        self._executor.end_well()
        ends = {seat.run.wait(): seat.run.log for seat in self._seats}
        assert set(ends) == {0}, f"they ended with {ends}"
        assert not (left := self._ground.left()), f"left by supervisors that have ended: {left}"
        wait_for(self._no_process_is_left, timeout=5.0)

    def stop(self) -> None:
        """However it stands."""
        self._executor.let_go()
        self._load.stop()
        self.watch.end()
        for seat in self._seats:
            for _, run, _ in seat.runs:
                run.process.kill()
                run.process.wait()

    def _all_is_done(self) -> None:
        self._executor.rest()
        assert not (ending := self._executor.ending()), f"runs {ending} were told to end, and go on"
        assert all(seat.serves for seat in self._seats), "somebody has not started yet"
        left = self._ask("select id, handler, state, lease_until from jobs where state < 3")
        assert not left, f"{len(left)} jobs have not ended: {left[:10]}"
        pending = self._ask("select job_id from dead_letters where state = 1")
        assert not pending, f"letters are pending: {pending}"
        owners = self._ask("select owner, state from supervisors")
        assert len(owners) == len(self._seats), f"somebody who is gone is not forgotten: {owners}"
        assert not (left := self._ground.left(len(owners))), f"left by somebody who is gone: {left}"

    def _no_process_is_left(self) -> None:
        left = self._command.processes()
        assert not left, f"processes are left: {left}"

    def _ask(self, sql: str) -> list[Any]:
        try:
            with self._ground.moment() as ask:
                return ask(sql)
        except Unseen as error:
            raise AssertionError(f"the store can't be looked into: {error}") from error

    def evidence(self) -> Evidence:
        runs = sorted(sitting for seat in self._seats for sitting in seat.runs)
        dead_letters, torn = dead_letters_in(self._command.folder)
        return Evidence(
            accepted=accepted(self._command.folder),
            jobs={job["id"]: job for job in self._command.jobs()},
            tokens=dict(self._ask("select id, token from jobs")),
            runs=runs_of(self._command.folder),
            lines=[line for _, _, log in runs for line in log.read()],
            deeds=self._executor.deeds,
            codes={number: run.code or 0 for number, run, _ in runs},
            stands={number: place for place, seat in enumerate(self._seats) for number, _, _ in seat.runs},
            dead_letters=dead_letters,
            torn=torn,
        )

    def summary(self, evidence: Evidence) -> str:
        states = Counter(job["state"] for job in evidence.jobs.values())
        causes = Counter(error["cause"] for job in evidence.jobs.values() for error in job["errors"])
        return "; ".join(
            [
                f"{len(evidence.jobs)} jobs {dict(states)}",
                f"{sum(map(len, evidence.runs.values()))} runs",
                f"deeds {_counted(evidence.deeds)}",
                f"{len(evidence.codes)} supervisors, exit codes {dict(Counter(evidence.codes.values()))}",
                f"{_said(evidence.lines, 'recovered:')} recovered, {_said(evidence.lines, 'stale')} stale",
                f"{sum(job['retries'] for job in evidence.jobs.values())} retries {dict(causes)}",
                f"{len(evidence.dead_letters)} dead letters, {evidence.torn} torn lines",
                f"{_said(evidence.lines, 'store unavailable')} times away",
                f"{self.watch.looks} looks",
            ]
        )


def tricks_of(ground: Ground) -> dict[str, tuple[int, Span]]:
    return {name: (trick.size, trick.seconds) for name, trick in ground.tricks.items()}


def _counted(deeds: list[Deed]) -> dict[str, int]:
    return dict(sorted(Counter(deed.what for deed in deeds).items()))


def _said(lines: list[Line], text: str) -> int:
    return sum(text in line.message for line in lines)
