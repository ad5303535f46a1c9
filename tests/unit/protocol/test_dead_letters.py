"""Dead letters: what could not be done can be seen, grouped, tried again, and thrown away."""

from __future__ import annotations

from datetime import timedelta

import pytest

from s3queue import Conflict, DeadLetters, MessageNotFound, Reject, Unavailable
from support.killed_store import Killed


@pytest.fixture
def queue(bench):
    return bench.queue(max_attempts=1)


@pytest.fixture
def letters(queue):
    return DeadLetters(queue)


def bury(queue, error: BaseException | str = "no good", body: bytes = b"1", **options) -> str:
    path = queue.enqueue(body, **options)
    queue.fail(queue.claim(path), error, dead=True)
    return path


def test_a_dead_letter_tells_what_died_when_and_why(bench, queue, letters):
    path = queue.enqueue(b"payload", metadata={"tenant": "Zoë"})
    bench.clock.advance(3)
    claim = queue.claim(path)
    bench.clock.advance(2)
    queue.fail(claim, ValueError("Größe fehlt"))

    letter, body, record = letters.get(path)

    assert body == b"payload"
    assert (letter.path, letter.error_type, letter.error) == (path, "ValueError", "Größe fehlt")
    assert (letter.attempts, letter.worker, letter.size, letter.lines) == (1, queue.worker_id, 7, 0)
    assert letter.died_at - letter.enqueued_at == timedelta(seconds=5)
    assert record.failure.message == "Größe fehlt"
    assert letter.to_json()["error"] == "Größe fehlt"


def test_all_dead_letters_are_listed_in_order_and_from_any_point_on(bench, queue, letters):
    paths = sorted(bury(queue) for _ in range(30))

    assert [letter.path for letter in letters.list()] == paths
    assert [letter.path for letter in letters.list(after=paths[9])] == paths[10:]


def test_more_than_a_page_of_dead_letters_is_listed(bench, queue, letters):
    for number in range(1100):
        bench.memory.put(f"orders/dead/messages/{number:05d}", b"x")

    assert sum(1 for _ in letters.list()) == 1100


def test_dead_letters_are_filtered_by_error_and_by_age(bench, queue, letters):
    old = bury(queue, ValueError("a"))
    bench.clock.advance(1000)
    young = bury(queue, KeyError("b"))
    bench.clock.advance(10)

    assert [letter.path for letter in letters.list(error_type="KeyError")] == [young]
    assert [letter.path for letter in letters.list(older_than=500)] == [old]
    assert [letter.path for letter in letters.list(newer_than=timedelta(seconds=500))] == [young]
    assert list(letters.list(error_type="TypeError")) == []


def test_they_are_counted_by_what_they_died_of_most_first(queue, letters):
    for error in (KeyError("a"), ValueError("b"), ValueError("c"), Reject("d"), ValueError("e")):
        bury(queue, error)

    assert list(letters.by_error_type().items()) == [("ValueError", 3), ("KeyError", 1), ("Reject", 1)]


def test_metrics_give_count_ages_and_kinds(bench, queue, letters):
    assert letters.metrics() == {"count": 0, "oldest_seconds": None, "newest_seconds": None, "by_error_type": {}}
    bury(queue, ValueError("a"))
    bench.clock.advance(100)
    bury(queue, KeyError("b"))
    bench.clock.advance(10)

    assert letters.metrics() == {
        "count": 2,
        "oldest_seconds": 110.0,
        "newest_seconds": 10.0,
        "by_error_type": {"KeyError": 1, "ValueError": 1},
    }


