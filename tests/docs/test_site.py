"""The pages hang together: links lead somewhere, named files exist, and nothing comes from the net."""

from __future__ import annotations

import re
from typing import Any
from xml.etree import ElementTree

import pytest
import yaml

from tests.docs.pages import DOCS, ROOT, Page, code_in_prose, first_column, page, pages

CONFIG: dict[str, Any] = yaml.safe_load((ROOT / "mkdocs.yml").read_text())


def _listed(entries: Any) -> list[str]:
    if isinstance(entries, str):
        return [entries]
    parts = entries.values() if isinstance(entries, dict) else entries
    return [name for part in parts for name in _listed(part)]


def _anchors(of: Page) -> set[str]:
    """The ids that the site gives the headings."""
    plain = (re.sub(r"[^\w\s-]", "", heading).strip().lower() for heading in of.headings)
    return {re.sub(r"[\s-]+", "-", heading) for heading in plain}


def test_every_page_is_in_the_navigation_once() -> None:
    assert sorted(_listed(CONFIG["nav"])) == sorted(str(path.relative_to(DOCS)) for path in DOCS.rglob("*.md"))


LINKING = [*pages(), Page(ROOT / "CONTRIBUTING.md"), Page(ROOT / "CHANGELOG.md")]


@pytest.mark.parametrize("each", LINKING, ids=lambda each: each.name)
def test_links_lead_somewhere(each: Page) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", each.prose):
        path, _, anchor = target.partition("#")
        file = (each.path.parent / path).resolve() if path else each.path
        assert file.exists(), target
        assert not anchor or anchor in _anchors(Page(file)), target


def test_the_site_needs_nothing_from_the_net() -> None:
    assert CONFIG["theme"]["font"] is False
    assert not {"extra_javascript", "extra_css", "repo_url"} & CONFIG.keys()
    for each in pages():
        assert not re.search(r"\]\(https?:|<script|```mermaid", each.source), each.name


def test_a_broken_link_fails_the_build_of_the_site() -> None:
    assert CONFIG["strict"] is True
    assert set(CONFIG["validation"]["links"].values()) == {"warn"}
    assert "mkdocs build --strict" in (ROOT / ".ci/run").read_text()


@pytest.mark.parametrize("path", sorted(DOCS.rglob("*.svg")), ids=lambda path: path.name)
def test_diagrams_can_be_read_in_light_and_dark(path: Any) -> None:
    ElementTree.parse(path)
    text = path.read_text()
    assert "prefers-color-scheme: dark" in text and "<title" in text
    assert any(f"diagrams/{path.name}" in each.source for each in pages())


def test_named_files_exist() -> None:
    for where, code in code_in_prose():
        if re.fullmatch(r"(?:etc|tests|supervisor|plugins|docs)/[\w./-]*\w", code):
            assert (ROOT / code).exists(), (where, code)


def test_the_source_tree_is_the_one_that_there_is() -> None:
    written = first_column(page("architecture.md").section("Source tree"))
    folders = {str(path.parent.relative_to(ROOT / "supervisor")) for path in (ROOT / "supervisor").rglob("__init__.py")}
    named = {name.removeprefix("supervisor/").rstrip("/") for name in written}
    assert named <= folders
    assert folders - named <= {".", "cli/bench", "cli/live"}


def test_the_channels_of_a_worker_are_those_of_the_code() -> None:
    from supervisor.workers.channels import WorkerEnds

    written = first_column(page("architecture.md").section("Descriptors").partition("Other descriptors")[0])
    assert written == list(WorkerEnds._fields)
