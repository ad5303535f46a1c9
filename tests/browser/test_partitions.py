"""Partitions in a real browser: a tab where there are some, and none where not."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from playwright.sync_api import Page, expect

from s3queue.flow.partitions import hold_partition
from support.sample_bucket import HOSTILE
from support.workbench import Workbench

pytestmark = pytest.mark.xdist_group("browser")
Open = Callable[..., Page]


@pytest.fixture
def grouped(busy: Workbench) -> Workbench:
    """A group that waits for a retry, one that is held, one with a hostile name, and many that are free."""
    queue = busy.queue("invoices", worker_id="worker-7", retry_base=300)
    failed = queue.enqueue({}, group="ada")

    def fail(body: dict[str, int]) -> None:
        raise ValueError(HOSTILE)

    busy.processor(queue, fail).run(failed)
    queue.enqueue({}, group="bob")
    assert hold_partition(queue.leases, "@bob")
    queue.enqueue({}, group=HOSTILE[:100])
    for number in range(60):
        queue.enqueue({}, group=f"customer-{number:02d}")
    return busy


@pytest.mark.parametrize("width", [1280, 390])
def test_a_queue_with_groups_shows_them_in_a_tab(
    grouped: Workbench, opened: Open, shot: Callable[..., None], width: int
) -> None:
    page = opened(where="#/queue/invoices", width=width)
    page.get_by_role("navigation", name="Messages by state").get_by_role("link", name="Partitions").click()
    ada = page.locator("tr", has_text="ValueError")
    expect(ada.locator("td").first).to_have_text("ada")
    expect(ada).to_contain_text("Waits for a retry")
    expect(ada).to_contain_text("1, next try")
    bob = page.locator("tr", has_text="worker-7, until")
    expect(bob.locator("td").first).to_have_text("bob")
    expect(bob).to_contain_text("Held")
    expect(page.locator("tbody tr")).to_have_count(50)
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), "nothing hangs over the edge"
    shot(page)

    page.get_by_role("button", name="More").click()
    expect(page.locator("tbody tr")).to_have_count(63)
    assert page.title() != "owned"
    ada.get_by_role("link").click()
    expect(page.locator(".life")).to_contain_text("ValueError")


def test_a_queue_without_groups_has_no_such_tab(busy: Workbench, opened: Open) -> None:
    page = opened(where="#/queue/orders")
    tabs = page.get_by_role("navigation", name="Messages by state")
    expect(tabs.get_by_role("link", name="Workers")).to_be_visible()
    expect(tabs.get_by_role("link", name="Partitions")).to_have_count(0)
