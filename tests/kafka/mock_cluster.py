"""The mock cluster of librdkafka in this process, for errors that a real broker can't be made to answer with. Any process
reaches it over TCP. It has groups, commits with their metadata and static members; of a partition it keeps the newest 5 MB."""

from __future__ import annotations

import ctypes
import itertools
import time
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

API_KEYS = {
    "Produce": 0, "Fetch": 1, "ListOffsets": 2, "Metadata": 3, "OffsetCommit": 8, "OffsetFetch": 9,
    "FindCoordinator": 10, "JoinGroup": 11, "Heartbeat": 12, "LeaveGroup": 13, "SyncGroup": 14, "ApiVersion": 18,
    "InitProducerId": 22, "AddPartitionsToTxn": 24, "AddOffsetsToTxn": 25, "EndTxn": 26, "TxnOffsetCommit": 28,
}  # fmt: skip
"""The kinds of request, by the protocol's names."""

PRODUCER = 0
"""The kind of client that the cluster hangs on: rd_kafka_type_t."""


class MockCluster:
    """Brokers are numbered from 1. All methods return at once; the cluster takes a change before its next answer."""

    def __init__(self, brokers: int = 1) -> None:
        library = _library()
        settings = library.rd_kafka_conf_new()
        problem = ctypes.create_string_buffer(512)
        library.rd_kafka_conf_set(settings, b"log_level", b"0", problem, len(problem))
        self._client = library.rd_kafka_new(PRODUCER, settings, problem, len(problem))
        assert self._client, problem.value.decode()
        self._cluster = library.rd_kafka_mock_cluster_new(self._client, brokers)
        assert self._cluster, "no mock cluster"

    @property
    def bootstrap(self) -> str:
        return str(_library().rd_kafka_mock_cluster_bootstraps(self._cluster).decode())

    def create_topic(self, name: str, partitions: int = 1) -> None:
        """Unknown topics are made with four partitions when a client asks for them and lets them be made."""
        self._call("topic_create", name, partitions, 1)

    def delete_topic(self, name: str) -> None:
        self._call("topic_delete", name)

    def fail_topic(self, name: str, error: int) -> None:
        """Answer each request for the topic's metadata with the error; 0 ends it."""
        _library().rd_kafka_mock_topic_set_error(self._cluster, name.encode(), error)

    def delete_records(self, topic: str, partition: int, before: int) -> None:
        self._call("partition_delete_records", topic, partition, ctypes.c_int64(before))

    def inject(self, request: str, errors: Sequence[int]) -> None:
        """Answer the next requests of that kind with these errors, one each (0: as usual). -195 closes the connection."""
        array = (ctypes.c_int * len(errors))(*errors)
        _library().rd_kafka_mock_push_request_errors_array(self._cluster, API_KEYS[request], len(errors), array)

    def clear(self, request: str) -> None:
        """Drop the injected errors that no request has had."""
        _library().rd_kafka_mock_clear_request_errors(self._cluster, API_KEYS[request])

    def set_down(self, broker: int = 1) -> None:
        """Close its connections and refuse new ones. Its data stays."""
        self._call("broker_set_down", broker)

    def set_up(self, broker: int = 1) -> None:
        self._call("broker_set_up", broker)

    def delay(self, milliseconds: int, broker: int = 1) -> None:
        """Answer each request so much later."""
        self._call("broker_set_rtt", broker, milliseconds)

    def set_coordinator(self, group: str, broker: int) -> None:
        self._call("coordinator_set", "group", group, broker)

    def set_leader(self, topic: str, partition: int, broker: int) -> None:
        """-1: the partition has no leader."""
        self._call("partition_set_leader", topic, partition, broker)

    def first_join_delay(self, milliseconds: int) -> None:
        """How long the first join of a group waits for others; 3000 unless set."""
        _library().rd_kafka_mock_group_initial_rebalance_delay_ms(self._cluster, milliseconds)

    def count_requests(self) -> None:
        """Start to note requests: see `requests`."""
        _library().rd_kafka_mock_start_request_tracking(self._cluster)

    def requests(self) -> list[str]:
        """The requests noted so far, oldest first; those of other kinds than API_KEYS as numbers."""
        library, names = _library(), {number: name for name, number in API_KEYS.items()}
        count = ctypes.c_size_t()
        found = library.rd_kafka_mock_get_requests(self._cluster, ctypes.byref(count))
        keys = [library.rd_kafka_mock_request_api_key(one) for one in itertools.islice(found, count.value)]
        library.rd_kafka_mock_request_destroy_array(found, count)
        return [names.get(key, str(key)) for key in keys]

    def close(self) -> None:
        if self._cluster:
            _library().rd_kafka_mock_cluster_destroy(self._cluster)
            _library().rd_kafka_destroy(self._client)
            self._cluster = None

    def _call(self, name: str, *values: str | int | ctypes.c_int64) -> None:
        plain = [value.encode() if isinstance(value, str) else value for value in values]
        error = getattr(_library(), f"rd_kafka_mock_{name}")(self._cluster, *plain)
        assert error == 0, _library().rd_kafka_err2str(error).decode()


