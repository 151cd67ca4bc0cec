"""The review page in a real browser, by keyboard alone: slider, ten reviews, export, and the next fit."""

import csv
import math
import shutil

import pytest
from served import NAMES, app_of, in_a_thread, noisy_bags, small_model

from mipl.cli import main

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium on this machine"),
]
BAGS = noisy_bags(120, 160)
WAIT = 120_000  # milliseconds; long, for a busy machine


@pytest.fixture(scope="module")
def browser():
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


def opened(browser, address):
    """Return the page, and lists of its requests and errors."""
    page = browser.new_page(viewport={"width": 1280, "height": 900}, accept_downloads=True)
    page.set_default_timeout(WAIT)
    requests, errors = [], []
    page.on("request", lambda request: requests.append(request.url))
    page.on("console", lambda message: errors.append(message.text) if message.type == "error" else None)
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.goto(f"http://{address}/")
    page.wait_for_selector("#instances figure")
    return page, requests, errors


def shows(page, selector, text):
    playwright.expect(page.locator(selector)).to_have_text(text, timeout=WAIT)


def rows(page, count, cell=""):
    playwright.expect(page.locator(f"#bags tr {cell}".strip())).to_have_count(count, timeout=WAIT)


def percent(share):
    """Round half up, as the page does; Python rounds half to even."""
    return f"{math.floor(1000 * share + 0.5 + 1e-9) / 10:.1f}%"


def figures(threshold):
    """Return the expected texts of the page at a threshold, and the number of reported bags."""
    p = small_model().predict_proba(BAGS)
    confidence, correct = p.max(axis=1), p.argmax(axis=1) == BAGS.labels
    above = confidence >= threshold
    return {
        "#coverage": percent(above.mean()),
        "#expected": percent((1 - confidence[above]).mean()),
        "#measured": percent(1 - correct[above].mean()),
    }, int(above.sum())


def label(page, key):
    page.locator("#bag[aria-busy=false]").wait_for()
    page.keyboard.press(key)


def test_review_export_and_fit_by_keyboard(browser, tmp_path):
    with in_a_thread(app_of(small_model(), BAGS, tmp_path / "r.sqlite")) as address:
        page, requests, errors = opened(browser, address)

        page.locator("#threshold").focus()
        page.keyboard.press("Home")
        for _ in range(5):  # 10% each
            page.keyboard.press("PageUp")
        shows(page, "#at", "50.0%")
        expected, reported = figures(0.5)
        assert 0 < reported < len(BAGS)
        for selector, text in expected.items():
            shows(page, selector, text)
        page.keyboard.press("+")
        shows(page, "#at", "51.0%")
        page.keyboard.press("-")
        shows(page, "#at", "50.0%")
        rows(page, reported, "td.report")

        for count in (len(BAGS) - reported, reported, len(BAGS)):  # for review, to report, all
            page.keyboard.press("F2")
            rows(page, count)

        page.evaluate("document.activeElement.blur()")
        for _ in BAGS:
            page.keyboard.press("ArrowUp")
        reviewed = page.locator("#bags td:first-child").all_inner_texts()[:10]
        shows(page, "#truth", "")  # hidden before the review
        held = []
        page.route("**/bags/*", lambda route: held.append(route))
        label(page, "1")
        page.keyboard.press("4")  # ignored: the bag is not loaded yet
        shows(page, "#progress", f"1 of {len(BAGS)} bags reviewed")
        for route in held:
            route.continue_()
        page.unroute("**/bags/*")
        for number in range(1, 10):
            label(page, str(1 + number % 4))
        shows(page, "#progress", f"10 of {len(BAGS)} bags reviewed")
        page.keyboard.press("Backspace")
        shows(page, "#progress", f"9 of {len(BAGS)} bags reviewed")
        label(page, "2")
        shows(page, "#progress", f"10 of {len(BAGS)} bags reviewed")

        with page.expect_download() as download:
            page.locator("#export").focus()
            page.keyboard.press("Enter")
        table = tmp_path / "reviews.csv"
        download.value.save_as(table)
        assert errors == []
        assert {url.split("/")[2] for url in requests if url.startswith("http")} == {address}
        page.close()
    exported = {row["bag_id"]: row["label"] for row in csv.DictReader(table.read_text().splitlines())}
    assert [exported[bag] for bag in reviewed] == [NAMES[number % 4] for number in range(10)]
    BAGS.save(tmp_path / "bags.npz")
    words = ["fit", tmp_path / "bags.npz", "--labels", table, "--out", tmp_path / "m", "--set", "epochs=1"]
    assert main([str(word) for word in words]) == 0


def test_a_narrow_screen_and_a_token(browser, tmp_path):
    app = app_of(small_model(), BAGS, tmp_path / "r.sqlite", token="a-long-enough-token")
    with in_a_thread(app) as address:
        page = browser.new_page(viewport={"width": 390, "height": 844})
        page.set_default_timeout(WAIT)
        page.goto(f"http://{address}/")
        page.locator("#token").wait_for()
        page.keyboard.type("a-long-enough-token")  # the field has the focus
        page.keyboard.press("Enter")
        page.wait_for_selector("#instances figure")
        assert page.evaluate("document.documentElement.scrollWidth") <= 390
        page.close()
