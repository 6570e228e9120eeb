"""The pages: for each the facts that it shows, and the parts of it that are replaced while it is open."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import cached_property
from types import MappingProxyType
from typing import Any, NamedTuple

from supervisor.config.settings import Settings
from supervisor.http.errors import BadRequest, NotFound
from supervisor.http.failures import Failures
from supervisor.http.pages.charts import charts
from supervisor.http.pages.job_list import SINCE, Asked, listed
from supervisor.http.pages.job_story import story
from supervisor.http.pages.present import queue_table, supervisor_table, totals
from supervisor.stores.problems import with_problems
from supervisor.stores.protocol import Store
from supervisor.stores.waiting import with_reasons
from supervisor.telemetry.history import Numbers

MAX_ID = 2**63 - 1
QUEUES_FIRST, MAX_QUEUES = 50, 1000
DEAD_LETTERS_FIRST = 5
FAILURES_FIRST = 20
MAX_NAMES = 100
ANY_DEAD_LETTERS = Asked(dead_letter="any")

Facts = dict[str, Any]


class Seen:
    """The store at one moment. The status is read once, whatever the number of pages that show it. `problems` are those of
    this supervisor that the store may not show."""

    def __init__(
        self, store: Store, settings: Settings, history: Callable[[], Mapping[str, Numbers]], failures: Failures,
        problems: Sequence[Facts] = (),
    ) -> None:  # fmt: skip
        self.store, self.settings, self._history, self.failures = store, settings, history, failures
        self.problems = problems

    @cached_property
    def history(self) -> Mapping[str, Numbers]:
        return self._history()

    @cached_property
    def now(self) -> datetime:
        return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(seconds=self.store.clock())

    @cached_property
    def status(self) -> Facts:
        found = with_problems(self.store.stats(), self.settings.dlq.names)
        known = {it["message"] for each in found["supervisors"] for it in each["problems"]}
        unknown = [each for each in self.problems if each["message"] not in known]
        return {**found, "problems": [*unknown, *found["problems"]]}


class Screen(NamedTuple):
    key: str
    """Its address, the same for all who look at the same page."""
    template: str
    parts: Mapping[str, str]
    """The template of each part that is replaced, by the id of its element."""
    facts: Callable[[Seen], Facts]


def screen(path: str, query: Mapping[str, str]) -> Screen | None:
    """Return the page at this address, if there is one. Raises BadRequest if something in the address is wrong."""
    if path in SIMPLE:
        return SIMPLE[path]
    if path == "/jobs":
        return _jobs(Asked.of(query))
    if path == "/dead-letters":
        return _dead_letters(Asked.of({"dead_letter": "any", **query}))
    if path.startswith("/jobs/") and path.count("/") == 2:
        return _job(job_id(path.removeprefix("/jobs/")))
    return None


def job_id(text: str) -> int:
    if not (text.isascii() and text.isdecimal()) or len(text) > 19 or not 1 <= int(text) <= MAX_ID:
        raise BadRequest(f"expected the number of a job, got {text[:50]!r}")
    return int(text)


def _parts(*names: str) -> Mapping[str, str]:
    return MappingProxyType({name: f"parts/{name}.html" for name in names})


def _now(seen: Seen) -> Facts:
    status = seen.status
    return {
        "status": status,
        "totals": totals(status),
        "charts": charts(seen.history),
        "queues": queue_table(status, QUEUES_FIRST),
        "supervisors": supervisor_table(status, seen.now),
        "failures": seen.failures.groups(seen.store, FAILURES_FIRST),
        "failures_age": round(seen.failures.age / 10) * 10,
        "dead_letters": listed(seen.store, ANY_DEAD_LETTERS, seen.now, "/dead-letters", DEAD_LETTERS_FIRST),
    }


def _queues(seen: Seen) -> Facts:
    return {"status": seen.status, "queues": queue_table(seen.status, MAX_QUEUES)}


def _jobs(asked: Asked) -> Screen:
    def facts(seen: Seen) -> Facts:
        page = listed(seen.store, asked, seen.now, "/jobs")
        return {"asked": asked, "page": page, "names": lambda: _names(seen.status), "choices": SINCE}

    return Screen(f"/jobs?{asked.key}", "jobs.html", _parts("jobs") if asked.is_live else {}, facts)


def _names(status: Facts) -> dict[str, list[str]]:
    """Return the names that a person may look for."""
    handlers = {name for each in status["supervisors"] for name in each["handlers"] or ()}
    queues = {row["queue"] for row in status["queues"]}
    return {"queues": sorted(queues)[:MAX_NAMES], "handlers": sorted(handlers)[:MAX_NAMES]}


def _dead_letters(asked: Asked) -> Screen:
    def facts(seen: Seen) -> Facts:
        page = listed(seen.store, asked, seen.now, "/dead-letters")
        return {"asked": asked, "dead_letters": page, "sinks": seen.status["sinks"]}

    parts = _parts("dead_letters") if asked.is_live else {}
    return Screen(f"/dead-letters?{asked.key}", "dead_letters.html", parts, facts)


def _job(id: int) -> Screen:
    def facts(seen: Seen) -> Facts:
        job = seen.store.get(id)
        if job is None:
            raise NotFound(f"no job {id}")
        return story(next(with_reasons(seen.store, [job], seen.settings.dlq.names)), seen.now)

    return Screen(f"/jobs/{id}", "job.html", _parts("job_head", "job_result", "job_attempts", "job_log"), facts)


SIMPLE: Mapping[str, Screen] = {
    "/": Screen(
        "/", "now.html",
        _parts("problems", "totals", "charts", "queues", "supervisors", "failures", "dead_letters"), _now,
    ),
    "/queues": Screen("/queues", "queues.html", _parts("queues"), _queues),
}  # fmt: skip
