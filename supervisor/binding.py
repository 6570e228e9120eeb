"""Bind the payload of a job to the parameters of its handler: by name, and checked by pydantic.

pydantic is imported for typed handlers only, so that others cost no time and no memory.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import is_dataclass
from functools import cached_property, partial
from inspect import Parameter
from types import GeneratorType, SimpleNamespace
from typing import TYPE_CHECKING, Annotated, Any, NotRequired, Required, Unpack, get_args, get_origin, get_type_hints

import orjson

from supervisor.handlers import InvalidPayload
from supervisor.jobs import Job
from supervisor.text.names import did_you_mean_or_all

if TYPE_CHECKING:
    from pydantic import TypeAdapter
    from pydantic_core import ErrorDetails

MAX_PROBLEMS = 10  # in one message
BASE64: Any = {"val_json_bytes": "base64", "ser_json_bytes": "base64"}
HIDDEN = "*" * 10
"""The text that pydantic writes in place of a secret."""
SECRET_LOST = (
    "a secret would be stored as asterisks: enqueue the name of the handler with a payload of plain values, or give the class of the "
    "secret a field_serializer"
)
_WRITTEN: Any = {"mode": "json", "by_alias": True, "warnings": False}
_PLAIN = (str, int, float, bool)
_ONE_PAYLOAD = inspect.Signature([Parameter("payload", Parameter.POSITIONAL_ONLY, default=None)])


class Binding:
    """The way in which a function takes its job: alone, whatever its payload. `call` takes a Job and calls the function; if that is
    a coroutine function (`is_async`), it returns a coroutine."""

    call: Callable[[Job], Any]

    def __init__(self, function: Callable[[Job], Any], *, is_async: bool = False) -> None:
        self.call = function
        self.is_async = is_async

    def schema(self) -> dict[str, Any] | None:
        """Return the JSON schema of the payload; None if the function takes any."""
        return None

    def check(self, payload: Any) -> object:
        """Raise InvalidPayload if the payload does not fit."""

    def payload_of(self, *arguments: Any, **named: Any) -> Any:
        """Return the payload for the arguments of a call without the job. Raises TypeError as such a call would, InvalidPayload, and
        ValueError for a value without a JSON form."""
        return _ONE_PAYLOAD.bind(*arguments, **named).arguments.get("payload")


class TypedBinding(Binding):
    """The way in which a function takes the parts of the payload by name, or all of it as one model."""

    def __init__(self, function: Callable[..., Any], parameters: Sequence[Parameter], *, is_async: bool) -> None:
        super().__init__(self._await if is_async else self._call, is_async=is_async)
        jobs = [each.name for index, each in enumerate(parameters) if _is_job(each, first=index == 0)]
        filled = [each for each in parameters if each.name not in jobs and each.kind is not Parameter.VAR_POSITIONAL]
        for each in parameters:
            if each.kind is Parameter.POSITIONAL_ONLY:
                raise TypeError(
                    f"parameter {each.name}: expected one that can be given by its name, not a positional-only one"
                )
        self._function = function
        # A first parameter `job` goes by position, as decorators call it.
        self._job_first = bool(jobs) and parameters[0].name == jobs[0]
        self._jobs = jobs[1:] if self._job_first else jobs
        self._job_names = frozenset(jobs)
        without = [each for each in parameters if each.name not in jobs and each.kind is not Parameter.VAR_POSITIONAL]
        self._signature = inspect.Signature(without)
        types = _types_of(function, filled)
        one = len(filled) == 1 and filled[0].kind is not Parameter.VAR_KEYWORD
        self._whole = filled[0].name if one and _is_model(types[filled[0].name]) else None
        """The parameter that takes the whole payload."""
        if self._whole:
            self._adapter, self._rest = _adapter(types, types[self._whole]), None
        else:
            self._adapter, self._rest = _adapter_by_name(filled, types), _rest_of(filled, types)
        self._keys = [] if self._whole else _keys_of(self._adapter.core_schema)
        self._fields = frozenset(types)
        self._may_be_null = self._whole is None or filled[0].default is not Parameter.empty
        self._read = self._adapter.validator.validate_json

    def schema(self) -> dict[str, Any] | None:
        from pydantic import PydanticUserError

        try:
            schema = self._adapter.json_schema()
            return schema if self._rest is None else self._rest.schema_beside(schema)
        except PydanticUserError as error:  # the payload can be read all the same
            return {"title": "payload", "description": f"no schema: {str(error).partition(chr(10))[0]}"}

    def check(self, payload: Any) -> dict[str, Any]:
        """Return the arguments by name. Raises InvalidPayload if the payload does not fit."""
        if payload is None and self._may_be_null:
            if self._whole:
                return {}
            payload = {}
        try:
            value: Any = self._read(orjson.dumps(payload))
            if self._rest is not None:
                value |= self._rest.read({key: value[key] for key in value.keys() - self._fields})
        except (ValueError, TypeError) as error:
            raise InvalidPayload(_described(error, self._keys, show=not self._has_secrets)) from None
        if self._whole:
            return {self._whole: value}
        if self._job_names & value.keys():
            raise InvalidPayload(
                f"payload.{min(self._job_names & value.keys())}: unexpected: this parameter is the job"
            )
        arguments: dict[str, Any] = value
        return arguments

    def _call(self, job: Job) -> Any:
        return json_form(self._called(job))

    async def _await(self, job: Job) -> Any:
        return json_form(await self._called(job))

    def _called(self, job: Job) -> Any:
        arguments = self.check(job.payload)
        for name in self._jobs:
            arguments[name] = job
        function = self._function
        return function(job, **arguments) if self._job_first else function(**arguments)

    def payload_of(self, *arguments: Any, **named: Any) -> Any:
        given = self._signature.bind(*arguments, **named).arguments
        rest: dict[str, Any] = {}
        for each in self._signature.parameters.values():
            if each.kind is Parameter.VAR_KEYWORD:
                rest = given.pop(each.name, {})
        if self._rest is None:
            given |= rest
        payload = self._write(given.get(self._whole) if self._whole else given, **_WRITTEN)
        if self._rest is not None:
            payload |= self._rest.write(rest)
        read = self.check(payload)
        if HIDDEN.encode() in orjson.dumps(payload) and read != (given if self._whole else given | rest):
            raise ValueError(SECRET_LOST)
        return payload

    @cached_property
    def _write(self) -> Callable[..., Any]:
        from pydantic_core import SchemaSerializer

        return SchemaSerializer(
            self._adapter.core_schema, BASE64
        ).to_python  # without this config, `Any` has bytes as UTF-8

    @cached_property
    def _has_secrets(self) -> bool:
        return _is_secret(self.schema())


def bind(function: Callable[..., Any], *, is_async: bool = False) -> Binding:
    """Return the binding of a handler's function. Raises TypeError for a parameter that no JSON value can fill."""
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except ValueError:  # of a function without Python code
        return Binding(function, is_async=is_async)
    if _takes_job_alone(parameters):
        by_name = parameters[0].kind is Parameter.KEYWORD_ONLY
        return Binding(_given_by_name(function, parameters[0].name) if by_name else function, is_async=is_async)
    return TypedBinding(function, parameters, is_async=is_async)


