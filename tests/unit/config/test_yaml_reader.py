from __future__ import annotations

from typing import Any

import pytest

from supervisor.config.loading import load


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("handlers: {on: {timeout: 1s}}", "1: handlers.on: YAML reads the key on as a boolean: quote it"),
        ("handlers:\n  1: {timeout: 1s}", "2: handlers.1: YAML reads the key 1 as a number: quote it"),
        ("handlers: {h: {queue: no}}", "1: handlers.h.queue: expected text; YAML reads yes, no, on, off, true and false"),
        ("handlers: {h: {queue: 12}}", "1: handlers.h.queue: expected text; YAML reads this as a number: quote it"),
        ("handlers: {h: {queue: 1.10}}", "1: handlers.h.queue: expected text; YAML reads this as a number: quote it"),
        ("handlers: {h: {queue: 2024-01-01}}", "1: handlers.h.queue: YAML reads this as a date: quote it"),
        ("workers: {timeout: 1:30}", "1: workers.timeout: YAML reads this as a number to the base of 60"),
        ("workers: {timeout: 1:30.5}", "1: workers.timeout: YAML reads this as a number to the base of 60"),
        ("retry: {burst: 0755}", "1: retry.burst: YAML reads this as an octal, hexadecimal or binary number"),
        ("workers: {count: 1}\nworkers: {count: 2}", "2: workers: given twice, first on line 1"),
        ("workers:\n  count: 1\n  count: 2", "3: workers.count: given twice, first on line 2"),
        ("workers:\n\tcount: 1", "2: a tab at the start of the line: YAML indents with spaces"),
        ("workers: !!python/object:os.system {}", "1: workers: the tag !!python/object:os.system is not supported"),
        ("a: !!python/name:os.system ''", "1: a: the tag !!python/name:os.system is not supported"),
        ("workers: {count: 1", "not YAML: "),
        ("a: b: c", "1: not YAML: mapping values are not allowed"),
        ("a: 1\n---\nb: 2", "not YAML: "),
        ("&a [*a]", "one contains itself"),
        ("workers: &a {<<: *a}", "one contains itself"),
        ("a: !!bool maybe", "1: a: its tag is !!bool: expected true or false"),
        ("a: !!null all", "1: a: its tag is !!null: expected nothing"),
        ("workers: {timeout: 1__0.5}", "1: workers.timeout: YAML reads this as a number, but it is none"),
        ("[" * 50 + "]" * 50, "1: nested deeper than 40"),
        ("? [a, b]\n: 1", "1: a mapping or list can't be a key"),
        ("<<: 5", "1: <<: expected a mapping, or a list of them"),
        (b"log:\n  level: \xff", "2: not UTF-8: byte 0xff"),
        (b"a: \x00", "not YAML: "),
    ],
)  # fmt: skip
def test_a_trap_of_yaml_is_named(errors: Any, text: str | bytes, expected: str) -> None:
    assert any(expected in error for error in errors(text))


def test_an_alias_bomb_is_bounded(errors: Any) -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 10)]
    assert any("aliases make more than" in error for error in errors("\n".join(lines)))


def test_an_oversized_file_is_refused(errors: Any) -> None:
    assert "expected at most 1000000" in errors(b"#" * 1_000_001)[0]


def test_aliases_and_merge_keys_work(write: Any) -> None:
    text = (
        "queues:\n  a: &a\n    retry: {burst: 2}\n  b: *a\n"
        "handlers:\n  x: &x {timeout: 1s, queue: a}\n  y: {<<: *x, timeout: 2s}\n  z: {<<: [{queue: b}, *x]}\n"
    )
    settings = load(write(text), {})
    assert settings.retry_for("b").burst == 2
    assert (settings.handlers["y"].timeout, settings.handlers["y"].queue) == (2.0, "a")
    assert (settings.handlers["z"].timeout, settings.handlers["z"].queue) == (1.0, "b")


def test_a_variable_gets_the_type_that_yaml_gives_its_text(write: Any) -> None:
    text = (
        "workers:\n  count: ${N}\n  timeout: ${T:-7s}\n  queues: ['${Q}', \"a${Q}\"]\n"
        "dlq:\n  enabled: ${D}\nlog:\n  level: ${L:-debug}\nstore: sqlite:////${DIR}/jobs$${x}.db\n"
    )
    settings = load(write(text), {"N": "3", "Q": "12", "D": "off", "DIR": "data"})
    assert settings.workers.count == 3
    assert settings.workers.timeout == 7.0
    assert settings.workers.queues == {"12", "a12"}
    assert settings.dlq.enabled is False
    assert settings.log.level == "debug"
    assert settings.store.url == "sqlite:////data/jobs${x}.db"


def test_a_variable_may_be_empty_by_default(write: Any) -> None:
    assert load(write("dlq: {sinks: [{type: x, key: '${K:-}'}]}"), {}).dlq.sinks[0].options == {"key": ""}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "workers:\n  count: ${N}",
            "2: workers.count: environment variable N is not set; set it, or write ${N:-default}",
        ),
        ("workers:\n  count: ${}", "2: workers.count: expected ${NAME} or ${NAME:-default}"),
        ("workers:\n  count: ${1N}", "2: workers.count: expected ${NAME} or ${NAME:-default}"),
        ("workers:\n  count: '${N'", "2: workers.count: expected ${NAME} or ${NAME:-default}"),
        ("workers:\n  count: '${N:-${M}'", "2: workers.count: expected ${NAME} or ${NAME:-default}"),
        ("workers:\n  count: ${N:-${M}}", "2: workers.count: environment variable M is not set"),
        (f"store: {'${A:-' * 12}x{'}' * 12}", "1: store: variables nested deeper than 10"),
        ("workers: {count: ${N}}", 'inside [ ] or { } write "${NAME}" in quotes'),
    ],
)
def test_a_variable_that_cannot_be_replaced_is_named(errors: Any, text: str, expected: str) -> None:
    assert expected in errors(text)[0]


@pytest.mark.parametrize("secret", ["s3cret", "0755", "1:30", "2024-01-01", "12", "yes", "!!x", "\udcff"])
def test_the_value_of_a_variable_is_in_no_message(errors: Any, secret: str) -> None:
    text = "workers:\n  count: ${S}x\n  timeout: ${S}\nlog:\n  level: ${S}\nstore: x:${S}\nlease:\n  ttl: '${S}'\n"
    found = errors(text, {"S": secret})
    assert len(found) == 5
    assert all(secret not in error.replace("supervisor.yaml:12", "") or secret in _HINTS for error in found)


_HINTS = ("12", "yes")  # these stand in the hints themselves