def test_a_replayed_message_starts_again_with_all_its_attempts(bench):
    queue = bench.queue(max_attempts=2)
    letters = DeadLetters(queue)
    path = queue.enqueue(b"payload", priority=9, metadata={"who": "Zoë"}, content_type="text/csv")
    queue.fail(queue.claim(path), "first")
    bench.clock.advance(5)
    queue.fail(queue.claim(path, read_first=True), "second")
    bench.clock.advance(60)

    assert letters.replay(path) == path

    assert not bench.keys("orders/dead/")
    claim = queue.claim(path)
    assert (claim.attempt, claim.message.body, claim.message.content_type) == (1, b"payload", "text/csv")
    assert claim.message.metadata == {"who": "Zoë"}
    queue.complete(claim, "at last")
    assert queue.status(path).record.result == "at last"


def test_a_delayed_message_is_replayed_to_run_now(bench, queue, letters):
    path = queue.enqueue(b"1", delay=5, name="later")
    bench.clock.advance(6)
    queue.fail(queue.claim(path), "no")
    bench.clock.advance(60)

    assert letters.replay(path) == "messages/later"
    assert queue.claim("messages/later")


def test_a_dead_line_is_replayed_as_a_message_of_its_own(bench, queue, letters):
    (path,) = queue.enqueue_many([1, 2, 3])
    runs = []

    def handler(body: int) -> None:
        runs.append(body)
        if body == 2 and len(runs) <= 3:
            raise ValueError("two")

    bench.processor(queue, handler).run(path)
    (letter,) = letters.list()
    bench.clock.advance(60)

    again = letters.replay(letter.path)

    assert again == f"{path}.lines"
    assert bench.processor(queue, handler).run(again) == "completed"
    assert runs == [1, 2, 3, 2]
    assert queue.status(again).state == "completed"


def test_a_dead_line_shows_the_record_of_its_batch(bench, queue, letters):
    (path,) = queue.enqueue_many([1, 2])

    def handler(body: int) -> None:
        if body == 2:
            raise Reject("two")

    bench.processor(queue, handler).run(path)

    letter, _, record = letters.get(f"{path}.lines")
    assert (letter.lines, record.path) == (1, path)
    assert [(line.number, line.body) for line in letters.lines(letter.path)] == [(2, b"2")]


def test_a_replay_onto_a_message_that_is_there_is_refused_and_loses_neither(bench, queue, letters):
    path = bury(queue, name="taken", body=b"dead")
    bench.clock.advance(60)
    bench.memory.put(f"orders/{path}", b"alive")

    with pytest.raises(Conflict, match="let it finish, or delete one of the two"):
        letters.replay(path)

    assert bench.read(f"orders/{path}") == b"alive"
    assert bench.read(f"orders/dead/{path}") == b"dead"


def test_a_crash_in_the_middle_of_a_replay_loses_nothing_and_it_can_be_repeated(bench, queue, letters):  # [P1]
    path = bury(queue, body=b"payload")
    bench.clock.advance(60)

    def cut(operation, key, perform):
        if operation == "delete":
            raise Killed
        return perform()

    bench.around = cut
    with pytest.raises(Killed):
        letters.replay(path)
    bench.around = None

    assert bench.read(f"orders/{path}") == b"payload"
    with pytest.raises(Conflict):
        letters.replay(path)
    queue.complete(queue.claim(path))
    bench.clock.advance(5)
    assert letters.replay(path) == path
    assert not bench.keys("orders/dead/")


def test_many_are_replayed_and_each_tells_how_it_went(bench, queue, letters):
    good, taken = bury(queue), bury(queue)
    bench.clock.advance(60)
    bench.memory.put(f"orders/{taken}", b"alive")

    done = letters.replay_many([good, taken, "messages/none"])

    assert done[good] == good
    assert done[taken].startswith("Conflict: ")
    assert done["messages/none"].startswith("MessageNotFound: ")


def test_what_a_filter_selects_is_replayed_and_nothing_else(bench, queue, letters):
    wanted = {bury(queue, ConnectionError("down")) for _ in range(5)}
    other = bury(queue, ValueError("bad"))
    bench.clock.advance(60)

    assert set(letters.replay_all(error_type="ConnectionError")) == wanted
    assert [letter.path for letter in letters.list()] == [other]
    assert {claim.path for claim in queue.claim_next(10)} == wanted


