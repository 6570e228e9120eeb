"""The pages of the real command: what runs is shown, an open page is told of changes, and it does not hold up the end."""

from __future__ import annotations

import http.client
import json
import signal
from collections.abc import Iterator
from typing import Any

from tests.system.command import Command
from tests.system.test_http import start


def parts(stream: http.client.HTTPResponse) -> Iterator[dict[str, Any]]:
    """Yield the parts of an open page that have changed, until the stream ends."""
    event = b""
    for line in stream:
        if line.startswith(b"event: "):
            event = line.strip()
        elif line.startswith(b"data: ") and event == b"event: parts":
            yield json.loads(line.removeprefix(b"data: "))


def test_an_open_page_has_what_runs_and_ends_with_the_supervisor(command: Command) -> None:
    run, site = start(command)
    page = site.ask("/", Accept="text/html")
    assert (
        page.status == 200
        and "All well" in page.body
        and "default-src 'self'" in page.headers["content-security-policy"]
    )
    connection = http.client.HTTPConnection("127.0.0.1", site.port, timeout=30)
    connection.request("GET", "/events?page=/")
    changes = parts(connection.getresponse())
    assert next(changes).keys() >= {"problems", "charts", "queues", "supervisors", "failures", "dead_letters"}
    flag = command.folder / "flag"
    runs = command.enqueue("waits", str(flag))
    failed = command.enqueue("fails")
    shown = ""
    while not (f'href="/jobs/{runs}"' in shown and "&lt;b&gt;broken&lt;/b&gt;" in shown):
        shown += "".join(next(changes).values())
    assert f'href="/jobs/{failed}"' in shown
    story = site.ask(f"/jobs/{failed}", Accept="text/html").body
    assert "Traceback (most recent call last)" in story and "<b>broken" not in story
    run.signal(signal.SIGTERM)
    while "This supervisor ends" not in shown:
        shown += "".join(next(changes).values())
    flag.touch()
    assert run.wait() == 0
    assert all(change for change in changes)  # it has ended
    connection.close()
