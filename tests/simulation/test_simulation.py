"""Supervisors through thousands of hours of virtual time. `SUPERVISOR_SIMULATION_SEED` replays one history to the step (with
`SUPERVISOR_SIMULATION_KIND`: sparse, dense, file, poison or calm); `SUPERVISOR_SIMULATION_HOURS` sets the hours of the sparse
kind.
"""

from __future__ import annotations

import os
import subprocess
import sys
from functools import partial
from math import ceil
from pathlib import Path

import pytest

from supervisor.engine.limits import DEFAULT_LIMITS, Limits
from tests.simulation.calm import CalmWorld
from tests.simulation.poisoned_world import PoisonedWorld
from tests.simulation.stores import InFile, InMemory
from tests.simulation.world import World

HOURS = float(os.environ.get("SUPERVISOR_SIMULATION_HOURS", "500"))
SEED = os.environ.get("SUPERVISOR_SIMULATION_SEED")
KIND = os.environ.get("SUPERVISOR_SIMULATION_KIND", "sparse")
SPARSE, DENSE, FILE = 25.0, 0.25, 4.0  # hours of one history
ROOT = Path(__file__).parents[2]


def seeds(kind: str, count: int) -> list[int]:
    return list(range(count)) if SEED is None else [int(SEED)] if kind == KIND else []


def limits(seed: int) -> Limits:
    """Limits by which, in every other history, a claim brings one job and another claim begins while one is under way."""
    return DEFAULT_LIMITS._replace(claimed_at_once=1) if seed % 2 else DEFAULT_LIMITS


@pytest.mark.parametrize("seed", seeds("sparse", ceil(HOURS / SPARSE)))
def test_a_day_of_faults(seed: int) -> None:
    World(seed, SPARSE, InMemory, limits(seed)).run()


@pytest.mark.parametrize("seed", seeds("dense", 6))
def test_a_quarter_of_an_hour_of_faults_at_the_usual_intervals(seed: int) -> None:
    World(seed, DENSE, InMemory, limits(seed)).run()


@pytest.mark.parametrize("seed", seeds("file", 2))
def test_hours_of_faults_on_a_file(seed: int, tmp_path: Path) -> None:
    World(seed, FILE, partial(InFile, path=tmp_path / "jobs.db")).run()


@pytest.mark.parametrize("seed", seeds("poison", 8))
def test_no_innocent_job_pays_for_one_that_kills_its_supervisor(seed: int) -> None:
    PoisonedWorld(seed, SPARSE, InMemory, limits(seed)).run()


@pytest.mark.parametrize("seed", seeds("calm", 6))
def test_no_worker_idles_beside_a_ready_job_though_its_supervisor_looks_only_when_notified(seed: int) -> None:
    CalmWorld(seed).run()


def test_one_seed_is_one_history() -> None:
    program = (
        "from tests.simulation.world import World; from tests.simulation.stores import InMemory;"
        "world = World(7, 0.1, InMemory); world.run(); print(world.clock.now, world.random.random(), world.checks.count)"
    )
    histories = {
        subprocess.run(
            [sys.executable, "-c", program], cwd=ROOT, env={**os.environ, "PYTHONHASHSEED": hash_seed}, check=True,
            capture_output=True, text=True,
        ).stdout
        for hash_seed in ("1", "2")
    }  # fmt: skip
    assert len(histories) == 1, histories
