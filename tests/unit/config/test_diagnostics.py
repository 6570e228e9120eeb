from __future__ import annotations

from typing import Any

import pytest

from supervisor.config.loading import load
from supervisor.errors import ConfigError


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
def test_an_unknown_key_is_refused_at_every_level(errors: Any, text: str, key: str, hint: str) -> None:
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
        ("workers: {count: 0}", "workers.count: expected a whole number from 1 to 1000, or a mapping with min and max, got 0"),
        ("workers: {count: two}", "workers.count: expected a whole number from 1 to 1000, or a mapping with min and max, got two"),
        ("workers: {count: 1.5}", "workers.count: expected a whole number"),
        ("workers: {count: yes}", "workers.count: expected a whole number from 1 to 1000, or a mapping with min and max, got yes"),
        ("workers: {count: }", "workers.count: expected a whole number from 1 to 1000, or a mapping with min and max, got nothing"),
        ("workers: {timeout: 0s}", "workers.timeout: expected a duration"),
        ("workers: {timeout: -1s}", "workers.timeout: expected a duration"),
        ("workers: {timeout: .nan}", "workers.timeout: expected a duration"),
        ("workers: {timeout: .inf}", "workers.timeout: expected a duration"),
        ("workers: {timeout: null}", "workers.timeout: expected a duration"),
        ("workers: {heartbeat: none}", "workers.heartbeat: expected a duration"),
        ("queues: {' mail': {}}", "queues. mail: expected a name of 1 to 255 printable characters without spaces"),
        (f"queues: {{{'q' * 255}q: {{}}}}", "expected a name of 1 to 255 printable characters"),
        ("handlers: {'': {}}", "expected a name of 1 to 255 printable characters"),
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
        ("queues: {q: {limit: {running: 0}}}", "queues.q.limit.running: expected a whole number from 1 to 1000000, or none"),
        *(
            (
                f"handlers: {{h: {{limit: {{rate: {rate}}}}}}}",
                "handlers.h.limit.rate: expected a number from 1 to 1000000 and a duration, such as 100/1m, or none",
            )
            for rate in ("100", "0/1m", "5/0s", "1.5/1m", "5/m", "5/1m/1m", "'5 per 1m'", "[5, 1m]")
        ),
        ("queues: {q: {limit: {rates: 5/1m}}}", "queues.q.limit.rates: unknown key, did you mean 'rate'?"),
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
def test_an_error_names_the_key_and_the_expected_value(errors: Any, text: str, expected: str) -> None:
    (error,) = errors(text)
    assert expected in error


def test_an_error_has_the_settings_that_are_right(write: Any) -> None:
    with pytest.raises(ConfigError) as raised:
        load(write("workers: {count: 0, timeout: 7s}\nhandlers: {mail: {queue: q}}"), {})
    assert raised.value.settings is not None
    assert raised.value.settings.workers.timeout == 7.0
    assert "mail" in raised.value.settings.handlers
