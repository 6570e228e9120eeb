from __future__ import annotations

from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from supervisor.config.contradictions import heartbeat_problems
from supervisor.config.loading import find, known_keys, load
from supervisor.config.settings import RetentionSettings, RetrySettings, Settings
from supervisor.errors import ConfigError
from supervisor.handlers import HandlerInfo
from supervisor.jobs import Backoff, Policy
from supervisor.stores.records import Retention


@pytest.fixture
def write(tmp_path: Path) -> Any:
    def write(text: str | bytes) -> Path:
        path = tmp_path / "supervisor.yaml"
        path.write_bytes(text.encode() if isinstance(text, str) else text)
        return path

    return write


@pytest.fixture
def errors(write: Any) -> Any:
    """The errors of a config, without the folder."""

    def errors(text: str | bytes, environ: dict[str, str] | None = None) -> list[str]:
        path = write(text)
        with pytest.raises(ConfigError) as raised:
            load(path, environ or {})
        return [error.replace(f"{path.parent}/", "") for error in raised.value.errors]

    return errors


# --- defaults


def test_defaults() -> None:
    settings = Settings()
    assert settings.store.url == "sqlite:///jobs.db"
    assert settings.plugins.paths == ("plugins",)
    assert settings.workers.count >= 1
    assert (settings.workers.timeout, settings.workers.heartbeat, settings.workers.heartbeat_timeout) == (300, 1, 30)
    assert settings.lease.ttl == 30
    assert settings.retry.max_retries == 3
    assert settings.retry.backoff.curve == Backoff(0.5, 2.0, 30.0, "full")
    assert settings.retry.fetch_ratio == Fraction(1, 5)
    assert (settings.retry.burst, settings.retry.max_in_flight, settings.retry.urgent) == (16, "half", 100)
    assert settings.retry.budget is None
    assert settings.retry.adaptive is False
    assert settings.shutdown.grace == 30
    assert settings.dlq.enabled
    assert not settings.dlq.active
    assert (settings.limits.payload, settings.limits.result) == (1_000_000, 1_000_000)
    assert (settings.log.level, settings.log.format) == ("info", "text")
    assert settings.unknown_handler.grace == 3600


def test_defaults_agree_with_the_plain_types() -> None:
    settings, retention = Settings(), Retention()
    assert settings.policy("any", "default", {}) == Policy()
    assert settings.retention.succeeded == retention.succeeded
    assert settings.retention.cancelled == retention.cancelled
    assert settings.retention.failed == retention.failed


@pytest.mark.parametrize("text", ["", "\n", "# nothing\n", "---\n", "{}", "\ufeff"])
def test_an_empty_file_is_all_defaults(write: Any, text: str) -> None:
    path = write(text)
    assert load(path, {}) == Settings(path=path, base=path.parent)


def test_headings_without_keys_are_defaults(write: Any) -> None:
    assert load(write("workers:\nretry:\nqueues:\nhandlers:\ndlq:\n"), {}).retry == RetrySettings()


def test_settings_are_frozen() -> None:
    with pytest.raises(AttributeError, match="frozen"):
        Settings().workers.count = 3  # type: ignore[misc]


# --- finding the file


def test_the_file_is_looked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert find({}) is None
    assert load(None, {}).path is None
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/supervisor.yaml").write_text("workers: {count: 7}")
    assert load(None, {}).workers.count == 7
    (tmp_path / "supervisor.yaml").write_text("workers: {count: 8}")
    assert load(None, {}).workers.count == 8
    (tmp_path / "named.yaml").write_text("workers: {count: 9}")
    assert load(None, {"SUPERVISOR_CONFIG": "named.yaml"}).workers.count == 9


def test_a_missing_file_is_named_with_what_named_it(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"nope.yaml \(named by \$SUPERVISOR_CONFIG\): No such file"):
        load(None, {"SUPERVISOR_CONFIG": str(tmp_path / "nope.yaml")})
    with pytest.raises(ConfigError, match="Is a directory"):
        load(tmp_path, {})


