"""The checks of the chaos test, made on its evidence: the store, the journal, the logs and the injected faults."""

from __future__ import annotations

import re
import signal
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from operator import attrgetter
from typing import Any

from tests.system.chaos_faults import InjectedFault
from tests.system.chaos_hosts import Line
from tests.system.chaos_load import LIMIT, RAISING, TTL, Attempt
from tests.system.chaos_watcher import claim_count
from tests.system.places import Taken

SLACK = 0.25  # seconds between an event and its line in the log, on a busy machine
LOSES_LEASES = frozenset({"kill supervisor", "term supervisor", "stop supervisor", "cut cable"})
FATAL = frozenset({"kill supervisor"})
MAKES_STORE_UNAVAILABLE = frozenset({"lock database", "fill disk", "restart server", "crash server", "freeze server"})
STANDSTILL = frozenset({"stop supervisor", "cut cable"})
RECOVERED_WITHIN = 15.0  # seconds; the supervisor that recovers may stand still itself
CAUSES = {
    "rejecting": {"rejected"},
    "crashing": {"crash"},
    "hanging": {"timeout"},
    **{handler: {"exception"} for handler in RAISING},
}


@dataclass
class Evidence:
    """`jobs` as `jobs list --json` prints them, `tokens` and `attempts` by job; `codes` and `hosts` by run number."""

    accepted: set[int]
    jobs: dict[int, dict[str, Any]]
    tokens: dict[int, int]
    attempts: dict[int, list[Attempt]]
    lines: list[Line]
    faults: list[InjectedFault]
    codes: dict[int, int]
    hosts: dict[int, int]
    dead_letters: set[int]
    torn: int
    taken: list[Taken]

    def __post_init__(self) -> None:
        self.by_job: dict[int, list[Line]] = {}
        self.by_run: dict[int, list[Line]] = {number: [] for number in self.codes}
        self._run_of_worker: dict[int, list[tuple[float, int]]] = {}
        self._run_of_owner: dict[str, int] = {}
        for line in sorted(self.lines, key=attrgetter("at")):
            self.by_run[line.run].append(line)
            if line.job is not None:
                self.by_job.setdefault(line.job, []).append(line)
            if match := re.match(r"worker \d+ \(pid (\d+)\) started", line.message):
                self._run_of_worker.setdefault(int(match[1]), []).append((line.at, line.run))
            if match := re.match(r"supervisor started: owner=(\S+)", line.message):
                self._run_of_owner[match[1]] = line.run

    def run_of(self, attempt: Attempt) -> int | None:
        """Return the run whose worker had the attempt's pid then."""
        runs = [run for since, run in self._run_of_worker.get(attempt.pid, ()) if since <= attempt.at + SLACK]
        return runs[-1] if runs else None

    def was_hit(self, kinds: frozenset[str], since: float, until: float, run: int | None = None) -> bool:
        """Return whether a fault of these kinds hit the run (any run, if None) in this time."""
        return any(
            fault.kind in kinds and (run is None or self._hits(fault, run)) and fault.at <= until + SLACK and fault.until >= since - SLACK
            for fault in self.faults
        )  # fmt: skip

    def _hits(self, fault: InjectedFault, run: int) -> bool:
        return fault.run == run or (fault.host is not None and fault.host == self.hosts.get(run))

    def run_that_lost(self, error: dict[str, Any]) -> int | None:
        """Return the run that had the lease of a failed attempt."""
        owner = re.search(r"its owner (\S+) ", error["message"])
        return self._run_of_owner.get(owner[1]) if owner else None

    def history(self, id: int) -> str:
        """Return all that is known of one job, in order of time."""
        events = [(line.at, f"run {line.run}: {line.message}") for line in self.by_job.get(id, ())]
        for attempt in self.attempts.get(id, ()):
            end = "no effect" if attempt.end is None else f"effect at {attempt.end:.3f}"
            began = f"attempt {attempt.attempt} began in pid {attempt.pid}, {end}"
            events.append((attempt.at, f"run {self.run_of(attempt)}: {began}"))
        events += [(fault.at, f"fault: {fault.kind} of run {fault.run}, pid {fault.pid}, until {fault.until:.3f}")
                   for fault in self.faults
                   if events and min(events)[0] - 5 <= fault.at <= max(events)[0] + 1]  # fmt: skip
        return "\n".join([f"{self.jobs.get(id)}", *(f"  {at:.3f} {text[:300]}" for at, text in sorted(events))])


