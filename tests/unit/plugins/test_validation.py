from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.unit.plugins.conftest import HANDLER, Put


@pytest.mark.parametrize(
    ("written", "error"),
    [
        ("@handler(timeout='3 sec')\ndef h(job): ...", "timeout: expected a duration such as 500ms"),
        ("@handler(timeout=0)\ndef h(job): ...", "timeout: expected a duration"),
        ("@handler(heartbeat='none')\ndef h(job): ...", "heartbeat: expected a duration"),
        ("@handler(max_retries=-1)\ndef h(job): ...", "max_retries: expected a whole number from 0 to 1000, got -1"),
        ("@handler(max_retries=True)\ndef h(job): ...", "max_retries: expected a whole number"),
        ("@handler(backoff='1s')\ndef h(job): ...", "backoff: expected a mapping with base, factor, max, jitter"),
        ("@handler(backoff={'bse': '1s'})\ndef h(job): ...", "backoff.bse: unknown key, did you mean 'base'?"),
        ("@handler(backoff={'base': '1'})\ndef h(job): ...", "backoff.base: expected a duration"),
        ("@handler(backoff={'factor': 0})\ndef h(job): ...", "backoff.factor: expected a number from 1 to 1000"),
        ("@handler(backoff={'jitter': 'some'})\ndef h(job): ...", "backoff.jitter: expected full, none, or a duration"),
        (
            "@handler(backoff={'base': '2s', 'max': '1s'})\ndef h(job): ...",
            "backoff.base: expected at most max of the same backoff, got '2s'",
        ),
        ("@handler(never_retry=('x',))\ndef h(job): ...", "never_retry: expected exception classes"),
        (
            "@handler(schedule='0 25 * * *')\ndef h(job): ...",
            "schedule.cron: expected a cron expression of five fields",
        ),
        (
            "@handler(schedule={'every': '1s', 'jiter': '1s'})\ndef h(job): ...",
            "schedule.jiter: unknown key, did you mean 'jitter'?",
        ),
        (
            "@handler(timeout=type('Any', (), {'__eq__': lambda *_: True})())\ndef h(job): ...",
            "timeout: expected a duration",
        ),
        (
            "@handler(backoff={'jitter': type('Any', (), {'__eq__': lambda *_: True})()})\ndef h(job): ...",
            "backoff.jitter: ",
        ),
        ("@handler\ndef h(a, /, b): ...", "parameter a: expected one that can be given by its name"),
        ("@handler\ndef h(file: 'Missing'): ...", "parameter file: its annotation 'Missing' can't be evaluated"),
        (
            "@handler\ndef h(file: type(print)): ...",
            "parameter file: expected a type that pydantic can read from JSON: Unable",
        ),
        ("@handler(priority=True)\ndef h(): ...", "priority: expected a whole number of at most 64 bits, got True"),
        ("@handler(queue=' ')\ndef h(): ...", "queue: expected a name"),
        ("@handler\nasync def h(job): yield", "expected a function that returns its result, got a generator"),
        ("@handler\ndef h(job): yield", "expected a function that returns its result, got a generator"),
    ],
)
def test_wrong_options_are_named_with_the_handler_and_its_line(put: Put, load: Any, written: str, error: str) -> None:
    put("plugins/a.py", f"from supervisor import handler\n{written}\n")
    put("plugins/good.py", HANDLER.format(name="good", result=1))
    manager, reports = load()
    assert reports["plugins/a.py"].error is not None
    assert reports["plugins/a.py"].error.startswith(f"handler 'h': {error}")
    assert reports["plugins/a.py"].line == 2
    assert list(manager.handlers) == ["good"]


