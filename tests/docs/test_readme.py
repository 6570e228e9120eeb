"""The README is short, and its commands and figures are right."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from tests.docs.pages import ROOT, readme

MAX_LINES = 150


def _commands() -> tuple[str, str]:
    samples, tests = (block.text.rstrip("\n") for block in readme().blocks if block.language == "sh")
    return samples, tests


def test_the_readme_is_short() -> None:
    assert len(readme().source.splitlines()) <= MAX_LINES


def test_the_script_that_has_to_pass_runs_the_test_command_of_the_readme() -> None:
    samples, tests = _commands()
    assert f"\n{tests}\n" in (ROOT / ".ci/run").read_text()
    assert "pytest" in tests
    assert samples.endswith("supervisor run -c etc/samples.yaml --drain")


def test_the_sample_jobs_end_as_the_readme_promises(tmp_path: Path) -> None:
    for name in ("etc", "plugins"):
        shutil.copytree(
            ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("*.db*", "*.dead.jsonl", "__pycache__")
        )
    for name in ("README.md", "pyproject.toml"):
        shutil.copy(ROOT / name, tmp_path)
    samples, _ = _commands()
    script = " && ".join(step for step in samples.split(" && ") if "supervisor " in step)
    ended = subprocess.run(
        ["bash", "-c", script.replace(".venv/bin/supervisor", f"{sys.executable} -m supervisor")],
        cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    promised = re.search(r"The report is `([^`]+)`", readme().prose)
    assert promised and f": {promised[1]}\n" in ended.stdout, ended.stdout
