"""What is committed in a partition is told, whatever becomes of the rest.  [P9]"""

from __future__ import annotations

import json
import threading

import pytest

from s3queue import Unavailable
from s3queue.flow.partitions import hold_partition


def test_a_committed_outcome_is_told_even_if_its_message_cannot_be_cleared(bench):
    queue, told = bench.queue(), []
    queue.events.on("*", lambda event: told.append((event["event"], event["path"])))
    path = queue.enqueue(json.dumps("x"), group="a")

    def refuse(operation, key, perform):
        if operation == "put" and key.startswith("orders/records/@a/"):
            raise Unavailable("503")
        return perform()

    bench.around = refuse
    bench.processor(queue, lambda body: None).run(path)

    assert ("message.completed", path) in told
    bench.around = None
    bench.clock.advance(100)
    bench.processor(bench.queue(), lambda body: pytest.fail("it has run")).run(path)
    assert queue.outcome_of(path).outcome == "completed"
    assert told.count(("message.completed", path)) == 1


def test_what_is_not_committed_is_not_told(bench):
    """Of outcomes that are committed in parts, those of the parts that were."""
    queue, told = bench.queue(partitions=1, collect=200, within_seconds=0), []
    queue.events.on("message.completed", lambda event: told.append(event["path"]))
    paths = [queue.enqueue(json.dumps(number)) for number in range(120)]
    commits = 0

    def refuse(operation, key, perform):
        nonlocal commits
        if operation == "put" and key == "orders/leases/@=0":
            commits += 1
            if commits > 2:
                raise Unavailable("503")
        return perform()

    bench.around = refuse

    def handler(bodies: list[int]) -> list[str]:
        return ["x" * 250_000] * len(bodies)

    bench.processor(queue, handler).run(paths[0])

    bench.around = None
    stored = {record["path"] for record in json.loads(bench.read("orders/leases/@=0")).get("ended", [])}
    journaled = {
        record["path"] for key in bench.keys("orders/records/@=0/") for record in json.loads(bench.read(key))["records"]
    }
    assert told
    assert set(told) == stored | journaled
    assert len(told) < len(paths)


@pytest.mark.parametrize("ending", ["message.completed", "message.retry"])
def test_what_another_thread_commits_before_it_is_told_is_told_all_the_same(bench, ending):
    """The last message of a partition has ended, and another thread gives that up before this one can say so."""
    queue, told = bench.queue(partitions=1), []
    queue.events.on(ending, lambda event: told.append(event["path"]))
    path = queue.enqueue(json.dumps("x"))
    hold = hold_partition(queue.leases, "@=0")
    claim = hold.take()
    method = "end" if ending == "message.completed" else "wait"
    note = getattr(hold, method)

    def note_and_sleep(*ended):
        note(*ended)
        other = threading.Thread(target=hold.advance)
        other.start()
        other.join()

    setattr(hold, method, note_and_sleep)
    if method == "end":
        queue.complete(claim)
    else:
        queue.fail(claim, "no")

    assert told == [path]
