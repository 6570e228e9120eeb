import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from select import poll
from types import ModuleType
from typing import Any

import pytest

from supervisor import Job, Reject
from supervisor.plugins.importer import forget, import_file
from tests.system.command import wait_for

PLUGIN = Path(__file__).parents[2] / "plugins" / "shell.py"


@pytest.fixture
def plugin() -> Iterator[ModuleType]:
    yield import_file(PLUGIN)
    forget(PLUGIN.parent)


@pytest.fixture
def shell(plugin: ModuleType) -> Callable[..., Any]:
    return lambda **payload: plugin.shell(Job(1, "shell", payload))


def python(code: str) -> list[str]:
    return [sys.executable, "-c", code]


def test_shell_returns_the_output_of_the_program(shell: Any) -> None:
    assert shell(argv=["echo", "grün"]) == {"exit_code": 0, "stdout": "grün\n"}


def test_nothing_in_a_payload_is_a_command(shell: Any) -> None:
    assert shell(argv=["echo", "$(id)", ";", "*"])["stdout"] == "$(id) ; *\n"
    with pytest.raises(Reject, match="argv: expected a list of texts"):
        shell(argv="echo hello")


def test_the_program_gets_environment_folder_and_input(
    shell: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FROM_WORKER", "kept")
    code = "import os, sys; print(os.environ['ADDED'], os.environ['FROM_WORKER'], os.getcwd(), sys.stdin.read())"
    answer = shell(argv=python(code), env={"ADDED": "new"}, cwd=str(tmp_path), input="typed")
    assert answer["stdout"] == f"new kept {tmp_path} typed\n"


def test_input_that_is_not_read_is_no_error(shell: Any) -> None:
    assert shell(argv=["true"], input="x" * 1_000_000)["exit_code"] == 0


def test_large_output_on_both_streams_blocks_nothing_and_its_tail_is_kept(shell: Any, plugin: ModuleType) -> None:
    code = "import sys; [(sys.stdout.write('o' * 99_999 + '!'), sys.stderr.write('e' * 100_000)) for _ in range(10)]"
    assert shell(argv=python(code))["stdout"] == ("o" * 99_999 + "!")[-plugin.TAIL :]


def test_a_failure_has_the_status_and_the_standard_error(shell: Any, plugin: ModuleType) -> None:
    with pytest.raises(plugin.CommandFailed, match=r"^sh: exit code 3: no such picture$"):
        shell(argv=["sh", "-c", "echo no such picture >&2; exit 3"])
    with pytest.raises(plugin.CommandFailed, match=r"^sh: killed by SIGKILL: "):
        shell(argv=["sh", "-c", "kill -9 $$"])
    with pytest.raises(plugin.CommandFailed, match=r"^sh: killed by signal 40: no such picture$"):
        shell(argv=["sh", "-c", "echo no such picture >&2; kill -40 $$"])


def test_a_status_that_no_retry_can_change_is_rejected(shell: Any, plugin: ModuleType) -> None:
    with pytest.raises(Reject, match="exit code 65"):
        shell(argv=["sh", "-c", "exit 65"], reject_codes=[64, 65])
    with pytest.raises(plugin.CommandFailed, match="exit code 66"):
        shell(argv=["sh", "-c", "exit 66"], reject_codes=[64, 65])


def test_a_missing_program_is_left_to_a_retry(shell: Any) -> None:
    with pytest.raises(FileNotFoundError):
        shell(argv=["no-such-program-anywhere"])


def test_the_program_stays_in_the_group_that_a_timeout_kills(shell: Any) -> None:
    code = "import os; print(os.getpgid(0))"
    assert int(shell(argv=python(code))["stdout"]) == os.getpgid(0)


@pytest.mark.parametrize(
    ("payload", "expected"),
    [
        ({}, "argv: expected"),
        ({"argv": []}, "argv: expected"),
        ({"argv": ["echo", 1]}, "argv: expected"),
        ({"argv": ["echo", "a\x00b"]}, "argv: expected"),
        ({"argv": ["true"], "env": {"A": 1}}, "env: expected"),
        ({"argv": ["true"], "env": ["A=1"]}, "env: expected"),
        ({"argv": ["true"], "cwd": 1}, "cwd: expected text"),
        ({"argv": ["true"], "input": {"a": 1}}, "input: expected text"),
        ({"argv": ["true"], "reject_codes": 1}, "reject_codes: expected"),
    ],
)
def test_a_payload_that_can_not_be_run_is_rejected(shell: Any, payload: dict[str, Any], expected: str) -> None:
    with pytest.raises(Reject, match=expected):
        shell(**payload)


@pytest.mark.parametrize("text", ["", "x" * 1_000_000])
def test_a_program_that_is_left_in_the_background_does_not_hold_the_job(shell: Any, tmp_path: Path, text: str) -> None:
    (tmp_path / "end").touch()
    script = f"(while [ -e {tmp_path}/end ]; do sleep 0.05; done; touch {tmp_path}/ended) <&0 & echo done; echo odd >&2"
    try:
        assert shell(argv=["sh", "-c", script], input=text) == {"exit_code": 0, "stdout": "done\n"}
        assert not (tmp_path / "ended").exists()
    finally:
        (tmp_path / "end").unlink()
    wait_for((tmp_path / "ended").exists)


def test_a_program_may_close_its_output_long_before_it_ends(shell: Any) -> None:
    code = "import os, time; os.write(1, b'out'); os.close(1); os.close(2); time.sleep(0.2); os._exit(0)"
    assert shell(argv=python(code))["stdout"] == "out"


def test_output_that_is_closed_costs_no_processor_time_until_the_program_ends(
    shell: Any, plugin: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    polls: list[object] = []

    class Counted:
        def __init__(self) -> None:
            self._really = poll()
            self.register, self.unregister = self._really.register, self._really.unregister

        def poll(self) -> list[tuple[int, int]]:
            polls.append(self)
            return self._really.poll()

    monkeypatch.setattr(plugin, "poll", Counted)
    shell(argv=python("import os, time; os.close(1); os.close(2); time.sleep(0.1); os._exit(0)"))
    assert len(polls) <= 3, "one for each pipe that ends, and one for the program"


def test_all_that_the_program_has_written_when_it_ends_is_read(shell: Any, plugin: ModuleType) -> None:
    code = f"import os; os.write(1, b'a' * 60_000); os.write(1, b'b' * {2 * plugin.TAIL})"
    for _ in range(20):
        assert shell(argv=python(code))["stdout"] == "b" * plugin.TAIL
