"""The calls that a Kafka store refuses, for commands and programs: each with what to do instead."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from supervisor.errors import Unsupported

ASK_SUPERVISOR = "its jobs are in the memory of the supervisor that runs them; ask that one by HTTP (http.listen)"


class Limit(NamedTuple):
    """`what` follows "this store can't"."""

    what: str
    instead: str


NOT_HERE: Mapping[str, Limit] = {
    "list_jobs": Limit("list jobs", ASK_SUPERVISOR),
    "find_jobs": Limit("find jobs", ASK_SUPERVISOR),
    "get": Limit("show jobs", ASK_SUPERVISOR),
    "get_many": Limit("show jobs", ASK_SUPERVISOR),
    "ended": Limit("wait for jobs", ASK_SUPERVISOR),
    "cancel": Limit("cancel jobs", ASK_SUPERVISOR),
    "retry": Limit("retry jobs", ASK_SUPERVISOR),
    "pause": Limit("pause or resume queues", ASK_SUPERVISOR),
    "failures": Limit("show failures", ASK_SUPERVISOR),
    "sinks": Limit("show which sinks dead letters wait for", ASK_SUPERVISOR),
    "oldest_ready": Limit("show how long jobs have waited", ASK_SUPERVISOR),
    "remaining": Limit("count jobs", ASK_SUPERVISOR),
    "counts_by_state": Limit("count jobs", ASK_SUPERVISOR),
}
"""The calls that only the supervisor can make that has the jobs."""

NOWHERE: Mapping[str, Limit] = {
    "enqueue": Limit(
        "enqueue with a priority, a delay, or retries, a timeout or a backoff of one job, "
        "or with unique, group, after, tags, expires or on_failure",
        "leave them out, since a record has no such field",
    ),
    "redrive": Limit(
        "redrive dead letters in place",
        "send them back from their topic with: supervisor dlq redrive --from-topic TOPIC.dlq",
    ),
    "move": Limit("move jobs to another queue", "produce the records to the other topic, since queues are topics"),
    "purge": Limit("purge dead letters", "delete the records of the dead-letter topic, with the tools of Kafka"),
    "delete": Limit("delete jobs", "cancel them; their records stay in the topic until its retention ends"),
    "schedules": Limit("keep schedules", "enqueue from the cron of the system, or use another store"),
    "change_schedules": Limit("keep schedules", "enqueue from the cron of the system, or use another store"),
    "drop_sink": Limit("drop a sink", "remove it from dlq.sinks, and restart the supervisors"),
}
"""The calls that nobody can make."""

DONE = "its record is done; a dead letter of it is run again with: supervisor dlq redrive --from-topic TOPIC.dlq"
"""The reason to refuse the retry of a job that has ended."""


def unsupported(call: str) -> Unsupported:
    """Return the error of such a call."""
    return Unsupported(*(NOT_HERE.get(call) or NOWHERE[call]))
