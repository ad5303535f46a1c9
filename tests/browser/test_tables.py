"""The lists of a queue in a real browser: what matters first, found, ticked, edited, followed; what is not there."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from s3queue import Queue
from s3queue.dashboard import search
from s3queue.dashboard.api import build
from s3queue.dashboard.console import Console
from s3queue.dashboard.server import Server
from support.workbench import Workbench

pytestmark = pytest.mark.xdist_group("browser")
Open = Callable[..., Page]
WORKER = "shop-invoices-0123456789ab-89abcdef"
LONG = "the address " + "x" * 300 + " is not one, and neither is the next one\nsecond line"


@pytest.fixture
def failing(busy: Workbench) -> Queue:
    """Eight dead letters, four messages that wait, a batch of which two lines died, and some that are delayed."""
    queue = busy.queue("invoices", max_attempts=1, worker_id=WORKER)
    queue.resume()
    for number in range(8):
        body = {"customer": {"id": number}, "total": "12.50"}
        path = queue.enqueue(body, name=f"dead-{number}")
        queue.fail(queue.claim(path), ValueError(LONG) if number % 2 else TimeoutError("the bank is away"))
    patient = busy.queue("invoices", max_attempts=5, worker_id=WORKER)
    for number in range(4):
        path = patient.enqueue({"id": number}, name=f"waits-{number}")
        patient.fail(patient.claim(path), "try later", retry_after=3600)
    (batch,) = queue.enqueue_many([{"id": 1}, {"id": 2}, {"id": 3}])

    def handle(body: dict[str, Any]) -> None:
        if body["id"] > 1:
            raise ValueError("odd line")

    busy.processor(queue, handle).run(batch)
    queue.enqueue({}, name="later", delay=7200)
    busy.clock.advance(5)
    busy.sweeper(queue).sweep()
    return queue


def cut(page: Page) -> list[str]:
    """What is wider than there is room for."""
    script = """() => [document.documentElement, ...document.querySelectorAll("td, th, .tabs a, dd, dt, li")]
      .filter((one) => one.scrollWidth > one.clientWidth + 1 && getComputedStyle(one).display !== "inline")
      .filter((one) => !one.querySelector(".hidden") || one === document.documentElement)
      .map((one) => `${one.tagName}.${one.className} ${one.textContent.slice(0, 60)}`)"""
    found: list[str] = page.evaluate(script)
    return found


def tab(page: Page, name: str) -> Any:
    return page.get_by_role("navigation", name="Messages by state").get_by_role("link", name=re.compile(f"^{name}"))


@pytest.mark.parametrize(("scheme", "width"), [("light", 1280), ("dark", 1280), ("light", 390), ("dark", 390)])
def test_the_tab_that_matters_is_open_and_tabs_have_counts(
    failing: Queue, opened: Open, shot: Callable[..., None], scheme: str, width: int
) -> None:
    page = opened(where="#/queue/invoices", scheme=scheme, width=width)
    expect(tab(page, "Dead")).to_have_attribute("aria-current", "page")
    # Eight letters, and one with two lines of a batch.
    expect(tab(page, "Dead")).to_contain_text("10")
    expect(tab(page, "Waiting for a retry")).to_contain_text("4")
    expect(page.locator("tbody tr")).to_have_count(9)
    row = page.locator("tr", has_text="dead-0")
    expect(row).to_contain_text("TimeoutError")
    expect(row.locator("time")).to_have_text(re.compile(r"2026-11-1\d \d\d:\d\d:\d\d UTC"))
    expect(page.locator("tr", has_text=".ndjson")).to_contain_text("2 lines")
    assert cut(page) == []
    shot(page)
    tab(page, "Waiting for a retry").click()
    expect(page.locator("tbody tr")).to_have_count(4)
    assert cut(page) == []
    shot(page, "-waiting")


def test_several_are_ticked_and_replayed_and_what_fails_is_told(
    failing: Queue, opened: Open, shot: Callable[..., None]
) -> None:
    page = opened(where="#/queue/invoices/dead")
    replay = page.locator("[data-action=replay-many]")
    expect(replay).to_be_disabled()
    page.get_by_role("checkbox", name="Select messages/dead-0").check()
    page.get_by_role("checkbox", name="Select messages/dead-2").check()
    expect(page.locator(".bulk")).to_contain_text("2 selected")
    failing.enqueue("in the way", name="dead-2")
    replay.click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("Replay 2 messages?")
    shot(page)
    dialog.get_by_role("button", name="Replay 2").click()
    expect(page.locator("#toasts")).to_contain_text("1 done, 1 failed: messages/dead-2")
    expect(page.locator("tr", has_text="dead-0")).to_have_count(0)
    expect(page.get_by_role("checkbox", name="Select messages/dead-2")).to_be_checked()
    page.get_by_role("checkbox", name=re.compile("Select all")).check()
    expect(page.locator(".bulk")).to_contain_text("8 selected")
    page.locator("[data-action=delete-many]").click()
    page.get_by_role("dialog").get_by_role("button", name="Delete 8").click()
    expect(page.locator("[data-key=list]")).to_contain_text("None.")
    assert failing.stats().dead == 0


def test_waiting_messages_are_tried_now_together(failing: Queue, opened: Open) -> None:
    page = opened(where="#/queue/invoices/waiting")
    page.get_by_role("checkbox", name=re.compile("Select all")).check()
    page.locator("[data-action=retry-many]").click()
    page.get_by_role("dialog").get_by_role("button", name="Retry now 4").click()
    expect(page.locator("#toasts")).to_contain_text("Retry now: 4 done.")
    claim = failing.claim("messages/waits-0", read_first=True)
    assert claim
    assert claim.attempt == 2


def test_dead_letters_are_found_by_error_and_by_field(
    failing: Queue, opened: Open, shot: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    page = opened(where="#/queue/invoices/dead")
    page.get_by_role("searchbox", name="A part of the error").fill("bank")
    page.get_by_role("button", name="Search").click()
    expect(page.locator("tbody tr")).to_have_count(4)
    expect(page.locator(".search")).to_contain_text("4 found among all 9")
    page.get_by_role("searchbox", name="A field").fill("customer.id")
    page.get_by_role("searchbox", name="Its value").fill("6")
    page.get_by_role("button", name="Search").click()
    expect(page.locator("td.path")).to_have_text(["messages/dead-6"])
    monkeypatch.setattr(search, "MOST_READS", 3)
    monkeypatch.setattr(search, "PORTION", 3)
    page.get_by_role("searchbox", name="A part of the error").fill("")
    page.get_by_role("button", name="Search").click()
    expect(page.locator(".search")).to_contain_text("the search stopped at its bound")
    shot(page)
    page.get_by_role("button", name="Search on").click()
    expect(page.locator(".search")).to_contain_text("among the first 6")
    page.get_by_role("button", name="Search on").click()
    expect(page.locator(".search")).to_contain_text("1 found among all 9")
    expect(page.locator("td.path")).to_have_text(["messages/dead-6"])


def test_a_letter_is_edited_and_replayed(
    failing: Queue, busy: Workbench, opened: Open, shot: Callable[..., None]
) -> None:
    page = opened(where="#/queue/invoices/dead")
    page.get_by_role("button", name="Edit messages/dead-3").click()
    dialog = page.get_by_role("dialog")
    box = dialog.get_by_role("textbox", name="The new payload")
    assert json.loads(box.input_value()) == {"customer": {"id": 3}, "total": "12.50"}
    assert "\n  " in box.input_value(), "pretty-printed"
    box.fill("{")
    dialog.get_by_role("button", name="Replay it so").click()
    expect(dialog.get_by_role("alert")).to_contain_text("This is not JSON any more.")
    box.fill('{"customer": {"id": 33}}')
    shot(page)
    dialog.get_by_role("button", name="Try again").click()
    expect(page.locator("#toasts")).to_contain_text("Replayed messages/dead-3 with the new payload.")
    assert json.loads(busy.read(failing.keys.message("messages/dead-3"))) == {"customer": {"id": 33}}
    assert failing.status("messages/dead-3").state == "pending"


@pytest.mark.parametrize("width", [1280, 390])
def test_a_dead_letter_shows_its_payload_in_print_and_its_workers_log(
    failing: Queue, busy: Workbench, opened: Open, server: Server, shot: Callable[..., None], width: int
) -> None:
    server.app = build(busy.memory, console=Console(region="eu-west-1"))
    page = opened(where="#/queue/invoices/message/messages%2Fdead-3", width=width)
    expect(page.locator(".verdict .reason")).to_have_text("Dead")
    page.get_by_role("button", name="Show the payload").click()
    expect(page.locator("pre.payload")).to_have_text(json.dumps({"customer": {"id": 3}, "total": "12.50"}, indent=2))
    link = page.get_by_role("link", name="Logs").first
    assert "invoices" in str(link.get_attribute("href"))
    assert link.get_attribute("rel") == "noopener noreferrer"
    assert cut(page) == []
    shot(page)


def test_the_dead_lines_of_a_batch_are_shown_each_with_its_error(failing: Queue, opened: Open) -> None:
    page = opened(where="#/queue/invoices/dead")
    page.locator("tr", has_text=".ndjson").locator("td.path a").click()
    page.get_by_role("button", name="Show the payload").click()
    expect(page.locator(".lines li")).to_have_count(2)
    expect(page.locator(".lines li").first).to_contain_text("odd line")


@pytest.mark.parametrize("width", [1280, 390])
def test_the_live_tail_tells_what_happens(
    failing: Queue, busy: Workbench, opened: Open, shot: Callable[..., None], width: int
) -> None:
    page = opened(where="#/queue/invoices/tail", width=width)
    expect(page.locator(".tail li").first).to_be_visible()
    busy.clock.advance(2)
    path = failing.enqueue({}, name="just-now")
    failing.complete(failing.claim(path))
    first = page.locator(".tail li").first
    expect(first).to_contain_text("just-now")
    expect(first).to_contain_text("Completed")
    assert cut(page) == []
    shot(page)


def test_a_question_is_left_with_its_page(failing: Queue, opened: Open) -> None:
    page = opened(where="#/queue/invoices/dead")
    page.get_by_role("button", name="Delete messages/dead-1").click()
    expect(page.get_by_role("dialog")).to_be_visible()
    page.go_back()
    expect(page.get_by_role("dialog")).to_have_count(0)
    assert failing.stats().dead == 10


@pytest.mark.parametrize("width", [1280, 390])
def test_a_queue_that_does_not_exist_says_so_and_names_those_that_do(
    busy: Workbench, opened: Open, shot: Callable[..., None], width: int
) -> None:
    page = opened(where="#/queue/emailz", width=width)
    expect(page.get_by_role("heading", level=1)).to_have_text("Not found")
    expect(page.locator("main")).to_contain_text("emailz")
    expect(page.get_by_role("alert")).to_be_empty()
    shot(page)
    page.locator(".others").get_by_role("link", name="emails").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("emails")


def test_what_is_no_page_is_said_by_a_page(
    busy: Workbench, opened: Open, server: Server, shot: Callable[..., None]
) -> None:
    page = opened(where="#/nonsense")
    expect(page.locator(".reason")).to_have_text("There is no page #/nonsense.")
    answer = page.goto(f"{server.address}/nowhere")
    assert answer
    assert answer.status == 401
    expect(page.get_by_role("heading", level=1)).to_have_text("This dashboard belongs to whoever started it.")
    shot(page)


def test_a_reader_ticks_edits_and_searches_no_payload(
    busy: Workbench, failing: Queue, opened: Open, server: Server
) -> None:
    server.app = build(busy.memory, role="reader")
    page = opened(where="#/queue/invoices/dead")
    expect(page.locator("tbody tr")).to_have_count(9)
    for selector in ("[data-tick]", "[data-action=edit-one]", "[data-action=replay-many]", "[name=field]"):
        assert page.locator(selector).count(), selector
        expect(page.locator(f"{selector}:visible")).to_have_count(0)
