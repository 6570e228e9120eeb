import socket
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from supervisor import events
from supervisor.jobs import Cause, Failure, JobState, Kind, Lease, Outcome, Policy
from supervisor.plugins.importer import forget, import_file

PLUGIN = Path(__file__).parents[3] / "plugins" / "statsd.py"


class Server:
    """A statsd server that only listens."""

    def __init__(self) -> None:
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.socket.bind(("127.0.0.1", 0))
        self.port = self.socket.getsockname()[1]

    def datagrams(self, batches: int = 1) -> list[bytes]:
        """Return the lines of so many batches, each of which ends with the number of workers. A busy kernel may deliver late."""
        self.socket.settimeout(30.0)
        got: list[bytes] = []
        while sum(b"supervisor.workers:" in each for each in got) < batches:
            got.append(self.socket.recv(65_536))
        return got

    def lines(self, batches: int = 1) -> list[str]:
        return b"\n".join(self.datagrams(batches)).decode().split("\n")


@pytest.fixture
def server() -> Iterator[Server]:
    server = Server()
    yield server
    server.socket.close()


@pytest.fixture
def plugin(server: Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    monkeypatch.setenv("STATSD_HOST", "127.0.0.1")
    monkeypatch.setenv("STATSD_PORT", str(server.port))
    plugin = import_file(PLUGIN)
    yield plugin
    if plugin._STATSD._socket is not None:
        plugin._STATSD._socket.close()
    forget(PLUGIN.parent)


def settled(*tooks: float | None, handler: str = "thumb", **more: Any) -> events.JobsSettled:
    lease = Lease(42, 7, handler, "default", "{}", None, 0, 0, 0, 0, 0, Policy())
    return events.JobsSettled([Outcome(lease, Kind.SUCCEEDED, took=took, **more) for took in tooks])


def test_a_batch_becomes_counters_timers_and_gauges(plugin: ModuleType, server: Server) -> None:
    retried = Outcome(
        settled(1).outcomes[0].lease,
        Kind.FAILED,
        failure=Failure(Cause.EXCEPTION),
        state=JobState.SCHEDULED,
        counted=True,
    )
    plugin.supervisor_events(
        [
            events.WorkerStarted(1, 101),
            events.WorkerStarted(2, 102),
            settled(0.0125, None),
            events.JobsSettled([retried]),
            events.LeasesRecovered([retried]),
            events.DeadLettersPublished("dead.letters", [1, 2]),
            events.WorkerExited(2, 102, "timeout", "killed", 42),
            events.QueueDepths({"mail": (3, 1)}),
            events.StoreBecameUnavailable("not counted"),
        ]
    )
    assert sorted(server.lines()) == [
        "supervisor.dead_letters.published.dead_letters:2|c",
        "supervisor.jobs.retried:1|c",
        "supervisor.jobs.succeeded:2|c",
        "supervisor.leases.recovered:1|c",
        "supervisor.queue.mail.fresh:3|g",
        "supervisor.queue.mail.retry:1|g",
        "supervisor.run_time.thumb:12.500|ms",
        "supervisor.workers.ended.timeout:1|c",
        "supervisor.workers:1|g",
    ]


def test_workers_are_remembered_between_batches(plugin: ModuleType, server: Server) -> None:
    plugin.supervisor_events([events.WorkerStarted(1, 101)])
    plugin.supervisor_events([events.StoreAvailableAgain(1.0)])
    assert server.lines(batches=2) == ["supervisor.workers:1|g"] * 2


def test_a_queue_that_is_left_out_has_no_jobs(plugin: ModuleType, server: Server) -> None:
    def sent(*seen: dict[str, tuple[int, int]]) -> list[str]:
        plugin.supervisor_events([events.QueueDepths(waiting) for waiting in seen])
        return sorted(line for line in server.lines() if "queue" in line)

    none = ["supervisor.queue.mail.fresh:0|g", "supervisor.queue.mail.retry:0|g"]
    assert sent({"mail": (37, 2)}) == ["supervisor.queue.mail.fresh:37|g", "supervisor.queue.mail.retry:2|g"]
    assert sent({}) == none
    assert sent({}) == []
    assert sent({"mail": (1, 0)}, {}) == none


def test_a_queue_that_a_look_at_some_queues_leaves_out_keeps_its_gauges(plugin: ModuleType, server: Server) -> None:
    plugin.supervisor_events([events.QueueDepths({"mail": (1, 0)}), events.QueueDepths({"news": (2, 0)}, more=True)])
    depths = {line for line in server.lines() if "fresh" in line}
    assert depths == {"supervisor.queue.mail.fresh:1|g", "supervisor.queue.news.fresh:2|g"}


def test_a_name_can_not_forge_a_metric(plugin: ModuleType, server: Server) -> None:
    plugin.supervisor_events([settled(0.001, handler="a.b:1|c\nevil" + "x" * 500)])
    names = [line.partition(":")[0] for line in server.lines()]
    assert names[1] == "supervisor.run_time." + ("a_b_1_c_evil" + "x" * 500)[:100]
    assert len(names) == 3


def test_datagrams_stay_below_an_ethernet_frame_and_whole(plugin: ModuleType, server: Server) -> None:
    plugin.supervisor_events([settled(0.001, handler=f"handler_{number}") for number in range(200)])
    datagrams = server.datagrams()
    assert len(datagrams) > 1
    assert max(map(len, datagrams)) <= 1400
    lines = b"\n".join(datagrams).decode().split("\n")
    assert [line for line in lines if "run_time" in line] == [
        f"supervisor.run_time.handler_{number}:1.000|ms" for number in range(200)
    ]


def test_a_sample_of_many_run_times_is_sent_with_its_rate(plugin: ModuleType, server: Server) -> None:
    plugin.supervisor_events([settled(*[0.001] * 500)])
    timers = [line for line in server.lines() if "run_time" in line]
    assert timers == ["supervisor.run_time.thumb:1.000|ms|@0.1"] * 50


def test_a_missing_listener_is_no_error(plugin: ModuleType, server: Server) -> None:
    server.socket.close()
    for _ in range(3):
        plugin.supervisor_events([settled(0.001)])


def test_a_full_socket_causes_no_delay_and_no_error(plugin: ModuleType, server: Server) -> None:
    class Full:
        def send(self, packet: bytes) -> int:
            raise BlockingIOError

        def close(self) -> None: ...

    plugin._STATSD._socket = Full()
    plugin.supervisor_events([settled(0.001)])
    with plugin._connect("127.0.0.1", server.port) as connected:
        assert connected.getblocking() is False


def test_a_name_that_does_not_resolve_is_looked_up_once_a_minute(
    plugin: ModuleType, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, lookups = [1000.0], []

    def getaddrinfo(*arguments: Any, **options: Any) -> Any:
        lookups.append(now[0])
        raise socket.gaierror("not known")

    monkeypatch.setattr(plugin.time, "monotonic", lambda: now[0])
    with monkeypatch.context() as patch:
        patch.setattr(plugin.socket, "getaddrinfo", getaddrinfo)
        plugin.supervisor_events([settled(*[0.001] * 50, handler=f"h{n}") for n in range(10)])
        assert lookups == [1000.0]
    now[0] += 61.0
    plugin.supervisor_events([settled(0.001)])
    assert "supervisor.jobs.succeeded:1|c" in server.lines()


@pytest.mark.parametrize("port", ["", "statsd", "0", "70000", "-1"])
def test_a_wrong_port_is_reported_when_the_plugin_loads(monkeypatch: pytest.MonkeyPatch, port: str) -> None:
    monkeypatch.setenv("STATSD_PORT", port)
    with pytest.raises(ValueError, match="STATSD_PORT: expected a port number"):
        import_file(PLUGIN)


def test_without_a_host_nothing_is_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("STATSD_HOST", raising=False)
    plugin = import_file(PLUGIN)
    plugin.supervisor_events([settled(0.001)])
    assert plugin._STATSD._socket is None
    forget(PLUGIN.parent)
