"""Dead letters by error type and message: looked into, replayed, deleted, acknowledged."""

from __future__ import annotations

import pytest

from s3queue import DeadLetters, Reject
from s3queue.errors import InvalidRequest, MessageNotFound, Unavailable


@pytest.fixture
def letters(queue):
    return DeadLetters(queue)


def die(bench, *errors, names=()):
    """One message dies of each."""
    queue = bench.queue(max_attempts=1)
    for number, error in enumerate(errors):
        path = queue.enqueue({"n": number}, name=names[number] if names else None)
        bench.processor(queue, raising(error)).run(path)
        bench.clock.advance(1)


def raising(error):
    def fail(_):
        raise error

    return fail


def batch(bench, *errors):
    """A batch of which each line dies of its error."""
    queue = bench.queue(max_attempts=1)
    (path,) = queue.enqueue_many(range(len(errors)))

    def fail(body: int):
        raise errors[body]

    bench.processor(queue, fail).run(path)
    return f"{path}.lines"


def counts(letters):
    return {group.key.message: (group.count, group.acknowledged) for group in letters.groups()}


def test_one_class_with_four_messages_is_four_groups(bench, letters):
    die(bench, *(Reject(f"mailbox {n} is full") for n in range(4)), Reject("line 3 is bad"), Reject("not JSON: '{'"))
    die(bench, KeyError("id"))

    found = letters.groups()

    assert [(group.key.error_type, group.key.message, group.count) for group in found] == [
        ("Reject", "mailbox * is full", 4),
        ("KeyError", "'id'", 1),
        ("Reject", "line * is bad", 1),
        ("Reject", "not JSON: *", 1),
    ]
    assert found[0].example == "mailbox 3 is full"
    assert len(set(found[0].samples)) == 4
    assert letters.describe(found[0].samples[0]).error == found[0].example
    assert found[0].oldest_at <= found[0].newest_at


def test_a_batch_counts_as_its_lines_in_the_groups_of_each(bench, letters):
    batch(bench, Reject("a 1"), Reject("b 1"), Reject("a 2"))
    die(bench, Reject("a 3"))

    assert counts(letters) == {"a *": (3, 0), "b *": (1, 0)}


def test_a_group_is_listed_by_its_form_or_by_any_text_of_it(bench, letters):
    die(bench, Reject("a 1"), Reject("b 1"), ValueError("a 2"), names=["one", "two", "three"])
    path = batch(bench, Reject("c"), Reject("a 9"))

    def paths(**wanted):
        return [letter.path for letter in letters.list(**wanted)]

    assert paths(message="a *") == paths(message="a 77") == [path, "messages/one", "messages/three"]
    assert paths(message="a *", error_type="ValueError") == ["messages/three"]
    assert paths(message="a") == []


def test_a_group_is_replayed_and_of_a_batch_its_lines(bench, letters):
    die(bench, Reject("a 1"), Reject("b 1"), names=["one", "two"])
    path = batch(bench, Reject("a 2"), Reject("b 2"), Reject("a 3"))
    bench.clock.advance(60)

    done = letters.replay_all(error_type="Reject", message="a *")

    assert done.keys() == {"messages/one", path}
    assert bench.read(f"orders/{done[path]}") == b"0\n2\n"
    assert counts(letters) == {"b *": (2, 0)}
    # Another choice of the same lines is another batch, and the rest goes, too.
    rest = letters.replay(path, message="b *")
    assert rest != done[path]
    assert bench.read(f"orders/{rest}") == b"1\n"
    assert counts(letters) == {"b *": (1, 0)}


def test_a_group_is_purged_and_of_a_batch_its_lines(bench, letters):
    die(bench, Reject("a 1"), Reject("b 1"), names=["one", "two"])
    path = batch(bench, Reject("a 2"), Reject("b 2"))

    assert letters.purge(message="a *") == 2

    assert counts(letters) == {"b *": (2, 0)}
    assert [line.body for line in letters.lines(path)] == [b"1"]


