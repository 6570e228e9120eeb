from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from supervisor import Job, hookimpl
from supervisor.events import HookFailed
from supervisor.plugins.discovery import discover
from supervisor.plugins.manager import PluginManager, load_parent_side
from supervisor.workers.child.middleware import Middleware, async_middleware
from tests.unit.plugins.conftest import HANDLER, Put


def test_handlers_are_reported_with_their_options(put: Put, load: Any) -> None:
    file = put(
        "plugins/mail.py",
        """\
        from supervisor import handler, hookimpl, Handler

        @handler(timeout="30s", max_retries=5, backoff={"base": "1s"}, never_retry=(ValueError, KeyError))
        def mail(job): return "mail"

        @handler("named", heartbeat_timeout="none")
        @handler("twice")
        def other(job): return "other"

        @hookimpl
        def supervisor_handlers(): return [Handler("hooked", lambda job: "hooked", heartbeat=2)]
        """,
    )
    manager, reports = load()
    report = reports["plugins/mail.py"]
    assert report.error is None
    assert report.hooks == ("supervisor_handlers",)
    assert {info.name: (info.options, info.line) for info in report.handlers} == {
        "mail": (
            {"timeout": "30s", "max_retries": 5, "backoff": {"base": "1s"}, "never_retry": ["ValueError", "KeyError"]},
            3,
        ),
        "named": ({"heartbeat_timeout": "none"}, 6),
        "twice": ({}, 6),
        "hooked": ({"heartbeat": 2}, 11),
    }
    assert {info.file for info in report.handlers} == {str(file)}
    assert manager.handlers["twice"].function(Job(1, "twice")) == "other"


def test_a_handler_imported_by_the_file_beside_it_is_one_handler(put: Put, load: Any) -> None:
    put("plugins/a.py", "from b import pdf\n")
    put("plugins/b.py", HANDLER.format(name="pdf", result="pdf"))
    manager, reports = load()
    assert all(report.error is None for report in reports.values())
    assert list(manager.handlers) == ["pdf"]


def test_a_package_may_collect_handlers_from_its_modules(put: Put, load: Any) -> None:
    put("plugins/pkg/__init__.py", "from .one import one\nfrom pkg.two import two\n")
    put("plugins/pkg/one.py", HANDLER.format(name="one", result=1))
    put("plugins/pkg/two.py", "import helper\nfrom . import one\n" + HANDLER.format(name="two", result=2))
    put("plugins/helper.py")
    manager, reports = load()
    assert [report.error for report in reports.values()] == [None, None]
    assert sorted(manager.handlers) == ["one", "two"]


def test_a_decorator_above_the_mark_is_run(put: Put, load: Any) -> None:
    put(
        "plugins/a.py",
        """\
        import functools
        from supervisor import handler

        def shout(function):
            @functools.wraps(function)
            def inner(job): return function(job).upper()
            return inner

        @shout
        @handler
        def greet(job): return "hello"
        """,
    )
    manager, _ = load()
    assert manager.handlers["greet"].function(Job(1, "greet")) == "HELLO"


def test_two_handlers_of_one_name_stop_both_and_nothing_else(put: Put, load: Any) -> None:
    put("plugins/a.py", HANDLER.format(name="mail", result="a") + "@handler\ndef only_a(job): ...\n")
    put("plugins/b.py", HANDLER.format(name="mail", result="b"))
    put("plugins/c.py", HANDLER.format(name="pdf", result="c"))
    manager, reports = load()
    assert sorted(manager.handlers) == ["only_a", "pdf"]
    for one, other in (("a", "b"), ("b", "a")):
        report = reports[f"plugins/{one}.py"]
        assert "two handlers are named 'mail', so neither serves" in (report.error or "")
        assert f"plugins/{other}.py:2" in (report.error or "")
        assert report.line == 2
    assert [info.name for info in reports["plugins/a.py"].handlers] == ["only_a"]


def test_a_third_handler_of_a_name_names_all(put: Put, load: Any) -> None:
    for file in "abc":
        put(f"plugins/{file}.py", HANDLER.format(name="mail", result=file))
    manager, reports = load()
    assert manager.handlers == {}
    assert all(f"plugins/{other}.py:2" in (reports["plugins/a.py"].error or "") for other in "bc")


def test_two_handlers_of_one_name_in_one_file_stop_both(put: Put, load: Any) -> None:
    put("plugins/a.py", HANDLER.format(name="mail", result=1) + "@handler('mail')\ndef again(job): ...\n")
    manager, reports = load()
    assert manager.handlers == {}
    assert "here and in" in (reports["plugins/a.py"].error or "")
    assert "plugins/a.py:2" in (reports["plugins/a.py"].error or "")
    assert reports["plugins/a.py"].line == 4


