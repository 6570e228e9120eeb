"""The exit code of `status --check`, what it prints, and what it does not wait for."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from supervisor.cli.context import load_settings
from supervisor.cli.status_check import check
from supervisor.errors import StoreUnavailable
from supervisor.stores.opening import open_store, settings_of
from supervisor.stores.records import Presence
from supervisor.workers.blame import HOST
from tests.unit.cli.conftest import Call, write

PLUGIN = {"kind": "plugin", "message": "mail.py:1: broken", "what_to_do": "correct it, and send HUP"}
RELOAD = {"kind": "config", "message": "the reload was refused", "what_to_do": "correct it"}


@contextmanager
def supervisor(*problems: dict[str, Any], host: str = HOST, queues: list[str] | None = None) -> Iterator[None]:
    """A supervisor that runs, as the store knows it."""
    store = open_store(settings_of("sqlite:///jobs.db"), create=True, base=Path())
    store.join(f"o@{host}", host, 1)
    store.announce(
        Presence("running", [], 1, 30.0, {"problems": list(problems), "queues": queues, "handlers": ["mail"]})
    )
    try:
        yield
    finally:
        store.leave()
        store.close()


def test_all_is_well_if_a_supervisor_runs_and_has_no_problem(call: Call) -> None:
    with supervisor():
        assert call("status", "--check")[:2] == (0, "ok\n")


def test_a_problem_is_one_line_and_exit_code_1(call: Call) -> None:
    with supervisor(PLUGIN | {"message": "mail.py:1: broken\n\x1b[31m"}):
        answer = call("status", "--check")
    assert answer.code == 1
    (line,) = answer.lines
    assert line.endswith(": mail.py:1: broken \\x1b[31m: correct it, and send HUP")


def test_without_a_supervisor_or_a_store_the_check_fails(call: Call) -> None:
    assert call("status", "--check").code == 1
    call("enqueue", "--force", "mail")
    answer = call("status", "--check")
    assert (answer.code, answer.lines) == (1, ["no supervisor is running: start one with: supervisor run"])


def test_a_mistake_in_the_config_is_exit_code_2(call: Call) -> None:
    write("supervisor.yaml", "workers: {count: none}\n")
    assert call("status", "--check").code == 2
    write("supervisor.yaml", "store: 'memory://'\n")
    assert call("status", "--check").code == 2


def test_a_paused_queue_and_a_refused_reload_do_not_count(call: Call) -> None:
    with supervisor(RELOAD):
        call("queues", "pause", "mail")
        assert {it["kind"] for it in call("status", "--json").json["problems"]} == {"queue_paused", "config"}
        assert call("status", "--check").code == 0


def test_a_job_that_others_wait_for_in_vain_counts_but_not_here(call: Call) -> None:
    call("enqueue", "--force", "mail")
    call("enqueue", "--force", "mail", "--after", "1", "--on-parent-failed", "wait")
    call("jobs", "cancel", "1")
    with supervisor():
        answer = call("status", "--check")
        assert answer.code == 1
        assert answer.lines[0].startswith(
            "job 1 (mail) was cancelled, and 1 job waits until it has succeeded, such as job 2: "
        )
        assert call("status", "--check", "--here").code == 0


def test_here_leaves_out_the_problems_of_other_hosts_and_of_queues(call: Call) -> None:
    call("enqueue", "--force", "mail", "--queue", "post")
    with supervisor(PLUGIN, host="other", queues=["mail"]):
        assert call("status", "--check", "--here").lines == ["no supervisor is running: start one with: supervisor run"]
        with supervisor(queues=["mail"]):
            assert call("status", "--check", "--here").code == 0
            assert len(call("status", "--check").lines) == 2


def test_a_store_that_hangs_is_a_problem_after_the_timeout(
    call: Call, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    answers = threading.Event()

    def opened() -> None:
        answers.wait(20)
        raise StoreUnavailable("the test is over")

    monkeypatch.setattr("supervisor.cli.status_check.opener_of", lambda settings: opened)
    assert check(load_settings(), None, timeout=0.05) == 1
    assert "the store sqlite:///jobs.db has not answered for 0.05s" in capfd.readouterr().out
    answers.set()


@pytest.mark.parametrize("arguments", [("--check", "--json"), ("--check", "--watch"), ("--here",)])
def test_options_that_contradict_each_other_are_refused(call: Call, arguments: tuple[str, ...]) -> None:
    assert call("status", *arguments).code == 2


def test_a_check_imports_nothing_that_is_slow(call: Call) -> None:
    call("enqueue", "--force", "mail")
    code = "import sys; from supervisor.cli.app import run_command_line as run; run(['status', '--check']); print(*sys.modules)"
    modules = subprocess.check_output([sys.executable, "-c", code], text=True).split()
    assert not {"rich", "textual", "importlib.metadata", "supervisor.plugins.manager"} & {*modules}
