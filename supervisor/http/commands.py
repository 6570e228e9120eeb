"""The operations that change jobs, queues, or this supervisor."""

from __future__ import annotations

from collections.abc import Collection
from itertools import islice
from typing import Any, Protocol

import orjson
from starlette.responses import Response

from supervisor.errors import StoreUnavailable
from supervisor.http import schemas, values
from supervisor.http.errors import Conflict, NotFound
from supervisor.http.operations import Json, Operation, Values
from supervisor.http.reads import find
from supervisor.http.values import MAX_PAGE
from supervisor.http.view import Steering, View
from supervisor.jobs import JobState
from supervisor.stores.operator_commands import NO_SUCH_JOB
from supervisor.stores.protocol import Store
from supervisor.stores.records import OperatorResult
from supervisor.stores.search import FoundJobs, JobFilter


class Command(Protocol):
    def __call__(
        self, store: Store, ids: list[int], force: bool, only: Collection[JobState] | None = None
    ) -> OperatorResult: ...


DEAD_LETTERS = JobFilter(dead_letter="any")


def _retry(store: Store, ids: list[int], force: bool, only: Collection[JobState] | None = None) -> OperatorResult:
    return store.retry(ids, force, only=only)


def _cancel(store: Store, ids: list[int], force: bool, only: Collection[JobState] | None = None) -> OperatorResult:
    return store.cancel(ids, only=only)


def _delete(store: Store, ids: list[int], force: bool, only: Collection[JobState] | None = None) -> OperatorResult:
    return store.delete(ids, force, only=only)


def _redrive(store: Store, ids: list[int], force: bool, only: Collection[JobState] | None = None) -> OperatorResult:
    return store.redrive(ids, force, only=only)


class Commands:
    def __init__(self, view: View) -> None:
        self._view = view

    def operations(self) -> list[Operation]:
        end = "End this supervisor as TERM does: its running jobs have shutdown.grace to end."
        return [
            self._one("POST", "/api/jobs/{id}/retry", "Run a job again, or now.", _retry),
            self._one("POST", "/api/jobs/{id}/cancel", "Cancel a job.", _cancel),
            self._one("DELETE", "/api/jobs/{id}", "Delete a job.", _delete),
            self._many("/api/jobs/retry", "Run jobs again, or now.", _retry),
            self._many("/api/jobs/cancel", "Cancel jobs.", _cancel),
            self._many("/api/jobs/delete", "Delete jobs.", _delete),
            self._many("/api/dlq/redrive", "Run dead letters again, by default all.", _redrive, DEAD_LETTERS),
            self._queue("/api/queues/{name}/pause", "Start no more jobs of a queue.", True),
            self._queue("/api/queues/{name}/resume", "Start jobs of a queue again.", False),
            self._workers("/api/workers/add", "Have one worker more in this supervisor, as TTIN does.", +1),
            self._workers("/api/workers/remove", "Have one worker fewer in this supervisor, as TTOU does.", -1),
            Operation("POST", "/api/drain", end, self._drain, schemas.DRAINING, status=202),
        ]

    def _one(self, method: str, path: str, summary: str, command: Command) -> Operation:
        async def call(asked: Values) -> Response:
            return await self._change_one(asked, command)

        in_path, forms = (values.ID,), (values.ONE_JOB,)
        return Operation(method, path, summary, call, schemas.CHANGED_JOB, in_path, forms=forms, errors=(404,))

    def _many(self, path: str, summary: str, command: Command, without: JobFilter | None = None) -> Operation:
        async def call(asked: Values) -> Response:
            return await self._change_many(asked, command, without)

        forms = (values.BY_IDS, values.BY_FILTER, *([values.ALL] if without else []))
        return Operation("POST", path, summary, call, schemas.CHANGED, forms=forms)

    def _queue(self, path: str, summary: str, paused: bool) -> Operation:
        async def call(asked: Values) -> Response:
            return await self._pause(asked["name"], paused)

        return Operation("POST", path, summary, call, schemas.PAUSED, (values.NAME_OF_QUEUE,))

    def _workers(self, path: str, summary: str, by: int) -> Operation:
        async def call(_: Values) -> Response:
            return self._resize(by)

        return Operation("POST", path, summary, call, schemas.RESIZED)

    async def _change_one(self, asked: Values, command: Command) -> Response:
        id, force = asked["id"], asked["force"]
        result = await self._view.read(lambda store: command(store, [id], force))
        if id in result.refused:
            refusal = result.refused[id]
            raise (NotFound if refusal == NO_SUCH_JOB else Conflict)(f"job {id}: {refusal}")
        return Json(orjson.dumps({"id": id}), ids=[id])

    async def _change_many(self, asked: Values, command: Command, without: JobFilter | None) -> Response:
        """Change the jobs of `ids`, or of `where`, or those of the filter `without` if there is neither."""
        ids, where = asked.get("ids"), asked.get("where") or without

        def change(store: Store) -> tuple[bytes, Collection[int]]:
            found, only = FoundJobs(ids or [], iter(()), None, len(ids or []), True), None
            if ids is None and where is not None:
                found = find(store, where, asked["before"], asked["limit"])
                only = None if where.state is None else (where.state,)
            if asked["dry_run"]:
                return orjson.dumps(_counted(found, OperatorResult({}, {}))), ()
            # The oldest first, so that they run in this order; or the newest, so that the end of one makes no other ready.
            newest_first = ids is None and command in (_cancel, _delete)
            result = command(store, sorted(found.ids, reverse=newest_first), asked["force"], only)
            return orjson.dumps(_counted(found, result)), result.changed

        content, changed = await self._view.read(change)
        return Json(content, ids=changed)

    async def _pause(self, queue: str, paused: bool) -> Response:
        await self._view.read(lambda store: store.pause(queue, paused))
        return Json(orjson.dumps({"queue": queue, "paused": paused}))

    def _resize(self, by: int) -> Response:
        steering = self._steering()
        if reason := steering.keeps_size():
            raise Conflict(f"workers: {reason}")
        return Json(orjson.dumps({"workers": steering.resize(by)}))

    async def _drain(self, _: Values) -> Response:
        self._steering().drain("a request to /api/drain")
        return Json(orjson.dumps({"state": "draining"}), 202)

    def _steering(self) -> Steering:
        if self._view.steering is None:
            raise StoreUnavailable("this supervisor can't be steered")
        return self._view.steering


def _counted(found: FoundJobs, result: OperatorResult) -> dict[str, Any]:
    return {
        "matched": len(found.ids),
        "changed": len(result.changed),
        "refused": [{"id": id, "reason": reason} for id, reason in islice(result.refused.items(), MAX_PAGE)],
        "refused_count": len(result.refused),
        "next": found.next,
        "searched": found.searched,
        "complete": found.complete,
    }
