"""Log each event. Every line about a job has `job=ID`, and its handler if the event has it."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from typing import Any

import orjson

from supervisor import events
from supervisor.jobs import Failure, JobState, Kind, Lease, Outcome
from supervisor.telemetry.dead_letter_lines import DeadLetterLines
from supervisor.telemetry.group_lines import GroupLines
from supervisor.telemetry.log_handler import LOGGER, job_fields, named
from supervisor.telemetry.schedule_lines import ScheduleLines
from supervisor.telemetry.store_calls import StoreCalls
from supervisor.text.rate_limit import RateLimit, times
from supervisor.text.redaction import NO_SECRETS
from supervisor.text.units import counted, format_duration

logger = logging.getLogger(LOGGER)
_without_passwords = NO_SECRETS
_MAX_ERROR = 300
_MAX_SIGNALS = 10, 10.0
"""The number of equal lines about signals in so many seconds: each signal is wanted, and the line of a reload precedes its result."""
REPAIRED = "store repaired: %s"
_NOT_SERVED = {
    "unknown_handler": "no plugin serves it",
    "not_imported": "a worker could not import it, though others could",
}


class LogSubscriber:
    """A subscriber of the bus. Successes and claims are debug lines: above that level their batches cost next to nothing."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._repeats, self._store_errors = RateLimit(clock), RateLimit(clock)
        self._signals, self._store_calls = RateLimit(clock, *_MAX_SIGNALS), StoreCalls(_log, clock)
        self.writers: dict[type[Any], Callable[[Any], None]] = {
            **_WRITERS,
            **GroupLines(_log, clock).writers,
            **DeadLetterLines(_log).writers,
            **ScheduleLines(_log, clock).writers,
            events.HookFailed: self._hook_failed,
            events.HookWarning: self._hook_warning,
            events.ForkserverExited: self._forkserver_exited,
            events.WorkerExited: self._worker_exited,
            events.JobsReleased: self._jobs_released,
            events.DeadLettersFailed: self._dead_letters_failed,
            events.SignalReceived: self._signal_received,
            events.StoreCallFailed: self._store_call_failed,
            events.StoreCallSucceeded: self._store_calls.succeeded,
            events.SupervisorStopped: self._supervisor_stopped,
            events.StoreBecameUnavailable: self._store_unavailable,
            events.StoreAvailableAgain: self._store_available_again,
        }

    def __call__(self, event: events.Event) -> None:
        if self._store_calls.recovered:
            self._store_calls.log_lasting()
        if (write := self.writers.get(type(event))) is not None:
            write(event)

    def _hook_failed(self, event: events.HookFailed) -> None:
        if (held := self._repeats.allow(event.text)) is not None:
            _log(logging.ERROR, "%s%s", event.text, times(held), traceback=event.traceback)

    def _hook_warning(self, event: events.HookWarning) -> None:
        if (held := self._repeats.allow(event)) is not None:
            _log(logging.WARNING, "hook %s of plugin %s %s%s", *event, times(held))

    def _signal_received(self, event: events.SignalReceived) -> None:
        if (held := self._signals.allow(event)) is not None:
            _log(logging.INFO, "%s received: %s%s", event.signal, event.effect, times(held))

    def _forkserver_exited(self, event: events.ForkserverExited) -> None:
        if event.pid:
            line = "forkserver (pid %d) exited: %s; its workers keep running"
            _log(logging.WARNING, line, event.pid, event.how, pid=event.pid)
        elif (held := self._repeats.allow(("forkserver", event.how))) is not None:
            _log(logging.WARNING, "forkserver %s%s", event.how, times(held))

    def _worker_exited(self, event: events.WorkerExited) -> None:
        if event.pid or event.cause in events.NORMAL_EXITS:
            _worker_exited(event)
        elif (held := self._repeats.allow(("worker", event.how))) is not None:  # all may fail to start for one reason
            _log_worker(event, "%s%s", event.how, times(held), level=logging.WARNING, cause=event.cause)

    def _dead_letters_failed(self, event: events.DeadLettersFailed) -> None:
        if (held := self._repeats.allow((event.sink, event.error))) is not None:
            why = _without_passwords(event.error) + times(held)
            line = "job=%d dead letter not accepted by sink %s, offered again in %.2fs: %s"
            for id in event.ids:
                _log(logging.WARNING, line, id, event.sink, event.retry_in, why, job=id, sink=event.sink)

    def _jobs_released(self, event: events.JobsReleased) -> None:
        if event.reason in _NOT_SERVED:
            self._handlers_not_served(event.reason, event.leases)
        else:
            _log(logging.INFO, "released %s, no retry counted: %s", counted(len(event.leases), "job"), event.reason)
        if logger.isEnabledFor(logging.DEBUG):
            for lease in event.leases:
                _log_job(lease, logging.DEBUG, "released: %s", event.reason)

    def _handlers_not_served(self, reason: str, leases: Sequence[Lease]) -> None:
        """Write one line a minute for each handler, however many jobs it has."""
        line = "%s: %s; its jobs are released, no retry counted, and tried again later%s"
        for lease in leases:
            if (held := self._repeats.allow((reason, lease.handler))) is not None:
                _log_job(lease, logging.WARNING, line, reason, _NOT_SERVED[reason], times(held))

    def _store_call_failed(self, event: events.StoreCallFailed) -> None:
        self._store_calls.failed(event._replace(error=_without_passwords(event.error)))

    def _supervisor_stopped(self, event: events.SupervisorStopped) -> None:
        self._store_calls.log_lasting(all=True)
        _supervisor_stopped(event)

    def _store_unavailable(self, event: events.StoreBecameUnavailable) -> None:
        if (held := self._store_errors.allow(event.error)) is not None:
            _log(logging.ERROR, "store unavailable: %s%s", _without_passwords(event.error), times(held))

    def _store_available_again(self, event: events.StoreAvailableAgain) -> None:
        self._store_errors = RateLimit(self._clock)
        _log(logging.INFO, "store available again after %.2fs", event.unavailable_for)


