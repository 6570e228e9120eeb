import errno
import fcntl
import os
import stat
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pytest

from supervisor.dead_letters import file_sink as module
from supervisor.dead_letters.file_sink import FileSink
from supervisor.dead_letters.opening import BuiltInSinks


@pytest.fixture
def sink(tmp_path: Path) -> Any:
    sink = FileSink(str(tmp_path / "dead.jsonl"))
    yield sink
    sink.close()


def dead_letter(id: int, **more: Any) -> dict[str, Any]:
    return {"id": id, "handler": "thumb", **more}


def ids(path: Path) -> list[int]:
    data = path.read_bytes()
    assert data.endswith(b"\n")
    return [orjson.loads(line)["id"] for line in data.splitlines()]


def failing_once(real: Callable[..., Any], error: OSError) -> Callable[..., Any]:
    errors = [error]

    def call(*arguments: Any) -> Any:
        if errors:
            raise errors.pop()
        return real(*arguments)

    return call


def test_the_file_sink_is_registered_like_the_sink_of_a_plugin() -> None:
    assert BuiltInSinks().supervisor_sinks()["file"] is FileSink


def test_dead_letters_are_lines_of_json_for_the_owner_only(sink: FileSink) -> None:
    assert sink.publish([dead_letter(1, payload={"a": "ü\n"}), dead_letter(2)]) == [1, 2]
    assert [orjson.loads(line) for line in sink.path.read_bytes().splitlines()] == [
        {"id": 1, "handler": "thumb", "payload": {"a": "ü\n"}},
        {"id": 2, "handler": "thumb"},
    ]
    assert stat.S_IMODE(sink.path.stat().st_mode) == 0o600


def test_dead_letters_are_appended_to_those_in_the_file(sink: FileSink) -> None:
    sink.publish([dead_letter(1)])
    sink.publish([dead_letter(2)])
    again = FileSink(str(sink.path))
    again.publish([dead_letter(3)])
    again.close()
    assert ids(sink.path) == [1, 2, 3]


def test_no_file_is_opened_before_the_first_dead_letter(sink: FileSink) -> None:
    assert not sink.path.exists()
    assert sink.publish([]) == []
    assert not sink.path.exists()


@pytest.mark.parametrize(
    ("path", "expected"),
    [("", "expected the path of a file"), (7, "got 7"), (".", "is a folder"), ("missing/dead.jsonl", "does not exist")],
)
def test_a_path_that_can_not_be_a_file_is_refused_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: Any, expected: str
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=r"^path: .*" + expected):
        FileSink(path)


def test_a_fifo_is_refused_instead_of_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(OSError, match="not a regular file"):
        FileSink(str(tmp_path / "fifo")).publish([dead_letter(1)])


def test_a_moved_file_stays_as_it_is_and_a_new_one_is_begun(sink: FileSink, tmp_path: Path) -> None:
    sink.publish([dead_letter(1)])
    sink.path.rename(tmp_path / "dead.jsonl.1")
    sink.publish([dead_letter(2)])
    assert ids(tmp_path / "dead.jsonl.1") == [1]
    assert ids(sink.path) == [2]


def test_a_deleted_file_is_begun_again(sink: FileSink) -> None:
    sink.publish([dead_letter(1)])
    sink.path.unlink()
    sink.publish([dead_letter(2)])
    assert ids(sink.path) == [2]


