"""A nursery died, and the next one found other plugins than it had."""

from __future__ import annotations

from typing import Any

from supervisor.events import PluginFailed, PluginLoaded
from supervisor.handlers import HandlerInfo
from supervisor.plugins.reports import SourceReport
from tests.unit.virtual import Virtual

SAME = SourceReport("work.py", (HandlerInfo("work", {}, "work.py", 1),))
TORN = SourceReport("work.py", error="SyntaxError: invalid syntax", line=3)


def mail(**options: Any) -> SourceReport:
    return SourceReport("mail.py", (HandlerInfo("mail", options, "mail.py", 1),))


def start_again(here: Virtual, *reports: SourceReport) -> None:
    here.pool.forkserver_started(here.backend, 2, reports)


def told(here: Virtual) -> list[tuple[str, str]]:
    return [
        (type(event).__name__, event.source) for event in here.events if isinstance(event, PluginFailed | PluginLoaded)
    ]


def test_if_it_found_the_same_the_workers_stay_and_nothing_is_told() -> None:
    here = Virtual()
    here.serve()
    start_again(here, SAME)
    assert not here.process.retired
    assert told(here) == []


def test_a_handler_that_is_there_now_serves_with_its_own_options_on_workers_that_know_it() -> None:
    here = Virtual()
    here.serve()
    old = here.process
    start_again(here, mail(max_retries=0), SAME)
    assert old.retired
    assert told(here) == [("PluginLoaded", "mail.py")]
    new = here.backend.forked[-1]
    new.come_up()
    (id,) = here.enqueue("mail")
    here.notify()
    new.run_next(kind="failed", error={"type": "Oops"})
    assert here.state(id) == "failed"


def test_changed_options_count_from_then_on() -> None:
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


def test_a_file_that_no_longer_imports_is_told() -> None:
    here = Virtual()
    here.serve()
    start_again(here, TORN)
    start_again(here, TORN)
    assert told(here) == [("PluginFailed", "work.py")]


def test_of_a_file_that_is_gone_no_worker_serves_on() -> None:
    here = Virtual()
    here.serve()
    old = here.process
    start_again(here)
    assert old.retired


def test_what_was_put_off_for_want_of_a_plugin_is_looked_at_anew() -> None:
    here = Virtual(keep_unknown_jobs=True)
    ids = here.enqueue("mail", "mail")
    here.serve()
    assert here.engine.unknown_jobs == set(ids)
    start_again(here, mail(), SAME)
    assert here.engine.unknown_jobs == set()