def _log(level: int, message: str, *arguments: Any, **fields: Any) -> None:
    logger.log(level, message, *arguments, extra={"fields": fields})


def _line(level: int, line: str) -> Callable[[Any], None]:
    """Return a writer of this line, whose arguments are the fields of the event."""
    return lambda event: _log(level, line, *event)


def _supervisor_started(event: events.SupervisorStarted) -> None:
    owner, host, pid, store = event
    line = "supervisor started: owner=%s host=%s pid=%d store=%s"
    _log(logging.INFO, line, owner, host, pid, _without_passwords(store), pid=pid)


def _supervisor_stopped(event: events.SupervisorStopped) -> None:
    left = f"; left behind: {event.left}" if event.remaining else ""
    left += f"; left out: {event.left_out}" if event.excluded else ""
    left += f"; no plugin serves: {', '.join(event.missing_handlers)}" if event.missing_handlers else ""
    left += f"; {event.blocked}" if event.blocked else ""
    _log(logging.INFO, "supervisor stopped: exit code %d%s", event.code, left)


def _plugin_loaded(event: events.PluginLoaded) -> None:
    brought = [
        f"{kind}={','.join(names)}" for kind, names in (("handlers", event.handlers), ("hooks", event.hooks)) if names
    ]
    _log(logging.INFO, "plugin %s loaded: %s", event.source, " ".join(brought) or "nothing in it")


def _plugin_failed(event: events.PluginFailed) -> None:
    _log(logging.ERROR, "%s", event.text, traceback=event.traceback)


def _forkserver_started(event: events.ForkserverStarted) -> None:
    _log(logging.INFO, "forkserver started (pid %d)", event.pid, pid=event.pid)


def _worker_started(event: events.WorkerStarted) -> None:
    _log_worker(event, "started")


def _worker_exited(event: events.WorkerExited) -> None:
    if event.cause in events.NORMAL_EXITS:
        limit = "" if event.cause == "stopped" else f" ({event.how})"
        _log_worker(event, "exited: %s%s", event.cause, limit, cause=event.cause)
        return
    how = "crashed" if event.cause == "crash" else "killed"
    why = f": {event.how}" if event.job_id is None or event.cause == "crash" else ""
    level = logging.INFO if event.cause in events.INTENDED_KILLS else logging.WARNING
    after = "" if event.after is None else f" after {event.after:.2f}s"
    job, fields = _job_of(event)
    line = "%s: %s cause=%s%s%s"
    _log_worker(event, line, how, job or "no job", event.cause, after, why, level=level, cause=event.cause, **fields)


def _worker_output(event: events.WorkerOutput) -> None:
    if not event.number:
        for line in event.lines:
            logger.info("forkserver %s: %s", event.stream, line)
        return
    job, fields = _job_of(event)
    for line in event.lines:
        _log_worker(event, "%s%s: %s", event.stream, f" {job}" if job else "", line, stream=event.stream, **fields)


