"""Read YAML into plain values, each with its line, and refuse text that YAML 1.1 reads in an unexpected way, such as `10:30`.

Only mappings, lists and scalars are built, so no tag can run code. Variables are replaced in scalars after parsing; an unquoted
scalar then gets the type that YAML gives to the replaced text.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

import yaml

from supervisor.config.document import Document, Keys, Position, Problem, Refused
from supervisor.config.variables import expand

MAX_BYTES = 1_000_000
MAX_NODES = 20_000
MAX_DEPTH = 40

_TAG = "tag:yaml.org,2002:"
_DECIMAL = re.compile(r"[-+]?(0|[1-9][0-9]*)")
_STAR = re.compile(r"[:,\[]\s+\*(?![\w-])")
"""A value that is no alias, as a cron expression is."""
_INF_OR_NAN = re.compile(r"\.(inf|nan)\Z", re.IGNORECASE)
_BOOLEANS = {"yes": True, "true": True, "on": True, "no": False, "false": False, "off": False}
_NULL = frozenset({"", "~", "null"})
_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_RESOLVER: Any = yaml.SafeLoader("")


class _Unreadable(Exception):
    def __init__(self, message: str, line: int | None = None) -> None:
        super().__init__(message)
        self.line = line


def read_yaml(data: bytes, environ: Mapping[str, str]) -> Document:
    """Return the one document in `data`; its value is None if it is empty.

    It never raises: every mistake is in `problems`.
    """
    document = Document()
    try:
        node = _compose(data)
        if node is not None:
            document.value = _Builder(document, environ).build(node, ())
    except _Unreadable as error:
        document.problems.append(Problem((), error.line, str(error)))
        document.value = Refused()
    return document


def _compose(data: bytes) -> yaml.Node | None:
    if len(data) > MAX_BYTES:
        raise _Unreadable(f"{len(data)} bytes, expected at most {MAX_BYTES}")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise _Unreadable(f"not UTF-8: byte 0x{data[error.start]:02x}", line) from None
    try:
        _limit_depth(text)
        node: yaml.Node | None = yaml.compose(text, Loader=_Loader)
    except yaml.MarkedYAMLError as error:
        raise _syntax_error(error, text) from None
    except yaml.YAMLError as error:
        raise _Unreadable(f"not YAML: {' '.join(str(error).split())}") from None
    return node


def _limit_depth(text: str) -> None:
    """Refuse deep nesting before anything recursive reads the text."""
    depth = 0
    for event in yaml.parse(text, Loader=_Loader):
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
            if depth > MAX_DEPTH:
                raise _Unreadable(f"nested deeper than {MAX_DEPTH}", _line(event))
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1


def _line(marked: yaml.Node | yaml.Event) -> int:
    return marked.start_mark.line + 1 if marked.start_mark else 0


def _syntax_error(error: yaml.MarkedYAMLError, text: str) -> _Unreadable:
    mark = error.problem_mark or error.context_mark
    line = mark.line + 1 if mark else None
    lines = text.splitlines()
    written = lines[mark.line] if mark and mark.line < len(lines) else ""
    if "\t" in written[: len(written) - len(written.lstrip())]:
        return _Unreadable("a tab at the start of the line: YAML indents with spaces", line)
    hint = '; inside [ ] or { } write "${NAME}" in quotes' if "${" in written else ""
    if _STAR.search(written):
        hint = '; write a value that begins with * in quotes, such as "*/5 * * * *"'
    return _Unreadable(f"not YAML: {error.problem or error.context}{hint}", line)


class _Builder:
    def __init__(self, document: Document, environ: Mapping[str, str]) -> None:
        self._document = document
        self._environ = environ
        self._nodes = 0
        self._merging = 0

    def build(self, node: yaml.Node, path: Keys) -> Any:
        self._nodes += 1
        line = _line(node)
        if self._nodes > MAX_NODES or len(path) + self._merging > MAX_DEPTH:
            raise _Unreadable(f"its aliases make more than {MAX_NODES} values, or one contains itself", line)
        self._document.positions[path] = Position(line, node.value if isinstance(node, yaml.ScalarNode) else None)
        if isinstance(node, yaml.MappingNode) and node.tag == f"{_TAG}map":
            return self._mapping(node, path)
        if isinstance(node, yaml.SequenceNode) and node.tag == f"{_TAG}seq":
            return [self.build(item, (*path, index)) for index, item in enumerate(node.value)]
        if isinstance(node, yaml.ScalarNode):
            return self._scalar(node, path)
        return self._refuse(path, line, f"the tag {_shown_tag(node.tag)} is not supported")

    def _mapping(self, node: yaml.MappingNode, path: Keys) -> dict[str, Any]:
        merged: dict[str, Any] = {}
        own: dict[str, Any] = {}
        lines: dict[str, int] = {}
        for key_node, value_node in node.value:
            if key_node.tag == f"{_TAG}merge":
                merged = {**self._merge(value_node, path), **merged}
                continue
            line = _line(key_node)
            key = self._key(key_node, path)
            if key in own:
                self._refuse((*path, key), line, f"given twice, first on line {lines[key]}")
                continue
            lines[key] = line
            own[key] = self.build(value_node, (*path, key))
            self._document.positions[(*path, key)] = self._document.positions[(*path, key)]._replace(line=line)
        return {**merged, **own}

    def _merge(self, node: yaml.Node, path: Keys) -> dict[str, Any]:
        parts = node.value if isinstance(node, yaml.SequenceNode) else [node]
        merged: dict[str, Any] = {}
        for part in parts:
            if not isinstance(part, yaml.MappingNode):
                self._refuse(path, _line(node), "<<: expected a mapping, or a list of them")
                return {}
            self._merging += 1  # a merge nests as a key does, without making the path longer
            merged = {**self.build(part, path), **merged}
            self._merging -= 1
        return merged

    def _key(self, node: yaml.Node, path: Keys) -> str:
        line = _line(node)
        if not isinstance(node, yaml.ScalarNode):
            self._refuse(path, line, "a mapping or list can't be a key")
            return ""
        if node.tag != f"{_TAG}str":
            what = _KINDS.get(node.tag, _shown_tag(node.tag))
            self._refuse((*path, node.value), line, f"YAML reads the key {node.value} as {what}: quote it")
        return str(node.value)

    def _scalar(self, node: yaml.ScalarNode, path: Keys) -> Any:
        text, tag, line = node.value, node.tag, _line(node)
        if "${" in text:
            try:
                text = expand(text, self._environ, self._document.variables.setdefault(path, []))
            except ValueError as error:
                return self._refuse(path, line, str(error))
            tag = _RESOLVER.resolve(yaml.ScalarNode, text, (True, False)) if not node.style else f"{_TAG}str"
        try:
            return _typed(text, tag)
        except ValueError as error:
            return self._refuse(path, line, str(error))

    def _refuse(self, path: Keys, line: int, message: str) -> Refused:
        self._document.problems.append(Problem(path, line, message))
        return Refused()


_KINDS = {
    f"{_TAG}bool": "a boolean",
    f"{_TAG}int": "a number",
    f"{_TAG}float": "a number",
    f"{_TAG}null": "nothing",
    f"{_TAG}timestamp": "a date",
}


def _typed(text: str, tag: str) -> Any:
    """Return the value of a scalar. Messages never repeat `text`: it may be a secret from the environment."""
    kind = tag.removeprefix(_TAG)
    if kind in ("int", "float") and ":" in text:
        raise ValueError("YAML reads this as a number to the base of 60: quote it, or write a duration such as 90s")
    if kind not in _TYPES:
        raise ValueError(f"the tag {_shown_tag(tag)} is not supported")
    return _TYPES[kind](text)


def _boolean(text: str) -> bool:
    if text.lower() not in _BOOLEANS:
        raise ValueError("its tag is !!bool: expected true or false")
    return _BOOLEANS[text.lower()]


def _nothing(text: str) -> None:
    if text.lower() not in _NULL:
        raise ValueError("its tag is !!null: expected nothing")


def _integer(text: str) -> int:
    if _DECIMAL.fullmatch(text) is None:
        raise ValueError(
            "YAML reads this as an octal, hexadecimal or binary number: write a decimal number, or quote it"
        )
    if len(text) > 30:
        raise ValueError("a number of more than 30 digits")
    return int(text)


def _real(text: str) -> float:
    try:
        return float(_INF_OR_NAN.sub(r"\1", text))
    except ValueError:
        raise ValueError("YAML reads this as a number, but it is none: write one such as 1.5, or quote it") from None


def _date(text: str) -> None:
    raise ValueError("YAML reads this as a date: quote it")


_TYPES: Mapping[str, Callable[[str], Any]] = {
    "str": str,
    "bool": _boolean,
    "null": _nothing,
    "int": _integer,
    "float": _real,
    "timestamp": _date,
}


def _shown_tag(tag: str) -> str:
    return f"!!{tag.removeprefix(_TAG)}" if tag.startswith(_TAG) else tag
