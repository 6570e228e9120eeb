"""Produces what the Python client refuses to produce, by calls of its library."""

from __future__ import annotations

import ctypes

from tests.kafka.mock_cluster import PRODUCER, _library

_END, _TOPIC, _VALUE, _FLAGS, _HEADERS = 0, 1, 4, 7, 10
"""Tags of the arguments: rd_kafka_vtype_t."""
_COPY = 2


def produce_with_header(bootstrap: str, topic: str, value: bytes, name: bytes) -> None:
    """Produce a record that has one header of this name."""
    library, pointer = _library(), ctypes.c_void_p
    library.rd_kafka_headers_new.restype = pointer
    library.rd_kafka_flush.argtypes = [pointer, ctypes.c_int]
    library.rd_kafka_header_add.argtypes = [
        pointer, ctypes.c_char_p, ctypes.c_ssize_t, ctypes.c_char_p, ctypes.c_ssize_t,
    ]  # fmt: skip
    settings, problem = library.rd_kafka_conf_new(), ctypes.create_string_buffer(512)
    library.rd_kafka_conf_set(settings, b"bootstrap.servers", bootstrap.encode(), problem, len(problem))
    client = library.rd_kafka_new(PRODUCER, settings, problem, len(problem))
    assert client, problem.value.decode()
    headers = pointer(library.rd_kafka_headers_new(ctypes.c_size_t(1)))
    library.rd_kafka_header_add(headers, name, len(name), b"x", 1)
    error = library.rd_kafka_producev(
        pointer(client), ctypes.c_int(_TOPIC), ctypes.c_char_p(topic.encode()),
        ctypes.c_int(_VALUE), ctypes.c_char_p(value), ctypes.c_size_t(len(value)), ctypes.c_int(_FLAGS), ctypes.c_int(_COPY),
        ctypes.c_int(_HEADERS), headers, ctypes.c_int(_END),
    )  # fmt: skip
    assert (error, library.rd_kafka_flush(client, 10_000)) == (0, 0)
    library.rd_kafka_destroy(client)