def _given_by_name(function: Callable[..., Any], name: str) -> Callable[[Job], Any]:
    return lambda job: function(**{name: job})


def _takes_job_alone(parameters: Sequence[Parameter]) -> bool:
    """Return whether there is one parameter, and it is annotated Job, or has no type and the name `job` or `_`, or can't be given by its name."""
    if len(parameters) != 1:
        # The two of a decorator that is made without functools.wraps.
        return [each.kind for each in parameters] == [Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD]
    (only,) = parameters
    unnamed = only.kind in (Parameter.POSITIONAL_ONLY, Parameter.VAR_POSITIONAL)
    return unnamed or (only.kind is not Parameter.VAR_KEYWORD and _is_job(only, first=True))


def _is_job(parameter: Parameter, *, first: bool) -> bool:
    annotation = parameter.annotation
    if annotation in (Parameter.empty, Any, Any.__name__):
        return first and parameter.name in ("job", "_")
    # Text may name a Job that is imported for type checkers only.
    return annotation is Job or (isinstance(annotation, str) and annotation.rpartition(".")[2] == Job.__name__)


def json_form(result: Any) -> Any:
    """Return a result with the JSON forms of datetimes, UUIDs, models and the like; as it is if some part has none."""
    if result is None or type(result) in _PLAIN or isinstance(result, GeneratorType):
        return result
    from pydantic_core import PydanticSerializationError, to_jsonable_python

    try:
        return to_jsonable_python(result, bytes_mode="base64")
    except (PydanticSerializationError, ValueError):
        return result


