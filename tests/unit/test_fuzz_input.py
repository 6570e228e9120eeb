"""Any input becomes a value or an error that names its place: no other exception, no hang, nothing done by half."""

from __future__ import annotations

import sys
from datetime import datetime
from io import BytesIO, TextIOWrapper
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from supervisor.cli.app import run_command_line
from supervisor.client.new_jobs import enqueue_row
from supervisor.config.loading import load
from supervisor.config.settings import Settings
from supervisor.config.types import limit
from supervisor.errors import ConfigError, InvalidJob
from supervisor.plugins.discovery import Source
from supervisor.plugins.manager import PluginManager
from supervisor.text.strict_json import NotJSON, decode, encode
from supervisor.text.units import MAX_SECONDS, format_duration, parse_duration, parse_size
from tests.config_keys import known_keys

quick = settings(
    deadline=None, derandomize=True, max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
ETC = sorted((Path(__file__).parents[2] / "etc").glob("*.yaml"))
ENVIRON = {"SET": "5", "TEXT": "a: b", "EMPTY": ""}

odd = st.sampled_from(
    [
        "", " ", "none", "half", "all", "full", "yes", "on", "~", "null", "0755", "0x1F", "1:30", "1_000", "1e400", ".nan", "-.inf",
        "9" * 400, "1" + "0" * 19 + "d", "5m", "0s", "-1s", "1e3s", "2024-01-01", "${SET}", "${TEXT}", "${", "${EMPTY}", "${NO}",
        "$${x}", "!!int x", "!!binary x", "!t x", "&a b", "*a", "<<", "? x", "- x", "'", '"\\ud800"', "%YAML 9.9", "---", "...",
        "\t", "\ufeff", "\u2028", "a\x00b", "{a: &x [*x]}", "&x {<<: *x}", "[" * 60, "{" * 60, "sqlite://", "http://[::1", "memory://", "x:y@z:w",
    ]
)  # fmt: skip
scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=12) | odd
names = st.text(max_size=6) | st.sampled_from(sorted({part for key in known_keys() for part in key.split(".")})) | odd
trees = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(names, inner, max_size=4),
    max_leaves=20,
)


@st.composite
def mutated(draw: st.DrawFn, valid: st.SearchStrategy[bytes]) -> bytes:
    """Valid input with parts of it replaced, removed or added."""
    data = bytearray(draw(valid))
    for _ in range(draw(st.integers(1, 4))):
        start = draw(st.integers(0, len(data)))
        end = draw(st.integers(start, min(len(data), start + 12)))
        put = draw(st.binary(max_size=4) | odd.map(lambda text: text.encode("utf-8", "surrogatepass")))
        data[start:end] = put
    return bytes(data)


configured = st.sampled_from([path.read_bytes() for path in ETC])


@st.composite
def sections(draw: st.DrawFn) -> bytes:
    """Known keys, at their right places, with any value."""
    tree: dict[str, Any] = {}
    for dotted in draw(st.lists(st.sampled_from(known_keys()), max_size=5)):
        *above, last = dotted.replace("[]", "").replace("<name>", draw(names) or "q").split(".")
        level = tree
        for key in above:
            level = level.setdefault(key, {}) if isinstance(level.get(key, {}), dict) else {}
        level[last] = draw(trees | st.lists(trees, max_size=2))
    return yaml.safe_dump(tree, allow_unicode=True).encode("utf-8", "surrogatepass")


def bomb(width: int, levels: int) -> bytes:
    lines = [f"a0: &a0 [{', '.join('x' * width)}]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * width)}]" for n in range(1, levels)]
    return "\n".join(lines).encode()


documents = (
    st.binary(max_size=80)
    | mutated(configured)
    | sections()
    | trees.map(lambda tree: yaml.safe_dump(tree, allow_unicode=True).encode("utf-8", "surrogatepass"))
    | st.builds(bomb, st.integers(1, 30), st.integers(1, 30))
    | st.integers(1, 5000).map(lambda depth: b"a: " + b"[" * depth + b"]" * depth)
    | st.integers(1, 300).map(lambda depth: b"a: &a " + b"{<<: " * depth + b"*a" + b"}" * depth)
)


@quick
@given(documents)
def test_a_config_is_settings_or_errors_that_name_the_file(tmp_path: Path, data: bytes) -> None:
    file = tmp_path / "supervisor.yaml"
    file.write_bytes(data)
    try:
        found: Settings | None = load(file, ENVIRON)
    except ConfigError as error:
        found = error.settings
        assert error.errors
        assert all(line.startswith(str(file)) and "Traceback" not in line for line in error.errors)
    if found is not None:
        found.policy("some", "queue", {})
        assert found.store.shown is not None


texts = st.text(max_size=20) | odd | st.from_regex(r"\A[0-9]{1,25}(\.[0-9]{1,25})? ?(ms|s|m|h|d|B|kB|KB|MB|GB)\Z")
numbers = st.integers() | st.floats() | st.booleans()


@quick
@given(texts | numbers)
def test_durations_and_sizes_are_numbers_within_limits_or_errors(value: Any) -> None:
    for parse, most in (
        (parse_duration, MAX_SECONDS),
        (lambda it: limit(it, None), MAX_SECONDS),
        (parse_size, 2.0**63),
    ):
        try:
            found = parse(value)
        except ValueError as error:
            assert "expected" in str(error)
        else:
            assert found is None or 0 < found <= most
            assert found is None or format_duration(min(found, MAX_SECONDS))


