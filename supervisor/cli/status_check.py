"""supervisor status --check"""

from __future__ import annotations

import time
from typing import Any

import click

from supervisor.cli.context import echo
from supervisor.cli.exit_codes import DONE, FATAL
from supervisor.cli.store_access import may_answer_later, opener_of
from supervisor.config.settings import Settings
from supervisor.errors import StoreError
from supervisor.stores.opening import attempts_while_unavailable
from supervisor.stores.problems import Problem, problems
from supervisor.stores.store_thread import StoreThread

TIMEOUT = 5.0
"""Seconds for which the store may be silent."""
RETRY_SECONDS = 2.0
"""A store that is locked for a moment is no problem."""
MAX_SHOWN = 30
NOT_COUNTED = frozenset({"queue_paused", "config", "restart"})
"""The kinds of problems that someone has made on purpose, or beside which the supervisor goes on as before."""
OF_ALL_HOSTS = frozenset({"handler_missing", "handler_elsewhere"})


def check(settings: Settings, host: str | None, timeout: float = TIMEOUT) -> int:
    """Print a line for each problem, of the supervisors of `host` only if that is given, and return the exit code."""
    found = _problems(settings, host, timeout)
    for each in found[:MAX_SHOWN]:
        echo(" ".join(each.text.split()))
    if len(found) > MAX_SHOWN:
        click.echo(f"... and {len(found) - MAX_SHOWN} more: supervisor status --json")
    if not found:
        click.echo("ok")
    return FATAL if found else DONE


def _problems(settings: Settings, host: str | None, timeout: float) -> list[Problem]:
    thread, deadline = StoreThread(opener_of(settings)), time.monotonic() + timeout
    try:
        for attempt in attempts_while_unavailable(RETRY_SECONDS):
            with attempt:
                status = thread.submit(lambda store: store.stats()).result(deadline - time.monotonic())
    except TimeoutError:
        silent = f"the store {settings.store.shown} has not answered for {timeout:g}s"
        return [Problem("store", silent, "see whether its server, its disk or its network hangs")]
    except StoreError as error:
        if not may_answer_later(error):
            raise
        return [Problem("store", f"the store is unavailable: {error}", "see that it can be reached")]
    finally:
        thread.close()
    return counted_problems(status, settings, host)


def counted_problems(status: dict[str, Any], settings: Settings, host: str | None = None) -> list[Problem]:
    """Return the problems of the status that make a check fail."""
    without = NOT_COUNTED
    if host is not None:
        own = [each for each in status["supervisors"] if each["host"] == host]
        status = {**status, "supervisors": own, "queues": [], "sinks": [], "stuck": []}
        without |= OF_ALL_HOSTS
    return [each for each in problems(status, settings.dlq.names) if each.kind not in without]
