"""What docs/serve.md says of the server is what was measured."""

import json
import sys

from conftest import REPO

sys.path.insert(0, str(REPO / "benchmarks"))

import serving
from pages import filled


def test_the_page_shows_the_record_and_everything_held():
    found = json.loads(serving.RESULTS.read_text(encoding="utf-8"))
    page = serving.PAGE.read_text(encoding="utf-8")
    assert serving.holds(found)
    assert filled(page, serving.tables(found)) == page
