"""Two supervisors, one of which is killed and replaced, again and again, while it runs jobs.

The jobs come in batches. Those of batch `n` wait for gate `n` (see `gates`), so that jobs are in flight, and more are to come,
whenever a supervisor is killed.
"""

from __future__ import annotations

import random
import time

from tests.system.command import Command, Running, wait_for
from tests.system.gates import open_gate, waits_at_gate


def kill_in_turn(command: Command, batches: int, seed: int) -> None:
    """Open one gate after the other, and kill and replace a supervisor whose jobs wait there. At gates with an even number the jobs
    wait until others have recovered them, and at those with an odd one they go on as the supervisor is killed."""
    choice = random.Random(seed)
    runs = [_started(command), _started(command)]
    for number in range(batches):

        def waiting(number: int = number) -> list[Running]:
            found = [run for run in runs if waits_at_gate(command.folder, number, run.forkserver())]
            assert found, f"no job waits at gate {number}"
            return found

        victim = runs.index(choice.choice(wait_for(waiting)))
        recovered = _recovered(command)
        if number % 2:
            open_gate(command.folder, number)
            time.sleep(choice.uniform(0.0, 0.02))  # so that jobs are somewhere between their start and their end
        runs[victim].kill()
        runs[victim] = _started(command)
        if not number % 2:
            wait_for(lambda recovered=recovered: _recovered(command) > recovered)  # type: ignore[misc]
            open_gate(command.folder, number)


def _recovered(command: Command) -> int:
    return sum(run.log.count(" recovered: ") for run in command.runs)


def _started(command: Command) -> Running:
    run = command.run()
    run.logged("supervisor started")
    return run