def test_relative_paths_are_relative_to_the_file(write: Any) -> None:
    settings = load(write("dlq: {sinks: [{type: file, path: dead.jsonl}, {type: file, name: b, path: /dead}]}"), {})
    assert settings.path is not None
    assert settings.base == settings.path.parent
    assert [sink.options["path"] for sink in settings.dlq.sinks] == [str(settings.base / "dead.jsonl"), "/dead"]


# --- values


def test_units(write: Any) -> None:
    settings = load(
        write(
            "workers: {timeout: none, max_memory: 512MB, max_jobs: 5, heartbeat_timeout: 2m, queues: [mail, 'no']}\n"
            "retry:\n  backoff: {base: 500ms, max: 2h, jitter: 200ms}\n  budget: {limit: 100, per: 1m}\n"
            "  max_in_flight: none\n  adaptive: on\n  fetch_ratio: 1\n"
            "retention: {failed: none, cancelled: 1d}\n"
        ),
        {},
    )
    assert settings.workers.timeout is None
    assert settings.workers.max_memory == 512_000_000
    assert settings.workers.max_jobs == 5
    assert settings.workers.queues == {"mail", "no"}
    assert settings.retry.backoff.curve == Backoff(0.5, 2.0, 7200.0, 0.2)
    assert settings.retry.budget is not None
    assert (settings.retry.budget.limit, settings.retry.budget.per) == (100, 60.0)
    assert settings.retry.max_in_flight is None
    assert settings.retry.adaptive
    assert settings.retry.fetch_ratio == 1
    assert (settings.retention.failed, settings.retention.cancelled) == (None, 86_400.0)


def test_jobs_may_be_kept_for_no_time_at_all(write: Any) -> None:
    retention = load(write("retention: {succeeded: 0s, cancelled: 0ms, failed: none}"), {}).retention
    assert (retention.succeeded, retention.cancelled, retention.failed) == (0.0, 0.0, None)
    assert RetentionSettings(succeeded=0, failed=None) == RetentionSettings(succeeded=0.0, failed=None)


def test_a_ratio_is_exact(write: Any) -> None:
    assert load(write("retry: {fetch_ratio: 0.1}"), {}).retry.fetch_ratio == Fraction(1, 10)


@pytest.mark.parametrize("text", ["store: sqlite:////tmp/a.db", "store: {url: sqlite:////tmp/a.db}"])
def test_store_as_text_or_mapping(write: Any, text: str) -> None:
    store = load(write(text), {}).store
    assert (store.url, store.scheme, store.options) == ("sqlite:////tmp/a.db", "sqlite", {})


def test_store_options_beside_the_default_url(write: Any) -> None:
    store = load(write("store: {synchronous: normal}"), {}).store
    assert (store.url, store.options) == ("sqlite:///jobs.db", {"synchronous": "normal"})


def test_store_of_a_plugin(write: Any) -> None:
    store = load(write("store: {type: redis, host: here}"), {}).store
    assert (store.url, store.scheme, store.options) == (None, "redis", {"host": "here"})


def test_a_password_is_not_shown(write: Any) -> None:
    store = load(write("store: redis://me:secret@host/0"), {}).store
    assert store.shown == "redis://me:***@host/0"


def test_plugins_as_list_or_mapping(write: Any) -> None:
    assert load(write("plugins: [a, b.py]"), {}).plugins.paths == ("a", "b.py")
    plugins = load(write("plugins: {paths: [a], import_timeout: 5s}"), {}).plugins
    assert (plugins.paths, plugins.import_timeout) == (("a",), 5.0)


def test_sinks(write: Any) -> None:
    dlq = load(write("dlq: {sinks: [{type: file, path: /d}, {type: pager, name: night, key: k, options: 3}]}"), {}).dlq
    assert dlq.active
    assert [(sink.type, sink.name, sink.options, sink.key) for sink in dlq.sinks] == [
        ("file", "file", {"path": "/d"}, "dlq.sinks[0]"),
        ("pager", "night", {"key": "k", "options": 3}, "dlq.sinks[1]"),
    ]


