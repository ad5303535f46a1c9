"""Kept payloads: with `keep_payload`, what is completed lies under `done/`, and can be run again."""

from __future__ import annotations

from typing import Any

import pytest

from s3queue import Conflict, DeadLetters, InvalidRequest, MessageNotFound, QueueSettings, Reject, Unavailable
from s3queue.documents.kept_payload import payload_metadata
from s3queue.errors import AccessDenied
from s3queue.worker.partition_run import run_partition
from support.killed_store import Killed

METADATA = {"customer": "4711", "note": "grüße"}


@pytest.fixture
def queue(bench):
    return bench.queue(keep_payload=True, max_attempts=2, visibility_timeout=10)


@pytest.fixture
def ran() -> list[Any]:
    return []


@pytest.fixture
def processor(bench, queue, ran):
    def handle(body: Any) -> Any:
        ran.append(body)
        if body == "reject":
            raise Reject("no")
        return body

    return bench.processor(queue, handle)


def complete(bench, queue, processor, body: Any = b'"x"', **options: Any) -> str:
    path = queue.enqueue(body, metadata=METADATA, content_type="text/x-order", **options)
    assert processor.run(path, read_first=True) == "completed"
    bench.clock.advance(2)
    return path


def kept(bench) -> list[str]:
    return bench.keys("orders/done/")


def test_a_completed_message_is_kept_as_it_was(bench, queue, processor):
    path = complete(bench, queue, processor)

    found = bench.memory.open(f"orders/done/{path}")
    assert (found.read(), found.content_type) == (b'"x"', "text/x-order")
    status = queue.status(path)
    assert (status.state, status.kept.key) == ("completed", f"orders/done/{path}")
    assert status.to_json()["kept_payload"] == f"orders/done/{path}"
    assert bench.keys("orders/messages/") == bench.keys("orders/leases/") == []


def test_a_queue_that_does_not_ask_for_it_keeps_nothing(bench, processor, queue):
    other = bench.queue()
    path = other.enqueue(b"1")
    assert bench.processor(other, lambda body: None).run(path) == "completed"
    assert kept(bench) == []
    status = other.status(path)
    assert status.kept is None
    assert "kept_payload" not in status.to_json()
    assert b"keeps_payload" not in bench.read(f"orders/records/{path}")


def test_what_died_is_a_dead_letter_and_not_kept(bench, queue, processor):
    path = queue.enqueue("reject", content_type="application/json")
    bench.memory.put(f"orders/{path}", b'"reject"')
    assert processor.run(path) == "dead"
    assert kept(bench) == []


def test_a_batch_is_kept_as_a_whole_also_if_lines_of_it_died(bench, queue, processor):
    whole, part = queue.enqueue_many([1, 2])[0], queue.enqueue_many([1, "reject"])[0]
    # Text is a line as it is; JSON has quotes.
    bench.memory.put(f"orders/{part}", b'1\n"reject"\n')
    assert processor.run(whole) == processor.run(part) == "completed"

    assert bench.read(f"orders/done/{whole}") == b"1\n2\n"
    assert bench.read(f"orders/done/{part}") == b'1\n"reject"\n'
    assert bench.keys("orders/dead/") == [f"orders/dead/{part}.lines"]


def test_it_needs_a_record():
    with pytest.raises(InvalidRequest, match="keep_payload needs history"):
        QueueSettings.of(keep_payload=True, history=False)


@pytest.mark.parametrize("body", [b'"x"', b'"reject"'])
def test_after_a_crash_at_any_request_the_sweeper_keeps_it(bench, body):
    """Also a sweeper that does not know the setting: the record says it."""
    for requests in range(1, 12):
        name = f"q{requests}-{len(body)}"
        queue = bench.queue(name, keep_payload=True, max_attempts=1, visibility_timeout=10)
        path = f"messages/{requests}.ndjson"
        bench.memory.put(f"{name}/{path}", b'"x"\n' + body)
        left = requests

        def killed(operation: str, key: str, perform: Any) -> Any:
            nonlocal left
            left -= 1
            if left < 0:
                raise Killed
            return perform()

        def handle(found: Any) -> None:
            if found == "reject":
                raise Reject("no")

        bench.around = killed
        try:
            bench.processor(queue, handle).run(path)
            is_done = True
        except Killed:
            is_done = False
        bench.around = None
        ordinary = bench.queue(name, max_attempts=2, visibility_timeout=10)
        was_recorded = bool(bench.keys(f"{name}/records/"))
        bench.clock.advance(60)
        bench.sweeper(ordinary).sweep()
        if was_recorded:
            assert bench.read(f"{name}/done/{path}") == b'"x"\n' + body
            assert bench.keys(f"{name}/messages/") == bench.keys(f"{name}/leases/") == []
        if is_done:
            assert requests > 5
            return
    raise AssertionError("never done")