def test_a_letter_that_did_not_die_of_the_chosen_error_is_left_alone(bench, queue, letters, monkeypatch):
    """Also one that was selected, and replaced by another death of its name before it was replayed."""
    path = bury(queue, ValueError("bad"))
    (letter,) = letters.list()
    opened, read = [], bench.memory.open

    def remember(*arguments, **options):
        opened.append(read(*arguments, **options))
        return opened[-1]

    monkeypatch.setattr(bench.memory, "open", remember)

    with pytest.raises(MessageNotFound, match="did not die of ConnectionError"):
        letters.replay(path, error_type="ConnectionError")
    with pytest.raises(MessageNotFound, match="did not die of ConnectionError"):
        letters.discard(letter, error_type="ConnectionError")

    assert [found.stream.closed for found in opened] == [True]
    assert bench.keys("orders/messages/") == []
    assert letters.by_error_type() == {"ValueError": 1}


def test_replayed_lines_that_died_as_a_whole_are_chosen_by_their_last_error(bench, queue, letters):
    """The letter is a COPY of what was replayed: its lines still name the errors of their first death."""
    (path,) = queue.enqueue_many(["a"])

    def handler(body: str) -> None:
        raise Reject(body)

    bench.processor(queue, handler).run(path)
    bench.clock.advance(60)
    again = letters.replay(f"{path}.lines")
    queue.fail(queue.claim(again), TimeoutError("too slow"), dead=True)
    bench.clock.advance(60)
    assert letters.by_error_type() == {"TimeoutError": 1}

    with pytest.raises(MessageNotFound, match="did not die of Reject"):
        letters.replay(again, error_type="Reject")
    assert bench.keys("orders/messages/") == []

    assert letters.replay_all(error_type="TimeoutError") == {again: again}
    assert bench.keys("orders/messages/") == [f"orders/{again}"]


def test_errors_of_lines_that_a_letter_does_not_have_select_nothing(bench, queue, letters):
    """Anybody may write metadata; one such letter must not end a purge of the others."""
    forged = {"s3queue-error-type": "ValueError", "s3queue-error-types": '{"KeyError": 1}'}
    bench.memory.put("orders/dead/messages/0-forged", b"x", metadata=forged)
    bury(queue, KeyError("b"))

    assert letters.purge(error_type="KeyError") == 1
    assert letters.by_error_type() == {"ValueError": 1}


@pytest.mark.parametrize("ends_well", [False, True])
def test_a_move_by_hand_is_a_replay(bench, queue, letters, ends_well):
    """As `aws s3 mv s3://b/orders/dead/messages/x s3://b/orders/messages/x` does it: COPY, then DELETE."""
    path = bury(queue, ValueError("first death"), body=b"payload")
    bench.clock.advance(60)
    bench.memory.copy(f"orders/dead/{path}", f"orders/{path}")
    bench.memory.delete(f"orders/dead/{path}")

    claim = queue.claim(path)
    assert claim.message.body == b"payload"
    if ends_well:
        queue.complete(claim, "done")
        assert queue.status(path).record.result == "done"
    else:
        # It dies again: the metadata of its first death must not hide the second.
        bench.clock.advance(10)
        queue.fail(claim, KeyError("second death"))
        (letter,) = letters.list()
        assert (letter.error_type, letter.error) == ("KeyError", "'second death'")


def test_dead_lines_that_are_moved_back_by_hand_run_again(bench, queue, letters):
    (path,) = queue.enqueue_many([1, 2])
    runs = []

    def handler(body: int) -> None:
        runs.append(body)
        if body == 2:
            raise Reject("two")

    bench.processor(queue, handler).run(path)
    bench.clock.advance(60)
    bench.memory.copy(f"orders/dead/{path}.lines", f"orders/{path}.lines")
    letters.delete(f"{path}.lines")

    bench.processor(queue, handler).run(f"{path}.lines")

    assert runs == [1, 2, 2]
    (letter,) = letters.list()
    assert (letter.path, letter.lines) == (f"{path}.lines", 1)
    assert [(line.number, line.body) for line in letters.lines(letter.path)] == [(1, b"2")]


