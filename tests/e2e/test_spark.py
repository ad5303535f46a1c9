"""Heavy messages on the deployed stack: PutObject → S3's event → Lambda → EMR Serverless → Spark → a record each."""

from __future__ import annotations

import json
from urllib.request import urlopen

import pytest

from infra import LOCAL_APPLICATION
from s3queue.spark_runs.slots import RunStore
from support.deployed_stack import DeployedStack


@pytest.mark.timeout(900)
def test_heavy_messages_are_one_run_and_each_has_its_own_outcome(bench: DeployedStack, unique: str) -> None:
    lines = b"".join(json.dumps({"n": n, "even": n % 2 == 0}).encode() + b"\n" for n in range(10))
    bench.stack.client("s3").put_object(Bucket=bench.stack.bucket, Key=f"datasets/{unique}/1.ndjson", Body=lines)
    request = {"source": f"datasets/{unique}/", "source_format": "ndjson", "filter": "even", "format": "csv"}
    good = [
        bench.put("exports", f"messages/{unique}-{n}", request | {"destination": f"analytics/exports/{unique}-{n}/"})
        for n in range(3)
    ]
    bad = bench.put("exports", f"messages/{unique}-bad", request | {"destination": "emails/messages/"})
    queue = bench.queue("exports")

    records = [bench.outcome(queue, path, seconds=600) for path in (*good, bad)]

    assert [record.outcome for record in records] == ["completed"] * 3 + ["dead"]
    failure = records[3].failure
    assert failure
    assert "must start with analytics/exports/" in failure.message
    assert {record.result["rows"] for record in records[:3]} == {5}
    (file,) = records[0].result["files"]
    assert bench.read(file).splitlines()[0] == b'"n","even"'
    # A worker's name is its run's: at most a second one, for what came while the first one closed.
    runs = {record.worker for record in records}
    assert len(runs) <= 2
    bench.until(lambda: RunStore(queue).slot(0) is None)

    # Whoever asks EMR for a run's page is shown what its driver logged.
    emr = bench.stack.client("emr-serverless")
    jobs = {job["name"]: job["id"] for job in emr.list_job_runs(applicationId=LOCAL_APPLICATION)["jobRuns"]}
    assert runs <= set(jobs)
    for run in runs:
        page = emr.get_dashboard_for_job_run(applicationId=LOCAL_APPLICATION, jobRunId=jobs[run])["url"]
        with urlopen(page) as answer:
            assert f"run takes messages over: exports: {run}".encode() in answer.read()
