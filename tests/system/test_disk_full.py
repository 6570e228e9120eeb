"""A disk that is full stops nobody, and loses nothing: not the database's, not the dead letters', not the log's."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.system.command import Command, wait_for

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


@contextmanager
def small_disk(folder: Path) -> Iterator[Path]:
    if os.geteuid() != 0:
        assert not os.environ.get("CI"), "the tests of a full disk need root, which CI has"
        pytest.skip("mounting a small disk needs root")
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)], check=True)
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def fill(disk: Path) -> Path:
    filler = disk / "filler"
    with pytest.raises(OSError, match="No space left"), filler.open("wb", buffering=0) as file:
        while True:
            file.write(bytes(4096))
    return filler


def dead_letters(disk: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (disk / "dead.jsonl").read_text().splitlines()]


def test_dead_letters_and_log_on_a_full_disk_hold_up_no_job_and_come_whole(command: Command) -> None:
    with small_disk(command.folder / "disk") as disk:
        command.write(config="workers: {count: 1}\ndlq: {sinks: [{type: file, path: disk/dead.jsonl}]}\n", plugins=JOBS)
        run = command.run(under=["sh", "-c", 'exec "$@" 2>disk/log', "sh"])
        first = command.enqueue("fails")
        wait_for(lambda: command.job(first)["dead_letter"] == "delivered")
        filler = fill(disk)
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


def test_a_start_on_a_full_disk_waits_for_space(command: Command) -> None:
    with small_disk(command.folder / "disk") as disk:
        command.write(config="workers: {count: 1}\nstore: sqlite:///disk/jobs.db\n", plugins=JOBS)
        filler = fill(disk)
        run = command.run()
        run.logged("store unavailable")
        filler.unlink()
        command.until(command.enqueue("noop"), "succeeded")
        assert run.log.count("store unavailable") == 1
        run.signal(signal.SIGTERM)
        assert run.wait() == 0
