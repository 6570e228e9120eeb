"""What must hold after the chaos, checked from what it left: the store, the journal, the logs, and the deeds of the hand."""

from __future__ import annotations

import re
import signal
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from operator import attrgetter
from typing import Any

from tests.system.chaos_faults import Deed
from tests.system.chaos_load import RAISING, TTL, Run
from tests.system.chaos_runs import Line

SLACK = 0.25  # seconds between something and its line in the log, on a busy machine
DEADLY = frozenset({"kill supervisor", "term supervisor", "stop supervisor", "cut cable"})
FATAL = frozenset({"kill supervisor"})
HOLDING = frozenset({"lock database", "fill disk", "restart server", "crash server", "freeze server"})
STANDSTILL = frozenset({"stop supervisor", "cut cable"})
RECOVERED_WITHIN = 15.0  # seconds; the other may stand still itself
CAUSES = {
    "rejecting": {"rejected"},
    "crashing": {"crash"},
    "hanging": {"timeout"},
    **{handler: {"exception"} for handler in RAISING},
}


@dataclass
class Evidence:
    """`jobs` as `jobs list --json` shows them; `codes` and `stands` by run number; `owners` gives the run number of each owner."""

    accepted: set[int]
    jobs: dict[int, dict[str, Any]]
    tokens: dict[int, int]
    runs: dict[int, list[Run]]
    lines: list[Line]
    deeds: list[Deed]
    codes: dict[int, int]
    stands: dict[int, int]
    dead_letters: set[int]
    torn: int

    def __post_init__(self) -> None:
        self.by_job: dict[int, list[Line]] = {}
        self.by_run: dict[int, list[Line]] = {number: [] for number in self.codes}
        self._homes: dict[int, list[tuple[float, int]]] = {}
        self.owners: dict[str, int] = {}
        for line in sorted(self.lines, key=attrgetter("at")):
            self.by_run[line.run].append(line)
            if line.job is not None:
                self.by_job.setdefault(line.job, []).append(line)
            if match := re.match(r"worker \d+ \(pid (\d+)\) started", line.message):
                self._homes.setdefault(int(match[1]), []).append((line.at, line.run))
            if match := re.match(r"supervisor started: owner=(\S+)", line.message):
                self.owners[match[1]] = line.run

    def owner(self, pid: int, at: float) -> int | None:
        """The run whose worker had this number then."""
        homes = [run for since, run in self._homes.get(pid, ()) if since <= at + SLACK]
        return homes[-1] if homes else None

    def met(self, what: frozenset[str], since: float, until: float, run: int | None = None) -> bool:
        """Whether the hand did one of these to the run (to any, if None) in this time."""
        return any(
            deed.what in what and (run is None or self.hits(deed, run)) and deed.at <= until + SLACK and deed.until >= since - SLACK
            for deed in self.deeds
        )  # fmt: skip

    def hits(self, deed: Deed, run: int) -> bool:
        return deed.run == run or (deed.stand is not None and deed.stand == self.stands.get(run))

    def owner_of(self, error: dict[str, Any]) -> int | None:
        """The run that a failed attempt's lease belonged to."""
        owner = re.search(r"its owner (\S+) ", error["message"])
        return self.owners.get(owner[1]) if owner else None

    def history(self, id: int) -> str:
        """Everything known of one job, in order."""
        happened = [(line.at, f"run {line.run}: {line.message}") for line in self.by_job.get(id, ())]
        for run in self.runs.get(id, ()):
            owner = self.owner(run.pid, run.at)
            end = "no effect" if run.end is None else f"effect at {run.end:.3f}"
            happened.append((run.at, f"run {owner}: attempt {run.attempt} began in pid {run.pid}, {end}"))
        happened += [(deed.at, f"hand: {deed.what} of run {deed.run}, pid {deed.pid}, until {deed.until:.3f}")
                     for deed in self.deeds
                     if happened and min(happened)[0] - 5 <= deed.at <= max(happened)[0] + 1]  # fmt: skip
        return "\n".join([f"{self.jobs.get(id)}", *(f"  {at:.3f} {what[:300]}" for at, what in sorted(happened))])


