"""The paths through EMR Serverless: a heavy message, and the archive that a schedule would start every night."""

from __future__ import annotations

import io
import json
import time
import uuid
from typing import Any

from infra.local.demo import exports
from infra.local.demo.accounts import Accounts
from s3queue.keys import Keys
from s3queue.store import listing

from .installation import ASK_SECONDS, SPARK_SECONDS, Failed, Installation

BILLED_SECONDS = 90.0
ENDED = ("SUCCESS", "FAILED", "CANCELLED")


def heavy(site: Installation) -> str:
    """PutObject → S3's event → a worker that starts a run → Spark → the record."""
    s3 = site.account.client("s3")
    for key, body in exports.datasets():
        s3.put_object(Bucket=site.bucket, Key=key, Body=body)
    asked = next(one for one in exports.exports() if one.rows and "pages-" in one.sent.path)
    began = time.monotonic()
    site.put(asked.sent)
    site.outcome(asked.sent, seconds=SPARK_SECONDS)
    seconds = time.monotonic() - began
    site.measured("heavy message, PutObject → record", f"{seconds:.0f} s")
    queue = site.queue(exports.QUEUE)
    # The run closes a few requests after the last record.
    site.until(lambda: not _open_runs(site), "its run does not end", seconds=SPARK_SECONDS, every=ASK_SECONDS)
    records = Accounts({exports.QUEUE: queue}, [asked.sent]).records
    checks = list(exports.checks(queue, [asked], records))
    if wrong := [check.said for check in checks if not check.is_true]:
        raise Failed("; ".join(wrong))
    return "; ".join(check.said for check in checks)


def archive(site: Installation) -> str:
    """The job of the nightly schedule, with the request and the role that the stack has for it, started by hand."""
    request = json.loads(site.output("PipelineHistoryRequest"))
    names = sorted(site.deployment.workers)
    arguments = ["archive", "--bucket", site.bucket, *(word for name in names for word in ("--queue", name))]
    request["jobDriver"]["sparkSubmit"]["entryPointArguments"] = arguments
    emr = site.account.client("emr-serverless")
    began = time.monotonic()
    run = emr.start_job_run(**request, clientToken=uuid.uuid4().hex)["jobRunId"]

    def ended() -> dict[str, Any] | None:
        job: dict[str, Any] = emr.get_job_run(applicationId=request["applicationId"], jobRunId=run)["jobRun"]
        return job if job["state"] in ENDED else None

    job = site.until(ended, f"the archive's run {run} does not end", seconds=SPARK_SECONDS, every=ASK_SECONDS)
    if job["state"] != "SUCCESS":
        raise Failed(f"the archive's run {run} is {job['state']}: {job.get('stateDetails', '')}")
    site.measured("archive, StartJobRun → end", f"{time.monotonic() - began:.0f} s")
    records = {key for name in names for key in _keys(site, Keys(name).prefix("records"))}
    archived = list(_archived(site))
    if set(archived) != records or len(archived) != len(records):
        raise Failed(f"{len(records)} records, of which {len(records & set(archived))} are in {len(archived)} rows")
    return f"{len(records)} records of {len(names)} queues are in the archive, each once"


def _open_runs(site: Installation) -> list[str]:
    return [run.run for run in exports.runs(site.queue(exports.QUEUE)) if run.state != "closed"]


def _archived(site: Installation) -> list[str]:
    """The keys of the records that the archive holds. One run wrote it, so every file counts."""
    from pyarrow import parquet

    s3 = site.account.client("s3")
    found: list[str] = []
    for key in _keys(site, "archive/queue="):
        if key.endswith(".parquet"):
            body = s3.get_object(Bucket=site.bucket, Key=key)["Body"].read()
            found += parquet.read_table(io.BytesIO(body), columns=["record_key"])["record_key"].to_pylist()
    return found


def _keys(site: Installation, prefix: str) -> list[str]:
    store = site.queue("smoke").store
    return [entry.key for page in listing(store, prefix) for entry in page.objects]


def job_runs(site: Installation) -> list[dict[str, Any]]:
    """Every run of the application, as EMR Serverless describes it, with what it bills."""
    application, emr = site.deployment.spark_application, site.account.client("emr-serverless")
    pages = emr.get_paginator("list_job_runs").paginate(applicationId=application)
    ids = [run["id"] for page in pages for run in page["jobRuns"]]

    def described() -> list[dict[str, Any]]:
        return [emr.get_job_run(applicationId=application, jobRunId=id)["jobRun"] for id in ids]

    def billed() -> list[dict[str, Any]] | None:
        found = described()
        return found if all(job.get("billedResourceUtilization") for job in found) else None

    try:
        # Known some seconds after the end; an emulator bills nothing.
        return site.until(billed, "not billed", seconds=BILLED_SECONDS if site.account.is_aws else 0, every=ASK_SECONDS)
    except Failed:
        return described()
