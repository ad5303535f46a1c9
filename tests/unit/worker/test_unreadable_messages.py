"""What a function does with messages that S3 does not let it read, or not even describe: they die, and cost little."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from s3queue import AccessDenied, Definition, Queue, QueueError
from s3queue.stores.s3_errors import refusal
from s3queue.worker.invocation import InvocationRunner
from s3queue.worker.notifications import Notification
from support.workbench import Workbench

KEY = "orders/messages/x"
LIMIT = 120.0
SSE_C = "The object was stored using a form of Server Side Encryption. The correct parameters must be provided"


def answer(verb: str, status: int, code: str, said: str = "") -> QueueError:
    return refusal(status, code, said, verb, "bench", KEY, retried=False)


#: What S3 answers for an object under a key that only its producer has; a HEAD's answer has no body.
ENCRYPTED = {
    "get": answer("get", 400, "InvalidRequest", SSE_C),
    "copy": answer("copy", 400, "InvalidRequest", SSE_C),
    "head": answer("head", 400, "400"),
}
FORBIDDEN = {verb: answer(verb, 403, "AccessDenied") for verb in ("get", "copy", "head")}


def refuse(bench: Workbench, errors: dict[str, QueueError], key: str = KEY) -> None:
    """From now on; each request takes 20 ms, so that what is repeated without end comes to one."""

    def around(operation: str, asked: str, perform: Callable[[], Any]) -> Any:
        bench.clock.advance(0.02)
        # A copy is named by its target.
        if operation in errors and asked == (key.replace("orders/", "orders/dead/") if operation == "copy" else key):
            raise errors[operation]
        return perform()

    bench.around = around


def invoke(bench: Workbench, queue: Queue, *paths: str, is_late: bool = True, launch: Any = None) -> dict[str, int]:
    """`is_late`: the sweeper's dispatch; otherwise S3's event."""
    definition = Definition("orders", queue.settings)
    definition.handler(lambda body: None)
    end = bench.clock.monotonic() + LIMIT
    notified_at = None if is_late else bench.clock.now() - timedelta(seconds=1)
    notifications = [Notification(path=path, notified_at=notified_at) for path in paths]
    return InvocationRunner(queue, definition, launch=launch).run(notifications, lambda: end - bench.clock.monotonic())


def run_until_dead(bench: Workbench, queue: Queue, **options: Any) -> None:
    invoke(bench, queue, "messages/x", is_late=False, **options)
    dispatched: list[str] = []
    sweeper = bench.sweeper(queue, dispatched)
    for _ in range(20):
        bench.clock.advance(60)
        sweeper.sweep()
        if dispatched:
            invoke(bench, queue, *dispatched, **options)
            dispatched.clear()


@pytest.mark.parametrize("heavy_above", [None, "1 MiB"], ids=["", "mixed"])
@pytest.mark.parametrize("errors", [ENCRYPTED, FORBIDDEN], ids=["SSE-C", "forbidden"])
def test_what_can_neither_be_read_nor_described_dies_after_its_attempts(
    bench: Workbench, errors: dict[str, QueueError], heavy_above: str | None
) -> None:
    queue = bench.queue(max_attempts=3, heavy_above=heavy_above)
    bench.put(KEY, b"{}")
    refuse(bench, errors)

    run_until_dead(bench, queue)

    record = queue.outcome_of("messages/x")
    assert record is not None
    assert (record.outcome, record.attempt) == ("dead", 3)
    assert bench.keys("orders/dead/") == ["orders/dead/messages/x"]


def test_what_is_heavy_by_its_listed_size_is_launched_though_it_cannot_be_described(bench: Workbench) -> None:
    queue = bench.queue(heavy_above="1 KiB")
    bench.put(KEY, b"x" * 1025)
    refuse(bench, ENCRYPTED)
    launched: list[str] = []

    assert invoke(bench, queue, "messages/x", launch=lambda queue, paths, left: launched.extend(paths)) == {"heavy": 1}

    assert launched == ["messages/x"]


def test_a_claim_that_fails_and_is_given_back_is_tried_once(bench: Workbench) -> None:
    """It is free again at once, and a LIST shows it: the function must not spend its whole time on it."""
    queue = bench.queue()
    bench.put(KEY, b"{}")
    bench.clock.advance(100)
    # Which generation has failed, cannot be seen: no attempt is counted.
    refuse(bench, {"get": FORBIDDEN["get"], "list": answer("list", 403, "AccessDenied")})
    bench.store.take()
    with pytest.raises(AccessDenied):
        invoke(bench, queue, "messages/x")

    assert [key for operation, key in bench.store.log if operation == "get"].count(KEY) == 1


def test_it_is_tried_once_however_many_others_run_meanwhile(bench: Workbench) -> None:
    queue, failing = bench.queue(), "orders/leases/messages/p200/x"
    bench.put("orders/messages/p200/x", b"{}")
    for number in range(20):
        bench.put(f"orders/messages/{number}", b"{}")
    bench.clock.advance(100)
    refuse(bench, {"put": AccessDenied(f"PUT {failing}: allow s3:PutObject")}, failing)
    bench.store.take()

    with pytest.raises(AccessDenied):
        invoke(bench, queue, "messages/p200/x", "messages/0")

    assert bench.keys("orders/messages/") == ["orders/messages/p200/x"]
    assert [key for operation, key in bench.store.log if operation == "put"].count(failing) == 1


def test_a_token_that_expires_before_the_get_buries_nothing(bench: Workbench) -> None:
    """The GET and the HEAD are refused, as those of an unreadable message are; but so is everything else."""
    queue = bench.queue(max_attempts=2, visibility_timeout=60)
    bench.put(KEY, b"{}")
    is_expired = False

    def around(operation: str, key: str, perform: Callable[[], Any]) -> Any:
        nonlocal is_expired
        is_expired = is_expired or (operation, key) == ("get", KEY)
        if is_expired:
            raise answer(operation, 400, "400" if operation == "head" else "ExpiredToken")
        return perform()

    bench.around = around
    with pytest.raises(AccessDenied, match="ExpiredToken"):
        invoke(bench, queue, "messages/x", is_late=False)

    bench.around = None
    assert bench.keys("orders/records/") == bench.keys("orders/dead/") == []
    run_until_dead(bench, queue)
    record = queue.outcome_of("messages/x")
    assert record is not None
    assert record.outcome == "completed"


@pytest.mark.parametrize("errors", [ENCRYPTED, FORBIDDEN], ids=["SSE-C", "forbidden"])
@pytest.mark.parametrize("path", ["messages/folder/", "messages/"])
def test_one_whose_name_ends_with_a_slash_dies_after_its_attempts(
    bench: Workbench, path: str, errors: dict[str, QueueError]
) -> None:
    queue = bench.queue(max_attempts=1)
    bench.put(f"orders/{path}", b"{}")
    refuse(bench, errors, f"orders/{path}")

    assert queue.claim(path) is None

    record = queue.outcome_of(path)
    assert record is not None
    assert record.outcome == "dead"