def test_a_letter_that_died_of_something_else_meanwhile_is_left_alone(bench, letters):
    die(bench, Reject("a 1"), names=["one"])
    (seen,) = letters.list(message="a *")
    with pytest.raises(MessageNotFound, match="did not die of"):
        letters.replay("messages/one", message="b *")
    with pytest.raises(MessageNotFound):
        letters.discard(seen, message="b *")
    assert counts(letters) == {"a *": (1, 0)}


def test_acknowledged_letters_stay_and_do_not_count(bench, queue, letters):
    die(bench, Reject("a 1"), Reject("a 2"), Reject("b 1"), names=["one", "two", "three"])
    bench.clock.advance(60)

    assert letters.acknowledge(error_type="Reject", message="a *") == 2

    assert counts(letters) == {"a *": (2, 2), "b *": (1, 0)}
    assert (queue.stats().dead, queue.stats().acknowledged) == (3, 2)
    letters.replay("messages/one")
    assert (queue.stats().dead, queue.stats().acknowledged) == (2, 1)


def test_what_dies_later_in_the_group_counts_again(bench, queue, letters):
    die(bench, Reject("a 1"), names=["one"])
    letters.acknowledge(message="a *")
    bench.clock.advance(60)

    die(bench, Reject("a 2"), names=["two"])
    assert counts(letters) == {"a *": (2, 1)}
    assert queue.stats().acknowledged == 1

    # Also the same message, which is replayed and dies again of the same error.
    letters.replay("messages/one")
    bench.clock.advance(60)
    bench.processor(bench.queue(max_attempts=1), raising(Reject("a 1"))).run("messages/one")
    assert (queue.stats().dead, queue.stats().acknowledged) == (2, 0)


def test_a_batch_is_acknowledged_once_all_its_lines_are(bench, queue, letters):
    batch(bench, Reject("a 1"), Reject("b 1"), Reject("a 2"))
    bench.clock.advance(60)

    letters.acknowledge(message="a *")
    assert counts(letters) == {"a *": (2, 2), "b *": (1, 0)}
    assert queue.stats().acknowledged == 0

    letters.acknowledge(message="b *")
    assert counts(letters) == {"a *": (2, 2), "b *": (1, 1)}
    assert (queue.stats().acknowledged, queue.stats().dead) == (3, 3), "a batch counts as its lines"


def test_everything_is_acknowledged_at_once_also_this_second(bench, queue, letters):
    die(bench, Reject("a 1"))
    bench.clock.advance(60)
    path = bench.queue().enqueue(1, name="late")
    bench.processor(bench.queue(max_attempts=1), raising(Reject("b 1"))).run(path)

    assert letters.acknowledge(everything=True) == 2
    assert queue.stats().acknowledged == 2

    # What dies within the same second, after it, was not seen.
    die(bench, Reject("c 1"), names=["later"])
    assert queue.stats().acknowledged == 2
    assert counts(letters)["c *"] == (1, 0)


def test_an_acknowledgement_can_be_undone(bench, queue, letters):
    die(bench, Reject("a 1"), Reject("b 1"))
    letters.acknowledge(message="a *")
    letters.acknowledge(message="b *")

    assert letters.acknowledge(message="a *", undo=True) == 1
    assert counts(letters) == {"a *": (1, 0), "b *": (1, 1)}

    letters.acknowledge(everything=True, undo=True)
    assert queue.stats().acknowledged == 0


def test_a_group_counts_again_after_everything_was_acknowledged(bench, queue, letters):
    die(bench, Reject("a 1"), Reject("b 1"))
    bench.clock.advance(60)
    letters.acknowledge(everything=True)
    bench.clock.advance(60)
    die(bench, Reject("b 2"))

    assert letters.acknowledge(message="a *", undo=True) == 1

    assert counts(letters) == {"a *": (1, 0), "b *": (2, 1)}
    assert queue.stats().acknowledged == 1


