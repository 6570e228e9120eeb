"""The rate at which one program enqueues jobs with unique keys, one by one and in bulk, beside jobs without."""

from __future__ import annotations

import time
from collections.abc import Mapping
from functools import partial

from supervisor import Client
from supervisor.config.loading import load
from tests.benchmarks.contender import deployed
from tests.benchmarks.enqueue import BULK, EACH, MANY, ONE_BY_ONE
from tests.benchmarks.peers import ours
from tests.benchmarks.peers.catalogue import SUPERVISOR
from tests.benchmarks.run import Run

NAME = "unique"
TITLE = "jobs enqueued by one program, each with a unique key, and without; wanted: at least 0.75 one by one"


def run(run: Run) -> None:
    table = run.table(NAME, TITLE, [EACH, MANY])
    share = 50 if run.quick else 1
    names = {SUPERVISOR.title: False, f"{SUPERVISOR.title}, unique keys": True}
    run.compare(
        table, {name: partial(enqueued, ONE_BY_ONE // share, BULK // share, unique) for name, unique in names.items()}
    )


def enqueued(one_by_one: int, bulk: int, unique: bool) -> Mapping[str, float]:
    with deployed(SUPERVISOR) as contender:
        ours.write(contender.deployment)
        with Client(load(ours.config(contender.deployment)), create=True) as client:
            client.enqueue("noop", {"n": 0})  # opens the connection
            began = time.monotonic()
            for n in range(one_by_one):
                client.enqueue("noop", {"n": n}, unique=f"each {n}" if unique else None)
            each = one_by_one / (time.monotonic() - began)
            jobs = [
                {"handler": "noop", "payload": {"n": n}, **({"unique": f"bulk {n}"} if unique else {})}
                for n in range(bulk)
            ]
            began = time.monotonic()
            client.enqueue_many(jobs)
            return {EACH.name: each, MANY.name: bulk / (time.monotonic() - began)}
