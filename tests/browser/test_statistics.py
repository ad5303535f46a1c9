"""Statistics and Spark runs in a real browser: charts with axes, a time range, and what to do if there is nothing."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest
from playwright.sync_api import Page, expect

from s3queue.dashboard.api import build
from s3queue.dashboard.console import Console
from s3queue.dashboard.server import Server
from support.sample_statistics import spark_runs, week_of_statistics
from support.workbench import Workbench

pytestmark = pytest.mark.xdist_group("browser")
Open = Callable[..., Page]
NOTHING = "\u2013"
CHARTS = ["throughput", "success", "wait", "run", "trouble", "workers", "cost"]


def fits(page: Page) -> bool:
    return bool(page.evaluate("document.documentElement.scrollWidth <= innerWidth"))


@pytest.mark.parametrize(("scheme", "width"), [("light", 1280), ("dark", 1280), ("light", 390), ("dark", 390)])
def test_a_week_is_drawn_with_axes_and_sums(
    bench: Workbench, opened: Open, shot: Callable[..., None], scheme: str, width: int
) -> None:
    week_of_statistics(bench, datetime.now(UTC))
    page = opened(where="#/statistics", scheme=scheme, width=width)
    expect(page.locator(".plot canvas")).to_have_count(len(CHARTS))
    assert [one.get_attribute("data-key") for one in page.locator(".plot").all()] == CHARTS
    expect(page.locator(".tiles")).to_contain_text("Success")
    expect(page.locator("[data-key=queues] tbody tr")).to_have_count(3)
    expect(page.locator("[data-key=errors]")).to_contain_text("SMTPServerDisconnected")
    assert fits(page), "nothing hangs over the edge"
    shot(page)


def test_a_range_and_a_queue_are_chosen_and_have_an_address(bench: Workbench, opened: Open) -> None:
    week_of_statistics(bench, datetime.now(UTC))
    page = opened(where="#/statistics")
    messages = page.locator(".tiles dd").first
    a_day = messages.inner_text()
    page.get_by_role("navigation", name="Time range").get_by_role("link", name="7 days").click()
    expect(messages).not_to_have_text(a_day)
    page.get_by_role("navigation", name="Queue").get_by_role("link", name="emails").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Statistics of emails")
    assert page.url.endswith("#/statistics/7d/emails")
    expect(page.locator("[data-key=wait] .u-legend")).to_contain_text("99 %")
    page.reload()
    expect(page.locator("[data-key=wait] .u-legend")).to_contain_text("99 %")


def test_the_mouse_and_the_arrow_keys_read_single_hours(
    bench: Workbench, opened: Open, shot: Callable[..., None]
) -> None:
    week_of_statistics(bench, datetime.now(UTC))
    page = opened(where="#/statistics/24h/orders")
    chart = page.locator("[data-plot=throughput]")
    completed = chart.locator(".u-series", has_text="Completed").locator(".u-value")
    expect(completed).to_have_text(NOTHING)
    chart.locator(".u-over").hover()
    expect(completed).not_to_have_text(NOTHING)
    chart.focus()
    page.keyboard.press("End")
    at = chart.locator(".u-series").first.locator(".u-value")
    expect(at).to_contain_text("UTC")
    last = at.inner_text()
    page.keyboard.press("ArrowLeft")
    expect(at).not_to_have_text(last)
    expect(at).to_contain_text("UTC")
    expect(completed).not_to_have_text(NOTHING)
    other = page.locator("[data-plot=wait] .u-series").first.locator(".u-value")
    expect(other).to_have_text(at.inner_text())
    shot(page)
    page.locator("[data-key=throughput] summary").focus()
    page.keyboard.press("Enter")
    expect(page.locator("[data-key=throughput] .figures tbody tr")).to_have_count(24)


def test_the_library_is_loaded_by_the_page_that_draws_and_by_no_other(busy: Workbench, opened: Open) -> None:
    page = opened()
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.reload()
    expect(page.locator("svg.spark")).to_have_count(4)
    assert not [url for url in asked if "uplot" in url]
    week_of_statistics(busy, datetime.now(UTC))
    page.get_by_role("link", name="Statistics").click()
    expect(page.locator(".plot canvas")).to_have_count(len(CHARTS))
    assert sorted(url.rpartition("/")[2] for url in asked if "uplot" in url) == ["uplot.min.css", "uplot.min.js"]


@pytest.mark.parametrize("width", [1280, 390])
def test_a_job_that_never_ran_is_explained(
    busy: Workbench, opened: Open, shot: Callable[..., None], width: int
) -> None:
    page = opened(where="#/statistics", width=width)
    expect(page.locator("main")).to_contain_text("has not run yet")
    expect(page.locator("main")).to_contain_text("cdk deploy -c schedule_pipeline=true")
    assert fits(page)
    shot(page)


@pytest.mark.parametrize("width", [1280, 390])
def test_the_last_hour_is_there_without_the_job(
    busy: Workbench, opened: Open, shot: Callable[..., None], width: int
) -> None:
    queue = busy.queue("emails")
    busy.clock.advance(61)
    queue.enqueue("x")
    busy.sweeper(queue, counts_hour=True).sweep()
    page = opened(where="#/statistics", width=width)
    row = page.locator("[data-key=last-hour] tr", has=page.get_by_role("link", name="emails"))
    expect(row).to_contain_text("died")
    expect(row).to_contain_text("%")
    assert fits(page)
    shot(page)


def test_a_job_that_stopped_running_is_said(bench: Workbench, opened: Open) -> None:
    week_of_statistics(bench, datetime.now(UTC) - timedelta(hours=30))
    page = opened(where="#/statistics")
    expect(page.locator(".verdict")).to_contain_text("has not for 30 h: look at the alarms RunFailed")
    expect(page.locator(".plot canvas")).to_have_count(len(CHARTS))


@pytest.mark.parametrize(("scheme", "width"), [("light", 1280), ("dark", 390)])
def test_runs_have_state_counts_duration_messages_and_logs(
    busy: Workbench, opened: Open, server: Server, shot: Callable[..., None], scheme: str, width: int
) -> None:
    spark_runs(busy)
    console = Console(region="eu-west-1", spark_log_group="/s3queue/shop/spark")
    server.app = build(busy.memory, console=console)
    page = opened(where="#/queue/exports/runs", scheme=scheme, width=width)
    ended = page.locator("tr", has_text="run-ended")
    expect(ended).to_contain_text("Ended")
    expect(ended).to_contain_text("412 completed, 3 dead")
    expect(ended).to_contain_text("60 min")
    link = ended.get_by_role("link", name="Logs")
    assert str(link.get_attribute("href")).startswith(
        "https://eu-west-1.console.aws.amazon.com/cloudwatch/home?region="
    )
    expect(page.locator("tr", has_text="run-broken")).to_contain_text("the driver was killed")
    expect(page.locator("tr", has_text="run-silent")).to_contain_text("no sign of life for 30 min")
    working = page.locator("tbody tr", has_text="run-at-work").first
    expect(working).to_contain_text("EMR job 00fa1b2c3d")
    expect(working).to_contain_text("holds 30, 12 begun")
    expect(page.locator("tr", has_text="Slot 1")).to_contain_text("ServiceQuotaExceededException")
    assert fits(page)
    shot(page)
    working.get_by_text("Messages it holds").click()
    expect(working.get_by_role("link", name="messages/export-00")).to_be_visible()


def test_a_queue_without_runs_says_why(busy: Workbench, opened: Open) -> None:
    page = opened(where="#/queue/orders/runs")
    expect(page.locator("[data-key=list]")).to_contain_text("This queue uses no Spark.")