def test_sinks_that_are_not_enabled(write: Any) -> None:
    assert not load(write("dlq: {enabled: false, sinks: [{type: file, path: /d}]}"), {}).dlq.active


# --- what goes before what


@pytest.fixture
def layered(write: Any) -> Settings:
    return load(
        write(
            "workers: {timeout: 1m}\n"
            "retry: {max_retries: 1, backoff: {base: 1s, factor: 3}, burst: 4}\n"
            "queues: {slow: {retry: {max_retries: 2, backoff: {max: 1h}}}}\n"
            "handlers: {mail: {queue: slow, timeout: none, backoff: {jitter: none}}}\n"
        ),
        {},
    )


def test_a_queue_lays_only_what_it_says_over_the_rest(layered: Settings) -> None:
    assert layered.retry_for("slow").max_retries == 2
    assert layered.retry_for("slow").backoff.curve == Backoff(1.0, 3.0, 3600.0, "full")
    assert layered.retry_for("slow").burst == 4
    assert layered.retry_for("other") is layered.retry


def test_policy_of_a_handler(layered: Settings) -> None:
    written = {"mail": HandlerInfo("mail", {"timeout": "3s", "max_retries": 7, "backoff": {"base": "4s"}}, "f.py", 1)}
    assert layered.policy("mail", "slow", written) == Policy(7, Backoff(4.0, 3.0, 3600.0, "none"), None, 30.0)
    assert layered.policy("mail", "slow", {}) == Policy(2, Backoff(1.0, 3.0, 3600.0, "none"), None, 30.0)
    assert layered.policy("pdf", "default", {}) == Policy(1, Backoff(1.0, 3.0, 30.0, "full"), 60.0, 30.0)


def test_queue_of_a_handler(layered: Settings) -> None:
    assert layered.queue_for("mail") == "slow"
    assert layered.queue_for("pdf") == "default"


def test_none_in_yaml_goes_before_a_decorators_timeout(write: Any) -> None:
    settings = load(write("handlers: {mail: {timeout: none, heartbeat_timeout: none}}"), {})
    written = {"mail": HandlerInfo("mail", {"timeout": "3s", "heartbeat_timeout": 5}, "f.py", 1)}
    assert settings.policy("mail", "q", written)[2:] == (None, None)
    assert Settings().policy("mail", "q", written)[2:] == (3.0, 5.0)


@pytest.mark.parametrize(
    ("options", "config", "expected"),
    [
        ({"heartbeat": "100ms", "heartbeat_timeout": "600ms"}, "", []),
        ({"heartbeat_timeout": "none", "timeout": "1ms"}, "", []),
        ({}, "workers: {heartbeat: 20s}", []),  # told of the config
        ({"heartbeat_timeout": 1}, "", ["heartbeat_timeout: expected at least twice its heartbeat, got 1"]),
        ({"heartbeat_timeout": 1}, "workers: {heartbeat: 500ms}", []),
        ({"heartbeat": "2s", "heartbeat_timeout": "3s"}, "", ["heartbeat: expected at most half of its heartbeat_timeout, got 2s"]),
        ({"heartbeat": "2s", "heartbeat_timeout": "3s"}, "handlers: {h: {heartbeat: 1s}}", []),
        ({"heartbeat": "2s", "heartbeat_timeout": "3s"}, "handlers: {h: {heartbeat: 9s, heartbeat_timeout: 9s}}", []),
        ({"heartbeat_timeout": "3s"}, "handlers: {h: {heartbeat: 2s}}", ["heartbeat_timeout: expected at least twice its heartbeat, got 3s"]),
        ({"heartbeat": "16s", "heartbeat_timeout": "none"}, "", ["heartbeat: expected at most half of lease.ttl, got 16s"]),
    ],
)  # fmt: skip
def test_the_heartbeat_that_a_handler_asks_for_is_compared_with_what_holds_beside_it(
    write: Any, options: dict[str, Any], config: str, expected: list[str]
) -> None:
    try:
        settings = load(write(config), {})
    except ConfigError as error:
        assert error.settings is not None
        settings = error.settings
    found = heartbeat_problems(settings, HandlerInfo("h", options, "f.py", 1))
    assert found == [f"handler 'h': {problem}" for problem in expected]


