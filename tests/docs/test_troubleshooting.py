"""Every message in Troubleshooting is one that the code writes, and has a cause and what to do."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache

import pytest

from tests.docs.pages import ROOT, page

GUIDE = page("guides/troubleshooting.md")
MESSAGES = re.findall(r"^### `(.+)`$", GUIDE.prose, re.M)
REASONS = re.findall(r"^\| `(.+?)` \|", GUIDE.section("A job does not run"), re.M)
ANYTHING = "…"
FORMATS = re.compile(r"%(?:\.\d+)?[sdfg]|\{\w*\}")


@cache
def _texts() -> str:
    """The texts in the code of the package, without docstrings, a line each: `…` stands for what is put in."""
    found: list[str] = []
    for path in sorted((ROOT / "supervisor").rglob("*.py")):
        found += _texts_below(ast.parse(path.read_text(encoding="utf-8")))
    return "\n".join(text.replace("\n", " ") for text in found)


def _texts_below(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.JoinedStr):
        yield "".join(part.value if isinstance(part, ast.Constant) else ANYTHING for part in node.values)
    elif isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield FORMATS.sub(ANYTHING, node.value)
    is_docstring = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    for below in () if is_docstring else ast.iter_child_nodes(node):
        yield from _texts_below(below)


def test_the_messages_differ() -> None:
    assert len(MESSAGES) > 40
    assert len(MESSAGES) == len(set(MESSAGES))
    assert len(REASONS) > 15


@pytest.mark.parametrize("message", [*MESSAGES, *REASONS])
def test_a_message_of_the_guide_is_in_the_code(message: str) -> None:
    pattern = ".*".join(re.escape(part) for part in message.split(ANYTHING))
    assert re.search(pattern, _texts())


@pytest.mark.parametrize("message", MESSAGES)
def test_a_message_of_the_guide_has_a_cause_and_what_to_do(message: str) -> None:
    text = GUIDE.section(f"`{message}`")
    assert re.findall(r"^\*\*(.+?)\*\*", text, re.M) == ["Cause.", "What to do."]
