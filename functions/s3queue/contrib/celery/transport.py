"""Transport: kombu's view of a bucket, so that Celery can use it as its broker.

A Celery queue is a queue of s3queue, a delivery is a claim: acknowledging completes it, requeuing releases it,
rejecting makes it a dead letter. Exchanges live in each process, as with all of kombu's virtual transports.
"""

from __future__ import annotations

import base64
import contextlib
import threading
from datetime import datetime
from queue import Empty
from typing import Any

from kombu.log import get_logger
from kombu.transport import virtual
from kombu.utils.json import dumps
from kombu.utils.uuid import uuid

from s3queue.clock import SystemClock
from s3queue.connect import without_secret
from s3queue.documents.record import Failure
from s3queue.errors import InvalidRequest, QueueError, Unavailable
from s3queue.paths import HIGHEST_PRIORITY
from s3queue.protocol.claim import Claim
from s3queue.protocol.stats import measure
from s3queue.queue import Queue
from s3queue.settings import QueueSettings

from .address import SCHEME, Address
from .intake import CLAIMS, Intake
from .naming import dedup_id_of_task, name_of_task
from .payloads import payload_of
from .qos import Held, QoS

_log = get_logger(__name__)
#: An idle worker polls more and more slowly, until it waits this many times its interval.
SLOWEST = 5
#: How long a message counts that must exist once: see `sent_once`.
ONCE_FOR = 24 * 3600
_NO_BROADCAST = (
    "S3 has no broadcast, so Celery's remote control and events do not exist here: no inspect, no control, no events, "
    "no Flower. Use `s3queue queues`, `s3queue workers` and the dashboard to look, and "
    "s3queue.contrib.celery.revoke(app, task_id) to revoke"
)


