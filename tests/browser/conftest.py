"""A real browser in front of the real page, API and store; what it saw is kept in test-output/."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright

from s3queue.dashboard.api import build
from s3queue.dashboard.server import Server
from support import chromium
from support.sample_bucket import working_hour
from support.workbench import Workbench

OUTPUT = Path(__file__).parents[2] / "test-output"
#: Chromium's sandbox needs rights that containers seldom have; the only pages that it sees here are our own.
ARGUMENTS = ["--no-sandbox", "--disable-dev-shm-usage", "--font-render-hinting=none"]


PATIENCE_MS = 20_000
expect.set_options(timeout=PATIENCE_MS)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    found = chromium.find()
    if found is None:
        pytest.skip("no Chromium for this machine: name one in S3QUEUE_CHROMIUM")
    executable, environment = found
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=executable, args=ARGUMENTS, env=environment)
        yield browser
        browser.close()


@pytest.fixture
def bench() -> Workbench:
    return Workbench()


@pytest.fixture
def busy(bench: Workbench) -> Workbench:
    working_hour(bench)
    return bench


@pytest.fixture
def server(bench: Workbench) -> Iterator[Server]:
    """The dashboard of the bench's bucket; asked for after whatever fills it."""
    with Server(build(bench.memory)) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture
def opened(browser: Browser, server: Server) -> Iterator[Callable[..., Page]]:
    """Opens the dashboard as a new operator would; any script error or refused script fails the test."""
    problems: list[str] = []
    contexts = []

    def open_page(*, scheme: str = "light", width: int = 1280, height: int = 900, where: str = "") -> Page:
        context = browser.new_context(
            color_scheme=scheme,
            viewport={"width": width, "height": height},
            timezone_id="UTC",
            # Without a locale of the machine, Chromium calls its language `en-US@posix`, which is no language.
            locale="en-GB",
            reduced_motion="reduce",
        )
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(PATIENCE_MS)
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on("console", lambda said: problems.append(said.text) if _is_problem(said.text) else None)
        page.goto(server.url)
        if where:
            page.goto(f"{server.address}/{where}")
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert problems == []


def _is_problem(said: str) -> bool:
    return bool(re.search(r"Content.Security|TypeError|ReferenceError|leaves this page|not set from data", said))


@pytest.fixture
def shot(request: pytest.FixtureRequest) -> Callable[[Page], None]:
    """Keeps what the page looks like, under the test's name."""

    def keep(page: Page, name: str = "") -> None:
        OUTPUT.mkdir(exist_ok=True)
        page.screenshot(path=OUTPUT / f"{request.node.name}{name}.png", full_page=True)

    return keep
