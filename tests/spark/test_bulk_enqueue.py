"""Every row of a dataset becomes one message, once, whatever dies on the way and however often it is run."""

from __future__ import annotations

import json
import random
from collections import Counter

import pytest

from s3queue.errors import Conflict, CorruptState, InvalidPriority, InvalidRequest, Unavailable
from s3queue.keys import Keys
from s3queue.protocol.bulk_runs import read_report, rejected_rows
from s3queue.stores.direct import DirectStore
from s3queue.stores.memory import MemoryStore
from spark.bulk.buckets import counts_of, cut, enqueue_bucket, problem_of, put_batch
from spark.bulk.digest import HashSums
from spark.bulk.fingerprint import fingerprint, fingerprint_of, into_buckets
from spark.bulk.plan import Plan, settle_plan
from spark.bulk.rejected import RejectedRows
from spark.bulk_enqueue import (
    _read_lines,
    bulk_enqueue,
    check_complete,
    lines_of,
    main,
    read_dataset,
)
from spark.datasets import reading
from spark.datasets.ranged import TAIL_BYTES, RangedFile, RangedLines, lines_from
from spark.storage.bucket import Bucket
from support.data_frames import assertDataFrameEqual
from support.faulty_server import Answer, faulty_server
from support.finished_messages import keys_under, put_record, record
from support.killing_bucket import killing_bucket
from support.manual_clock import ManualClock
from support.recording_bucket import recording_bucket, recording_proxy, requests_in

pytestmark = pytest.mark.filterwarnings("ignore:.PYARROW_IGNORE_TIMEZONE.")
KEYS = Keys("emails")


def numbers(spark, count: int):
    return lines_of(spark.range(count).withColumnRenamed("id", "n"))


def enqueued(store) -> Counter:
    """Every line that lies in the queue."""
    found: Counter = Counter()
    for key in keys_under(store, "emails/messages/"):
        found.update(store.open(key).read().splitlines())
    return found


def work_off(store, keys=None) -> Counter:
    """As workers do: the record first, then the message goes."""
    done: Counter = Counter()
    for key in keys_under(store, "emails/messages/") if keys is None else keys:
        done.update(store.open(key).read().splitlines())
        put_record(store, "emails", record(KEYS.path(key)))
        store.delete(key)
    return done


def every(count: int) -> Counter:
    return Counter(b'{"n":%d}' % n for n in range(count))


def test_every_row_is_enqueued_once_and_a_rerun_adds_nothing(spark, bucket):
    store = bucket.store()
    options = {"per_object": 10, "batches_per_bucket": 3}

    done = bulk_enqueue(spark, bucket, "emails", numbers(spark, 400), **options)

    assert (done["messages"], done["rejected"]) == (400, {})
    assert done["added"] == done["batches"] == len(keys_under(store, "emails/messages/"))
    assert enqueued(store) == every(400)
    before = keys_under(store, "emails/")
    # Cut and ordered another way, the same data is the same run.
    again = bulk_enqueue(spark, bucket, "emails", numbers(spark, 400).repartition(7), **options)
    assert again["added"] == 0
    assert keys_under(store, "emails/") == before


def test_a_rerun_adds_nothing_after_the_messages_were_worked_off(spark, bucket):
    store = bucket.store()
    bulk_enqueue(spark, bucket, "emails", numbers(spark, 50), run="november", per_object=5)
    work_off(store)

    # Even if the run's last write was lost, and the records are past their retention.
    store.delete(KEYS.bulk("november", "done.json"))
    for key in keys_under(store, "emails/records/"):
        store.delete(key)
    assert bulk_enqueue(spark, bucket, "emails", numbers(spark, 50), run="november", per_object=7)["added"] == 0
    assert enqueued(store) == Counter()