def test_a_file_that_is_moved_while_its_lock_is_waited_for_gets_nothing(
    sink: FileSink, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink.publish([dead_letter(1)])
    real = fcntl.flock

    def rotate_then_lock(fd: int, how: int) -> None:
        if how & fcntl.LOCK_EX and not (tmp_path / "rotated").exists():
            sink.path.rename(tmp_path / "rotated")
        real(fd, how)

    monkeypatch.setattr(module.fcntl, "flock", rotate_then_lock)
    sink.publish([dead_letter(2)])
    assert ids(tmp_path / "rotated") == [1]
    assert ids(sink.path) == [2]


def test_a_torn_last_line_does_not_spoil_the_next_dead_letter(sink: FileSink) -> None:
    sink.path.write_bytes(b'{"id":1}\n{"id":2,"han')
    sink.publish([dead_letter(3)])
    sink.publish([dead_letter(4)])
    torn = sink.path.read_bytes().splitlines()
    assert torn[1] == b'{"id":2,"han'
    assert [orjson.loads(line)["id"] for line in torn[2:]] == [3, 4]


@pytest.mark.parametrize("before", [b"", b'{"id":1}\n', b'{"id":1}\n{"to'])
def test_a_full_disk_leaves_no_half_line(sink: FileSink, monkeypatch: pytest.MonkeyPatch, before: bytes) -> None:
    sink.path.write_bytes(before)
    real = os.write
    written: list[int] = []

    def write(fd: int, data: Any) -> int:
        if written:
            raise OSError(errno.ENOSPC, "No space left on device")
        written.append(real(fd, bytes(data)[:5]))
        return 5

    with monkeypatch.context() as patch:
        patch.setattr(module.os, "write", write)
        with pytest.raises(OSError, match="No space left"):
            sink.publish([dead_letter(2)])
    assert written == [5]
    assert sink.path.read_bytes() == before
    sink.publish([dead_letter(3)])
    assert sink.path.read_bytes().splitlines()[-1] == b'{"id":3,"handler":"thumb"}'


def test_dead_letters_that_could_not_be_synced_are_not_accepted_and_are_written_once(
    sink: FileSink, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink.publish([dead_letter(1)])
    monkeypatch.setattr(module.os, "fsync", failing_once(os.fsync, OSError(errno.EIO, "Input/output error")))
    with pytest.raises(OSError, match="Input/output"):
        sink.publish([dead_letter(2)])
    sink.publish([dead_letter(2)])
    assert ids(sink.path) == [1, 2]


def test_the_file_and_its_folder_are_synced_before_ids_are_returned(
    sink: FileSink, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[str] = []
    real = os.fsync

    def fsync(fd: int) -> None:
        synced.append("folder" if stat.S_ISDIR(os.fstat(fd).st_mode) else f"file of {os.fstat(fd).st_size}")
        real(fd)

    monkeypatch.setattr(module.os, "fsync", fsync)
    sink.publish([dead_letter(1)])
    assert synced == ["folder", f"file of {sink.path.stat().st_size}"]
    sink.publish([dead_letter(2)])
    assert synced[2:] == [f"file of {sink.path.stat().st_size}"]


def test_a_dead_letter_that_is_not_json_does_not_hold_up_the_others(sink: FileSink) -> None:
    assert sink.publish([dead_letter(1), dead_letter(2, payload={1, 2}), dead_letter(3)]) == [1, 3]
    assert ids(sink.path) == [1, 3]
    with pytest.raises(TypeError, match="not JSON serializable"):
        sink.publish([dead_letter(2, payload={1, 2})])


def test_the_sink_waits_for_another_writer_of_the_same_file(sink: FileSink, monkeypatch: pytest.MonkeyPatch) -> None:
    sink.publish([dead_letter(1)])
    other = os.open(sink.path, os.O_WRONLY | os.O_APPEND)
    fcntl.flock(other, fcntl.LOCK_EX)
    os.write(other, b'{"id":2,')
    waits = threading.Event()
    real = fcntl.flock

    def flock(fd: int, how: int) -> None:
        try:
            real(fd, how)
        except BlockingIOError:
            waits.set()
            raise

    monkeypatch.setattr(module.fcntl, "flock", flock)
    publishing = threading.Thread(target=sink.publish, args=([dead_letter(3)],))
    publishing.start()
    assert waits.wait(10)
    os.write(other, b'"handler":"thumb"}\n')
    os.close(other)
    publishing.join(10)
    assert not publishing.is_alive()
    assert ids(sink.path) == [1, 2, 3]


def test_a_lock_that_is_never_released_is_not_waited_for_without_end(
    sink: FileSink, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink.path.touch(0o644)
    other = os.open(sink.path, os.O_RDONLY)
    fcntl.flock(other, fcntl.LOCK_EX)
    clock = [0.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(module.time, "sleep", lambda seconds: clock.__setitem__(0, clock[0] + seconds))
    with pytest.raises(TimeoutError, match=r"dead\.jsonl is locked by another process for more than 5s"):
        sink.publish([dead_letter(1)])
    os.close(other)
    assert sink.publish([dead_letter(1)]) == [1]
    assert ids(sink.path) == [1]


def test_the_lock_is_released_after_success_and_failure(sink: FileSink, monkeypatch: pytest.MonkeyPatch) -> None:
    def lock_is_free() -> None:
        fd = os.open(sink.path, os.O_WRONLY)
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.close(fd)

    sink.publish([dead_letter(1)])
    lock_is_free()
    monkeypatch.setattr(module.os, "write", failing_once(os.write, OSError(errno.ENOSPC, "full")))
    with pytest.raises(OSError, match="full"):
        sink.publish([dead_letter(2)])
    lock_is_free()


def test_close_may_be_called_before_anything_and_twice(sink: FileSink) -> None:
    sink.close()
    sink.publish([dead_letter(1)])
    sink.close()
    sink.close()


def test_only_files_of_this_user_and_of_root_are_written_to(sink: FileSink, monkeypatch: pytest.MonkeyPatch) -> None:
    """This user's own files belong to root as well where root runs the tests."""
    sink.path.touch()
    fstat, owner = os.fstat, [0]
    monkeypatch.setattr(module.os, "geteuid", lambda: 1000)
    monkeypatch.setattr(module.os, "fstat", lambda fd: os.stat_result([*fstat(fd)[:4], owner[0], *fstat(fd)[5:]]))
    for owner[0] in (0, 1000):
        sink.close()
        assert sink.publish([dead_letter(1)]) == [1]
    owner[0] = 1
    sink.close()
    with pytest.raises(OSError, match="is a file of user 1; expected a file of this user"):
        sink.publish([dead_letter(1)])