DECORATORS = """
import asyncio
import functools
import inspect

def plain(function):
    @functools.wraps(function)
    def wrapper(*args, **kwargs):
        return function(*args, **kwargs)
    return wrapper

def timed(function):
    @functools.wraps(function)
    def wrapper(job):
        print("begin")
        try:
            result = function(job)
        finally:
            print("end")
        return result
    return wrapper

def with_options(**options):
    return plain

def runs(function):
    @functools.wraps(function)
    def wrapper(job):
        return asyncio.run(function(job))
    return wrapper

def runs_later(function):
    @functools.wraps(function)
    def wrapper(job):
        result = function(job)
        result = asyncio.run(result)
        return result
    return wrapper

def runs_if_async(function):
    @functools.wraps(function)
    def wrapper(job):
        if inspect.iscoroutinefunction(function):
            return asyncio.run(function(job))
        return function(job)
    return wrapper

def runs_a_nested_function(function):
    @functools.wraps(function)
    def wrapper(job):
        def begin():
            return function(job)
        return asyncio.run(begin())
    return wrapper

def passes_it_on(function):
    @functools.wraps(function)
    def wrapper(job):
        if job is None:
            return function(job)
        return started(function, job)
    return wrapper

def started(function, job):
    return asyncio.run(function(job))

class Runs:
    def __init__(self, function):
        functools.update_wrapper(self, function)
        self.function = function
    def __call__(self, job):
        return asyncio.run(self.function(job))

def lambdas(function):
    return functools.wraps(function)(lambda job: asyncio.run(function(job)))

from supervisor import Handler, handler, hookimpl
"""


@pytest.mark.parametrize("decorators", ["@plain", "@timed", "@with_options(a=1)", "@plain\n@timed"])
@pytest.mark.parametrize("kind", ["async def", "def"])
def test_a_generator_that_nobody_runs_is_found_below_decorators(
    put: Put, load: Any, decorators: str, kind: str
) -> None:
    put("plugins/a.py", f"{DECORATORS}\n@handler\n{decorators}\n{kind} h(job):\n    yield\n")
    _, reports = load()
    expected = "got a generator below a decorator that returns its result as it is"
    assert expected in (reports["plugins/a.py"].error or "")


@pytest.mark.parametrize("decorators", ["", "@plain", "@timed", "@with_options(a=1)", "@plain\n@timed"])
def test_an_async_function_is_known_as_such_below_decorators(put: Put, load: Any, decorators: str) -> None:
    put("plugins/a.py", f"{DECORATORS}\n@handler\n{decorators}\nasync def h(job): return 3\n")
    manager, reports = load()
    (info,) = reports["plugins/a.py"].handlers
    assert info.is_async
    assert asyncio.run(manager.handlers["h"].function(1)) == 3


@pytest.mark.parametrize(
    "decorators",
    [
        "@runs",
        "@runs_later",
        "@runs_if_async",
        "@runs_a_nested_function",
        "@passes_it_on",
        "@lambdas",
        "@plain\n@runs",
        "@runs\n@plain",
    ],
)
def test_a_decorator_may_run_an_async_function(put: Put, load: Any, decorators: str) -> None:
    put("plugins/a.py", f"{DECORATORS}\n@handler\n{decorators}\nasync def h(job): return 3\n")
    manager, reports = load()
    (info,) = reports["plugins/a.py"].handlers
    assert not info.is_async
    assert manager.handlers["h"].function(1) == 3


@pytest.mark.parametrize(("body", "is_async"), [("Runs(h)", False), ("Async()", True), ("functools.partial(h)", True)])
def test_an_object_that_is_called_may_be_async(put: Put, load: Any, body: str, is_async: bool) -> None:
    put(
        "plugins/a.py",
        f"{DECORATORS}\nasync def h(job): return 3\nclass Async:\n    async def __call__(self, job): ...\n"
        f"@hookimpl\ndef supervisor_handlers(): return [Handler('h', {body})]\n",
    )
    _, reports = load()
    (info,) = reports["plugins/a.py"].handlers
    assert info.is_async is is_async


@pytest.mark.parametrize(
    ("option", "hint"),
    [
        ("timout='3s'", "@handler has no option 'timout', did you mean 'timeout'?"),
        ("xyz=1", "@handler has no option 'xyz'; expected one of timeout, max_retries, backoff, heartbeat"),
    ],
)
def test_an_option_that_does_not_exist_is_named_with_the_choices(put: Put, load: Any, option: str, hint: str) -> None:
    put("plugins/a.py", f"from supervisor import handler\n@handler({option})\ndef h(job): ...\n")
    _, reports = load()
    assert hint in (reports["plugins/a.py"].error or "")
    assert reports["plugins/a.py"].line == 2


