"""Take the pictures of the documentation: `python -m tests.browser.screenshots`.

They show a shop with some jobs behind it, whose supervisor runs for the time of the pictures.
"""

from __future__ import annotations

import math
import random
import sys
import tempfile
import threading
import time
from pathlib import Path

from playwright.sync_api import Browser, Page, expect

from tests.browser.browser import Visitor, chromium_path, running_chromium
from tests.browser.site import Site, served

FOLDER = Path(__file__).parents[2] / "docs" / "pictures"
MAX_BYTES = 150_000
PICTURES = (("dashboard-1280", 1280, 1080, "light"), ("dashboard-390", 390, 844, "dark"))
SECONDS = 62
"""The shop is open for so long before the pictures. In the charts it is an hour: a clock of theirs shows minutes for seconds."""
FAST_CHARTS = """
import time
from supervisor.telemetry import history

history.PERIOD = 0.2
history.History.__init__.__defaults__ = (lambda: 60 * time.monotonic(),)
"""


def main() -> int:
    path = chromium_path()
    if path is None:
        print(
            "no Chromium: apt-get install --no-install-recommends chromium, or set CHROMIUM to its path",
            file=sys.stderr,
        )
        return 1
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "sitecustomize.py").write_text(FAST_CHARTS)
        with served(Path(folder), path=folder) as site, running_chromium(path) as browser:
            stop = threading.Event()
            trading = threading.Thread(target=trade, args=(site, stop))
            trading.start()
            time.sleep(SECONDS)
            try:
                sizes = [take(site, browser, *picture) for picture in PICTURES]
            finally:
                stop.set()
                trading.join()
    print(*sizes, sep="\n")
    return 0


def trade(site: Site, stop: threading.Event) -> None:
    """Enqueue what a shop has to do."""
    chance = random.Random(1)
    site.report(site.command.folder / "never")
    for number in range(4):
        site.command.enqueue("send_mail", {"order": number}, "--queue", "mail", "--delay", "1h")
    begin, order = time.monotonic(), 1000
    while not stop.wait(0.3):
        order, passed = order + 1, time.monotonic() - begin
        mails = round(14 + 8 * math.sin(passed / 9) + chance.randint(0, 6))
        jobs = [{"handler": "send_mail", "payload": {"order": order}, "queue": "mail"} for _ in range(mails)]
        if chance.random() < 0.3:
            jobs.append({"handler": "charge_card", "payload": {"order": order, "amount": "12.50"}, "max_retries": 0})
        if chance.random() < 0.15:
            jobs.append({"handler": "crash", "payload": {"order": order}, "max_retries": 1})
        site.command.enqueue_many(jobs)


def take(site: Site, browser: Browser, name: str, width: int, height: int, scheme: str) -> str:
    visitor = Visitor(browser, site.address, viewport={"width": width, "height": height}, color_scheme=scheme)
    page: Page = visitor.page("/")
    expect(page.get_by_text("Live", exact=True)).to_be_visible()
    file = FOLDER / f"{name}.png"
    file.parent.mkdir(parents=True, exist_ok=True)
    page.screenshot(path=file, animations="disabled")
    visitor.close()
    assert file.stat().st_size <= MAX_BYTES, f"{file}: {file.stat().st_size} bytes, expected at most {MAX_BYTES}"
    return f"{file}: {file.stat().st_size} bytes"


if __name__ == "__main__":
    sys.exit(main())
