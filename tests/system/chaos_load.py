"""The load of the chaos test: its handlers, its client, and the files in which both record what they did.

The journal has a line for each start of a handler and one for each effect: `start|effect job attempt pid monotonic`. The ledger
has a line of ids for each enqueue that returned. Every line is one write, so it is in the file as a whole or not at all.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from tests.system.command import Command

TTL = 2.0
RETRIES = 3
RAISING = frozenset({"flaky", "failing", "later"})
LIMIT = 2
"""At most so many jobs of the handler `limited` run at once, though twice as many workers could run them."""

CONFIG = f"""
workers: {{count: 2, timeout: 30s, heartbeat: 100ms, heartbeat_timeout: 2s}}
lease: {{ttl: {TTL}s}}
retry: {{max_retries: {RETRIES}, backoff: {{base: 50ms, factor: 2, max: 400ms}}}}
dlq: {{sinks: [{{type: file, path: sink/dead.jsonl}}]}}
shutdown: {{grace: 2s}}
log: {{level: debug, format: json}}
handlers: {{limited: {{limit: {{running: {LIMIT}}}}}}}
"""

PLUGIN = r"""
import ctypes, os, random, signal, subprocess, sys, time
from supervisor import Reject, Retry, handler, hookimpl
from tests.system.places import place

JOURNAL = os.path.abspath("journal")


