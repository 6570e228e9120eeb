"""Log in and out with a browser."""

from __future__ import annotations

import http.server
import threading
from collections.abc import Iterator
from functools import partial

import pytest
from playwright.sync_api import Page, expect

from tests.browser.conftest import Visit
from tests.browser.site import TOKEN, Site


def log_in(page: Page, token: str = TOKEN) -> None:
    page.get_by_label("Token").fill(token)
    page.get_by_role("button", name="Log in").click()


def test_a_person_logs_in_and_out(guarded: Site, visit: Visit) -> None:
    visitor = visit(guarded)
    page = visitor.page("/jobs?state=failed")
    expect(page).to_have_title("Log in · supervisor")
    log_in(page, "wrong")
    expect(page.get_by_role("alert")).to_have_text("This is not the token of this supervisor.")
    log_in(page)
    expect(page).to_have_url(guarded.address + "/jobs?state=failed")
    expect(page.get_by_role("heading", name="Jobs", exact=True)).to_be_visible()
    assert page.evaluate("document.cookie") == ""
    (cookie,) = visitor.context.cookies()
    assert (cookie["httpOnly"], cookie["sameSite"], cookie["secure"]) == (True, "Strict", False)
    page.get_by_role("button", name="Log out").click()
    expect(page.get_by_label("Token")).to_be_focused()
    assert not visitor.context.cookies()
    assert page.goto("/queues").url.startswith(guarded.address + "/login?next=")  # type: ignore[union-attr]


def test_an_open_page_leads_to_the_login_when_its_session_has_ended(guarded: Site, visit: Visit) -> None:
    visitor = visit(guarded)
    page = visitor.page("/queues")
    log_in(page)
    expect(page.get_by_text("Live", exact=True)).to_be_visible()
    other = visitor.page("/jobs")
    other.get_by_role("button", name="Log out").click()
    expect(other.get_by_label("Token")).to_be_visible()
    expect(page.get_by_label("Token")).to_be_visible()  # its stream has ended, and no other one begins
    log_in(page)
    expect(page).to_have_url(guarded.address + "/queues")


def test_a_button_leads_to_the_login_when_its_session_has_ended(guarded: Site, visit: Visit) -> None:
    id = guarded.failed("charge_card")
    visitor = visit(guarded)
    page = visitor.page(f"/jobs/{id}")
    log_in(page)
    expect(page.get_by_text("Live", exact=True)).to_be_visible()
    visitor.context.clear_cookies()
    page.get_by_role("button", name="Retry").click()
    expect(page.get_by_label("Token")).to_be_visible()
    assert guarded.command.job(id)["state"] == "failed"


def test_a_person_logs_in_over_a_network(guarded: Site, visit: Visit) -> None:
    """Without TLS, browsers do not send Sec-Fetch-Site, except to this machine: Origin is all there is."""
    id = guarded.failed("charge_card")
    page = visit(under(guarded, "jobs.example"), java_script_enabled=False).page(f"/jobs/{id}")
    log_in(page)
    guarded.repaired.touch()
    try:
        page.get_by_role("button", name="Retry").click()
        guarded.command.until(id, "succeeded")
    finally:
        guarded.repaired.unlink()


def test_a_name_that_leads_to_this_machine_shows_nothing(site: Site, visit: Visit) -> None:
    visitor = visit(under(site, "evil.example"))
    answer = visitor.page().goto("/jobs")
    assert answer is not None and answer.status == 421
    page = visitor.page()
    page.goto(visitor.address + "/livez")
    found = page.evaluate("fetch('/api/queues/default/pause', {method: 'POST'}).then((it) => it.status)")
    assert found == 421


def under(site: Site, host: str) -> Site:
    return site._replace(address=site.address.replace("127.0.0.1", host))


class Attack(http.server.BaseHTTPRequestHandler):
    """A page on another port of the same host: browsers send it, and with requests from it, the same cookies."""

    def __init__(self, target: str, *arguments: object) -> None:
        self.page = f"""<!doctype html><title>attack</title><iframe name="hidden"></iframe>
            <form method="post" action="{target}" target="hidden"></form>
            <script>
              document.forms[0].submit();
              const send = (headers) => fetch("{target}", {{method: "POST", mode: "no-cors", credentials: "include", headers}});
              Promise.allSettled([send({{}}), send({{"Content-Type": "text/plain"}})]).then(() => document.title = "done");
            </script>"""
        super().__init__(*arguments)  # type: ignore[arg-type]

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.end_headers()
        self.wfile.write(self.page.encode())

    def log_message(self, *arguments: object) -> None: ...


@pytest.fixture
def attacked(guarded: Site) -> Iterator[tuple[int, str]]:
    """A failed job, and the address of a page that tries to retry it."""
    id = guarded.failed("charge_card")
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), partial(Attack, f"{guarded.address}/jobs/{id}/retry"))
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    yield id, f"http://127.0.0.1:{server.server_port}/"
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_page_of_another_port_changes_nothing(guarded: Site, attacked: tuple[int, str], visit: Visit) -> None:
    id, address = attacked
    visitor = visit(guarded)
    log_in(visitor.page("/login"))
    answers: list[int] = []
    page = visitor.context.new_page()
    page.on("response", lambda response: answers.append(response.status) if "/retry" in response.url else None)
    page.goto(address)
    expect(page).to_have_title("done")
    page.wait_for_timeout(200)
    assert answers and set(answers) == {403}
    assert guarded.command.job(id)["state"] == "failed"
    assert len(guarded.command.job(id)["errors"]) == 1
