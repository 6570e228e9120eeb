"""What the README and etc/ say exists, and what exists is in them."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import Any

import click
import pytest

from supervisor.cli.app import root
from supervisor.cli.enqueue import read_file
from supervisor.config.contradictions import STORE_OPTIONS
from supervisor.config.loading import known_keys, load
from supervisor.config.settings import Settings
from supervisor.config.yaml_reader import read_yaml
from supervisor.hooks import COMMAND_HOOKS, PARENT_HOOKS, WORKER_HOOKS
from supervisor.jobs import Backoff
from supervisor.plugins.discovery import discover
from supervisor.plugins.manager import PluginManager
from supervisor.plugins.validation import HOOKS
from supervisor.retry import ceiling
from supervisor.runtime.supervisor import ExitCode
from supervisor.stores.opening import Opener
from supervisor.stores.postgres.functions import FUNCTIONS
from supervisor.stores.postgres.store import PostgresStore
from supervisor.text.units import format_duration

ROOT = Path(__file__).parents[2]
STATE = Path("/var/lib/supervisor")
README = (ROOT / "README.md").read_text()
OPTIONS_OF_SQLITE = {"store.synchronous"}
OPTIONS_OF_STORES = {f"store.{option}" for options in STORE_OPTIONS.values() for option in options}


def section(title: str) -> str:
    found = re.search(rf"^## {title}\n(.*?)(?=^## |\Z)", README, re.S | re.M)
    assert found, title
    return found[1]


def first_column(text: str) -> list[str]:
    """The first code span of each row of the tables in the text."""
    return re.findall(r"^\| `([^`]+)`", text, re.M)


# --- the README


def commands_of(group: click.Group, prefix: str) -> dict[str, click.Command]:
    found: dict[str, click.Command] = {}
    with click.Context(group) as context:
        for name in group.list_commands(context):
            command = group.get_command(context, name)
            assert command is not None
            path = f"{prefix} {name}"
            found |= commands_of(command, path) if isinstance(command, click.Group) else {path: command}
    return found


COMMANDS = commands_of(root, "supervisor")


def test_every_command_is_in_the_readme_and_the_reverse() -> None:
    assert sorted(first_column(section("Command line"))) == sorted(COMMANDS)


def test_every_command_takes_a_config_and_explains_itself() -> None:
    for path, command in COMMANDS.items():
        assert any("-c" in parameter.opts for parameter in command.params), path
        assert command.help, path


def test_options_in_the_readme_exist() -> None:
    known = {option for command in COMMANDS.values() for parameter in command.params for option in parameter.opts}
    prose = re.sub(r"```.*?```", "", README, flags=re.S)
    named = {option for span in re.findall(r"`([^`]+)`", prose) for option in re.findall(r"(?<!\S)--[a-z-]+", span)}
    assert named <= known
    assert named >= {"--drain", "--horizon", "--file", "--json", "--force", "--all"}


def test_the_hook_for_stores_says_how_openers_are_called() -> None:
    _, settings, *others = inspect.signature(Opener.__call__).parameters
    call = f"opener({settings}, {', '.join(f'{name}=...' for name in others)})"
    assert call in (HOOKS["supervisor_stores"].__doc__ or "")


def test_every_hook_is_in_the_readme_with_its_arguments() -> None:
    written = first_column(section("Plugins and hooks"))
    arguments = {
        name: ", ".join(spec.__code__.co_varnames[1 : spec.__code__.co_argcount]) for name, spec in HOOKS.items()
    }
    assert sorted(written) == sorted(f"{name}({takes})" for name, takes in arguments.items())
    assert set(HOOKS) == WORKER_HOOKS | PARENT_HOOKS | COMMAND_HOOKS


def test_every_config_key_is_in_the_readme_and_the_reverse() -> None:
    written = first_column(section("Configuration"))
    assert len(written) == len(set(written))
    known = {*known_keys(), *OPTIONS_OF_STORES}
    for key in known:
        assert key in written or any(key.startswith(f"{prefix}.") for prefix in written), key
    for key in written:
        assert key in known or any(one.startswith(f"{key}.") for one in known), key


def test_every_exit_code_is_in_the_readme() -> None:
    codes = re.findall(r"^\| (\d) \|", section("Signals and exit codes"), re.M)
    assert [int(code) for code in codes] == sorted(ExitCode)


def test_the_pieces_of_python_compile_and_the_plugins_load(tmp_path: Path) -> None:
    blocks = re.findall(r"```python\n(.*?)```", README, re.S)
    assert len(blocks) == 5
    for block in blocks:
        compile(block, "README.md", "exec")
    plugins = [block for block in blocks if "@h" in block and "requests" not in block]
    for number, block in enumerate(plugins):
        (tmp_path / f"p{number}.py").write_text(block)
    manager = PluginManager()
    assert [report.error for report in manager.load_all(discover(["."], tmp_path))] == [None, None]
    assert list(manager.handlers) == ["thumbnail"]
    assert list(manager.merged("supervisor_sinks")) == ["pager"]


def test_links_and_named_files_exist() -> None:
    named = re.findall(r"\]\(([^)#]+)\)", README) + re.findall(
        r"(?<![\w/.])(?:plugins|etc|supervisor)/[\w./-]+\w", README
    )
    listed = re.findall(r"`(\w+\.py)`", section("Plugins and hooks"))
    for path in [*named, *(f"plugins/{name}" for name in listed)]:
        assert (ROOT / path).exists(), path
    assert sorted(listed) == sorted(path.name for path in (ROOT / "plugins").glob("*.py"))


def test_the_script_that_has_to_pass_runs_the_readmes_test_command() -> None:
    demo, test = re.findall(r"```sh\n([^\n]*)\n```", README)
    assert f"\n{test}\n" in (ROOT / ".ci/run").read_text()
    assert "pytest" in test
    assert demo.endswith("supervisor run -c etc/samples.yaml --drain")


# --- etc/supervisor.yaml


def uncommented() -> str:
    """The file with its examples (lines behind a bare #) in place of the defaults that they stand beside."""
    lines: list[str | None] = []
    places: dict[tuple[str, str], int] = {}
    top = ""
    for line in (ROOT / "etc/supervisor.yaml").read_text().splitlines():
        example = re.match(r"(\s*)#(?! \S)(.*)", line)
        text = example[1] + example[2] if example else line
        key = re.match(r"(\s*)(\w+):", text)
        if key:
            top = top if key[1] else key[2]
            place = (top if key[1] else "", key[1] + key[2])
            if example and place in places:
                lines[places[place]] = None
            if not example:
                places[place] = len(lines)
        lines.append(text)
    return "\n".join(line for line in lines if line is not None)


def flattened(value: Any, prefix: str = "") -> set[str]:
    if isinstance(value, list):
        return {key for part in value for key in flattened(part, f"{prefix}[]")} if prefix == "dlq.sinks" else {prefix}
    if not isinstance(value, dict):
        return {prefix}
    named = prefix in ("queues", "handlers")
    return {
        found
        for key, part in value.items()
        for found in flattened(part, f"{prefix}.{'<name>' if named else key}" if prefix else key)
    }


def test_the_explained_config_is_all_defaults() -> None:
    explained, defaults = load(ROOT / "etc/supervisor.yaml", {}), Settings()
    for name in Settings.known:
        if name not in ("plugins", "store"):
            assert getattr(explained, name) == getattr(defaults, name), name
    assert explained.store.url == defaults.store.url
    assert explained.plugins.import_timeout == defaults.plugins.import_timeout


def test_the_explained_config_has_every_key_and_no_other() -> None:
    document = read_yaml(uncommented().encode(), {})
    assert document.problems == []
    assert flattened(document.value) - {"dlq.sinks[].path"} == {*known_keys(), *OPTIONS_OF_SQLITE}


def test_the_examples_in_the_explained_config_are_valid(tmp_path: Path) -> None:
    path = tmp_path / "all.yaml"
    path.write_text(re.sub(r"^ +type: mystore.*$", "", uncommented(), flags=re.M))
    settings = load(path, {})
    assert settings.retry_for("reports").budget is not None
    assert len(settings.dlq.sinks) == 2


def test_every_line_of_the_explained_config_says_something() -> None:
    for line in (ROOT / "etc/supervisor.yaml").read_text().splitlines():
        leaf = re.match(r"\s+\w+: [^{[\n]", line)
        assert leaf is None or "# " in line, line


# --- the rest of etc/


def test_the_config_for_postgresql_is_all_defaults_but_for_where_it_is() -> None:
    settings, defaults = load(ROOT / "etc/postgres.yaml", {}), Settings()
    assert settings.store.scheme == "postgresql"
    assert {f"store.{option}" for option in settings.store.options} == OPTIONS_OF_STORES - OPTIONS_OF_SQLITE
    defaults_of_store = inspect.signature(PostgresStore).parameters
    for option, value in settings.store.options.items():
        assert value == defaults_of_store[option].default, option
    assert settings.lease == defaults.lease
    assert all(report.error is None for report in _loaded(settings).reports)


def test_the_sql_of_the_readme_is_the_function_that_there_is() -> None:
    (function,) = (it for it in FUNCTIONS if "function {s}.enqueue(" in it)
    options = re.findall(r"(\w+) \w+ default", function)
    prose = section("PostgreSQL")
    for option in options:
        assert f"`{option}`" in prose or option == "payload", option
    granted = re.search(r"grant execute on function (.*) to app;", prose)
    assert granted and granted[1] == "supervisor.enqueue, supervisor.put"


@pytest.mark.parametrize(
    ("name", "retries", "backoff"),
    [
        ("conservative", 5, Backoff(1.0, 2.0, 60.0, "full")),
        ("aggressive", 2, Backoff(0.1, 4.0, 5.0, "full")),
        ("one-shot", 0, Backoff()),
    ],
)
def test_presets(name: str, retries: int, backoff: Backoff) -> None:
    settings = load(ROOT / f"etc/{name}.yaml", {})
    assert (settings.retry.max_retries, settings.retry.backoff.curve) == (retries, backoff)
    assert all(report.error is None for report in _loaded(settings).reports)


@pytest.mark.parametrize("name", ["conservative", "aggressive"])
def test_presets_come_with_their_true_delays(name: str) -> None:
    file = ROOT / f"etc/{name}.yaml"
    retry = load(file, {}).retry
    *others, last = [format_duration(ceiling(retry.backoff.curve, n)) for n in range(1, retry.max_retries + 1)]
    told = f"{retry.max_retries} retries, after at most {', '.join(others)} and {last}"
    assert f"{told}." in file.read_text()
    assert f"`{name}.yaml` ({told})" in section("Retries and the two tiers")


def test_the_sample_jobs_have_their_handlers() -> None:
    settings = load(ROOT / "etc/samples.yaml", {})
    manager = _loaded(settings)
    assert all(report.error is None for report in manager.reports)
    rows = read_file(str(ROOT / "etc/samples.jsonl"), settings)
    assert (
        {row.handler for row in rows} == set(manager.handlers) == {"checksum", "flaky", "hang", "crash", "always_fails"}
    )


def test_the_service_outwaits_the_drain() -> None:
    unit = (ROOT / "etc/supervisor.service").read_text()
    stop = re.search(r"^TimeoutStopSec=(\d+)s$", unit, re.M)
    assert stop
    assert int(stop[1]) > Settings().shutdown.grace
    assert f"sqlite:///{STATE}/jobs.db." in unit and f"\nStateDirectory={STATE.name}\n" in unit
    for line in ("Type=notify", "KillMode=mixed", "WatchdogSec=30s", "OOMPolicy=continue"):
        assert f"\n{line}\n" in unit


def _loaded(settings: Settings) -> PluginManager:
    manager = PluginManager()
    manager.load_all(discover(settings.plugins.paths, settings.base))
    return manager
