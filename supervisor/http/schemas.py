"""The JSON schemas of answers. An object has these keys and no others."""

from __future__ import annotations

from supervisor.http.values import Schema
from supervisor.jobs import Cause, JobState

ANY: Schema = {}
TEXT: Schema = {"type": "string"}
NUMBER: Schema = {"type": "number"}
WHOLE: Schema = {"type": "integer"}
COUNT: Schema = {"type": "integer", "minimum": 0}
FLAG: Schema = {"type": "boolean"}
TIME: Schema = {"type": "string", "format": "date-time"}


def or_null(schema: Schema) -> Schema:
    return {"anyOf": [schema, {"type": "null"}]}


def listed(schema: Schema) -> Schema:
    return {"type": "array", "items": schema}


def ref(name: str) -> Schema:
    return {"$ref": f"#/components/schemas/{name}"}


def an_object(**properties: Schema) -> Schema:
    return {
        "type": "object",
        "properties": properties,
        "required": [*properties],
        "additionalProperties": False,
    }


TEXTS = listed(TEXT)
TEXT_OR_NULL, WHOLE_OR_NULL, TIME_OR_NULL = or_null(TEXT), or_null(WHOLE), or_null(TIME)

FAILURE: Schema = {
    "type": "object",
    "description": "One failed attempt; what is not known of it is null.",
    "required": ["attempt", "cause", "at"],
    "properties": {
        "attempt": COUNT, "at": TIME, "cause": {"type": "string", "examples": [it.value for it in Cause]},
        "type": TEXT, "message": TEXT, "traceback": TEXT, "exit_code": WHOLE_OR_NULL, "signal": TEXT_OR_NULL,
        "peak_memory": WHOLE_OR_NULL, "oom_suspected": FLAG, "heartbeat_age": or_null(NUMBER), "stack": TEXT_OR_NULL,
        "stderr": TEXT_OR_NULL, "host": TEXT_OR_NULL, "pid": WHOLE_OR_NULL,
    },
}  # fmt: skip
PROGRESS = an_object(done=ANY, total=ANY, message=TEXT_OR_NULL, attempt=WHOLE, at=TIME_OR_NULL)
RELATIVE = an_object(id=WHOLE, handler=TEXT_OR_NULL, state=TEXT_OR_NULL, waits=FLAG)
TEXT_OR_SECONDS: Schema = {"anyOf": [TEXT, NUMBER, {"type": "null"}]}
OPTIONS = an_object(
    max_retries=WHOLE_OR_NULL, timeout=or_null(NUMBER),
    backoff=or_null(an_object(base=NUMBER, factor=NUMBER, max=NUMBER, jitter={"anyOf": [TEXT, NUMBER]})),
)  # fmt: skip
JOB = an_object(
    id=WHOLE, handler=TEXT, payload=ANY, queue=TEXT, priority=WHOLE,
    state={"type": "string", "enum": [state.value for state in JobState]}, attempt=WHOLE, retries=COUNT,
    max_retries=WHOLE_OR_NULL, options=OPTIONS, due_at=TIME, created_at=TIME, started_at=TIME_OR_NULL, finished_at=TIME_OR_NULL, result=ANY,
    headers=ANY, unique=TEXT_OR_NULL, unique_while=TEXT_OR_SECONDS, key=TEXT_OR_NULL, on_failure=TEXT, group=TEXT_OR_NULL, after=listed(WHOLE), on_parent_failed=TEXT, tags=TEXTS,
    parents=or_null(listed(RELATIVE)), children=or_null(listed(RELATIVE)),
    expires_at=TIME_OR_NULL, key_held_by=or_null(an_object(id=WHOLE, state=TEXT_OR_NULL, on_failure=TEXT_OR_NULL)), errors=listed(ref("Failure")), dead_letter=or_null({"enum": ["pending", "delivered"]}),
    missing_sinks=TEXTS, expired_count=COUNT, snoozes=COUNT, snoozed_until=TIME_OR_NULL, progress=or_null(ref("Progress")),
    log=or_null(an_object(attempt=WHOLE, skipped=COUNT, lines=TEXTS)),
    lease=or_null(an_object(owner=TEXT_OR_NULL, until=TIME_OR_NULL)), waiting_because=TEXT_OR_NULL,
)  # fmt: skip
QUEUE = an_object(
    queue=TEXT, queue_size=COUNT, retry_queue_size=COUNT, blocked=COUNT, scheduled=COUNT, in_flight=COUNT,
    failed=COUNT, paused=FLAG, processing=COUNT,
)  # fmt: skip
CURRENT_JOB = an_object(
    job_id=WHOLE, handler=TEXT, retry_count=COUNT, is_retry=FLAG, running_for=NUMBER, running_since=TIME_OR_NULL,
    progress=or_null(ref("Progress")),
)  # fmt: skip
_WORKER: dict[str, Schema] = {
    "pid": WHOLE_OR_NULL, "state": TEXT, "group": TEXT_OR_NULL, "async": FLAG, "current_job": or_null(ref("CurrentJob")),
}  # fmt: skip
WORKER = an_object(**_WORKER)
WORKER_OF_ALL = an_object(owner=TEXT, host=TEXT, supervisor_pid=WHOLE, **_WORKER)
PROBLEM = an_object(kind=TEXT, message=TEXT, what_to_do=TEXT)
SINK = an_object(sink=TEXT, pending=COUNT, supervisors=COUNT)
GROUP = an_object(group=TEXT_OR_NULL, queues=or_null(TEXTS), count=COUNT, min=COUNT, max=COUNT)
STUCK = an_object(
    kind=TEXT, job_id=WHOLE, handler=TEXT, state=TEXT, key=TEXT_OR_NULL, child=WHOLE_OR_NULL, waiting=COUNT
)  # fmt: skip
PARTITION = an_object(
    topic=TEXT, partition=COUNT, committed=or_null(COUNT), lag=or_null(COUNT), undone=or_null(COUNT), oldest=or_null(COUNT),
    job_id=WHOLE_OR_NULL, held_for=or_null(NUMBER),
)  # fmt: skip
LIMIT = an_object(of=TEXT, name=TEXT, limit=TEXT, reached=TEXT_OR_NULL, until=TIME_OR_NULL)
SUPERVISOR = an_object(
    owner=TEXT, host=TEXT, pid=WHOLE, state=TEXT, seen_at=TIME, in_flight=COUNT, lease_until=TIME_OR_NULL,
    workers=listed(ref("Worker")), sinks=TEXTS, queues=or_null(TEXTS), handlers=or_null(TEXTS), async_handlers=TEXTS, schedules=TEXTS,
    groups=listed(GROUP), lease_ttl=or_null(NUMBER), problems=listed(ref("Problem")), missing_handlers=TEXTS,
    held_retries=TEXTS, spent_budgets=TEXTS, failing_sinks={"type": "object", "additionalProperties": TEXT},
    runs_alone=WHOLE_OR_NULL, partitions=listed(PARTITION), limits=listed(LIMIT),
)  # fmt: skip
PLUGIN = an_object(
    source=TEXT, hooks=TEXTS, error=TEXT_OR_NULL, line=WHOLE_OR_NULL, traceback=TEXT, warnings=TEXTS,
    handlers=listed(an_object(
        name=TEXT, options={"type": "object"}, file=TEXT, line=WHOLE, schema=or_null({"type": "object"}), is_async=FLAG,
    )),
)  # fmt: skip
FAILURE_GROUP = an_object(
    handler=TEXT, type=TEXT, cause=TEXT_OR_NULL, count=COUNT, last_at=TIME_OR_NULL, example_id=WHOLE, message=TEXT
)
COMPONENTS: dict[str, Schema] = {
    "Job": JOB, "Failure": FAILURE, "Progress": PROGRESS, "Queue": QUEUE, "Supervisor": SUPERVISOR, "Worker": WORKER,
    "CurrentJob": CURRENT_JOB, "Problem": PROBLEM, "Sink": SINK, "Plugin": PLUGIN, "FailureGroup": FAILURE_GROUP,
    "Error": an_object(error=TEXT),
}  # fmt: skip

# --- whole answers

STATUS = an_object(
    at=TIME, queues=listed(ref("Queue")), supervisors=listed(ref("Supervisor")), sinks=listed(ref("Sink")),
    stuck=listed(STUCK), problems=listed(ref("Problem")),
)  # fmt: skip
_PAGE: dict[str, Schema] = {"jobs": listed(ref("Job")), "next": TEXT_OR_NULL, "searched": COUNT, "complete": FLAG}
PAGE = an_object(**_PAGE)
DEAD_LETTERS = an_object(sinks=listed(ref("Sink")), **_PAGE)
FAILURES = an_object(failures=listed(ref("FailureGroup")), age=NUMBER)
CHANGED = an_object(
    matched=COUNT, changed=COUNT, refused=listed(an_object(id=WHOLE, reason=TEXT)), refused_count=COUNT,
    next=TEXT_OR_NULL, searched=COUNT, complete=FLAG,
)  # fmt: skip
CHANGED_JOB = an_object(id=WHOLE)
PAUSED = an_object(queue=TEXT, paused=FLAG)
RESIZED = an_object(workers=TEXT)
DRAINING = an_object(state=TEXT)