# --- types


def _types_of(function: Callable[..., Any], parameters: Sequence[Parameter]) -> dict[str, Any]:
    """Return the types of the parameters by name. Annotations that are text are evaluated in the module of the function."""
    types = {}
    for each in parameters:
        annotation = Any if each.annotation is Parameter.empty else each.annotation
        try:
            holder = SimpleNamespace(__annotations__={each.name: annotation})
            types[each.name] = get_type_hints(holder, _globals_of(function), include_extras=True)[each.name]
        except NameError as error:
            reason = f"its annotation {annotation!r} can't be evaluated: {error}; import that name at run time too"
            raise TypeError(f"parameter {each.name}: {reason}") from None
    return types


def _globals_of(function: Any) -> dict[str, Any]:
    while isinstance(function, partial):
        function = function.func
    function = inspect.unwrap(function)
    return getattr(function, "__globals__", None) or getattr(type(function).__call__, "__globals__", {})


def _is_model(annotation: Any) -> bool:
    """Whether the type is a class with fields of its own: a dataclass, a TypedDict or a model of pydantic."""
    from typing_extensions import is_typeddict

    fields = hasattr(annotation, "__pydantic_validator__") or is_dataclass(annotation) or is_typeddict(annotation)
    return isinstance(annotation, type) and fields


def _adapter(types: Mapping[str, Any], whole: Any, config: Any = None) -> TypeAdapter[Any]:
    """Return the adapter of `whole`, a type made of these. Raises TypeError that names the parameter which JSON can't fill."""
    from pydantic import PydanticUserError, TypeAdapter

    try:
        return TypeAdapter(whole, config=config)
    except PydanticUserError as error:
        if len(types) > 1:
            for name, annotation in types.items():
                _adapter({name: annotation}, annotation)
        reason = str(error).partition(". ")[0].partition("\n")[0]
        raise TypeError(
            f"parameter {next(iter(types))}: expected a type that pydantic can read from JSON: {reason}"
        ) from None


def _adapter_by_name(parameters: Sequence[Parameter], types: Mapping[str, Any]) -> TypeAdapter[Any]:
    """Return an adapter for a dict of the arguments. An argument that is not given stays out of it: the function has the default."""
    from pydantic import Field
    from pydantic.fields import FieldInfo
    from typing_extensions import TypedDict

    fields: dict[str, Any] = {}
    extra: Any = "forbid"
    for each in parameters:
        if each.kind is Parameter.VAR_KEYWORD:
            unpacked = _unpacked(types[each.name])
            fields |= unpacked
            extra = "forbid" if unpacked else "allow"
        elif isinstance(each.default, FieldInfo):
            expected = f"{each.name}: Annotated[type, Field(...)] = value"
            raise TypeError(
                f"parameter {each.name}: expected a default that is a value, not Field(...); write {expected}"
            )
        elif each.default is Parameter.empty:
            fields[each.name] = types[each.name]
        else:
            shown = _shown_default(each.default)
            fields[each.name] = NotRequired[Annotated[types[each.name], Field(json_schema_extra=shown)]]
    arguments = TypedDict("Arguments", fields)  # type: ignore[misc]
    arguments.__pydantic_config__ = {  # type: ignore[attr-defined]
        **BASE64,
        "extra": extra,
        "title": "payload",
    }
    return _adapter(types, arguments)


