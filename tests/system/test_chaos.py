"""Two supervisors on one SQLite file in a storm of kills, stops, locks and a full disk: every promise holds.

SUPERVISOR_CHAOS_SECONDS is how long the hand is at work (30), SUPERVISOR_CHAOS_SEED what it and the load follow; without
it every run has another, which is printed, and stands first in a failure.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from tests.system.chaos import DISKS, Chaos
from tests.system.chaos_checks import problems
from tests.system.chaos_hand import plan
from tests.system.command import Command
from tests.system.test_sharing import intact, small_disk

SECONDS = float(os.environ.get("SUPERVISOR_CHAOS_SECONDS", "30"))
PATIENCE = 60.0 + SECONDS
TOLD = 5  # problems, each with the history of its job


def test_what_the_hand_does_and_when_is_a_function_of_the_seed() -> None:
    assert plan("7", 600) == plan("7", 600) != plan("8", 600)
    assert [act for act in plan("7", 600) if act.what != "fill disk"] == plan("7", 600, frozenset({"fill disk"}))


@contextmanager
def disks(folder: Path) -> Iterator[frozenset[str]]:
    """Small disks in `folder`; gives the acts that can't be done here."""
    if os.geteuid() == 0:
        with ExitStack() as mounted:
            for disk in DISKS:
                mounted.enter_context(small_disk(folder / disk, f"{48 + int(SECONDS)}m"))
            yield frozenset()
    else:
        assert not os.environ.get("CI"), "a full disk needs root, which CI has"
        print("chaos: no full disk, since mounting one needs root")
        for disk in DISKS:
            (folder / disk).mkdir()
        yield frozenset(f"fill {disk}" for disk in DISKS)


@pytest.mark.timeout(180 + 4 * SECONDS)
def test_whatever_is_killed_stopped_locked_or_full_every_promise_holds(
    command: Command, capsys: pytest.CaptureFixture[str]
) -> None:
    seed = os.environ.get("SUPERVISOR_CHAOS_SEED") or str(secrets.randbelow(10**9))
    replay = f"SUPERVISOR_CHAOS_SEED={seed} SUPERVISOR_CHAOS_SECONDS={SECONDS:g}"
    with capsys.disabled(), disks(command.folder) as without:
        print(f"\nchaos: {replay}")
        chaos = Chaos(command, seed, without)
        told = []
        try:
            chaos.rage(SECONDS)
            chaos.calm_down(PATIENCE)
        except AssertionError as error:
            told.append(str(error))
        finally:
            chaos.stop()
        evidence = chaos.evidence()
        print(f"chaos: {chaos.summary(evidence)}")
        told += chaos.watch.problems[:TOLD]
        found = list(problems(evidence))
        told += [f"{problem}\n{evidence.history(id) if id else ''}" for id, problem in found[:TOLD]]
        assert not told, f"{replay}: {len(found)} problems afterwards\n" + "\n".join(told)
        assert intact(command.folder / "disk" / "jobs.db")
