"""Fresh interpreters that import what this one imports, from the same places."""

from __future__ import annotations

import sys

_BOOT = "import sys; sys.path[:] = sys.argv[2].split('\\n'); from {module} import main; main(sys.argv[1])"


def command(module: str, argument: str) -> list[str]:
    """Runs `main(argument)` of the module. Neither the current directory nor the script's goes before the rest."""
    return [sys.executable, "-P", "-c", _BOOT.format(module=module), argument, "\n".join(sys.path)]
