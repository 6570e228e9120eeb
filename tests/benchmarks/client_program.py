"""The program that enqueues for a contender: `python -m tests.benchmarks.client_program MODULE`, asked line by line in JSON."""

from __future__ import annotations

import importlib
import io
import json
import sys
import time
import traceback
from typing import Any

from tests.benchmarks.peers.base import Code, Enqueuer, Payload, Task


class OperatorChanges:
    def __init__(self, jobs: Enqueuer) -> None:
        self.jobs = jobs

    def enqueue(self, task: Task, payload: Payload) -> int:
        before = time.time_ns()
        self.jobs.enqueue(task, payload)
        return before

    def enqueue_each(self, task: Task, payloads: list[Payload]) -> float:
        began = time.monotonic()
        for payload in payloads:
            self.jobs.enqueue(task, payload)
        return time.monotonic() - began

    def enqueue_many(self, task: Task, payloads: list[Payload]) -> float:
        began = time.monotonic()
        self.jobs.enqueue_many(task, payloads)
        return time.monotonic() - began

    def steadily(self, task: Task, payloads: list[Payload], rate: float) -> list[int]:
        """Keeps to the schedule: when it falls behind, it catches up."""
        began = time.monotonic()
        times = []
        for number, payload in enumerate(payloads):
            early = began + number / rate - time.monotonic()
            if early > 0:
                time.sleep(early)
            times.append(self.enqueue(task, payload))
        return times

    def load(self, rate: float, batches: float, seconds: float) -> float:
        """No-op jobs at so many a second, in so many batches a second; gives the rate that was reached."""
        began, sent, total = time.monotonic(), 0, int(rate * seconds)
        while sent < total:
            passed = time.monotonic() - began
            due = min(total, int(rate * passed))
            if due > sent:
                self.jobs.enqueue_many("noop", [{"n": number} for number in range(sent, due)])
                sent = due
            time.sleep(max(0.0, 1 / batches - (time.monotonic() - began - passed)))
        return sent / (time.monotonic() - began)


def main(module: str) -> None:
    answers, sys.stdout = sys.stdout, sys.stderr  # a peer that prints must not answer
    # A process forked by multiprocessing closes sys.stdin, and would wait for ever for the lock that a waiting reader has.
    questions, sys.stdin = sys.stdin, io.StringIO()
    try:
        code: Code = importlib.import_module(f"tests.benchmarks.peers.{module}")
        verbs = OperatorChanges(code.connect())
    except Exception as problem:
        traceback.print_exc()
        _answer(answers, {"problem": f"{type(problem).__name__}: {problem}"})
        return
    _answer(answers, {"value": "connected"})
    for line in questions:
        question = json.loads(line)
        try:
            _answer(answers, {"value": getattr(verbs, question.pop("verb"))(**question)})
        except Exception as problem:
            traceback.print_exc()
            _answer(answers, {"problem": f"{type(problem).__name__}: {problem}"})


def _answer(out: Any, answer: dict[str, Any]) -> None:
    out.write(json.dumps(answer) + "\n")
    out.flush()


if __name__ == "__main__":
    main(sys.argv[1])