def problems(evidence: Evidence) -> Iterator[tuple[int | None, str]]:
    """Check everything; yield each problem, with the job if it is about one."""
    for check in (
        batches_are_whole, jobs_have_ended, successes_had_their_effect, settled_by_the_holder, tokens_are_new,
        failures_are_counted, failures_have_a_cause, leases_are_lost_for_a_reason, attempts_are_repeated_for_a_reason,
        attempts_overlap_for_a_reason, limits_hold, dead_letters_are_in_the_file, exit_codes_are_true, nothing_broke,
    ):  # fmt: skip
        for id, problem in check(evidence):
            yield id, f"{check.__name__.replace('_', ' ')}: {problem}"


Problems = Iterator[tuple[int | None, str]]


def batches_are_whole(evidence: Evidence) -> Problems:
    """Accepted jobs are in the store, once; those enqueued together are there together or not at all."""
    for id in evidence.accepted - evidence.jobs.keys():
        yield id, "accepted, and not in the store"
    batches = Counter(job["headers"]["batch"] for job in evidence.jobs.values())
    keys = Counter((job["headers"]["batch"], job["headers"]["number"]) for job in evidence.jobs.values())
    for id, job in evidence.jobs.items():
        headers = job["headers"]
        if batches[headers["batch"]] != headers["size"] or keys[headers["batch"], headers["number"]] != 1:
            yield id, f"{batches[headers['batch']]} jobs of a batch of {headers['size']}"


def jobs_have_ended(evidence: Evidence) -> Problems:
    for id, job in evidence.jobs.items():
        if job["state"] not in ("succeeded", "failed"):
            yield id, f"is {job['state']} at the end"


def successes_had_their_effect(evidence: Evidence) -> Problems:
    """The result of a job that succeeded is that of an attempt with an effect; no attempt began without a claim."""
    for id, job in evidence.jobs.items():
        attempts = evidence.attempts.get(id, [])
        effects = [(attempt.pid, attempt.end) for attempt in attempts if attempt.end is not None]
        if job["state"] == "succeeded" and (job["result"]["pid"], job["result"]["at"]) not in effects:
            yield id, "succeeded without an effect"
        if len(attempts) > (claims := claim_count(evidence.tokens[id])):
            yield id, f"ran {len(attempts)} times under {claims} claims"


def settled_by_the_holder(evidence: Evidence) -> Problems:
    """A job ended once, and the run that settled it held its last token."""
    for id, lines in evidence.by_job.items():
        ends = [line for line in lines if re.search(r"attempt \d+ succeeded|; failed for good", line.message)]
        if len(ends) > 1:
            yield id, "ended more than once"
        for end in ends:
            if "recovered:" not in end.message and evidence.tokens[id] not in _claims(lines, end.run):
                yield id, f"settled by run {end.run}, which has not had its last token"


def _claims(lines: list[Line], run: int | None = None) -> list[int]:
    found = [(line, re.search(r"claimed under token (\d+)", line.message)) for line in lines]
    return [int(match[1]) for line, match in found if match and run in (None, line.run)]


def tokens_are_new(evidence: Evidence) -> Problems:
    for id, lines in evidence.by_job.items():
        claims = Counter(_claims(lines))
        if twice := [token for token, times in claims.items() if times > 1]:
            yield id, f"claimed more than once under tokens {twice}"


def failures_are_counted(evidence: Evidence) -> Problems:
    """Each failed attempt is in the history once, in order; there are no more than the policy allows."""
    for id, job in evidence.jobs.items():
        attempts = [error["attempt"] for error in job["errors"]]
        expected = list(range(1, job["retries"] + 1 + (job["state"] == "failed")))
        if attempts != expected:
            yield id, f"failed attempts {attempts}, expected {expected}"
        if job["max_retries"] is not None and job["retries"] > job["max_retries"]:
            yield id, f"{job['retries']} retries of at most {job['max_retries']}"
        final = job["errors"][-1]["cause"] if job["errors"] else None
        if job["state"] == "failed" and final != "rejected" and job["retries"] != job["max_retries"]:
            yield id, f"given up after {job['retries']} retries of {job['max_retries']}"


