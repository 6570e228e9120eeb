"""Gates at which handlers wait, in the folder of the command. They write there which forkserver has started their worker."""

from __future__ import annotations

import os
import time
from pathlib import Path


def wait_for_gate(number: int) -> None:
    """Wait in a handler until a test has opened the gate."""
    while not Path(f"gate-{number}").exists():
        Path(f"waits-{number}-{os.getppid()}").touch()
        time.sleep(0.005)


def waits_at_gate(folder: Path, number: int, forkserver: int) -> bool:
    """Return whether a job has waited at the gate in a worker of this forkserver."""
    return (folder / f"waits-{number}-{forkserver}").exists()


def open_gate(folder: Path, number: int) -> None:
    (folder / f"gate-{number}").touch()