def _worker_logged(event: events.WorkerLogged) -> None:
    """Log the record as it is. In JSON, the message is that of the record alone: the fields have the rest."""
    if not logger.isEnabledFor(event.level):
        return
    job, about = _job_of(event)
    about |= {"worker": event.number, "pid": event.pid} if event.number else {}
    if event.traceback:
        about["traceback"] = event.traceback
    where = _worker(event) if event.number else "forkserver"
    where += f" {job}" if job else ""
    if event.attempt is not None:
        about["attempt"] = event.attempt
        where += f" attempt={event.attempt}"
    record = logging.LogRecord(event.logger, event.level, "", 0, event.message, None, None)
    record.levelname = event.level_name
    record.fields, record.where = about, f"{where}: "
    logger.handle(record)


def _worker_warning(event: events.WorkerWarning) -> None:
    _log_worker(event, "%s", event.message, level=logging.WARNING)


def _jobs_claimed(event: events.JobsClaimed) -> None:
    if logger.isEnabledFor(logging.DEBUG):
        for lease in event.leases:
            _log_job(lease, logging.DEBUG, "attempt %d claimed under token %d", lease.attempt, lease.token)


def _job_started(event: events.JobStarted) -> None:
    lease, pid = event
    _log_job(lease, logging.DEBUG, "attempt %d started on pid %d", lease.attempt, pid, pid=pid)


def _jobs_settled(event: events.JobsSettled) -> None:
    outcomes = event.outcomes
    if not logger.isEnabledFor(logging.DEBUG):
        succeeded = Kind.SUCCEEDED  # a hot path: batches of hundreds of successes
        outcomes = [outcome for outcome in outcomes if outcome.kind is not succeeded]
    for outcome in outcomes:
        _log_outcome(outcome)


def _leases_recovered(event: events.LeasesRecovered) -> None:
    for outcome in event.outcomes:
        _log_outcome(outcome, "recovered: ")


def _log_outcome(outcome: Outcome, how: str = "") -> None:
    lease, failure = outcome.lease, outcome.failure
    if failure is not None:
        _log_failure(outcome, failure, how)
    elif outcome.kind is Kind.SUCCEEDED:
        took = "" if outcome.took is None else f" in {outcome.took:.3f}s"
        _log_job(lease, logging.DEBUG, "%sattempt %d succeeded%s", how, lease.attempt, took)
    else:  # many jobs are released, or snooze
        what = "snoozed" if outcome.kind is Kind.SNOOZED else "released, no retry counted"
        _log_job(lease, logging.INFO if how else logging.DEBUG, "%s%s%s", how, what, _again(outcome))


def _log_failure(outcome: Outcome, failure: Failure, how: str) -> None:
    lease, cause, level = outcome.lease, failure.cause.value, logging.INFO
    if outcome.state is JobState.FAILED:
        level, what = logging.WARNING, "failed for good" + ("; now a dead letter" if outcome.dead_letter else "")
    elif outcome.counted:
        what = f"retry {lease.attempt} of {lease.policy.max_retries} in {outcome.delay:.2f}s"
    else:
        what = f"no retry counted{_again(outcome)}"
    line = "%sattempt %d failed: cause=%s%s; %s"
    _log_job(lease, level, line, how, lease.attempt, cause, _brief(failure), what, cause=cause)


def _again(outcome: Outcome) -> str:
    return f"; again in {outcome.delay:.2f}s" if outcome.delay else ""


def _jobs_stale(event: events.JobsStale) -> None:
    for lease in event.leases:
        _log_job(lease, logging.WARNING, "stale %s under token %d: nothing changed", event.what, lease.token)


def _jobs_locked(event: events.JobsLocked) -> None:
    line = "its row is locked by another session of the database: its outcome is kept, and settled once the row is free"
    for lease in event.leases:
        _log_job(lease, logging.WARNING, line)


def _job_cancelled(event: events.JobCancelled) -> None:
    _log_job(event.lease, logging.INFO, "cancelled; its worker (pid %d) ends the attempt", event.pid, pid=event.pid)


def _jobs_expired(event: events.JobsExpired) -> None:
    for id, handler, queue in event.jobs:
        _log(
            logging.INFO, "job=%d handler=%s expired before it started: cancelled", id, handler, job=id, handler=handler, queue=queue
        )  # fmt: skip