def test_a_run_that_died_half_way_is_completed_and_what_was_worked_off_stays_so(spark, bucket):
    store = bucket.store()
    options = {"run": "november", "per_object": 5, "batches_per_bucket": 2}
    bulk_enqueue(spark, bucket, "emails", numbers(spark, 200), **options)
    # As if tasks had died: ten buckets not done, one of them never started; of the others' batches some were never PUT,
    # and some worked off meanwhile.
    store.delete(KEYS.bulk("november", "done.json"))
    messages = sorted(keys_under(store, "emails/messages/"))
    for key in keys_under(store, "emails/bulk/november/0000"):
        if key.endswith(".done"):
            store.delete(key)
    store.delete(KEYS.bulk("november", "00003.started"))
    never = [key for key in messages if "-november-00003" in key]
    for key in never:
        store.delete(key)
    in_first = [key for key in messages if "-november-0000" in key and key not in never]
    worked = work_off(store, in_first[::2])
    for key in in_first[1::4]:
        store.delete(key)

    done = bulk_enqueue(spark, bucket, "emails", numbers(spark, 200), **options)

    assert done["added"] == len(in_first[1::4]) + len(never)
    assert worked + enqueued(store) == every(200)
    assert (done["rows"], done["messages"], done["batches"]) == (200, 200, len(messages))
    assert 0 < done["buckets_done_before"] < done["buckets"]


def test_a_run_whose_executor_was_killed_is_completed_while_its_messages_are_worked_off(spark, bucket, tmp_path):
    store = bucket.store()
    options = {"per_object": 5, "batches_per_bucket": 8}

    with pytest.raises(Exception, match="worker exited"):
        bulk_enqueue(
            spark,
            killing_bucket(bucket, tmp_path / "died", ".ndjson", after=6),
            "emails",
            numbers(spark, 200),
            **options,
        )
    assert 0 < enqueued(store).total() < 200
    worked = work_off(store)

    done = bulk_enqueue(spark, bucket, "emails", numbers(spark, 200), **options)

    assert worked + enqueued(store) == every(200)
    assert done["messages"] == 200, "not only what was left to do"


def test_the_report_of_a_resumed_run_says_if_an_older_version_finished_some_of_it(spark, bucket):
    store = bucket.store()
    options = {"run": "november", "per_object": 5, "batches_per_bucket": 2}
    bulk_enqueue(spark, bucket, "emails", numbers(spark, 60), **options)
    store.delete(KEYS.bulk("november", "done.json"))
    store.put(KEYS.bulk("november", "00002.done"), b'{"v":1,"nonce":"x"}')
    old = [key for key in keys_under(store, "emails/messages/") if "-november-00002-" in key]
    uncounted = sum(len(store.open(key).read().splitlines()) for key in old)

    done = bulk_enqueue(spark, bucket, "emails", numbers(spark, 60), **options)

    assert (done["messages"], done["buckets_not_counted"], done["added"]) == (60 - uncounted, 1, 0)
    store.delete(KEYS.bulk("november", "done.json"))
    store.put(KEYS.bulk("november", "00002.done"), b'{"v":1,"messages":"many"}')
    with pytest.raises(CorruptState, match=r"00002\.done"):
        bulk_enqueue(spark, bucket, "emails", numbers(spark, 60), **options)


def test_the_same_name_with_other_data_is_refused(spark, bucket):
    bulk_enqueue(spark, bucket, "emails", numbers(spark, 5), run="a")
    bucket.store().delete(KEYS.bulk("a", "done.json"))
    with pytest.raises(InvalidRequest, match="other data"):
        bulk_enqueue(spark, bucket, "emails", numbers(spark, 6), run="a")


def test_rows_that_cannot_be_messages_are_counted_and_the_others_enqueued(spark, bucket):
    texts = ['{"n":1}', "not json", '{"n":2}', "", "  ", '{"n":NaN}', "two\nlines", '{"n":1}', None]
    rows = spark.createDataFrame([(text,) for text in texts], "line string")

    done = bulk_enqueue(spark, bucket, "emails", lines_of(rows, "line"))

    assert done["rejected"] == {"more than one line": 1, "not JSON": 2}
    assert enqueued(bucket.store()) == Counter({b'{"n":1}': 2, b'{"n":2}': 1})
    kept = list(rejected_rows(bucket.store(), KEYS, done["run"]))
    assert sorted((row.reason, row.body) for row in kept) == [
        ("more than one line", b"two\nlines"),
        ("not JSON", b"not json"),
        ("not JSON", b'{"n":NaN}'),
    ]


