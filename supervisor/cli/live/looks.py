"""One look at the store, on the thread of the store: all that it reads is bounded."""

from __future__ import annotations

from itertools import islice
from typing import Any, NamedTuple

import orjson

from supervisor.cli.render import last_error
from supervisor.jobs import JobState
from supervisor.stores.problems import Problem, problems
from supervisor.stores.protocol import Store
from supervisor.stores.search import JobFilter
from supervisor.stores.waiting import with_reasons
from supervisor.text.printable import shortened

PAGE = 100
"""Jobs of the list."""
SEARCHED = 1_000
"""The newest jobs that have the state, queue and handler, whose names and errors are searched: more would take long, again and again."""
MAX_TEXT = 8_000
"""Characters of each text in the story of a job."""
MAX_ATTEMPTS = 10


class Wanted(NamedTuple):
    """The jobs to list, and the job to show with its story."""

    state: JobState | None = None
    text: str = ""
    job: int | None = None


class Look(NamedTuple):
    """`searched` is the number of the newest jobs that the list was found among, or None if those are all."""

    wanted: Wanted
    status: dict[str, Any]
    problems: list[Problem]
    jobs: list[dict[str, Any]]
    searched: int | None
    story: dict[str, Any] | None


def look(store: Store, wanted: Wanted, sinks: frozenset[str]) -> Look:
    status = store.stats()
    where, part = filter_of(wanted)
    found = store.find_jobs(where, limit=SEARCHED if part else PAGE)
    jobs = list(islice((job for job in found.jobs if _has(job, part)), PAGE))
    searched = None if found.next is None else len(found.ids) if found.complete else found.searched
    job = None if wanted.job is None else store.get(wanted.job)
    story = None if job is None else _cut(next(with_reasons(store, [job], sinks)))
    return Look(wanted, status, problems(status, sinks), jobs, searched, story)


def filter_of(wanted: Wanted) -> tuple[JobFilter, str]:
    """Return the filter of a text such as `queue:mail handler:send broken`, and the rest of the text in lower case."""
    names: dict[str, str] = {}
    rest = []
    for part in wanted.text.split():
        name, colon, value = part.partition(":")
        if colon and value and name in ("queue", "handler"):
            names[name] = value
        else:
            rest.append(part)
    return JobFilter(state=wanted.state, queue=names.get("queue"), handler=names.get("handler")), " ".join(rest).lower()


def _has(job: dict[str, Any], part: str) -> bool:
    """Return whether this is the id of the job, or a part of one of its names or of its last error."""
    if not part:
        return True
    return part == str(job["id"]) or any(
        part in str(text).lower() for text in (job["handler"], job["queue"], last_error(job))
    )


def _cut(job: dict[str, Any]) -> dict[str, Any]:
    """Return the job with long texts cut, so that it is drawn at once."""
    errors = [
        {name: shortened(value, MAX_TEXT) if isinstance(value, str) else value for name, value in error.items()}
        for error in job["errors"][-MAX_ATTEMPTS:]
    ]
    values = {name: _cut_value(job[name]) for name in ("payload", "result", "headers")}
    return {**job, **values, "errors": errors}


def _cut_value(value: Any) -> Any:
    text = orjson.dumps(value, option=orjson.OPT_INDENT_2).decode()
    return value if len(text) <= MAX_TEXT else shortened(text, MAX_TEXT).splitlines()
