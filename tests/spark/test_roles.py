"""The pipeline's jobs send nothing that their deployed roles refuse, and what these allow, they send."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path

import pytest

from s3queue import Queue, QueueSettings, Reject
from s3queue.keys import Keys
from spark import archive, bulk_enqueue, pipeline, replay, statistics
from spark.storage.bucket import Bucket
from support.archived_files import put_old_commit, put_part
from support.finished_messages import NOON, put_records
from support.iam_template import Role, Template
from support.recording_bucket import Request, recording_bucket, recording_proxy, requests_in
from support.spark_stack import QUEUES, role, synthesized
from support.workbench import Workbench

LETTERS = {"put": "p", "get": "g", "head": "g", "delete": "d"}
ACTIONS = {"g": "s3:GetObject", "p": "s3:PutObject", "d": "s3:DeleteObject"}


@pytest.fixture(scope="module")
def template(tmp_path_factory) -> Template:
    return synthesized(tmp_path_factory.mktemp("scheduled"), schedule_pipeline=True)


def refused(requests: list[Request], who: Role, bucket: str) -> list[Request]:
    return [request for request in requests if not allowed(request, who, bucket)]


def allowed(request: Request, who: Role, bucket: str) -> bool:
    if request.verb == "list":
        return who.may_list(bucket, request.key)
    conditions = {"s3:if-match": request.if_match, "s3:if-none-match": "*" if request.if_absent else None}
    context = {name: value for name, value in conditions.items() if value}
    return all(who.may(ACTIONS[letter], f"{bucket}/{request.key}", context) for letter in needed(request))


def needed(request: Request) -> str:
    # S3 wants to see that whoever names an ETag may know it.
    return LETTERS[request.verb] + ("g" if request.if_match else "")


def used(requests: list[Request], tables: list[str]) -> dict[str, str]:
    """The letters that were used on each kind of object, by its kind or its prefix."""
    found: dict[str, set[str]] = defaultdict(set)
    for request in requests:
        if request.verb != "list":
            (kind,) = [kind for kind in tables if _is(request.key, kind)]
            found[kind] |= set(needed(request))
    return {kind: "".join(sorted(letters)) for kind, letters in found.items()}


def _is(key: str, kind: str) -> bool:
    from infra.permissions import BULK, HISTORY

    if kind in HISTORY or kind in BULK or kind in BULK_READS:
        return key.partition("/")[2].startswith(f"{kind}/") and key.partition("/")[0] in QUEUES
    first, _, rest = kind.partition("*")
    return key.startswith(first) and rest in key


#: What the pattern of BULK_PATTERNS is there for.
BULK_READS = ("messages", "delayed", "records", "dead", "leases", "dedup")


def in_order(*tables) -> dict[str, str]:
    return {kind: "".join(sorted(letters)) for table in tables for kind, letters in table.items()}


def scheduled(template: Template, job: str) -> list[str]:
    """The arguments that the schedule of a job gives it."""
    for schedule in template.of_type("AWS::Scheduler::Schedule").values():
        given = json.loads(schedule["Target"]["Input"])
        if given["Tags"]["s3queue:job"] == job:
            return given["JobDriver"]["SparkSubmit"]["EntryPointArguments"]
    raise LookupError(job)


def test_archive_and_statistics_run_as_scheduled_under_the_history_role(
    spark, bucket: Bucket, template: Template, tmp_path: Path, monkeypatch, moto_endpoint
):
    monkeypatch.setenv("AWS_ENDPOINT_URL_CLOUDWATCH", moto_endpoint)
    from infra.permissions import HISTORY, HISTORY_DATA, STATISTICS, STATISTICS_STATE

    log = tmp_path / "requests"
    store = bucket.store()
    for queue in QUEUES:
        put_records(store, queue, 3)
        # What a run that died left behind.
        store.put(Keys(queue).archive_part("2026-11-16", 1, "aa"), b"x")
    # An archive of the layout before the table.
    put_old_commit(store, "emails", 1, [put_part(store, "emails", ["old"])])
    # Or what is replaced and left behind would stay for days.
    monkeypatch.setattr(archive, "KEPT_DAYS", 0)
    with recording_proxy(str(bucket.endpoint_url), log) as endpoint:
        ours = recording_bucket(bucket, log, table_endpoint=endpoint)
        for module in (archive, statistics):
            monkeypatch.setattr(module, "Bucket", lambda name, endpoint_url: ours)
        for number, job in enumerate(("archive", "statistics", "archive", "statistics")):
            # New ones each time, so that former commits are read, and one is added.
            put_records(store, "emails", 1, start=100 + number, finished_at=NOON)
            assert pipeline.main(scheduled(template, job)) == 0

    requests = list(requests_in(log))
    seen = bucket.archive().snapshot()
    assert seen.commits("emails") == 3
    assert len(seen.parts("emails")) == 1, "compacted"
    assert all(request.if_absent for request in requests if request.verb == "put" and "_delta_log/0" in request.key)
    assert store.open(STATISTICS)
    assert refused(requests, role(template, "HistoryRole"), template.queue_bucket) == []
    tables = in_order(HISTORY, HISTORY_DATA, {STATISTICS: "gp", STATISTICS_STATE: "gp"})
    assert used(requests, list(tables)) == tables


def test_bulk_enqueue_and_replay_run_under_the_bulk_role(spark, bucket: Bucket, template: Template, tmp_path: Path):
    from infra.permissions import BULK, BULK_DATA

    log = tmp_path / "requests"
    ours = recording_bucket(bucket, log)
    store = bucket.store()
    store.put("datasets/emails/1.ndjson", b"".join(b'{"n": %d}\n' % n for n in range(25)) + b"not JSON\n")
    queue = Queue(store=store, name="emails", settings=QueueSettings.of(max_attempts=1))
    dead = queue.enqueue({"do": "reject"})
    assert Workbench().processor(queue, _reject).run(dead) == "dead"
    # Its letter is replayed under another name, so whoever replays it looks whether it is still being buried.
    delayed = "delayed/20200101T000000Z/later"
    store.put(f"emails/{delayed}", b'{"do": "reject"}')
    assert Workbench().processor(queue, _reject).run(delayed, read_first=True) == "dead"
    # A group's goes to the end of it.
    assert Workbench().processor(queue, _reject).run(queue.enqueue({"do": "reject"}, group="ada")) == "dead"
    (batch,) = queue.enqueue_many([{"do": "reject"}, {"do": "fail"}])
    Workbench().processor(queue, _reject).run(batch)

    read = recorded_dataset(spark, ours)
    for _ in range(2):
        # The second one finds a bucket that was started and not done: it looks at messages and records.
        bulk_enqueue.bulk_enqueue(spark, ours, "emails", bulk_enqueue.lines_of(read, "line"), run="one", per_object=5)
        for marker in ("done.json", "00000.done"):
            store.delete(Keys("emails").bulk("one", marker))
    rejected = replay.Filter(before=NOON.replace(year=2100), error_types=("Reject",))
    assert replay.replay(spark, ours, "emails", rejected)["counts"] == {"replayed": 4}

    # Into another queue, from a letter that died anew.
    again = queue.enqueue({"do": "reject"})
    assert Workbench().processor(queue, _reject).run(again) == "dead"
    Queue(store=store, name="exports").enqueue({})
    assert replay.replay(spark, ours, "emails", rejected, to="exports")["counts"]["replayed"] == 1
    assert Queue(store=store, name="exports").status(again).state == "pending"

    requests = list(requests_in(log))
    assert any(request.key.startswith("emails/bulk/one/rejected/") for request in requests)
    assert refused(requests, role(template, "BulkRole"), template.queue_bucket) == []
    reads = {kind: BULK.get(kind, "") + "g" for kind in BULK_READS}
    tables = in_order(BULK | reads, BULK_DATA, {"exports/queue-settings.json": "g"})
    assert used(requests, list(tables)) == tables


def test_what_a_bulk_run_remembers_and_rejects_goes_after_a_year(template: Template):
    rules = [
        rule
        for bucket in template.of_type("AWS::S3::Bucket").values()
        for rule in bucket.get("LifecycleConfiguration", {}).get("Rules", ())
    ]
    days = {rule["Prefix"]: rule["ExpirationInDays"] for rule in rules if "Prefix" in rule}
    assert {days[Keys(queue).prefix("bulk")] for queue in QUEUES} == {400}


def recorded_dataset(spark, bucket: Bucket):
    from spark.datasets import reading

    return bulk_enqueue._read_lines(spark, bucket, reading.find(bucket, ["datasets/emails/"]))


def _reject(body: dict[str, str]) -> None:
    raise Reject("no") if body["do"] == "reject" else ValueError("no")
