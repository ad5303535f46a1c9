"""The dashboard in a real browser: what an operator sees, does, and is protected from."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from playwright.sync_api import Browser, Page, expect

from s3queue.dashboard.api import build
from s3queue.dashboard.server import Server
from support.sample_bucket import HOSTILE, hostile
from support.workbench import Workbench

pytestmark = pytest.mark.xdist_group("browser")
Open = Callable[..., Page]


def test_the_first_screen_says_what_is_wrong_before_anything_else(
    busy: Workbench, opened: Open, shot: Callable[..., None]
) -> None:
    page = opened()
    expect(page.get_by_role("heading", level=1)).to_have_text("Stuck")
    expect(page.locator(".verdict .reason")).to_contain_text(
        "exports is stuck: the oldest message has waited for 14 min"
    )
    expect(page.locator(".groups li")).to_have_count(2)
    titles = page.get_by_role("heading", level=2).all_inner_texts()
    assert [title.split()[0] for title in titles] == ["Queues", "Failures", "Stuck", "Sweeper", "Cost"]
    assert page.locator(".queues tbody th a").all_inner_texts()[0] == "exports", "the worst comes first"
    expect(page.get_by_role("img", name=re.compile("In the last hour .* in, .* out, 24 died"))).to_be_visible()
    expect(page.locator("svg.spark")).to_have_count(4)
    expect(page.locator("[data-key=machinery]")).to_contain_text("in the hour before the last sweep")
    shot(page)


@pytest.mark.parametrize(("scheme", "width"), [("dark", 1280), ("light", 390), ("dark", 390)])
def test_it_reads_well_in_the_dark_and_on_a_phone(
    busy: Workbench, opened: Open, shot: Callable[..., None], scheme: str, width: int
) -> None:
    page = opened(scheme=scheme, width=width)
    expect(page.locator(".groups li")).to_have_count(2)
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), "nothing hangs over the edge"
    light = page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(246, 247, 249)"
    assert light == (scheme == "light")
    shot(page)


def test_a_group_is_replayed_after_asking_and_the_outcome_is_told(
    busy: Workbench, opened: Open, shot: Callable[..., None]
) -> None:
    page = opened()
    group = page.locator(".groups li").filter(has_text="TimeoutError")
    group.get_by_role("button", name="Replay this group").click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("21 dead letters with the error TimeoutError")
    expect(dialog.get_by_role("button", name="Cancel")).to_be_focused()
    shot(page)
    dialog.get_by_role("button", name="Replay 21 letters").click()
    expect(page.get_by_role("status")).to_contain_text("21 dead letters replayed.")
    expect(group).to_have_count(0)
    emails = busy.queue("emails")
    assert (emails.stats().pending, emails.stats().dead) == (21, 3)


def test_cancelling_changes_nothing(busy: Workbench, opened: Open) -> None:
    page = opened()
    page.locator(".groups li").first.get_by_role("button", name="Replay this group").click()
    expect(page.get_by_role("dialog")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_have_count(0)
    assert busy.queue("emails").stats().dead == 24


def test_a_queue_is_paused_and_resumed(busy: Workbench, opened: Open) -> None:
    page = opened(where="#/queue/orders")
    page.get_by_role("button", name="Pause").click()
    expect(page.get_by_role("dialog")).to_contain_text("Running messages finish")
    page.get_by_role("dialog").get_by_role("button", name="Pause").click()
    expect(page.get_by_role("status")).to_contain_text("orders is paused.")
    expect(page.locator(".reason")).to_contain_text("Paused")
    assert busy.queue("orders").overrides() == {"paused": True}
    page.get_by_role("button", name="Resume").click()
    page.get_by_role("dialog").get_by_role("button", name="Resume").click()
    expect(page.get_by_role("status")).to_contain_text("orders is running again.")
    assert busy.queue("orders").overrides() == {}


def test_a_schedule_shows_its_next_five_times_and_is_paused(busy: Workbench, opened: Open) -> None:
    queue = busy.queue("orders")
    queue.every("15 9 * * 1-5", name="report", tz="Europe/Berlin")
    page = opened(where="#/queue/orders/schedules")
    row = page.locator("tr", has_text="report")
    expect(row).to_contain_text("15 9 * * 1-5")
    expect(row.locator("li")).to_have_count(5)
    row.get_by_role("button", name="Pause report").click()
    page.get_by_role("dialog").get_by_role("button", name="Pause").click()
    expect(page.get_by_role("status")).to_contain_text("The schedule report is paused.")
    expect(row).to_contain_text("paused")
    assert queue.schedules.get("report").paused
    row.get_by_role("button", name="Resume report").click()
    page.get_by_role("dialog").get_by_role("button", name="Resume").click()
    expect(row.locator("li")).to_have_count(5)
    assert not queue.schedules.get("report").paused


def test_the_page_follows_without_a_reload(busy: Workbench, opened: Open) -> None:
    page = opened()
    expect(page.locator(".groups li")).to_have_count(2)
    page.locator(".queues").get_by_role("link", name="thumbnails").focus()
    busy.queue("thumbnails").enqueue("now")
    row = page.locator("tr", has=page.get_by_role("link", name="thumbnails"))
    expect(row.locator("[data-label=Depth]")).to_have_text("1")
    assert page.evaluate("document.activeElement.textContent") == "thumbnails", "the focus stays where it was"


def test_a_message_is_cancelled_after_asking_and_its_life_says_so(busy: Workbench, opened: Open) -> None:
    path = busy.queue("invoices").enqueue({"id": 17}, name="cancel-me")
    page = opened(where=f"#/queue/invoices/message/{path.replace('/', '%2F')}")
    page.get_by_role("button", name="Cancel", exact=True).click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("If it waits, it never runs")
    dialog.get_by_role("button", name="Cancel the message").click()
    expect(page.locator(".life")).to_contain_text("Cancelled")
    expect(page.locator(".verdict .reason")).to_have_text("Cancelled")
    expect(page.get_by_role("button", name="Cancel", exact=True)).to_have_count(0)
    assert busy.queue("invoices").status(path).state == "cancelled"


def test_messages_are_found_and_their_life_is_told(busy: Workbench, opened: Open, shot: Callable[..., None]) -> None:
    page = opened(where="#/queue/emails/dead")
    expect(page.get_by_role("img", name=re.compile("In the last hour"))).to_be_visible()
    shot(page, "-queue")
    page.locator("td.path a").first.click()
    expect(page.locator(".life li")).to_have_count(3)
    expect(page.locator(".life")).to_contain_text("TimeoutError: smtp.example.com did not answer within 10 s")
    page.get_by_role("button", name="Show the payload").click()
    expect(page.locator("pre.payload")).to_have_text("?")
    shot(page, "-life")
    page.goto(page.url.partition("#")[0] + "#/queue/invoices/pending")
    page.get_by_role("searchbox", name="The beginning of the path").fill("messages/p200/")
    page.get_by_role("button", name="Search").click()
    expect(page.locator("td.path")).to_have_count(3)


def test_everything_can_be_reached_by_keyboard(busy: Workbench, opened: Open) -> None:
    page = opened()
    expect(page.locator(".groups li")).to_have_count(2)
    page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="Skip to the content")).to_be_focused()
    page.locator(".queues").get_by_role("link", name="exports").focus()
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", level=1)).to_have_text("exports")
    expect(page.locator("main")).to_be_focused()


@pytest.mark.parametrize(
    "where",
    [
        "",
        "#/queue/orders",
        "#/queue/orders/dead",
        "#/queue/orders/runs",
        "#/queue/orders/message/messages%2Fvictim",
        "#/statistics",
        f"#/queue/{HOSTILE.replace('/', '%2F')}",
    ],
)
def test_nothing_that_a_message_contains_runs(
    bench: Workbench, opened: Open, shot: Callable[..., None], where: str
) -> None:
    hostile(bench)
    page = opened(where=where)
    page.wait_for_load_state("networkidle")
    if "victim" in where:
        page.get_by_role("button", name="Show the payload").click()
        expect(page.locator("pre.payload")).to_contain_text("onerror")
    elif "HOSTILE" not in where and "#/queue/<" not in where:
        expect(page.locator("main")).to_contain_text("onerror")
    assert page.title() != "owned"
    assert page.locator("main img, main script, dialog img, #trouble img").count() == 0
    if not where:
        page.get_by_role("button", name="Replay this group").click()
        expect(page.get_by_role("dialog")).to_contain_text("onerror")
        assert page.title() != "owned"
        shot(page)


def test_an_empty_installation_says_how_to_begin(bench: Workbench, opened: Open, shot: Callable[..., None]) -> None:
    page = opened()
    expect(page.get_by_role("heading", level=2)).to_have_text("Nothing here yet")
    expect(page.locator("main")).to_contain_text("s3queue send orders 'hello'")
    shot(page)


def test_a_failing_api_is_said_and_tried_again(busy: Workbench, opened: Open, shot: Callable[..., None]) -> None:
    page = opened()
    expect(page.locator(".groups li")).to_have_count(2)
    problem = {"error": "Unavailable", "message": "S3 did not answer.", "way_out": "Try again.", "fields": []}
    page.route("**/api/**", lambda route: route.fulfill(status=503, json=problem))
    expect(page.get_by_role("alert")).to_contain_text("S3 did not answer. Try again.")
    expect(page.locator("#live-text")).to_contain_text("again in")
    expect(page.get_by_role("heading", level=1)).to_have_text("Stuck")  # the last known state stays
    shot(page)
    page.unroute("**/api/**")
    expect(page.get_by_role("alert")).to_be_empty()


def test_a_refused_action_says_why_and_stays_open(busy: Workbench, opened: Open) -> None:
    page = opened(where="#/queue/orders")
    refused = {"error": "AccessDenied", "message": "s3:PutObject is not allowed.", "way_out": "Grant it.", "fields": []}
    page.route("**/pause", lambda route: route.fulfill(status=403, body=json.dumps(refused)))
    page.get_by_role("button", name="Pause").click()
    page.get_by_role("dialog").get_by_role("button", name="Pause").click()
    expect(page.get_by_role("dialog")).to_contain_text("s3:PutObject is not allowed. Grant it.")


def test_another_site_cannot_use_the_operators_dashboard(busy: Workbench, opened: Open, server: Server) -> None:
    page = opened()
    page.route("http://evil.example/", lambda route: route.fulfill(body="<h1>evil</h1>", content_type="text/html"))
    page.goto("http://evil.example/")
    said = page.evaluate(
        """async (address) => {
            const tries = [{ method: "POST", mode: "no-cors" }, { method: "POST", headers: { "x-s3queue": "1" } }];
            const outcomes = [];
            for (const options of tries) {
              try { outcomes.push((await fetch(`${address}/api/queues/orders/pause`, options)).status); }
              catch { outcomes.push("blocked"); }
            }
            return outcomes;
        }""",
        server.address,
    )
    assert set(said) <= {0, "blocked"}, "0 is an answer that the page must not read"
    assert busy.queue("orders").overrides() == {}


def test_the_file_that_a_browser_is_started_with_leads_to_the_dashboard(
    busy: Workbench, browser: Browser, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    doors: list[str] = []
    monkeypatch.setattr("webbrowser.open", doors.append)
    server.open_browser()
    page = browser.new_page()
    page.goto(doors[0])
    expect(page.get_by_role("heading", level=1)).to_have_text("Stuck")
    assert page.url == f"{server.address}/#/"
    page.close()


def test_no_other_port_of_this_machine_is_sent_the_key(busy: Workbench, opened: Open, server: Server) -> None:
    """Ports share cookies: a page of another server here, asked by the operator's browser, was sent the key in one."""
    seen: list[str] = []

    class Other(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            seen.append(f"{self.path}\n{self.headers}")
            self.send_response(200)
            self.send_header("content-type", "text/html")
            self.end_headers()
            self.wfile.write(b"<h1>other</h1>")

        def log_message(self, *_: object) -> None:
            """Nothing: pytest's output is for tests."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Other) as other:
        threading.Thread(target=other.serve_forever, daemon=True).start()
        page = opened()
        expect(page.get_by_role("heading", level=1)).to_have_text("Stuck")
        assert page.url == f"{server.address}/#/", "the key is out of the address bar"
        assert page.context.cookies() == []
        page.goto(f"http://127.0.0.1:{other.server_port}/")
        kept = page.evaluate(
            "JSON.stringify({ ...sessionStorage, ...localStorage }) + document.cookie + document.referrer"
        )
        other.shutdown()
    assert seen
    assert server.key not in "".join(seen) + kept


def test_the_key_lasts_for_its_tab_and_can_be_replaced(busy: Workbench, opened: Open, server: Server) -> None:
    page = opened()
    expect(page.get_by_role("heading", level=1)).to_have_text("Stuck")
    page.reload()
    expect(page.get_by_role("heading", level=1)).to_have_text("Stuck")
    stranger = page.context.new_page()
    stranger.goto(server.address)
    expect(stranger.get_by_role("alert")).to_contain_text("it holds the key")
    # What a dashboard that was started anew prints, pasted into the tab of the old one.
    server.key = "another"
    expect(page.get_by_role("alert")).to_contain_text("it holds the key")
    page.goto(f"{server.address}/#key=another")
    expect(page.get_by_role("alert")).to_be_empty()
    assert page.url == f"{server.address}/#/"


def test_a_reader_is_shown_no_button_that_changes_anything(
    busy: Workbench, opened: Open, server: Server, shot: Callable[..., None]
) -> None:
    server.app = build(busy.memory, role="reader")
    page = opened(where="#/queue/emails/dead")
    page.locator("td.path a").first.wait_for()
    changing = page.locator("[data-action]:visible")
    assert {one.get_attribute("data-action") for one in changing.all()} <= {"toggle-live", "more"}
    page.locator("td.path a").first.click()
    expect(page.locator("#payload-title")).to_be_visible()
    expect(page.get_by_role("button", name="Show the payload")).to_be_hidden()
    shot(page)


def test_a_hundred_queues_are_filtered_by_name(bench: Workbench, opened: Open, shot: Callable[..., None]) -> None:
    for number in range(100):
        bench.queue(f"queue-{number:03d}").enqueue("x")
    page = opened()
    expect(page.locator(".queues tbody tr")).to_have_count(100)
    page.get_by_role("searchbox").fill("queue-04")
    expect(page.locator(".queues tbody tr")).to_have_count(10)
    shot(page)