def test_a_copy_without_an_answer_is_repeated(bench, queue, processor):
    lost = 2

    def unanswered(operation: str, key: str, perform: Any) -> Any:
        nonlocal lost
        answer = perform()
        if operation == "copy" and lost:
            lost -= 1
            raise Unavailable("no answer")
        return answer

    bench.around = unanswered
    path = complete(bench, queue, processor)
    assert lost == 0
    assert kept(bench) == [f"orders/done/{path}"]


def test_a_message_that_may_not_be_copied_stays(bench, queue, processor, caplog):
    def refused(operation: str, key: str, perform: Any) -> Any:
        if operation == "copy":
            raise AccessDenied("no s3:PutObject on orders/done/*")
        return perform()

    path = queue.enqueue(b'"x"')
    bench.around = refused
    assert processor.run(path) == "lost"
    assert "orders/done/*" in caplog.text
    assert bench.keys("orders/messages/")

    bench.around = None
    bench.clock.advance(60)
    bench.sweeper(queue).sweep()
    assert kept(bench) == [f"orders/done/{path}"]
    assert bench.keys("orders/messages/") == []


def test_what_was_put_anew_meanwhile_is_not_taken_for_it(bench, queue, ran):
    path = queue.enqueue(b'"first"', name="one")

    def handle(body: Any) -> None:
        ran.append(body)
        if body == "first":
            bench.memory.put(f"orders/{path}", b'"second"')

    bench.processor(queue, handle).run(path)
    assert ran == ["first", "second"]
    assert bench.read(f"orders/done/{path}") == b'"second"'
    assert queue.status(path).kept


def test_a_zombie_keeps_nothing(bench, queue):
    path = queue.enqueue(b'"x"')
    claim = queue.claim(path)
    bench.clock.advance(60)
    assert queue.complete(claim, "late").keeps_payload
    assert kept(bench) == []
    bench.sweeper(queue).sweep()
    assert kept(bench) == [f"orders/done/{path}"]


def test_an_earlier_payload_is_not_shown_for_a_later_message(bench, queue, processor):
    path = complete(bench, queue, processor, name="one")
    queue.configure(keep_payload=False)
    queue.enqueue(b'"other"', name="one")
    assert processor.run(path) == "completed"

    assert kept(bench)
    assert queue.status(path).kept is None
    with pytest.raises(MessageNotFound, match="keep_payload=True"):
        queue.replay(path)


def test_cleanup_deletes_payloads_with_their_records(bench, queue, processor):
    complete(bench, queue, processor)
    bench.clock.advance(6 * 86_400)
    assert queue.cleanup() == 2
    assert kept(bench) == bench.keys("orders/records/") == []


def test_metadata_that_leaves_no_room_is_left_out(bench, queue, processor):
    path = queue.enqueue(b'"x"', metadata={"long": "x" * 1950})
    claim = queue.claim(path)
    stored = claim.message.stored(f"orders/{path}", claim.now())
    queue.complete(claim)
    assert bench.memory.head(f"orders/done/{path}").metadata["s3queue-dropped"] == "all"
    assert "long" not in payload_metadata(stored, queue.status(path).record)
    assert queue.status(path).kept


# Replay


def test_a_replay_runs_the_same_payload_again_with_its_metadata(bench, queue, processor, ran):
    path = complete(bench, queue, processor)
    assert queue.replay(path) == path

    claim = queue.claim(path)
    assert claim.message.metadata == METADATA
    assert (claim.message.content_type, claim.attempt) == ("text/x-order", 1)
    queue.complete(claim, "again")
    assert queue.status(path).record.result == "again"
    assert kept(bench) == [f"orders/done/{path}"]


def test_each_completion_is_replayed_once(bench, queue, processor, ran):
    path = complete(bench, queue, processor)
    seen = queue.status(path).record
    for _ in range(3):
        assert queue.replay(path, of=seen) == path
    assert processor.run(path) == "completed"
    for _ in range(3):
        assert queue.replay(path, of=seen) == path
    assert bench.keys("orders/messages/") == []
    assert ran == ["x", "x"]

    bench.clock.advance(2)
    queue.replay(path)
    assert processor.run(path) == "completed"
    assert ran == ["x", "x", "x"]
    with pytest.raises(Conflict, match="another outcome by now"):
        queue.replay(path, of=seen)


