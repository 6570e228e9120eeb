"""The bare hot path of a drain: how fast it would be without any feature.

    python -m tests.benchmarks.bare_hot_path [jobs] [workers] [claim] [frame] [FULL|NORMAL]

An asyncio parent, one store thread on SQLite (WAL), forked workers on socket pairs, orjson frames of many jobs,
one permit byte per job, claims by UPDATE ... RETURNING over a partial index, settles by one UPDATE ... FROM
json_each per batch with the fencing token checked. No retries, heartbeats, deadlines, hooks or recovery. Needs orjson.
Prints jobs per second from the first claim to the last settle, with as many no-op jobs already waiting.
"""

import asyncio
import os
import signal
import socket
import sqlite3
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor

import orjson

JOBS, WORKERS, CLAIM, FRAME = (int(v) for v in (sys.argv[1:5] + ["200000", "2", "1000", "64"][len(sys.argv[1:5]) :]))
SYNC = sys.argv[5] if len(sys.argv) > 5 else "FULL"
SCHEMA = """
pragma journal_mode = wal;
create table jobs(id integer primary key, handler text not null, queue text not null default 'default', payload text not null,
  priority int not null default 0, state int not null default 0, retries int not null default 0, token int not null default 0,
  lease_until int, created_at int not null, finished_at int);
create index ready on jobs(queue, retries > 0, priority desc, id) where state = 0;
create index in_flight on jobs(lease_until) where state = 1;
"""
CLAIM_SQL = """update jobs set state = 1, token = token + 1, lease_until = ? where id in (select id from jobs where state = 0 and
  queue = 'default' and (retries > 0) = 0 order by priority desc, id limit ?) returning id, handler, payload, token"""
SETTLE_SQL = """update jobs set state = 2, finished_at = ?, lease_until = null from (select value ->> 0 as id, value ->> 1 as token
  from json_each(?)) as done where jobs.id = done.id and jobs.token = done.token and jobs.state = 1"""


def work(jobs: socket.socket, permits: socket.socket) -> None:
    buffer, handlers = bytearray(), {"noop": lambda payload: None}
    while data := jobs.recv(1 << 18):
        buffer += data
        while len(buffer) >= 4 and len(buffer) >= 4 + (size := int.from_bytes(buffer[:4], "little")):
            frame, batch = orjson.loads(bytes(buffer[4 : 4 + size]))
            del buffer[: 4 + size]
            for id_, handler, payload, _token in batch:
                if permits.recv(1, socket.MSG_DONTWAIT)[0] != frame:
                    raise SystemExit("a permit is missing, although frames are never reclaimed here")
                reply = orjson.dumps([id_, handlers[handler](payload)])
                jobs.sendall(len(reply).to_bytes(4, "little") + reply)
    os._exit(0)


class Worker(asyncio.Protocol):
    def __init__(self, engine: "Engine", permits: socket.socket) -> None:
        self.engine, self.permits, self.buffer, self.in_flight, self.frame = engine, permits, bytearray(), 0, 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    def send(self, batch: list) -> None:
        self.frame = (self.frame + 1) & 255
        self.permits.send(bytes((self.frame,)) * len(batch))
        body = orjson.dumps([self.frame, [(j[0], j[1], orjson.Fragment(j[2]), j[3]) for j in batch]])
        self.transport.write(len(body).to_bytes(4, "little") + body)
        self.in_flight += len(batch)

    def data_received(self, data: bytes) -> None:
        buffer, at, outcomes = self.buffer, 0, self.engine.outcomes
        buffer += data
        before = len(outcomes)
        while len(buffer) - at >= 4 and len(buffer) - at - 4 >= (size := int.from_bytes(buffer[at : at + 4], "little")):
            outcomes.append(orjson.loads(buffer[at + 4 : at + 4 + size])[0])
            at += 4 + size
        del buffer[:at]
        self.in_flight -= len(outcomes) - before
        self.engine.pump()


class Engine:
    def __init__(self, path: str) -> None:
        self.path, self.outcomes, self.ready, self.workers, self.tokens = path, [], [], [], {}
        self.storing = self.drained = False
        self.settled = 0
        self.loop, self.thread = asyncio.get_running_loop(), ThreadPoolExecutor(1)
        self.finished = self.loop.create_future()

    def open(self) -> None:
        self.db = sqlite3.connect(self.path, isolation_level=None, check_same_thread=False)
        self.db.execute(f"pragma synchronous = {SYNC}")

    def store(self, outcomes: list, want: int) -> list:
        now = int(time.time() * 1000)
        self.db.execute("begin immediate")
        if outcomes:
            self.db.execute(SETTLE_SQL, (now, orjson.dumps([(i, self.tokens.pop(i)) for i in outcomes]).decode()))
        claimed = self.db.execute(CLAIM_SQL, (now + 30_000, want)).fetchall() if want else []
        self.db.execute("commit")
        return claimed

    def pump(self) -> None:
        for worker in self.workers:
            while worker.in_flight <= FRAME and self.ready:
                worker.send(self.ready[:FRAME])
                del self.ready[:FRAME]
        want = 0 if self.drained or len(self.ready) >= CLAIM else CLAIM
        if not self.storing and (self.outcomes or want):
            self.storing, outcomes, self.outcomes = True, self.outcomes, []
            stored = self.loop.run_in_executor(self.thread, self.store, outcomes, want)
            stored.add_done_callback(lambda f: self.stored(f.result(), len(outcomes), want))

    def stored(self, claimed: list, settled: int, want: int) -> None:
        self.storing, self.drained = False, self.drained or (want > 0 and not claimed)
        self.settled += settled
        self.tokens.update((j[0], j[3]) for j in claimed)
        self.ready += claimed
        if self.settled == JOBS:
            self.finished.set_result(None)
        else:
            self.pump()


async def main(path: str) -> None:
    engine, pids, channels = Engine(path), [], []
    for _ in range(WORKERS):
        ours, theirs = socket.socketpair()
        put, take = socket.socketpair()
        if (pid := os.fork()) == 0:
            ours.close()
            for channel, _permits in channels:
                channel.close()
            work(theirs, take)
        theirs.close()
        pids.append(pid)
        channels.append((ours, put))
    await engine.loop.run_in_executor(engine.thread, engine.open)
    for ours, put in channels:
        ours.setblocking(False)
        _, worker = await engine.loop.connect_accepted_socket(lambda put=put: Worker(engine, put), ours)
        engine.workers.append(worker)
    start, cpu = time.monotonic(), time.process_time()
    engine.pump()
    await engine.finished
    took, spent = time.monotonic() - start, time.process_time() - cpu
    print(
        f"{JOBS / took:,.0f} jobs/s; {spent / JOBS * 1e6:.1f} us of parent CPU a job ({WORKERS} workers, claim {CLAIM}, frame {FRAME}, {SYNC})"
    )
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        db = sqlite3.connect(folder + "/jobs.db")
        db.executescript(SCHEMA)
        db.execute(
            """with recursive n(i) as (select 1 union all select i + 1 from n where i < ?)
               insert into jobs(handler, payload, created_at) select 'noop', '{"n":' || i || '}', 0 from n""",
            (JOBS,),
        )
        db.commit()
        db.close()
        asyncio.run(main(folder + "/jobs.db"))
