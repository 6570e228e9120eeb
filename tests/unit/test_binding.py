from __future__ import annotations

import functools
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from enum import Enum
from typing import TYPE_CHECKING, Any, NotRequired, Required, Unpack
from uuid import UUID

import pytest
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    InstanceOf,
    Secret,
    SecretBytes,
    SecretStr,
    field_serializer,
)
from typing_extensions import Annotated, TypedDict  # noqa: UP035 (pydantic wants this TypedDict before Python 3.12)

from supervisor import InvalidPayload, Job, Reject
from supervisor.binding import bind

if TYPE_CHECKING:
    from supervisor import Job as JobForTypeCheckers

ID = "12345678-1234-5678-1234-567812345678"


class Size(Enum):
    SMALL = "s"


class Order(BaseModel):
    id: UUID
    lines: list[int] = []


@dataclass
class Parcel:
    size: Size
    weight: Decimal = Decimal(1)


class Address(TypedDict):
    street: str
    town: NotRequired[str]


def run(function: Any, payload: Any) -> Any:
    return bind(function).call(Job(7, "h", payload))


def refusal(function: Any, payload: Any) -> str:
    with pytest.raises(InvalidPayload) as raised:
        run(function, payload)
    return str(raised.value)


def returns_arguments(path: str, width: int = 200) -> list[Any]:
    return [path, width]


# --- the job alone


def named_job(job):
    return job.id


def with_any_type(job: Any):
    return job.id


def annotated(task: Job):
    return task.id


def annotated_by_text(task: JobForTypeCheckers):
    return task.id


def ignored(_):
    return 7


def unnamed(task, /):
    return task.id


def decorated(*args: Any, **kwargs: Any) -> Any:
    return args[0].id


@pytest.mark.parametrize(
    "function", [named_job, with_any_type, annotated, ignored, unnamed, decorated, lambda job: job.id]
)
def test_a_function_of_the_job_alone_is_called_as_it_is(function: Any) -> None:
    binding = bind(function)
    assert binding.call is function
    assert binding.schema() is None
    assert run(function, ["any", {"payload": None}]) == 7


def test_a_job_that_can_only_be_given_by_its_name_is_given_by_it() -> None:
    def named(*, job: Job) -> Any:
        return job.id

    assert bind(named).schema() is None
    assert run(named, ["any", {"payload": None}]) == 7


def test_the_type_of_a_job_may_be_imported_for_type_checkers_only() -> None:
    annotated_by_text.__annotations__ = {"task": "supervisor.Job"}
    assert bind(annotated_by_text).call is annotated_by_text


# --- by name


def test_the_payload_is_bound_to_the_parameters_by_name() -> None:
    assert run(returns_arguments, {"path": "cat.png"}) == ["cat.png", 200]
    assert run(returns_arguments, {"width": 3, "path": "cat.png"}) == ["cat.png", 3]


def test_a_function_without_parameters_takes_no_payload() -> None:
    assert run(lambda: 1, None) == run(lambda: 1, {}) == 1
    assert refusal(lambda: 1, {"a": 1}) == "payload.a: unexpected"


def test_no_payload_leaves_every_parameter_its_default() -> None:
    assert run(lambda days=30: days, None) == 30


def test_types_go_through_their_json_forms() -> None:
    def each(at: datetime, id: UUID, price: Decimal, size: Size, data: bytes, tags: set[str]) -> Any:
        assert (at, id, price) == (datetime(2030, 1, 2, tzinfo=UTC), UUID(ID), Decimal("1.50"))
        assert (size, data, tags) == (Size.SMALL, b"\x00\xff", {"a"})
        return [at, id, price, size, data, tags]

    payload = {"at": "2030-01-02T00:00:00Z", "id": ID, "price": "1.50", "size": "s", "data": "AP8=", "tags": ["a"]}
    assert run(each, payload) == list(payload.values())


def test_annotations_may_be_text_and_carry_constraints() -> None:
    def narrow(width: Annotated[int, Field(gt=0)]) -> int:
        return width

    assert run(narrow, {"width": 1}) == 1
    assert refusal(narrow, {"width": 0}) == "payload.width: expected greater than 0, got 0"


