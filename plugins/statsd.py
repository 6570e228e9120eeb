"""Send counters, timers and gauges to a statsd server over UDP, if STATSD_HOST is set. The default of STATSD_PORT is 8125.

Metrics that can't be sent at once are dropped, since no metric is worth a delay or an error.
"""

from __future__ import annotations

import os
import re
import socket
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

from supervisor import events as happened
from supervisor import hookimpl

MAX_BYTES = 1400
MAX_TIMERS = 50
LOOK_UP_EVERY = 60.0
HOST, PORT = os.environ.get("STATSD_HOST", ""), os.environ.get("STATSD_PORT", "8125")
if not PORT.isdecimal() or not 0 < int(PORT) < 65_536:
    raise ValueError(f"STATSD_PORT: expected a port number, got {PORT!r}")


class Statsd:
    """Sends metrics. It connects at the first batch: every process imports this file, but only the supervisor sends."""

    def __init__(self, host: str, port: int) -> None:
        self._host, self._port = host, port
        self._socket: socket.socket | None = None
        self._look_up_at = 0.0
        self._workers: set[int] = set()
        self._queues: set[str] = set()

    def send(self, events: Sequence[Any]) -> None:
        packet = b""
        for line in _lines(events, self._workers, self._queues):
            if packet and len(packet) + 1 + len(line) > MAX_BYTES:
                self._send(packet)
                packet = b""
            packet = b"\n".join([packet, line]) if packet else line
        self._send(packet)

    def _send(self, packet: bytes) -> None:
        try:
            if self._socket is None and time.monotonic() >= self._look_up_at:
                self._look_up_at = time.monotonic() + LOOK_UP_EVERY
                self._socket = _connect(self._host, self._port)
            if self._socket is not None:
                self._socket.send(packet)
        except OSError:
            pass


def _connect(host: str, port: int) -> socket.socket:
    family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
    connected = socket.socket(family, kind)
    connected.setblocking(False)
    connected.connect(address)
    return connected


def _lines(events: Sequence[Any], workers: set[int], queues: set[str]) -> Iterator[bytes]:
    """Yield the lines of a batch. `workers` are the pids of running workers and `queues` the gauges seen last; both are updated."""
    counts: Counter[str] = Counter()
    runs: defaultdict[str, list[float]] = defaultdict(list)
    gauges: dict[str, int] = {}
    for event in events:
        match event:
            case happened.JobsSettled(outcomes):
                for outcome in outcomes:
                    counts["jobs.retried" if outcome.counted else f"jobs.{outcome.kind.value}"] += 1
                    if outcome.took is not None:
                        runs[_segment(outcome.lease.handler)].append(outcome.took)
            case happened.LeasesRecovered(outcomes):
                counts["leases.recovered"] += len(outcomes)
            case happened.DeadLettersPublished(sink, ids):
                counts[f"dead_letters.published.{_segment(sink)}"] += len(ids)
            case happened.WorkerStarted(_, pid):
                workers.add(pid)
            case happened.WorkerExited(_, pid, cause):
                workers.discard(pid)
                counts[f"workers.ended.{_segment(cause)}"] += 1
            case happened.QueueDepths(waiting, more):
                seen = {
                    f"queue.{_segment(queue)}.{tier}": n
                    for queue, ready in waiting.items()
                    for tier, n in zip(("fresh", "retry"), ready, strict=True)
                }
                gone = set() if more else queues.difference(seen)  # a queue that is left out has no jobs
                gauges |= dict.fromkeys(gone, 0) | seen
                queues.difference_update(gone)
                queues.update(seen)
    yield from (f"supervisor.{name}:{count}|c".encode() for name, count in counts.items())
    for name, times in runs.items():
        step = -(-len(times) // MAX_TIMERS)  # of thousands, a sample with its rate is enough
        rate = f"|@{1 / step:.4g}" if step > 1 else ""
        yield from (f"supervisor.run_time.{name}:{took * 1000:.3f}|ms{rate}".encode() for took in times[::step])
    yield from (f"supervisor.{name}:{value}|g".encode() for name, value in {**gauges, "workers": len(workers)}.items())


def _segment(name: str) -> str:
    """Return the name as one segment of a statsd name."""
    return re.sub(r"[^A-Za-z0-9_-]", "_", name)[:100]


_STATSD = Statsd(HOST, int(PORT))


@hookimpl
def supervisor_events(events: Sequence[Any]) -> None:
    if HOST:
        _STATSD.send(events)
