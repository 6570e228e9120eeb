"""Every key that a config may have."""

from __future__ import annotations

from supervisor.config.diagnostics import flatten
from supervisor.config.section import tree
from supervisor.config.settings import Settings


def known_keys() -> list[str]:
    """Dotted; `<name>` is the name of a queue or a handler, `[]` an entry of a list."""
    return list(flatten(tree(Settings)))
