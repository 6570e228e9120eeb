"""Lists of jobs: by state, queue and handler, page by page, and failures by handler and error."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

from supervisor.http.api import BadRequest
from supervisor.jobs import JobState
from supervisor.stores.protocol import Store

PAGE = 50
LOOKED_AT = 100
MAX_GROUPS = 20
STATES = [state.value for state in JobState]
DEAD_LETTERS = ("any", "pending", "delivered")


@dataclass(frozen=True)
class Asked:
    """The filters of a list, as its address has them."""

    state: str | None = None
    queue: str | None = None
    handler: str | None = None
    dead_letter: str | None = None
    limit: int = PAGE

    @classmethod
    def of(cls, query: Mapping[str, str]) -> Asked:
        state, queue, handler = (query.get(name, "").strip() or None for name in ("state", "queue", "handler"))
        if state not in (None, *STATES):
            raise BadRequest(f"state: expected one of {', '.join(STATES)}, got {state!r}"[:200])
        return cls(state, queue, handler)

    @classmethod
    def of_dead_letters(cls, query: Mapping[str, str]) -> Asked:
        kind = query.get("dead_letter") or "any"
        if kind not in DEAD_LETTERS:
            raise BadRequest(f"dead_letter: expected one of {', '.join(DEAD_LETTERS)}, got {kind!r}"[:200])
        return cls(dead_letter=kind)

    @property
    def query(self) -> str:
        return urlencode(self.given)

    @property
    def given(self) -> dict[str, str]:
        names = ("state", "queue", "handler", "dead_letter")
        return {name: value for name in names if (value := getattr(self, name)) is not None}


@dataclass(frozen=True)
class Listed:
    jobs: list[dict[str, Any]]
    more: bool
    """Whether there are older ones."""


def listed(store: Store, asked: Asked) -> Listed:
    found = [
        *store.list_jobs(
            state=None if asked.state is None else JobState(asked.state), queue=asked.queue, handler=asked.handler,
            dead_letter=asked.dead_letter, limit=asked.limit + 1, brief=True,
        )
    ]  # fmt: skip
    return Listed(found[: asked.limit], len(found) > asked.limit)


def failures(store: Store) -> list[dict[str, Any]]:
    """Return the newest failures by handler, error and cause, the most frequent ones first."""
    groups: dict[tuple[str, str, str], dict[str, Any]] = {}
    for job in store.list_jobs(state=JobState.FAILED, limit=LOOKED_AT, brief=True):
        error = job["errors"][-1] if job["errors"] else {}
        kind, cause = str(error.get("type") or ""), str(error.get("cause") or "")
        group = groups.setdefault(
            (job["handler"], kind, cause),
            {
                "handler": job["handler"], "type": kind, "cause": cause, "count": 0, "last_at": job["finished_at"],
                "example_id": job["id"], "message": str(error.get("message") or ""),
            },
        )  # fmt: skip
        group["count"] += 1
    return sorted(groups.values(), key=lambda group: -group["count"])[:MAX_GROUPS]
