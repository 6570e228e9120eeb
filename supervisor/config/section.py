"""Sections of the config: frozen values that know their keys, read from YAML or built in Python.

A kind of value is a function of what was written and of its `Place` in a file, which is None for a value from Python code. The
function returns the value, or raises ValueError with what was expected.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar, Generic, NamedTuple, Self, TypeVar, dataclass_transform

from supervisor.config.diagnostics import Findings, Tree
from supervisor.config.document import Keys
from supervisor.text.names import NAME, did_you_mean_or_all, is_name

T = TypeVar("T")
K = TypeVar("K", str, int)
S = TypeVar("S", bound="Section")


class Place(NamedTuple):
    """The place of a value in a file. `base` is the folder of the file; problems are added to `findings`."""

    findings: Findings
    base: Path
    path: Keys = ()

    def at(self, key: str | int) -> Place:
        return self._replace(path=(*self.path, key))


Kind = Callable[[Any, Place | None], T]


class InvalidSection(ValueError):
    """A section that can't be used. For Python code the message is complete; for a file, the findings have the problems."""


@contextmanager
def reporting(place: Place | None) -> Iterator[None]:
    """Add a ValueError of the block to the findings, and go on after the block. Without a place, raise the error."""
    try:
        yield
    except ValueError as error:
        if place is None:
            raise
        if not isinstance(error, InvalidSection):
            place.findings.wrong(place.path, str(error))


class Setting(NamedTuple):
    """A key of a section. If `default` is None, the key is required, and `missing` is the expectation in the error."""

    kind: Kind[Any]
    default: Callable[[], Any] | None
    missing: str


def setting(kind: Kind[Any], *, default: Any = None, default_factory: Any = None, missing: str = "") -> Any:
    """Declare a key of a section, as `dataclasses.field` declares a field."""
    return Setting(kind, None if missing else default_factory or (lambda: default), missing)


def given(value: Any, place: Place | None) -> Any:
    """Return `value`: the kind of a setting that is not a key of the file, and is set in Python only."""
    return value


@dataclass_transform(kw_only_default=True, frozen_default=True, field_specifiers=(setting,))
class Section:
    """A frozen mapping of known keys. `written` are the keys that were given; the others have their defaults.

    A key that is a keyword of Python, such as `async`, is the attribute `async_`.
    """

    settings: ClassVar[Mapping[str, Setting]]
    known: ClassVar[Sequence[str]]
    """The keys that a file may have here."""
    required: ClassVar[Set[str]]
    rest: ClassVar[str] = ""
    """The setting that takes the other keys of a file, if there is one."""
    written: frozenset[str]

    def __init_subclass__(cls) -> None:
        names = [name for name, it in vars(cls).items() if isinstance(it, Setting)]
        cls.settings = {name.rstrip("_"): vars(cls)[name] for name in names}
        for name in names:
            delattr(cls, name)
        cls.known = [name for name, it in cls.settings.items() if it.kind is not given]
        cls.required = {name for name, it in cls.settings.items() if it.default is None}

    def __init__(self, **values: Any) -> None:
        """Check the values, in which a number needs no unit. Raises a ValueError that names the first wrong key."""
        self._set({key: self._checked(key, value) for key, value in values.items()})
        if missing := self.required - values.keys():
            raise InvalidSection(f"{min(missing)}: missing; expected {self.settings[min(missing)].missing}")

    @classmethod
    def read(cls, value: Any, place: Place) -> Self:
        """Return the section at `place` in a file. Raises ValueError if the section can't be used.

        A wrong key is added to the findings and gets its default, so that one mistake hides no other.
        """
        entries = cls.mapping({} if value is None else value, place)
        if not isinstance(entries, dict):
            raise ValueError(f"expected a mapping with {', '.join(cls.known)}")
        values: dict[str, Any] = {}
        rest: dict[str, Any] = {}
        for key, part in entries.items():
            here = place.at(key)
            if key in cls.known:
                with reporting(here):
                    values[key] = cls.settings[key].kind(part, here)
            elif cls.rest:
                rest[key] = part
            else:
                here.findings.unknown(here.path)
        for key in sorted(cls.required - entries.keys()):
            place.findings.missing(place.at(key).path, cls.settings[key].missing)
        if cls.required - values.keys():
            raise InvalidSection
        if cls.rest:
            values[cls.rest] = rest
        return cls._of(cls.completed(values, place))

    @classmethod
    def mapping(cls, value: Any, place: Place) -> Any:
        """Return the mapping that a shorter form in a file stands for, and any other value unchanged."""
        return value

    @classmethod
    def completed(cls, values: dict[str, Any], place: Place) -> dict[str, Any]:
        """Return the checked values of a file, with those added that follow from them or from `place`."""
        return values

    def over(self, under: Self) -> Self:
        """Return a copy of `under` with the keys that were written in this section in place of its own, level by level."""
        written = {}
        for key in self.written:
            value, below = getattr(self, key), getattr(under, key)
            written[key] = value.over(below) if isinstance(value, Section) and isinstance(below, Section) else value
        return under.replace(**written)

    def replace(self, **values: Any) -> Self:
        """Return a copy with other values, which are not checked."""
        return self._of({**{key: getattr(self, key) for key in self.written}, **values})

    @classmethod
    def _of(cls, values: Mapping[str, Any]) -> Self:
        section = cls.__new__(cls)
        section._set(values)
        return section

    def _set(self, values: Mapping[str, Any]) -> None:
        defaults = {key: it.default() for key, it in self.settings.items() if key not in values and it.default}
        self.__dict__.update(defaults, **values, written=frozenset(values))

    @classmethod
    def _checked(cls, key: str, value: Any) -> Any:
        if key not in cls.settings:
            raise InvalidSection(f"{key}: unknown key{did_you_mean_or_all(key, cls.known)}")
        try:
            return cls.settings[key].kind(value, None)
        except InvalidSection as error:
            raise InvalidSection(f"{key}.{error}") from None
        except ValueError as error:
            raise InvalidSection(f"{key}: {error}, got {value!r:.80}") from None

    def __getattr__(self, name: str) -> Any:
        try:
            return self.__dict__[name.rstrip("_")]
        except KeyError:
            raise AttributeError(f"{type(self).__name__} has no attribute {name!r}") from None

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and all(getattr(self, key) == getattr(other, key) for key in self.settings)

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(f"{type(self).__name__} is frozen")


