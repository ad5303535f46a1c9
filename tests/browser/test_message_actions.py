"""What an operator does with single messages in a real browser: each asks first, and says what became of it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from playwright.sync_api import Page, expect

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
    expect(page.locator(".verdict .reason")).to_have_text("waiting")
    expect(page.get_by_role("button", name="Release", exact=True)).to_have_count(0)
    assert queue.claim(path, read_first=True).attempt == 1