@pytest.mark.parametrize("form", ["ndjson", "csv", "parquet"])
def test_a_rejected_row_is_kept_with_its_object_its_number_and_the_reason(spark, bucket, tmp_path, form):
    import pyarrow as pa
    import pyarrow.parquet as pq

    store = bucket.store()
    if form == "ndjson":
        store.put("datasets/d/a", b'{"n":1}\n\nbad\n')
        store.put("datasets/d/b", b'"\xff"\n{"n":2}\n')
        expected = [("datasets/d/a", 3, b"bad"), ("datasets/d/b", 1, b'"\xff"')]
    elif form == "csv":
        store.put("datasets/d/a", b"body,x\n1,1\nbad,2\n")
        store.put("datasets/d/b", b'body,x\n"bad\nrow",1\n2,2\n')
        expected = [("datasets/d/a", 2, b"bad"), ("datasets/d/b", 1, b"bad\nrow")]
    else:
        for name, texts in (("a", ["1", "bad"]), ("b", ["2", "3", "worse"])):
            pq.write_table(pa.table({"body": texts}), tmp_path / name)
            store.put(f"datasets/d/{name}", (tmp_path / name).read_bytes())
        expected = [("datasets/d/a", 2, b"bad"), ("datasets/d/b", 3, b"worse")]
    rows = read_dataset(spark, [f"s3://{bucket.name}/datasets/d/"], form, bucket.endpoint_url)

    done = bulk_enqueue(spark, bucket, "emails", lines_of(rows, "line" if form == "ndjson" else "body"))

    kept = list(rejected_rows(store, KEYS, done["run"]))
    assert sorted((row.source, row.row, row.body) for row in kept) == expected
    assert sum(read_report(store, KEYS, done["run"]).rejected.values()) == len(expected)
    assert done["rejected_rows"] == f"emails/bulk/{done['run']}/rejected/"
    assert all("row" in example and "datasets/d/" in example for example in done["examples"])


def test_files_that_spark_reads_itself_tell_where_a_rejected_row_was(spark, bucket, tmp_path, capsys):
    source = tmp_path / "rows.ndjson"
    source.write_text('{"n":1}\nbad\n')
    given = ["--bucket", bucket.name, "--endpoint-url", bucket.endpoint_url, "--queue", "emails"]

    assert main([*given, "--source", str(source), "--read-twice"]) == 0

    told = json.loads(capsys.readouterr().out)
    (row,) = rejected_rows(bucket.store(), KEYS, told["run"])
    assert (row.source.rpartition("/")[2], row.row, row.body) == ("rows.ndjson", None, b"bad")
    assert enqueued(bucket.store()) == Counter([b'{"n":1}'])


def test_rejected_rows_are_cut_by_their_bodies_and_a_repeated_task_leaves_no_others(monkeypatch):
    monkeypatch.setattr("spark.bulk.rejected.REJECTED_BYTES", 6)
    store = MemoryStore("rejected")

    def reject(source: str) -> dict[str, int]:
        rejected = RejectedRows(store, PLAN, 0)
        for number, line in enumerate([b"aaa", b"bbb", b"ccccccccc", b"d"]):
            rejected.add("not JSON", line, source, number)
        return rejected.close()

    assert reject("a") == {"not JSON": 4}
    before = set(keys_under(store, "emails/bulk/r/rejected/"))
    assert len(before) == 3
    reject("a much longer name of the same object")
    assert set(keys_under(store, "emails/bulk/r/rejected/")) == before
    assert [row.body for row in rejected_rows(store, KEYS, "r")] == [b"aaa", b"bbb", b"ccccccccc", b"d"]


@pytest.mark.parametrize("read_twice", [False, True])
def test_a_source_is_read_once(spark, bucket, tmp_path, read_twice):
    log = tmp_path / "requests"
    ours = recording_bucket(bucket, log)
    for name in "abc":
        bucket.store().put(f"datasets/d/{name}", b'{"n":"%s"}\n' % name.encode())
    lines = lines_of(_read_lines(spark, ours, reading.find(bucket, ["datasets/d/"])), "line")

    bulk_enqueue(spark, bucket, "emails", lines, read_twice=read_twice)

    read = Counter(request.key for request in requests_in(log) if request.verb == "get")
    assert read == Counter({f"datasets/d/{name}": 2 if read_twice else 1 for name in "abc"})
    assert enqueued(bucket.store()).total() == 3


