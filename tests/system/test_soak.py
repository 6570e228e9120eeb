"""A steady stream for SUPERVISOR_SOAK_SECONDS (40; an hour is a million jobs): its costs stay flat."""

from __future__ import annotations

import os
import signal
import time

import pytest

from tests.system.command import Command, wait_for
from tests.system.soak import CONFIG, PLUGIN, Meter, Sample, Stream, figures

SECONDS = float(os.environ.get("SUPERVISOR_SOAK_SECONDS", "40"))
RATE = 280 if SECONDS >= 600 else 1400  # a leak has to show in a short time too
WARM_UP = max(20.0, SECONDS / 10)  # in which pruned jobs have come and gone twice
SAMPLES = 80


@pytest.mark.timeout(120 + 2 * SECONDS)
def test_memory_files_logs_and_latency_stay_flat_under_a_steady_stream(
    command: Command, capsys: pytest.CaptureFixture[str]
) -> None:
    command.write(config=CONFIG, plugins={"soak.py": PLUGIN})
    command.enqueue("work", {"n": 1})
    run = command.run()
    command.until(1, "succeeded")
    stream, meter = Stream(command, RATE), Meter(command, run)
    try:
        begun = time.monotonic()
        samples: list[Sample] = []
        while time.monotonic() < begun + SECONDS:
            time.sleep(SECONDS / SAMPLES)
            samples.append(meter.read())
        measured = figures(samples, stream, begun + WARM_UP)
        jobs = stream.end()
    finally:
        stream.kill()
    with capsys.disabled():
        print(f"\nsoak: {jobs} jobs in {SECONDS:g}s: " + "; ".join(map(str, measured)))
    wait_for(lambda: not unfinished(command), timeout=30.0)
    run.signal(signal.SIGTERM)
    assert run.wait() == 0
    assert not command.jobs("--state", "failed")
    assert not [str(figure) for figure in measured if not figure.is_flat]


def unfinished(command: Command) -> int:
    queues = command.status()["queues"]
    return sum(queue[kind] for queue in queues for kind in ("queue_size", "retry_queue_size", "scheduled", "in_flight"))
