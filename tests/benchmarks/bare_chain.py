"""The bare chain from an enqueue to a start: its time and the spread of it are those of the machine.

    python -m tests.benchmarks.bare_chain [jobs] [pause] [full|normal]

A client inserts a row, commits it and sends a datagram; a supervisor marks the row as claimed, commits that and writes to the
pipe of a worker; the worker takes the time. These are three processes on SQLite (WAL), and nothing else: no checks, queues,
tokens, deadlines, threads, settles or outcomes. `pause` is the longest pause between two jobs, in seconds.
Prints the milliseconds of each job, as a JSON list.
"""

from __future__ import annotations

import json
import os
import random
import signal
import socket
import sqlite3
import sys
import tempfile
import time
from collections.abc import Callable

JOBS, PAUSE, SYNC = [*sys.argv[1:4], *["200", "0.1", "full"][len(sys.argv[1:4]) :]]


def connect(path: str) -> sqlite3.Connection:
    db = sqlite3.connect(path, isolation_level=None)
    db.execute("pragma journal_mode = wal")
    db.execute(f"pragma synchronous = {SYNC}")
    return db


def supervise(path: str, notifications: socket.socket, jobs: int) -> None:
    db = connect(path)
    while notifications.recv(16):
        db.execute("begin immediate")
        claimed = db.execute("update jobs set state = 1 where state = 0 returning id").fetchall()
        db.execute("commit")
        for (id,) in claimed:
            os.write(jobs, b"%d\n" % id)


def work(jobs: int, started: int) -> None:
    while os.read(jobs, 64):
        os.write(started, b"%d" % time.time_ns())


def forked(run: Callable[[], None]) -> int:
    pid = os.fork()
    if not pid:
        try:
            run()
        finally:
            os._exit(1)
    return pid


def main(folder: str) -> list[float]:
    path = f"{folder}/jobs.db"
    with connect(path) as db:
        db.execute("create table jobs(id integer primary key, payload text not null, state int not null default 0)")
        db.execute("create index ready on jobs(id) where state = 0")
    db.close()
    notifications = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    notifications.bind(f"{folder}/notifications")
    (to_do, jobs), (stamps, started) = os.pipe(), os.pipe()
    others = [forked(lambda: supervise(path, notifications, jobs)), forked(lambda: work(to_do, started))]
    client, sender = connect(path), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    latencies, chance = [], random.Random(int(JOBS))
    try:
        for number in range(int(JOBS)):
            before = time.time_ns()
            client.execute("begin immediate")
            client.execute("insert into jobs(payload) values (?)", (json.dumps({"n": number}),))
            client.execute("commit")
            sender.sendto(b"!", f"{folder}/notifications")
            latencies.append((int(os.read(stamps, 64)) - before) / 1e6)
            time.sleep(chance.uniform(0.0, float(PAUSE)))
    finally:
        for pid in others:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
    return latencies


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary:
        print(json.dumps(main(temporary)))
