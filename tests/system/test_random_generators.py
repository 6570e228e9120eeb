"""Random generators that an import has used: workers do not repeat the numbers of each other."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.system.real_workers import World, lease, play

NUMPY = """
import random, types
from supervisor import handler

# As numpy does it: one generator for all callers, which knows nothing of forks.
generator = random.Random(1)
sys.modules["numpy.random"] = types.SimpleNamespace(seed=generator.seed)
"""
GENERATORS = {"numpy": NUMPY, "random": "import random\nrandom.seed(1)\ngenerator = random\n"}


@pytest.mark.parametrize("generator", GENERATORS.values(), ids=GENERATORS.keys())
def test_workers_draw_different_numbers(tmp_path: Path, generator: str) -> None:
    async def scene(here: World) -> None:
        one, other = await here.worker(1), await here.worker(2)
        (first,), (second,) = await here.run(one, lease(1, "draw")), await here.run(other, lease(2, "draw"))
        assert first.kind == second.kind == "ok"
        assert first.result != second.result

    play(tmp_path, scene, generator + "@handler\ndef draw(job): return generator.random()\n")


def test_an_odd_numpy_does_not_keep_a_worker_from_starting(tmp_path: Path) -> None:
    async def scene(here: World) -> None:
        process = await here.worker()
        (reply,) = await here.run(process, lease(1, "noop"))
        assert reply.kind == "ok"

    play(tmp_path, scene, "sys.modules['numpy.random'] = 3\n")
