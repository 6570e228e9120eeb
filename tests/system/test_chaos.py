"""Supervisors on one store, hit by kills, stops, locks, outages and cut cables: every promise holds.

SUPERVISOR_CHAOS_SECONDS is how long faults are injected (20, in each environment). The faults and the load follow
SUPERVISOR_CHAOS_SEED; without it every run has another seed, which is printed, and is first in the message of a failure.
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
from tests.system.chaos import Chaos, faults_of
from tests.system.chaos_checks import problems
from tests.system.chaos_environments import SKEW, Environment, PostgresEnvironment, SqliteEnvironment
from tests.system.chaos_faults import plan
from tests.system.command import Command
from tests.system.disks import small_disk
from tests.system.machines import Network, why_not
from tests.system.test_sharing import intact

SECONDS = float(os.environ.get("SUPERVISOR_CHAOS_SECONDS", "20"))
TIMEOUT = 60.0 + SECONDS
MAX_SHOWN = 5  # problems, each with the history of its job


def test_the_planned_faults_are_a_function_of_the_seed(tmp_path: Path) -> None:
    faults = faults_of(SqliteEnvironment(tmp_path))
    assert plan("7", 600, faults) == plan("7", 600, faults) != plan("8", 600, faults)
    without = plan("7", 600, faults, frozenset({"fill disk"}))
    assert [fault for fault in plan("7", 600, faults) if fault.kind != "fill disk"] == without


@contextmanager
def disks(folder: Path, *names: str) -> Iterator[frozenset[str]]:
    """Mount small disks in `folder`; yield the kinds of faults that can't be injected here."""
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


def run_chaos(command: Command, environment: Environment, without: frozenset[str], name: str) -> None:
    seed = os.environ.get("SUPERVISOR_CHAOS_SEED") or str(secrets.randbelow(10**9))
    replay = (
        f"SUPERVISOR_CHAOS_SEED={seed} SUPERVISOR_CHAOS_SECONDS={SECONDS:g} pytest tests/system/test_chaos.py -k {name}"
    )
    print(f"\nchaos: {replay}")
    chaos = Chaos(command, environment, seed, without)
    shown = []
    try:
        chaos.inject_faults(SECONDS)
        chaos.finish(TIMEOUT)
    except AssertionError as error:
        shown.append(str(error))
    finally:
        chaos.stop()
    evidence = chaos.evidence()
    print(f"chaos: {chaos.summary(evidence)}")
    shown += chaos.watcher.problems[:MAX_SHOWN]
    found = list(problems(evidence))
    shown += [f"{problem}\n{evidence.history(id) if id else ''}" for id, problem in found[:MAX_SHOWN]]
    assert not shown, f"{replay}: {len(found)} problems afterwards\n" + "\n".join(shown)


@pytest.mark.timeout(180 + 4 * SECONDS)
def test_every_promise_holds_whatever_is_killed_stopped_locked_or_full(
    command: Command, capsys: pytest.CaptureFixture[str]
) -> None:
    with capsys.disabled(), disks(command.folder, "disk", "sink") as without:
        run_chaos(command, SqliteEnvironment(command.folder), without, "locked")
        assert intact(command.folder / "disk" / "jobs.db")


@pytest.mark.timeout(180 + 4 * SECONDS)
def test_every_promise_holds_whatever_is_killed_unavailable_cut_off_or_of_another_time(
    command: Command, capsys: pytest.CaptureFixture[str]
) -> None:
    if reason := why_not():
        assert not os.environ.get("CI"), reason
        pytest.skip(reason)
    with (
        capsys.disabled(),
        disks(command.folder, "sink") as without,
        Network() as network,
        postgres(network) as server,
        another_time(SKEW) as skewed,
    ):
        environment = PostgresEnvironment(command.folder, network, server, skewed)
        run_chaos(command, environment, without, "cut_off")


@contextmanager
def postgres(network: Network) -> Iterator[Server]:
    server = Server({}, under=network.under, address=network.address)
    try:
        yield server
    finally:
        server.remove()


@contextmanager
def another_time(skew: float) -> Iterator[list[str]]:
    """Yield a command under which the wall clock of a program is so many seconds ahead, but not its monotonic clock."""
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
