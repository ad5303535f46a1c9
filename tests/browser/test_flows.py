"""Flows in a real browser: a picture of members and steps that can be read without colours, and a button to cancel."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from playwright.sync_api import Page, expect

from s3queue import Flow
from s3queue.dashboard.api import build
from s3queue.dashboard.server import Server
from support.workbench import Workbench

pytestmark = pytest.mark.xdist_group("browser")
Open = Callable[..., Page]


def started(bench: Workbench, flow_id: str, members: int) -> list[str]:
    """A flow of two steps; the paths of its members."""
    flow = Flow(bench.queue("invoices"), id=flow_id, on_dead="continue")
    for number in range(members):
        flow.add("invoices", {"id": number})
    flow.then("invoices", {}).then("orders", {})
    flow.start()
    return [node.path for node in flow.state().nodes[:members]]


def test_a_flow_is_a_picture_of_members_and_steps_and_can_be_cancelled(
    busy: Workbench, opened: Open, shot: Callable[..., None]
) -> None:
    queue = busy.queue("invoices", max_attempts=1)
    done, dead, cancelled, waits = started(busy, "order-17", 4)
    queue.complete(queue.claim(done))
    queue.fail(queue.claim(dead), ValueError("no such customer"))
    queue.cancel(cancelled)
    page = opened()
    page.get_by_role("navigation", name="Main").get_by_role("link", name="Flows").click()
    row = page.locator("tr", has_text="order-17")
    expect(row).to_contain_text("Running")
    expect(row).to_contain_text("3 of 4")
    row.get_by_role("link", name="order-17").click()

    stages = page.locator(".stage")
    expect(stages.locator("h3")).to_have_text(["4 members", "Step 1", "Step 2"])
    expect(page.locator(".stage[aria-current=step] h3")).to_have_text("4 members")
    expect(stages.first).to_contain_text("1 completed, 1 dead, 1 cancelled, 1 waiting")
    for number, words in enumerate(("completed", "dead", "cancelled", "waiting for its outcome")):
        expect(stages.first.get_by_role("link", name=f"Member {number}: {words}", exact=True)).to_be_visible()
    drawn = stages.first.locator(".node path").evaluate_all(
        "signs => signs.map(sign => [sign.getAttribute('d'), sign.getBoundingClientRect().width > 4])"
    )
    assert len({sign for sign, _ in drawn}) == 4, "a sign each, for who does not see colours"
    assert all(is_seen for _, is_seen in drawn)
    colours = stages.first.locator(".node").evaluate_all("nodes => nodes.map(node => getComputedStyle(node).color)")
    assert len({*colours[:2], colours[3]}) == 3
    expect(stages.nth(2).get_by_role("img", name="Step 2: its turn has not come")).to_be_visible()
    expect(stages.nth(2)).to_contain_text("orders")
    shot(page)

    page.get_by_role("button", name="Cancel the flow").click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("No further step comes.")
    dialog.get_by_role("textbox").fill("wrong address")
    dialog.get_by_role("button", name="Cancel the flow").click()
    expect(page.get_by_role("status")).to_contain_text("The flow order-17 is cancelled.")
    expect(page.locator(".verdict .reason")).to_have_text("Cancelled: wrong address")
    expect(page.get_by_role("button", name="Cancel the flow")).to_have_count(0)
    expect(stages.first).to_contain_text("2 cancelled")
    assert queue.status(waits).state == "cancelled"
    stages.first.get_by_role("link", name="Member 1: dead").click()
    expect(page.locator(".life")).to_contain_text("no such customer")


def test_many_members_are_counted_and_those_that_did_not_complete_are_drawn(
    busy: Workbench, opened: Open, shot: Callable[..., None]
) -> None:
    queue = busy.queue("invoices", max_attempts=1)
    paths = started(busy, "large", 100)
    for path in paths[:70]:
        queue.complete(queue.claim(path))
    queue.fail(queue.claim(paths[70]), ValueError("no"))
    page = opened(where="#/flow/large", width=390)
    expect(page.locator(".node.many")).to_have_text(["70 completed", "1 dead", "29 waiting"])
    expect(page.locator(".stage").first.get_by_role("link")).to_have_count(1)
    expect(page.get_by_role("link", name="Member 70: dead")).to_be_visible()
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), "nothing hangs over the edge"
    shot(page)


def test_a_reader_sees_the_picture_and_no_button(busy: Workbench, opened: Open, server: Server) -> None:
    server.app = build(busy.memory, role="reader")
    started(busy, "order-17", 2)
    page = opened(where="#/flow/order-17")
    expect(page.locator(".stage").first.locator(".node")).to_have_count(2)
    expect(page.locator("[data-action=cancel-flow]")).to_have_count(1)
    expect(page.locator("[data-action=cancel-flow]:visible")).to_have_count(0)


def test_a_bucket_without_flows_says_so(busy: Workbench, opened: Open) -> None:
    page = opened(where="#/flows")
    expect(page.locator("main")).to_contain_text("There is no flow in this bucket.")