def read(bootstrap: str, topic: str, count: int, partition: int = 0) -> list[Any]:
    """Return the first records of a partition."""
    from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition

    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "reader"})
    consumer.assign([TopicPartition(topic, partition, OFFSET_BEGINNING)])
    found: list[Any] = []
    until = time.monotonic() + 20
    while len(found) < count and time.monotonic() < until:
        if (message := consumer.poll(0.2)) is not None:
            assert message.error() is None
            found.append(message)
    consumer.close()
    return found


@cache
def _library() -> Any:
    """The library inside the wheel, which the Python client of this process uses too."""
    import confluent_kafka

    [path] = (Path(confluent_kafka.__file__).parent.parent / "confluent_kafka.libs").glob("librdkafka-*.so*")
    library = ctypes.CDLL(str(path))
    pointer = ctypes.c_void_p
    for name, result, arguments in [
        ("conf_new", pointer, []),
        ("conf_set", ctypes.c_int, [pointer, ctypes.c_char_p, ctypes.c_char_p, ctypes.c_char_p, ctypes.c_size_t]),
        ("new", pointer, [ctypes.c_int, pointer, ctypes.c_char_p, ctypes.c_size_t]),
        ("destroy", None, [pointer]),
        ("err2str", ctypes.c_char_p, [ctypes.c_int]),
        ("mock_cluster_new", pointer, [pointer, ctypes.c_int]),
        ("mock_cluster_destroy", None, [pointer]),
        ("mock_cluster_bootstraps", ctypes.c_char_p, [pointer]),
        ("mock_topic_create", ctypes.c_int, [pointer, ctypes.c_char_p, ctypes.c_int, ctypes.c_int]),
        ("mock_topic_delete", ctypes.c_int, [pointer, ctypes.c_char_p]),
        ("mock_topic_set_error", None, [pointer, ctypes.c_char_p, ctypes.c_int]),
        ("mock_partition_delete_records", ctypes.c_int, [pointer, ctypes.c_char_p, ctypes.c_int32, ctypes.c_int64]),
        ("mock_push_request_errors_array", None, [pointer, ctypes.c_int16, ctypes.c_size_t, pointer]),
        ("mock_clear_request_errors", None, [pointer, ctypes.c_int16]),
        ("mock_broker_set_down", ctypes.c_int, [pointer, ctypes.c_int32]),
        ("mock_broker_set_up", ctypes.c_int, [pointer, ctypes.c_int32]),
        ("mock_broker_set_rtt", ctypes.c_int, [pointer, ctypes.c_int32, ctypes.c_int]),
        ("mock_coordinator_set", ctypes.c_int, [pointer, ctypes.c_char_p, ctypes.c_char_p, ctypes.c_int32]),
        ("mock_partition_set_leader", ctypes.c_int, [pointer, ctypes.c_char_p, ctypes.c_int32, ctypes.c_int32]),
        ("mock_group_initial_rebalance_delay_ms", None, [pointer, ctypes.c_int32]),
        ("mock_start_request_tracking", None, [pointer]),
        ("mock_get_requests", ctypes.POINTER(pointer), [pointer, pointer]),
        ("mock_request_api_key", ctypes.c_int16, [pointer]),
        ("mock_request_destroy_array", None, [ctypes.POINTER(pointer), ctypes.c_size_t]),
    ]:
        function = getattr(library, f"rd_kafka_{name}")
        function.restype, function.argtypes = result, arguments
    return library
