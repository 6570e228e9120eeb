"""The checks of the chaos test, made on what its load, its watcher and its handler have recorded."""

from __future__ import annotations

import signal
from collections import defaultdict
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

from tests.kafka.chaos import COMMIT_INTERVAL, Chaos
from tests.kafka.chaos_load import Claim, Entry, claims_in

SLACK = 2.0
"""Seconds for a commit and for the signal of a fault, on a busy machine."""
JOIN = 20.0
"""Seconds from the start of a supervisor until the group has given it its partitions; some brokers refuse commits meanwhile."""


def problems(chaos: Chaos, folder: Path, *, keeps_metadata: bool) -> Iterator[str]:
    """Check everything. `keeps_metadata` is whether the broker returns the metadata of a commit."""
    claims = claims_in(folder)
    yield from chaos.watcher.problems
    for place in chaos.watcher.passed_at.keys() - chaos.watcher.dead_letters.keys():
        yield f"the offset of {place} was committed before it was done"
    yield from _lost(chaos)
    yield from _changed(chaos)
    yield from _out_of_order(chaos, claims)
    yield from _at_once(chaos, claims)
    yield from _repeated(chaos, keeps_metadata)
    yield from _broken(chaos)


def _lost(chaos: Chaos) -> Iterator[str]:
    """Every record has been run to its end, or is a dead letter."""
    for place, sent in chaos.load.sent.items():
        dead = place in chaos.watcher.dead_letters
        if sent.fails and not dead:
            yield f"record {place} has failed and is no dead letter"
        elif not dead and place not in chaos.journal.ended:
            yield f"record {place} is lost"


def _changed(chaos: Chaos) -> Iterator[str]:
    unplaced = {(sent.key, sent.value) for sent in chaos.load.unplaced}
    for place, letters in chaos.watcher.dead_letters.items():
        sent = chaos.load.sent.get(place)
        expected = unplaced if sent is None else {(sent.key, sent.value)}
        for key, value, _ in letters:
            if (key, value) not in expected:
                yield f"the dead letter of {place} has {key!r}: {value!r}, its record {sent}"


def _out_of_order(chaos: Chaos, claims: dict[int, list[Claim]]) -> Iterator[str]:
    """In an assignment, a record is claimed for the first time after those before it of the same key."""
    for pid, ours in claims.items():
        last: dict[tuple[int, int, bytes], int] = {}
        for claim in ours:
            sent = chaos.load.sent.get((claim.partition, claim.offset))
            if sent is None or sent.key is None:
                continue
            line = claim.epoch, claim.partition, sent.key
            if claim.offset < last.get(line, -1):
                yield f"supervisor {pid} has claimed {claim} after {last[line]} of the same key"
            last[line] = claim.offset


def _at_once(chaos: Chaos, claims: dict[int, list[Claim]]) -> Iterator[str]:
    """No two records of a key run at once in one supervisor, unless they are of two assignments."""
    supervisors = chaos.supervisors
    epochs: dict[tuple[int, int, int], set[int]] = defaultdict(set)
    for supervisor, ours in claims.items():
        for claim in ours:
            epochs[supervisor, claim.partition, claim.offset].add(claim.epoch)
    running: dict[tuple[int, int, bytes], list[tuple[Entry, Entry]]] = defaultdict(list)
    started: dict[tuple[int, tuple[int, int]], Entry] = {}
    for entry in chaos.journal.entries:
        sent, pid = chaos.load.sent.get(entry.place), supervisors[entry.forkserver]
        if entry.what == "start":
            started[entry.pid, entry.place] = entry
        elif sent is not None and sent.key is not None:
            running[pid, entry.partition, sent.key].append((started[entry.pid, entry.place], entry))
    for (pid, partition, key), attempts in running.items():
        attempts.sort(key=lambda attempt: attempt[0].at)
        for (first, end), (second, _) in pairwise(attempts):
            of_both = epochs[pid, partition, first.offset] | epochs[pid, partition, second.offset]
            if second.at < end.at and len(of_both) == 1:
                yield f"records {first} and {second} of {key!r} ran at once in supervisor {pid}"


def _repeated(chaos: Chaos, keeps_metadata: bool) -> Iterator[str]:
    """A record that has ended runs again only if its end was not committed: for a fault that came before the next commit. Without
    metadata it may also lie behind one that is not done, when another supervisor gets its partition."""
    ends: dict[tuple[int, int], list[float]] = defaultdict(list)
    for entry in chaos.journal.entries:
        if entry.what == "end":
            ends[entry.place].append(entry.at)
    spans = [(fault.at, fault.until) for fault in chaos.injected] + [(at, at + JOIN) for at in chaos.started]
    for place, times in ends.items():
        for first, second in pairwise(times):
            latest = first + COMMIT_INTERVAL + SLACK if keeps_metadata else second
            if not any(at <= latest and first - SLACK <= until for at, until in spans):
                yield f"record {place} has ended {len(times)} times, at {times}, for no fault between"


def _broken(chaos: Chaos) -> Iterator[str]:
    """No supervisor has an error of its own; each exits with 0, or is killed."""
    for line in chaos.logs.splitlines():
        if "Traceback" in line or "error of its own" in line or "internal error" in line:
            yield line
    if wrong := chaos.codes.keys() - {0, -signal.SIGKILL}:
        yield f"supervisors have ended with {wrong}"


def repeats(chaos: Chaos) -> int:
    ended = [entry.place for entry in chaos.journal.entries if entry.what == "end"]
    return len(ended) - len(set(ended))
