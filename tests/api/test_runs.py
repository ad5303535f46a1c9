"""Spark runs and addresses of logs, as the API tells of them."""

from __future__ import annotations

import pytest

from s3queue.dashboard import runs
from s3queue.dashboard.api import build
from s3queue.dashboard.console import Console
from s3queue.documents.run_documents import Manifest
from support.api_calls import Ask, asking
from support.sample_statistics import spark_runs
from support.workbench import Workbench


def test_a_run_is_told_with_its_state_counts_duration_and_job(bench: Workbench, ask: Ask) -> None:
    spark_runs(bench)
    found = {run["name"]: run for run in ask("GET", "/api/queues/exports/runs").body["runs"]}
    ended = found["run-ended.json"]
    assert (ended["state"], ended["counts"], ended["duration_seconds"]) == (
        "closed",
        {"completed": 412, "dead": 3},
        3600,
    )
    assert not ended["is_silent"]
    assert found["run-broken.json"]["note"] == "MemoryError('the driver was killed')"
    silent = found["run-silent.json"]
    assert silent["is_silent"]
    assert silent["duration_seconds"] == 7200, "until its last sign of life"
    working = found["run-at-work.json"]
    assert (working["job"], working["claimed"], working["begun"]) == ("00fa1b2c3d", 30, 12)
    assert working["paths"] == [f"messages/export-{number:02d}" for number in range(20)]
    assert (found["slot-1"]["kind"], found["slot-1"]["state"]) == ("slot", "cooling")


def test_only_a_run_that_is_silent_and_not_over_is_stuck(bench: Workbench, ask: Ask) -> None:
    spark_runs(bench)
    bench.clock.advance(86_400)
    stuck = ask("GET", "/api/queues/exports/stuck").body["stale_runs"]
    assert {run["name"] for run in stuck} == {"run-silent.json", "run-at-work.json"}, "one that is closed has ended"


def test_the_newest_runs_are_shown_and_the_rest_is_said_to_be_there(
    bench: Workbench, ask: Ask, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = bench.queue("exports")
    monkeypatch.setattr(runs, "RUNS_READ", 3)
    for number in range(5):
        found = Manifest(run=f"run-{number}", slot=0, state="closed", opened_at=bench.clock.now())
        bench.memory.put(queue.keys.manifest(f"run-{number}"), found.to_bytes())
        bench.clock.advance(60)
    told = ask("GET", "/api/queues/exports/runs").body
    assert [run["run"] for run in told["runs"]] == ["run-4", "run-3", "run-2"]
    assert told["exact"] is False


def test_what_is_no_run_is_shown_as_it_is(bench: Workbench, ask: Ask) -> None:
    bench.queue("exports").enqueue("x")
    bench.put("exports/runs/strange.json", b'{"state": 7}')
    bench.put("exports/runs/garbage", b"\xff")
    found = {run["name"]: run for run in ask("GET", "/api/queues/exports/runs").body["runs"]}
    assert {run["kind"] for run in found.values()} == {"other"}
    assert found["strange.json"]["document"] == {"state": 7}


def test_the_log_of_a_function_is_found_by_its_workers_id() -> None:
    console = Console(region="eu-west-1")
    worker = "shop-orders-0123456789ab-89abcdef"
    assert console.worker_logs(worker) == (
        "https://eu-west-1.console.aws.amazon.com/cloudwatch/home?region=eu-west-1#logsV2:log-groups/log-group/"
        "$252Faws$252Flambda$252Fshop-orders/log-events$3FfilterPattern$3D$2522shop-orders-0123456789ab-89abcdef$2522"
    )
    assert console.worker_logs("shop-orders-0123456789ab") is not None, "a function without a stream's name"


@pytest.mark.parametrize("worker", ["", None, "host-17-4242", "a b-0123456789ab", "x" * 70 + "-0123456789ab"])
def test_other_workers_have_no_log_that_could_be_known(worker: str | None) -> None:
    assert Console(region="eu-west-1").worker_logs(worker) is None


@pytest.mark.parametrize("region", ["", "evil.example/", "eu-west-1.evil", 'eu-west-1"'])
def test_without_a_region_there_is_no_address(region: str) -> None:
    console = Console(region=region, spark_log_group="/spark")
    assert console.worker_logs("f-0123456789ab") is None
    assert console.run_logs("run-1") is None


def test_a_message_tells_where_each_of_its_workers_logged(bench: Workbench) -> None:
    worker = "shop-orders-0123456789ab-89abcdef"
    queue = bench.queue("orders", worker_id=worker, max_attempts=1)
    path = queue.enqueue("x")
    queue.fail(queue.claim(path), "no")
    ask = asking(build(bench.store, console=Console(region="eu-west-1")))
    assert list(ask("GET", "/api/queues/orders/message", query={"path": path}).body["logs"]) == [worker]
    ask = asking(build(bench.store))
    assert ask("GET", "/api/queues/orders/message", query={"path": path}).body["logs"] == {}