def test_the_refusal_names_every_field_and_what_was_expected() -> None:
    assert refusal(returns_arguments, {"path": 1, "widht": 3}) == (
        "payload.path: expected a valid string, got 1; payload.widht: unexpected, did you mean 'width'?"
    )
    assert refusal(returns_arguments, {}) == "payload.path: missing"
    assert refusal(returns_arguments, "cat.png") == "payload: expected an object, got 'cat.png'"
    assert refusal(lambda ids: ids, None) == "payload.ids: missing"
    assert "payload.o.lines[1]: expected a valid integer" in refusal(
        with_two_models, {"o": {"id": ID, "lines": [1, "x"]}}
    )
    assert issubclass(InvalidPayload, Reject)


def test_a_refusal_of_many_fields_has_an_end() -> None:
    def sums(numbers: list[int]) -> int:
        return sum(numbers)

    text = refusal(sums, {"numbers": ["x"] * 1000})
    assert text.endswith("; and 990 more")
    assert text.count("expected a valid integer") == 10


def test_a_validator_of_the_user_is_heard() -> None:
    def even(number: int) -> int:
        if number % 2:
            raise ValueError("odd")
        return number

    def takes_even(number: Annotated[int, AfterValidator(even)]) -> int:
        return number

    takes_even.__annotations__ = {"number": Annotated[int, AfterValidator(even)]}
    assert refusal(takes_even, {"number": 3}) == "payload.number: Value error, odd, got 3"


def test_an_error_of_the_function_itself_is_no_refusal() -> None:
    def parses(order: str) -> None:
        Order.model_validate_json(order)

    with pytest.raises(ValueError, match="validation error for Order"):
        run(parses, {"order": "{}"})


def test_other_keys_go_to_the_parameter_for_the_rest() -> None:
    def takes_rest(path: str, **rest: Any) -> Any:
        return [path, rest]

    assert run(takes_rest, {"path": "a", "b": 1, "c": [2]}) == ["a", {"b": 1, "c": [2]}]


# --- the job beside others, and whole payloads


def test_the_job_is_given_beside_the_payload() -> None:
    def first(job, path):
        return [job.id, path]

    def last(path: str, *, current: Job) -> Any:
        return [current.id, path]

    assert run(first, {"path": "a"}) == run(last, {"path": "a"}) == [7, "a"]


def test_a_decorator_may_take_the_job_by_position() -> None:
    def logged(function: Any) -> Any:
        @functools.wraps(function)
        def wrapper(job: Any, *args: Any, **kwargs: Any) -> Any:
            return ["logged", function(job, *args, **kwargs)]

        return wrapper

    def first(job, path):
        return [job.id, path]

    assert run(logged(first), {"path": "a"}) == ["logged", [7, "a"]]


def with_order(order: Order) -> Any:
    return order


def with_parcel(parcel: Parcel, job: Job) -> Any:
    return [parcel, job.id]


def with_address(to: Address) -> Any:
    return to


def with_two_models(o: Order, p: Parcel | None = None) -> Any:
    return [o, p]


SMALL = Parcel(Size.SMALL)


def with_optional_model(p: Parcel = SMALL) -> Any:
    return p


def test_a_lone_model_takes_the_whole_payload() -> None:
    assert run(with_order, {"id": ID, "lines": [1]}) == {"id": ID, "lines": [1]}
    assert run(with_parcel, {"size": "s"}) == [{"size": "s", "weight": "1"}, 7]
    assert run(with_address, {"street": "a"}) == {"street": "a"}
    assert refusal(with_order, {"id": "x"}).startswith("payload.id: expected a valid UUID")
    assert refusal(with_order, None) == "payload: expected an object, got None"
    assert run(with_optional_model, None) == {"size": "s", "weight": "1"}


def test_several_models_are_bound_by_name() -> None:
    assert run(with_two_models, {"o": {"id": ID}}) == [{"id": ID, "lines": []}, None]


# --- results


def test_a_result_without_a_json_form_is_left_for_the_check_of_results() -> None:
    generator = (number for number in [1])
    strange = object()
    assert run(lambda: generator, None) is generator
    assert run(lambda: strange, None) is strange
    assert run(lambda: {1: 2}, None) == {"1": 2}


# --- the schema, and payloads of calls