class _Rest:
    """The way in which a parameter `**rest` with a type takes the other keys of the payload."""

    def __init__(self, name: str, annotation: Any) -> None:
        self._adapter = _adapter({name: annotation}, dict[str, annotation], BASE64)

    def read(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Raises the ValueError of pydantic."""
        read: dict[str, Any] = self._adapter.validate_json(orjson.dumps(values))
        return read

    def write(self, values: Mapping[str, Any]) -> dict[str, Any]:
        written: dict[str, Any] = self._adapter.dump_python(values, **_WRITTEN)
        return written

    def schema_beside(self, schema: dict[str, Any]) -> dict[str, Any]:
        """Return the schema of the payload with that of the other keys."""
        mine = self._adapter.json_schema()
        definitions = {**schema.get("$defs", {}), **mine.get("$defs", {})}
        shown = {**schema, "additionalProperties": mine["additionalProperties"]}
        return {**shown, "$defs": definitions} if definitions else shown


def _rest_of(parameters: Sequence[Parameter], types: Mapping[str, Any]) -> _Rest | None:
    for each in parameters:
        if each.kind is Parameter.VAR_KEYWORD and types[each.name] is not Any and not _unpacked(types[each.name]):
            return _Rest(each.name, types[each.name])
    return None


def _unpacked(annotation: Any) -> dict[str, Any]:
    """Return the fields of the TypedDict inside Unpack; none if it is another type."""
    if get_origin(annotation) is not Unpack:
        return {}
    (options,) = get_args(annotation)
    fields = {}
    for key, hint in get_type_hints(options, include_extras=True).items():
        marked = get_origin(hint) in (
            Required,
            NotRequired,
        )  # its class does not know this of annotations that are text
        is_optional = get_origin(hint) is NotRequired if marked else key in options.__optional_keys__
        plain = get_args(hint)[0] if marked else hint
        fields[key] = NotRequired[plain] if is_optional else plain
    return fields


def _is_secret(schema: Any) -> bool:
    """Return whether a part of the JSON schema is a secret: pydantic marks those of SecretStr and SecretBytes."""
    if isinstance(schema, dict):
        return schema.get("writeOnly") is True or any(map(_is_secret, schema.values()))
    return isinstance(schema, list) and any(map(_is_secret, schema))


def _keys_of(schema: Mapping[str, Any]) -> list[str]:
    """Return the keys of the payload: the names of the parameters, or their aliases."""
    fields: Mapping[str, Any] = schema.get("schema", schema).get("fields", {})
    aliases = {name: field.get("validation_alias", name) for name, field in fields.items()}
    return [alias if isinstance(alias, str) else name for name, alias in aliases.items()]


def _shown_default(default: Any) -> dict[str, Any]:
    from pydantic_core import PydanticSerializationError, to_jsonable_python

    try:
        return {"default": to_jsonable_python(default, bytes_mode="base64")}
    except PydanticSerializationError:
        return {}


# --- problems


def _described(error: Exception, names: Sequence[str], *, show: bool) -> str:
    """Return one line that names each field that does not fit, and what was expected; `show` what it is instead."""
    if not hasattr(error, "errors"):  # of orjson, or of a default factory
        return f"payload: {type(error).__name__}: {error}"
    problems: list[ErrorDetails] = error.errors(include_url=False, include_context=False)
    more = [f"and {len(problems) - MAX_PROBLEMS} more"] if len(problems) > MAX_PROBLEMS else []
    return "; ".join([*(_problem(each, names, show) for each in problems[:MAX_PROBLEMS]), *more])


def _problem(problem: ErrorDetails, names: Sequence[str], show: bool) -> str:
    where = "payload" + "".join(_steps(problem["loc"]))
    match problem["type"]:
        case "missing":
            return f"{where}: missing"
        case "extra_forbidden":
            hint = did_you_mean_or_all(str(problem["loc"][-1]), names) if len(problem["loc"]) == 1 and names else ""
            return f"{where}: unexpected{hint}"
    expected = problem["msg"].replace("Input should be", "expected")
    return f"{where}: {expected}, got {problem['input']!r:.80}" if show else f"{where}: {expected}"


def _steps(path: Sequence[int | str]) -> Iterator[str]:
    for step in path:
        yield f"[{step}]" if isinstance(step, int) else f".{step}"
