"""What a job is given of the jobs that it waited for, its parents: a store puts it into a header of the job."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

PARENTS = "supervisor.parents"
"""The name of the header: see `stores.workflows.with_results`."""


class ParentResultsTooLarge(Exception):
    """The results of a job's parents are too large to be given to it: a Client can read them, by `Job.parent_ids`."""

    def __init__(self, job_id: int, size: int) -> None:
        super().__init__(
            f"the parents of job {job_id} have {size:,} bytes of results, more than a job is given: read them with Client.result by "
            "the ids in job.parent_ids, or let the parents return less"
        )


def given_in(headers: Mapping[str, Any]) -> Mapping[str, Any]:
    given = headers.get(PARENTS)
    return given if isinstance(given, Mapping) else {}


def results_of(job_id: int, headers: Mapping[str, Any]) -> dict[int, Any]:
    """Return the results by the ids of the parents, in their order. Raises ParentResultsTooLarge."""
    from supervisor.text.strict_json import decode  # most handlers need it not

    given = given_in(headers)
    if given and "results" not in given:
        raise ParentResultsTooLarge(job_id, given.get("bytes", 0))
    results = [None if text is None else decode(text, "result") for text in given.get("results", ())]
    return dict(zip(given.get("ids", ()), results, strict=True))