def test_the_schema_has_the_types_and_the_defaults() -> None:
    schema = bind(returns_arguments).schema()
    assert schema is not None
    assert schema["required"] == ["path"]
    assert schema["properties"]["width"] == {"type": "integer", "default": 200, "title": "Width"}
    assert schema["additionalProperties"] is False
    whole = bind(with_order).schema()
    assert whole is not None
    assert whole["properties"]["id"]["format"] == "uuid"


def test_a_call_makes_the_payload_that_the_function_takes() -> None:
    assert bind(returns_arguments).payload_of("cat.png") == {"path": "cat.png"}
    assert bind(returns_arguments).payload_of(path="cat.png", width=3) == {"path": "cat.png", "width": 3}
    assert bind(with_parcel).payload_of(Parcel(Size.SMALL)) == {"size": "s", "weight": "1"}
    assert bind(with_two_models).payload_of(Order(id=UUID(ID))) == {"o": {"id": ID, "lines": []}}
    assert bind(lambda data, **rest: 0).payload_of(data=1, other=b"a") == {"data": 1, "other": "YQ=="}
    assert bind(named_job).payload_of({"any": 1}) == {"any": 1}
    assert bind(named_job).payload_of() is None


def takes_bytes(data: bytes) -> Any:
    return data


def test_bytes_survive_the_way_through_json() -> None:
    payload = bind(takes_bytes).payload_of(b"\xff\x00")
    assert run(takes_bytes, payload) == payload["data"] == "_wA="


def test_a_call_that_does_not_fit_is_refused() -> None:
    with pytest.raises(TypeError, match="missing a required argument: 'path'"):
        bind(returns_arguments).payload_of()
    with pytest.raises(TypeError, match="unexpected keyword argument 'widht'"):
        bind(returns_arguments).payload_of("a", widht=1)
    with pytest.raises(TypeError, match="too many positional arguments"):
        bind(named_job).payload_of(1, 2)
    with pytest.raises(InvalidPayload, match=r"payload\.path: expected a valid string, got 1"):
        bind(returns_arguments).payload_of(1)


def test_a_partial_is_bound_by_its_free_parameters() -> None:
    assert run(functools.partial(returns_arguments, width=1), {"path": "a"}) == ["a", 1]


def test_an_argument_that_no_payload_can_hold_is_refused() -> None:
    def with_more(a: int, *more: int) -> Any:
        return [a, more]

    with pytest.raises(TypeError, match="too many positional arguments"):
        bind(with_more).payload_of(1, 2)
    with pytest.raises(InvalidPayload, match="payload: TypeError: Integer exceeds 64-bit range"):
        bind(lambda a: a).payload_of(2**70)


def test_a_part_with_the_name_of_the_job_is_refused() -> None:
    def with_rest(job, **rest):
        return rest

    assert refusal(with_rest, {"job": 1}) == "payload.job: unexpected: this parameter is the job"


def test_a_field_as_a_default_is_refused_when_the_plugin_is_loaded() -> None:
    def narrow(width: int = Field(5, gt=3)) -> int:
        return width

    with pytest.raises(TypeError, match="parameter width: expected a default that is a value, not Field"):
        bind(narrow)


def test_a_type_without_a_schema_is_read_all_the_same() -> None:
    class Point:
        def __init__(self, x: int) -> None:
            self.x = x

    point = Annotated[InstanceOf[Point], BeforeValidator(Point)]

    def at(p: Any) -> int:
        return int(p.x)

    at.__annotations__ = {"p": point}
    assert run(at, {"p": 3}) == 3
    schema = bind(at).schema()
    assert schema is not None and schema["description"].startswith("no schema: ")


def test_an_error_of_a_default_factory_is_a_refusal_that_names_it() -> None:
    def no_default() -> int:
        raise ValueError("no default today")

    class Broken(BaseModel):
        number: int = Field(default_factory=no_default)

    def takes_broken(broken: Any) -> Any:
        return broken

    takes_broken.__annotations__ = {"broken": Broken}
    assert refusal(takes_broken, {}) == "payload: ValueError: no default today"


class Login(BaseModel):
    password: SecretStr
    keys: list[SecretBytes] = []


class Shown(BaseModel):
    password: SecretStr

    @field_serializer("password", when_used="json")
    def _write(self, value: SecretStr) -> str:
        return value.get_secret_value()


