"""The chaos test as a whole: hosts, a load, a fault injector and a watcher in one environment, from the start to the evidence."""

from __future__ import annotations

from collections import Counter
from typing import Any

from tests.system.chaos_checks import Evidence
from tests.system.chaos_environments import Environment, Span, Unreadable
from tests.system.chaos_faults import FaultInjector, InjectedFault, plan
from tests.system.chaos_hosts import Host, Line
from tests.system.chaos_load import CONFIG, PLUGIN, Load, accepted, attempts_of, dead_letters_in
from tests.system.chaos_watcher import StoreWatcher
from tests.system.command import Command, wait_for
from tests.system.places import taken_in

BATCHES_PER_SECOND = 14.0


class Chaos:
    """Runs in the folder of `command`, whose disks are mounted already. `without` are kinds of faults that can't be injected."""

    def __init__(self, command: Command, environment: Environment, seed: str, without: frozenset[str]) -> None:
        self._command, self._environment, self._seed, self._without = command, environment, seed, without
        command.write(plugins={"load.py": PLUGIN})
        for name, store in environment.configs().items():
            (command.folder / f"{name}.yaml").write_text(f"store: {store}\n{CONFIG}")
        self._hosts = [Host(command, options) for options in environment.hosts]
        self._load = Load(command, seed, BATCHES_PER_SECOND, environment.url)
        self._injector = FaultInjector(self._hosts, self._load, environment)
        self.watcher = StoreWatcher(command.folder, environment)

    def inject_faults(self, seconds: float) -> None:
        wait_for(lambda: all(host.serves for host in self._hosts))
        self._load.start()
        self.watcher.start()
        self._injector.follow(plan(self._seed, seconds, faults_of(self._environment), self._without))

    def finish(self, timeout: float) -> None:
        """Undo all faults; fail unless all jobs end within `timeout` seconds, and every supervisor exits with 0 and leaves
        nothing."""
        self._injector.undo_all()
        self._load.end()
        wait_for(self._all_is_done, timeout, every=0.2)
        self._injector.terminate_all()
        ends = {host.run.process.wait(): host.run.process.log for host in self._hosts}
        assert set(ends) == {0}, f"they ended with {ends}"
        assert not (left := self._environment.leftovers()), f"left by supervisors that have exited: {left}"
        wait_for(self._no_process_is_left, timeout=5.0)

    def stop(self) -> None:
        """Kill whatever still runs."""
        self._injector.undo_due()
        self._load.stop()
        self.watcher.stop()
        for host in self._hosts:
            for run in host.runs:
                run.process.process.kill()
                run.process.process.wait()

    def _all_is_done(self) -> None:
        self._injector.undo_all()
        assert not (ending := self._injector.ending()), f"runs {ending} were terminated, and have not exited"
        assert all(host.serves for host in self._hosts), "a supervisor has not started yet"
        left = self._query("select id, handler, state, lease_until from jobs where state < 3")
        assert not left, f"{len(left)} jobs have not ended: {left[:10]}"
        pending = self._query("select job_id from dead_letters where state = 1")
        assert not pending, f"dead letters are pending: {pending}"
        owners = self._query("select owner, state from supervisors")
        assert len(owners) == len(self._hosts), f"an owner that has exited is still in the store: {owners}"
        assert not (left := self._environment.leftovers(len(owners))), f"left by an owner that has exited: {left}"

    def _no_process_is_left(self) -> None:
        left = self._command.processes()
        assert not left, f"processes are left: {left}"

    def _query(self, sql: str) -> list[Any]:
        try:
            with self._environment.snapshot() as query:
                return query(sql)
        except Unreadable as error:
            raise AssertionError(f"the store can't be read: {error}") from error

    def evidence(self) -> Evidence:
        runs = sorted(run for host in self._hosts for run in host.runs)
        dead_letters, torn = dead_letters_in(self._command.folder)
        return Evidence(
            accepted=accepted(self._command.folder),
            jobs={job["id"]: job for job in self._command.jobs()},
            tokens=dict(self._query("select id, token from jobs")),
            attempts=attempts_of(self._command.folder),
            lines=[line for run in runs for line in run.log.read()],
            faults=self._injector.injected,
            codes={run.number: run.process.code or 0 for run in runs},
            hosts={run.number: place for place, host in enumerate(self._hosts) for run in host.runs},
            dead_letters=dead_letters,
            torn=torn,
            taken=taken_in(self._command.folder),
        )

    def summary(self, evidence: Evidence) -> str:
        states = Counter(job["state"] for job in evidence.jobs.values())
        places = Counter(it.running for it in evidence.taken)
        causes = Counter(error["cause"] for job in evidence.jobs.values() for error in job["errors"])
        return "; ".join(
            [
                f"{len(evidence.jobs)} jobs {dict(states)}",
                f"{sum(map(len, evidence.attempts.values()))} attempts",
                f"faults {_counted(evidence.faults)}",
                f"{len(evidence.codes)} supervisors, exit codes {dict(Counter(evidence.codes.values()))}",
                f"{_logged(evidence.lines, 'recovered:')} recovered, {_logged(evidence.lines, 'stale')} stale",
                f"{sum(job['retries'] for job in evidence.jobs.values())} retries {dict(causes)}",
                f"{len(evidence.dead_letters)} dead letters, {evidence.torn} torn lines",
                f"limited jobs started as one of {dict(sorted(places.items()))}",
                f"{_logged(evidence.lines, 'store unavailable')} times unavailable",
                f"{self.watcher.looks} looks",
            ]
        )


def faults_of(environment: Environment) -> dict[str, tuple[int, Span]]:
    return {kind: (fault.frequency, fault.seconds) for kind, fault in environment.faults.items()}


def _counted(faults: list[InjectedFault]) -> dict[str, int]:
    return dict(sorted(Counter(fault.kind for fault in faults).items()))


def _logged(lines: list[Line], text: str) -> int:
    return sum(text in line.message for line in lines)
