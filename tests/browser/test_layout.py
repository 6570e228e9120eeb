"""The pages on a phone, in light and in dark, and for people who don't see them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page, expect

from tests.browser.conftest import Visit
from tests.browser.site import Site

PATHS = ["/", "/jobs", "/jobs/{failed}", "/jobs/{running}", "/queues", "/dead-letters", "/jobs/999999"]
LONG = "a_handler_with_a_name_that_is_much_longer_than_any_phone_is_wide_" * 3


@pytest.fixture(scope="module")
def jobs(site: Site, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, int]]:
    """Jobs of each kind, and names and texts without a space to break them at."""
    site.command.enqueue(LONG, {"text": "x" * 3000}, "--queue", LONG[:100])
    failed = site.failed("hostile", {"text": "y" * 3000})
    end = tmp_path_factory.mktemp("layout") / "end"  # the fixture may be made twice for one site
    running = site.report(end)
    site.command.until(running, "in_flight")
    yield {"failed": failed, "running": running}
    end.touch()


def settled(page: Page, path: str) -> None:
    page.goto(path)
    if "999" not in path:
        expect(page.get_by_text("Live", exact=True)).to_be_visible()


@pytest.mark.parametrize("path", PATHS)
def test_a_page_is_accessible_in_light_and_dark(site: Site, visit: Visit, jobs: dict[str, int], path: str) -> None:
    page = visit(site).page()
    settled(page, path.format(**jobs))
    for details in page.locator("main details").all()[:3]:
        details.evaluate("(it) => { it.open = true; }")
    assert_accessible(page)


def test_the_login_is_accessible_in_light_and_dark(guarded: Site, visit: Visit) -> None:
    page = visit(guarded).page("/login")
    page.get_by_label("Token").fill("wrong")
    page.get_by_role("button", name="Log in").click()
    expect(page.get_by_role("alert")).to_be_visible()
    assert_accessible(page)
    page.set_viewport_size({"width": 390, "height": 844})
    assert width(page) <= 390


def assert_accessible(page: Page) -> None:
    found: list[Any] = []
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
        result = Axe().run(page, options={"resultTypes": ["violations"]})
        found += [
            (
                scheme,
                each["id"],
                each["help"],
                [(node["html"][:150], node["failureSummary"][:200]) for node in each["nodes"][:3]],
            )
            for each in result.response["violations"]
        ]
    assert not found, found


@pytest.mark.parametrize("path", PATHS)
def test_a_page_fits_a_phone(site: Site, visit: Visit, jobs: dict[str, int], path: str) -> None:
    page = visit(
        site, viewport={"width": 390, "height": 844}, has_touch=True, is_mobile=True, device_scale_factor=2
    ).page()
    settled(page, path.format(**jobs))
    assert width(page) <= 390
    small = page.evaluate(
        """() => [...document.querySelectorAll("button, summary, select, input:not([type=hidden], [type=checkbox]), nav a")]
            .filter((it) => it.checkVisibility() && it.getBoundingClientRect().height < 24).map((it) => it.outerHTML.slice(0, 100))"""
    )
    assert not small, f"less than 24 pixels high, too small for a finger: {small}"


def width(page: Page) -> int:
    found: int = page.evaluate("document.documentElement.scrollWidth")
    return found
