"""The client of a contender. It runs in a process of its own, so that the libraries of two peers are never in one process."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.benchmarks.peers.base import Payload, Task
from tests.benchmarks.run import NotMeasured


class Client:
    """Calls the methods of `client_program.Client` in its process."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def enqueue(self, task: Task, payload: Payload) -> int:
        """Enqueue a job, and return the time in ns just before."""
        return int(self._call("enqueue", task=task, payload=dict(payload)))

    def enqueue_each(self, task: Task, payloads: Sequence[Payload]) -> float:
        """Enqueue jobs one by one, and return how many seconds that took."""
        return float(self._call("enqueue_each", task=task, payloads=list(payloads)))

    def enqueue_many(self, task: Task, payloads: Sequence[Payload]) -> float:
        """Enqueue jobs, in bulk if the peer can, and return how many seconds that took."""
        return float(self._call("enqueue_many", task=task, payloads=list(payloads)))

    def enqueue_steadily(self, task: Task, payloads: Sequence[Payload], rate: float) -> list[int]:
        """Enqueue `rate` jobs a second one by one, and return the times in ns just before each."""
        return [int(at) for at in self._call("enqueue_steadily", task=task, payloads=list(payloads), rate=rate)]

    def start_load(self, rate: float, batches: float, seconds: float) -> None:
        """Start to enqueue `rate` no-op jobs a second in `batches` calls a second, and return at once."""
        self._send("load", rate=rate, batches=batches, seconds=seconds)

    def finish_load(self) -> float:
        """Wait for the end of the load, and return the rate that was reached."""
        return float(self.receive())

    def _call(self, method: str, **arguments: Any) -> Any:
        self._send(method, **arguments)
        return self.receive()

    def _send(self, method: str, **arguments: Any) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"method": method, **arguments}) + "\n")
        self._process.stdin.flush()

    def receive(self) -> Any:
        """Return the next result. Raises RuntimeError if the call failed or the process ended."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError("the client ended; see its messages above")
        result = json.loads(line)
        if "problem" in result:
            raise RuntimeError(result["problem"])
        return result["value"]


@contextlib.contextmanager
def running_client(module: str, environment: Mapping[str, str], log: Path) -> Iterator[Client]:
    """Run the client of the peer in `module`. Raises NotMeasured if it can't connect."""
    with log.open("ab") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.benchmarks.client_program", module],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=output,
            text=True,
        )
    client = Client(process)
    try:
        try:
            client.receive()  # connected
        except RuntimeError as problem:
            raise NotMeasured(f"its client does not start: {problem}; {last_lines(log)}") from None
        yield client
    finally:
        assert process.stdin is not None and process.stdout is not None
        process.stdin.close()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        process.stdout.close()


def last_lines(file: Path, count: int = 3) -> str:
    return " / ".join(file.read_text(errors="replace").splitlines()[-count:]) if file.exists() else ""
