"""The plugin of pytest, as an installed package brings it."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.system.command import wait_for

pytest_plugins = ["pytester"]

ROOT = Path(__file__).parents[3]
SLOW = ("schemathesis", "hypothesispytest", "anyio")
"""Plugins of pytest that are slow to import and of no use here."""


@pytest.fixture
def installed(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    """A folder with tests, for an interpreter that has the entry points of pyproject.toml."""
    groups = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]
    lines = [
        f"[{group}]\n" + "\n".join(f"{name} = {value}" for name, value in each.items())
        for group, each in groups.items()
    ]
    metadata = pytester.mkdir("installed") / "kit-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: kit\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text("\n".join(lines))
    monkeypatch.setenv("PYTHONPATH", f"{metadata.parent}{os.pathsep}{ROOT}")
    monkeypatch.delenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", raising=False)
    monkeypatch.setenv("PYTEST_ADDOPTS", " ".join(f"-p no:{name}" for name in SLOW))
    return pytester


def test_a_run_that_does_not_use_the_fixture_imports_nothing(installed: pytest.Pytester) -> None:
    installed.makepyfile("""
        import sys

        def test_modules():
            assert sorted(name for name in sys.modules if name.startswith("supervisor")) == [
                "supervisor", "supervisor.testing", "supervisor.testing.pytest_plugin",
            ]
            assert not {"pydantic", "orjson", "yaml", "click", "psutil"} & sys.modules.keys()
    """)
    installed.runpytest_subprocess("-p", "no:xdist").assert_outcomes(passed=1)


def test_each_test_has_a_store_of_its_own_and_settings_of_pytest_name_plugins_and_config(
    installed: pytest.Pytester,
) -> None:
    installed.makeini("[pytest]\nsupervisor_plugins = jobs\nsupervisor_config = etc/jobs.yaml\n")
    (installed.mkdir("jobs") / "greetings.py").write_text(
        "from supervisor import handler\n@handler\ndef greet(job): return f'{job.payload} in {job.queue}'\n"
    )
    (installed.mkdir("etc") / "jobs.yaml").write_text("handlers: {greet: {queue: hall}}\n")
    installed.makepyfile("""
        from pathlib import Path
        from supervisor import Client

        def test_one(job_runner):
            Client("sqlite:///jobs.db").enqueue("greet", "hello")
            assert [job.result for job in job_runner.run_enqueued()] == ["hello in default"]

        def test_two(job_runner, monkeypatch, tmp_path):
            monkeypatch.chdir(tmp_path)
            assert job_runner.enqueued == []
            assert job_runner.run("greet", "hi") == "hi in hall"
            assert not Path("jobs.db").exists()
    """)
    installed.runpytest_subprocess().assert_outcomes(passed=2)
    assert not list(installed.path.rglob("*.db"))


def test_a_failure_shows_the_line_of_the_handler(installed: pytest.Pytester) -> None:
    installed.makepyfile("""
        from supervisor import handler

        @handler(max_retries=0)
        def divide(job):
            return 1 / 0  # the line

        def test_it(job_runner):
            job_runner.run(divide)
    """)
    result = installed.runpytest_subprocess()
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*return 1 / 0  # the line", "*JobFailed: job 1 (divide) failed at attempt 1:*"])


def test_a_config_that_can_not_be_read_is_an_error_that_names_it(installed: pytest.Pytester) -> None:
    installed.makeini("[pytest]\nsupervisor_config = missing.yaml\n")
    installed.makepyfile("def test_it(job_runner): pass")
    result = installed.runpytest_subprocess()
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*ConfigError: *missing.yaml: No such file or directory*"])


def runs(pid: int) -> bool:
    """Whether the process is there, and no zombie: an earlier test may have made this one adopt orphans."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_a_killed_run_leaves_no_supervisor(installed: pytest.Pytester) -> None:
    (installed.mkdir("plugins") / "pids.py").write_text(
        "import os, time\nfrom supervisor import handler\n"
        "@handler\ndef report(job):\n"
        "    open('pids', 'w').write(f'{os.getpid()} {os.getppid()}\\n')\n    time.sleep(3600)\n"
    )
    installed.makepyfile("""
        import time
        from supervisor import Client

        def test_it(job_runner):
            with job_runner.workers(count=1):
                Client("sqlite:///jobs.db").enqueue("report")
                time.sleep(3600)
    """)
    run = subprocess.Popen([sys.executable, "-m", "pytest", "-p", "no:cacheprovider"], stdout=subprocess.DEVNULL)
    file = installed.path / "pids"

    def pids() -> list[int]:
        text = file.read_text() if file.exists() else ""
        assert text.endswith("\n")
        return [int(pid) for pid in text.split()]

    def gone() -> None:
        assert not [pid for pid in left if runs(pid)]

    try:
        left = wait_for(pids, 60)
    finally:
        run.kill()
        run.wait()
    wait_for(gone)