# --- kinds of values that hold sections


class Nested(Generic[S]):
    """A kind of value that holds one section, or several of one class: `step` then stands for their keys in the path."""

    step = ""

    def __init__(self, section: type[S]) -> None:
        self.section = section

    def one(self, value: Any, place: Place | None) -> S:
        if isinstance(value, self.section):
            return value
        if place is not None:
            return self.section.read(value, place)
        if not isinstance(value, Mapping):
            raise ValueError(f"expected a mapping with {', '.join(self.section.known)}")
        return self.section(**{str(key): part for key, part in value.items()})

    def several(self, values: Iterable[tuple[K, Any]], place: Place | None) -> dict[K, S]:
        """Return the sections by key or index, without those that are wrong."""
        found = {}
        for key, value in values:
            here = place and place.at(key)
            with reporting(here):
                found[key] = self.one(value, here)
        return found


class One(Nested[S]):
    def __call__(self, value: Any, place: Place | None) -> S:
        return self.one(value, place)


class OneOrNone(Nested[S]):
    """A section, or `none`."""

    def __call__(self, value: Any, place: Place | None) -> S | None:
        return None if is_none(value, place) else self.one(value, place)


class OneOr(Nested[S]):
    """A section, or a value of another kind; `section_example` ends the expectation of that kind."""

    def __init__(self, section: type[S], kind: Kind[Any], section_example: str) -> None:
        super().__init__(section)
        self._kind, self._example = kind, section_example

    def __call__(self, value: Any, place: Place | None) -> Any:
        if isinstance(value, Mapping | self.section):
            return self.one(value, place)
        try:
            return self._kind(value, place)
        except ValueError as error:
            raise ValueError(f"{error}, or {self._example}") from None


class ByName(Nested[S]):
    """A mapping of sections by names of queues or handlers."""

    step = "<name>"

    def __call__(self, value: Any, place: Place | None) -> Mapping[str, S]:
        value = {} if value is None else value
        if not isinstance(value, Mapping):
            raise ValueError("expected a mapping by name")
        for name in value:
            with reporting(place and place.at(name)):
                if not is_name(name):
                    raise ValueError(f"expected {NAME}")
        return self.several(value.items(), place)


class ListOf(Nested[S]):
    step = "[]"

    def __call__(self, value: Any, place: Place | None) -> tuple[S, ...]:
        if not isinstance(value, list | tuple):
            raise ValueError("expected a list")
        found = self.several(enumerate(value), place)
        if len(found) < len(value):
            raise InvalidSection
        return tuple(found.values())


def is_none(value: Any, place: Place | None) -> bool:
    """Return whether `value` is `none` in a file, or None in Python."""
    return (isinstance(value, str) and value == "none") or (value is None and place is None)


def tree(section: type[Section]) -> Tree:
    """Return the keys of a section, level by level; None at a leaf."""
    found: Tree = {}
    for key in section.known:
        kind = section.settings[key].kind
        inside = tree(kind.section) if isinstance(kind, Nested) else None
        found[key] = {kind.step: inside} if isinstance(kind, Nested) and kind.step else inside
    return found
