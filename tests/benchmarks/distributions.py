"""Installed distributions."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Iterable

from tests.benchmarks.run import NotMeasured


def installed_version(distribution: str) -> str | None:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def require(distributions: Iterable[str]) -> None:
    """Raises NotMeasured if one of the distributions is not installed."""
    if missing := [name for name in distributions if not installed_version(name)]:
        raise NotMeasured(f"not installed: {', '.join(missing)}")
