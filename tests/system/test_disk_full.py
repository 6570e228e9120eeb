"""A full disk of the database, the dead letters or the log stops no supervisor and loses nothing."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

from tests.system.command import Command, wait_for
from tests.system.disks import fill, small_disk
from tests.system.privileges import require_root

JOBS = {
    "jobs.py": """
        from supervisor import handler

        @handler(max_retries=0)
        def fails(job):
            raise ValueError("never")

        @handler
        def noop(job):
            pass
    """
}


def dead_letters(disk: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (disk / "dead.jsonl").read_text().splitlines()]


def test_dead_letters_and_a_log_on_a_full_disk_hold_up_no_job_and_are_written_whole(command: Command) -> None:
    require_root("a small disk")
    with small_disk(command.folder / "disk", "1m") as disk:
        command.write(config="workers: {count: 1}\ndlq: {sinks: [{type: file, path: disk/dead.jsonl}]}\n", plugins=JOBS)
        run = command.run(under=["sh", "-c", 'exec "$@" 2>disk/log', "sh"])
        first = command.enqueue("fails")
        wait_for(lambda: command.job(first)["dead_letter"] == "delivered")
        fill(filler := disk / "filler")
        ids = [command.enqueue("fails", "x" * 5000) for _ in range(3)]
        for id in ids:
            command.until(id, "failed")
        command.until(command.enqueue("noop"), "succeeded")
        assert {command.job(id)["dead_letter"] for id in ids} == {"pending"}
        assert [dead_letter["id"] for dead_letter in dead_letters(disk)] == [first], "not even half a line"
        filler.unlink()
        wait_for(lambda: all(command.job(id)["dead_letter"] == "delivered" for id in ids))
        assert sorted(dead_letter["id"] for dead_letter in dead_letters(disk)) == [first, *ids]
        run.signal(signal.SIGTERM)
        assert run.wait() == 0


def test_a_supervisor_that_starts_on_a_full_disk_waits_for_space(command: Command) -> None:
    require_root("a small disk")
    with small_disk(command.folder / "disk", "1m") as disk:
        command.write(config="workers: {count: 1}\nstore: sqlite:///disk/jobs.db\n", plugins=JOBS)
        fill(filler := disk / "filler")
        run = command.run()
        run.logged("store unavailable")
        filler.unlink()
        command.until(command.enqueue("noop"), "succeeded")
        assert run.log.count("store unavailable") == 1
        assert f"free space on the disk of {disk}" in run.log
        run.signal(signal.SIGTERM)
        assert run.wait() == 0