def problems(evidence: Evidence) -> Iterator[tuple[int | None, str]]:
    """Everything that does not hold, with the job if it is about one."""
    for check in (
        whole, ended, ran, settled_by_the_holder, tokens_are_new, failures_are_counted, failures_are_deserved,
        leases_are_lost_for_a_reason,
        repeated_for_a_reason, overlapping_for_a_reason, dead_letters_are_there, codes_are_true, nothing_broke,
    ):  # fmt: skip
        for id, problem in check(evidence):
            yield id, f"{check.__name__}: {problem}"


Problems = Iterator[tuple[int | None, str]]


def whole(evidence: Evidence) -> Problems:
    """What was accepted is there, once; what was enqueued together is there together or not at all."""
    for id in evidence.accepted - evidence.jobs.keys():
        yield id, "accepted, and not in the store"
    batches = Counter(job["headers"]["batch"] for job in evidence.jobs.values())
    keys = Counter((job["headers"]["batch"], job["headers"]["number"]) for job in evidence.jobs.values())
    for id, job in evidence.jobs.items():
        headers = job["headers"]
        if batches[headers["batch"]] != headers["size"] or keys[headers["batch"], headers["number"]] != 1:
            yield id, f"{batches[headers['batch']]} jobs of a batch of {headers['size']}"


def ended(evidence: Evidence) -> Problems:
    for id, job in evidence.jobs.items():
        if job["state"] not in ("succeeded", "failed"):
            yield id, f"is {job['state']} at the end"


def ran(evidence: Evidence) -> Problems:
    """A job that succeeded has had its effect, and its result is of a run that had it; nothing ran without a claim."""
    for id, job in evidence.jobs.items():
        runs = evidence.runs.get(id, [])
        if job["state"] == "succeeded" and not any(run.end is not None and _is_of(job["result"], run) for run in runs):
            yield id, "succeeded without an effect"
        if len(runs) > evidence.tokens[id]:
            yield id, f"ran {len(runs)} times under {evidence.tokens[id]} claims"


def _is_of(result: dict[str, Any], run: Run) -> bool:
    return (result["pid"], result["at"]) == (run.pid, run.end)


def settled_by_the_holder(evidence: Evidence) -> Problems:
    """Whoever says that a job ended held its last token, and it ended once."""
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
    """Each failed attempt is in the history once, in order, and there are no more than the policy allows."""
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


def failures_are_deserved(evidence: Evidence) -> Problems:
    """The handler's own doing, or the hand's doing to exactly that worker or supervisor."""
    killed = {deed.pid for deed in evidence.deeds if deed.what == "kill worker"}
    stopped = {deed.pid for deed in evidence.deeds if deed.what == "stop worker"}
    by_hand = {"crash": killed, "heartbeat_lost": stopped, "timeout": stopped}
    for id, job in evidence.jobs.items():
        for error in job["errors"]:
            cause = error["cause"]
            if cause == "lease_expired":
                continue
            if cause not in CAUSES.get(job["handler"], ()) and error["pid"] not in by_hand.get(cause, ()):
                yield id, f"failed without a fault: {error}"


def leases_are_lost_for_a_reason(evidence: Evidence) -> Problems:
    """Taken over from a supervisor that was killed, stopped or told to end; or one that had the store back too late."""
    for id, lines in evidence.by_job.items():
        holder = None
        for place, line in enumerate(lines):
            if _claims([line]):
                holder = line
            elif "recovered:" in line.message and holder is not None:
                (held,), following = _claims([holder]), [*_claims(lines[place:]), evidence.tokens[id] + 1]
                # Nobody tells of a claim whose answer was lost: anybody may have made it.
                run = holder.run if following[0] == held + 1 else None
                done = evidence.met(DEADLY, line.at - RECOVERED_WITHIN, line.at, run)
                done = done or evidence.met(FATAL, holder.at, line.at, run)  # until somebody was free to look
                if not done and not _was_unavailable(evidence, line.at):
                    yield id, f"lost by run {run or 'of a claim untold'}, to which nothing was done: {line.message}"


