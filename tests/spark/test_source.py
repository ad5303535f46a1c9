"""What the data source lists, reads and writes, without a session: filters, pieces, offsets, batches that run once."""

from __future__ import annotations

import contextlib
import random
from collections import Counter
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest
from pyspark.sql.datasource import (
    EqualTo,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringStartsWith,
)

from s3queue import Queue, QueueSettings
from s3queue.errors import CorruptState, InvalidRequest, Unavailable
from s3queue.store import listing
from s3queue.stores.memory import MemoryStore
from spark.bulk import sorting
from spark.bulk.plan import Plan
from spark.rows.record_rows import RECORD_SCHEMA
from spark.source import splitting
from spark.source.filters import Span, Wanted, places
from spark.source.kinds import KINDS, Target, columns_of, flag, whole
from spark.source.reading import Objects
from spark.source.splitting import before, split
from spark.source.streaming import QueueStreamReader
from spark.source.writing import put_batches
from spark.storage.scan import list_range
from support.finished_messages import keys_under, put_records
from support.manual_clock import ManualClock


@dataclass
class InMemory:
    """A bucket whose server is a store in memory."""

    held: Any

    def store(self) -> Any:
        return self.held


# -- filters


RECORDS, MESSAGES = ("emails/records/",), ("emails/messages/", "emails/delayed/")


def of_records(*filters: Any) -> tuple[tuple[str, ...], list[tuple[str, str, str]]]:
    found = places("records", RECORDS, Wanted.by(filters))
    return found.keys, [(span.prefix, span.first, span.last) for span in found.spans]


def test_a_path_is_one_key_and_no_list():
    assert of_records(EqualTo(("path",), "messages/a")) == (("emails/records/messages/a",), [])
    assert of_records(In(("path",), ("messages/b", "messages/a")), IsNotNull(("path",)))[0] == (
        "emails/records/messages/a",
        "emails/records/messages/b",
    )
    assert of_records(EqualTo(("path",), "messages/a"), EqualTo(("path",), "messages/b")) == ((), [])
    found = places("messages", MESSAGES, Wanted.by([In(("path",), ("messages/a", "delayed/b", "x"))]))
    assert (found.keys, found.spans) == (("emails/delayed/b", "emails/messages/a"), ())


def test_the_record_of_a_message_of_a_partition_is_in_one_of_its_journals():
    keys, spans = of_records(In(("path",), ("messages/@c-1/x", "messages/y", "messages/@c-1/z")))
    assert (keys, spans) == (("emails/records/messages/y",), [("emails/records/@c-1/", "", "")])


def test_a_record_key_is_one_key_if_the_path_allows_it():
    key = "emails/records/messages/a"
    assert of_records(EqualTo(("record_key",), key)) == ((key,), [])
    assert of_records(EqualTo(("record_key",), "orders/records/messages/a")) == ((), [])
    assert of_records(EqualTo(("record_key",), key), EqualTo(("path",), "messages/b")) == ((), [])
    assert of_records(EqualTo(("record_key",), key), StringStartsWith(("path",), "messages/")) == ((key,), [])


def test_bounds_of_a_path_are_those_of_a_list_and_journals_are_read_where_they_can_hold_such_paths():
    root = "emails/records/"
    assert of_records(GreaterThan(("path",), "messages/m5"), LessThanOrEqual(("path",), "messages/m7")) == (
        (),
        [(root, root + "messages/m5", root + "messages/m7")],
    )
    _, spans = of_records(StringStartsWith(("path",), "messages/"))
    assert spans[0] == (root + "@", "", "")
    assert spans[1][:2] == (root, root + "messages/")
    _, spans = of_records(LessThan(("path",), "messages/z"))
    assert spans == [(root + "@", "", ""), (root, root + "d", root + "messages/z")]
    assert of_records(GreaterThanOrEqual(("path",), "z"), LessThan(("path",), "a")) == ((), [])
    assert of_records() == ((), [(root, "", "")])