def test_of_a_batch_the_lines_of_other_groups_stay_acknowledged(bench, queue, letters):
    batch(bench, Reject("a 1"), Reject("b 1"))
    die(bench, Reject("c 1"))
    bench.clock.advance(60)
    letters.acknowledge(everything=True)

    letters.acknowledge(message="a *", undo=True)
    assert counts(letters) == {"a *": (1, 0), "b *": (1, 1), "c *": (1, 1)}

    batch(bench, Reject("b 9"), Reject("b 8"))
    assert counts(letters)["b *"] == (3, 1)
    letters.acknowledge(message="a *")
    assert counts(letters) == {"a *": (1, 1), "b *": (3, 1), "c *": (1, 1)}


@pytest.mark.parametrize(("limit", "more"), [("MOST_LETTERS", 0), ("PAGES", 1000)])
def test_a_group_among_too_many_letters_is_not_said_to_count_again(bench, queue, letters, monkeypatch, limit, more):
    die(bench, *(Reject(f"{name} 1") for name in "abc"))
    bench.clock.advance(60)
    letters.acknowledge(everything=True)
    monkeypatch.setattr(f"s3queue.protocol.dead_groups.{limit}", 1)
    for number in range(more):
        bench.put(f"orders/dead/messages/x{number}", b"")

    with pytest.raises(InvalidRequest, match="undo everything"):
        letters.acknowledge(message="a *", undo=True)
    assert queue.stats().acknowledged == 3


def test_marks_of_letters_that_are_gone_are_forgotten(bench, queue, letters):
    die(bench, Reject("a 1"), Reject("b 1"))
    letters.acknowledge(message="a *")
    letters.purge(message="a *")

    letters.acknowledge(message="b *")

    assert len(letters.acknowledgements().letters) == 1


def test_more_letters_than_the_document_has_room_for_are_refused(bench, letters, monkeypatch):
    from s3queue.protocol import dead_groups

    monkeypatch.setattr(dead_groups, "MOST_LETTERS", 2)
    die(bench, *(Reject(f"a {n}") for n in range(3)))
    with pytest.raises(InvalidRequest, match="acknowledge everything"):
        letters.acknowledge(message="a *")
    assert letters.acknowledge(everything=True) == 3


def test_nothing_is_acknowledged_by_mistake(letters):
    with pytest.raises(InvalidRequest):
        letters.acknowledge()
    with pytest.raises(InvalidRequest):
        letters.acknowledge(error_type="Reject", everything=True)


def test_two_operators_at_once_lose_nothing(bench, queue, letters):
    die(bench, Reject("a 1"), Reject("b 1"))
    interrupted = []

    def meanwhile(operation, key, perform):
        if operation == "put" and key == "orders/queue-acknowledged.json" and not interrupted:
            interrupted.append(key)
            DeadLetters(bench.queue()).acknowledge(message="b *")
        return perform()

    bench.around = meanwhile
    letters.acknowledge(message="a *")
    bench.around = None

    assert interrupted
    assert counts(letters) == {"a *": (1, 1), "b *": (1, 1)}


def test_a_lost_answer_is_no_second_acknowledgement(bench, queue, letters):
    die(bench, Reject("a 1"))
    lost = []

    def lose(operation, key, perform):
        found = perform()
        if operation == "put" and key == "orders/queue-acknowledged.json" and not lost:
            lost.append(key)
            raise Unavailable("no answer")
        return found

    bench.around = lose
    assert letters.acknowledge(message="a *") == 1
    bench.around = None
    assert lost
    assert queue.stats().acknowledged == 1


