"""What the demo enqueues: plain objects under plain keys, as any S3 client would PUT them."""

from __future__ import annotations

import io
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Literal

from s3queue.documents.record import Record
from s3queue.documents.sent_objects import addressed
from s3queue.paths import due_of, format_due

#: Long enough for everything else to be well under way.
DELAY = timedelta(seconds=20)
LINES = 1000

Ending = Literal["completed", "dead"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    """One object, and what has to become of it."""

    kind: str
    queue: str
    path: str
    body: bytes
    #: Messages in it: one, or the lines of a batch.
    count: int = 1
    ending: Ending = "completed"
    due_at: datetime | None = None
    metadata: Mapping[str, str] = field(default_factory=dict)
    #: Messages that its handler sends in its turn.
    sends: int = 0

    @property
    def key(self) -> str:
        return f"{self.queue}/{self.path}"


def crowd(receiver: str, now: datetime) -> Iterator[Sent]:
    """All messages but the slow one, in the order in which they are PUT; `receiver` is where webhooks go."""
    yield from delayed_emails(now + DELAY)
    yield batch()
    yield from webhooks(receiver)
    yield from images()
    yield from emails()


def slow_webhook(receiver: str) -> Sent:
    """Its first delivery takes so long that its worker can be killed in the middle of it."""
    body = _json({"url": f"{receiver}/slow", "payload": {"order": 1}})
    return Sent(kind="webhook, worker killed", queue="webhooks", path="messages/slow.json", body=body)


def webhooks(receiver: str) -> Iterator[Sent]:
    for number in range(2, 21):
        body = _json({"url": f"{receiver}/orders", "payload": {"order": number}})
        path = f"messages/order-{number:02}.json"
        yield Sent(kind="webhooks, flaky endpoint", queue="webhooks", path=path, body=body)


def emails() -> Iterator[Sent]:
    """200: twenty are greylisted at first, three have no mailbox."""
    for number in range(1, 201):
        kind, domain = "emails", "example.com"
        ending: Ending = "completed"
        if number in (50, 100, 150):
            kind, domain, ending = "emails, no such mailbox", "bounce.example", "dead"
        elif number % 10 == 5:
            kind, domain = "emails, greylisted once", "flaky.example"
        # A space and an umlaut: a key may hold any text.
        path = f"messages/Müller order {number:03}.json"
        yield Sent(kind=kind, queue="emails", path=path, body=email(f"single-{number}", domain), ending=ending)


def delayed_emails(due_at: datetime) -> Iterator[Sent]:
    for number in range(1, 21):
        path = f"delayed/{format_due(due_at)}/reminder-{number:02}.json"
        body = email(f"delayed-{number}", "example.com")
        kind = f"emails, delayed by {DELAY.total_seconds():.0f} s"
        yield Sent(kind=kind, queue="emails", path=path, body=body, due_at=due_of(path))


def batch() -> Sent:
    lines = b"\n".join(email(f"line-{number}", "example.com") for number in range(1, LINES + 1))
    return Sent(kind="emails, one .ndjson", queue="emails", path="messages/news.ndjson", body=lines, count=LINES)


def images() -> Iterator[Sent]:
    from PIL import Image

    for number in range(1, 21):
        picture = Image.linear_gradient("L").resize((320 + 40 * number, 1200 - 40 * number))
        colours = Image.merge("RGB", (picture, picture.rotate(180), Image.new("L", picture.size, 12 * number)))
        body = io.BytesIO()
        colours.save(body, "JPEG")
        path = f"messages/photo-{number:02}.jpg"
        notify = {"notify": f"photo-{number}@example.com"}
        yield Sent(kind="images", queue="thumbnails", path=path, body=body.getvalue(), metadata=notify, sends=1)


def sent_by(queue: str, records: Iterable[Record | None]) -> Iterator[Sent]:
    """What the handlers of a queue have sent, as its records say."""
    for record in records:
        for found in addressed(record.sends, queue, record.path, record.generation, part=0) if record else ():
            yield Sent(kind=f"{found.queue}, sent by {queue}", queue=found.queue, path=found.path, body=found.body)


def email(who: str, domain: str) -> bytes:
    return _json({"to": f"{who}@{domain}", "subject": f"Hello {who}", "body": "Sent by make demo."})


def recipients(sent: Sent) -> Iterator[str]:
    """Whom the emails in one object are for."""
    for line in sent.body.splitlines():
        yield json.loads(line)["to"]


def _json(value: object) -> bytes:
    return json.dumps(value).encode()