def test_options_bound_a_frame_and_a_query_bounds_it_further():
    frame = Wanted.named({"path_prefix": "messages/p2", "path_to": "messages/p255/x"}, "records")
    path = Wanted.by([GreaterThan(("path",), "messages/p250/")], frame).of("path")
    assert path.span() == ("messages/p250/", "messages/p255/x")
    assert not path.allows("messages/p3")
    assert Wanted.named({"day": "2026-11-16"}, "archive").of("day").exact() == ["2026-11-16"]
    assert Wanted.named({}, "dead") == Wanted()
    for options, kind in (({"day_from": "x"}, "dead"), ({"path": "x"}, "archive")):
        with pytest.raises(InvalidRequest, match=f"is not for {kind}"):
            Wanted.named(options, kind)
    with pytest.raises(InvalidRequest, match="pushdown"):
        flag({"pushdown": "perhaps"}, "pushdown")


def test_what_no_key_tells_leaves_the_whole_prefix():
    found = [Not(EqualTo(("path",), "x")), EqualTo(("outcome",), "dead"), EqualTo(("attempts", "worker"), "w")]
    assert of_records(*found, EqualTo(("path",), 7)) == ((), [("emails/records/", "", "")])
    assert of_records(StringStartsWith(("path",), "a"), StringStartsWith(("path",), "b")) == ((), [])
    both = of_records(StringStartsWith(("path",), "delayed/2"), StringStartsWith(("path",), "delayed/20"))
    assert both == of_records(StringStartsWith(("path",), "delayed/20"), StringStartsWith(("path",), "delayed/2"))


@pytest.mark.parametrize("seed", range(30))
def test_no_filter_hides_a_row_that_it_allows(seed):
    """Against the plain meaning of the filters, over random paths."""
    chance = random.Random(seed)
    alphabet = [
        "messages/a",
        "messages/b1",
        "messages/b2",
        "delayed/20260101T000000Z/c",
        "messages/p200/a",
        "messages/~",
    ]
    paths = [*alphabet, "messages/@g/1", "messages/@g/2", "messages/@h/1"]
    values = [*paths, "messages/", "m", "messages/b", "messages/@", "messages/@g", "delayed/"]
    meanings = {
        EqualTo: lambda path, value: path == value,
        GreaterThan: lambda path, value: path > value,
        GreaterThanOrEqual: lambda path, value: path >= value,
        LessThan: lambda path, value: path < value,
        LessThanOrEqual: lambda path, value: path <= value,
        StringStartsWith: lambda path, value: path.startswith(value),
    }
    store = MemoryStore("filters")
    for path in alphabet:
        store.put(f"emails/records/{path}", b"x")
    for partition in "gh":
        store.put(f"emails/records/@{partition}/j-1.json", b"x")
    for _ in range(40):
        chosen = [(chance.choice(list(meanings)), chance.choice(values)) for _ in range(chance.randrange(1, 4))]
        found = places("records", RECORDS, Wanted.by([kind(("path",), value) for kind, value in chosen]))
        seen = list(found.keys)
        for span in found.spans:
            part = split(store, span)
            seen += [entry.key for entry in part.listed]
            assert not part.ranges
        for path in paths:
            if all(meanings[kind](path, value) for kind, value in chosen):
                holder = path if "@" not in path else f"@{path.split('@')[1][0]}/j-1.json"
                assert f"emails/records/{holder}" in seen, (path, chosen)
        assert len(seen) == len(set(seen)), "none twice"


# -- pieces


def everything(store, span: Span, **options: int) -> list[str]:
    found = split(store, span, **options)
    ranged = [entry.key for keys in found.ranges for entry in list_range(store, keys)]
    return [entry.key for entry in found.listed] + ranged


def test_a_prefix_that_fits_into_a_page_is_listed_once():
    lists: list[str] = []
    store = MemoryStore("small", around=lambda operation, key, perform: (lists.append(operation), perform())[1])
    for n in range(700):
        store.put(f"emails/records/messages/m{n:05d}", b"x")
    lists.clear()

    found = split(store, Span("emails/records/"))

    # Down to messages/, whose page is all there is.
    assert (len(found.listed), found.ranges, lists) == (700, (), ["list", "list"])