# --- mistakes


def test_five_mistakes_are_all_named(errors: Any) -> None:
    assert errors(
        "workers:\n  cuont: 2\n  timeout: 30\nretry:\n  fetch_ratio: 1.5\n  backoff: {factor: 0.5}\nlog: {level: loud}\n"
    ) == [
        "supervisor.yaml:2: workers.cuont: unknown key, did you mean 'count'?",
        "supervisor.yaml:3: workers.timeout: expected a duration such as 500ms, 30s, 5m, 2h or 1d, or none for no limit; "
        "a number needs a unit: write 30s, got 30",
        "supervisor.yaml:5: retry.fetch_ratio: expected a number above 0 and up to 1, got 1.5",
        "supervisor.yaml:6: retry.backoff.factor: expected a number from 1 to 1000, got 0.5",
        "supervisor.yaml:7: log.level: expected debug or info or warning or error, got loud",
    ]


@pytest.mark.parametrize(
    ("text", "key", "hint"),
    [
        ("worker: {count: 1}", "worker", "did you mean 'workers'?"),
        ("timeout: 5s", "timeout", "did you mean 'workers.timeout'?"),
        ("workers: {timout: 5s}", "workers.timout", "did you mean 'timeout'?"),
        ("retry: {bakcoff: {base: 2s}}", "retry.bakcoff", "did you mean 'backoff'?"),
        ("retry: {backoff: {bas: 2s}}", "retry.backoff.bas", "did you mean 'base'?"),
        ("retry: {max_attempt: 1}", "retry.max_attempt", "expected one of max_retries, backoff"),
        ("retry: {curve: {base: 2s}}", "retry.curve", "unknown key"),
        ("retry: {budget: {limit: 1, per: 1s, pr: 1s}}", "retry.budget.pr", "did you mean 'per'?"),
        ("queues: {mail: {retri: {}}}", "queues.mail.retri", "did you mean 'retry'?"),
        ("queues: {mail: {retry: {brust: 1}}}", "queues.mail.retry.brust", "did you mean 'burst'?"),
        ("handlers: {mail: {timout: 1s}}", "handlers.mail.timout", "did you mean 'timeout'?"),
        ("handlers: {mail: {backoff: {mxa: 1s}}}", "handlers.mail.backoff.mxa", "did you mean 'max'?"),
        ("dlq: {sink: []}", "dlq.sink", "did you mean 'sinks'?"),
        ("store: {url: sqlite:///a.db, synchronus: full}", "store.synchronus", "did you mean 'synchronous'?"),
        ("plugins: {path: [a]}", "plugins.path", "did you mean 'paths'?"),
        ("path: /etc", "path", "unknown key"),
        ("base: /etc", "base", "unknown key"),
        ("web: {port: 80}", "web", "unknown key"),
        ("workers: {memory_limit: 1MB}", "workers.memory_limit", "unknown key"),
    ],
)
def test_unknown_keys_at_every_level(errors: Any, text: str, key: str, hint: str) -> None:
    (error,) = errors(text)
    assert error.startswith(f"supervisor.yaml:1: {key}: unknown key")
    assert hint in error


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[1, 2]", "expected a mapping with store, plugins"),
        ("just text", "expected a mapping with store, plugins"),
        ("${HOME:-just text}", "expected a mapping with store, plugins"),
        ("workers: [1]", "workers: expected a mapping with count"),
        ("workers: {count: 0}", "workers.count: expected a whole number from 1 to 1000, got 0"),
        ("workers: {count: two}", "workers.count: expected a whole number from 1 to 1000, got two"),
        ("workers: {count: 1.5}", "workers.count: expected a whole number"),
        ("workers: {count: yes}", "workers.count: expected a whole number from 1 to 1000, got yes"),
        ("workers: {count: }", "workers.count: expected a whole number from 1 to 1000, got nothing"),
        ("workers: {timeout: 0s}", "workers.timeout: expected a duration"),
        ("workers: {timeout: -1s}", "workers.timeout: expected a duration"),
        ("workers: {timeout: .nan}", "workers.timeout: expected a duration"),
        ("workers: {timeout: .inf}", "workers.timeout: expected a duration"),
        ("workers: {timeout: null}", "workers.timeout: expected a duration"),
        ("workers: {heartbeat: none}", "workers.heartbeat: expected a duration"),
        ("workers: {queues: mail}", "workers.queues: expected all, or a list of queue names, got mail"),
        ("workers: {queues: []}", "workers.queues: expected all, or a list of queue names"),
        ("workers: {start: forkserver}", "workers.start: expected fork or spawn, got forkserver"),
        ("workers: {max_memory: 512}", "workers.max_memory: expected a size"),
        ("workers: {max_jobs: 0}", "workers.max_jobs: expected a whole number from 1 to 1000000000, or none, got 0"),
        ("lease: {ttl: 0s}", "lease.ttl: expected a duration"),
        ("shutdown: {grace: 0s}", "shutdown.grace: expected a duration"),
        ("unknown_handler: {grace: 0s}", "unknown_handler.grace: expected a duration"),
        ("handlers: {a: {timeout: 0s}}", "handlers.a.timeout: expected a duration"),
        ("retention: {failed: 0}", "retention.failed: expected a duration such as 500ms, 30s, 5m, 2h or 1d, 0s to drop at once, or none"),
        ("retention: {failed: 0 s ago}", "retention.failed: expected a duration such as"),
        ("retention: {succeeded: -1s}", "retention.succeeded: expected a duration such as"),
        ("retention: {succeeded: null}", "retention.succeeded: expected a duration such as"),
        ("retry: {max_retries: -1}", "retry.max_retries: expected a whole number from 0 to 1000"),
        ("retry: {max_retries: 1001}", "retry.max_retries: expected a whole number from 0 to 1000"),
        ("retry: {fetch_ratio: 0}", "retry.fetch_ratio: expected a number above 0 and up to 1, got 0"),
        ("retry: {fetch_ratio: .nan}", "retry.fetch_ratio: expected a number above 0"),
        ("retry: {burst: 0}", "retry.burst: expected a whole number"),
        ("retry: {max_in_flight: most}", "retry.max_in_flight: expected half, none, or a whole number"),
        ("retry: {budget: {limit: 3}}", "retry.budget.per: missing; expected a duration such as 1m"),
        ("retry: {budget: often}", "retry.budget: expected a mapping with limit, per, got often"),
        ("retry: {adaptive: 'on'}", "retry.adaptive: expected true or false, got on"),
        ("retry: {backoff: {jitter: some}}", "retry.backoff.jitter: expected full, none, or a duration"),
        ("retry: {backoff: {base: 1m}}", "retry.backoff.base: expected at most max of the same backoff, got 1m"),
        ("queues: {q: {retry: {backoff: {max: 1ms}}}}", "queues.q.retry.backoff.base: expected at most max"),
        ("handlers: {h: {backoff: {base: 1h}}}", "handlers.h.backoff.base: expected at most max"),
        ("handlers: {h: {max_retries: ~}}", "handlers.h.max_retries: expected a whole number from 0 to 1000, got ~"),
        ("dlq: {sinks: file}", "dlq.sinks: expected a list, got file"),
        ("dlq: {sinks: [file]}", "dlq.sinks[0]: expected a mapping with type, name, got file"),
        ("dlq: {sinks: [{path: x}]}", "dlq.sinks[0].type: missing; expected the type of a sink, such as file"),
        ("dlq: {sinks: [{type: file}, {type: file}]}", "dlq.sinks[1]: a second sink named file beside dlq.sinks[0]"),
        ("store: jobs.db", "store: expected a URL such as sqlite:///jobs.db"),
        ("store: sqlite://jobs.db", "store: expected sqlite:///relative/file.db or sqlite:////absolute/file.db"),
        ("store: sqlite:///jobs.db?synchronous=normal", "store: expected no options in the URL of a file; write synchronous beside it"),
        ("store: 5", "store: expected text; YAML reads this as a number: quote it, got 5"),
        ("store: {url: }", "store: expected either url or type"),
        ("store: {url: 'memory://', type: x}", "store: expected either url or type, not both"),
        ("store: {url: sqlite:///a.db, synchronous: off}", "store.synchronous: expected full or normal"),
        ("plugins: plugins", "plugins: expected a mapping with paths, import_timeout, allow_writable_by_others, got plugins"),
        ("log: {format: xml}", "log.format: expected text or json, got xml"),
        ("limits: {payload: 0MB}", "limits.payload: expected a size"),
        ("workers: {heartbeat: 2s, heartbeat_timeout: 3s}", "workers.heartbeat: expected at most half of workers.heartbeat_timeout, got 2s"),
        ("lease: {ttl: 1s}", "lease.ttl: expected at least twice workers.heartbeat, got 1s"),
        ("handlers: {h: {heartbeat: 16s, heartbeat_timeout: none}}", "handlers.h.heartbeat: expected at most half of lease"),
        ("handlers: {h: {heartbeat_timeout: 1s}}", "handlers.h.heartbeat_timeout: expected at least twice its heartbeat"),
    ],
)  # fmt: skip
def test_wrong_values_say_what_was_expected(errors: Any, text: str, expected: str) -> None:
    (error,) = errors(text)
    assert expected in error


