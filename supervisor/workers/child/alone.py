"""Run one job in this process, as a worker does, but without a supervisor: nothing is timed out, restored or stored."""

from __future__ import annotations

import os
from bdb import BdbQuit
from collections.abc import Sequence
from types import TracebackType

from supervisor.handlers import Handler
from supervisor.jobs import Job
from supervisor.plugins.forked_copy import end_copy
from supervisor.plugins.manager import PluginManager
from supervisor.text import strict_json as payloads
from supervisor.workers.child import error_report
from supervisor.workers.child.job_context import fresh_contexts
from supervisor.workers.child.main import WorkerInfo
from supervisor.workers.child.middleware import Middleware, Wrapper, async_middleware
from supervisor.workers.child.own_loop import run_coroutine


class Interrupted(Exception):
    """Somebody has pressed Ctrl-C, then the text is the traceback, or has left the debugger."""


class JobFailed(Exception):
    """The attempt has failed. `kind` and `error` are those of the Reply that a worker would send."""

    def __init__(self, kind: str, error: error_report.Error) -> None:
        super().__init__(error["message"])
        self.kind = kind
        self.error = error


def run_alone(plugins: PluginManager, job: Job, result_limit: int) -> str:
    """Run the job between the hooks of a worker that starts and exits, and return its result as JSON text.

    Raises JobFailed and Interrupted.
    """
    worker = WorkerInfo(os.getpid(), 1)
    plugins.call("supervisor_worker_started", worker=worker)
    try:
        return _run(plugins, job, result_limit)
    finally:
        plugins.call("supervisor_worker_stopping", worker=worker)


def _run(plugins: PluginManager, job: Job, result_limit: int) -> str:
    is_async = plugins.bindings[job.handler].is_async
    return run_attempt(plugins.handlers[job.handler], is_async, plugins.wrappers("supervisor_run"), job, result_limit)


def run_attempt(handler: Handler, is_async: bool, wrappers: Sequence[Wrapper], job: Job, result_limit: int) -> str:
    """Run the job within the wrappers, and return its result as JSON text. Raises JobFailed and Interrupted, from what it raised."""
    process, raised, result = os.getpid(), None, None
    try:
        context = fresh_contexts()()
        if is_async:
            result = context.run(run_coroutine, async_middleware(wrappers)(job, handler.function))
        else:
            result = context.run(Middleware(wrappers).run, job, handler.function)
    except BaseException as error:
        raised = error
    if os.getpid() != process:  # the job forked, and this is the copy, which returned from the handler too
        end_copy(raised and error_report.without_worker_frames(raised, globals()))
    if isinstance(raised, BdbQuit) or (isinstance(raised, SystemExit) and _is_of_debugger(raised.__traceback__)):
        raise Interrupted from raised
    if isinstance(raised, KeyboardInterrupt):
        raise Interrupted(error_report.traceback(raised, globals())) from raised
    if raised is not None:
        raise JobFailed(*error_report.report(raised, handler, globals())) from raised
    try:
        return payloads.encode(result, limit=result_limit, what="result")
    except payloads.NotJSON as error:
        raise JobFailed("failed", error_report.bad_result(error)) from None


def _is_of_debugger(trace: TracebackType | None) -> bool:
    """Return whether code of pdb has raised it: from Python 3.14 on, leaving pdb ends the program."""
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return trace is not None and trace.tb_frame.f_globals.get("__name__") == "pdb"
