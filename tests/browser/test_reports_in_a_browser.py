"""The HTML report and the Streamlit page in Debian's Chromium: they show the verdict and break nothing."""

from __future__ import annotations

import shutil
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from advisor.schema import write_json
from reports import write_html
from reports.serve import streamlit_command
from tests.builders import hostile_report, swept_report

playwright = pytest.importorskip("playwright.sync_api", reason="the browser tests need playwright")
CHROMIUM = shutil.which("chromium")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="the browser tests need Debian's chromium")

FLAGS = (
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
)  # fmt: skip
PATIENCE_MS = 120_000


@pytest.fixture(scope="module")
def browser() -> Iterator:
    with playwright.sync_playwright() as tools:
        started = tools.chromium.launch(executable_path=CHROMIUM, headless=True, args=list(FLAGS))
        yield started
        started.close()


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run")
    write_json(swept_report(), folder / "report.json")
    write_html(swept_report(), folder / "report.html")
    write_html(hostile_report("<img src=http://x.invalid onerror=alert(1)>"), folder / "hostile.html")
    return folder


@pytest.fixture(scope="module")
def served(run_folder: Path) -> Iterator[str]:
    """The address of the page of the run folder, served as `report --serve` does."""
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        port = probe.getsockname()[1]
    command = streamlit_command(run_folder)
    options = ["--server.port", f"{port}", "--server.headless", "true"]
    command[command.index("--") : command.index("--")] = options
    with open(run_folder / "streamlit.log", "wb") as log:  # noqa: PTH123
        server = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, cwd=run_folder)
    try:
        wait_until_healthy(f"http://localhost:{port}/_stcore/health", server)
        yield f"http://localhost:{port}"
    finally:
        server.terminate()
        server.wait()


def wait_until_healthy(address: str, server: subprocess.Popen) -> None:
    for _ in range(600):
        assert server.poll() is None, "streamlit ended early"
        try:
            with urllib.request.urlopen(address, timeout=1):
                return
        except (urllib.error.URLError, OSError):
            time.sleep(0.1)
    pytest.fail("streamlit did not answer")


@pytest.fixture
def page(browser) -> Iterator:
    """A page that fails the test on whatever goes wrong inside it or is asked of the network elsewhere."""
    opened = browser.new_page(viewport={"width": 400, "height": 900}, color_scheme="dark")
    opened.set_default_timeout(PATIENCE_MS)
    wrong: list[str] = []
    opened.on("console", lambda message: wrong.append(message.text) if message.type == "error" else None)
    opened.on("pageerror", lambda error: wrong.append(str(error)))
    opened.on("dialog", lambda dialog: wrong.append(dialog.message))
    opened.on("request", lambda request: wrong.append(request.url) if is_foreign(request.url) else None)
    yield opened
    opened.close()
    assert wrong == []


def is_foreign(url: str) -> bool:
    return not url.startswith(("file:", "data:", "blob:", "http://localhost", "ws://localhost"))


def test_the_html_report_shows_verdict_and_charts_on_a_narrow_dark_screen(page, run_folder: Path) -> None:
    page.goto((run_folder / "report.html").as_uri())
    assert page.locator("h1").inner_text() == "Bandwidth-bound"
    assert page.get_by_text("no comm hook can save more, and a bucket size only by fewer launches").is_visible()
    page.wait_for_function("document.querySelectorAll('.js-plotly-plot .main-svg').length >= 8")
    assert page.locator(".js-plotly-plot").count() == 4
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), "the page scrolls sideways"
    dark = page.evaluate("getComputedStyle(document.body).backgroundColor")
    page.emulate_media(color_scheme="light")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") != dark


def test_hostile_names_run_nothing(page, run_folder: Path) -> None:
    page.goto((run_folder / "hostile.html").as_uri())
    page.wait_for_function("document.querySelectorAll('.js-plotly-plot .main-svg').length >= 8")
    assert page.locator("img[src^=http]").count() == 0
    assert page.get_by_text("<img src=http://x.invalid onerror=alert(1)>").first.is_visible()


def test_paper_gets_charts_of_its_own_width(page, run_folder: Path) -> None:
    page.set_viewport_size({"width": 1400, "height": 900})
    page.goto((run_folder / "report.html").as_uri())
    page.wait_for_function("document.querySelectorAll('.js-plotly-plot .main-svg').length >= 8")
    width = "document.querySelector('.js-plotly-plot .main-svg').getBoundingClientRect().width"
    on_screen = page.evaluate(width)
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert page.evaluate(width) == 640
    page.evaluate("dispatchEvent(new Event('afterprint'))")
    page.wait_for_function(f"{width} === {on_screen}")


def test_the_served_page_shows_verdict_and_charts(page, served: str) -> None:
    page.set_viewport_size({"width": 1000, "height": 800})
    page.goto(served)
    page.get_by_role("heading", name="Bandwidth-bound").wait_for()
    page.get_by_role("heading", name="Prediction beside measurement").wait_for()
    page.wait_for_function("document.querySelectorAll('.js-plotly-plot .main-svg').length >= 8")
    assert page.get_by_text("bucket_cap_mb: unset").is_visible()
    assert page.locator("[data-testid=stException]").count() == 0
