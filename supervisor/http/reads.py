"""The operations that read: the store, and this supervisor."""

from __future__ import annotations

import time
from collections.abc import Callable, Container, Mapping
from typing import Any

import orjson
from starlette.responses import Response

from supervisor.errors import StoreUnavailable
from supervisor.http import schemas, values
from supervisor.http.errors import BadRequest, NotFound
from supervisor.http.operations import Json, Operation, Values
from supervisor.http.view import View
from supervisor.stores.problems import with_problems
from supervisor.stores.protocol import Store
from supervisor.stores.search import FoundJobs, JobFilter
from supervisor.stores.waiting import with_reasons
from supervisor.text.redaction import Mask
from supervisor.text.units import iso

FILTER_BUT_DEAD_LETTER = values.FILTER[:-1]
PAGE = (values.BEFORE, values.LIMIT)


class Reads:
    def __init__(self, view: View) -> None:
        self._view = view

    def operations(self) -> list[Operation]:
        listed = schemas.listed
        of_dead_letters = tuple(it for it in FILTER_BUT_DEAD_LETTER if it is not values.STATE)
        return [
            Operation("GET", "/api/status", "As supervisor status --json.", self._status, schemas.STATUS),
            Operation("GET", "/api/queues", "The queues.", self._queues, listed(schemas.ref("Queue"))),
            Operation(
                "GET", "/api/jobs", "One page of jobs without payloads and results, the newest first.", self._jobs,
                schemas.PAGE, query=(*values.FILTER, *PAGE),
            ),
            Operation(
                "GET", "/api/jobs/{id}", "A job with its attempts.", self._job, schemas.ref("Job"), in_path=(values.ID,),
                errors=(404,),
            ),
            Operation(
                "GET", "/api/dlq", "One page of dead letters, the newest first, and the sinks that they wait for.",
                self._dead_letters, schemas.DEAD_LETTERS, query=(values.DEAD_LETTER_STATE, values.SINK, *of_dead_letters, *PAGE),
            ),
            Operation(
                "GET", "/api/failures", "The newest 10,000 failed jobs, grouped by handler and error.", self._failures,
                schemas.FAILURES, query=(values.GROUPS,),
            ),
            Operation(
                "GET", "/api/workers", "The workers of all supervisors.", self._workers, listed(schemas.WORKER_OF_ALL)
            ),
            Operation("GET", "/api/plugins", "The plugins of this supervisor.", self._plugins, listed(schemas.ref("Plugin"))),
        ]  # fmt: skip

    async def _status(self, _: Values) -> Response:
        sinks = self._view.settings().dlq.names
        return await self._read(lambda store: with_problems(store.stats(), sinks))

    async def _queues(self, _: Values) -> Response:
        return await self._read(lambda store: store.stats()["queues"])

    async def _jobs(self, asked: Values) -> Response:
        where, before, limit = filter_of(asked), asked["before"], asked["limit"]
        sinks = self._view.settings().dlq.names
        return await self._read(lambda store: page(store, find(store, where, before, limit), sinks))

    async def _job(self, asked: Values) -> Response:
        id, sinks = asked["id"], self._view.settings().dlq.names

        def read(store: Store) -> bytes | None:
            job = store.get(id)
            return None if job is None else orjson.dumps(next(with_reasons(store, [job], sinks)))

        found = await self._view.read(read)
        if found is None:
            raise NotFound(f"no job {id}")
        return Json(found)

    async def _dead_letters(self, asked: Values) -> Response:
        state = "pending" if asked["sink"] else asked["state"]
        where = filter_of({**asked, "state": None, "dead_letter": state})
        before, limit, sinks = asked["before"], asked["limit"], self._view.settings().dlq.names

        def read(store: Store) -> Any:
            return {"sinks": store.sinks(), **page(store, find(store, where, before, limit), sinks)}

        return await self._read(read)

    async def _failures(self, asked: Values) -> Response:
        failures, limit = self._view.failures, asked["limit"]
        return await self._read(lambda store: {"failures": failures.groups(store, limit), "age": failures.age})

    async def _workers(self, _: Values) -> Response:
        own = self._view.own_status()
        now = round(time.time() * 1_000_000)

        def read(store: Store) -> Any:
            return [worker for each in store.stats()["supervisors"] for worker in workers_of(each, own, now)]

        return await self._read(read)

    async def _plugins(self, _: Values) -> Response:
        if self._view.engine is None:
            raise StoreUnavailable("the supervisor has not loaded its plugins yet")
        mask = Mask(self._view.settings().secrets)
        return Json(orjson.dumps([
            {
                "source": it.source, "handlers": it.handlers, "hooks": it.hooks, "error": it.error and mask(it.error),
                "line": it.line, "traceback": mask(it.traceback), "warnings": [mask(each) for each in it.warnings],
            }
            for it in self._view.engine.config.reports
        ]))  # fmt: skip

    async def _read(self, read: Callable[[Store], Any]) -> Response:
        return Json(await self._view.read(lambda store: orjson.dumps(read(store))))


def filter_of(asked: Values) -> JobFilter:
    return JobFilter(**{name: asked.get(name) for name in JobFilter._fields})


def find(store: Store, where: JobFilter, before: str | None, limit: int) -> FoundJobs:
    try:
        return store.find_jobs(where, before=before, limit=limit)
    except ValueError as error:
        raise BadRequest(f"before: {error}") from None


def page(store: Store, found: FoundJobs, sinks: Container[str]) -> dict[str, Any]:
    return {
        "jobs": [*with_reasons(store, found.jobs, sinks)],
        "next": found.next,
        "searched": found.searched,
        "complete": found.complete,
    }


def workers_of(supervisor: Mapping[str, Any], own: Mapping[str, Any] | None, now: int) -> list[dict[str, Any]]:
    """Return the workers of a supervisor as its row has them; those of this one as they are now (microseconds)."""
    workers = supervisor["workers"]
    if own is not None and own["owner"] == supervisor["owner"]:
        progress = {it["job_id"]: it.get("progress") for worker in workers if (it := worker["current_job"])}
        workers = [_at_this_moment(worker, now, progress) for worker in own["workers"]]
    known = {"owner": supervisor["owner"], "host": supervisor["host"], "supervisor_pid": supervisor["pid"]}
    return [{**known, **worker} for worker in workers]


def _at_this_moment(worker: Mapping[str, Any], now: int, progress: Mapping[int, Any]) -> dict[str, Any]:
    job = worker["current_job"]
    if job is not None:
        since = iso(now - round(job["running_for"] * 1_000_000))
        job = {**job, "running_since": since, "progress": progress.get(job["job_id"])}
    return {**worker, "current_job": job}
