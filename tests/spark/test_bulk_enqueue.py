"""Every row of a dataset becomes one message, once, whatever dies on the way and however often it is run."""

from __future__ import annotations

import json
import random
from collections import Counter

import pytest

from s3queue.errors import InvalidPriority, InvalidRequest, Unavailable
from s3queue.keys import Keys
from s3queue.stores.memory import MemoryStore
from spark.bulk.buckets import cut, enqueue_bucket, problem_of
from spark.bulk.plan import Plan
from spark.bulk_enqueue import bulk_enqueue, fingerprint, into_buckets, lines_of, main, read_dataset
from support.data_frames import assertDataFrameEqual
from support.finished_messages import keys_under, put_record, record
from support.killing_bucket import killing_bucket

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

    bulk_enqueue(spark, bucket, "emails", numbers(spark, 200), **options)

    assert worked + enqueued(store) == every(200)


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
                enqueue_bucket(store, PLAN, 0, lines)
                break
            except (Died, Unavailable):
                left[0] = 0
                present = sorted(keys_under(store, "emails/messages/"))
                worked += work_off(store, chance.sample(present, chance.randrange(len(present) + 1)))
        left[0] = 0
        assert enqueue_bucket(store, PLAN, 0, lines) == {"batches": 0, "messages": 0, "added": 0}
        assert worked + enqueued(store) == Counter(lines)


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
