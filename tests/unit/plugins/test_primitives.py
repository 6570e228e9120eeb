from __future__ import annotations

import logging
import logging.config
import os
import select
import sys
import threading
import time
from collections.abc import Callable

import pytest

from supervisor.plugins.primitives import kept_log, kept_primitives


def test_replaced_and_removed_primitives_are_put_back(monkeypatch: pytest.MonkeyPatch) -> None:
    handler = logging.Handler()
    monkeypatch.setattr(logging.getLogger(), "handlers", [handler])
    names = [
        (time, "sleep"),
        (os, "close"),
        (select, "epoll"),
        (threading, "Event"),
        (logging, "_lock"),
        (handler, "lock"),
    ]
    before = [getattr(owner, name) for owner, name in names]
    with kept_primitives():
        for owner, name in names:
            delattr(owner, name)
        time.sleep = print  # type: ignore[assignment]
        threading.main_thread()._ident = -1  # type: ignore[attr-defined]
    assert [getattr(owner, name) for owner, name in names] == before
    assert threading.current_thread() is threading.main_thread()
    assert threading.main_thread().ident == threading.get_ident()


def test_primitives_are_put_back_after_an_error() -> None:
    sleep = time.sleep
    with pytest.raises(KeyboardInterrupt), kept_primitives():
        time.sleep = print  # type: ignore[assignment]
        raise KeyboardInterrupt
    assert time.sleep is sleep


def test_the_environment_that_a_plugin_sets_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "environ", environ := dict(os.environ))
    with kept_primitives():
        monkeypatch.setattr(os, "environ", replaced := {**environ, "NEW": "1"})
    assert os.environ is replaced


@pytest.mark.parametrize("configure", [
    lambda: logging.config.dictConfig({
        "version": 1, "handlers": {"own": {"class": "logging.NullHandler"}}, "root": {"level": "ERROR", "handlers": ["own"]},
    }),
    lambda: logging.basicConfig(level="ERROR", handlers=[logging.NullHandler()], force=True),
    lambda: logging.disable(logging.CRITICAL),
])  # fmt: skip
def test_the_log_of_the_supervisor_outlives_a_configuration_of_logging(
    configure: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    root, ours, handler = logging.getLogger(), logging.getLogger("supervisor.test"), Kept()
    monkeypatch.setattr(root, "handlers", [handler])
    monkeypatch.setattr(root, "level", logging.INFO)
    with kept_log():
        configure()
    ours.info("still here")
    assert handler.lines == ["still here"]


def test_only_added_handlers_that_write_elsewhere_get_the_log(monkeypatch: pytest.MonkeyPatch) -> None:
    root, handler, elsewhere = logging.getLogger(), Kept(), Kept()
    monkeypatch.setattr(root, "handlers", [handler])
    with kept_log():
        root.handlers = [logging.StreamHandler(), logging.StreamHandler(sys.stdout), elsewhere]
    assert root.handlers == [handler, elsewhere]


class Kept(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())