class Channel(virtual.Channel):
    """Queues of one bucket. What is delivered and not acknowledged is given back when the channel is closed."""

    QoS = QoS
    #: What a task's arguments are, as text: an operator reads them in the bucket.
    body_encoding = "utf-8"
    min_priority = 0
    max_priority = HIGHEST_PRIORITY

    def __init__(self, connection: Transport, **kwargs: Any) -> None:
        super().__init__(connection, **kwargs)
        self._transport = connection
        self._intakes: dict[str, Intake] = {}

    # Sending

    def _put(self, queue: str, message: dict[str, Any], **kwargs: Any) -> None:
        headers = message.get("headers") or {}
        options: dict[str, Any] = {"priority": self._get_message_priority(message), "due_at": _due_at(headers)}
        target, task_id = self._transport.queue(queue), str(headers.get("id") or "")
        if dedup_id := dedup_id_of_task(task_id, headers.get("retries", 0)):
            options["dedup_id"] = dedup_id
            options["dedup_for"] = min(ONCE_FOR, target.settings.record_retention.total_seconds())
        else:
            options["name"] = name_of_task(target, task_id)
        target.enqueue(dumps(message).encode(), content_type="application/json", **options)

    def encode_body(self, body: Any, encoding: str | None = None) -> tuple[Any, str]:
        """Text stays text; what a serializer made as bytes becomes base64."""
        if isinstance(body, bytes):
            return base64.b64encode(body).decode(), "base64"
        return body, "utf-8"

    # Receiving

    def basic_consume(self, queue: str, no_ack: bool, callback: Any, consumer_tag: Any, **kwargs: Any) -> Any:
        self._intake(queue).resume()

        def acknowledged(message: Any) -> Any:
            # Nobody will acknowledge it: kept until then, it would run again elsewhere.
            if held := self.put_down(message.delivery_tag):
                held.intake.complete(held.claim)
            return callback(message)

        return super().basic_consume(queue, no_ack, acknowledged if no_ack else callback, consumer_tag, **kwargs)

    def basic_cancel(self, consumer_tag: Any) -> Any:
        queue = self._tag_to_queue.get(consumer_tag)
        super().basic_cancel(consumer_tag)
        if queue in self._intakes and queue not in self._active_queues:
            # What was delivered may run for hours, as when a worker is told to stop.
            self._intakes[queue].rest()

    def _intake(self, queue: str) -> Intake:
        if queue not in self._intakes:
            transport = self._transport
            intake = Intake(
                transport.queue(queue),
                poll_interval=transport.polling_interval,
                slowest=transport.slowest,
                changed=transport.woken.set,
            )
            intake.start()
            self._intakes[queue] = intake
        return self._intakes[queue]

    def _get(self, queue: str, timeout: float | None = None) -> dict[str, Any]:
        """One message, at once; of a queue that is not consumed, too.

        Raises:
            Empty: there is none.
        """
        intake = self._intake(queue)
        for payload in self._payloads(intake, intake.take(1)):
            return payload
        raise Empty

    def basic_get(self, queue: str, no_ack: bool = False, **kwargs: Any) -> Any:
        message = super().basic_get(queue, **kwargs)
        if message is not None and no_ack:
            message.ack()
        return message

    def _get_and_deliver(self, queue: str, callback: Any) -> None:
        """Several at once, because each claim takes two requests, and Celery's loop waits for them."""
        room = self.qos.can_consume_max_estimate()
        intake = self._intakes[queue]
        payloads = self._payloads(intake, intake.take(CLAIMS if room is None else max(room, 1)))
        if not payloads:
            raise Empty
        while payloads:
            payload = payloads.pop(0)
            try:
                callback(payload, queue)
            except BaseException as error:
                # A broken pipe or connection is the worker's, not the message's.
                broken = (OSError, *self._transport.connection_errors)
                if isinstance(error, Exception) and not isinstance(error, broken):
                    self._fail(payload, queue, error)
                    continue
                for lost in payloads:
                    if held := self.put_down(lost["properties"]["delivery_tag"]):
                        held.intake.release(held.claim)
                raise

    def _fail(self, payload: dict[str, Any], queue: str, error: Exception) -> None:
        """Celery ends a worker for what it cannot handle, such as headers of the wrong type. Whoever may write into the
        queue could so end all workers: it is a failed attempt of this message instead, and the last one its death.
        """
        tag = payload["properties"]["delivery_tag"]
        _log.error("message not accepted, counted as a failed attempt: %s: %r", queue, error, exc_info=error)
        if held := self.put_down(tag):
            held.intake.fail(held.claim, Failure.of(error))
        self.qos.forget(tag)

    def _payloads(self, intake: Intake, claims: list[Claim]) -> list[dict[str, Any]]:
        payloads = []
        for claim in claims:
            try:
                payload = payload_of(claim.message, intake.queue.settings.max_message_size, self.decode_body)
            except InvalidRequest as error:
                intake.bury(claim, Failure("NotCelery", str(error)))
                continue
            except Unavailable as error:
                _log.warning("message not read, given back: %s/%s: %s", claim.message.queue, claim.path, error)
                intake.release(claim)
                continue
            except QueueError as error:
                # Given back, it would be claimed again at once, and again.
                intake.fail(claim, Failure.of(error))
                continue
            # Its own for each delivery: a task may be delivered here again, after its lease was lost.
            tag = payload["properties"]["delivery_tag"] = uuid()
            payload["properties"]["delivery_info"]["redelivered"] = claim.attempt > 1
            self._transport.hold(tag, Held(intake, claim))
            payloads.append(payload)
        return payloads

    def pause(self) -> float:
        """How many seconds there will be nothing to receive, as far as is known."""
        consumed = [self._intakes[queue] for queue in self._active_queues]
        if not consumed or not self.qos.can_consume():
            return float("inf")
        return min(intake.seconds_to_poll() for intake in consumed)

    # Acknowledging

    def put_down(self, delivery_tag: str) -> Held | None:
        """The delivery of this tag, for whoever ends it; None if that was done."""
        return self._transport.put_down(delivery_tag)

    def connection_woken(self) -> None:
        """There is room for another delivery."""
        self._transport.woken.set()

    def _restore(self, message: Any) -> None:
        """The message stays where it is, and is free again; no copy of it is sent."""
        if held := self.put_down(message.delivery_tag):
            held.intake.release(held.claim)

    def close(self) -> None:
        super().close()
        intakes, self._intakes = self._intakes, {}
        for intake in intakes.values():
            for held in self._transport.put_down_all(intake):
                intake.release(held.claim)
            intake.stop()

    # Queues and exchanges

    def exchange_declare(self, exchange: str | None = None, type: str = "direct", **kwargs: Any) -> None:
        if type == "fanout":
            raise InvalidRequest(f"exchange {exchange!r} cannot be a fanout: {_NO_BROADCAST}")
        super().exchange_declare(exchange, type, **kwargs)

    def queue_declare(self, queue: str | None = None, passive: bool = False, **kwargs: Any) -> Any:
        """A queue exists by its name alone; only a passive declaration counts its messages, by LISTs."""
        if not queue or queue.endswith(".pidbox") or queue.startswith("celeryev"):
            raise InvalidRequest(f"queue {queue or ''!r} cannot exist: {_NO_BROADCAST}")
        name = self._transport.queue(queue).name
        return virtual.base.queue_declare_ok_t(queue, self._size(queue) if passive and name else 0, 0)

    def _size(self, queue: str) -> int:
        target = self._transport.queue(queue)
        return measure(target.store, target.keys).pending

    def _purge(self, queue: str) -> int:
        return self._transport.queue(queue).purge()


