"""Everything wrong with a config, said so that it can be put right: where, which key, what was expected, what is there.

Values are shown as they stand in the file, never as a variable made them: they may be secrets.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import urlsplit

from pydantic_core import ErrorDetails

from supervisor.config.yaml_reader import Document, Problem
from supervisor.config.yaml_reader import Path as Keys

if TYPE_CHECKING:
    from supervisor.config.settings import Schema, StoreSettings

OPEN_BOOKS = ("sqlite", "memory")
"""Stores whose URL holds nothing secret."""

STORE_OPTIONS: Mapping[str, Mapping[str, tuple[Any, ...] | type[str]]] = {
    "sqlite": {"synchronous": ("full", "normal")},
    "memory": {},
    "postgresql": {"schema": str, "listen": (True, False)},
    "postgres": {"schema": str, "listen": (True, False)},
}
"""The other keys of `store:` by scheme, each with what may be written there."""

Tree = dict[str, Any]


def write_keys(keys: Keys) -> str:
    """dlq.sinks[0].type"""
    text = "".join(f"[{key}]" if isinstance(key, int) else f".{key}" for key in keys)
    return text.removeprefix(".")


def write_problem(file: Path, problem: Problem) -> str:
    where = f"{file}:{problem.line}" if problem.line else str(file)
    return ": ".join(part for part in (where, write_keys(problem.path), problem.message) if part)


# --- of single keys


def explain(document: Document, details: Iterable[ErrorDetails], known: Tree) -> list[Problem]:
    """Problems of what pydantic refused, without those that reading the file has named already."""
    named = [problem.path for problem in document.problems]
    problems = []
    for detail in details:
        path = detail["loc"]
        if any(_touch(path, other) for other in named):
            continue
        if detail["type"] == "extra_forbidden":
            problems.append(_problem(document, path, f"unknown key{_nearest(path, known)}"))
        elif detail["type"] == "missing":
            problems.append(_problem(document, path, f"missing; expected {_example(path)}"))
        else:
            problems.append(_problem(document, path, _expected(detail, path, known) + _got(document, path)))
    return problems


def prune(value: Any, path: Keys) -> Any:
    """`value` without what stands at `path`, or without the nearest thing above it that can be left out."""
    if not path or not isinstance(value, dict) or path[0] not in value:
        return _ABSENT
    kept = prune(value[path[0]], path[1:])
    rest = {key: part for key, part in value.items() if key != path[0]}
    return rest if kept is _ABSENT else {**rest, path[0]: kept}


_ABSENT: Any = {}


def _touch(one: Keys, other: Keys) -> bool:
    shorter = min(len(one), len(other))
    return bool(other) and one[:shorter] == other[:shorter]


def _problem(document: Document, path: Keys, message: str) -> Problem:
    position = next(
        (document.positions[path[:end]] for end in range(len(path), -1, -1) if path[:end] in document.positions), None
    )
    return Problem(path, position.line if position else None, message)


def _got(document: Document, path: Keys) -> str:
    position = document.positions.get(path)
    if position is None or position.text is None:
        return ""
    if not position.text:
        return ", got nothing"
    return f", got {position.text if len(position.text) <= 60 else position.text[:57] + '...'}"


def _expected(detail: ErrorDetails, path: Keys, known: Tree) -> str:
    if detail["type"] == "value_error":
        return str(detail["ctx"]["error"])
    if detail["type"] in ("tuple_type", "list_type"):
        return "expected a list"
    keys = _below(path, known) or known
    return f"expected a mapping with {', '.join(keys)}" if "<name>" not in keys else "expected a mapping by name"


def _example(path: Keys) -> str:
    return {"type": "the type of a sink, such as file", "limit": "a whole number", "per": "a duration such as 1m"}[
        str(path[-1])
    ]


def _below(path: Keys, known: Tree) -> Tree:
    for key in path:
        branch = known.get("[]" if isinstance(key, int) else key, known.get("<name>"))
        if not isinstance(branch, dict):
            return {}
        known = branch
    return known


def _nearest(path: Keys, known: Tree) -> str:
    """The nearest key of the same level; else one of just this name at another level; else what there is."""
    beside = [key for key in _below(path[:-1], known) if key not in ("<name>", "[]")]
    near = get_close_matches(str(path[-1]), beside, n=1, cutoff=0.6)
    if near:
        return f", did you mean {near[0]}?"
    elsewhere = [keys for keys in flatten(known) if keys.rpartition(".")[2] == path[-1]]
    if elsewhere:
        return f", did you mean {elsewhere[0]}?"
    return f"; expected one of {', '.join(beside)}" if beside else ""


def flatten(known: Tree, prefix: str = "") -> Iterator[str]:
    """Dotted keys, depth first: `queues.<name>.retry.max_retries`, `dlq.sinks[].type`."""
    for key, branch in known.items():
        dotted = f"{prefix}{key}" if key == "[]" or not prefix else f"{prefix}.{key}"
        if isinstance(branch, dict):
            yield from flatten(branch, dotted)
        else:
            yield dotted


# --- of keys that contradict each other


class Contradiction(NamedTuple):
    """`path` is what to change, unless another of `involved` is wrong already. What is there may be `secret`."""

    path: Keys
    message: str
    involved: tuple[Keys, ...] = ()
    secret: bool = False


def contradictions(settings: Schema) -> Iterator[Contradiction]:
    yield from _store(settings.store)
    yield from _heartbeats(settings)
    yield from _backoffs(settings)
    yield from _sinks(settings)


def contradicted(document: Document, settings: Schema, wrong: Iterable[Keys]) -> list[Problem]:
    wrong = list(wrong)
    return [
        _problem(document, found.path, found.message + ("" if found.secret else _got(document, found.path)))
        for found in contradictions(settings)
        if not any(_touch(path, other) for path in (found.path, *found.involved) for other in wrong)
    ]


def _store(store: StoreSettings) -> Iterator[Contradiction]:
    path: Keys = ("store",)
    if (store.url is None) == (store.type is None):
        yield Contradiction(path, "expected either url or type" + (", not both" if store.url else ""))
        return
    if store.url is not None:
        problem = url_problem(store.url)
        if problem:
            yield Contradiction(path, problem, secret=True)
    allowed = STORE_OPTIONS.get(store.scheme)
    for key, value in store.options.items() if allowed is not None else ():
        choices = (allowed or {}).get(key)
        if choices is None:
            near = get_close_matches(key, [*(allowed or {}), "url", "type"], n=1)
            hint = f", did you mean {near[0]}?" if near else f" for {store.scheme}"
            yield Contradiction((*path, key), f"unknown key{hint}")
        elif choices is str:
            if not isinstance(value, str) or not value:
                yield Contradiction((*path, key), "expected text")
        elif isinstance(choices, tuple) and not any(type(value) is type(one) and value == one for one in choices):
            yield Contradiction((*path, key), f"expected {' or '.join(map(_written, choices))}")


def _written(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def url_problem(url: str) -> str | None:
    """What was expected of the URL of a built-in store instead."""
    scheme, separator, rest = url.partition("://")
    if not separator or not scheme:
        return "expected a URL such as sqlite:///jobs.db"
    try:
        urlsplit(url)
    except ValueError:
        return "expected a URL such as sqlite:///jobs.db"
    if scheme == "sqlite" and (not rest.startswith("/") or rest.endswith("/")):
        return "expected sqlite:///relative/file.db or sqlite:////absolute/file.db"
    if scheme == "sqlite" and "=" in rest.partition("?")[2]:  # or it would be a part of the name, and without effect
        return f"expected no options in the URL of a file; write {' or '.join(STORE_OPTIONS[scheme])} beside it"
    return None


HEARTBEAT_EXPECTED = {
    "heartbeat": "expected at most half of its heartbeat_timeout",
    "heartbeat_timeout": "expected at least twice its heartbeat",
}
"""The keys of one handler that may contradict each other, each with what was expected of it then."""

LEASE_EXPECTED = "expected at most half of lease.ttl"


def heartbeat_too_seldom(heartbeat: float, limit: float | None) -> bool:
    """For a silence as long as `limit` to mean anything."""
    return limit is not None and heartbeat > limit / 2


def _heartbeats(settings: Schema) -> Iterator[Contradiction]:
    workers = settings.workers
    general: tuple[Keys, Keys] = (("workers", "heartbeat"), ("workers", "heartbeat_timeout"))
    if heartbeat_too_seldom(workers.heartbeat, workers.heartbeat_timeout):
        yield Contradiction(general[0], "expected at most half of workers.heartbeat_timeout", general[1:])
    if heartbeat_too_seldom(workers.heartbeat, settings.lease.ttl):
        yield Contradiction(("lease", "ttl"), "expected at least twice workers.heartbeat", general[:1])
    for name, handler in settings.handlers.items():
        own: Keys = ("handlers", name)
        if not HEARTBEAT_EXPECTED.keys() & handler.model_fields_set:
            continue
        heartbeat = handler.heartbeat or workers.heartbeat
        written = "heartbeat_timeout" in handler.model_fields_set
        limit = handler.heartbeat_timeout if written else workers.heartbeat_timeout
        if heartbeat_too_seldom(heartbeat, limit):
            key, other = ("heartbeat", "heartbeat_timeout") if handler.heartbeat else ("heartbeat_timeout", "heartbeat")
            yield Contradiction((*own, key), HEARTBEAT_EXPECTED[key], (*general, (*own, other)))
        if heartbeat_too_seldom(heartbeat, settings.lease.ttl):
            yield Contradiction((*own, "heartbeat"), LEASE_EXPECTED, (("lease", "ttl"),))


def _backoffs(settings: Schema) -> Iterator[Contradiction]:
    general: Keys = ("retry", "backoff")
    below = settings.retry.backoff
    curves = [(general, below)]
    curves += [(("queues", name, *general), queue.retry.curve.over(below)) for name, queue in settings.queues.items()]
    curves += [
        (("handlers", name, "backoff"), handler.backoff.over(below))
        for name, handler in settings.handlers.items()
        if handler.backoff
    ]
    for path, curve in curves:
        written_there = path == general or curve != below
        if curve.base > curve.max and written_there:
            yield Contradiction((*path, "base"), "expected at most max of the same backoff", (general, (*path, "max")))


def _sinks(settings: Schema) -> Iterator[Contradiction]:
    first: dict[str, str] = {}
    for index, sink in enumerate(settings.dlq.sinks):
        path: Keys = ("dlq", "sinks", index)
        if sink.name in first:
            yield Contradiction(
                path, f"a second sink named {sink.name} beside {first[sink.name]}: give it another name"
            )
        first.setdefault(sink.name, write_keys(path))
