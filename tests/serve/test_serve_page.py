"""The review page in a real browser, by keyboard alone: slider, ten reviews, export, and the next fit."""

import csv
import shutil

import pytest
from served import NAMES
from test_serve_process import BAGS, files, serving  # noqa: F401 (a fixture)

import mipl
from mipl.cli import main

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium on this machine"),
]
WAIT = 120_000  # milliseconds; a busy machine is no failure


@pytest.fixture(scope="module")
def browser():
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


def opened(browser, address, width, height):
    """Return the page, and lists of what it asked for and what it complained of."""
    page = browser.new_page(viewport={"width": width, "height": height}, accept_downloads=True)
    page.set_default_timeout(WAIT)
    asked, complaints = [], []
    page.on("request", lambda request: asked.append(request.url))
    page.on("console", lambda said: complaints.append(said.text) if said.type == "error" else None)
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.goto(f"http://{address}/")
    page.wait_for_selector("#instances figure")
    return page, asked, complaints


def shows(page, selector, text):
    playwright.expect(page.locator(selector)).to_have_text(text, timeout=WAIT)


def figures(threshold):
    """What the page should say at a threshold, by the library alone."""
    p = mipl.load(figures.model).predict_proba(BAGS)
    confidence, correct = p.max(axis=1), p.argmax(axis=1) == BAGS.labels
    above = confidence >= threshold
    return {
        "#coverage": f"{100 * above.mean():.1f}%",
        "#expected": f"{100 * (1 - confidence[above]).mean():.1f}%",
        "#measured": f"{100 * (1 - correct[above].mean()):.1f}%",
    }, int(above.sum())


def test_a_reviewer_s_day(browser, files, tmp_path):  # noqa: F811
    figures.model = files / "model"
    with serving(files, tmp_path / "r.sqlite") as (_, address):
        page, asked, complaints = opened(browser, address, 1280, 900)

        page.locator("#threshold").focus()
        page.keyboard.press("Home")
        for _ in range(100):  # 100 steps of 0.005
            page.keyboard.press("ArrowRight")
        shows(page, "#at", "50.0%")
        expected, reported = figures(0.5)
        assert 0 < reported < len(BAGS)
        for selector, text in expected.items():
            shows(page, selector, text)
        page.keyboard.press("+")
        shows(page, "#at", "51.0%")
        page.keyboard.press("-")
        playwright.expect(page.locator("#bags td.report")).to_have_count(reported, timeout=WAIT)

        page.keyboard.press("F2")  # only those for review
        playwright.expect(page.locator("#bags tr")).to_have_count(len(BAGS) - reported, timeout=WAIT)
        page.keyboard.press("F2")
        playwright.expect(page.locator("#bags tr")).to_have_count(reported, timeout=WAIT)
        page.keyboard.press("F2")

        page.evaluate("document.activeElement.blur()")
        for number in range(20):
            page.keyboard.press("ArrowUp")
        doubtful = [row.inner_text() for row in page.locator("#bags td:first-child").all()[:10]]
        for number in range(10):
            page.keyboard.press(str(1 + number % 4))
        shows(page, "#progress", f"10 of {len(BAGS)} bags reviewed")
        page.keyboard.press("Backspace")
        shows(page, "#progress", f"9 of {len(BAGS)} bags reviewed")
        page.keyboard.press("2")
        shows(page, "#progress", f"10 of {len(BAGS)} bags reviewed")

        with page.expect_download() as download:
            page.locator("#export").focus()
            page.keyboard.press("Enter")
        table = tmp_path / "reviews.csv"
        download.value.save_as(table)
        assert complaints == []
        assert {url.split("/")[2] for url in asked if url.startswith("http")} == {address}
        page.close()
    rows = {row["bag_id"]: row["candidates"] for row in csv.DictReader(table.read_text().splitlines())}
    assert [rows[bag] for bag in doubtful] == [NAMES[number % 4] for number in range(10)]
    words = ["fit", files / "bags.npz", "--labels", table, "--out", tmp_path / "m", "--set", "epochs=1", "--json"]
    assert main([str(word) for word in words]) == 0


def test_a_narrow_screen_and_a_token(browser, files, tmp_path, monkeypatch):  # noqa: F811
    with serving(files, tmp_path / "r.sqlite", "--token", "a-long-enough-token") as (_, address):
        page = browser.new_page(viewport={"width": 390, "height": 844})
        page.set_default_timeout(WAIT)
        page.goto(f"http://{address}/")
        page.locator("#token").wait_for()
        page.keyboard.type("a-long-enough-token")  # the field has the focus
        page.keyboard.press("Enter")
        page.wait_for_selector("#instances figure")
        wide = page.evaluate("document.documentElement.scrollWidth")
        assert wide <= 390
        page.close()
