"""The programs of the guide to results work beside a supervisor that has the handler of Getting started."""

from __future__ import annotations

import contextlib
import io
import runpy
from collections.abc import Iterator

import pytest

from tests.docs.pages import Block, page
from tests.system.command import Command

PROGRAMS = [block for block in page("guides/results.md").blocks if block.language == "python"]
(THUMBNAIL,) = (block for block in page("getting-started.md").blocks if block.title == "plugins/thumbnails.py")
OUTPUT = {
    "result.py": ["cat.png in 200 pixels"],
    "results.py": ["1000 thumbnails, 0 failures"],
    "async_results.py": [
        "0.png in 200 pixels",
        str([f"{n}.png in 200 pixels" for n in range(1, 5)]),
        *(f"{n + 1} {n}.png in 200 pixels" for n in range(5, 10)),
    ],
}


@pytest.fixture
def served(command: Command, monkeypatch: pytest.MonkeyPatch) -> Iterator[Command]:
    command.write(plugins={"thumbnails.py": THUMBNAIL.text})
    monkeypatch.chdir(command.folder)
    command.run().logged("supervisor started")
    yield command


@pytest.mark.parametrize("block", PROGRAMS, ids=lambda block: block.title)
def test_a_program_of_the_guide_waits_for_its_jobs(block: Block, served: Command) -> None:
    file = served.folder / block.title
    file.write_text(block.text)
    with contextlib.redirect_stdout(output := io.StringIO()):
        runpy.run_path(str(file))
    assert sorted(output.getvalue().splitlines()) == sorted(OUTPUT[block.title])