@pytest.mark.parametrize("layout", ["uuid", "numbers", "groups", "priorities", "partitions", "odd"])
def test_a_large_prefix_is_cut_into_pieces_that_have_each_object_once(layout):
    chance = random.Random(layout)
    lists = [0]

    def around(operation, key, perform):
        lists[0] += operation == "list"
        return perform()

    store = MemoryStore(layout, around=around)
    for n in range(6000):
        name = {
            "uuid": f"messages/0199{(n * 7919) % 10**6:08x}-7{chance.randrange(16**8):x}",
            "numbers": f"messages/m{n:07d}",
            "groups": f"messages/{chance.randrange(256):02x}/{n}",
            "priorities": f"messages/p{chance.choice([0, 100, 255]):03d}/{n}",
            "partitions": f"@c{n % 40}/{n}.json" if n % 2 else f"messages/0199{n:08x}",
            "odd": chance.choice(["é", "~", "@", "", "z\U0001f600"]) + str(n),
        }[layout]
        store.put(f"emails/records/{name}", b"x")
    expected = sorted(keys_under(store, "emails/records/"))
    lists[0] = 0

    found = split(store, Span("emails/records/"))

    looked, lists[0] = lists[0], 0
    pieces = [len(list(list_range(store, keys))) for keys in found.ranges]
    assert sorted(everything(store, Span("emails/records/"))) == expected
    assert looked <= {"groups": 300, "priorities": 130}.get(layout, 60), "the driver does not list all of it"
    if layout in ("uuid", "numbers"):
        assert max(pieces) < 1500, "cut about evenly"


def test_pieces_within_bounds():
    store = MemoryStore("bounds")
    for n in range(5000):
        store.put(f"emails/records/messages/m{n:05d}", b"x")
    root = "emails/records/messages/m"
    bounded = everything(store, Span("emails/records/", f"{root}01000", f"{root}04000"), pieces=8)
    assert sorted(bounded) == [f"{root}{n:05d}" for n in range(1000, 4001)]
    assert sorted(everything(store, Span("emails/records/", f"{root}04990"))) == [
        f"{root}{n:05d}" for n in range(4990, 5000)
    ]


def test_right_before_a_key():
    for key in ("a/b", "m!", "é", "\ue000", "x\x21", "\U00010000"):
        assert before(key) < key
        assert before(key) >= key[:-1]
    assert before("") == ""


def test_the_ways_to_cut_need_no_names_that_were_seen_before():
    store = MemoryStore("unlucky")
    for n in range(1500):
        store.put(f"emails/dead/{n:05d}", b"x")
    for n in range(1500):
        store.put(f"emails/dead/z{chr(0x4E00 + n)}", b"x")
    assert sorted(everything(store, Span("emails/dead/"))) == sorted(keys_under(store, "emails/dead/"))
    assert splitting.PROBES < 50


# -- options


def test_options_that_make_no_sense_are_refused():
    with pytest.raises(InvalidRequest, match="per_object"):
        whole({"per_object": "many"}, "per_object", 1, least=1, most=10)
    with pytest.raises(InvalidRequest, match="from 1 to 10"):
        whole({"per_object": "11"}, "per_object", 1, least=1, most=10)
    with pytest.raises(InvalidRequest, match="option columns"):
        columns_of({"columns": "path, nothing"}, KINDS["dead"])
    with pytest.raises(InvalidRequest, match="each once"):
        columns_of({"columns": "path, path"}, KINDS["dead"])
    target = Target(InMemory(MemoryStore("x")), "emails")
    with pytest.raises(InvalidRequest, match="records or dead"):
        QueueStreamReader(target, "messages", RECORD_SCHEMA, {})
    with pytest.raises(InvalidRequest, match="starting_at"):
        QueueStreamReader(target, "dead", RECORD_SCHEMA, {"starting_at": "yesterday"})
    with pytest.raises(InvalidRequest, match="settle_seconds"):
        QueueStreamReader(target, "dead", RECORD_SCHEMA, {"settle_seconds": "1"})
    with pytest.raises(CorruptState, match="offset"):
        QueueStreamReader(target, "dead", RECORD_SCHEMA, {}).partitions({"n": 1}, {"n": 2})


# -- offsets


class Stream:
    """A query over records as Spark runs it: its checkpoint keeps the offset that was read."""

    def __init__(self, store, **options: str) -> None:
        self._target = Target(InMemory(store), "emails")
        self._options = {"settle_seconds": "5"} | options
        self.read: Counter[str] = Counter()
        self.at: dict[str, str] | None = None
        self.planned: tuple[dict[str, str], dict[str, str]] | None = None
        self.restart()

    def restart(self) -> None:
        self._reader = QueueStreamReader(self._target, "records", RECORD_SCHEMA, self._options)

    def microbatch(self, *, dies: bool = False) -> int:
        """One trigger; how many objects it read. One that dies has planned its batch, and read some of it."""
        if self.planned is None:
            if self.at is None:
                self.at = self._reader.initialOffset()
            end = self._reader.latestOffset()
            if end == self.at:
                return 0
            self.planned = (self.at, end)
        partitions = self._reader.partitions(*self.planned)
        keys = [entry.key for each in partitions if isinstance(each, Objects) for entry in each.entries]
        if dies:
            self.restart()
            return 0
        self.read.update(keys)
        self.at, self.planned = self.planned[1], None
        return len(keys)