@pytest.mark.parametrize("form", ["ndjson", "csv"])
def test_a_source_that_is_replaced_between_two_readings_fails_the_run(spark, bucket, monkeypatch, form):
    store = bucket.store()
    store.put("datasets/d/a", b"n\n" + b"".join(b"%d\n" % n for n in range(100)))
    rows = read_dataset(spark, [f"s3://{bucket.name}/datasets/d/"], form, bucket.endpoint_url)

    def settle_later(store, plan):
        store.put("datasets/d/a", b"n\n1\n")
        return settle_plan(store, plan)

    monkeypatch.setattr("spark.bulk_enqueue.settle_plan", settle_later)
    lines = lines_of(rows, "line" if form == "ndjson" else None)
    with pytest.raises(Exception, match=r"datasets/d/a was replaced since it was listed"):
        bulk_enqueue(spark, bucket, "emails", lines, run="november", read_twice=True)
    assert read_report(store, KEYS, "november") is None


def test_what_was_listed_is_read_or_nothing(monkeypatch):
    store = MemoryStore("listed")
    monkeypatch.setattr(Bucket, "store", lambda self: store)
    ours = Bucket("b")
    store.put("datasets/d/a", b"1\n")
    (found,) = reading.find(ours, ["datasets/d/"])
    assert reading.open_listed(ours, found.key, found.etag).read() == b"1\n"
    assert reading.open_listed(ours, found.key, "").read() == b"1\n"
    store.put("datasets/d/a", b"2\n")
    with pytest.raises(Conflict, match="datasets/d/a was replaced"):
        reading.open_listed(ours, found.key, found.etag)
    store.delete("datasets/d/a")
    for etag in (found.etag, ""):
        with pytest.raises(Conflict, match="datasets/d/a was "):
            reading.open_listed(ours, found.key, etag)


def test_a_run_that_has_not_all_rows_is_not_done():
    sums = ["-7 12", "9 -3"]
    plan = Plan(
        queue="emails", run="november", per_object=100, buckets=2, rows=1000, fingerprint=fingerprint_of(1000, sums)
    )
    report = {"messages": 990, "rejected": {"a": 7, "b": 3}}
    check_complete(plan, report, sums)
    for messages in (600, 991):
        with pytest.raises(InvalidRequest, match=rf"'november' of emails is not done: .*1000 rows .* {messages + 10} "):
            check_complete(plan, report | {"messages": messages}, sums)
    for other in (["-7 12", "9 -4"], ["-7 12", "8 -3"], ["-7 12"]):
        with pytest.raises(InvalidRequest, match=r"'november' of emails is not done: .*1000 rows .* and others when"):
            check_complete(plan, report, other)
    # What older versions have done: without a count, and without sums.
    check_complete(plan, report | {"messages": 600, "buckets_not_counted": 1}, ["-7 12", ""])
    check_complete(plan, report, ["-7 12", ""])


def test_a_file_that_is_replaced_by_one_with_as_many_rows_fails_the_run(spark, bucket, monkeypatch, tmp_path):
    """Spark reads it itself, without an ETag. In another order they are the same rows."""
    source = tmp_path / "rows"

    def enqueue(run, replaced):
        def settle_later(store, plan):
            source.write_bytes(replaced)
            return settle_plan(store, plan)

        source.write_bytes(b"1\n2\n3\nno\n")
        monkeypatch.setattr("spark.bulk_enqueue.settle_plan", settle_later)
        lines = lines_of(read_dataset(spark, [str(source)], "ndjson"), "line")
        options = {"per_object": 1, "batches_per_bucket": 1, "read_twice": True}
        return bulk_enqueue(spark, bucket, "emails", lines, run=run, **options)

    # The second try has the right rows, and buckets that the first one has finished.
    for replaced in (b"5\n6\nno\n8\n", b"1\n2\n3\nno\n"):
        with pytest.raises(InvalidRequest, match="had 4 rows when they were counted, and others when"):
            enqueue("november", replaced)
    assert read_report(bucket.store(), KEYS, "november") is None
    assert enqueue("december", b"no\n3\n\n2\n1\n")["messages"] == 3


