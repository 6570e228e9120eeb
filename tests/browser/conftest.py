from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.browser.browser import Visitor, chromium_path, running_chromium
from tests.browser.site import TOKEN, Site, served

Visit = Callable[..., Visitor]


@pytest.fixture(scope="package")
def chromium() -> Iterator[Any]:
    """The browser of all tests here. It ends with them: Playwright keeps an event loop in this thread, which other tests don't expect."""
    path = chromium_path()
    if path is None:
        missing = "no Chromium: apt-get install --no-install-recommends chromium, or set CHROMIUM to its path"
        assert not os.environ.get("CI"), missing
        pytest.skip(missing)
    with running_chromium(path) as browser:
        yield browser


@pytest.fixture(scope="package")
def site(tmp_path_factory: pytest.TempPathFactory, chromium: Any) -> Iterator[Site]:
    """A supervisor without a token."""
    with served(tmp_path_factory.mktemp("site")) as site:
        yield site


@pytest.fixture(scope="package")
def guarded(tmp_path_factory: pytest.TempPathFactory, chromium: Any) -> Iterator[Site]:
    """A supervisor with a token."""
    with served(tmp_path_factory.mktemp("guarded"), http=f'{{listen: "127.0.0.1:0", token: "{TOKEN}"}}') as site:
        yield site


@pytest.fixture
def visit(chromium: Any) -> Iterator[Visit]:
    """Open a browser window for a site; options are those of `Browser.new_context`. At its end, nothing may have gone wrong on its pages."""
    visitors: list[Visitor] = []

    def open_window(site: Site, **options: Any) -> Visitor:
        visitors.append(Visitor(chromium, site.address, **options))
        return visitors[-1]

    yield open_window
    for visitor in visitors:
        visitor.close()
