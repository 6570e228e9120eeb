"""The limits of a job are set before it and restored after it, however it ends; other handlers are not touched."""

from __future__ import annotations

import errno
import os
import resource
import time
from typing import Any

import pytest

from supervisor.handlers import Handler
from supervisor.workers.child.job_resources import with_resources

KINDS = (resource.RLIMIT_CPU, resource.RLIMIT_DATA, resource.RLIMIT_NOFILE)


def state() -> list[Any]:
    return [os.getpriority(os.PRIO_PROCESS, 0), *map(resource.getrlimit, KINDS)]


def run(function: Any, configured: dict[str, Any] | None = None, **options: Any) -> Any:
    handlers = {"work": Handler("work", function, **options)}
    before = state()
    try:
        return with_resources(handlers, configured or {}, lambda: None)["work"].function(None)
    finally:
        assert state() == before


def test_a_handler_without_limits_is_the_same() -> None:
    work = Handler("work", print)
    assert with_resources({"work": work}, {"other": {"nice": 3}}, lambda: None) == {"work": work}
    assert with_resources({"work": work}, {}, lambda: None)["work"] is work


def test_the_soft_limits_are_those_of_the_job_beyond_what_the_process_has_used() -> None:
    def work(job: object) -> list[int]:
        return [resource.getrlimit(kind)[0] for kind in KINDS]

    cpu, data, files = run(work, rlimits={"cpu": "60s", "memory": "2GB", "files": 200})
    assert 0 <= cpu - (time.process_time() + 60) <= 1
    assert 2_000_000_000 < data < 12_000_000_000
    assert files == 200


def test_the_keys_of_the_config_go_before_those_of_the_decorator_one_by_one() -> None:
    def work(job: object) -> list[int]:
        return [resource.getrlimit(kind)[0] for kind in KINDS]

    cpu, _, files = run(work, {"work": {"rlimits": {"files": 300}}}, rlimits={"cpu": "1h", "files": 200})
    assert (cpu > 3000, files) == (True, 300)


def test_a_job_that_allocates_too_much_or_opens_too_many_files_gets_an_exception() -> None:
    def allocate(job: object) -> None:
        bytearray(200_000_000)

    def open_files(job: object) -> None:
        opened = []
        try:
            while True:
                opened.append(os.open(os.devnull, os.O_RDONLY))
        finally:
            for fd in opened:
                os.close(fd)

    with pytest.raises(MemoryError):
        run(allocate, rlimits={"memory": "50MB"})
    with pytest.raises(OSError) as raised:
        run(open_files, rlimits={"files": 64})
    assert raised.value.errno == errno.EMFILE


def test_limits_that_the_job_has_changed_itself_are_restored() -> None:
    def work(job: object) -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (50, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))

    run(work, rlimits={"cpu": "1h"})


def test_the_priority_is_restored_or_else_the_worker_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []
    now = [2]

    def setpriority(which: int, who: int, nice: int) -> None:
        if nice < now[0] and refused:
            raise PermissionError
        now[0] = nice
        calls.append(nice)

    monkeypatch.setattr(os, "setpriority", setpriority)
    monkeypatch.setattr(os, "getpriority", lambda which, who: now[0])
    lowered: list[bool] = []
    work = Handler("work", lambda job: now[0], nice=10)
    function = with_resources({"work": work}, {}, lambda: lowered.append(True))["work"].function
    refused = False
    assert (function(None), now, lowered) == (10, [2], [])
    refused = True
    assert (function(None), now, lowered) == (10, [10], [True])


def test_a_worker_of_a_lower_priority_keeps_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "getpriority", lambda which, who: 15)
    monkeypatch.setattr(os, "setpriority", lambda *_: pytest.fail("it was raised"))
    assert run(lambda job: "done", nice=10) == "done"
