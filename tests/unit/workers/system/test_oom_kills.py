"""Whom the kernel has killed for memory is counted where we live, so that no neighbour's misfortune is taken for ours."""

from __future__ import annotations

from pathlib import Path

import pytest

from supervisor.workers.system import linux


@pytest.mark.parametrize(
    ("groups", "counter"),
    [
        ("0::/jobs.service\n", "sys/fs/cgroup/jobs.service/memory.events"),
        ("0::/\n", "sys/fs/cgroup/memory.events"),
        ("4:memory:/jobs\n3:cpuset:/\n0::/\n", "sys/fs/cgroup/memory/jobs/memory.oom_control"),
    ],
)
def test_kills_of_the_own_control_group_count_before_those_of_the_machine(
    tmp_path: Path, groups: str, counter: str
) -> None:
    write(tmp_path / "proc/self/cgroup", groups)
    write(tmp_path / "proc/vmstat", "oom_kill 7\n")
    assert linux.oom_kills(str(tmp_path)) == 7
    write(tmp_path / counter, "oom 9\noom_kill 2\noom_group_kill 8\n")
    assert linux.oom_kills(str(tmp_path)) == 2


def test_where_nothing_is_told_nothing_is_known(tmp_path: Path) -> None:
    assert linux.oom_kills(str(tmp_path)) is None


@pytest.mark.parametrize(
    ("groups", "group"),
    [
        ("0::/\n", "sys/fs/cgroup"),
        ("0::/jobs.slice/jobs.service\n", "sys/fs/cgroup/jobs.slice/jobs.service"),
        ("0::/jobs.slice/jobs.service\n", "sys/fs/cgroup/jobs.slice"),
    ],
)
def test_a_group_that_the_kernel_kills_as_a_whole_is_found(tmp_path: Path, groups: str, group: str) -> None:
    write(tmp_path / "proc/self/cgroup", groups)
    assert linux.oom_group(str(tmp_path)) is None
    write(setting := tmp_path / group / "memory.oom.group", "0\n")
    assert linux.oom_group(str(tmp_path)) is None
    write(setting, "1\n")
    assert linux.oom_group(str(tmp_path)) == str(setting)


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
