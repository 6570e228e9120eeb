"""Jobs that wait for others, their parents: what the stores have in common.

A job with parents is blocked until all of them have ended. For each parent there is a link, which stays as long as the child:

    WAITS ──the parent has succeeded, or its end does not matter──► DONE
      └──the parent has failed, was cancelled or deleted──► the child is cancelled: CANCELLED_BY, and DONE for its other links

A parent that is run again takes its children along: those that were cancelled because of it wait again. A child that somebody runs
again waits for those parents only that are going to run: its links to failed ones are IGNORED, until these are run again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from supervisor.jobs import Cause, Failure, JobState
from supervisor.parents import PARENTS
from supervisor.stores.codes import STATES
from supervisor.text.strict_json import NotJSON, decode_object

DONE, WAITS, CANCELLED_BY, IGNORED = range(4)
"""The states of a link."""
CANCEL, RUN, WAIT = range(3)
"""The three ways in which a child takes the end of a parent without success, as links keep them."""
ON_FAILED = {"cancel": CANCEL, "run": RUN, "wait": WAIT}
MAX_RESULTS = 1_000_000
"""The bytes of all results that a child is given with its headers; if there are more, it has to read them itself."""
MAX_AT_ONCE = 10_000
"""The maximum of jobs that go on, or are cancelled, in the transaction in which others end. The repair of the store does the rest."""
MAX_NAMED = 5
MAX_SHOWN = 1000
"""The parents, and the children, that are shown of one job."""
PARENT_FAILED = Cause.PARENT_FAILED.value


KEEPS_ITS_UNIQUE_KEY = (
    "after: job %s, which has the unique key %s for some time yet, was deleted or pruned: nothing can wait for it, and no new job is "
    "added for the key meanwhile; use another key, or wait until the time is over"
)


def no_such_parent(id: int, unique_key: str | None = None) -> str:
    """Return why there is no job after this one. `unique_key` is what it still has, since it has it for a time."""
    if unique_key is not None:
        return KEEPS_ITS_UNIQUE_KEY % (id, repr(unique_key))
    return f"after: there is no job {id}: it never existed, or was deleted or pruned"


def waits_for_itself(id: int) -> str:
    return f"after: job {id}, which is replaced, would wait for itself: a job in `after` waits for it"


def parent_failed(parent: int, how: str, at: int) -> dict[str, Any]:
    """Return the error of a child that is cancelled since the parent failed, was cancelled or was deleted: that is `how`."""
    message = f"its parent, job {parent}, {how}"
    return Failure(Cause.PARENT_FAILED, type="ParentFailed", message=message, attempt=1, at=at).record()


def how_it_ended(state: JobState | None, deleted: bool) -> str:
    if state is None or deleted:
        return "was deleted"
    return "failed" if state is JobState.FAILED else "was cancelled"


def with_results(headers: str | None, parents: Sequence[tuple[int, bool, str | None]], size: int) -> str:
    """Return the headers of a child with the results of its parents: (id, whether it has succeeded, result as JSON text) of each.
    `size` are the bytes of all results: if that is more than MAX_RESULTS, they are left out."""
    given: dict[str, Any] = {"ids": [id for id, _, _ in parents]}
    given["failed"] = [id for id, succeeded, _ in parents if not succeeded]
    given |= {"results": [result for _, _, result in parents]} if size <= MAX_RESULTS else {"bytes": size}
    return orjson.dumps({**_headers_of(headers), PARENTS: given}).decode()


def _headers_of(headers: str | None) -> dict[str, Any]:
    """Return no headers if another program has put something else in their place."""
    try:
        return {} if headers is None else decode_object(headers, "headers")
    except NotJSON:
        return {}


NO_RELATIVES: dict[str, Any] = {"parents": [], "children": []}


def relatives(parents: Sequence[Sequence[Any]], children: Sequence[Sequence[Any]]) -> dict[str, Any]:
    """Return the keys of a job's JSON that show its parents and children, from rows of (id, handler, code of the state, link). A parent
    that was deleted has no handler and no state."""
    return {"parents": [_relative(*row) for row in parents], "children": [_relative(*row) for row in children]}


def _relative(id: int, handler: str | None, state: int | None, link: int) -> dict[str, Any]:
    shown = STATES[state].value if state in STATES else state  # another program may have changed it
    return {"id": id, "handler": handler, "state": shown, "waits": link == WAITS}


def without_results(headers: Any) -> Any:
    """Return the headers that a job was enqueued with."""
    if isinstance(headers, dict) and PARENTS in headers:
        return {name: value for name, value in headers.items() if name != PARENTS}
    return headers


def waits_for_parents(job: Mapping[str, Any]) -> str | None:
    """Return for which parents a blocked job (as `Queries.get`) waits, and what to do; None if it waits for none."""
    if job.get("parents") is None:  # of a list of jobs
        return f"it waits for its parents: see supervisor jobs show {job['id']}" if job.get("after") else None
    waits = [parent for parent in job["parents"] if parent["waits"]]
    if not waits:
        return None
    for parent in waits:
        if parent["state"] in _ENDINGS:
            return (
                f"its parent, job {parent['id']} ({parent['handler']}), has {_ENDINGS[parent['state']]}: run that again with: "
                f"supervisor jobs retry {parent['id']}, or cancel this job with: supervisor jobs cancel {job['id']}"
            )
    named = ", ".join(f"{it['id']} ({it['handler']}, {str(it['state']).replace('_', ' ')})" for it in waits[:MAX_NAMED])
    more = f" and {len(waits) - MAX_NAMED} more" if len(waits) > MAX_NAMED else ""
    jobs, have = ("parents, jobs", "they have") if len(waits) > 1 else ("parent, job", "it has")
    return f"it waits for its {jobs} {named}{more}: wait until {have} ended"


_ENDINGS = {JobState.FAILED: "failed", JobState.CANCELLED: "been cancelled"}
