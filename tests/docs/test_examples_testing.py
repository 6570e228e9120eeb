"""The tests in the pages pass, with the fixture as an installed package has it; and the reference has all of the testing kit."""

from __future__ import annotations

import inspect
import os
import re
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

from supervisor.testing import EnqueuedJob, JobRunner
from tests.docs.pages import ROOT, codes, page, rows

GUIDE = page("guides/testing.md")


def _pytest(folder: Path, *arguments: str) -> str:
    command = [sys.executable, "-m", "pytest", "-p", "supervisor.testing.pytest_plugin", "-p", "no:cacheprovider"]
    command += [f"-pno:{name}" for name in ("schemathesis", "hypothesispytest", "anyio")]  # slow to import
    environment = {**os.environ, "PYTHONPATH": f"{folder}{os.pathsep}{ROOT}"}
    run = subprocess.run([*command, *arguments], cwd=folder, env=environment, capture_output=True, text=True)
    return run.stdout + run.stderr


def test_the_tests_of_the_guide_pass(tmp_path: Path) -> None:
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc" / "supervisor.yaml").write_text("workers: {count: 1}\n")
    (tmp_path / "plugins").mkdir()
    written = [block for block in GUIDE.blocks if block.title]
    for block in written:
        (tmp_path / block.title).write_text(block.text)
    count = sum(block.text.count("\ndef test_") for block in written)
    assert f"{count} passed" in (output := _pytest(tmp_path)), output


def test_the_test_of_a_handler_in_its_guide_passes(tmp_path: Path) -> None:
    (block,) = (block for block in page("guides/handlers.md").blocks if "job_runner" in block.text)
    (tmp_path / block.title).write_text(block.text)
    assert "1 passed" in (output := _pytest(tmp_path)), output


def test_every_attribute_is_in_the_reference_with_its_arguments() -> None:
    written = [codes(row[0])[0] for row in rows(page("reference/python-api.md").section("For tests"))]
    public = {name: value for name, value in vars(JobRunner).items() if not name.startswith("_")}
    assert sorted(re.match(r"\w+", each)[0] for each in written) == sorted(public)  # type: ignore[index]
    for each in written:
        name, _, arguments = each.removesuffix(")").partition("(")
        if arguments:
            own = [
                re.sub(r": [^=]*?( = |$)", r"\1", str(it)) for it in inspect.signature(public[name]).parameters.values()
            ]
            assert [it.replace(" = ", "=") for it in own if it != "self"] == [
                it for it in arguments.split(", ") if it not in ("*", "/")
            ]


def test_every_attribute_of_an_enqueued_job_is_in_the_guide() -> None:
    section = GUIDE.section("Jobs that are enqueued")
    assert {code for row in rows(section) for code in codes(row[0])} == {each.name for each in fields(EnqueuedJob)}