def test_the_lines_of_one_error_are_replayed_and_the_others_stay(bench, queue, letters):
    (path,) = queue.enqueue_many(["a", "b", "c"])

    def handler(body: str) -> None:
        raise {"a": Reject("a"), "b": KeyError("b"), "c": Reject("c")}[body]

    bench.processor(bench.queue(max_attempts=1), handler).run(path)
    assert letters.by_error_type() == {"Reject": 2, "KeyError": 1}
    bench.clock.advance(60)

    (again,) = letters.replay_all(error_type="Reject").values()

    assert bench.read(f"orders/{again}") == b"a\nc\n"
    assert [line.body for line in letters.lines(f"{path}.lines")] == [b"b"]
    assert letters.by_error_type() == {"KeyError": 1}


def test_replaying_lines_again_after_a_crash_makes_no_second_batch(bench, queue, letters):
    (path,) = queue.enqueue_many(["a", "b"])

    def handler(body: str) -> None:
        raise {"a": Reject("a"), "b": KeyError("b")}[body]

    bench.processor(bench.queue(max_attempts=1), handler).run(path)
    bench.clock.advance(60)

    def crash(operation, key, perform):
        if operation == "put" and key.startswith("orders/dead/"):
            raise Unavailable("gone")
        return perform()

    bench.around = crash
    with pytest.raises(Unavailable):
        letters.replay(f"{path}.lines", error_type="Reject")
    bench.around = None

    again = letters.replay(f"{path}.lines", error_type="Reject")

    assert bench.keys("orders/messages/") == [f"orders/{again}"]
    assert [line.body for line in letters.lines(f"{path}.lines")] == [b"b"]


def test_the_lines_of_one_error_are_purged_and_the_others_stay(bench, queue, letters):
    (path,) = queue.enqueue_many(["a", "b"])

    def handler(body: str) -> None:
        raise {"a": Reject("a"), "b": KeyError("b")}[body]

    bench.processor(bench.queue(max_attempts=1), handler).run(path)

    assert letters.purge(error_type="Reject") == 1
    assert letters.by_error_type() == {"KeyError": 1}


def test_a_batch_of_which_thousands_of_lines_die_is_buried_with_one_put(bench, queue, letters):
    """One PUT a line took longer than the lease: the burial began again, for ever, and stopped the sweeper."""
    path = "messages/hostile.ndjson"
    bench.memory.put(f"orders/{path}", b"x\n" * 5000)
    bench.store.take()

    assert bench.processor(queue, lambda body: None).run(path) == "dead"

    assert bench.store.take()["put"] == 4  # the lease twice, the record, one letter
    (letter,) = letters.list()
    assert (letter.lines, letter.error_type) == (5000, "Reject")


def test_a_dead_letter_is_never_overwritten_by_the_next_death_under_its_name(bench, queue, letters):
    path = bury(queue, name="daily.csv", body=b"monday")
    bench.clock.advance(86400)

    bury(queue, name="daily.csv", body=b"tuesday")

    found = {letter.path: letters.get(letter.path)[1] for letter in letters.list()}
    assert found.pop(path) == b"monday"
    ((other, body),) = found.items()
    assert body == b"tuesday"
    assert letters.replay(other) == path


