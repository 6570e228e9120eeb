"""Supervisor and forkserver are killed together: no process is left to end what their workers leave."""

from __future__ import annotations

import os
import signal

from supervisor.workers.system import process_tree as proctree
from tests.system.command import Command, wait_for

PLUGIN = {
    "programs.py": """
        import subprocess
        from pathlib import Path
        from supervisor import handler

        @handler
        def start(job):
            "Starts a program in a session of its own, which outlives its job."
            program = subprocess.Popen(["sleep", "3600"], start_new_session=True)
            Path(job.payload).write_text(str(program.pid))
    """
}


def test_the_next_supervisor_ends_programs_left_by_one_killed_together_with_its_forkserver(command: Command) -> None:
    command.write(config="workers: {count: 1}", plugins=PLUGIN)
    file = command.folder / "program"
    run = command.run()
    command.until(command.enqueue("start", str(file)), "succeeded")
    os.kill(run.forkserver(), signal.SIGKILL)
    run.kill()
    program = int(file.read_text())
    assert proctree.is_alive(program)
    command.run()
    wait_for(lambda: not proctree.is_alive(program))