def test_the_report_of_a_run_that_has_not_all_rows_is_not_written(spark, bucket, monkeypatch):
    """As with files that Spark reads itself: they have no ETag."""
    monkeypatch.setattr("spark.bulk_enqueue.fingerprint", lambda lines: (7, "f"))
    with pytest.raises(InvalidRequest, match="had 7 rows when they were counted, and 5 when"):
        bulk_enqueue(spark, bucket, "emails", numbers(spark, 5), run="november")
    assert read_report(bucket.store(), KEYS, "november") is None


def test_parquet_costs_a_footer_and_the_object(spark, bucket, tmp_path):
    import pyarrow as pa
    import pyarrow.parquet as pq

    log = tmp_path / "requests"
    pq.write_table(pa.table({"n": list(range(50_000))}), tmp_path / "x", compression="none")
    body = (tmp_path / "x").read_bytes()
    assert len(body) > 3 * TAIL_BYTES
    bucket.store().put("datasets/d/1", body)
    with recording_proxy(str(bucket.endpoint_url), log) as endpoint:
        rows = read_dataset(spark, [f"s3://{bucket.name}/datasets/d/"], "parquet", endpoint)
        assert [request.verb for request in requests_in(log)] == ["list", "get"], "the footer"
        done = bulk_enqueue(spark, bucket, "emails", lines_of(rows), per_object=10_000)

    assert done["messages"] == 50_000
    assert [request.verb for request in requests_in(log)] == ["list", "get", "get"]


def test_a_ranged_file_reads_a_large_footer_in_a_second_range_and_sees_a_replaced_object(bucket, tmp_path):
    import pyarrow as pa
    import pyarrow.parquet as pq

    many = pa.table({f"column_with_a_long_name_{n}": [n] for n in range(2000)})
    pq.write_table(many, tmp_path / "x")
    body = (tmp_path / "x").read_bytes()
    bucket.store().put("datasets/d/1", body)

    file = RangedFile(bucket, "datasets/d/1", len(body))
    assert pq.read_schema(file).names == many.schema.names
    file.seek(0)
    assert file.read(4) == b"PAR1"
    bucket.store().put("datasets/d/1", body + b"x")
    file.seek(0)
    with pytest.raises(Conflict, match=r"datasets/d/1 was replaced"):
        file.read(4)
    with pytest.raises(Conflict, match=r"datasets/d/1 was replaced"):
        RangedFile(bucket, "datasets/d/1", len(body) + 100).read(4)
    bucket.store().delete("datasets/d/1")
    with pytest.raises(Conflict, match=r"datasets/d/1 was replaced or deleted"):
        pq.read_schema(RangedFile(bucket, "datasets/d/1", len(body)))


def test_an_object_that_is_read_in_parts_is_the_one_that_was_listed(bucket):
    store = bucket.store()
    store.put("datasets/d/1", b"old 1\nold 2\nold 3\n")
    (listed,) = reading.find(bucket, ["datasets/d/"])
    lines = RangedLines(bucket, *listed)
    assert b"".join(lines_from(lines, 0, 7)) == b"old 1\nold 2\n"
    store.put("datasets/d/1", b"new 1\nnew 2\nnew 3\n")

    with pytest.raises(Conflict, match=r"datasets/d/1 was replaced"):
        list(lines_from(lines, 7, listed.size))
    store.delete("datasets/d/1")
    with pytest.raises(Conflict, match=r"datasets/d/1 was replaced or deleted"):
        list(lines_from(lines, 7, listed.size))


