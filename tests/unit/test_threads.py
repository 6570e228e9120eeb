"""Threads that are started beforehand, and what a user reads if there are none to be had."""

from __future__ import annotations

import threading

import pytest

from supervisor.errors import SystemRefused
from supervisor.threads import start_thread, started_executor


class NoThreads:
    """Lets so many threads start."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, allowed: int = 0) -> None:
        really = threading.Thread.start
        self.left = allowed

        def start(thread: threading.Thread) -> None:
            self.left -= 1
            if self.left < 0:
                raise RuntimeError("can't start new thread")
            really(thread)

        monkeypatch.setattr(threading.Thread, "start", start)


def test_calls_of_a_started_executor_need_no_new_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    executor = started_executor(2)
    NoThreads(monkeypatch)
    go_on = threading.Event()
    blocked = executor.submit(go_on.wait)
    results = [executor.submit(lambda: 7) for _ in range(3)]
    assert [result.result(30) for result in results] == [7, 7, 7]
    go_on.set()
    assert blocked.result(30)
    executor.shutdown()


@pytest.mark.parametrize("allowed", [0, 1])
def test_an_executor_without_threads_is_refused_and_leaves_none(monkeypatch: pytest.MonkeyPatch, allowed: int) -> None:
    before = {*threading.enumerate()}
    NoThreads(monkeypatch, allowed)
    with pytest.raises(SystemRefused, match="on processes and threads is reached"):
        started_executor(2)
    started = {*threading.enumerate()} - before
    for thread in started:
        thread.join(30)
    assert not [thread for thread in started if thread.is_alive()]


def test_a_thread_that_cannot_be_started_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    NoThreads(monkeypatch)
    with pytest.raises(SystemRefused, match="the thread 'log' can't be started"):
        start_thread(print, "log")
