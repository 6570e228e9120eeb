"""The load of the chaos test: its handler, its producer, and the files in which both record what they did.

The journal has a line for each start of the handler and each end, `start|end|fail partition offset attempt pid forkserver
monotonic`; a file per supervisor has its claims. Every line is one write, so it is in the file as a whole or
not at all.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

from supervisor.stores.kafka.ids import place_of
from supervisor.stores.kafka.partitions import EPOCH_BITS
from tests.kafka.broker import QUIET

RETRIES = 3
PARTITIONS = 3
KEYS = [None, *(f"key {number}".encode() for number in range(12))]
UNDECODABLE = (None, b"", b"\x80", b"{")

PLUGIN = r"""
import json, os, time
from supervisor import handler, hookimpl
from supervisor.events import JobsClaimed

JOURNAL = os.path.abspath("journal")


def write(path, lines):
    fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(fd, "".join(json.dumps(line) + "\n" for line in lines).encode())
    os.close(fd)


def note(what, job):
    place = job.headers["kafka.partition"], job.headers["kafka.offset"]
    write(JOURNAL, [[what, *place, job.attempt, os.getpid(), os.getppid(), time.monotonic()]])


@hookimpl
def supervisor_events(events):
    lines = []
    for event in events:
        if isinstance(event, JobsClaimed):
            lines += [[lease.id, lease.token] for lease in event.leases]
    if lines:
        write(f"claims-{os.getpid()}", lines)


@handler
def work(job):
    note("start", job)
    time.sleep(job.payload["seconds"])
    if job.attempt <= job.payload["failures"]:
        note("fail", job)
        raise ValueError("no")
    if job.attempt <= job.payload["crashes"]:
        os._exit(3)
    note("end", job)
"""


class Entry(NamedTuple):
    what: str
    partition: int
    offset: int
    attempt: int
    pid: int
    forkserver: int
    at: float

    @property
    def place(self) -> tuple[int, int]:
        return self.partition, self.offset


class Claim(NamedTuple):
    partition: int
    offset: int
    epoch: int
    token: int


@dataclass(frozen=True)
class Sent:
    """A record that the broker has acknowledged. `fails` if no attempt can succeed."""

    key: bytes | None
    value: bytes | None
    fails: bool


class Journal:
    """Reads the journal; each `read` goes on where the last one ended."""

    def __init__(self, folder: Path) -> None:
        self._path, self._offset = folder / "journal", 0
        self.entries: list[Entry] = []
        self.ended: set[tuple[int, int]] = set()

    def read(self) -> None:
        if not self._path.exists():
            return
        with self._path.open("rb") as file:
            file.seek(self._offset)
            data = file.read()
        whole = data[: data.rfind(b"\n") + 1]
        self._offset += len(whole)
        new = [Entry(*json.loads(line)) for line in whole.splitlines()]
        self.entries += new
        self.ended |= {entry.place for entry in new if entry.what == "end"}


def claims_in(folder: Path) -> dict[int, list[Claim]]:
    """Return the claims of each supervisor, by its pid, in order."""
    claims: dict[int, list[Claim]] = {}
    for file in folder.glob("claims-*"):
        for id, token in map(json.loads, file.read_text().splitlines()):
            _, partition, offset = place_of(id)
            ours = claims.setdefault(int(file.name.rpartition("-")[2]), [])
            ours.append(Claim(partition, offset, token >> EPOCH_BITS, token))
    return claims


class Load:
    """Produces records until it is ended; `sent` has those that the broker has acknowledged, by partition and offset."""

    def __init__(self, bootstrap: str, topic: str, seed: str, per_second: float) -> None:
        from confluent_kafka import Producer

        self._topic, self._chance, self._interval = topic, Random(seed), 1 / per_second
        self._producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True, "linger.ms": 5, **QUIET})
        self._thread = threading.Thread(target=self._produce, daemon=True)
        self._ended = threading.Event()
        self.sent: dict[tuple[int, int], Sent] = {}
        self.unplaced: list[Sent] = []

    def start(self) -> None:
        self._thread.start()

    def end(self, timeout: float) -> None:
        """Return when all records are acknowledged."""
        self._ended.set()
        self._thread.join(timeout)
        assert self._producer.flush(timeout) == 0, "the broker has not acknowledged all records"

    def _produce(self) -> None:
        for key, value, fails in self._records():
            if self._ended.wait(self._interval):
                return
            partition = self._chance.randrange(PARTITIONS) if key is None else KEYS.index(key) % PARTITIONS
            note = self._noting(Sent(key, value, fails))
            self._producer.produce(self._topic, value, key, partition=partition, on_delivery=note)
            self._producer.poll(0)

    def _noting(self, sent: Sent) -> Any:
        def note(error: Any, message: Any) -> None:
            if error is None and message.offset() is None:  # its first acknowledgement was lost
                self.unplaced.append(sent)
            elif error is None:
                self.sent[message.partition(), message.offset()] = sent

        return note

    def _records(self) -> Iterator[tuple[bytes | None, bytes | None, bool]]:
        chance = self._chance
        while True:
            key, kind = chance.choice(KEYS), chance.random()
            if kind < 0.03:
                yield key, chance.choice(UNDECODABLE), True
                continue
            failures = chance.choice((1, 2, 99)) if kind < 0.15 else 0
            crashes = 1 if 0.15 < kind < 0.18 else 0
            seconds = chance.choice((0, 0, 0.01, 0.1, 0.4))
            value = {"failures": failures, "crashes": crashes, "seconds": seconds, "at": time.time()}
            yield key, json.dumps(value).encode(), failures > RETRIES
