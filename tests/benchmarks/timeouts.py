"""The time from the deadline of a job that hangs to the start of the next job in its slot."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from functools import partial

from tests.benchmarks.contender import Contender, deployed
from tests.benchmarks.peers.base import Peer, Settings
from tests.benchmarks.peers.catalogue import CELERY, DRAMATIQ, PEBBLE, RQ, SUPERVISOR
from tests.benchmarks.run import NotMeasured, Run
from tests.benchmarks.table import Measure

NAME = "timeouts"
TITLE = "from the deadline of a job that hangs to the next job's start in its slot"
TIMEOUT = 1.0
BOUND = 10.0
SAMPLES = 3
C_CALL = "c_call"
KINDS = {
    C_CALL: Measure("C code that holds the GIL", "ms", "less"),
    "loop": Measure("Python loop", "ms", "less"),
    "sleep": Measure("time.sleep", "ms", "less"),
    "regex": Measure("regular expression", "ms", "less"),
    "ignore_signals": Measure("every signal ignored", "ms", "less"),
    "program": Measure("a program that ignores TERM", "ms", "less"),
}


def run(run: Run) -> None:
    table = run.table(NAME, TITLE, list(KINDS.values()))
    samples = 1 if run.quick else SAMPLES
    contenders = {SUPERVISOR.title: partial(hung, SUPERVISOR, list(KINDS), samples)}
    for peer in run.wanted((PEBBLE, CELERY, RQ, DRAMATIQ)):
        contenders[peer.title] = partial(hung, peer, [C_CALL], samples)
    table.note(
        f"timeout {TIMEOUT:g} s, 1 worker process, median of {samples} in each round; peers: only with the GIL held"
    )
    run.compare(table, contenders)


def hung(peer: Peer, kinds: Sequence[str], samples: int) -> Mapping[str, float]:
    with deployed(peer, Settings(workers=1, timeout=TIMEOUT)) as contender:
        return {KINDS[kind].name: statistics.median(_delays(contender, kind, samples)) for kind in kinds}


def _delays(contender: Contender, kind: str, samples: int) -> list[float]:
    """Return the milliseconds after each deadline, which is counted from the stamp of the job."""
    delays = []
    stamps = contender.stamps(kind)
    with contender.client() as client, contender.workers():
        client.enqueue("stamp", stamps.payload("warm"))
        stamps.wait_for("warm")
        for number in range(samples):
            client.enqueue("hang", stamps.payload(f"hung-{number}", kind=kind))
            deadline = stamps.wait_for(f"hung-{number}") + TIMEOUT * 1e9
            client.enqueue("stamp", stamps.payload(f"next-{number}"))
            try:
                delays.append((stamps.wait_for(f"next-{number}", TIMEOUT + BOUND) - deadline) / 1e6)
            except TimeoutError:
                raise NotMeasured(f"not within {BOUND:g} s after the deadline: {KINDS[kind].name}") from None
    return delays