def _clock_stepped(event: events.ClockStepped) -> None:
    where, when = ("forward", "earlier") if event.seconds > 0 else ("back", "later")
    line = "the clock was set %s by %s: delayed jobs and jobs in backoff are due that much %s; running jobs go on"
    _log(logging.WARNING, line, where, format_duration(abs(event.seconds)), when)


def _store_lost(event: events.StoreLost) -> None:
    line = "store lost: %s; outcomes not settled yet are lost; put the file back if it was moved, then start the supervisor again: a start without it makes an empty store"
    _log(logging.ERROR, line, event.error)


def _config_reloaded(event: events.ConfigReloaded) -> None:
    level = logging.WARNING if event.needs_restart or event.handlers_removed else logging.INFO
    _log(level, "config reloaded: %s", event.text)


def _config_refused(event: events.ConfigRefused) -> None:
    for error in event.errors:
        _log(logging.ERROR, "config refused, the old one stays: %s", error)


def _status_dumped(event: events.StatusDumped) -> None:
    _log(logging.INFO, "status: %s", orjson.dumps(event.status, default=str).decode())


def _dropped(event: events.Dropped) -> None:
    _log(logging.WARNING, "the queue of %s overflowed: %s dropped", event.queue, counted(event.number, "event"))


def _log_job(lease: Lease, level: int, message: str, *arguments: Any, **fields: Any) -> None:
    if logger.isEnabledFor(level):
        _log(level, "%s " + message, named(lease), *arguments, **fields, **job_fields(lease))


def _log_worker(
    event: events.WorkerStarted | events.WorkerExited | events.WorkerOutput | events.WorkerWarning,
    message: str,
    *arguments: Any,
    level: int = logging.INFO,
    **fields: Any,
) -> None:
    fields |= {"worker": event.number, **({"pid": event.pid} if event.pid else {})}
    _log(level, "%s " + message, _worker(event), *arguments, **fields)


def _worker(event: Any) -> str:
    """Name the worker of the event, without a pid if it has none: it was never started."""
    return f"worker {event.number} (pid {event.pid})" if event.pid else f"worker {event.number}"


def _job_of(event: events.WorkerExited | events.WorkerOutput | events.WorkerLogged) -> tuple[str, dict[str, Any]]:
    if event.job_id is None:
        return "", {}
    if event.handler is None:
        return f"job={event.job_id}", {"job": event.job_id}
    return f"job={event.job_id} handler={event.handler}", {"job": event.job_id, "handler": event.handler}


def _brief(failure: Failure) -> str:
    """Return the first line of the error; the job's record has all of it."""
    error = ": ".join(part for part in (failure.type, failure.message) if part)
    first = error.partition("\n")[0]
    return f" {first[:_MAX_ERROR]}" if first else ""


_WRITERS: dict[type[Any], Callable[[Any], None]] = {
    events.SupervisorStarted: _supervisor_started,
    events.SupervisorStopping: _line(logging.INFO, "supervisor stopping: %s"),
    events.PluginLoaded: _plugin_loaded,
    events.PluginFailed: _plugin_failed,
    events.PluginWarning: _line(logging.WARNING, "plugin %s: %s"),
    events.ConfigWarning: _line(logging.WARNING, "%s"),
    events.ForkserverStarted: _forkserver_started,
    events.WorkerStarted: _worker_started,
    events.WorkersScaled: _line(logging.INFO, "%s: from %d to %d workers: %s"),
    events.WorkerOutput: _worker_output,
    events.WorkerLogged: _worker_logged,
    events.WorkerWarning: _worker_warning,
    events.JobsClaimed: _jobs_claimed,
    events.JobStarted: _job_started,
    events.JobsSettled: _jobs_settled,
    events.JobsStale: _jobs_stale,
    events.JobsLocked: _jobs_locked,
    events.JobCancelled: _job_cancelled,
    events.JobsExpired: _jobs_expired,
    events.LeasesRecovered: _leases_recovered,
    events.StoreLost: _store_lost,
    events.StoreRepaired: _line(logging.WARNING, REPAIRED),
    events.LoopGap: _line(
        logging.WARNING, "the supervisor stood still for %.2fs; timeouts and heartbeats do not count this time"
    ),
    events.ClockStepped: _clock_stepped,
    events.ConfigReloaded: _config_reloaded,
    events.ConfigRefused: _config_refused,
    events.StatusDumped: _status_dumped,
    events.Dropped: _dropped,
}
