"""Huey on SQLite."""

from __future__ import annotations

from pathlib import Path

from huey import SqliteHuey

from tests.benchmarks.peers.base import current_deployment
from tests.benchmarks.peers.huey_code import Jobs

huey = SqliteHuey("bench", filename=str(Path(current_deployment().folder, "huey.db")))
jobs = Jobs(huey)


def connect() -> Jobs:
    return jobs
