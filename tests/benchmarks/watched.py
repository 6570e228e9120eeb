"""What it costs to be watched: the drain with HTTP scraped every second and one open dashboard, beside the same without."""

from __future__ import annotations

import contextlib
import http.client
import socket
import threading
from collections.abc import Iterator, Mapping
from functools import partial

from tests.benchmarks.contender import deployed
from tests.benchmarks.drain import RATE, enqueued, rate
from tests.benchmarks.peers.base import Settings
from tests.benchmarks.peers.catalogue import SUPERVISOR
from tests.benchmarks.run import Run
from tests.benchmarks.wait import wait_until

NAME = "watched"
TITLE = "no-op jobs drained by 2 worker processes; wanted: at most 2 % less while it is watched"
JOBS = 400_000
WATCHED = "scraped every second, one open dashboard"
CHUNK = 65_536


def run(run: Run) -> None:
    table = run.table(NAME, TITLE, [RATE])
    jobs = JOBS // 200 if run.quick else JOBS
    run.compare(table, {SUPERVISOR.title: partial(unwatched, jobs), WATCHED: partial(watched, jobs)})


def unwatched(jobs: int) -> Mapping[str, float]:
    with deployed(SUPERVISOR) as contender, enqueued(contender, jobs) as stamps, contender.workers():
        return {RATE.name: rate(contender, jobs, stamps)}


def watched(jobs: int) -> Mapping[str, float]:
    port = _free_port()
    settings = Settings(http=port)
    with deployed(SUPERVISOR, settings) as contender, enqueued(contender, jobs) as stamps, contender.workers():
        wait_until(partial(_listens, port), "the address of HTTP")
        with _scraped(port), _dashboard(port):
            return {RATE.name: rate(contender, jobs, stamps)}


@contextlib.contextmanager
def _scraped(port: int) -> Iterator[None]:
    ended = threading.Event()

    def scrape() -> None:
        while not ended.wait(1.0):
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10.0)
            connection.request("GET", "/metrics")
            connection.getresponse().read()
            connection.close()

    thread = threading.Thread(target=scrape)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


@contextlib.contextmanager
def _dashboard(port: int) -> Iterator[None]:
    """Read the stream of the first page, as a browser does. Raises RuntimeError if nothing came."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10.0)
    connection.request("GET", "/events?page=/")
    stream, received = connection.getresponse(), 0

    def read() -> None:
        nonlocal received
        with contextlib.suppress(OSError, ValueError, http.client.HTTPException):
            while chunk := stream.read1(CHUNK):
                received += len(chunk)

    thread = threading.Thread(target=read)
    thread.start()
    try:
        yield
    finally:
        if connection.sock is not None:
            connection.sock.shutdown(socket.SHUT_RDWR)
        thread.join()
        connection.close()
    if not received:
        raise RuntimeError(f"the dashboard got nothing: {stream.status}")


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