def failures_have_a_cause(evidence: Evidence) -> Problems:
    """The cause is the handler, or a fault that hit the very worker."""
    killed = {fault.pid for fault in evidence.faults if fault.kind == "kill worker"}
    stopped = {fault.pid for fault in evidence.faults if fault.kind == "stop worker"}
    injected = {"crash": killed, "heartbeat_lost": stopped, "timeout": stopped}
    for id, job in evidence.jobs.items():
        for error in job["errors"]:
            cause = error["cause"]
            if cause == "lease_expired":
                continue
            if cause not in CAUSES.get(job["handler"], ()) and error["pid"] not in injected.get(cause, ()):
                yield id, f"failed without a fault: {error}"


def leases_are_lost_for_a_reason(evidence: Evidence) -> Problems:
    """The supervisor was killed, stopped or terminated, or the store was available again too late for it."""
    for id, lines in evidence.by_job.items():
        holder = before = None
        for place, line in enumerate(lines):
            if _claims([line]):
                holder, before = line, holder
            elif "recovered:" in line.message and holder is not None:
                # The next claim may be logged before the recovery, by another process: so new a lease has not expired.
                if (
                    before is not None
                    and line.at - holder.at < SLACK
                    and _was_hit(evidence, before.run, before.at, line.at)
                ):
                    continue
                (held,), following = _claims([holder]), [*_claims(lines[place:]), evidence.tokens[id] + 1]
                # A claim whose answer was lost is in no log: any run may have made it.
                run = holder.run if claim_count(following[0]) == claim_count(held) + 1 else None
                if not _was_hit(evidence, run, holder.at, line.at) and not _was_unavailable(evidence, line.at):
                    yield id, f"lost by run {run or '(not logged)'}, which no fault has hit: {line.message}"


def _was_hit(evidence: Evidence, run: int | None, claimed: float, recovered: float) -> bool:
    """Return whether a fault may have cost the run (None: any) the lease that it claimed, until another one recovered it."""
    hit = evidence.was_hit(LOSES_LEASES, recovered - RECOVERED_WITHIN, recovered, run)
    return hit or evidence.was_hit(FATAL, claimed, recovered, run)


def _was_unavailable(evidence: Evidence, at: float) -> bool:
    """Return whether, with so short a lease, the store may have been available again too late for a run to extend it."""
    return any(
        fault.kind in MAKES_STORE_UNAVAILABLE and fault.until - fault.at >= TTL / 3 and fault.at <= at <= fault.until + TTL
        for fault in evidence.faults
    )  # fmt: skip


def attempts_are_repeated_for_a_reason(evidence: Evidence) -> Problems:
    """The same attempt began again only because its lease expired, or its supervisor was terminated."""
    for id, attempts in evidence.attempts.items():
        for first, again in pairwise(attempts):
            run = evidence.run_of(first)
            if again.attempt > first.attempt or evidence.was_hit(LOSES_LEASES, first.at, again.at, run):
                continue
            if not _was_recovered(evidence, id, first.at, again.at):
                yield id, f"attempt {first.attempt} of run {run} began again without a reason: {first}, {again}"


def _was_recovered(evidence: Evidence, id: int, since: float, until: float) -> bool:
    return any(
        "recovered:" in line.message and since - SLACK <= line.at <= until + SLACK
        for line in evidence.by_job.get(id, ())
    )


def attempts_overlap_for_a_reason(evidence: Evidence) -> Problems:
    """Two attempts of a job run at once only if the supervisor of the first stood still until its lease was lost."""
    for id, attempts in evidence.attempts.items():
        for first, again in pairwise(attempts):
            if first.end is None or again.at >= first.end:
                continue
            if _was_recovered(evidence, id, first.at - TTL, again.at):
                continue
            stood_still = evidence.was_hit(STANDSTILL, first.at - TTL, again.at, evidence.run_of(first))
            if not (stood_still and evidence.was_hit(LOSES_LEASES, first.at, again.at)):
                yield id, f"ran twice at once, and no lease was lost: {first}, {again}"


