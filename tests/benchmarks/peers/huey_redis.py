"""Huey on Redis."""

from __future__ import annotations

from huey import RedisHuey

from tests.benchmarks.peers.base import current_deployment
from tests.benchmarks.peers.huey_code import Jobs

huey = RedisHuey("bench", url=current_deployment().url)
jobs = Jobs(huey)


def connect() -> Jobs:
    return jobs
