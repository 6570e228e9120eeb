"""Jobs as people see them, the same in every store."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import orjson

from supervisor.jobs import JobState
from supervisor.stores.codes import STATES
from supervisor.stores.extras import extras_of, shown_extras
from supervisor.stores.job_reports import shown_log, shown_progress
from supervisor.stores.records import own_options
from supervisor.stores.workflows import without_results
from supervisor.text.strict_json import NotJSON, decode
from supervisor.text.units import iso


class KeyHolder(NamedTuple):
    """The job that has the key of a blocked job. A job that was deleted has no state and no `on_failure`."""

    id: int
    state: str | None
    on_failure: str | None


class Shown(NamedTuple):
    """A job as any store keeps it. Times are microseconds since the epoch; the texts are as stored, so they may not be JSON.
    `snoozed_until` is the end of the last snooze, at which a
    job is due that snoozes now."""

    id: int
    handler: str
    payload: str
    queue: str
    priority: int
    state: str
    retries: int
    max_retries: int | None
    due_at: int
    created_at: int
    started_at: int | None
    finished_at: int | None
    result: str | None
    headers: str | None
    errors: Sequence[Mapping[str, Any]]
    dead_letter: str | None
    missing_sinks: Sequence[str]
    expired_count: int
    owner: str | None
    lease_until: int | None
    progress: str | None = None
    progress_at: int | None = None
    log: str | None = None
    extras: str | None = None
    expires_at: int | None = None
    key_holder: KeyHolder | None = None
    snoozes: int | None = None
    snoozed_until: int | None = None
    options: str | None = None


def job_dict(job: Shown) -> dict[str, Any]:
    """The object that `supervisor jobs show --json` prints. `parents` and `children` are added by
    each store."""
    return {
        "id": job.id,
        "handler": job.handler,
        "payload": readable(job.payload),
        "queue": job.queue,
        "priority": job.priority,
        "state": job.state,
        "attempt": job.retries + 1,
        "retries": job.retries,
        "max_retries": job.max_retries,
        "options": own_options(job.options),
        "due_at": iso(job.due_at),
        "created_at": iso(job.created_at),
        "started_at": iso(job.started_at),
        "finished_at": iso(job.finished_at),
        "result": None if job.result is None else readable(job.result),
        "headers": {} if job.headers is None else without_results(readable(job.headers)),
        **shown_extras(job.extras),
        "parents": None,
        "children": None,
        "expires_at": iso(job.expires_at),
        "key_held_by": None if job.key_holder is None else job.key_holder._asdict(),
        "errors": [{**error, "at": iso(error["at"])} for error in job.errors],
        "dead_letter": job.dead_letter,
        "missing_sinks": list(job.missing_sinks),
        "expired_count": job.expired_count,
        "snoozes": job.snoozes or 0,
        "snoozed_until": iso(job.due_at) if job.state == "scheduled" and job.due_at == job.snoozed_until else None,
        "progress": shown_progress(job.progress, job.progress_at),
        "log": shown_log(job.log),
        "lease": {"owner": job.owner, "until": iso(job.lease_until)} if job.state == JobState.IN_FLIGHT else None,
    }


def readable(text: str) -> Any:
    """Return the value of JSON `text`, or the text itself if it isn't strict JSON (another program wrote it)."""
    try:
        return decode(text)
    except NotJSON:
        return text


def key_holder(text: str | None) -> KeyHolder | None:
    """Return the `key_holder` of Shown from its [id, code of its state, text of its extras] as JSON text."""
    if text is None:
        return None
    id, state, extras = orjson.loads(text)
    return (
        KeyHolder(id, None, None) if state is None else KeyHolder(id, STATES[state].value, extras_of(extras).on_failure)
    )