@pytest.mark.parametrize("is_stored", [True, False])
@pytest.mark.parametrize("has_run", [True, False])
def test_a_replay_without_an_answer_runs_once(bench, queue, processor, ran, is_stored, has_run):
    path = complete(bench, queue, processor)
    seen = queue.status(path).record
    lost = 1

    def unanswered(operation: str, key: str, perform: Any) -> Any:
        nonlocal lost
        if operation == "put" and key == f"orders/{path}" and lost:
            lost -= 1
            if is_stored:
                perform()
                if has_run:
                    bench.around = None
                    processor.run(path)
            raise Unavailable("no answer")
        return perform()

    bench.around = unanswered
    assert queue.replay(path) == path
    bench.around = None
    queue.replay(path, of=seen)
    processor.run(path)
    assert ran == ["x", "x"]


def test_a_replay_within_the_second_of_the_put_is_a_generation_of_its_own(bench, queue, processor, ran):
    path = queue.enqueue(b'"x"')
    assert processor.run(path) == "completed"
    first = queue.status(path).record
    queue.replay(path)
    # As a retry or a rescue claims it: the record is read before anything runs.
    assert processor.run(path, read_first=True) == "completed"
    assert ran == ["x", "x"]
    assert queue.status(path).record.generation != first.generation


def test_a_replay_waits_until_its_former_life_is_cleared_away(bench, queue, ran):
    """Its worker died between the two deletes; the sweeper would charge that attempt to the replay."""
    path = queue.enqueue(b'"x"', name="one")

    def dies(operation: str, key: str, perform: Any) -> Any:
        if operation == "delete" and "/leases/" in key:
            raise Killed
        return perform()

    bench.around = dies
    with pytest.raises(Killed):
        bench.processor(queue, lambda body: None).run(path)
    bench.around = None
    with pytest.raises(Conflict, match="not cleared away yet"):
        queue.replay(path)
    bench.clock.advance(60)
    bench.sweeper(queue).sweep()
    assert queue.replay(path) == path


def test_a_replay_in_a_partition_waits_until_its_completion_is_cleared_away(bench, ran):
    """[P1] Someone deleted the message by hand before its holder did, who would delete equal bytes in its place."""
    queue = bench.queue(keep_payload=True, partitions=1)
    path = queue.enqueue(b'"x"', name="one")

    def meddles(operation: str, key: str, perform: Any) -> Any:
        if operation in ("delete", "delete_many") and path in key:
            bench.around = None
            bench.memory.delete(f"orders/{path}")
            bench.clock.advance(2)
            with pytest.raises(Conflict, match="not cleared away yet"):
                queue.replay(path)
            refused.append(path)
        return perform()

    refused: list[str] = []
    bench.around = meddles
    run_partition(bench.processor(queue, ran.append), "@=0", should_stop=lambda: False, count=lambda ending: None)
    assert refused

    assert queue.replay(path) == path
    assert bench.keys("orders/messages/") == [f"orders/{path}"]


def test_a_replay_overwrites_nothing(bench, queue, processor):
    path = complete(bench, queue, processor, name="one")
    bench.memory.put(f"orders/{path}", b'"new"')
    with pytest.raises(Conflict, match="exists already"):
        queue.replay(path)
    assert bench.read(f"orders/{path}") == b'"new"'


def test_a_delayed_message_is_replayed_as_one_that_is_due(bench, queue, processor, ran):
    path = queue.enqueue(b'"x"', name="later", delay=5)
    bench.clock.advance(10)
    assert processor.run(path) == "completed"
    bench.clock.advance(2)
    seen = queue.status(path).record
    assert queue.replay(path, of=seen) == "messages/later"
    assert processor.run("messages/later") == "completed"
    assert queue.replay(path, of=seen) == "messages/later"
    assert bench.keys("orders/messages/") == []


def test_a_batch_is_replayed_as_a_whole(bench, queue, processor, ran):
    (path,) = queue.enqueue_many([1, 2])
    processor.run(path)
    bench.clock.advance(2)
    queue.replay(path)
    processor.run(path)
    assert ran == [1, 2, 1, 2]


def test_what_died_is_replayed_from_its_letter(bench, queue, processor):
    bench.memory.put("orders/messages/one", b'"reject"')
    assert processor.run("messages/one") == "dead"
    assert queue.replay("messages/one") == "messages/one"
    assert list(DeadLetters(queue).list()) == []


def test_what_was_never_there_cannot_be_replayed(queue):
    with pytest.raises(MessageNotFound):
        queue.replay("messages/none")


def test_a_replay_that_died_is_not_replayed_again_by_who_repeats_it(bench, queue, ran):
    path = complete(bench, queue, bench.processor(queue, lambda body: None))
    seen = queue.status(path).record
    queue.replay(path, of=seen)

    def handle(body: Any) -> None:
        raise Reject("no")

    assert bench.processor(queue, handle).run(path) == "dead"
    assert queue.replay(path, of=seen) == path
    assert bench.keys("orders/messages/") == []
    assert bench.keys("orders/dead/") == [f"orders/dead/{path}"]
