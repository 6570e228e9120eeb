"""The descriptors that workers may take, by the limits of the process."""

from __future__ import annotations

import resource

import pytest

from supervisor.workers.system import descriptors


@pytest.fixture
def limits(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The soft and the hard limit of this process."""
    of_process = [1024, 4096]
    monkeypatch.setattr(resource, "getrlimit", lambda kind: tuple(of_process))
    return of_process


@pytest.mark.parametrize(("soft", "end"), [(1024, 992), (256, 224), (80, 70)])
def test_some_descriptors_are_kept_free_from_the_channels_of_workers(limits: list[int], soft: int, end: int) -> None:
    limits[0] = soft
    assert descriptors.end_of_channels() == end


@pytest.mark.parametrize(
    ("workers", "shortage"),
    [(199, None), (200, "be replaced at once in a reload"), (399, "be replaced"), (400, "start")],
)
def test_the_hard_limit_has_to_allow_twice_the_workers(limits: list[int], workers: int, shortage: str | None) -> None:
    found = descriptors.shortage(workers)
    if shortage is None:
        assert found is None
    else:
        assert found is not None and f"{workers} workers can't all {shortage}" in found