def _was_unavailable(evidence: Evidence, at: float) -> bool:
    """With so short a lease, one of two supervisors may find the store too late to extend."""
    return any(
        deed.what in HOLDING and deed.until - deed.at >= TTL / 3 and deed.at <= at <= deed.until + TTL for deed in evidence.deeds
    )  # fmt: skip


def repeated_for_a_reason(evidence: Evidence) -> Problems:
    """The same attempt began again only because its lease ended, or its supervisor was told to end."""
    for id, runs in evidence.runs.items():
        for run, again in pairwise(runs):
            owner = evidence.owner(run.pid, run.at)
            if again.attempt > run.attempt or evidence.met(DEADLY, run.at, again.at, owner):
                continue
            if not _lease_ended(evidence, id, run.at, again.at):
                yield id, f"attempt {run.attempt} of run {owner} began again without a reason: {run}, {again}"


def _lease_ended(evidence: Evidence, id: int, since: float, until: float) -> bool:
    return any(
        "recovered:" in line.message and since - SLACK <= line.at <= until + SLACK
        for line in evidence.by_job.get(id, ())
    )


def overlapping_for_a_reason(evidence: Evidence) -> Problems:
    """Two runs of a job at once: the first one's supervisor stood still until its lease was lost."""
    for id, runs in evidence.runs.items():
        for run, again in pairwise(runs):
            if run.end is None or again.at >= run.end or _lease_ended(evidence, id, run.at - TTL, again.at):
                continue
            owner = evidence.owner(run.pid, run.at)
            stood_still = evidence.met(STANDSTILL, run.at - TTL, again.at, owner)
            if not (stood_still and evidence.met(DEADLY, run.at, again.at)):
                yield id, f"ran twice at once, and no lease was lost: {run}, {again}"


def dead_letters_are_there(evidence: Evidence) -> Problems:
    for id, job in evidence.jobs.items():
        if job["state"] != "failed":
            if job["dead_letter"] is not None:
                yield id, f"{job['state']} with a letter"
        elif job["dead_letter"] != "delivered" or id not in evidence.dead_letters:
            yield id, f"its letter is {job['dead_letter']}, in the file: {id in evidence.dead_letters}"
    if evidence.torn > sum(deed.what == "kill supervisor" for deed in evidence.deeds):
        yield None, f"{evidence.torn} lines of the dead-letter file are torn"


def codes_are_true(evidence: Evidence) -> Problems:
    for id, job in evidence.jobs.items():
        for error in job["errors"]:
            if "is gone" in error["message"] and evidence.codes.get(evidence.owner_of(error) or 0) == 0:
                yield id, f"left behind by a supervisor that ended with 0: {error}"
    for run, code in evidence.codes.items():
        asked = Counter(deed.what for deed in evidence.deeds if deed.run == run)
        lines = evidence.by_run[run]
        unavailable = any("store unavailable" in line.message for line in lines)
        true = {
            0: "term supervisor" in asked,
            1: "term supervisor" in asked and unavailable,
            3: asked["term supervisor"] > 1,
            -signal.SIGKILL: "kill supervisor" in asked,
            -signal.SIGTERM: "term supervisor" in asked and not lines,
        }
        if not true.get(code, False):
            yield (
                None,
                f"run {run} ended with {code}; the hand did {dict(asked)}; {[line.message for line in lines[-5:]]}",
            )


def nothing_broke(evidence: Evidence) -> Problems:
    """No fault of the supervisor's own, and nothing lost of the log that the other checks rest on."""
    for line in evidence.lines:
        if line.fields["level"] == "none" or (
            line.fields.get("logger") == "asyncio" and line.fields["level"] == "error"
        ):
            yield None, f"run {line.run}: {line.message} {line.fields.get('traceback', '')}"
        if line.message.startswith(("config refused", "plugin ")) and line.fields["level"] != "info":
            yield None, f"run {line.run}: {line.message}"
