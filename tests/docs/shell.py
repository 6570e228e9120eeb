"""Commands of the pages: found in their blocks, and run as a reader would run them."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Collection, Iterator
from pathlib import Path

from tests.docs.pages import ROOT, Block, Page

PROMPT = "$ "
ANY_LINES = "…"


def commands_in(block: Block) -> Iterator[list[str]]:
    """The words of each simple command, without redirections and folders of programs."""
    for line in _lines(block):
        words: list[str] = []
        lexer = shlex.shlex(line, posix=True, punctuation_chars="&|;<>")
        lexer.whitespace_split = True
        for word in [*lexer, ";"]:
            if set(word) <= set("&|;"):
                if words:
                    yield _without_redirections(words)
                words = []
            else:
                words.append(word)


def run_page(page: Page, folder: Path, languages: Collection[str]) -> None:
    """Write the files of the page and run its commands, in order; console blocks have the output that is expected."""
    for block in page.blocks:
        if block.title and block.title != "signature":
            file = folder / block.title
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(block.text)
        if block.language not in languages:
            continue
        for command, expected in _calls(block):
            ended = _run(command, folder)
            assert ended.returncode == 0, f"{block.where}: {command}\n{ended.stdout}{ended.stderr}"
            if expected is not None:
                assert re.fullmatch(_pattern(expected), ended.stdout), f"{block.where}: {command}\n{ended.stdout}"


def _lines(block: Block) -> list[str]:
    lines = block.text.splitlines()
    if block.language == "console":
        return [line.removeprefix(PROMPT) for line in lines if line.startswith(PROMPT)]
    return [line for line in lines if line and not line.startswith("#")]


def _calls(block: Block) -> Iterator[tuple[str, str | None]]:
    if block.language == "python":
        if "/" not in block.title:
            yield f"python {block.title}", None
        return
    if block.language != "console":
        yield from ((line, None) for line in _lines(block))
        return
    for call in block.text.split(PROMPT)[1:]:
        command, output = call.split("\n", 1)
        yield command, output


def _pattern(expected: str) -> str:
    """`…` stands for any text in a line, or by itself for any lines."""
    lines = [
        r"(?:.*\n)*?" if line == ANY_LINES else ".*".join(map(re.escape, line.split(ANY_LINES))) + r" *\n"
        for line in expected.splitlines()
    ]
    return "".join(lines)


def _run(command: str, folder: Path) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("SUPERVISOR_")}
    environment = {**kept, "PYTHONPATH": str(ROOT)}
    python = shlex.quote(sys.executable)
    script = f'python() {{ {python} "$@"; }}\nsupervisor() {{ python -m supervisor "$@"; }}\n{command}'
    return subprocess.run(
        ["bash", "-c", script], cwd=folder, env=environment, capture_output=True, text=True, timeout=60
    )


def _without_redirections(words: list[str]) -> list[str]:
    kept = list(words)
    while "<" in kept:
        del kept[kept.index("<") : kept.index("<") + 2]
    return [Path(kept[0]).name, *kept[1:]]
