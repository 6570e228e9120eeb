"""The command of the benchmarks, with little work and without peers."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.benchmarks.contender import ROOT
from tests.kafka.broker import need_packages


@pytest.mark.timeout(60)
def test_the_command_measures_and_leaves_nothing_behind(tmp_path: Path) -> None:
    data, markdown = tmp_path / "all.json", tmp_path / "all.md"
    arguments = ["drain", "--quick", "--peers", "none", "--json", str(data), "--markdown", str(markdown)]
    done = subprocess.run(
        [sys.executable, "-m", "tests.benchmarks", *arguments],
        cwd=ROOT,
        env={"PATH": "/usr/bin:/bin", "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    (table,) = json.loads(data.read_text())["tables"]
    assert {figure["contender"] for figure in table["figures"]} == {"supervisor", "bare hot path (bare_hot_path.py)"}
    assert all(figure["median"] > 0 for figure in table["figures"])
    assert "| supervisor | drain |" in markdown.read_text()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["all.json", "all.md"]


@pytest.mark.timeout(240)
def test_the_command_measures_on_postgresql(tmp_path: Path) -> None:
    """TMPDIR is not the folder of the test, which the user of the server may not enter."""
    data = tmp_path / "all.json"
    arguments = ["postgres", "--quick", "--peers", "none", "--json", str(data)]
    done = subprocess.run(
        [sys.executable, "-m", "tests.benchmarks", *arguments], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (table,) = json.loads(data.read_text())["tables"]
    assert {figure["contender"] for figure in table["figures"]} == {
        "supervisor on PostgreSQL",
        "2 x supervisor on PostgreSQL, 1 worker each",
    }
    assert all(figure["median"] > 0 for figure in table["figures"]) and not table["left_out"]


@pytest.mark.timeout(120)
def test_the_command_measures_on_kafka(tmp_path: Path) -> None:
    need_packages()
    data = tmp_path / "all.json"
    arguments = ["kafka", "--quick", "--peers", "none", "--json", str(data)]
    done = subprocess.run(
        [sys.executable, "-m", "tests.benchmarks", *arguments], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    tables = json.loads(data.read_text())["tables"]
    assert [table["row"] for table in tables] == ["kafka, processes", "kafka, async", "kafka, no-op"]
    for table in tables:
        assert len(table["figures"]) >= 2 and not table["left_out"]
        assert all(figure["median"] > 0 for figure in table["figures"])
