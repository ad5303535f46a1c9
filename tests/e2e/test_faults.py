"""What becomes of messages when something goes wrong, or everything comes at once."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from infra.local import faults
from s3queue.queue import Queue
from support.deployed_stack import DeployedStack
from support.webhook_receiver import WebhookReceiver

CROWD = 500


def test_the_message_of_a_killed_worker_is_finished_by_another(
    bench: DeployedStack, webhooks: Queue, endpoint: WebhookReceiver, unique: str
) -> None:
    path = bench.put("webhooks", f"messages/{unique}.json", {"url": f"{endpoint.url}/hang", "payload": unique})
    bench.until(lambda: endpoint.deliveries[unique])
    lease = webhooks.status(path).lease
    assert lease
    process = faults.process_of(bench.stack, "webhooks", lease.owner)
    assert process
    faults.kill(process)

    record = bench.outcome(webhooks, path)

    first, *_, last = record.attempts
    assert record.outcome == "completed"
    assert (first.worker, first.failure and first.failure.type) == (lease.owner, "LeaseExpired")
    assert last.worker != first.worker
    assert endpoint.deliveries[unique] == 2, "at least once: the killed one had begun"
    woken = "worker crashed, looking for its messages: webhooks"
    bench.until(lambda: any(woken in line for line in bench.logged(bench.stack.sweeper)))


def test_a_message_whose_event_was_lost_is_rescued_by_the_sweeper(
    bench: DeployedStack, emails: Queue, unique: str
) -> None:
    with faults.events_lost(bench.stack, "emails"):
        path = bench.put("emails", f"messages/{unique}.json", {"to": f"{unique}@example.com", "subject": "Lost"})
        time.sleep(1)
    # Nobody knows of it, and the sweeper waits longer than this before it calls an event lost.
    assert emails.status(path).state == "pending"

    record = bench.outcome(emails, path, sweeping=True)

    assert (record.outcome, record.attempt) == ("completed", 1)
    assert bench.mails_to(f"{unique}@example.com") == 1


def _unfinished(queue: Queue) -> int:
    stats = queue.stats()
    return stats.pending + stats.processing + stats.failed


# Only so long that a machine with other things to do is not called broken.
@pytest.mark.timeout(600)
def test_a_crowd_is_served_by_no_more_than_the_concurrency_at_a_time(
    bench: DeployedStack, webhooks: Queue, endpoint: WebhookReceiver, unique: str
) -> None:
    # Long enough that more than five at a time would be seen.
    endpoint.pause = 0.02
    names = [f"{unique}-{number:03}" for number in range(CROWD)]

    def put(name: str) -> str:
        return bench.put("webhooks", f"messages/{name}.json", {"url": f"{endpoint.url}/ok", "payload": name})

    with ThreadPoolExecutor(8) as producers:
        paths = list(producers.map(put, names))
    bench.until(lambda: set(names) <= set(endpoint.deliveries), sweeping=True, seconds=400)
    bench.until(lambda: not _unfinished(webhooks), sweeping=True)

    with ThreadPoolExecutor(8) as readers:
        records = list(readers.map(webhooks.outcomes.read, paths))
    assert {record.outcome if record else "missing" for record in records} == {"completed"}
    assert 1 < endpoint.most_at_once <= webhooks.defined.concurrency == 5
