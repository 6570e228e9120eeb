"""A forkserver exited, and the next one found other plugins."""

from __future__ import annotations

from typing import Any

from supervisor.events import PluginFailed, PluginLoaded
from supervisor.handlers import HandlerInfo
from supervisor.plugins.reports import SourceReport
from tests.unit.virtual import Virtual

SAME = SourceReport("work.py", (HandlerInfo("work", {}, "work.py", 1),))
BROKEN = SourceReport("work.py", error="SyntaxError: invalid syntax", line=3)


def mail(**options: Any) -> SourceReport:
    return SourceReport("mail.py", (HandlerInfo("mail", options, "mail.py", 1),))


def start_again(here: Virtual, *reports: SourceReport) -> None:
    here.pool.forkserver_started(here.backend, 2, reports)


def reported(here: Virtual) -> list[tuple[str, str]]:
    return [
        (type(event).__name__, event.source) for event in here.events if isinstance(event, PluginFailed | PluginLoaded)
    ]


def test_workers_stay_if_the_new_forkserver_found_the_same_plugins() -> None:
    here = Virtual()
    here.serve()
    start_again(here, SAME)
    assert not here.process.retired
    assert reported(here) == []


def test_a_new_handler_is_served_with_its_own_options_by_new_workers() -> None:
    here = Virtual()
    here.serve()
    old = here.process
    start_again(here, mail(max_retries=0), SAME)
    assert old.retired
    assert reported(here) == [("PluginLoaded", "mail.py")]
    new = here.backend.forked[-1]
    new.come_up()
    (id,) = here.enqueue("mail")
    here.notify()
    new.run_next(kind="failed", error={"type": "Oops"})
    assert here.state(id) == "failed"


def test_changed_options_of_a_handler_hold_for_its_next_job() -> None:
    here = Virtual()
    here.serve()
    start_again(here, mail(max_retries=1), SAME)
    start_again(here, mail(max_retries=0), SAME)
    (id,) = here.enqueue("mail")
    new = here.backend.forked[-1]
    new.come_up()
    here.notify()
    new.run_next(kind="failed", error={"type": "Oops"})
    assert here.state(id) == "failed"


def test_a_file_that_no_longer_imports_is_reported_once() -> None:
    here = Virtual()
    here.serve()
    start_again(here, BROKEN)
    start_again(here, BROKEN)
    assert reported(here) == [("PluginFailed", "work.py")]


def test_workers_with_a_plugin_that_is_gone_are_retired() -> None:
    here = Virtual()
    here.serve()
    old = here.process
    start_again(here)
    assert old.retired


def test_jobs_that_waited_for_a_handler_run_at_once_when_a_plugin_brings_it() -> None:
    here = Virtual()
    here.serve()
    (id,) = here.enqueue("mail")
    here.notify()
    assert here.state(id) == "scheduled"
    start_again(here, mail(), SAME)
    new = here.backend.forked[-1]
    new.come_up()
    new.run_next()
    assert here.state(id) == "succeeded"


def test_jobs_that_waited_for_a_handler_run_at_once_when_a_supervisor_starts_that_has_it() -> None:
    before = Virtual()
    before.serve()
    (id,) = before.enqueue("mail")
    before.notify()
    after = Virtual(handlers=("mail",), store=before.store)
    after.serve()
    after.process.run_next()
    assert after.state(id) == "succeeded"


def test_a_grace_shorter_than_the_backoff_is_kept() -> None:
    here = Virtual(unknown_handler={"grace": "5s"})
    here.serve()
    (id,) = here.enqueue("mail")
    here.notify()
    here.loop.advance(4.9)
    assert here.state(id) == "scheduled"
    here.loop.advance(0.7)
    assert here.state(id) == "failed"
