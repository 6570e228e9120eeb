"""One look at the store, on the thread of the store: all that it reads is bounded."""

from __future__ import annotations

from itertools import islice
from typing import Any, NamedTuple

import orjson

from supervisor.cli.render import last_error
from supervisor.jobs import JobState
from supervisor.stores.problems import Problem, problems
from supervisor.stores.protocol import Store
from supervisor.stores.waiting import with_reasons
from supervisor.text.printable import shortened

PAGE = 100
"""Jobs of the list."""
SEARCHED = 1_000
"""The newest jobs of a state that a text is searched in: more would take long, again and again."""
MAX_TEXT = 8_000
"""Characters of each text in the story of a job."""
MAX_ATTEMPTS = 10


class Wanted(NamedTuple):
    """The jobs to list, and the job to show with its story."""

    state: JobState | None = None
    text: str = ""
    job: int | None = None


class Look(NamedTuple):
    wanted: Wanted
    status: dict[str, Any]
    problems: list[Problem]
    jobs: list[dict[str, Any]]
    story: dict[str, Any] | None


def look(store: Store, wanted: Wanted, sinks: frozenset[str]) -> Look:
    status = store.stats()
    limit = SEARCHED if wanted.text else PAGE
    found = store.list_jobs(state=wanted.state, limit=limit, brief=True)
    jobs = list(islice((job for job in found if _has(job, wanted.text.lower())), PAGE))
    job = None if wanted.job is None else store.get(wanted.job)
    story = None if job is None else _cut(next(with_reasons(store, [job], sinks)))
    return Look(wanted, status, problems(status, sinks), jobs, story)


def _has(job: dict[str, Any], text: str) -> bool:
    """Return whether the text is the id of the job, or in one of its names or its last error."""
    if not text:
        return True
    return text == str(job["id"]) or any(
        text in str(part).lower() for part in (job["handler"], job["queue"], last_error(job))
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
