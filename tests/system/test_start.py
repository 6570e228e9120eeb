"""A short command imports only what it uses; tests/benchmarks/start.py measures what that saves."""

from __future__ import annotations

import subprocess
import sys

import pytest

from supervisor import __version__
from tests.system.command import ROOT, Command

# Prints the modules that are imported when the command of its arguments ends.
SHOW_MODULES = """
import sys
from supervisor.cli import main
try:
    main()
except SystemExit as end:
    assert not end.code, end.code
print(*sys.modules, file=sys.stderr)
"""
ENGINE = ("supervisor.engine", "supervisor.runtime", "supervisor.workers.pool", "supervisor.plugins.manager")
UNUSED_BY_ENQUEUE = (
    *ENGINE,
    "rich",
    "asyncio",
    "psycopg",
    "confluent_kafka",
    "cronsim",
    "pluggy",
    "multiprocessing",
    "concurrent.futures",
)


def modules_of(command: Command, *arguments: str) -> set[str]:
    ended = subprocess.run(
        [sys.executable, "-c", SHOW_MODULES, *arguments],
        cwd=command.folder,
        env=command.env,
        capture_output=True,
        text=True,
        check=True,
    )
    return set(ended.stderr.split())


def test_version_imports_neither_click_nor_config_nor_stores(command: Command) -> None:
    imported = modules_of(command, "--version")
    ours = {name for name in imported if name.startswith("supervisor.")}
    assert ours == {
        "supervisor.cli",
        "supervisor.cli.exit_codes",
        "supervisor.cli.standard_streams",
        "supervisor.text",
        "supervisor.text.output",
    }
    assert not imported & {"click", "pydantic", "yaml", "orjson", "rich", "importlib.metadata"}


def test_version_reports_an_output_that_cannot_be_written(command: Command) -> None:
    shown = command.call("--version")
    assert (shown.code, shown.out) == (0, f"supervisor {__version__}\n")
    with open("/dev/full", "w") as full:
        lost = subprocess.run(
            [sys.executable, "-m", "supervisor", "--version"],
            cwd=ROOT,
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert (lost.returncode, lost.stderr) == (1, "Error: standard output: No space left on device\n")


@pytest.mark.parametrize("arguments", [["enqueue", "mail"], ["jobs", "cancel", "1"]], ids=" ".join)
def test_a_command_on_a_built_in_store_imports_neither_engine_nor_plugins(
    command: Command, arguments: list[str]
) -> None:
    command.write(plugins={"mail.py": "from supervisor import handler\n@handler\ndef mail(job): ..."})
    command.enqueue("mail")
    imported = modules_of(command, *arguments, "-c", str(command.config))
    assert "supervisor.stores.sqlite.store" in imported
    assert not [name for name in sorted(imported) if name.startswith(UNUSED_BY_ENQUEUE)]
