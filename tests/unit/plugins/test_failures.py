from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from tests.unit.plugins.conftest import HANDLER, Put


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
def test_the_report_of_an_import_is_bounded_and_plain(put: Put, load: Any, raised: str) -> None:
    put("plugins/bad.py", f"raise {raised}\n")
    bad = load()[1]["plugins/bad.py"]
    assert bad.error is not None
    assert len(bad.error) + len(bad.traceback) < 140_000
    assert bad.line in (1, None)


def test_files_that_cannot_be_read_are_reported(put: Put, load: Any, tmp_path: Path) -> None:
    put("plugins/good.py", HANDLER.format(name="good", result=1))
    (tmp_path / "plugins/dangling.py").symlink_to("nowhere.py")
    os.mkfifo(tmp_path / "plugins/pipe.py")
    manager, reports = load()
    assert reports["plugins/dangling.py"].error == "dangling symbolic link to nowhere.py"
    assert reports["plugins/pipe.py"].error == "not a regular file"
    assert list(manager.handlers) == ["good"]


def test_a_file_without_permission_is_reported(put: Put, load: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    put("plugins/secret.py")

    def refuse(self: Path, *arguments: Any, **options: Any) -> Any:
        if self.name == "secret.py":
            raise PermissionError(13, "Permission denied")
        return opened(self, *arguments, **options)

    opened = Path.open
    monkeypatch.setattr(Path, "open", refuse)
    _, reports = load()
    assert reports["plugins/secret.py"].error == "can't be read: Permission denied"
