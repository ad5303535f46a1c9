"""What an operator does with single messages in a real browser: each asks first, and says what became of it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from playwright.sync_api import Page, expect

from s3queue.dashboard.api import build
from s3queue.dashboard.server import Server
from support.workbench import Workbench

pytestmark = pytest.mark.xdist_group("browser")
Open = Callable[..., Page]


def life(queue: str, path: str) -> str:
    return f"#/queue/{queue}/message/{path.replace('/', '%2F')}"


def test_a_message_is_taken_from_a_worker_that_is_dead(busy: Workbench, opened: Open) -> None:
    queue = busy.queue("invoices", worker_id="lost-worker")
    path = queue.enqueue({"id": 17}, name="held")
    queue.claim(path)
    page = opened(where=life("invoices", path))
    page.get_by_role("button", name="Release", exact=True).click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("lost-worker holds it")
    dialog.get_by_role("button", name="Release", exact=True).click()
    expect(page.get_by_role("status")).to_contain_text("which lost-worker held")
    expect(page.locator(".verdict .reason")).to_have_text("Waiting for a retry")
    expect(page.get_by_role("button", name="Release", exact=True)).to_have_count(0)
    assert queue.claim(path, read_first=True).attempt == 1


def test_a_message_that_waits_is_tried_now(busy: Workbench, opened: Open) -> None:
    queue = busy.queue("invoices")
    path = queue.enqueue({"id": 17}, name="waits")
    queue.fail(queue.claim(path), "the bank is away", retry_after=3600)
    page = opened(where=life("invoices", path))
    page.get_by_role("button", name="Retry now").click()
    page.get_by_role("dialog").get_by_role("button", name="Retry now").click()
    expect(page.get_by_role("status")).to_contain_text("is tried now, with")
    assert queue.claim(path, read_first=True).attempt == 2


def test_a_dead_letter_is_replayed_into_another_queue(busy: Workbench, opened: Open) -> None:
    queue = busy.queue("invoices", max_attempts=1)
    path = queue.enqueue({"id": 17}, name="dies")
    queue.fail(queue.claim(path), ValueError("no such customer"))
    page = opened(where=life("invoices", path))
    page.get_by_role("button", name="Replay to…").click()
    dialog = page.get_by_role("dialog")
    field = dialog.get_by_role("textbox", name="The other queue's name")
    field.fill("no-such-queue")
    dialog.get_by_role("button", name="Replay there").click()
    expect(dialog.get_by_role("alert")).to_contain_text("no-such-queue")
    field.fill("orders")
    dialog.get_by_role("button", name="Try again").click()
    expect(page.get_by_role("status")).to_contain_text(f"Replayed {path} into orders.")
    assert busy.queue("orders").status(path).state == "pending"
    assert f"invoices/dead/{path}" not in busy.keys("invoices/dead/")


def test_a_completed_message_runs_again_if_its_payload_was_kept(busy: Workbench, opened: Open) -> None:
    queue = busy.queue("invoices", keep_payload=True)
    kept = queue.enqueue({"id": 17}, name="kept")
    queue.complete(queue.claim(kept))
    plain = busy.queue("invoices")
    gone = plain.enqueue({"id": 18}, name="gone")
    plain.complete(plain.claim(gone))
    page = opened(where=life("invoices", gone))
    expect(page.locator("[data-key=payload]")).to_contain_text("its payload was deleted")
    expect(page.get_by_role("button", name="Run again")).to_have_count(0)
    page = opened(where=life("invoices", kept))
    page.get_by_role("button", name="Show the payload").click()
    expect(page.locator("pre.payload")).to_contain_text("17")
    page.get_by_role("button", name="Run again").click()
    page.get_by_role("dialog").get_by_role("button", name="Run again").click()
    expect(page.get_by_role("status")).to_contain_text(f"{kept} runs again.")
    assert queue.status(kept).state == "pending"


def test_cancelled_messages_have_a_list(busy: Workbench, opened: Open) -> None:
    queue = busy.queue("invoices")
    path = queue.enqueue({"id": 17}, name="unwanted")
    queue.cancel(path)
    page = opened(where="#/queue/invoices")
    page.get_by_role("navigation", name="Messages by state").get_by_role("link", name="Cancelled").click()
    expect(page.locator("td.path")).to_have_text([path])


def test_a_breaker_is_opened_and_closed(busy: Workbench, opened: Open) -> None:
    queue = busy.queue("orders")
    queue.configure(breaker={"failures": 3, "pause_seconds": 30})
    page = opened(where="#/queue/orders")
    page.get_by_role("button", name="Open breaker").click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("workers stop claiming, until the breaker is closed")
    dialog.get_by_role("button", name="Open", exact=True).click()
    expect(page.get_by_role("status")).to_contain_text("The breaker of orders is open.")
    expect(page.locator(".facts")).to_contain_text("forced open")
    found = queue.breaker().document
    assert (found.state, found.is_forced) == ("open", True)
    page.get_by_role("button", name="Close breaker").click()
    page.get_by_role("dialog").get_by_role("button", name="Close", exact=True).click()
    expect(page.get_by_role("status")).to_contain_text("The breaker of orders is closed.")
    expect(page.get_by_role("button", name="Open breaker")).to_be_visible()
    found = queue.breaker().document
    assert (found.state, found.is_forced) == ("closed", False)


def test_a_reader_sees_none_of_these_buttons(busy: Workbench, opened: Open, server: Server) -> None:
    server.app = build(busy.memory, role="reader")
    queue = busy.queue("invoices", max_attempts=1, keep_payload=True)
    queue.configure(breaker={"failures": 3, "pause_seconds": 30})
    held, waits, dead, done = (queue.enqueue({}, name=name) for name in ("held", "waits", "dead", "done"))
    queue.claim(held)
    queue.fail(queue.claim(dead), "x")
    queue.complete(queue.claim(done))
    patient = busy.queue("invoices", max_attempts=3)
    patient.fail(patient.claim(waits), "x", retry_after=3600)
    for path in (held, waits, dead, done):
        page = opened(where=life("invoices", path))
        expect(page.locator("#payload-title")).to_be_visible()
        assert page.locator(".verdict [data-action]").count(), path
        expect(page.locator(".verdict [data-action]:visible")).to_have_count(0)
    page = opened(where="#/queue/invoices")
    expect(page.locator("[data-action=breaker-open]")).to_have_count(1)
    expect(page.locator("[data-action=breaker-open]:visible")).to_have_count(0)
