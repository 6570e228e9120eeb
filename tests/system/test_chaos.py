"""Supervisors on one store in a storm of kills, stops, locks, outages and cut cables: every promise holds.

SUPERVISOR_CHAOS_SECONDS is how long the hand is at work (20, on each ground), SUPERVISOR_CHAOS_SEED what it and the load follow;
without it every run has another, which is printed, and stands first in a failure.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.stores.postgres_server import Server
from tests.system.chaos import Chaos, tricks_of
from tests.system.chaos_checks import problems
from tests.system.chaos_faults import plan
from tests.system.chaos_grounds import SKEW, Files, Ground, Machines
from tests.system.command import Command
from tests.system.machines import Network, why_not
from tests.system.test_sharing import intact, small_disk

SECONDS = float(os.environ.get("SUPERVISOR_CHAOS_SECONDS", "20"))
TIMEOUT = 60.0 + SECONDS
TOLD = 5  # problems, each with the history of its job


def test_what_the_hand_does_and_when_is_a_function_of_the_seed(tmp_path: Path) -> None:
    tricks = tricks_of(Files(tmp_path))
    assert plan("7", 600, tricks) == plan("7", 600, tricks) != plan("8", 600, tricks)
    without = plan("7", 600, tricks, frozenset({"fill disk"}))
    assert [act for act in plan("7", 600, tricks) if act.what != "fill disk"] == without


@contextmanager
def disks(folder: Path, *names: str) -> Iterator[frozenset[str]]:
    """Small disks in `folder`; gives the acts that can't be done here."""
    if os.geteuid() == 0:
        with ExitStack() as mounted:
            for disk in names:
                mounted.enter_context(small_disk(folder / disk, f"{48 + int(SECONDS)}m"))
            yield frozenset()
    else:
        assert not os.environ.get("CI"), "a full disk needs root, which CI has"
        print("chaos: no full disk, since mounting one needs root")
        for disk in names:
            (folder / disk).mkdir()
        yield frozenset(f"fill {disk}" for disk in names)


def rage(command: Command, ground: Ground, without: frozenset[str], name: str) -> None:
    seed = os.environ.get("SUPERVISOR_CHAOS_SEED") or str(secrets.randbelow(10**9))
    replay = (
        f"SUPERVISOR_CHAOS_SEED={seed} SUPERVISOR_CHAOS_SECONDS={SECONDS:g} pytest tests/system/test_chaos.py -k {name}"
    )
    print(f"\nchaos: {replay}")
    chaos = Chaos(command, ground, seed, without)
    told = []
    try:
        chaos.rage(SECONDS)
        chaos.calm_down(TIMEOUT)
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


@pytest.mark.timeout(180 + 4 * SECONDS)
def test_whatever_is_killed_stopped_locked_or_full_every_promise_holds(
    command: Command, capsys: pytest.CaptureFixture[str]
) -> None:
    with capsys.disabled(), disks(command.folder, "disk", "letters") as without:
        rage(command, Files(command.folder), without, "locked")
        assert intact(command.folder / "disk" / "jobs.db")


@pytest.mark.timeout(180 + 4 * SECONDS)
def test_whatever_is_killed_away_cut_off_or_of_another_time_every_promise_holds(
    command: Command, capsys: pytest.CaptureFixture[str]
) -> None:
    if reason := why_not():
        assert not os.environ.get("CI"), reason
        pytest.skip(reason)
    with (
        capsys.disabled(),
        disks(command.folder, "letters") as without,
        Network() as network,
        postgres(network) as server,
        another_time(SKEW) as skewed,
    ):
        rage(command, Machines(command.folder, network, server, skewed), without, "cut_off")


@contextmanager
def postgres(network: Network) -> Iterator[Server]:
    server = Server({}, under=network.under, address=network.address)
    try:
        yield server
    finally:
        server.remove()


@contextmanager
def another_time(skew: float) -> Iterator[list[str]]:
    """The command under which a program's clock is so many seconds ahead; its monotonic clock is everybody's."""
    spec = find_spec("libfaketime")
    assert spec is not None and spec.origin is not None, "not installed: libfaketime (pip install -e '.[test]')"
    library = Path(spec.origin).parent / "vendor" / "libfaketime" / "src" / "libfaketime.so.1"
    before = set(Path("/dev/shm").iterdir())
    try:
        yield ["env", f"LD_PRELOAD={library}", f"FAKETIME=+{skew:g}", "DONT_FAKE_MONOTONIC=1"]
    finally:
        for left in set(Path("/dev/shm").iterdir()) - before:
            if "faketime" in left.name:
                left.unlink(missing_ok=True)