times = st.datetimes().map(datetime.isoformat) | st.datetimes(timezones=st.timezones()).map(datetime.isoformat)
options = st.fixed_dictionaries(
    {"handler": names | st.just("mail")},
    optional={
        "payload": trees,
        "queue": names | scalars,
        "priority": scalars,
        "delay": texts | scalars,
        "at": texts | times | scalars,
        "max_retries": scalars,
        "timeout": texts | scalars,
        "backoff": trees | st.dictionaries(st.sampled_from(["base", "factor", "max", "jitter", "?"]), texts | numbers),
        "headers": trees,
    },
)


@quick
@given(options | trees | st.dictionaries(names, scalars))
def test_a_job_is_a_row_or_an_error_that_names_the_key(job: Any) -> None:
    try:
        row = enqueue_row(Settings(limits={"payload": 500}), job)
    except InvalidJob as error:
        assert str(error)
    else:
        assert len(row.payload.encode()) <= 500
        assert decode(row.payload) == decode(encode(job.get("payload"), limit=500))
        row.handler.encode()
        row.queue.encode()


lines = (
    st.binary(max_size=60)
    | options.map(lambda job: _json(job))
    | mutated(st.sampled_from([b'{"handler":"mail","payload":{"n":1}}', b'{"handler":"mail","max-retries":0,"at":"2030-01-31T08:00:00Z"}']))
    | st.integers(1, 3000).map(lambda depth: b'{"handler":"a","payload":' + b"[" * depth + b"1" * 19 + b"]" * depth + b"}")
)  # fmt: skip


def _json(value: Any) -> bytes:
    try:
        return encode(value, limit=10_000).encode()
    except NotJSON:
        return b'{"handler": "mail"}'


def ask(*arguments: str) -> tuple[int, str, str]:
    out, err = (
        TextIOWrapper(BytesIO(), write_through=True),
        TextIOWrapper(BytesIO(), errors="backslashreplace", write_through=True),
    )
    kept = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = out, err
    try:
        code = run_command_line(arguments)
    finally:
        sys.stdout, sys.stderr = kept
    return code, out.buffer.getvalue().decode(), err.buffer.getvalue().decode()  # type: ignore[attr-defined]


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    file = tmp_path / "supervisor.yaml"
    file.write_text("store: {url: 'sqlite:///jobs.db', synchronous: normal}\nlimits: {payload: 1KB}\n")
    monkeypatch.chdir(tmp_path)
    assert ask("-c", str(file), "enqueue", "mail")[0] == 0
    return str(file)


@settings(quick, max_examples=60)
@given(st.lists(lines, max_size=4))
def test_a_file_is_enqueued_as_a_whole_or_its_bad_lines_are_named(
    config: str, tmp_path: Path, written: list[bytes]
) -> None:
    (tmp_path / "jobs.jsonl").write_bytes(b"\n".join(written))
    before = len(ask("-c", config, "jobs", "list", "--json", "--limit", "1000000")[1].splitlines())
    code, out, err = ask("-c", config, "enqueue", "--file", "jobs.jsonl")
    after = len(ask("-c", config, "jobs", "list", "--json", "--limit", "1000000")[1].splitlines())
    if code == 0:
        assert int(out) == after - before
    else:
        assert (code, out, after) == (2, "", before)
        assert "nothing was enqueued" in err
        assert "jobs.jsonl:" in err


inputs = (
    (st.text(max_size=8) | odd | st.integers().map(str) | times | texts)
    .filter(lambda text: "\x00" not in text)
    .map(lambda text: text.encode("utf-8", "surrogateescape" if text.isascii() else "replace").decode())
)
COMMANDS: list[tuple[str, ...]] = [
    ("jobs", "list"), ("jobs", "show"), ("jobs", "cancel"), ("jobs", "retry"), ("jobs", "delete"), ("dlq", "list"), ("dlq", "show"),
    ("dlq", "redrive"), ("dlq", "purge"), ("queues", "pause"), ("queues", "resume"), ("status",), ("enqueue", "mail"), ("enqueue",),
]  # fmt: skip
OPTIONS = [
    "--state", "--queue", "--handler", "--limit", "--json", "--all", "--force", "--priority", "--delay", "--at", "--max-retries",
    "--timeout", "--",
]  # fmt: skip


@settings(quick, max_examples=150)
@given(st.sampled_from(COMMANDS), st.lists(st.sampled_from(OPTIONS) | inputs, max_size=5))
def test_a_command_succeeds_or_prints_an_error(config: str, command: tuple[str, ...], arguments: list[str]) -> None:
    code, _out, err = ask("-c", config, *command, *[text for text in arguments if text not in ("-", "--file")])
    assert code in (0, 2)
    assert "Traceback" not in err
    assert code == 0 or err


GOOD = b"""
from supervisor import handler

@handler(timeout="5s", max_retries=3, backoff={"base": "1s"})
def mail(job):
    return job.payload
"""


@settings(quick, max_examples=60)
@given(st.binary(max_size=60) | mutated(st.just(GOOD)))
def test_a_plugin_file_is_a_report(tmp_path: Path, source: bytes) -> None:
    """The files here are refused before they run, or are harmless; a file that does harm when it runs is the forkserver's part."""
    file = tmp_path / "plugin.py"
    file.write_bytes(source)
    report = PluginManager().load(Source(str(file), path=file))
    assert report.source == str(file)
    assert report.error is None or report.error.isprintable() or "\\" in report.error
    assert report.error is None or report.handlers == ()
