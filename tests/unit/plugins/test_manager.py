from __future__ import annotations

import os
import sys
from collections.abc import Callable
from importlib.metadata import EntryPoint, EntryPoints
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

from supervisor import Job, hookimpl
from supervisor.events import HookFailed
from supervisor.plugins.discovery import discover
from supervisor.plugins.manager import PluginManager, load_parent_side
from supervisor.plugins.reports import SourceReport
from supervisor.workers.child.middleware import Middleware

Put = Callable[..., Path]

HANDLER = "from supervisor import handler\n@handler\ndef {name}(job): return {result!r}\n"


@pytest.fixture
def put(tmp_path: Path) -> Put:
    def put(name: str, text: str | bytes = "") -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(dedent(text).encode() if isinstance(text, str) else text)
        return path

    return put


@pytest.fixture
def load(tmp_path: Path) -> Callable[..., tuple[PluginManager, dict[str, SourceReport]]]:
    """Load everything in the given directories; reports by file name relative to the folder of the test."""

    def load(*paths: str) -> tuple[PluginManager, dict[str, SourceReport]]:
        manager = PluginManager()
        reports = manager.load_all(discover(paths or ("plugins",), tmp_path))
        return manager, {os.path.relpath(report.source, tmp_path): report for report in reports}

    return load


def names(paths: list[str], base: Path) -> list[str]:
    return [os.path.relpath(source.name, base) for source in discover(paths, base)]


# --- finding


def test_a_directory_gives_its_files_and_packages_sorted(put: Put, tmp_path: Path) -> None:
    for name in [
        "b.py",
        "a.py",
        "_x.py",
        ".y.py",
        "notes.txt",
        "pkg/__init__.py",
        "pkg/inner.py",
        "plain/z.py",
        "a.py~",
    ]:
        put(f"plugins/{name}")
    put("plugins/__pycache__/a.py")
    assert names(["plugins"], tmp_path) == ["plugins/a.py", "plugins/b.py", "plugins/pkg"]


def test_files_packages_and_directories_each_once_in_the_order_written(put: Put, tmp_path: Path) -> None:
    put("one/a.py")
    put("two/pkg/__init__.py")
    put("two/b.py")
    assert names(["two/b.py", "one", "two", "./one/a.py", "two/pkg"], tmp_path) == ["two/b.py", "one/a.py", "two/pkg"]


def test_what_is_missing_is_reported(load: Any) -> None:
    manager = PluginManager()
    reports = manager.load_all(discover(["plugins", "gone/", "x.py", "no_such.module"], Path("/nowhere")))
    assert [report.error for report in reports] == [
        "no file or directory /nowhere/plugins, and no module 'plugins' installed",
        "no such file or directory: /nowhere/gone",
        "no such file or directory: /nowhere/x.py",
        "no file or directory /nowhere/no_such.module, and no module 'no_such.module' installed",
    ]