def test_a_contradiction_is_not_told_of_a_value_that_is_wrong_already(errors: Any) -> None:
    assert len(errors("workers: {heartbeat: 20, heartbeat_timeout: 1s}")) == 1


def test_the_rest_of_a_broken_config_is_there_for_more_checks(write: Any) -> None:
    with pytest.raises(ConfigError) as raised:
        load(write("workers: {count: 0, timeout: 7s}\nhandlers: {mail: {queue: q}}"), {})
    assert raised.value.settings is not None
    assert raised.value.settings.workers.timeout == 7.0
    assert "mail" in raised.value.settings.handlers


# --- traps of YAML


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
def test_traps(errors: Any, text: str | bytes, expected: str) -> None:
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


# --- variables


def test_variables_are_typed_as_yaml_would(write: Any) -> None:
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
        ("workers: {count: ${N}}", 'inside [ ] or { } write "${NAME}" in quotes'),
    ],
)
def test_variables_that_are_not_there(errors: Any, text: str, expected: str) -> None:
    assert expected in errors(text)[0]


@pytest.mark.parametrize("secret", ["s3cret", "0755", "1:30", "2024-01-01", "12", "yes", "!!x", "\udcff"])
def test_the_value_of_a_variable_is_in_no_message(errors: Any, secret: str) -> None:
    text = "workers:\n  count: ${S}x\n  timeout: ${S}\nlog:\n  level: ${S}\nstore: x:${S}\nlease:\n  ttl: '${S}'\n"
    found = errors(text, {"S": secret})
    assert len(found) == 5
    assert all(secret not in error.replace("supervisor.yaml:12", "") or secret in _HINTS for error in found)


_HINTS = ("12", "yes")  # these stand in the hints themselves


# --- the schema


def test_known_keys_are_those_of_the_file() -> None:
    keys = known_keys()
    assert len(keys) == len(set(keys))
    assert {"store.url", "retry.backoff.base", "queues.<name>.retry.budget.per", "dlq.sinks[].type"} <= set(keys)
    assert not {"path", "base", "retry.curve", "dlq.sinks[].options", "dlq.sinks[].key"} & set(keys)
