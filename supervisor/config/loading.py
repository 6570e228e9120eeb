"""Read the configuration file into settings."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import UnionType
from typing import Any, Union, get_args, get_origin

from pydantic import ValidationError

from supervisor.config.diagnostics import OPEN_BOOKS, Tree, contradicted, explain, flatten, prune, write_problem
from supervisor.config.settings import VARIABLE, Schema, Section, Settings, absolute
from supervisor.config.yaml_reader import Document, Problem, Refused, read_yaml
from supervisor.errors import ConfigError
from supervisor.text.redaction import secrets_of

SEARCHED = ("supervisor.yaml", "etc/supervisor.yaml")


def find(environ: Mapping[str, str] = os.environ) -> Path | None:
    """The config file that a command without `-c` uses, if there is one. Raises ConfigError if that can't be told."""
    if environ.get(VARIABLE):
        return Path(environ[VARIABLE])
    return next((Path(position) for position in SEARCHED if _is_file(Path(position))), None)


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError as error:
        raise ConfigError([f"{path}: {error.strerror}; expected a config that can be read, or none"]) from None


def load(path: Path | None, environ: Mapping[str, str] = os.environ) -> Settings:
    """Settings from `path`, or from where `find` looks, or all defaults. Raises ConfigError with every error there is."""
    source = "" if path is not None or not environ.get(VARIABLE) else f" (named by ${VARIABLE})"
    path = path if path is not None else find(environ)
    if path is None:
        return Settings()
    base = absolute(path).parent
    document = read_yaml(_content(path, source), environ)
    if isinstance(document.value, Refused):
        raise ConfigError([write_problem(path, problem) for problem in document.problems])
    schema, problems = _validate(document, base)
    fields = {name: getattr(schema, name) for name in Schema.model_fields}
    secrets = frozenset(_secrets(document, schema))
    settings = Settings.model_construct(schema.model_fields_set, **fields, path=path, base=base, secrets=secrets)
    if problems:
        raise ConfigError([write_problem(path, problem) for problem in problems], settings)
    return settings


def known_keys() -> list[str]:
    """Every key of the file, dotted; `<name>` stands for a queue's or handler's name, `[]` for an entry of a list."""
    return list(flatten(_tree(Schema)))


def _content(path: Path, source: str) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise ConfigError([f"{path}{source}: {error.strerror}"]) from None


def _validate(document: Document, base: Path) -> tuple[Schema, list[Problem]]:
    """The settings, with defaults in place of what is wrong, so that one mistake hides no other."""
    problems = list(document.problems)
    value = document.value
    while True:
        try:
            schema = Schema.model_validate(value, context={"base": base})
            break
        except ValidationError as error:
            details = error.errors(include_url=False)
        problems += explain(document, details, _tree(Schema))
        for detail in details:
            value = prune(value, detail["loc"])
    problems += contradicted(document, schema, [problem.path for problem in problems])
    return schema, sorted(problems, key=lambda problem: problem.line or 0)


def _secrets(document: Document, schema: Schema) -> Iterator[str]:
    """What the environment gave for the options of stores and sinks, and passwords in URLs wherever they come from."""
    store = schema.store
    open_book = store.scheme in OPEN_BOOKS
    url = store.url is not None and "://" in store.url
    for keys, values in document.variables.items():
        of_store = keys[:1] == ("store",) and not open_book and not (url and keys in (("store",), ("store", "url")))
        of_sink = keys[:2] == ("dlq", "sinks") and keys[-1] not in ("type", "name", "path")
        if of_store or of_sink:
            yield from values
    options = [store.options, *(sink.options for sink in schema.dlq.sinks)]
    texts = [value for each in options for value in each.values() if isinstance(value, str)]
    for text in texts if open_book else [*texts, store.url or ""]:
        if "://" in text:
            yield from secrets_of(text)


def _tree(model: type[Section]) -> Tree:
    """Keys by level; None at a leaf."""
    return {
        field.alias or name: _branch(field.annotation)
        for name, field in model.model_fields.items()
        if name not in model.built
    }


def _branch(annotation: Any) -> Tree | None:
    if isinstance(annotation, type) and issubclass(annotation, Section):
        return _tree(annotation)
    inside = next((part for part in map(_branch, get_args(annotation)) if part), None)
    if inside is None or get_origin(annotation) is Union or isinstance(annotation, UnionType):
        return inside
    return {"[]" if get_origin(annotation) is tuple else "<name>": inside}
