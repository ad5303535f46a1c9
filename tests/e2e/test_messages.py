"""What becomes of messages on the deployed stack, from the PutObject on."""

from __future__ import annotations

import io
import json
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from PIL import Image

from s3queue import DeadLetters
from s3queue.paths import format_due
from s3queue.protocol.overrides import REFRESH_SECONDS
from s3queue.queue import Queue
from support.deployed_stack import DeployedStack
from support.webhook_receiver import WebhookReceiver


def picture() -> bytes:
    body = io.BytesIO()
    Image.new("RGB", (600, 300), "teal").save(body, "PNG")
    return body.getvalue()


def email(to: str) -> dict[str, Any]:
    return {"to": to, "subject": "Hello"}


def test_a_put_object_runs_its_handler(bench: DeployedStack, thumbnails: Queue, unique: str) -> None:
    record = bench.outcome(thumbnails, bench.put("thumbnails", f"messages/{unique}.png", picture()))

    assert record.outcome == "completed"
    assert record.worker.startswith(bench.stack.workers["thumbnails"])
    with Image.open(io.BytesIO(bench.read(f"thumbnails/results/{unique}.png.jpg"))) as small:
        assert small.size == (256, 128)


@pytest.mark.parametrize(
    "name", ["two words.png", "Zoë/überall ✓.png", "1+1%20=2.png", "a&b=c;d?e#f.png", "p200/now.png"]
)
def test_a_message_may_have_any_name(bench: DeployedStack, thumbnails: Queue, unique: str, name: str) -> None:
    # The event's key is URL-encoded; read wrongly, it names nothing, and no sweeper comes within the first minute.
    folder = f"messages/{name.removesuffix('now.png')}{unique}/" if name.startswith("p200/") else f"messages/{unique}/"
    path = bench.put("thumbnails", folder + name.removeprefix("p200/"), picture())

    record = bench.outcome(thumbnails, path)

    assert record.outcome == "completed"
    assert record.finished_at - record.generation.put_at < thumbnails.settings.rescue_after


def due_again(bench: DeployedStack, queue: str, path: str) -> datetime:
    """When a message that failed may be tried again, as its worker wrote it into the lease, and logged."""

    def said() -> list[str]:
        return [line for line in bench.logged(bench.stack.workers[queue]) if path in line and '"retry_at"' in line]

    (line,) = bench.until(said)
    return datetime.fromisoformat(json.loads(line)["retry_at"])


def test_a_failed_message_is_tried_again_after_its_backoff_and_not_a_minute_later(
    bench: DeployedStack, emails: Queue, unique: str, record_property: Callable[[str, object], None]
) -> None:
    path = bench.put("emails", f"messages/{unique}.json", email(f"{unique}@flaky.example"))

    record = bench.outcome(emails, path, sweeping=True)

    first, second = record.attempts
    assert (record.outcome, first.failure and first.failure.type) == ("completed", "ConnectionError")
    due_at = due_again(bench, "emails", path)
    # Two seconds, rounded up to S3's whole ones: what the queue decided does not depend on how busy the machine is.
    assert timedelta(seconds=1.5) < due_at - first.ended_at <= timedelta(seconds=4)
    assert second.started_at >= due_at
    # What came of it does: it is told (-rP, or the JUnit file), and judged only so as to tell it from a wait for the
    # sweeper's schedule.
    waited = second.started_at - first.ended_at
    record_property("retried_after_seconds", waited.total_seconds())
    print(f"due {(due_at - first.ended_at).total_seconds():.1f} s after the failure, retried after {waited}")
    assert waited < timedelta(seconds=30)
    assert bench.mails_to(f"{unique}@flaky.example") == 1


