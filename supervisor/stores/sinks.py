"""The sinks of a dead letter: those that it is owed to, and those that have accepted it. SQL stores keep each as a JSON list.

It is owed to the sinks of the supervisor on which the job failed (to those of all supervisors if that one has none), and to those
of every supervisor that has claimed it since: while supervisors with different sinks share a store, none of these sinks is left
out. It is delivered once all of them have it; at once if no supervisor has sinks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import orjson

Sinks = frozenset[str]


def sinks_text(sinks: Iterable[str]) -> str:
    return orjson.dumps(sorted(sinks)).decode()


def sinks_of(text: str) -> Sinks:
    """Return the names in a list that another program may have written: what is not a name is left out, since one bad row must
    not hold up others. At worst a sink gets a dead letter again."""
    try:
        names = orjson.loads(text)
    except ValueError:
        return frozenset()
    return frozenset(filter(_is_name, names)) if isinstance(names, list) else frozenset()


def _is_name(value: object) -> bool:
    return isinstance(value, str) and value.isprintable()


def missing_sinks(owed: str, accepted: str) -> list[str]:
    """Return the sinks that a pending dead letter still waits for."""
    return sorted(sinks_of(owed) - sinks_of(accepted))


def is_complete(owed: Sinks, accepted: Sinks) -> bool:
    """Return whether a pending dead letter is delivered now: some sink must have it, since it was owed to some."""
    return bool(accepted) and owed <= accepted


def has_work(owed: Sinks, accepted: Sinks, sinks: Sinks) -> bool:
    """Return whether a supervisor can do something for a pending dead letter: offer it to one of its `sinks`, or find it complete
    (it came from a store that did not keep the sinks that it was owed to)."""
    return bool(sinks) and (not sinks <= accepted or is_complete(owed, accepted))


def count_by_work(pending: Iterable[tuple[str, str, int]], sinks: Sinks, most: int) -> dict[str, int]:
    """Count pending dead letters, given as (owed, accepted, n), for `Queries.remaining` of a supervisor with these sinks."""
    counts = Counter({"dead_letters": 0, "dead_letters_for_other_sinks": 0})
    for owed, accepted, n in pending:
        here = has_work(sinks_of(owed), sinks_of(accepted), sinks)
        counts["dead_letters" if here else "dead_letters_for_other_sinks"] += n
    return {kind: min(most, n) for kind, n in counts.items()}


def sink_rows(
    pending: Iterable[tuple[str, str, int]], supervisors: Sequence[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """The `sinks` of `status --json`: of running `supervisors`, and those that pending dead letters still wait for."""
    running = Counter(sink for each in supervisors for sink in each["sinks"])
    waiting: Counter[str] = Counter()
    for owed, accepted, n in pending:
        waiting.update(dict.fromkeys(missing_sinks(owed, accepted), n))
    return [
        {"sink": sink, "pending": waiting[sink], "supervisors": running[sink]}
        for sink in sorted(running.keys() | waiting.keys())
    ]