@pytest.mark.parametrize("name", ["a\nb", "x" * 256, " mail", "mail\u2003", " "])
def test_the_name_of_a_handler_is_checked(put: Put, load: Any, name: str) -> None:
    put("plugins/a.py", f"from supervisor import handler\n@handler({name!r})\ndef h(job): ...\n")
    _, reports = load()
    assert "expected a name of 1 to 255 printable characters" in (reports["plugins/a.py"].error or "")


@pytest.mark.parametrize("brought", ["[len]", "[1]", "5"])
def test_a_hook_must_bring_handlers(put: Put, load: Any, brought: str) -> None:
    put("plugins/a.py", f"from supervisor import hookimpl\n@hookimpl\ndef supervisor_handlers(): return {brought}\n")
    _, reports = load()
    assert reports["plugins/a.py"].error is not None


def test_an_object_that_must_not_be_inspected_is_left_alone(put: Put, load: Any) -> None:
    put(
        "plugins/a.py",
        """
        from supervisor import handler

        class Lazy:
            @property
            def __class__(self):
                raise RuntimeError("no request yet")

        current = Lazy()

        @handler
        def mail(job): ...
        """,
    )
    manager, reports = load()
    assert reports["plugins/a.py"].error is None
    assert list(manager.handlers) == ["mail"]


@pytest.mark.parametrize(
    ("written", "error"),
    [
        (
            "@hookimpl\ndef supervisor_evens(events): ...",
            "unknown hook 'supervisor_evens', did you mean 'supervisor_events'?",
        ),
        ("@hookimpl\ndef mine(): ...", "unknown hook 'mine'"),
        (
            "@hookimpl\ndef supervisor_events(event): ...",
            "supervisor_events: unknown argument 'event'; it takes events",
        ),
        ("@hookimpl\ndef supervisor_sinks(x): ...", "supervisor_sinks: unknown argument 'x'; it takes no argument"),
        ("def supervisor_events(events): ...", "supervisor_events: decorate it with @hookimpl"),
        ("@hookimpl\nasync def supervisor_events(events): ...", "supervisor_events: async functions are not supported"),
        ("@hookimpl\ndef supervisor_run(job): ...", "supervisor_run: expected @hookimpl(wrapper=True)"),
        ("@hookimpl(wrapper=True)\ndef supervisor_run(job): ...", "supervisor_run: a wrapper yields once"),
        ("@hookimpl(wrapper=True)\nasync def supervisor_run(job): ...", "supervisor_run: an async wrapper yields once"),
        ("@hookimpl\nasync def supervisor_run(job): yield", "supervisor_run: expected @hookimpl(wrapper=True)"),
        (
            "@hookimpl(wrapper=True)\nasync def supervisor_run(jobs): yield",
            "supervisor_run: unknown argument 'jobs'; it takes job",
        ),
        (
            "@hookimpl(wrapper=True)\ndef supervisor_events(events): yield",
            "supervisor_events: expected a plain @hookimpl",
        ),
    ],
)
def test_hooks_that_cannot_be_called_are_named_with_their_line(put: Put, load: Any, written: str, error: str) -> None:
    put("plugins/a.py", f"from supervisor import hookimpl\n{written}\n")
    _, reports = load()
    assert (reports["plugins/a.py"].error or "").startswith(error)
    assert reports["plugins/a.py"].line == 2
    assert reports["plugins/a.py"].hooks == ()


def test_a_function_that_looks_like_a_hook_gets_a_warning(put: Put, load: Any) -> None:
    put("plugins/a.py", "def supervisor_evens(events): ...\ndef supervisor_of_the_world(): ...\n")
    _, reports = load()
    assert reports["plugins/a.py"].error is None
    assert reports["plugins/a.py"].warnings == (
        "supervisor_evens (line 1) is no hook, did you mean 'supervisor_events'?",
    )
