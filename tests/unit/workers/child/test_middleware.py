from __future__ import annotations

from collections.abc import Callable, Generator
from itertools import product
from typing import Any

import pluggy
import pytest

from supervisor.jobs import Job
from supervisor.workers.child.middleware import Middleware

JOB = Job(1, "x")
PROJECT = "test"
spec = pluggy.HookspecMarker(PROJECT)
impl = pluggy.HookimplMarker(PROJECT)

Steps = Generator[None, Any, Any]


def returns(job: Job) -> Steps:
    result = yield
    return [result, job.id]


def passes(job: Job) -> Steps:
    return (yield)


def swallows(job: Job) -> Steps:
    try:
        yield
    except Exception as error:
        return f"{type(error).__name__}: {error}"


def replaces(job: Job) -> Steps:
    try:
        yield
    except Exception as error:
        raise LookupError("instead") from error


def raises_before(job: Job) -> Steps:
    raise PermissionError("before")
    yield


def raises_after(job: Job) -> Steps:
    yield
    raise PermissionError("after")


def yields_never(job: Job) -> Steps:
    if job is None:
        yield


def yields_twice(job: Job) -> Steps:
    yield
    yield


def holds_on(job: Job) -> Steps:
    """Yields again instead of letting an error through."""
    try:
        yield
    except Exception:
        yield


RIGHT = [returns, passes, swallows, replaces, raises_before, raises_after]
WRONG = [yields_never, yields_twice, holds_on]


def gives(job: Job) -> Any:
    return {"of": job.id}


def gives_nothing(job: Job) -> Any:
    return None


def fails(job: Job) -> Any:
    raise ValueError("no")


def stops(job: Job) -> Any:
    raise StopIteration("mine")


def exits(job: Job) -> Any:
    raise SystemExit(3)


FUNCTIONS = [gives, gives_nothing, fails, stops, exits]


class Specs:
    @spec(firstresult=True)
    def run(self, job: Job) -> Any: ...


def by_pluggy(wrappers: list[Callable[..., Steps]], function: Callable[[Job], Any]) -> Any:
    manager = pluggy.PluginManager(PROJECT)
    manager.add_hookspecs(Specs)

    class Innermost:
        @impl(trylast=True)
        def run(self, job: Job) -> Any:
            return function(job)

    manager.register(Innermost())
    for wrapper in wrappers:
        plugin = type("Plugin", (), {"run": staticmethod(impl(wrapper=True, specname="run")(wrapper))})
        manager.register(plugin())
    return manager.hook.run(job=JOB)


def became(call: Callable[[], Any]) -> tuple[str, Any]:
    try:
        return "returned", call()
    except RuntimeError as error:
        return "raised", RuntimeError if "yield" in str(error) else repr(error)
    except BaseException as error:
        return "raised", repr(error)


@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize(
    "wrappers", [[one] for one in [*RIGHT, *WRONG]] + [list(pair) for pair in product(RIGHT, repeat=2)]
)
def test_a_call_by_hand_becomes_what_a_call_by_pluggy_does(
    wrappers: list[Callable[..., Steps]], function: Callable[[Job], Any]
) -> None:
    by_hand = became(lambda: Middleware(wrappers).run(JOB, function))
    assert by_hand == became(lambda: by_pluggy(wrappers, function))


def test_a_wrapper_that_does_not_yield_once_is_named() -> None:
    for wrapper, mistake in ((yields_never, "did not yield"), (yields_twice, "yielded more than once")):
        with pytest.raises(RuntimeError, match=rf"test_middleware\.py:\d+: hook supervisor_run: .*{mistake}"):
            Middleware([wrapper]).run(JOB, gives)


@pytest.mark.parametrize(("wrong", "function"), [(yields_never, gives), (yields_twice, gives), (holds_on, fails)])
def test_the_wrappers_around_one_that_does_not_yield_once_learn_of_it(
    wrong: Callable[..., Steps], function: Callable[[Job], Any]
) -> None:
    """Where pluggy leaves them waiting at their `yield`."""
    assert Middleware([wrong, swallows]).run(JOB, function).startswith("RuntimeError: ")


def test_the_time_taken_is_the_functions_own_and_none_if_it_was_not_called() -> None:
    middleware = Middleware([passes, raises_after])
    with pytest.raises(PermissionError):
        middleware.run(JOB, gives)
    assert middleware.took > 0
    refusing = Middleware([raises_before])
    with pytest.raises(PermissionError):
        refusing.run(JOB, gives)
    assert refusing.took == 0
