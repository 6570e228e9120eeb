"""See and steer jobs with a browser."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from tests.browser.conftest import Visit
from tests.browser.site import Site, served

STAYED = "window.stayed = true"


def live(page: Page) -> None:
    """Wait until the page is kept up to date, and mark it: a reload would lose the mark."""
    expect(page.get_by_text("Live", exact=True)).to_be_visible()
    page.evaluate(STAYED)


def stayed(page: Page) -> bool:
    return page.evaluate("window.stayed === true") is True


@pytest.fixture
def failed(site: Site) -> Iterator[int]:
    """A job that has failed, and succeeds when it runs again."""
    yield site.failed("charge_card", {"account": 7})
    site.repaired.unlink(missing_ok=True)


def test_a_failed_job_is_retried_by_its_button(site: Site, visit: Visit, failed: int) -> None:
    page = visit(site).page("/jobs?state=failed")
    page.get_by_role("link", name=str(failed), exact=True).click()
    live(page)
    expect(page.get_by_text("ConnectionError: bank.example refused the connection").first).to_be_visible()
    expect(page.get_by_text("calling the bank").first).to_be_visible()
    site.repaired.touch()
    page.get_by_role("button", name="Retry").click()
    expect(page.get_by_text(f"Job {failed} runs again")).to_be_visible()
    expect(page.locator("h1 .state")).to_have_text("succeeded")
    assert stayed(page)
    assert site.command.job(failed)["state"] == "succeeded"


def test_a_button_works_without_scripts(site: Site, visit: Visit, failed: int) -> None:
    page = visit(site, java_script_enabled=False).page(f"/jobs/{failed}")
    site.repaired.touch()
    page.get_by_role("button", name="Retry").click()
    expect(page).to_have_url(f"{site.address}/jobs/{failed}")
    site.command.until(failed, "succeeded")
    page.reload()
    expect(page.locator("h1 .state")).to_have_text("succeeded")


def test_the_first_page_changes_while_it_is_open(site: Site, visit: Visit) -> None:
    page = visit(site).page("/")
    live(page)
    queue, flag = page.locator("#queues tr", has_text="reports"), site.command.folder / "report"
    id = site.report(flag)
    try:
        expect(queue).to_be_visible()
        expect(page.locator("#supervisors").get_by_role("link", name=str(id), exact=True)).to_be_visible()
        expect(page.locator("#supervisors")).to_contain_text("build_report")
    finally:
        flag.touch()
    expect(page.locator("#supervisors").get_by_role("link", name=str(id), exact=True)).to_have_count(0)
    crashed = site.failed("crash")
    expect(page.locator("#failures tr", has_text="crash")).to_be_visible()
    expect(page.locator("#dead_letters").get_by_role("link", name=str(crashed), exact=True)).to_be_visible()
    assert stayed(page)


def test_a_queue_is_paused_and_resumed(site: Site, visit: Visit) -> None:
    site.command.until(site.mail(), "succeeded")
    page = visit(site).page("/queues")
    live(page)
    row = page.get_by_role("row", name="mail")
    row.get_by_role("button", name="Pause").click()
    expect(row.get_by_text("paused", exact=False).first).to_be_visible()
    waiting = site.mail()
    page.goto(f"/jobs/{waiting}")
    expect(page.get_by_text("queue mail is paused", exact=False)).to_be_visible()
    page.goto("/queues")
    row.get_by_role("button", name="Resume").click()
    site.command.until(waiting, "succeeded")


def test_dead_letters_are_redriven_one_by_one_and_selected(site: Site, visit: Visit) -> None:
    ids = [site.failed("charge_card", {"account": n}) for n in range(3)]
    page = visit(site).page("/dead-letters")
    live(page)
    site.repaired.touch()
    try:
        page.get_by_role("button", name=f"Redrive job {ids[0]}", exact=True).click()
        site.command.until(ids[0], "succeeded")
        expect(page.get_by_role("link", name=str(ids[0]), exact=True)).to_have_count(0)
        for id in ids[1:]:
            page.get_by_label(f"Select job {id}", exact=True).check()
        page.get_by_role("button", name="Redrive selected").click()
        expect(page.get_by_text("2 dead letters redriven")).to_be_visible()
        for id in ids[1:]:
            site.command.until(id, "succeeded")
    finally:
        site.repaired.unlink()


def test_a_keyboard_is_enough(site: Site, visit: Visit, failed: int) -> None:
    page = visit(site).page("/jobs?state=failed")
    live(page)
    page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="Skip to the content")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.locator("main")).to_be_focused()
    tab_to(page, f"a[href='/jobs/{failed}']")
    page.keyboard.press("Enter")
    expect(page).to_have_url(f"{site.address}/jobs/{failed}")
    live(page)
    tab_to(page, "details.careful summary")
    page.keyboard.press("Enter")
    expect(page.get_by_role("button", name="Delete the job")).to_be_visible()
    page.keyboard.press("Tab")
    page.keyboard.press("Escape")
    expect(page.get_by_role("button", name="Delete the job")).to_be_hidden()
    expect(page.locator("details.careful summary")).to_be_focused()
    site.repaired.touch()
    page.keyboard.press("Shift+Tab")
    expect(page.get_by_role("button", name="Retry")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.locator("h1 .state")).to_have_text("succeeded")
    assert stayed(page)


def tab_to(page: Page, selector: str, most: int = 100) -> None:
    """Press Tab until an element has the focus, which has to be seen on each that gets it."""
    for _ in range(most):
        page.keyboard.press("Tab")
        found, seen, what = page.evaluate(
            """(selector) => {
                const it = document.activeElement, style = getComputedStyle(it);
                return [it.matches(selector), it === document.body || style.outlineStyle !== "none" || style.boxShadow !== "none", it.outerHTML.slice(0, 100)];
            }""",
            selector,
        )
        assert seen, f"the focus is not seen on {what}"
        if found:
            return
    raise AssertionError(f"{selector} is not reached by Tab")


def test_a_part_that_changes_keeps_the_focus_and_what_is_open(site: Site, visit: Visit, failed: int) -> None:
    page = visit(site).page(f"/jobs/{failed}")
    live(page)
    page.locator("details.careful summary").press("Enter")
    page.get_by_role("button", name="Delete the job").focus()
    site.command.ask("jobs", "retry", str(failed))
    expect(page.get_by_role("heading", name="Failed attempts 2")).to_be_visible()
    expect(page.get_by_role("button", name="Delete the job")).to_be_focused()
    assert stayed(page)


def test_a_page_goes_on_after_the_supervisor_was_killed_and_started_again(tmp_path: Path, visit: Visit) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with served(tmp_path, http=f'{{listen: "127.0.0.1:{port}"}}') as site:
        page = visit(site).page("/jobs")
        live(page)
        site.run.kill()
        expect(page.locator("#live")).to_have_text("Connecting…")
        id = site.command.enqueue("send_mail", {})
        site.command.run()
        expect(page.get_by_text("Live", exact=True)).to_be_visible()
        expect(page.get_by_role("row", name=str(id)).get_by_text("succeeded")).to_be_visible()
        assert stayed(page)
