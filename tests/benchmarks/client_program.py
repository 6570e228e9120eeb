"""The program that enqueues for a contender: `python -m tests.benchmarks.client_program MODULE`.

It reads calls from standard input and writes their results to standard output, each as one line of JSON.
"""

from __future__ import annotations

import importlib
import io
import json
import sys
import time
import traceback
from typing import Any

from tests.benchmarks.peers.base import Code, Enqueuer, Payload, Task


class Client:
    """The methods that can be called."""

    def __init__(self, jobs: Enqueuer) -> None:
        self._jobs = jobs

    def enqueue(self, task: Task, payload: Payload) -> int:
        before = time.time_ns()
        self._jobs.enqueue(task, payload)
        return before

    def enqueue_each(self, task: Task, payloads: list[Payload]) -> float:
        start = time.monotonic()
        for payload in payloads:
            self._jobs.enqueue(task, payload)
        return time.monotonic() - start

    def enqueue_many(self, task: Task, payloads: list[Payload]) -> float:
        start = time.monotonic()
        self._jobs.enqueue_many(task, payloads)
        return time.monotonic() - start

    def enqueue_steadily(self, task: Task, payloads: list[Payload], rate: float) -> list[int]:
        """Enqueue by a fixed schedule: a delay is made up for."""
        start = time.monotonic()
        times = []
        for number, payload in enumerate(payloads):
            early = start + number / rate - time.monotonic()
            if early > 0:
                time.sleep(early)
            times.append(self.enqueue(task, payload))
        return times

    def load(self, rate: float, batches: float, seconds: float) -> float:
        """Enqueue `rate` no-op jobs a second in `batches` calls a second, and return the rate that was reached."""
        start, sent, total = time.monotonic(), 0, int(rate * seconds)
        while sent < total:
            passed = time.monotonic() - start
            due = min(total, int(rate * passed))
            if due > sent:
                self._jobs.enqueue_many("noop", [{"n": number} for number in range(sent, due)])
                sent = due
            time.sleep(max(0.0, 1 / batches - (time.monotonic() - start - passed)))
        return sent / (time.monotonic() - start)


def main(module: str) -> None:
    results, sys.stdout = sys.stdout, sys.stderr  # what a peer prints must not be read as a result
    # A process forked by multiprocessing closes sys.stdin, and would wait for ever for the lock that a waiting reader has.
    calls, sys.stdin = sys.stdin, io.StringIO()
    try:
        code: Code = importlib.import_module(f"tests.benchmarks.peers.{module}")
        client = Client(code.connect())
    except Exception as problem:
        _write_problem(results, problem)
        return
    _write(results, {"value": "connected"})
    for line in calls:
        arguments = json.loads(line)
        try:
            _write(results, {"value": getattr(client, arguments.pop("method"))(**arguments)})
        except Exception as problem:
            _write_problem(results, problem)


def _write_problem(out: Any, problem: Exception) -> None:
    traceback.print_exc()
    _write(out, {"problem": f"{type(problem).__name__}: {problem}"})


def _write(out: Any, result: dict[str, Any]) -> None:
    out.write(json.dumps(result) + "\n")
    out.flush()


if __name__ == "__main__":
    main(sys.argv[1])
