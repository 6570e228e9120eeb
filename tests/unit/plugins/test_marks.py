"""@handler where it can have no effect, and files with several mistakes."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.plugins.conftest import Put

HEAD = "import functools\nfrom supervisor import handler, hookimpl, Job\nfrom supervisor.handlers import Handler\n"
METHOD = "class C:\n    @handler\n    def f(self, job): ...\n"
STATIC = "class C:\n    @handler\n    @staticmethod\n    def f(job): ...\n"
INSIDE = "def make():\n    @handler\n    def f(job): ...\nmake()\n"
DECORATED = "def plain(f): return lambda job: f(job)\n@plain\n@handler\ndef f(job): ...\n"
IN_A_LIST = "ALL = [handler('f')(lambda job: 1)]\n"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (
            METHOD,
            "@handler on C.f (line 5) has no effect: it is a method of a class; put it on a function of the module",
        ),
        (STATIC, "@handler on C.f (line 5) has no effect: it is a method of a class"),
        (INSIDE, "@handler on make.<locals>.f (line 5) has no effect: it is inside of the function make"),
        (DECORATED, "@handler on f (line 5) has no effect: no name of the module leads to it"),
        (IN_A_LIST, "@handler on <lambda> (line 4) has no effect: no name of the module leads to it"),
    ],
)
def test_a_mark_that_is_not_found_gets_a_warning(put: Put, load: Any, text: str, why: str) -> None:
    put("plugins/a.py", f"{HEAD}{text}@handler\ndef good(job): ...\n")
    manager, reports = load()
    (warning,) = reports["plugins/a.py"].warnings
    assert warning.startswith(why)
    assert list(manager.handlers) == ["good"]


def test_marks_that_are_found_elsewhere_get_no_warning(put: Put, load: Any) -> None:
    put("plugins/a.py", HEAD + "import b\nfrom _inside import two\n")
    put("plugins/b.py", HEAD + "@handler\ndef one(job): ...\n")
    put("plugins/_inside.py", HEAD + "@handler\ndef two(job): ...\n")
    three = (
        "ALL = [handler('x')(lambda job: 3)]\n@hookimpl\ndef supervisor_handlers(): return [Handler('three', ALL[0])]\n"
    )
    put("plugins/c.py", HEAD + three)
    manager, reports = load()
    assert sorted(manager.handlers) == ["one", "three", "two"]
    assert [report.warnings for report in reports.values()] == [(), (), ()]


@pytest.mark.parametrize(
    ("text", "error"),
    [
        (
            "h = handler(functools.partial(print))",
            "expected a function of its own around it: def name(job): ..., got functools",
        ),
        ("@handler\nclass C: ...", "expected a function of its own around it: def name(job): ..., got <class"),
        (
            "h = handler(len)",
            "expected a function of its own around it: def name(job): ..., got <built-in function len>",
        ),
        ("h = handler(5)", "expected a function or a name, got 5"),
        ("@handler(max_retrys=1)\ndef h(job): ...", "@handler has no option 'max_retrys', did you mean 'max_retries'?"),
    ],
)
def test_what_cannot_be_a_handler_is_named(put: Put, load: Any, text: str, error: str) -> None:
    put("plugins/a.py", HEAD + text)
    _, reports = load()
    assert (
        reports["plugins/a.py"]
        .error.removeprefix("TypeError: handler(): ")
        .removeprefix("TypeError: ")
        .startswith(error)
    )
    assert reports["plugins/a.py"].line == 4


def test_all_mistakes_of_a_file_are_named_and_its_other_handlers_serve(put: Put, load: Any) -> None:
    put(
        "plugins/a.py",
        HEAD + "@handler\ndef a(x, /, y): ...\n@handler\ndef b(job): ...\n@handler\ndef c(job): yield\n",
    )
    manager, reports = load()
    report = reports["plugins/a.py"]
    assert report.line == 4
    assert report.error.startswith(
        "handler 'a': parameter x: expected one that can be given by its name, not a positional-only one; line 8: handler 'c': expected"
    )
    assert list(manager.handlers) == [info.name for info in report.handlers] == ["b"]


def test_all_mistakes_in_hooks_are_named(put: Put, load: Any) -> None:
    put("plugins/a.py", HEAD + "def supervisor_events(events): ...\n@hookimpl\ndef supervisor_started(inf): ...\n")
    _, reports = load()
    assert reports["plugins/a.py"].error == (
        "supervisor_events: decorate it with @hookimpl (from supervisor import hookimpl); "
        "line 5: supervisor_started: unknown argument 'inf'; it takes info"
    )