def limits_hold(evidence: Evidence) -> Problems:
    """No more jobs with a live lease ran at once than their limit. A job may run on for a moment without its lease if its supervisor
    stood still; the processes of one that was killed have ended before anybody finds that it is gone."""
    for taken in evidence.taken:
        if taken.running <= LIMIT:
            continue
        running = [_in_process(evidence, pid, taken.at) for pid in (*taken.before, taken.pid)]
        if sum(not _has_lost_its_lease(evidence, id, attempt, taken.at) for id, attempt in running) > LIMIT:
            yield taken.job, f"{taken.running} ran at once under a limit of {LIMIT}: {running}"


def _in_process(evidence: Evidence, pid: int, at: float) -> tuple[int, Attempt]:
    """Return the job that a process ran at this time, and its attempt."""
    begun = [
        (attempt.at, id, attempt)
        for id, attempts in evidence.attempts.items()
        for attempt in attempts
        if attempt.pid == pid and attempt.at <= at
    ]
    _, id, attempt = max(begun)
    return id, attempt


def _has_lost_its_lease(evidence: Evidence, id: int, attempt: Attempt, at: float) -> bool:
    """Return whether the attempt ran without a lease then. It may have begun so, and who recovered it may have logged that late."""
    run, since, until = evidence.run_of(attempt), attempt.at - RECOVERED_WITHIN, at + RECOVERED_WITHIN
    others = [line for line in evidence.by_job.get(id, ()) if line.run != run and attempt.at < line.at < until]
    if not (_claims(others) or _was_recovered(evidence, id, since, until)):
        return False
    stood_still = evidence.was_hit(STANDSTILL, since, at, run)
    return stood_still or evidence.was_hit(MAKES_STORE_UNAVAILABLE, since, at)


def dead_letters_are_in_the_file(evidence: Evidence) -> Problems:
    for id, job in evidence.jobs.items():
        if job["state"] != "failed":
            if job["dead_letter"] is not None:
                yield id, f"{job['state']} with a dead letter"
        elif job["dead_letter"] != "delivered" or id not in evidence.dead_letters:
            yield id, f"its dead letter is {job['dead_letter']}, in the file: {id in evidence.dead_letters}"
    if evidence.torn > sum(fault.kind == "kill supervisor" for fault in evidence.faults):
        yield None, f"{evidence.torn} lines of the dead-letter file are torn"


def exit_codes_are_true(evidence: Evidence) -> Problems:
    for id, job in evidence.jobs.items():
        for error in job["errors"]:
            if "is gone" in error["message"] and evidence.codes.get(evidence.run_that_lost(error) or 0) == 0:
                yield id, f"left behind by a supervisor that ended with 0: {error}"
    for run, code in evidence.codes.items():
        hit = Counter(fault.kind for fault in evidence.faults if fault.run == run)
        lines = evidence.by_run[run]
        unavailable = any("store unavailable" in line.message for line in lines)
        true = {
            0: "term supervisor" in hit,
            1: "term supervisor" in hit and unavailable,
            3: hit["term supervisor"] > 1,
            -signal.SIGKILL: "kill supervisor" in hit,
            -signal.SIGTERM: "term supervisor" in hit and not lines,
        }
        if not true.get(code, False):
            yield (
                None,
                f"run {run} ended with {code}; it was hit by {dict(hit)}; {[line.message for line in lines[-5:]]}",
            )


def nothing_broke(evidence: Evidence) -> Problems:
    """No supervisor had an internal error, and no log line is lost that the other checks rely on."""
    for line in evidence.lines:
        if line.fields["level"] == "none" or (
            line.fields.get("logger") == "asyncio" and line.fields["level"] == "error"
        ):
            yield None, f"run {line.run}: {line.message} {line.fields.get('traceback', '')}"
        if line.message.startswith(("config refused", "plugin ")) and line.fields["level"] != "info":
            yield None, f"run {line.run}: {line.message}"