def test_modules_and_entry_points(put: Put, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put("lib/installed_one.py", HANDLER.format(name="one", result=1))
    put("lib/installed_two.py", HANDLER.format(name="two", result=2))
    monkeypatch.syspath_prepend(str(tmp_path / "lib"))
    entry = EntryPoint("extra", "installed_two", "supervisor")
    monkeypatch.setattr("importlib.metadata.entry_points", lambda group: EntryPoints([entry]))
    manager = PluginManager()
    sources = discover(["installed_one"], tmp_path)
    reports = manager.load_all(sources)
    assert [report.source for report in reports] == ["installed_one", "entry point extra (installed_two)"]
    assert {name: found.function(Job(1, name)) for name, found in manager.handlers.items()} == {"one": 1, "two": 2}
    for name in ("installed_one", "installed_two"):
        sys.modules.pop(name)


def test_an_error_inside_a_module_is_not_taken_for_a_missing_one(
    put: Put, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put("lib/installed_bad.py", "\nimport no_such_library\n")
    monkeypatch.syspath_prepend(str(tmp_path / "lib"))
    report = PluginManager().load(discover(["installed_bad"], tmp_path)[0])
    assert report.error == "ModuleNotFoundError: No module named 'no_such_library'"
    assert report.line == 2


# --- handlers


def test_handlers_with_their_options(put: Put, load: Any) -> None:
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
        def say(job): return "hello"
        """,
    )
    manager, _ = load()
    assert manager.handlers["say"].function(Job(1, "say")) == "HELLO"


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
            "@handler(timeout=type('Any', (), {'__eq__': lambda *_: True})())\ndef h(job): ...",
            "timeout: expected a duration",
        ),
        (
            "@handler(backoff={'jitter': type('Any', (), {'__eq__': lambda *_: True})()})\ndef h(job): ...",
            "backoff.jitter: ",
        ),
        ("@handler\ndef h(): ...", "expected a function of one argument, the job, got ()"),
        ("@handler\ndef h(job, extra): ...", "expected a function of one argument, the job, got (job, extra)"),
        ("@handler\nasync def h(job): ...", "async functions are not supported"),
        ("@handler\ndef h(job): yield", "it is a generator"),
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


@pytest.mark.parametrize("name", ["a\nb", "x" * 256, " mail", "mail\u2003", " "])
def test_names_of_handlers(put: Put, load: Any, name: str) -> None:
    put("plugins/a.py", f"from supervisor import handler\n@handler({name!r})\ndef h(job): ...\n")
    _, reports = load()
    assert "expected a name of 1 to 255 printable characters" in (reports["plugins/a.py"].error or "")


@pytest.mark.parametrize("brought", ["[len]", "[1]", "5"])
def test_a_hook_must_bring_handlers(put: Put, load: Any, brought: str) -> None:
    put("plugins/a.py", f"from supervisor import hookimpl\n@hookimpl\ndef supervisor_handlers(): return {brought}\n")
    _, reports = load()
    assert reports["plugins/a.py"].error is not None


# --- two of one name


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


def test_a_third_of_the_name_names_all(put: Put, load: Any) -> None:
    for file in "abc":
        put(f"plugins/{file}.py", HANDLER.format(name="mail", result=file))
    manager, reports = load()
    assert manager.handlers == {}
    assert all(f"plugins/{other}.py:2" in (reports["plugins/a.py"].error or "") for other in "bc")


def test_two_of_one_name_in_one_file(put: Put, load: Any) -> None:
    put("plugins/a.py", HANDLER.format(name="mail", result=1) + "@handler('mail')\ndef again(job): ...\n")
    manager, reports = load()
    assert manager.handlers == {}
    assert "here and in" in (reports["plugins/a.py"].error or "")
    assert "plugins/a.py:2" in (reports["plugins/a.py"].error or "")
    assert reports["plugins/a.py"].line == 4


# --- modules of one name


def test_helpers_of_one_name_in_two_directories_are_kept_apart_now_and_later(put: Put, load: Any) -> None:
    for folder in "ab":
        put(f"{folder}/util.py", f"X = {folder!r}\n")
        put(
            f"{folder}/work.py",
            f"""\
            from supervisor import handler
            import util
            from util import X
            @handler("work-{folder}")
            def work(job):
                import util as late
                return util.X + X + late.X
            """,
        )
    manager, reports = load("a", "b")
    assert all(report.error is None for report in reports.values())
    assert manager.handlers["work-a"].function(Job(1, "")) == "aaa"
    assert manager.handlers["work-b"].function(Job(1, "")) == "bbb"
    assert "util" not in sys.modules


def test_the_standard_library_goes_before_a_file_of_its_name(put: Put, load: Any) -> None:
    put("plugins/json.py", "raise RuntimeError('not this one')")
    put("plugins/work.py", "import json\nimport json.decoder\nfrom json import dumps\nassert dumps([]) == '[]'\n")
    _, reports = load()
    assert reports["plugins/work.py"].error is None


def test_a_file_does_not_find_itself(put: Put, load: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    put("lib/statsd_library.py", "CLIENT = 1\n")
    monkeypatch.syspath_prepend(str(tmp_path / "lib"))
    put("plugins/statsd_library.py", "from statsd_library import CLIENT\n")
    _, reports = load()
    assert reports["plugins/statsd_library.py"].error is None
    sys.modules.pop("statsd_library")


def test_a_file_read_again_is_read_anew(put: Put, load: Any) -> None:
    put("plugins/a.py", "from helper import N\n" + HANDLER.format(name="h", result=1))
    put("plugins/helper.py", "N = 1\n")
    load()
    put("plugins/a.py", "from helper import N\n" + HANDLER.format(name="h", result=2))
    helper = put("plugins/helper.py", "N = 2\n")
    manager, _ = load()
    assert manager.handlers["h"].function(Job(1, "h")) == 2
    assert not list(helper.parent.glob("__pycache__"))


def test_a_file_name_need_not_be_an_identifier(put: Put, load: Any) -> None:
    put("plugins/my-plugin.v2.py", HANDLER.format(name="h", result=1))
    manager, _ = load()
    assert list(manager.handlers) == ["h"]


# --- files that don't import


@pytest.mark.parametrize(
    ("text", "error", "line"),
    [
        ("x = 1\ndef f(:\n", "SyntaxError: invalid syntax", 2),
        ("\n\nimport no_such_module\n", "ModuleNotFoundError: No module named 'no_such_module'", 3),
        ("import sys\nsys.exit(0)\n", "it raised SystemExit, but a plugin must not end the program", 2),
        ("raise KeyboardInterrupt\n", "it raised KeyboardInterrupt", 1),
        ("def deep(): deep()\ndeep()\n", "RecursionError: maximum recursion depth", 1),
        ("raise ValueError('two\\nlines \\udc80')\n", "ValueError: two lines \\udc80", 1),
        (
            "class Bad(Exception):\n    def __str__(self): raise RuntimeError\nraise Bad\n",
            "Bad: <exception str() failed>",
            3,
        ),
        (b"x = '\xff'\n", "SyntaxError: (unicode error)", 1),
        (b"x = 1\x00\n", "SyntaxError: source code string cannot contain null bytes", None),
        ("import broken\n", "SyntaxError: invalid syntax (broken.txt, line 9)", 1),
        ("raise SyntaxError('no', (__file__, 3, 'x', 5))\n", "SyntaxError: ", None),
        (
            "e = ValueError('first')\nfor n in range(2000):\n    last, e = e, ValueError(n)\n    e.__cause__ = last\nraise e\n",
            "ValueError: 1999",
            5,
        ),
    ],
)
def test_a_file_that_does_not_import_is_named_and_the_rest_serve(
    put: Put, load: Any, text: str | bytes, error: str, line: int | None
) -> None:
    put("plugins/bad.py", text)
    put("plugins/broken.py", "raise SyntaxError('invalid syntax', ('broken.txt', 9, 1, 'x'))\n")
    put("plugins/good.py", HANDLER.format(name="good", result=1))
    manager, reports = load()
    bad = reports["plugins/bad.py"]
    assert (bad.error or "").startswith(error)
    assert line is None or bad.line == line
    assert "plugin_modules" not in bad.traceback
    bad.traceback.encode()
    assert list(manager.handlers) == ["good"]


@pytest.mark.parametrize("raised", ["ValueError('x' * 1_000_000)", "SyntaxError('x', (__file__, [], 1, 'x'))"])
def test_what_is_told_of_an_import_is_bounded_and_plain(put: Put, load: Any, raised: str) -> None:
    put("plugins/bad.py", f"raise {raised}\n")
    bad = load()[1]["plugins/bad.py"]
    assert bad.error is not None
    assert len(bad.error) + len(bad.traceback) < 140_000
    assert bad.line in (1, None)


def test_an_object_that_is_not_ready_to_be_asked_is_left_alone(put: Put, load: Any) -> None:
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


def test_files_that_cannot_be_read(put: Put, load: Any, tmp_path: Path) -> None:
    put("plugins/good.py", HANDLER.format(name="good", result=1))
    (tmp_path / "plugins/dangling.py").symlink_to("nowhere.py")
    os.mkfifo(tmp_path / "plugins/pipe.py")
    manager, reports = load()
    assert reports["plugins/dangling.py"].error == "dangling symbolic link to nowhere.py"
    assert reports["plugins/pipe.py"].error == "not a regular file"
    assert list(manager.handlers) == ["good"]


def test_a_file_without_permission(put: Put, load: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    put("plugins/secret.py")

    def refuse(self: Path, *arguments: Any, **options: Any) -> Any:
        if self.name == "secret.py":
            raise PermissionError(13, "Permission denied")
        return opened(self, *arguments, **options)

    opened = Path.open
    monkeypatch.setattr(Path, "open", refuse)
    _, reports = load()
    assert reports["plugins/secret.py"].error == "can't be read: Permission denied"


@pytest.mark.parametrize("path", ["~nosuchuser/x", "~nosuchuser"])
def test_the_home_of_nobody(tmp_path: Path, path: str) -> None:
    (source,) = (found for found in discover([path], tmp_path) if found.entry is None)
    assert source.problem == f"no such file or directory: {tmp_path / path}"


def test_what_cannot_be_looked_at(put: Put, load: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put("plugins/good.py", HANDLER.format(name="good", result=1))
    put("plugins/shut/__init__.py")

    def refuse(self: Path) -> bool:
        if "shut" in self.parts:
            raise PermissionError(13, "Permission denied")
        return is_file(self)

    is_file = Path.is_file
    monkeypatch.setattr(Path, "is_file", refuse)
    manager, reports = load("plugins", "x" * 300, "plugins/shut")
    assert reports["plugins/shut"].error == "can't be looked at: Permission denied"
    assert reports["x" * 300].error == "can't be looked at: File name too long"
    assert list(manager.handlers) == ["good"]


# --- hooks


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
        ("@hookimpl\ndef supervisor_run(job): ...", "supervisor_run: expected @hookimpl(wrapper=True)"),
        ("@hookimpl(wrapper=True)\ndef supervisor_run(job): ...", "supervisor_run: a wrapper yields once"),
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


def test_a_function_that_looks_like_a_hook_is_warned_of(put: Put, load: Any) -> None:
    put("plugins/a.py", "def supervisor_evens(events): ...\ndef supervisor_of_the_world(): ...\n")
    _, reports = load()
    assert reports["plugins/a.py"].error is None
    assert reports["plugins/a.py"].warnings == (
        "supervisor_evens (line 1) is no hook, did you mean 'supervisor_events'?",
    )


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


def test_mappings_of_hooks_are_merged_and_the_first_of_a_name_stays() -> None:
    failed: list[HookFailed] = []
    manager = PluginManager(failed.append)
    for plugin in (Files(), Pager(), Broken()):
        manager.register(plugin, type(plugin).__name__)
    assert manager.merged("supervisor_sinks") == {"file": "first", "pager": "p"}
    assert [(one.plugin, one.error) for one in failed] == [
        ("Pager", "'file' is already brought by Files"),
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


def test_the_parent_loads_only_what_has_a_hook_for_it_and_was_imported_safely(put: Put, tmp_path: Path) -> None:
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
