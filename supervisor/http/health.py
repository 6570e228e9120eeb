"""Whether a supervisor is ready: it claims jobs, runs them, and keeps their outcomes and dead letters."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

HARMLESS = frozenset({"config", "restart", "offset_held"})
"""Problems of a supervisor that goes on all the same: with the configuration of before, or with all other records."""

Problem = Mapping[str, str]
"""`kind`, `message` and `what_to_do`, as `status --json` has them."""


def readiness(state: str, problems: Iterable[Problem]) -> dict[str, Any]:
    """Return the object of /readyz: `ready`, and `reasons`, each with `reason`, `message` and `what_to_do`."""
    reasons = [*_of_state(state), *(_reason(it) for it in problems if it["kind"] not in HARMLESS)]
    return {"ready": not reasons, "state": state, "reasons": reasons}


def _of_state(state: str) -> Iterator[dict[str, str]]:
    if state == "starting":
        yield {"reason": state, "message": "it has not claimed jobs yet", "what_to_do": "wait, then look at its log"}
    elif state != "running":
        yield {"reason": state, "message": "it ends, and claims no more jobs", "what_to_do": "wait"}


def _reason(problem: Problem) -> dict[str, str]:
    return {"reason": problem["kind"], "message": problem["message"], "what_to_do": problem["what_to_do"]}
