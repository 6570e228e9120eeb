"""One job passes through few files, from `enqueue` to its dead letter."""

from __future__ import annotations

from tests.house import job_path


def test_one_job_passes_through_few_files() -> None:
    entered = job_path.files_entered()
    assert len(entered) <= job_path.MAX_FILES, entered