class Transport(virtual.Transport):
    """A connection to one bucket: `s3queue://bucket?region=eu-central-1`."""

    Channel = Channel
    driver_type = driver_name = SCHEME
    can_parse_url = True
    default_port = None
    polling_interval = 1.0
    #: Without an answer from S3, Celery connects again, and again.
    connection_errors = (*virtual.Transport.connection_errors, Unavailable)
    implements = virtual.Transport.implements.extend(exchange_type=frozenset(["direct", "topic"]))

    def __init__(self, client: Any, **kwargs: Any) -> None:
        super().__init__(client, **kwargs)
        options = client.transport_options
        self._address = Address.parse(client.hostname)
        self._prefix = str(options.get("queue_name_prefix", ""))
        self._settings = _settings(options)
        self.slowest = float(options.get("max_polling_interval", self.polling_interval * SLOWEST))
        if self.polling_interval <= 0:
            raise InvalidRequest(f"polling_interval must be more than 0 seconds, not {self.polling_interval}")
        self._queues: dict[str, Queue] = {}
        self._clock = SystemClock()
        #: Set when there may be something to deliver before the next poll.
        self.woken = threading.Event()
        #: Delivery tag → the delivery. Of all channels: kombu gives a message to the last channel that consumes its
        #: queue, whichever channel has received it.
        self._held: dict[str, Held] = {}
        self._mutex = threading.Lock()

    def hold(self, delivery_tag: str, held: Held) -> None:
        with self._mutex:
            self._held[delivery_tag] = held

    def put_down(self, delivery_tag: str) -> Held | None:
        """The delivery of this tag, for whoever ends it; None if that was done."""
        with self._mutex:
            return self._held.pop(delivery_tag, None)

    def put_down_all(self, intake: Intake) -> list[Held]:
        """What is left of this intake's deliveries."""
        with self._mutex:
            tags = [tag for tag, held in self._held.items() if held.intake is intake]
            return [self._held.pop(tag) for tag in tags]

    def driver_version(self) -> str:
        from importlib.metadata import PackageNotFoundError, version

        with contextlib.suppress(PackageNotFoundError):
            return version("s3queue")
        return "N/A"

    def as_uri(self, uri: str, include_password: bool = False, mask: str = "**") -> str:
        return uri if include_password else without_secret(uri)

    def queue(self, name: str) -> Queue:
        """The queue of this name.

        Raises:
            InvalidName: it cannot be the name of a queue.
        """
        if name not in self._queues:
            self._queues[name] = Queue(store=self._address.open(), name=self._prefix + name, settings=self._settings)
        return self._queues[name]

    def drain_events(self, connection: Any, timeout: float | None = None) -> None:
        """Deliver what there is, or wait for it. Waiting ends when a task was acknowledged: there may be room then."""
        until = None if timeout is None else self._clock.monotonic() + timeout
        while True:
            self.woken.clear()
            try:
                self.cycle.get(self._deliver, timeout=timeout)
                return
            except Empty:
                left = self.polling_interval if until is None else until - self._clock.monotonic()
                if left <= 0:
                    raise TimeoutError from None
                pause = min([self.polling_interval, *(channel.pause() for channel in self.channels)])
                # Not 0: whatever `pause` believes, a loop without requests must not use up a processor.
                self.woken.wait(min(left, max(pause, 0.01)))


def _settings(options: dict[str, Any]) -> QueueSettings:
    given = dict(options.get("settings") or {})
    if "visibility_timeout" in options:
        given["visibility_timeout_seconds"] = options["visibility_timeout"]
    return QueueSettings.of(**{"engine": "pull"} | given)


def _due_at(headers: dict[str, Any]) -> datetime | None:
    """When the task may run: it waits in the bucket, not in a worker's memory."""
    eta = headers.get("eta")
    if not eta:
        return None
    try:
        due_at = datetime.fromisoformat(eta)
    except (TypeError, ValueError):
        raise InvalidRequest(f"the task's eta is not a time: {eta!r}") from None
    # Only the worker knows the time zone that the app means: it waits for that time itself, as with other brokers.
    return due_at if due_at.tzinfo else None