def test_a_secret_that_would_be_stored_as_asterisks_is_refused() -> None:
    def takes_secrets(token: SecretStr, pin: Secret[str] | None = None, **rest: SecretStr) -> Any:
        return [
            token.get_secret_value(),
            pin and pin.get_secret_value(),
            *(it.get_secret_value() for it in rest.values()),
        ]

    def takes_login(login: Login) -> Any: ...

    def takes_shown(shown: Shown) -> Any:
        return shown.password.get_secret_value()

    binding = bind(takes_secrets)
    login = Login(password=SecretStr("p"), keys=[SecretBytes(b"k")])
    for refused in (
        lambda: binding.payload_of(SecretStr("t")),
        lambda: binding.payload_of(SecretStr("*" * 10), Secret[str]("5")),
        lambda: binding.payload_of(SecretStr("*" * 10), more=SecretStr("m")),
        lambda: bind(takes_login).payload_of(login),
    ):
        with pytest.raises(ValueError, match="a secret would be stored as asterisks"):
            refused()
    assert run(takes_secrets, {"token": "t", "pin": "5", "more": "m"}) == ["t", "5", "m"]
    assert run(takes_shown, bind(takes_shown).payload_of(Shown(password=SecretStr("p")))) == "p"
    assert bind(lambda text: 0).payload_of("*" * 10) == {"text": "*" * 10}


def test_no_message_has_what_was_given_to_a_handler_of_secrets() -> None:
    def takes_secret(token: Annotated[SecretStr, Field(min_length=8)], number: int) -> Any: ...

    told = refusal(takes_secret, {"token": "geheim", "number": "hunter2"})
    assert told.startswith("payload.token: ") and "payload.number: expected a valid integer" in told
    assert "geheim" not in told and "hunter2" not in told


def test_the_other_keys_have_the_type_of_the_parameter_for_the_rest() -> None:
    def takes_dates(path: str, **rest: date) -> Any:
        return rest

    payload = bind(takes_dates).payload_of("a", first=date(2030, 1, 31))
    assert payload == {"path": "a", "first": "2030-01-31"}
    assert run(takes_dates, payload) == {"first": "2030-01-31"}
    assert bind(takes_dates).check(payload)["first"] == date(2030, 1, 31)
    assert refusal(takes_dates, {"path": "a", "b": "someday"}).startswith("payload.b: expected a valid date")
    schema = bind(takes_dates).schema() or {}
    assert schema["additionalProperties"] == {"format": "date", "type": "string"}

    def takes_parcels(**rest: Parcel) -> Any:
        return rest["one"].size.value

    assert run(takes_parcels, {"one": {"size": "s"}}) == "s"
    assert "Size" in (bind(takes_parcels).schema() or {})["$defs"]


class Options(TypedDict, total=False):
    copies: Required[int]
    colour: bool


def test_an_unpacked_typed_dict_names_the_other_keys() -> None:
    def prints(path: str, **options: Unpack[Options]) -> Any:
        return options

    assert run(prints, {"path": "a", "copies": "2"}) == {"copies": 2}
    assert refusal(prints, {"path": "a", "colour": 1, "coppies": 2}) == (
        "payload.copies: missing; payload.coppies: unexpected, did you mean 'copies'?"
    )


class Text(BaseModel):
    data: bytes


class Packed(BaseModel):
    model_config = ConfigDict(val_json_bytes="base64", ser_json_bytes="base64")
    data: bytes


def test_bytes_are_base64_and_in_a_class_as_its_config_has_them() -> None:
    def takes_all(it: Text, other: Packed, **rest: bytes) -> Any:
        return it.data + other.data + rest["more"]

    payload = bind(takes_all).payload_of(Text(data=b"a"), Packed(data=b"\xff"), more=b"\xfe")
    assert payload == {"it": {"data": "a"}, "other": {"data": "_w=="}, "more": "_g=="}
    assert run(takes_all, payload) == "Yf_-"


def test_a_hint_names_the_keys_of_the_payload_by_their_aliases() -> None:
    def aliased(path: Annotated[str, Field(alias="file")], width: int = 1) -> Any: ...

    assert refusal(aliased, {"path": "a"}) == (
        "payload.file: missing; payload.path: unexpected; expected one of file, width"
    )
    assert refusal(aliased, {"fil": "a"}) == "payload.file: missing; payload.fil: unexpected, did you mean 'file'?"
    assert bind(aliased).payload_of("a") == {"file": "a"}
