"""A bucket after a working hour, for the tests of API and page: every kind of trouble, and queues without any."""

from __future__ import annotations

import json
import random
from typing import Any

from s3queue import Queue, Reject
from s3queue.keys import Keys
from support.workbench import Workbench

#: Tries everything that a page could run, in names, errors and payloads alike.
HOSTILE = "<img src=x onerror=\"document.title='owned'\"><script>document.title='owned'</script>"


def working_hour(bench: Workbench) -> None:
    """Five queues: busy, failing, stuck, paused and idle. The clock stands at the end of the hour."""
    chance = random.Random(11)
    orders = bench.queue("orders", visibility_timeout=60)
    emails = bench.queue("emails", max_attempts=1)
    exports = bench.queue("exports")
    invoices = bench.queue("invoices", max_attempts=1)
    bench.queue("thumbnails").configure(max_attempts=5)
    backlog: list[str] = []
    for minute in range(60):
        rush = 6 if 20 <= minute < 30 or minute > 51 else 0
        backlog += [orders.enqueue({"order": minute}) for _ in range(5 + rush + chance.randrange(4))]
        free = 9 + chance.randrange(3)
        done, backlog = backlog[:free], backlog[free:]
        _run(bench, orders, done)
        _run(bench, emails, [emails.enqueue({"to": "ada@example.com"}) for _ in range(chance.randrange(5))])
        if minute % 9 == 4:
            _run(bench, emails, [emails.enqueue("?", metadata={"fail": "timeout"}) for _ in range(3)], _timeout)
        if minute % 20 == 7:
            _run(bench, emails, [emails.enqueue("?")], _refuse)
        if minute == 46:
            exports.enqueue({"month": "2026-10"})
        bench.clock.advance(60)
    for number in range(14):
        invoices.enqueue({"invoice": number}, priority=200 if number % 5 == 0 else 0)
    invoices.pause()
    orders.claim_next(3)
    for queue in (orders, emails, exports, invoices):
        bench.sweeper(queue).sweep()


def _run(bench: Workbench, queue: Queue, paths: list[str], handler: Any = None) -> None:
    processor = bench.processor(queue, handler or (lambda body: {"sent": True}))
    for path in paths:
        processor.run(path)


def _timeout(body: bytes) -> None:
    raise TimeoutError("smtp.example.com did not answer within 10 s")


def _refuse(body: bytes) -> None:
    raise Reject("the address is not one")


def hostile(bench: Workbench) -> str:
    """A queue whose names, payloads, metadata and errors are all attacks; the path of one dead letter of it."""
    queue = bench.queue("orders", max_attempts=1)
    queue.enqueue(HOSTILE, name=HOSTILE.replace("/", "|"), metadata={"note": HOSTILE})
    path = queue.enqueue(json.dumps({"html": HOSTILE}), name="victim")

    def die(body: bytes) -> None:
        raise type(HOSTILE, (Exception,), {})(HOSTILE)

    _run(bench, queue, [path], die)
    bench.memory.put(Keys("orders").manifest(HOSTILE.replace("/", "|")), json.dumps({"state": HOSTILE}).encode())
    bench.memory.put("analytics/latest.json", json.dumps({HOSTILE: [{"hour": HOSTILE, HOSTILE: 1}] * 3}).encode())
    return path