@pytest.mark.parametrize(
    ("form", "text"),
    [("ndjson", '\ufeff{"to":"a","n":"1"}\r\n\r\n{"to":"é","n":null}'), ("csv", 'to,n\na,1\n"é",\n')],
)
def test_the_command_reads_files(spark, bucket, tmp_path, capsys, form, text):
    source = tmp_path / f"rows.{form}"
    source.write_text(text, encoding="utf-8", newline="")
    told = ["--bucket", bucket.name, "--endpoint-url", bucket.endpoint_url, "--queue", "emails", "--format", form]

    assert main([*told, "--source", str(source), "--priority", "200", "--shards", "4"]) == 0

    assert json.loads(capsys.readouterr().out)["added"] == 1
    (key,) = keys_under(bucket.store(), "emails/messages/p200/")
    assert enqueued(bucket.store()) == Counter([b'{"to":"a","n":"1"}', '{"to":"é","n":null}'.encode()])
    assert key.removeprefix("emails/messages/p200/")[2] == "/"


@pytest.mark.parametrize("form", ["ndjson", "csv", "parquet"])
def test_datasets_in_a_bucket_are_read_by_the_executors(spark, bucket, tmp_path, form):
    store = bucket.store()
    if form == "parquet":
        import pyarrow as pa
        import pyarrow.parquet as pq

        pq.write_table(pa.table({"n": [0, 1]}), tmp_path / "x")
        store.put("datasets/d/1", (tmp_path / "x").read_bytes())
    else:
        text = {"ndjson": '{"n":0}\r\n\n{"n":1}', "csv": "n\n0\n1\n"}[form]
        store.put("datasets/d/1", text.encode())
    rows = read_dataset(spark, [f"s3://{bucket.name}/datasets/d/"], form, bucket.endpoint_url)

    bulk_enqueue(spark, bucket, "emails", lines_of(rows, "line" if form == "ndjson" else None))

    assert enqueued(store) == every(2)
    with pytest.raises(InvalidRequest, match="one bucket"):
        read_dataset(spark, ["s3://a/x", "s3://b/x"], form)


def test_the_command_reads_parquet_and_a_column_of_bodies(spark, bucket, tmp_path):
    spark.createDataFrame([('{"a":1}', 1)], "payload string, n int").write.parquet(str(tmp_path / "p"))
    told = ["--bucket", bucket.name, "--endpoint-url", bucket.endpoint_url, "--queue", "emails", "--format", "parquet"]
    assert main([*told, "--source", str(tmp_path / "p"), "--body", "payload"]) == 0
    assert enqueued(bucket.store()) == Counter([b'{"a":1}'])


def test_equal_lines_share_a_bucket_and_the_fingerprint_knows_how_often(spark):
    lines = spark.createDataFrame([(b"a",), (b"b",), (b"a",)], "line binary")
    found = into_buckets(lines, 5)
    assert found.distinct().count() == 2
    assertDataFrameEqual(found.select("line"), lines)
    assert fingerprint(lines) == fingerprint(lines.repartition(3))
    assert fingerprint(lines)[1] != fingerprint(lines.distinct())[1]
    assert fingerprint(lines)[1] != fingerprint(spark.createDataFrame([(b"b",), (b"b",), (b"a",)], lines.schema))[1]


class Died(Exception):
    """The task was killed."""


PLAN = Plan(queue="emails", run="r", per_object=2, buckets=1, rows=12, fingerprint="f")


@pytest.mark.parametrize("lost", ["request", "answer", "unknown"])
def test_a_task_killed_at_any_request_is_completed_without_a_message_twice(lost):
    """The whole proof of bulk/buckets.py: kill, work some off, run again, kill again, until it is through."""
    lines = [b'{"n":%d}' % n for n in range(12)]

    def enqueue(store):
        sums = HashSums()
        read = (line for number, line in enumerate(lines) if not sums.add(number, -number))
        return enqueue_bucket(store, PLAN, 0, read, hash_sums=sums)

    for seed in range(40):
        chance = random.Random(f"{lost}{seed}")
        left = [0]

        def around(operation, key, perform, left=left):
            left[0] -= 1
            if left[0] != 0:
                return perform()
            if lost == "request":
                raise Died
            answer = perform()
            del answer
            raise Died if lost == "answer" else Unavailable("no answer")

        store = MemoryStore(f"{lost}{seed}", around=around)
        worked: Counter = Counter()
        for _ in range(30):
            left[0] = chance.randrange(1, 25)
            try:
                enqueue(store)
                break
            except (Died, Unavailable):
                left[0] = 0
                present = sorted(keys_under(store, "emails/messages/"))
                worked += work_off(store, chance.sample(present, chance.randrange(len(present) + 1)))
        left[0] = 0
        told = enqueue(store)
        assert told == {"batches": 6, "messages": 12, "added": 0, "rejected": {}, "hash_sums": "66 -12"}
        assert worked + enqueued(store) == Counter(lines)