def note(event, job):
    at = time.monotonic()
    fd = os.open(JOURNAL, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(fd, f"{event} {job.id} {job.attempt} {os.getpid()} {at!r}\n".encode())
    os.close(fd)
    return {"pid": os.getpid(), "at": at}


@hookimpl(wrapper=True)
def supervisor_run(job):
    note("start", job)
    yield
    return note("effect", job)


@handler
def fast(job):
    pass


@handler
def slow(job):
    time.sleep(job.payload)


@handler
def limited(job):
    with place(job.id, os.path.dirname(JOURNAL)):
        time.sleep(job.payload)


@handler
def busy(job):
    "Uses the CPU, deep in its stack."
    until = time.monotonic() + job.payload

    def deeper(frames):
        return deeper(frames - 1) if frames else time.monotonic()

    while deeper(200) < until:
        pass


@handler
def longer_than_a_lease(job):
    time.sleep(job.payload)


@handler
def flaky(job):
    if random.Random(f"{job.id} {job.attempt}").random() < 0.5:
        raise OSError("down")


@handler
def failing(job):
    raise ValueError("never")


@handler
def rejecting(job):
    raise Reject("no good")


@handler
def later(job):
    if job.attempt == 1:
        raise Retry("not yet", after=job.payload)


CRASHES = {
    "exit": lambda: os._exit(3),
    "segv": lambda: ctypes.string_at(0),
    "abort": os.abort,
    "kill": lambda: os.kill(os.getpid(), signal.SIGKILL),
}


@handler
def crashing(job):
    if job.attempt <= job.payload["times"]:
        CRASHES[job.payload["how"]]()


@handler(timeout="400ms")
def hanging(job):
    "Hangs in C, holding the GIL, with programs of its own in its group and outside of it."
    if job.attempt <= job.payload:
        start_programs()
        lock, c = ctypes.create_string_buffer(256), ctypes.PyDLL(None)
        c.pthread_mutex_lock(lock)
        c.pthread_mutex_lock(lock)


def start_programs():
    for elsewhere in (False, True):
        subprocess.Popen(["sleep", "3600"], start_new_session=elsewhere)
    kept = "SUPERVISOR_TEST_MARK=" + os.environ["SUPERVISOR_TEST_MARK"]  # the test finds it by this, the supervisor must not
    subprocess.run(["env", "-i", kept, "setsid", "--fork", "sleep", "3600"], check=True)


@handler
def spawning(job):
    start_programs()


@handler
def helped(job):
    "Has a helper that is an orphan in a session of its own, and must outlive whatever ends in other workers."
    answer, write = os.pipe()
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            time.sleep(job.payload)
            os.write(write, b"answer")
        os._exit(0)
    os.wait()
    os.close(write)
    if os.read(answer, 10) != b"answer":
        raise ChildProcessError("the helper was killed")
    os.close(answer)


@handler
def shouting(job):
    for stream in (sys.stdout, sys.stderr):
        for _ in range(20):
            stream.write(("x" * 999 + "\n") * 50)
        stream.flush()


@handler
def growing(job):
    bytearray(60_000_000)


@handler
def bulky(job):
    return len(job.payload)
"""

CLIENT = r"""
import os, random, signal, sqlite3, sys, time
import psycopg
from supervisor import Client
from supervisor.errors import StoreUnavailable, StoreUnsure

MANY = 150  # waiting jobs; beyond that few are enqueued, so that the rest is done soon after the last fault

chance = random.Random(sys.argv[1])
stop_requested = []
signal.signal(signal.SIGTERM, lambda *_: stop_requested.append(1))
ledger = os.open("ledger", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
KINDS = {
    "fast": (50, lambda: None),
    "slow": (14, lambda: round(chance.uniform(0.03, 0.5), 3)),
    "limited": (14, lambda: round(chance.choice([*[0.8] * 14, 5.0]) * chance.uniform(0.05, 1.0), 3)),
    "busy": (6, lambda: round(chance.uniform(0.03, 0.5), 3)),
    "longer_than_a_lease": (1, lambda: round(chance.uniform(2.5, 4.0), 3)),
    "flaky": (10, lambda: None),
    "failing": (4, lambda: None),
    "rejecting": (4, lambda: None),
    "later": (4, lambda: round(chance.uniform(0.05, 0.5), 3)),
    "crashing": (5, lambda: {"how": chance.choice(["exit", "segv", "abort", "kill"]), "times": chance.choice([1, 1, 9])}),
    "hanging": (2, lambda: chance.choice([1, 1, 9])),
    "spawning": (3, lambda: None),
    "helped": (6, lambda: round(chance.uniform(0.05, 0.8), 3)),
    "shouting": (2, lambda: None),
    "growing": (3, lambda: None),
    "bulky": (2, lambda: "b" * chance.randrange(50_000, 300_000)),
}
FREQUENCIES = [frequency for frequency, _ in KINDS.values()]


def connected():
    url = sys.argv[3]
    if url.startswith("postgresql:"):
        return psycopg.connect(url, autocommit=True, connect_timeout=2, options="-c search_path=supervisor")
    return sqlite3.connect("file:disk/jobs.db?mode=ro", uri=True, timeout=1)


counts = None


def crowded():
    global counts
    try:
        if counts is None:
            counts = connected()
        return counts.execute("select coalesce(sum(n), 0) from counts where state < 3").fetchone()[0] > MANY
    except (sqlite3.OperationalError, psycopg.OperationalError):
        counts = None
        return True


def jobs_of(batch):
    size = 1 if crowded() else chance.choice([1, 1, 1, 1, 2, 40])
    many = chance.choice(["fast"] * 4 + ["limited"])
    for number in range(size):
        kind = many if size > 2 else chance.choices(list(KINDS), FREQUENCIES)[0]
        job = {"handler": kind, "payload": KINDS[kind][1](), "priority": chance.choice([0, 0, 0, 5, 100])}
        job["headers"] = {"batch": batch, "size": size, "number": number}
        if chance.random() < 0.2:
            job["max_retries"] = chance.choice([0, 1, 5])
        if chance.random() < 0.1:
            job["delay"] = round(chance.uniform(0.1, 1.5), 3)
        yield job


def load(client):
    global batch
    while not stop_requested:
        batch += 1
        jobs = list(jobs_of(f"{sys.argv[1]}/{batch}"))
        try:
            ids = client.enqueue_many(jobs) if len(jobs) > 1 else [client.enqueue(**jobs[0])]
        except (StoreUnavailable, StoreUnsure):
            continue
        os.write(ledger, (" ".join(map(str, ids)) + "\n").encode())
        time.sleep(chance.expovariate(float(sys.argv[2]) / (10 if crowded() else 1)))


batch = 0
while not stop_requested:
    try:
        with Client(sys.argv[3], timeout=5.0) as client:
            load(client)
    except StoreUnavailable:
        pass
"""


@dataclass(frozen=True)
class Attempt:
    """One run of a handler, from the journal; `end` is None if it had no effect. Times are monotonic seconds."""

    attempt: int
    pid: int
    at: float
    end: float | None = None


class Load:
    """One client at a time, which enqueues until it is ended; if it is killed, another goes on."""

    def __init__(self, command: Command, seed: str, batches_per_second: float, url: str) -> None:
        self._command, self._seed, self._rate, self._url = command, seed, batches_per_second, url
        self._clients: list[subprocess.Popen[bytes]] = []

    def start(self) -> None:
        seed = f"{self._seed}/{len(self._clients)}"
        arguments = [sys.executable, "-c", CLIENT, seed, str(self._rate), self._url]
        self._clients.append(subprocess.Popen(arguments, cwd=self._command.folder, env=self._command.env))

    def kill(self) -> None:
        self.stop()
        self.start()

    def end(self) -> None:
        """Raises AssertionError if the client has failed."""
        self._clients[-1].send_signal(signal.SIGTERM)
        code = self._clients[-1].wait(60)
        assert code in (0, -signal.SIGTERM), f"the client ended with {code}"

    def stop(self) -> None:
        """Kill every client."""
        for client in self._clients:
            client.kill()
            client.wait()


def accepted(folder: Path) -> set[int]:
    """Return the ids of every enqueue that returned."""
    ledger = folder / "ledger"
    return {int(id) for id in ledger.read_text().split()} if ledger.exists() else set()


def attempts_of(folder: Path) -> dict[int, list[Attempt]]:
    """Return the runs of each job's handler, in the order of their starts."""
    attempts: dict[int, list[Attempt]] = {}
    journal = folder / "journal"
    for line in journal.read_text().splitlines() if journal.exists() else ():
        event, id, attempt, pid, at = line.split()
        of_job = attempts.setdefault(int(id), [])
        if event == "start":
            of_job.append(Attempt(int(attempt), int(pid), float(at)))
        else:
            index = max(index for index, started in enumerate(of_job) if started.pid == int(pid))
            of_job[index] = Attempt(int(attempt), int(pid), of_job[index].at, float(at))
    return attempts


def dead_letters_in(folder: Path) -> tuple[set[int], int]:
    """Return the ids of the whole lines in the dead-letter file, and the number of lines that are not whole."""
    file = folder / "sink" / "dead.jsonl"
    ids, torn = set(), 0
    for line in file.read_text().split("\n")[:-1] if file.exists() else ():
        try:
            ids.add(json.loads(line, parse_constant=_refuse)["id"])
        except ValueError:
            torn += 1
    return ids, torn


def _refuse(text: str) -> None:
    raise ValueError(f"{text} is not JSON")