def test_a_rejected_message_is_a_dead_letter_that_can_be_moved_back(
    bench: DeployedStack, emails: Queue, unique: str
) -> None:
    body = json.dumps(email(f"{unique}@bounce.example")).encode()
    path = bench.put("emails", f"messages/{unique}.json", body)

    record = bench.outcome(emails, path, sweeping=True)

    assert (record.outcome, record.attempt) == ("dead", 1)
    assert record.failure
    assert "550" in record.failure.message
    assert bench.read(f"emails/dead/{path}") == body

    # Now with a mailbox: an operator corrects it and puts it back.
    bench.put("emails", path, email(f"{unique}@example.com"))
    assert bench.until(lambda: bench.mails_to(f"{unique}@example.com"), sweeping=True) == 1


def test_a_delayed_message_does_not_start_before_its_time(bench: DeployedStack, emails: Queue, unique: str) -> None:
    due = format_due(datetime.now(UTC) + timedelta(seconds=8))
    path = bench.put("emails", f"delayed/{due}/{unique}.json", email(f"{unique}@example.com"))
    assert emails.status(path).state == "delayed"

    record = bench.outcome(emails, path, sweeping=True)

    assert record.outcome == "completed"
    assert format_due(record.attempts[0].started_at) >= due


def test_a_short_delay_wakes_the_sweeper_by_itself(bench: DeployedStack, emails: Queue, unique: str) -> None:
    """No sweep by hand: S3's event on `delayed/` wakes it. tests/functions/test_sweeper.py says how exactly."""
    due_at = datetime.now(UTC).replace(microsecond=0) + timedelta(seconds=5)
    path = bench.put("emails", f"delayed/{format_due(due_at)}/{unique}.json", email(f"{unique}@example.com"))

    record = bench.outcome(emails, path)

    assert record.outcome == "completed"
    # An emulator on a busy machine may take a few seconds to start two functions.
    assert timedelta() <= record.attempts[0].started_at - due_at <= timedelta(seconds=10)


def test_a_batch_gives_every_line_its_own_outcome(bench: DeployedStack, emails: Queue, unique: str) -> None:
    domains = ["example.com"] * 48 + ["flaky.example", "bounce.example"]
    lines = [json.dumps(email(f"{unique}-{number}@{domain}")) for number, domain in enumerate(domains, start=1)]
    path = bench.put("emails", f"messages/{unique}.ndjson", "\n".join([*lines, "not json"]).encode())

    record = bench.outcome(emails, path, sweeping=True)

    assert record.lines
    assert (record.lines["total"], record.lines["completed"], record.lines["dead"]) == (51, 49, 2)
    assert record.attempt == 2, "the greylisted line was tried again"
    mails = [file.read_text() for file in bench.outbox.glob("*.eml")]
    assert sum(f"To: {unique}-" in mail for mail in mails) == 49
    dead = DeadLetters(emails).lines(f"{path}.lines")
    assert (dead[-1].number, dead[-1].body) == (51, b"not json")


def test_a_duplicate_event_runs_nothing_twice(
    bench: DeployedStack, webhooks: Queue, endpoint: WebhookReceiver, unique: str
) -> None:
    endpoint.pause = 3.0
    path = bench.put("webhooks", f"messages/{unique}.json", {"url": f"{endpoint.url}/ok", "payload": unique})
    event = bench.event_of("webhooks", path)
    bench.until(lambda: endpoint.deliveries[unique])

    while_at_work = bench.invoke("webhooks", event)
    record = bench.outcome(webhooks, path, sweeping=True)
    afterwards = bench.invoke("webhooks", event)

    assert while_at_work == afterwards == {"not claimed": 1}
    assert endpoint.deliveries[unique] == 1
    assert bench.outcome(webhooks, path).nonce == record.nonce


def test_a_paused_queue_takes_messages_and_runs_none_until_it_is_resumed(
    bench: DeployedStack, emails: Queue, unique: str
) -> None:
    emails.pause()
    try:
        # Every process reads queue.json again within this time.
        time.sleep(REFRESH_SECONDS + 1)
        path = bench.put("emails", f"messages/{unique}.json", email(f"{unique}@example.com"))
        bench.wake_sweeper()
        time.sleep(emails.settings.rescue_after.total_seconds() + 3)
        assert emails.status(path).state == "pending"
    finally:
        emails.resume()

    assert bench.outcome(emails, path, sweeping=True).outcome == "completed"
