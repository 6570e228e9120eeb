"""Texts of strangers on the pages: they are shown as they are, and do nothing."""

from __future__ import annotations

import pytest
from playwright.sync_api import expect

from tests.browser.conftest import Visit
from tests.browser.site import Site

HOSTILE = (
    '<script>alert(1)</script><img src="https://evil.example/x.png" onerror="alert(2)">"><svg/onload=alert(3)>'
    "' onmouseover='alert(4)' x='</pre></textarea></title><iframe src=javascript:alert(5)>{{7*7}}${7*7}</script><!--"
)
NAME = "<img/src=x/onerror=alert(6)>'\"&lt;b>"
TURNED = "txt.\u202egpj.exe \x1b[31m\u2028\x00 e" + "\u0301" * 30


@pytest.fixture(scope="module")
def hostile(site: Site) -> int:
    """A failed job with hostile texts wherever a program can put them."""
    id = site.failed("hostile", {"text": HOSTILE + TURNED, HOSTILE: [HOSTILE]}, "--queue", NAME)
    site.command.enqueue(NAME, {"text": HOSTILE})
    site.command.enqueue("javascript:alert(8)", HOSTILE)
    return id


@pytest.mark.parametrize(
    "path", ["/", "/jobs", "/jobs/{id}", "/queues", "/dead-letters", "/jobs?queue={name}&text={text}"]
)
def test_a_hostile_text_is_only_shown(site: Site, visit: Visit, hostile: int, path: str) -> None:
    page = visit(site).page()
    page.goto(
        path.format(
            id=hostile,
            name="%3Cimg/src=x/onerror=alert(6)%3E%27%22%26lt;b%3E",
            text="%22%3E%3Cscript%3Ealert(9)%3C/script%3E",
        )
    )
    expect(page.locator("#live")).to_have_text("" if "text=" in path else "Live")  # a search is not repeated
    if path == "/jobs/{id}":
        expect(page.get_by_role("region", name="Payload")).to_contain_text("<script>alert(1)</script>")
        expect(page.locator("#job_attempts")).to_contain_text("{{7*7}}${7*7}")
    elif "text=" not in path:
        expect(page.get_by_text("onerror=alert(").first).to_be_visible()
    assert (
        page.locator("main img, main iframe, main script, main [onerror], main [onload], main [onmouseover]").count()
        == 0
    )
    assert page.locator("a[href^='javascript:' i]").count() == 0
    for element in page.locator("main a:visible").all()[:5]:
        element.hover()


def test_a_hostile_address_is_only_shown(site: Site, visit: Visit) -> None:
    page = visit(site).page()
    for path in (
        "/jobs/%3Cscript%3Ealert(1)%3C/script%3E",
        "/%3Cimg%20src=x%20onerror=alert(1)%3E",
        "/jobs?state=%3Csvg/onload=alert(1)%3E",
    ):
        answer = page.goto(path)
        assert answer is not None and answer.status in (400, 404, 405)
        assert page.locator("main").count() == 1
