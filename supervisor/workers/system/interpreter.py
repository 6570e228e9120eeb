"""Fresh interpreters that import what this one imports, from the same places; and how one ends."""

from __future__ import annotations

import os
import sys
from threading import Timer
from typing import NoReturn

_BOOT = "import sys; sys.path[:] = sys.argv[2].split('\\n'); from {module} import main; main(sys.argv[1])"


def command(module: str, argument: str) -> list[str]:
    """Runs `main(argument)` of the module. Neither the current directory nor the script's goes before the rest."""
    return [sys.executable, "-P", "-c", _BOOT.format(module=module), argument, "\n".join(sys.path)]


def end_within(seconds: float, status: int) -> NoReturn:
    """End this process in good order, but without what a plugin left running, or registered for the exit, after that."""
    end = Timer(seconds, os._exit, (status,))
    end.daemon = True
    end.start()
    sys.exit(status)
