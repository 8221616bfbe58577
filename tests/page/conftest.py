"""`make test-page`: the page in a real headless Chromium, over real services."""
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "e2e"))

import pytest

import browser as chromium


@pytest.fixture(scope="session")
def browser(tmp_path_factory):
    if chromium.PROGRAM is None:
        pytest.exit("make test-page needs chromium: apt-get install chromium libjs-chart.js", 1)
    with chromium.Browser(tmp_path_factory.mktemp("chromium")) as made:
        yield made
