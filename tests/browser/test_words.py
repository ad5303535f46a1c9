"""What pages say, in a real browser: nothing misleads, is too pale to read, or has two names."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from s3queue.dashboard.api import build
from s3queue.dashboard.server import Server
from s3queue.flow.partitions import hold_partition
from support.sample_statistics import spark_runs
from support.workbench import Workbench

pytestmark = pytest.mark.xdist_group("browser")
Open = Callable[..., Page]
#: Texts that have less contrast than WCAG asks for (4.5), each once.
PALE = (Path(__file__).parent / "contrast.js").read_text()


@pytest.fixture
def half_dead(busy: Workbench) -> str:
    """The path of a batch of which 28 of 30 lines died."""
    queue = busy.queue("invoices", max_attempts=1, worker_id="shop-invoices-0123456789ab-89abcdef")
    (path,) = queue.enqueue_many([{"id": number} for number in range(30)])

    def handle(body: dict[str, int]) -> None:
        if body["id"] > 1:
            raise ValueError(f"no customer {body['id']}")

    busy.processor(queue, handle).run(path)
    return path


def life(path: str, queue: str = "invoices") -> str:
    return f"#/queue/{queue}/message/{path.replace('/', '%2F')}"


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_everything_can_be_read(half_dead: str, busy: Workbench, opened: Open, scheme: str) -> None:
    spark_runs(busy)
    busy.queue("emails", max_attempts=5).fail(
        busy.queue("emails").claim(busy.queue("emails").enqueue("?")), "later", retry_after=900
    )
    page = opened(scheme=scheme)
    for where in ("#/", "#/queue/emails", "#/queue/invoices/dead", "#/queue/exports/runs", life(half_dead), "#/flows"):
        page.goto(f"{page.url.partition('#')[0]}{where}")
        expect(page.locator("main")).not_to_contain_text("Reading")
        assert page.evaluate(PALE) == [], where


def test_a_batch_that_mostly_died_does_not_look_completed(half_dead: str, opened: Open, shot: Callable) -> None:
    page = opened(where=life(half_dead))
    head = page.locator("[data-key=head]")
    expect(head).to_contain_text("Completed: 28 of 30 lines died.")
    expect(head).to_have_attribute("data-state", "dead")
    expect(page.locator(".life")).to_contain_text("Ended, 28 lines died")
    shot(page)
    head.get_by_role("link", name="Their dead letter").click()
    expect(page.locator("[data-key=head]")).to_contain_text(".ndjson.lines")
    page.goto(f"{page.url.partition('#')[0]}#/queue/invoices/completed")
    expect(page.locator("tr", has_text=".ndjson")).to_contain_text("28 of 30 lines died")


@pytest.mark.parametrize(
    ("where", "said", "current"),
    [
        ("#/queue/invoice", "The overview lists all queues.", 0),
        ("#/queue/invoice/message/messages%2Fx", "The overview lists all queues.", 0),
        (life("messages/none"), "The queue's page lists what there is.", 0),
        ("#/flow/none", "The page Flows lists all flows.", 1),
        ("#/nonsense", "The overview leads to all of them.", 0),
    ],
)
def test_what_is_not_there_is_said_for_people(
    busy: Workbench, opened: Open, where: str, said: str, current: int
) -> None:
    page = opened(where=where)
    missing = page.locator("[data-key=missing]")
    expect(missing).to_contain_text(said)
    assert "GET /" not in missing.inner_text()
    expect(page.get_by_role("link", name="To the queue invoice", exact=True)).to_have_count(0)
    expect(page.locator("[data-nav][aria-current]")).to_have_count(current)
    assert not page.title().startswith("Overview")


def test_to_cancel_is_never_the_way_out_of_cancelling(busy: Workbench, opened: Open) -> None:
    path = busy.queue("thumbnails").enqueue("x", name="a")
    page = opened(where=life(path, "thumbnails"))
    page.get_by_role("button", name="Cancel").click()
    dialog = page.get_by_role("dialog")
    assert dialog.get_by_role("button").all_inner_texts() == ["Keep it", "Cancel the message"]
    dialog.get_by_role("button", name="Keep it").click()
    page.goto(f"{page.url.partition('#')[0]}#/queue/thumbnails/pending")
    page.get_by_role("checkbox", name="Select messages/a").check()
    page.get_by_role("button", name="Cancel messages").click()
    assert dialog.get_by_role("button").all_inner_texts() == ["Keep them", "Cancel 1"]


def test_a_group_is_looked_into_and_deleted(half_dead: str, busy: Workbench, opened: Open, shot: Callable) -> None:
    page = opened()
    page.locator(".groups li", has_text="ValueError").get_by_role("link", name="no customer *").click()
    expect(page.locator(".group")).to_contain_text("Only ValueError no customer *")
    expect(page.locator("tbody tr")).to_have_count(1)
    shot(page)
    page.get_by_role("button", name="Delete this group").click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("1 dead letter will be deleted for good; of a batch, the lines with this error.")
    dialog.get_by_role("button", name="Delete for good").click()
    expect(page.get_by_role("status")).to_contain_text("1 dead letter deleted.")
    expect(page.locator("[data-key=list]")).to_contain_text("None.")
    assert busy.queue("invoices").stats().dead == 0
    page.get_by_role("link", name="Show all dead letters").click()
    expect(page.locator(".group")).to_have_count(0)


def test_a_reader_is_offered_nothing_that_can_only_fail(busy: Workbench, opened: Open, server: Server) -> None:
    server.app = build(busy.memory, role="reader")
    page = opened()
    expect(page.locator(".groups li")).to_have_count(2)
    assert page.locator("main button:visible").all_inner_texts() == []


def test_a_partition_whose_holder_is_gone_leads_to_its_tab(busy: Workbench, opened: Open) -> None:
    queue = busy.queue("invoices", worker_id="worker-7")
    queue.enqueue({}, group="bob")
    assert hold_partition(queue.leases, "@bob")
    busy.clock.advance(300)
    page = opened()
    item = page.locator("[data-key=stuck] li", has_text="messages/@bob/")
    expect(item).to_contain_text("held by worker-7")
    expect(item).not_to_contain_text("attempt 0")
    item.get_by_role("link", name="messages/@bob/").click()
    expect(page.locator("tbody tr", has_text="bob")).to_contain_text("Overdue")


def test_settings_that_nobody_published_are_said_to_be_assumed(busy: Workbench, opened: Open) -> None:
    page = opened(where="#/queue/orders/settings")
    listed = page.locator("[data-key=list]")
    expect(listed).to_contain_text("No deployment or worker has published this queue's settings")
    breaker = {"failures": 3, "pause_seconds": 90, "on": ["ConnectionError"]}
    queue = busy.queue("orders", breaker=breaker)
    queue.publish_settings("worker")
    page.reload()
    expect(listed).to_contain_text("As the worker published them at 2026-11-1")
    expect(listed.locator("tr", has_text="breaker")).to_contain_text(
        "3 failures in a row of ConnectionError, then a pause of 1 min 30 s"
    )


def test_an_empty_list_beside_a_count_says_why(busy: Workbench, opened: Open) -> None:
    busy.clock.advance(7200)
    page = opened(where="#/queue/emails/completed")
    expect(page.locator("[data-key=list]")).to_contain_text("None within the last hour.")
    page.get_by_role("searchbox", name="The beginning of the path").fill("messages/")
    page.get_by_role("button", name="Search").click()
    expect(page.locator("tbody tr").first).to_contain_text("messages/")


def test_the_head_of_a_phone_s_page_is_three_lines(busy: Workbench, opened: Open) -> None:
    page = opened(width=390)
    expect(page.locator(".groups li")).to_have_count(2)
    assert page.locator(".top").bounding_box()["height"] < 130
    live, brand = (page.locator(one).bounding_box() for one in (".live", ".brand"))
    assert abs(live["y"] - brand["y"]) < 12, "beside each other"


def test_what_was_spent_is_not_less_and_at_least_at_once(busy: Workbench, opened: Open) -> None:
    page = opened()
    expect(page.locator("[data-key=cost] .big")).to_have_text(re.compile(r"^\$\d"))


@pytest.mark.parametrize("width", [1280, 390])
def test_a_batch_counts_as_its_lines_on_every_page(
    half_dead: str, busy: Workbench, opened: Open, shot: Callable, width: int
) -> None:
    queue = busy.queue("invoices")
    (path,) = queue.enqueue_many([{}] * 60, per_object=60)
    page = opened(width=width)
    row = page.locator(".queues tr", has=page.get_by_role("link", name="invoices"))
    expect(row.locator("[data-label=Depth]")).to_have_text("74")
    expect(page.locator(".totals")).to_contain_text("52 dead")
    page.goto(f"{page.url.partition('#')[0]}#/queue/invoices/pending")
    tabs = page.get_by_role("navigation", name="Messages by state")
    expect(tabs.get_by_role("link", name=re.compile("^Pending"))).to_contain_text("74")
    expect(tabs.get_by_role("link", name=re.compile("^Dead"))).to_contain_text("28")
    expect(tabs.get_by_role("link", name=re.compile("^Completed"))).to_contain_text("2")
    expect(page.locator("tr", has_text=path)).to_contain_text("60 lines")
    expect(page.locator("figcaption")).to_contain_text("30 out, 28 died")
    busy.put("invoices/messages/mine.ndjson", b"{}\n{}\n")
    page.reload()
    expect(tabs.get_by_role("link", name=re.compile("^Pending"))).to_contain_text("≥ 75")
    expect(tabs.get_by_role("link", name=re.compile("^Dead"))).to_contain_text("28")
    shot(page)
