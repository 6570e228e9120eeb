"""The arithmetic of the tables of the benchmarks, and the comparison of contenders."""

from __future__ import annotations

import json
from functools import partial

import pytest

from tests.benchmarks.__main__ import main
from tests.benchmarks.contender import deployed
from tests.benchmarks.limits_compared import most_at_once
from tests.benchmarks.peers.base import Peer
from tests.benchmarks.run import NotMeasured, Run
from tests.benchmarks.stamps import percentile
from tests.benchmarks.table import Measure, Table

RATE = Measure("drain", "jobs/s", "more")
WAIT = Measure("wait", "ms", "less")


def table() -> Table:
    table = Table("drain", "no-op jobs", [RATE, WAIT])
    for ours, theirs in ((100.0, 50.0), (400.0, 100.0), (90.0, 30.0)):
        table.add("supervisor", {"drain": ours, "wait": 2.0})
        table.add("other", {"drain": theirs})
    return table


def test_a_figure_has_the_median_and_the_spread_of_its_rounds() -> None:
    ours = table().figures()[0]
    assert (ours.contender, ours.median, ours.spread, ours.ratio) == ("supervisor", 100.0, (90.0, 400.0), None)


def test_the_ratio_is_the_median_of_the_ratios_of_the_rounds() -> None:
    assert table().figures()[1].ratio == 3.0  # the median of 2, 4 and 3; the ratio of the medians is 2


def test_the_ratio_of_a_measure_that_should_be_small_is_inverted() -> None:
    assert WAIT.ratio(ours=2.0, other=6.0) == 3.0
    assert RATE.ratio(ours=2.0, other=6.0) == pytest.approx(1 / 3)
    assert WAIT.ratio(ours=0.0, other=6.0) == float("inf")


def test_a_contender_with_fewer_rounds_is_compared_in_those() -> None:
    some = Table("drain", "", [RATE])
    for value in (100.0, 200.0, 300.0):
        some.add("supervisor", {"drain": value})
    some.add("other", {"drain": 50.0})
    assert some.figures()[1].ratio == 2.0


def test_a_measure_that_a_contender_lacks_is_left_out() -> None:
    assert [(figure.contender, figure.measure.name) for figure in table().figures()] == [
        ("supervisor", "drain"),
        ("other", "drain"),
        ("supervisor", "wait"),
    ]


def test_a_value_of_an_unknown_measure_is_refused() -> None:
    with pytest.raises(ValueError, match="not measured in drain: speed"):
        table().add("other", {"speed": 1.0})


def test_text_markdown_and_json_have_the_same_content() -> None:
    full = table()
    full.leave_out("third", "not installed:\n third")
    full.note("a note")
    text, markdown, data = full.text(), full.markdown(), json.loads(json.dumps(full.json()))
    for output in (text, markdown):
        assert "100 jobs/s" in output and "90.0 - 400" in output and "3.00 x" in output and "a note" in output
    assert "third: not installed: third" in text
    assert "| third | not installed: third |" in markdown
    assert data["left_out"] == {"third": "not installed: third"}
    assert data["figures"][1] == {
        "contender": "other",
        "measure": "drain",
        "unit": "jobs/s",
        "better": "more",
        "values": [50.0, 100.0, 30.0],
        "median": 50.0,
        "ratio": 3.0,
    }


def test_contenders_are_measured_in_turn_and_a_failing_one_is_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    turns: list[str] = []

    def measured(name: str) -> dict[str, float]:
        turns.append(name)
        if name == "broken" and len(turns) > 3:
            raise NotMeasured("ran out")
        return {"drain": 1.0}

    run = Run(rounds=3)
    some = run.table("drain", "", [RATE])
    run.compare(some, {name: partial(measured, name) for name in ("supervisor", "broken", "other")})
    assert turns == ["supervisor", "broken", "other", "supervisor", "broken", "other", "supervisor", "other"]
    assert some.left_out == {"broken": "ran out"}
    assert "broken: ran out" in capsys.readouterr().out
    assert not run.failed


def test_a_run_without_ours_has_failed() -> None:
    def fails() -> dict[str, float]:
        raise RuntimeError("no")

    run = Run(rounds=1)
    run.compare(run.table("drain", "", [RATE]), {"supervisor": fails})
    assert run.failed and run.tables[0].left_out == {"supervisor": "RuntimeError: no"}


def test_a_peer_that_is_not_installed_is_not_measured() -> None:
    peer = Peer("x", "X", "x", ("surely-not-installed",), None, 1, "", lambda deployment: [])
    with pytest.raises(NotMeasured, match="not installed: surely-not-installed"), deployed(peer):
        pass


def test_a_percentile_is_one_of_the_values() -> None:
    values = [float(n) for n in range(100, 0, -1)]
    assert (percentile(values, 0.5), percentile(values, 0.99), percentile([7.0], 0.99)) == (51.0, 100.0, 7.0)


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (["drian"], "no benchmark drian; expected some of drain,"),
        (["drain", "--peers", "celry"], "no peer celry; expected some of huey-sqlite,"),
    ],
)
def test_an_unknown_row_or_peer_is_named(arguments: list[str], error: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 2
    assert error in capsys.readouterr().err


def test_jobs_run_from_their_start_to_their_end_or_until_they_are_killed() -> None:
    lines = [("+a", 1, 7), ("+b", 2, 8), ("-a", 3, 7), ("+c", 4, 9), ("+d", 6, 9)]
    assert most_at_once(lines[:4]) == 2
    assert most_at_once(lines) == 3
    assert most_at_once(lines, killed_at=5, victims={8}) == 2
