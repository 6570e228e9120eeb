"""The package keeps the shape that it was given: no limit is passed, none of the words is back."""

from __future__ import annotations

from tests.house import shape, words


def test_all_that_is_measured_is_found() -> None:
    assert {"supervisor.engine.watchdog", "supervisor.cli.app"} <= shape.sources().keys()
    assert {"README.md", "supervisor/engine/watchdog.py"} <= {str(it.relative_to(words.ROOT)) for it in words.texts()}


def test_no_file_is_longer_than_its_limit() -> None:
    assert [str(each) for each in shape.files() if each.size > shape.MAX_FILE_LINES] == []


def test_no_function_is_longer_than_its_limit() -> None:
    assert [str(each) for each in shape.functions() if each.size > shape.MAX_FUNCTION_LINES] == []


def test_no_class_has_more_methods_than_its_limit() -> None:
    assert [str(each) for each in shape.classes() if each.size > shape.MAX_METHODS] == []


def test_no_modules_import_each_other_in_a_circle() -> None:
    assert shape.circles() == []


def test_none_of_the_words_is_used() -> None:
    assert [str(finding) for finding in words.findings()] == []
