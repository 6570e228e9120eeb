"""A browser, and pages in it that report every fault: a dialog, a request to another host, an error of a script, a breach of the CSP."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

from playwright.sync_api import Browser, BrowserContext, Dialog, Page, expect, sync_playwright

OTHER_HOSTS = "MAP jobs.example 127.0.0.1, MAP evil.example 127.0.0.1"
"""Names that lead to this machine, as the names of an owner and of an attacker may."""
NAMES = ("chromium", "chromium-browser", "google-chrome")
TIMEOUT = 20_000.0  # milliseconds, also for what a page shows after its next update
expect.set_options(timeout=TIMEOUT)
REPORT_BREACHES = (
    "addEventListener('securitypolicyviolation', (e) => console.error('breach of the CSP: ' + e.violatedDirective))"
)


def chromium_path() -> str | None:
    """Return the browser that the tests drive: `CHROMIUM` in the environment, or the first one in PATH."""
    return os.environ.get("CHROMIUM") or next((found for name in NAMES if (found := shutil.which(name))), None)


@contextmanager
def running_chromium(path: str) -> Iterator[Browser]:
    # The sandbox of Chromium does not run as root; these pages are our own.
    options = ["--no-sandbox"] if os.geteuid() == 0 else []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=path,
            args=[*options, "--disable-dev-shm-usage", "--disable-gpu", f"--host-resolver-rules={OTHER_HOSTS}"],
        )
        try:
            yield browser
        finally:
            browser.close()


class Visitor:
    """A person with a browser of their own: its cookies are in no other."""

    def __init__(self, browser: Browser, address: str, **options: Any) -> None:
        self.address = address
        self.faults: list[str] = []
        self.context: BrowserContext = browser.new_context(base_url=address, **options)
        self.context.set_default_timeout(TIMEOUT)
        self.context.add_init_script(REPORT_BREACHES)
        self.hosts = {urlsplit(address).netloc}
        """Requests to others are faults."""

    def page(self, path: str | None = None) -> Page:
        """Open a page, at `path` if one is given."""
        page = self.context.new_page()
        page.on("dialog", self._dialog)
        page.on("request", lambda request: self._request(request.url))
        page.on("pageerror", lambda error: self.faults.append(f"error of a script: {error}"))
        page.on("console", lambda message: self._console(message.type, message.text))
        if path is not None:
            page.goto(path)
        return page

    def close(self) -> None:
        self.context.close()
        assert not self.faults, self.faults

    def _dialog(self, dialog: Dialog) -> None:
        self.faults.append(f"dialog: {dialog.message}")
        dialog.dismiss()

    def _request(self, url: str) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("data", "blob", "about") and parts.netloc not in self.hosts:
            self.faults.append(f"request to another host: {url}")

    def _console(self, kind: str, text: str) -> None:
        if kind in ("error", "warning") and not text.startswith("Failed to load resource"):
            self.faults.append(f"{kind} on the console: {text}")