@pytest.mark.parametrize(
    "body",
    [
        b"{}",
        b"[]",
        b"\xff",
        b'{"v":1,"letters":7}',
        b'{"v":1,"groups":[[1,2,3]]}',
        b'{"v":1,"before":"soon"}',
        b"x" * 2**21,
    ],
)
def test_garbage_hides_no_letter(bench, queue, letters, body):
    die(bench, Reject("a 1"))
    bench.put("orders/queue-acknowledged.json", body)
    assert (queue.stats().dead, queue.stats().acknowledged) == (1, 0)


def test_a_queue_without_acknowledgements_pays_nothing_for_them(bench, queue, letters):
    die(bench, Reject("a 1"))
    bench.store.take()
    queue.stats()
    without = bench.store.take()
    letters.acknowledge(message="a *")
    bench.store.take()
    queue.stats()
    assert bench.store.take() == without | {"get": without.get("get", 0) + 1}


@pytest.mark.parametrize(
    "garbage", [b"not JSON", b"[" * 100_000, b'{"v":1,"letters":5}'], ids=["no JSON", "nested", "no list"]
)
def test_garbage_among_the_acknowledgements_hides_no_letter(bench, queue, letters, garbage):
    die(bench, ValueError("no"))
    bench.memory.put(queue.keys.acknowledged, garbage)
    assert counts(letters) == {"no": (1, 0)}
    assert letters.acknowledgements().letters == frozenset()


def test_an_operator_who_was_slower_does_not_undo_what_another_has_acknowledged(bench, queue, letters):
    die(bench, ValueError("early"))
    came = []

    def another_comes_between(operation, key, perform):
        if operation == "put" and key == queue.keys.acknowledged and not came:
            came.append(key)
            bench.clock.advance(10)
            die(bench, ValueError("late"))
            bench.clock.advance(10)
            DeadLetters(bench.queue()).acknowledge(everything=True)
        return perform()

    bench.around = another_comes_between
    letters.acknowledge(everything=True)
    assert came
    assert counts(letters) == {"early": (1, 1), "late": (1, 1)}


def test_acknowledgements_that_nobody_could_read_are_not_written(bench, queue, letters, monkeypatch):
    monkeypatch.setattr("s3queue.protocol.dead_groups.ACKNOWLEDGED_BYTES", 100)
    die(bench, ValueError("no"))
    with pytest.raises(InvalidRequest, match="acknowledge everything"):
        letters.acknowledge(error_type="ValueError")
    assert bench.keys(queue.keys.acknowledged) == []


@pytest.mark.parametrize("text", [rb"\q", b"\xff", rb"\u12"], ids=["escape", "bytes", "cut"])
def test_a_forged_line_of_a_letter_hides_no_others(bench, queue, letters, text):
    path = batch(bench, ValueError("one"), ValueError("two"))
    key = queue.keys.dead(path)
    found = bench.memory.open(key)
    forged = b'{"line": 9, "error_type": "' + text + b'", "error": "x", "body": "1"}\n'
    bench.memory.put(key, forged + found.read() + forged, metadata=found.metadata)
    assert counts(letters) == {"one": (1, 0), "two": (1, 0)}


@pytest.mark.parametrize("wanted", [{"message": "a *"}, {"everything": True}], ids=["group", "everything"])
def test_what_died_and_was_acknowledged_while_another_operator_looked_stays_so(bench, letters, wanted):
    """It is not in the first one's LIST, and is not taken for a letter that is gone."""
    die(bench, Reject("a 1"))
    came = []

    def another_comes_between(operation, key, perform):
        # Before the first one reads what is acknowledged, and after what he has listed until then.
        if operation == "get" and key == "orders/queue-acknowledged.json" and not came:
            came.append(key)
            bench.clock.advance(10)
            die(bench, Reject("late 1"))
            DeadLetters(bench.queue()).acknowledge(message="late *")
        return perform()

    bench.around = another_comes_between
    letters.acknowledge(**wanted)
    bench.around = None
    assert came
    assert counts(letters) == {"a *": (1, 1), "late *": (1, 1)}
