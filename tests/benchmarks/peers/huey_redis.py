"""Huey on Redis."""

from __future__ import annotations

from huey import RedisHuey

from tests.benchmarks.peers.base import here
from tests.benchmarks.peers.huey_code import Jobs

huey = RedisHuey("bench", url=here().url)
jobs = Jobs(huey)


def connect() -> Jobs:
    return jobs