@pytest.mark.parametrize("answer", [Answer(409, "ConditionalRequestConflict", applied=True), Answer(500, applied=True)])
def test_a_batch_that_is_worked_off_before_its_answer_comes_is_not_put_again(answer):
    """Below the task, the S3 client repeats nothing that may have landed: the task looks first."""

    class WorkingOff(ManualClock):
        def sleep(self, seconds):
            server.objects.clear()
            super().sleep(seconds)

    with faulty_server() as server:
        clock = WorkingOff()
        store = DirectStore("jobs", endpoint_url=server.endpoint, region="us-east-1", clock=clock, keys=("a", "b"))
        server.expect(answer)
        assert put_batch(store, Keys("emails"), "messages/r.1.ndjson", b"{}\n", read_first=False)

    assert [method for method, _ in server.requests] == ["PUT", "HEAD"]


@pytest.mark.parametrize("sums", [7, "7", "a b", "1 2 3"])
def test_a_marker_whose_sums_make_no_sense_is_corrupt(sums):
    store = MemoryStore("marker")
    marker = {"v": 1, "batches": 1, "messages": 1}
    store.put(PLAN.marker(0, "done"), json.dumps(marker).encode())
    assert counts_of(store, PLAN, 0) == {"batches": 1, "messages": 1, "rejected": {}, "hash_sums": ""}
    store.put(PLAN.marker(0, "done"), json.dumps(marker | {"hash_sums": sums}).encode())
    with pytest.raises(CorruptState, match=r"00000\.done is not the marker of a bulk run"):
        counts_of(store, PLAN, 0)


def test_a_message_that_is_completed_while_a_rerun_looks_is_not_enqueued_again():
    lines = [b'{"n":%d}' % n for n in range(12)]
    worked: Counter = Counter()
    looking = [False]

    def around(operation, key, perform):
        if operation == "head" and key.startswith("emails/messages/") and looking[0]:
            looking[0] = False
            worked.update(work_off(store, keys_under(store, key)))
            looking[0] = True
        return perform()

    store = MemoryStore("race", around=around)
    enqueue_bucket(store, PLAN, 0, lines)
    store.delete(PLAN.marker(0, "done"))
    looking[0] = True
    assert enqueue_bucket(store, PLAN, 0, lines)["added"] == 0
    looking[0] = False
    assert worked + enqueued(store) == Counter(lines)


def test_batches_are_cut_by_lines_and_by_bytes(monkeypatch):
    monkeypatch.setattr("spark.bulk.buckets.BYTES_PER_OBJECT", 8)
    assert list(cut([b"1", b"2", b"3", b"long line", b"4"], 2)) == [
        (b"1\n2\n", 2),
        (b"3\n", 1),
        (b"long line\n", 1),
        (b"4\n", 1),
    ]
    assert list(cut([], 2)) == []


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        (b'{"a": 1}', None),
        (b"1", None),
        (b"", "empty"),
        (b" ", "empty"),
        (None, "empty"),
        (b"1\r", "more than one line"),
        (b"nul", "not JSON"),
        (b'"\xff"', "not JSON"),
        (b"[" * 100_000, "not JSON"),
        (b'"' + b"x" * 200_000 + b'"', "too large"),
    ],
)
def test_what_can_be_a_message(line, problem):
    assert problem_of(line, 150_000) == problem


@pytest.mark.parametrize("change", [{"run": "a/b"}, {"run": ""}, {"per_object": 0}, {"shards": 257}])
def test_a_plan_that_makes_no_sense_is_refused(change):
    given = {"queue": "emails", "run": "r", "per_object": 1, "buckets": 1, "rows": 1, "fingerprint": "f"}
    with pytest.raises(InvalidRequest):
        Plan(**given | change)
    with pytest.raises(InvalidPriority):
        Plan(**given, priority=256)
