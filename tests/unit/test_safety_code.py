"""No line of the package runs data as code, passes data to a shell, or reads the frames of threads that run."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FILES = [path for folder in ("supervisor", "plugins", "etc") for path in sorted((ROOT / folder).rglob("*.py"))]

MODULES = {
    "pickle",
    "cPickle",
    "_pickle",
    "dill",
    "cloudpickle",
    "marshal",
    "shelve",
    "multiprocessing",
    "tempfile",
    "pty",
}
BUILTINS = {"eval", "exec", "compile"}
CALLS = {
    "os.system", "os.popen", "os.execl", "os.execlp", "os.execvp", "os.posix_spawnp", "os.spawnlp", "os.spawnvp",
    "subprocess.getoutput", "subprocess.getstatusoutput", "asyncio.create_subprocess_shell",
    "yaml.load", "yaml.load_all", "yaml.full_load", "yaml.unsafe_load", "yaml.Loader", "yaml.FullLoader", "yaml.UnsafeLoader",
    "logging.config", "code.interact", "ctypes.pythonapi",
    "faulthandler.dump_traceback_later", "faulthandler.dump_traceback", "faulthandler.enable", "sys._current_frames",
}  # fmt: skip


def dangers(source: str) -> Iterator[str]:
    """Yield line and name of each dangerous call."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import | ast.ImportFrom):
            roots = [node.module or ""] if isinstance(node, ast.ImportFrom) else [alias.name for alias in node.names]
            names = [f"{root}.{alias.name}" for root in roots for alias in node.names]
            yield from (f"{node.lineno}: import {root}" for root in roots if root.partition(".")[0] in MODULES)
            yield from (f"{node.lineno}: {name}" for name in names if name in CALLS)
        elif isinstance(node, ast.Name) and node.id in BUILTINS:
            yield f"{node.lineno}: {node.id}"
        elif isinstance(node, ast.Attribute) and (name := ast.unparse(node)) in {
            *CALLS,
            *(f"builtins.{builtin}" for builtin in BUILTINS),
        }:
            yield f"{node.lineno}: {name}"
        elif isinstance(node, ast.keyword) and node.arg == "shell":
            yield f"{node.value.lineno}: shell={ast.unparse(node.value)}"


def test_no_file_runs_data_as_code() -> None:
    assert len(FILES) > 100
    found = {str(file.relative_to(ROOT)): list(dangers(file.read_text())) for file in FILES}
    assert {file: lines for file, lines in found.items() if lines} == {}


@pytest.mark.parametrize(
    "line",
    [
        "import pickle",
        "from multiprocessing import Pool",
        "import multiprocessing.connection",
        "eval(text)",
        "run = exec",
        "builtins.eval(text)",
        "os.system(text)",
        "from os import popen",
        "subprocess.run(text, shell=True)",
        "subprocess.Popen(text, shell=wanted)",
        "yaml.load(text, Loader=yaml.Loader)",
        "import tempfile",
        "faulthandler.dump_traceback_later(5)",
    ],
)
def test_a_dangerous_line_is_found(line: str) -> None:
    assert list(dangers(line))