def test_a_second_is_read_when_it_is_over_and_every_object_of_it_once():
    clock = ManualClock()
    store = MemoryStore("seconds", clock=clock)
    stream = Stream(store)
    put_records(store, "emails", 3)
    assert stream.microbatch() == 0, "not settled"
    clock.advance(4)
    # The same second as the LIST that just was, and the one before.
    assert stream.microbatch() == 0
    put_records(store, "emails", 2, start=3)
    clock.advance(2)
    assert stream.microbatch() == 3
    assert stream.microbatch() == 0
    clock.advance(4)
    assert stream.microbatch() == 2
    assert stream.read == Counter(keys_under(store, "emails/records/").keys())


def test_a_put_that_appears_later_than_it_is_dated_is_read_if_it_does_so_in_time():
    clock = ManualClock()
    store = MemoryStore("late", clock=clock)
    stream = Stream(store)
    put_records(store, "emails", 1, start=10)
    # Dated now, and seen three seconds later by whoever lists; its key is before that of the other.
    (late,) = put_records(store, "emails", 1)
    hidden = store._objects.pop(late)
    store._sorted.remove(late)
    clock.advance(3)
    assert stream.microbatch() == 0
    store._objects[late] = hidden
    store._sorted.insert(0, late)
    clock.advance(3)
    assert stream.microbatch() == 2


def test_what_is_replaced_is_read_again_and_what_is_gone_is_not():
    clock = ManualClock()
    store = MemoryStore("replaced", clock=clock)
    stream = Stream(store)
    first, second = put_records(store, "emails", 2)
    clock.advance(10)
    assert stream.microbatch() == 2
    put_records(store, "emails", 1)
    put_records(store, "emails", 1, start=5)
    store.delete(second)
    store.delete("emails/records/messages/m00005")
    clock.advance(10)
    assert stream.microbatch() == 1
    assert stream.read[first] == 2


def test_a_letter_that_died_again_is_left_to_the_microbatch_that_lists_it_so():
    clock = ManualClock()
    store = MemoryStore("letters", clock=clock)
    target = Target(InMemory(store), "emails")
    store.put("emails/dead/messages/a", b"1")
    clock.advance(10)
    reader = QueueStreamReader(target, "dead", columns_of({"columns": "path"}, KINDS["dead"]), {"settle_seconds": "5"})
    start, end = reader.initialOffset(), reader.latestOffset()
    (partition,) = reader.partitions(start, end)

    def read() -> int:
        return sum(batch.num_rows for batch in reader.read(partition))

    assert read() == 1
    store.put("emails/dead/messages/a", b"1")
    assert read() == 0
    clock.advance(10)
    (partition,) = reader.partitions(end, reader.latestOffset())
    assert read() == 1


def test_a_microbatch_has_at_most_so_many_objects_also_of_one_second():
    clock = ManualClock()
    store = MemoryStore("most", clock=clock)
    stream = Stream(store, max_objects="4")
    put_records(store, "emails", 10)
    clock.advance(10)
    assert [stream.microbatch() for _ in range(4)] == [4, 4, 2, 0]
    assert set(stream.read.values()) == {1}


def test_a_stream_may_start_late_and_over_an_empty_queue():
    clock = ManualClock()
    store = MemoryStore("start", clock=clock)
    put_records(store, "emails", 1)
    clock.advance(100)
    stream = Stream(store, starting_at=(clock.now() - timedelta(seconds=50)).isoformat())
    assert stream.microbatch() == 0
    put_records(store, "emails", 1, start=1)
    clock.advance(10)
    assert stream.microbatch() == 1
    for key in keys_under(store, "emails/"):
        store.delete(key)
    stream.restart()
    assert stream.microbatch() == 0
    put_records(store, "emails", 1, start=2)
    clock.advance(10)
    assert stream.microbatch() == 1


