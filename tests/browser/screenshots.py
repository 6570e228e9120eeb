"""Take the pictures of the documentation: `python -m tests.browser.screenshots`.

They show a shop with some jobs behind it, whose supervisor runs for the time of the pictures.
"""

from __future__ import annotations

import random
import sys
import tempfile
import time
from pathlib import Path

from playwright.sync_api import Browser, Page, expect

from tests.browser.browser import Visitor, chromium_path, running_chromium
from tests.browser.site import Site, served

FOLDER = Path(__file__).parents[2] / "docs" / "pictures"
MAX_BYTES = 150_000
SECONDS = 45
"""The shop is open for so long before the pictures, so that the charts have something to show."""


def main() -> int:
    path = chromium_path()
    if path is None:
        print(
            "no Chromium: apt-get install --no-install-recommends chromium, or set CHROMIUM to its path",
            file=sys.stderr,
        )
        return 1
    with tempfile.TemporaryDirectory() as folder, served(Path(folder)) as site, running_chromium(path) as browser:
        trade(site)
        for name, width, height, scheme in (
            ("dashboard-1280", 1280, 900, "light"),
            ("dashboard-390", 390, 844, "dark"),
        ):
            take(site, browser, name, width, height, scheme)
    return 0


def trade(site: Site) -> None:
    """Enqueue what a shop has to do, for some time."""
    chance = random.Random(1)
    site.report(site.command.folder / "never")
    for number in range(4):
        site.command.enqueue("send_mail", {"order": number}, "--queue", "mail", "--delay", "1h")
    end = time.monotonic() + SECONDS
    order = 1000
    while time.monotonic() < end:
        order += 1
        jobs = [
            {"handler": "send_mail", "payload": {"order": order}, "queue": "mail"} for _ in range(chance.randint(1, 8))
        ]
        if chance.random() < 0.2:
            jobs.append({"handler": "charge_card", "payload": {"order": order, "amount": "12.50"}, "max_retries": 0})
        if chance.random() < 0.1:
            jobs.append({"handler": "crash", "payload": {"order": order}, "max_retries": 0})
        site.command.enqueue_many(jobs)
        time.sleep(0.4)


def take(site: Site, browser: Browser, name: str, width: int, height: int, scheme: str) -> None:
    visitor = Visitor(browser, site.address, viewport={"width": width, "height": height}, color_scheme=scheme)
    page: Page = visitor.page("/")
    expect(page.get_by_text("Live", exact=True)).to_be_visible()
    file = FOLDER / f"{name}.png"
    file.parent.mkdir(parents=True, exist_ok=True)
    page.screenshot(path=file, animations="disabled")
    visitor.close()
    assert file.stat().st_size <= MAX_BYTES, f"{file}: {file.stat().st_size} bytes, expected at most {MAX_BYTES}"
    print(file, file.stat().st_size, "bytes")


if __name__ == "__main__":
    sys.exit(main())
