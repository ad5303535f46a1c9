"""What a Spark run does when it claims messages that S3 does not let it read, or not even describe."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from s3queue import AccessDenied
from s3queue.spark_runs.claims import claim_heavy
from support.workbench import Workbench

KEY = "orders/messages/x"


def refuse(bench: Workbench, *operations: str) -> None:
    """From now on; each request takes 20 ms, so that what is repeated without end comes to one."""

    def around(operation: str, key: str, perform: Callable[[], Any]) -> Any:
        bench.clock.advance(0.02)
        if operation in operations and key == KEY:
            raise AccessDenied(f"{operation} {key}: not allowed")
        return perform()

    bench.around = around


def test_a_heavy_message_that_cannot_be_described_has_all_its_attempts_and_dies(bench: Workbench) -> None:
    queue = bench.queue(heavy_above="1 KiB", max_attempts=2)
    bench.put(KEY, b"x" * 1025)
    refuse(bench, "get", "head", "copy")

    for _ in range(2):
        assert claim_heavy(queue, ["messages/x"], 1, seconds=10, threads=1) == []
        bench.clock.advance(60)

    record = queue.outcome_of("messages/x")
    assert record is not None
    assert (record.outcome, record.attempt) == ("dead", 2)


def test_a_claim_that_fails_and_is_given_back_does_not_count_as_won(bench: Workbench) -> None:
    """It is free again at once, and a LIST shows it: nobody must spend all of the time on it."""
    queue = bench.queue(engine="spark")
    bench.put(KEY, b"x")
    # Which generation has failed, cannot be seen: no attempt is counted.
    refuse(bench, "get", "list")

    assert claim_heavy(queue, [], 1, seconds=10, threads=1) == []

    assert [key for operation, key in bench.store.log if operation == "get"].count(KEY) == 1
