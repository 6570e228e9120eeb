"""Between jobs: no job sees the context, the time zone or the user of another."""

from __future__ import annotations

import os
from logging import WARNING
from pathlib import Path

import pytest

from tests.system.privileges import require_root
from tests.system.real_workers import World, lease, play

CONTEXT = """
import contextvars, decimal

NAME = contextvars.ContextVar("name", default="none")
{at_import}

@handler
def look(job):
    zone = (time.tzname, time.timezone, time.localtime(1_700_000_000).tm_hour)
    program = subprocess.run(["env"], capture_output=True, text=True).stdout
    return [NAME.get(), decimal.getcontext().prec, str(zone), "NEW" in program, "KEPT=kept" in program]

@handler
def variable(job): NAME.set("changed")

@handler
def precision(job): decimal.getcontext().prec = 5

@handler
def zone(job):
    os.environ["TZ"] = "Asia/Tokyo"
    time.tzset()

@handler
def zone_alone(job):
    os.environ["TZ"] = "Asia/Tokyo"
    time.tzset()
    del os.environ["TZ"]

@handler
def zone_of_c(job):
    os.environ["TZ"] = "Asia/Tokyo"
    time.strftime("%H")

@handler
def putenv(job): os.putenv("NEW", "new")

@handler
def unsetenv(job): os.unsetenv("KEPT")
"""
HARM = ["variable", "precision", "zone", "zone_alone", "zone_of_c", "putenv", "unsetenv"]


@pytest.mark.parametrize(
    "at_import", ["", "decimal.getcontext().prec = 40; NAME.set('import')", "os.putenv('NEW', 'import')"]
)
def test_no_job_sees_the_context_of_another(tmp_path: Path, at_import: str) -> None:
    async def scene(here: World) -> None:
        process = await here.worker()
        names = ["look", *(name for harm in HARM for name in (harm, "look"))] * 2
        replies = await here.run(process, *(lease(n, name) for n, name in enumerate(names)))
        assert {reply.kind for reply in replies} == {"ok"}, replies
        before = replies[0].result
        assert [names[reply.job_id - 1] for reply in replies if reply.result not in (None, before)] == []

    os.environ["KEPT"] = "kept"
    try:
        play(tmp_path, scene, CONTEXT.format(at_import=at_import))
    finally:
        del os.environ["KEPT"]


def test_a_wrapper_and_its_job_share_the_context(tmp_path: Path) -> None:
    async def scene(here: World) -> None:
        process = await here.worker()
        replies = await here.run(process, lease(1, "look"), lease(2, "look"))
        assert [reply.result for reply in replies] == ['"none, 1"', '"none, 2"']

    play(
        tmp_path,
        scene,
        """
import contextvars
from supervisor import hookimpl
NAME = contextvars.ContextVar("name", default="none")

@hookimpl(wrapper=True)
def supervisor_run(job):
    before = NAME.get()
    NAME.set(f"{before}, {job.id}")
    return (yield)

@handler
def look(job): return NAME.get()
""",
    )


@pytest.mark.parametrize("change", ["os.setuid(65534)", "os.setegid(65534)", "os.setgroups([7])", "os.chroot('.')"])
def test_a_worker_whose_user_or_root_directory_a_job_changed_runs_no_other_job(tmp_path: Path, change: str) -> None:
    require_root("to change the user")

    async def scene(here: World) -> None:
        process = await here.worker()
        here.send(process, lease(1, "harm"), lease(2, "noop"))
        report = await here.end(process)
        assert [(reply.job_id, reply.kind) for reply in here.replies] == [(1, "ok")]
        assert report.exit_code == 1
        (record,) = here.records
        assert record.message.startswith("a job changed the user, a group or the root directory of its worker")
        assert record.level == WARNING
        assert sum(here.permits_at_end.values()) == 1

    play(tmp_path, scene, f"@handler\ndef harm(job):\n    os.chdir('/tmp')\n    time.sleep(0.001)\n    {change}\n")
