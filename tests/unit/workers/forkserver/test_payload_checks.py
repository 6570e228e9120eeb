"""The payloads of schedules that their handlers refuse, found before any job has them."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from supervisor.plugins.discovery import discover
from supervisor.plugins.manager import PluginManager
from supervisor.workers.forkserver.payload_checks import schedule_misfits

HANDLERS = """
import time
from typing import Annotated
from pydantic import AfterValidator
from supervisor import handler

def exits(value):
    raise SystemExit(3)

@handler(schedule={"every": "1h", "payload": {"day": "today"}})
def counts(number: int = 0): ...

@handler
def any_payload(job): ...

@handler
def hangs(number: Annotated[int, AfterValidator(time.sleep)]): ...

@handler
def ends(number: Annotated[int, AfterValidator(exits)]): ...
"""


@pytest.fixture
def plugins(tmp_path: Path) -> PluginManager:
    (tmp_path / "handlers.py").write_text(HANDLERS)
    manager = PluginManager()
    (report,) = [it for it in manager.load_all(discover(["handlers.py"], tmp_path)) if it.handlers]
    assert report.error is None
    return manager


def test_the_schedules_of_handlers_are_checked_unless_one_of_the_config_has_their_name(plugins: PluginManager) -> None:
    wrong = {"mine": ("counts", '{"number": "x"}'), "other": ("any_payload", "5"), "lost": ("nobody", "5")}
    mine, its = schedule_misfits(plugins, wrong)
    assert (mine[:2], its[:2]) == (["mine", "counts"], ["counts", "counts"])
    assert mine[2].startswith("payload.number: ")
    assert its[2].startswith("payload.day: unexpected")
    assert schedule_misfits(plugins, {"counts": ("counts", '{"number": 5}')}) == []


def test_a_validator_holds_up_the_forkserver_for_a_moment_only_and_does_not_end_it(plugins: PluginManager) -> None:
    before = signal.getsignal(signal.SIGALRM)
    right = ("counts", "null")
    assert schedule_misfits(plugins, {"counts": right, "a": ("hangs", '{"number": 3600}')}, timeout=0.01) == [
        ["a", "hangs", "its payload could not be checked within 0.01s"]
    ]
    assert schedule_misfits(plugins, {"counts": right, "a": ("ends", '{"number": 1}')}) == [
        ["a", "ends", "its payload could not be checked: SystemExit: 3"]
    ]
    assert signal.getsignal(signal.SIGALRM) == before
