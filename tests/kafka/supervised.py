"""Supervisors of one consumer group, run by the real command, and the file in which their handler records what it does."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from supervisor.stores.kafka.offsets import done_ranges
from tests.kafka.broker import Broker
from tests.system.command import Command, Running, wait_for

QUICK = {"session.timeout.ms": 4000, "heartbeat.interval.ms": 300, "fetch.wait.max.ms": 50}
"""Settings of the client with which a group forms within seconds."""

PLUGIN = r"""
import json, os, time
from supervisor import handler

JOURNAL = os.path.abspath("journal")


def note(what, job):
    headers = job.headers
    entry = [what, headers["kafka.topic"], headers["kafka.partition"], headers["kafka.offset"], headers["kafka.key"],
             job.attempt, os.getpid(), os.getppid(), time.monotonic()]
    fd = os.open(JOURNAL, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(fd, (json.dumps(entry) + "\n").encode())
    os.close(fd)


def number_of_run(job):
    "Count the runs of the record, from 1, over all supervisors."
    with open(f"runs-{job.headers['kafka.topic']}-{job.headers['kafka.partition']}-{job.headers['kafka.offset']}", "a") as file:
        file.write("x")
        file.flush()
        return os.fstat(file.fileno()).st_size


@handler
def work(job):
    "Do what the payload wants: wait for a file (of each run another one), take some seconds, fail up to an attempt."
    note("start", job)
    wanted = job.payload if isinstance(job.payload, dict) else {}
    run = number_of_run(job) if "files" in wanted else 0
    while "files" in wanted and not os.path.exists(wanted["files"].format(run)):
        time.sleep(0.005)
    time.sleep(wanted.get("seconds", 0))
    if job.attempt <= wanted.get("failures", 0):
        raise ValueError("no")
    note("end", job)
"""


class Entry(NamedTuple):
    """A start of the handler, or an end without an error, at monotonic seconds."""

    what: str
    topic: str
    partition: int
    offset: int
    key: str | None
    attempt: int
    pid: int
    owner: int
    """The forkserver of the supervisor."""
    at: float


class Elsewhere(Broker):
    """Asks a broker, or a mock cluster, that something else runs."""

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap

    @property
    def bootstrap(self) -> str:
        return self._bootstrap


class Supervised:
    """`store` and `kafka` are further keys of the store and settings of the client, the others sections of the config."""

    def __init__(self, command: Command, broker: Broker, topic: str, group: str) -> None:
        self.command, self.broker, self.topic, self.group = command, broker, topic, group
        self.write()

    def write(
        self, *, store: Mapping[str, Any] | None = None, kafka: Mapping[str, Any] | None = None, plugin: str = PLUGIN,
        **sections: Any,
    ) -> None:  # fmt: skip
        config = {
            "store": {
                "type": "kafka", "bootstrap": self.broker.bootstrap, "group": self.group, "topics": {self.topic: "work"},
                "commit_interval": "50ms", **(store or {}), "kafka": {**QUICK, **(kafka or {})},
            },
            "workers": {"count": 4},
            "retry": {"max_retries": 1, "backoff": {"base": "50ms", "jitter": "none"}},
            **sections,
        }  # fmt: skip
        self.command.write(config=json.dumps(config), plugins={"work.py": plugin})

    def run(self) -> Running:
        run = self.command.run()
        run.logged("supervisor started", 30.0)
        return run

    def produce(self, *payloads: Any, key: bytes | None = None, partition: int | None = None) -> None:
        self.broker.produce(self.topic, [(key, json.dumps(it).encode(), ()) for it in payloads], partition=partition)

    def release(self, file: str) -> None:
        """Let the jobs end that wait for this file."""
        (self.command.folder / file).touch()

    # facts

    @property
    def journal(self) -> list[Entry]:
        return entries(self.command.folder / "journal")

    def starts(self, partition: int | None = None) -> Counter[int]:
        """How often each offset was started."""
        return self._counted("start", partition)

    def ends(self, partition: int | None = None) -> Counter[int]:
        return self._counted("end", partition)

    def _counted(self, what: str, partition: int | None) -> Counter[int]:
        return Counter(it.offset for it in self.journal if it.what == what and partition in (None, it.partition))

    def committed(self, topic: str | None = None) -> dict[int, int]:
        return {
            number: offset for number, (offset, _) in self.broker.committed(self.group, topic or self.topic).items()
        }

    def until_committed(self, offset: int, partition: int = 0, timeout: float = 30.0) -> None:
        def reached() -> None:
            committed = self.committed()
            assert committed.get(partition) == offset, (
                f"committed {committed}, expected {offset}; undone: {self.undone()}"
            )

        wait_for(reached, timeout, every=0.05)

    def undone(self) -> list[Entry]:
        """The starts after which the record has not ended."""
        return [it for number in {it.partition for it in self.journal} for it in self.journal
                if (it.what, it.partition) == ("start", number) and not self.ends(number)[it.offset]]  # fmt: skip

    def run_again(self, partition: int) -> list[Entry]:
        """The starts of records that were started more than once."""
        twice = {offset for offset, n in self.starts(partition).items() if n > 1}
        return [it for it in self.journal if it.what == "start" and it.partition == partition and it.offset in twice]

    def until_done_beyond(self, committed: int, *ranges: tuple[int, int], partition: int = 0) -> None:
        """Wait for this commit, with these ranges of offsets done beyond it. Only a mock cluster returns the latter."""

        def reached() -> None:
            offset, metadata = self.broker.committed(self.group, self.topic).get(partition, (-1, None))
            found = offset, done_ranges(offset, metadata)
            assert found == (committed, list(ranges)), f"committed {found}"

        wait_for(reached, 30.0, every=0.05)

    def owner(self, partition: int) -> int:
        """Produce a record to the partition, and return the owner that has run it."""
        before = len(self.journal)
        self.produce(None, partition=partition)

        def ran() -> int:
            found = [it for it in self.journal[before:] if (it.what, it.partition) == ("end", partition)]
            assert found, f"no record of partition {partition} has ended"
            return found[-1].owner

        return wait_for(ran, 30.0)

    def until_owned(self, *owners: int) -> None:
        """Produce records until these are the owners of the partitions, in this order."""

        def reached() -> None:
            found = [self.owner(partition) for partition in range(len(owners))]
            assert found == list(owners), f"owners {found}, expected {owners}"

        wait_for(reached, 30.0, every=0.2)

    def until_owners(self, partitions: int) -> list[int]:
        """Produce records until each partition has another owner; return the owners."""

        def reached() -> list[int]:
            found = [self.owner(partition) for partition in range(partitions)]
            assert len(set(found)) == partitions, f"owners {found}"
            return found

        return wait_for(reached, 30.0, every=0.2)

    def until_moved(self, owner: int) -> int:
        """Produce records until another owner than this one has one of the two partitions; return which."""
        return next(number for number, it in enumerate(self.until_owners(2)) if it != owner)

    def until_started(self, *offsets: int, partition: int | None = None, timeout: float = 30.0) -> None:
        self._until("start", offsets, partition, timeout)

    def until_ended(self, *offsets: int, partition: int | None = None, timeout: float = 30.0) -> None:
        self._until("end", offsets, partition, timeout)

    def _until(self, what: str, offsets: tuple[int, ...], partition: int | None, timeout: float) -> None:
        def reached() -> None:
            found = self._counted(what, partition)
            assert found.keys() >= set(offsets), f"no {what} of {sorted(set(offsets) - found.keys())[:10]}: {found}"

        wait_for(reached, timeout)


def entries(file: Path) -> list[Entry]:
    if not file.exists():
        return []
    text = file.read_text()
    return [Entry(*json.loads(line)) for line in text[: text.rfind("\n") + 1].splitlines()]