@pytest.mark.parametrize("seed", range(40))
def test_every_object_is_read_once_whatever_dies(seed):
    chance = random.Random(seed)
    clock = ManualClock()
    store = MemoryStore("stream", clock=clock)
    stream = Stream(store, max_objects=str(chance.choice([1, 3, 1000])))
    written: set[str] = set()
    gone: set[str] = set()
    for _ in range(60):
        clock.advance(chance.choice([0, 0.3, 1, 7]))
        if chance.random() < 0.5:
            written.update(put_records(store, "emails", chance.randrange(1, 4), start=len(written)))
        if chance.random() < 0.1 and (left := sorted(keys_under(store, "emails/records/"))):
            # Expired, perhaps before it was read; also the youngest of all.
            key = chance.choice([left[-1], chance.choice(left)])
            gone.add(key)
            store.delete(key)
        if chance.random() < 0.2:
            stream.restart()
        stream.microbatch(dies=chance.random() < 0.2)
    clock.advance(10)
    before_it = None
    while stream.at != before_it or stream.planned:
        before_it = stream.at
        stream.microbatch()
    assert max(stream.read.values()) == 1
    assert written - gone <= set(stream.read) <= written


# -- batches of a stream


PLAN = Plan(queue="emails", run="stream-x.000000007", per_object=2, buckets=0, rows=0, fingerprint="")


class Died(Exception):
    """The task was killed."""


def worked_off(queue: Queue, store) -> Counter:
    """As a worker does it: what a claim gives is run, its lines and its outcome are recorded."""
    ran: Counter = Counter()
    for page in listing(store, "emails/messages/"):
        for entry in page.objects:
            claim = queue.claim(queue.keys.path(entry.key))
            if claim is not None:
                ran.update(store.open(entry.key).read().splitlines())
                queue.complete(claim)
    return ran


@pytest.mark.parametrize("history", [True, False])
@pytest.mark.parametrize("lost", ["request", "answer", "unknown"])
def test_a_microbatch_killed_at_any_request_and_worked_off_in_between_runs_every_line_once(lost, history):
    lines = [b'{"n":%d}' % n for n in range(9)] + [b'{"n":0}']
    for seed in range(30):
        chance = random.Random(f"{lost}{seed}")
        clock, left = ManualClock(), [0]

        def around(operation, key, perform, left=left):
            left[0] -= 1
            if left[0] != 0:
                return perform()
            if lost == "request":
                raise Died
            perform()
            raise Died if lost == "answer" else Unavailable("no answer")

        store = MemoryStore(f"{lost}{seed}", clock=clock, around=around)
        queue = Queue(store=store, name="emails", settings=QueueSettings.of(history=history), clock=clock)
        ran: Counter = Counter()
        for _ in range(4):
            left[0] = chance.randrange(1, 8)
            with contextlib.suppress(Died, Unavailable):
                # The rows of a task come in another order.
                put_batches(store, PLAN, 3, sorting.in_order(chance.sample(lines, len(lines))))
            left[0] = 0
            if chance.random() < 0.7:
                ran += worked_off(queue, store)
            clock.advance(5)
        put_batches(store, PLAN, 3, sorting.in_order(lines))
        ran += worked_off(queue, store)
        ran += worked_off(queue, store)
        assert ran == Counter(lines)
        assert keys_under(store, "emails/messages/") == {}


def test_microbatches_and_tasks_have_names_of_their_own():
    store = MemoryStore("names")
    for plan, task in (
        (PLAN, 0),
        (PLAN, 1),
        (Plan(queue="emails", run="stream-x.000000008", per_object=2, buckets=0, rows=0, fingerprint=""), 0),
    ):
        assert put_batches(store, plan, task, iter([b"1"]))["added"] == 1
        assert put_batches(store, plan, task, iter([b"1"]))["added"] == 0
    assert len(keys_under(store, "emails/messages/")) == 3


def test_lines_are_sorted_with_a_part_of_them_in_memory(monkeypatch):
    monkeypatch.setattr(sorting, "SORTED_BYTES", 50)
    chance = random.Random(3)
    lines = [bytes(chance.choices(b"ab\x00", k=chance.randrange(20))) for _ in range(500)]
    assert list(sorting.in_order(lines)) == sorted(lines)
    assert list(sorting.in_order([])) == []
