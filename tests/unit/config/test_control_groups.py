"""The number of workers by default: that of the CPUs which this process may keep busy."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from supervisor.config import settings
from supervisor.config.control_groups import UsableCpus, usable_cpus
from supervisor.config.settings import Settings, WorkerSettings

DOCKER_V1 = "4:memory:/docker/1234\n3:cpuset:/docker/1234\n2:cpu,cpuacct:/docker/1234\n0::/\n"


@pytest.fixture(autouse=True)
def eight_cpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)))


def write(root: Path, files: dict[str, str]) -> str:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return str(root)


@pytest.mark.parametrize(
    ("groups", "files", "count", "setting"),
    [
        ("0::/\n", {"cpu.max": "200000 100000\n"}, 2, "cpu.max"),
        ("0::/\n", {"cpu.max": "150000 100000\n"}, 2, "cpu.max"),
        ("0::/\n", {"cpu.max": "20000 100000\n"}, 1, "cpu.max"),
        ("0::/jobs.slice/jobs.service\n", {"jobs.slice/jobs.service/cpu.max": "300000 100000\n"}, 3, None),
        (
            "0::/jobs.slice/jobs.service\n",
            {"jobs.slice/jobs.service/cpu.max": "max 100000\n", "jobs.slice/cpu.max": "400000 100000\n"},
            4,
            "jobs.slice/cpu.max",
        ),
        (
            "3:cpu,cpuacct:/jobs\n0::/\n",
            {"cpu/jobs/cpu.cfs_quota_us": "50000\n", "cpu/jobs/cpu.cfs_period_us": "10000\n"},
            5,
            "cpu/jobs/cpu.cfs_quota_us",
        ),
        # The paths are those of the machine, where a container sees only its own group.
        (DOCKER_V1, {"cpu/cpu.cfs_quota_us": "200000\n", "cpu/cpu.cfs_period_us": "100000\n"}, 2, "cpu/cpu.cfs_quota_us"),
        ("0::/docker/1234\n", {"cpu.max": "200000 100000\n"}, 2, "cpu.max"),
    ],
)  # fmt: skip
def test_a_quota_below_the_number_of_cpus_is_the_number_of_workers(
    tmp_path: Path, groups: str, files: dict[str, str], count: int, setting: str | None
) -> None:
    under = {f"sys/fs/cgroup/{name}": text for name, text in files.items()}
    found = usable_cpus(write(tmp_path, {"proc/self/cgroup": groups, **under}))
    assert found.number == count
    assert f"{tmp_path}/sys/fs/cgroup/{setting or next(iter(files))}; this process may use 8 CPUs" in found.reason


@pytest.mark.parametrize(
    ("groups", "files"),
    [
        ("", {}),
        ("0::/\n", {}),
        ("0::/\n", {"cpu.max": "max 100000\n"}),
        ("0::/\n", {"cpu.max": "1600000 100000\n"}),
        ("0::/\n", {"cpu.max": "what\n"}),
        ("2:cpu:/\n", {"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}),
        ("2:cpuset,cpuacct:/\n", {"cpu/cpu.cfs_quota_us": "100000\n", "cpu/cpu.cfs_period_us": "100000\n"}),
    ],
)
def test_without_a_lower_quota_it_is_the_number_of_cpus(tmp_path: Path, groups: str, files: dict[str, str]) -> None:
    under = {f"sys/fs/cgroup/{name}": text for name, text in files.items()}
    root = write(tmp_path, {"proc/self/cgroup": groups, **under})
    assert usable_cpus(root) == (8, "the CPUs that this process may use")
    assert usable_cpus(str(tmp_path / "nothing")).number == 8


def test_people_are_shown_where_the_number_of_workers_comes_from(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settings, "usable_cpus", lambda: UsableCpus(2, "the CPU quota of 1.5"))
    assert Settings().workers.count_shown == "workers.count: 2 by default: the CPU quota of 1.5"
    assert WorkerSettings(count=2).count_shown == "workers.count: 2"


def test_the_numbers_of_all_groups_of_workers_are_shown() -> None:
    groups = {"mail": {"queues": ["m"], "count": {"min": 1, "max": 4}}, "img": {"queues": ["i"], "count": 3}}
    shown = "workers.groups: mail 1 to 4, img 3"
    assert WorkerSettings(count=2, groups=groups).count_shown == f"workers.count: 2; {shown}"
    assert WorkerSettings(count={"min": 2, "max": 5}).count_shown == "workers.count: 2 to 5"
    assert WorkerSettings(queues=["m", "i"], groups=groups).count_shown == shown
    assert WorkerSettings(count=2, groups=groups).most == 2 + 4 + 3
