"""Supervisor and forkserver are killed together: no process is left to end what their workers leave."""

from __future__ import annotations

import os
import signal

from supervisor.workers.system import process_tree as proctree
from tests.system.command import Command, wait_for

PLUGIN = {
    "programs.py": """
        import subprocess
        from supervisor import handler

        @handler
        def start(job):
            "Leaves a program that has nothing from its worker: no variable, no session, no group, no parent."
            program = "echo $$ > program; exec sleep 3600"
            subprocess.run(["env", "-i", "setsid", "--fork", "sh", "-c", program], check=True)
    """
}


def test_the_next_supervisor_ends_programs_left_by_one_killed_together_with_its_forkserver(command: Command) -> None:
    command.write(config="workers: {count: 1}", plugins=PLUGIN)
    file = command.folder / "program"
    run = command.run()
    command.until(command.enqueue("start"), "succeeded")
    program = wait_for(lambda: int(file.read_text() or "0") if file.exists() else False)
    os.kill(run.forkserver(), signal.SIGKILL)
    run.kill()
    assert proctree.is_alive(program)
    command.run()
    wait_for(lambda: not proctree.is_alive(program))
