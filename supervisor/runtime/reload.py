"""Which settings a HUP changes, and which need a restart."""

from __future__ import annotations

from supervisor.config.settings import Settings

RELOADABLE = ("plugins", "workers", "retry", "queues", "handlers", "limits", "retention", "unknown_handler", "log")
FIXED = ("store", "lease", "dlq", "shutdown")


def only_reloadable(old: Settings, new: Settings) -> tuple[Settings, tuple[str, ...]]:
    """The new settings with the fixed sections as they were, and the names of those that differ."""
    differing = tuple(name for name in FIXED if getattr(old, name) != getattr(new, name))
    kept = {name: getattr(old, name) for name in differing}
    return new.replace(**kept, secrets=old.secrets | new.secrets), differing


def changed_keys(old: Settings, new: Settings) -> tuple[str, ...]:
    return tuple(name for name in RELOADABLE if getattr(old, name) != getattr(new, name))