@pytest.mark.parametrize("name", ["m", "m.ndjson"])
def test_a_letter_that_was_written_since_the_look_is_not_overwritten(bench, queue, letters, name, monkeypatch):
    """`m.ndjson` and its replayed lines, `m.ndjson.lines`, may die at the same time: both want the same letter."""
    path = queue.enqueue(b"1\n2\n", name=name)
    wanted = f"orders/dead/{path}" + (".lines" if name == "m.ndjson" else "")
    look = bench.memory.head

    def write_after_the_look(key):
        found = look(key)
        if key == wanted and found is None:
            bench.memory.put(wanted, b"another's")
        return found

    monkeypatch.setattr(bench.memory, "head", write_after_the_look)
    claim = queue.claim(path)
    if name == "m.ndjson":
        claim.lines.done.add(1)
    queue.fail(claim, "no good", dead=True)

    monkeypatch.undo()
    assert bench.memory.open(wanted).read() == b"another's"
    (mine,) = (letter for letter in letters.list() if f"orders/dead/{letter.path}" != wanted)
    assert mine.error == "no good"
    assert queue.store.head(f"orders/{path}") is None


def test_what_was_replayed_and_has_completed_is_not_replayed_again(bench, queue, letters):
    """A crash between the PUT and the deletion of the letter leaves both."""
    path = bury(queue, body=b"work")
    bench.clock.advance(60)

    def crash(operation, key, perform):
        if operation == "delete" and key.startswith("orders/dead/"):
            raise Unavailable("gone")
        return perform()

    bench.around = crash
    with pytest.raises(Unavailable):
        letters.replay(path)
    bench.around = None
    queue.complete(queue.claim(path))
    bench.clock.advance(60)

    letters.replay(path)

    assert bench.keys("orders/messages/") == []
    assert bench.keys("orders/dead/") == []


def test_one_is_deleted_and_its_record_stays(bench, queue, letters):
    path, other = bury(queue), bury(queue)

    letters.delete(path)

    assert [letter.path for letter in letters.list()] == [other]
    assert queue.status(path).state == "dead"


def test_a_filter_is_purged_and_the_rest_stays(bench, queue, letters):
    old = bury(queue, ValueError("a"))
    bench.clock.advance(1000)
    young, other = bury(queue, ValueError("b")), bury(queue, KeyError("c"))

    assert letters.purge(error_type="ValueError", older_than=500) == 1
    assert {letter.path for letter in letters.list()} == {young, other}
    assert letters.purge() == 2
    assert not bench.keys("orders/dead/")
    assert queue.status(old).state == "dead"


@pytest.mark.parametrize("call", ["get", "replay", "delete"])
def test_what_is_not_there_is_called_so(letters, call):
    with pytest.raises(MessageNotFound, match="no such dead letter"):
        getattr(letters, call)("messages/none")


def test_an_object_that_someone_else_put_into_dead_is_a_letter_of_unknown_cause(bench, letters):
    bench.memory.put("orders/dead/messages/by hand", b"x", metadata={"s3queue-attempts": "many"})

    (letter,) = letters.list()
    assert (letter.path, letter.error_type, letter.attempts) == ("messages/by hand", "unknown", 0)
    assert letters.replay("messages/by hand") == "messages/by hand"


@pytest.mark.parametrize("kind", ["batch", "delayed"])
def test_a_letter_is_not_replayed_before_its_burial_is_finished(bench, kind):
    """The sweeper would write it again, and what the replay has completed would be dead once more."""
    queue = bench.queue(max_attempts=1)
    letters = DeadLetters(queue)
    path = queue.enqueue_many([1, 2], per_object=2)[0] if kind == "batch" else queue.enqueue(b"1", delay=5)
    bench.clock.advance(6)
    claim = queue.claim(path, read_first=True)
    if kind == "batch":
        claim.lines.done.add(1)

    def die(operation, key, perform):
        if (operation, key) == ("delete", f"orders/{path}"):
            raise Killed
        return perform()

    bench.around = die
    with pytest.raises(Killed):
        queue.fail(claim, "no good", dead=True)
    bench.around = None
    (letter,) = letters.list()

    with pytest.raises(Conflict, match="still being buried"):
        letters.replay(letter.path)

    bench.clock.advance(60)
    bench.sweeper(queue, []).sweep()
    replayed = letters.replay(letter.path)
    queue.complete(queue.claim(replayed))
    bench.clock.advance(60)
    bench.sweeper(queue, []).sweep()
    assert list(letters.list()) == []
