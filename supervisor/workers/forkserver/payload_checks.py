"""Check payloads by the parameters of their handlers, before any job has them."""

from __future__ import annotations

import signal
from collections.abc import Container, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import orjson

from supervisor.config.schedules import MAX_BYTES, of_handler
from supervisor.plugins.manager import PluginManager
from supervisor.text.strict_json import encode

CHECK_TIMEOUT = 2.0
"""Seconds for the payloads of all schedules: validators of plugins may take any time, and no job runs before they have ended."""


class TookTooLong(BaseException):
    """Raised in the validator that runs at the end of the time."""


def misfits(plugins: PluginManager, payloads: Sequence[Sequence[str]]) -> list[list[Any]]:
    """Return [index, message] of each payload that its handler refuses."""
    refusals = ((index, _refusal(plugins, handler, payload)) for index, (handler, payload) in enumerate(payloads))
    return [[index, message] for index, message in refusals if message is not None]


def schedule_misfits(
    plugins: PluginManager, schedules: Mapping[str, Sequence[str]], timeout: float = CHECK_TIMEOUT
) -> list[list[str]]:
    """Return [schedule, handler, message] of each schedule whose payload its handler refuses: of these, and of those of handlers whose
    name none of these has."""
    found: list[list[str]] = []
    every = {**schedules, **_of_handlers(plugins, schedules)}
    if not every:
        return found
    name = handler = ""
    try:
        with _interrupted_after(timeout):
            for name, (handler, payload) in every.items():
                if (message := _refusal(plugins, handler, payload)) is not None:
                    found.append([name, handler, message])
    except TookTooLong:
        found.append([name, handler, f"its payload could not be checked within {timeout:g}s"])
    except BaseException as error:  # such as SystemExit, which must not end the forkserver
        found.append([name, handler, f"its payload could not be checked: {type(error).__name__}: {error}"])
    return found


def _of_handlers(plugins: PluginManager, configured: Container[str]) -> dict[str, Sequence[str]]:
    return {
        name: (name, encode(of_handler(name, it.schedule).payload, limit=MAX_BYTES))
        for name, it in plugins.handlers.items()
        if it.schedule is not None and name not in configured
    }


def _refusal(plugins: PluginManager, handler: str, payload: str) -> str | None:
    try:
        if (binding := plugins.bindings.get(handler)) is not None:
            binding.check(orjson.loads(payload))
    except Exception as error:  # InvalidPayload, or what a validator of the plugin has raised
        return str(error)
    return None


@contextmanager
def _interrupted_after(seconds: float) -> Iterator[None]:
    """Raise TookTooLong in the code inside after so many seconds."""

    def interrupt(_number: int, _frame: object) -> None:
        raise TookTooLong

    before = signal.signal(signal.SIGALRM, interrupt)
    timer = signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        signal.setitimer(signal.ITIMER_REAL, *timer)