def test_a_hook_that_raises_does_not_keep_the_next_from_running(put: Put, tmp_path: Path) -> None:
    for name, body in (("a", "seen.append('a')"), ("b", "raise SystemExit(3)"), ("c", "1 / 0"), ("d", "return 'd'")):
        put(
            f"plugins/{name}.py",
            f"from supervisor import hookimpl\nseen = []\n@hookimpl\ndef supervisor_stopping(reason): {body}\n",
        )
    failed: list[HookFailed] = []
    manager = PluginManager(failed.append)
    manager.load_all(discover(["plugins"], tmp_path))
    assert manager.call("supervisor_stopping", reason="over") == [None, "d"]
    assert [(Path(one.plugin).name, one.hook) for one in failed] == [
        ("b.py", "supervisor_stopping"),
        ("c.py", "supervisor_stopping"),
    ]
    assert failed[1].error == "ZeroDivisionError: division by zero"
    assert "1 / 0" in failed[1].traceback


class Files:
    @hookimpl
    def supervisor_sinks(self) -> dict[str, str]:
        return {"file": "first"}


class Pager:
    @hookimpl
    def supervisor_sinks(self) -> dict[str, str]:
        return {"pager": "p", "file": "second"}


class Broken:
    @hookimpl
    def supervisor_sinks(self) -> list[str]:
        return ["x"]


def test_the_mappings_of_a_hook_are_merged_and_the_first_value_of_a_key_stays() -> None:
    failed: list[HookFailed] = []
    manager = PluginManager(failed.append)
    for plugin in (Files(), Pager(), Broken()):
        manager.register(plugin, type(plugin).__name__)
    assert manager.merged("supervisor_sinks") == {"file": "first", "pager": "p"}
    assert [(one.plugin, one.error) for one in failed] == [
        ("Pager", "'file' is already defined by Files"),
        ("Broken", "expected a mapping, got ['x']"),
    ]


def test_the_wrappers_of_a_hook_come_in_their_order_and_may_leave_the_argument_out(put: Put, load: Any) -> None:
    for name, argument in (("a", "job"), ("b", "")):
        put(
            f"plugins/{name}.py",
            f"""\
            from supervisor import hookimpl
            @hookimpl(wrapper=True)
            def supervisor_run({argument}):
                result = yield
                return result + [{name!r}]
            """,
        )
    manager, _ = load()
    middleware = Middleware(manager.wrappers("supervisor_run"))
    assert middleware.run(Job(1, "x"), lambda job: ["run"]) == ["run", "a", "b"]


def test_async_wrappers_come_in_the_order_of_all_wrappers(put: Put, load: Any) -> None:
    kinds = {"a": "", "b": "async ", "c": "", "d": "async "}
    for name, kind in kinds.items():
        put(
            f"plugins/{name}.py",
            f"""\
            from supervisor import hookimpl
            order = []
            @hookimpl(wrapper=True)
            {kind}def supervisor_run({"job" if name < "c" else ""}):
                {"yield" if kind else f"return [*(yield), {name!r}]"}
            """,
        )
    manager, reports = load()
    assert [report.error for report in reports.values()] == [None] * 4
    wrappers = manager.wrappers("supervisor_run")
    assert [each.__module__[-1:] for each in wrappers] == [*kinds]
    assert Middleware(wrappers).run(Job(1, "x"), lambda job: ["run"]) == ["run", "a", "c"]

    async def runs(job: Job) -> list[str]:
        return ["run"]

    assert asyncio.run(async_middleware(wrappers)(Job(1, "x"), runs)) == ["run", "a", "c"]


ASYNC_WRAPPER = """
from supervisor import handler, hookimpl
@hookimpl(wrapper=True)
async def supervisor_run(job):
    yield
@handler
async def waits(): ...
"""


def test_sync_handlers_around_which_an_async_wrapper_is_not_run_are_named(put: Put, load: Any) -> None:
    put("plugins/a.py", ASYNC_WRAPPER)
    assert load()[1]["plugins/a.py"].warnings == ()
    put("plugins/b.py", HANDLER.format(name="b", result=1))
    (warning,) = load()[1]["plugins/a.py"].warnings
    assert warning.startswith(
        "supervisor_run (line 3) is async: it wraps async handlers only, and is not run around b;"
    )
    beside = "@hookimpl(wrapper=True, specname='supervisor_run')\ndef of_others(job): return (yield)\n"
    put("plugins/a.py", ASYNC_WRAPPER + beside)
    assert load()[1]["plugins/a.py"].warnings == ()


def test_the_parent_loads_only_plugins_with_its_hooks_that_were_imported_safely(put: Put, tmp_path: Path) -> None:
    put("plugins/worker.py", HANDLER.format(name="h", result=1))
    put("plugins/sink.py", "from supervisor import hookimpl\n@hookimpl\ndef supervisor_sinks(): return {'x': int}\n")
    put(
        "plugins/bad.py",
        "from supervisor import hookimpl\n@hookimpl\ndef supervisor_sinks(): return {}\nraise ValueError\n",
    )
    sources = discover(["plugins"], tmp_path)
    found = PluginManager().load_all(sources)
    parent = PluginManager()
    assert [Path(report.source).name for report in load_parent_side(parent, sources, found)] == ["sink.py"]
    assert parent.merged("supervisor_sinks") == {"x": int}
