"""The paths of a message, each travelled once: every function sends what it needs, waits, and says what it saw."""

from __future__ import annotations

import http.client
import io
import json
import statistics
import threading
import time
from contextlib import suppress
from datetime import timedelta
from email.utils import parsedate_to_datetime
from typing import Any
from urllib.parse import urlsplit

from infra.local.demo import messages
from infra.local.demo.accounts import THUMBNAIL_SIDE, Accounts
from infra.local.demo.messages import Sent
from s3queue.dashboard.resolver import Role
from s3queue.dashboard.server import KEY_HEADER, Server
from s3queue.dashboard.signed_api import SignedApi
from s3queue.deployment import FAILED_INVOCATIONS
from s3queue.errors import Unavailable
from s3queue.paths import due_of, format_due, name_of
from s3queue.protocol.dead_letters import DeadLetters

from .installation import ASK_SECONDS, Failed, Installation

#: One after the other, after a first one that finds no function running.
WARM = 10
LINES = 20
DELAY = timedelta(seconds=20)
RESCUE_SECONDS = 5
#: Shorter than the sixty seconds after which the sweeper calls an event lost.
EVENT_SECONDS = 30.0


def image(site: Installation) -> str:
    """A handler with compiled dependencies, and a result in the bucket. It is the first: it waits for S3's events.

    A new notification takes S3 up to five minutes to heed. What it did not tell of, the sweeper finds.
    """
    from PIL import Image

    began = time.monotonic()
    sent = next((one for one in messages.images() if _is_told_of(site, one)), None)
    if sent is None:
        raise Failed("the sweeper or nobody ran the pictures: S3 sends no events")
    site.measured(
        "S3 heeds the new notification, after the deployment, at the latest", f"{time.monotonic() - began:.1f} s"
    )
    key = f"{sent.queue}/results/{name_of(sent.path)}.jpg"
    body = site.account.client("s3").get_object(Bucket=site.bucket, Key=key)["Body"].read()
    with Image.open(io.BytesIO(body)) as small:
        _require(max(small.size) == THUMBNAIL_SIDE, f"the thumbnail has {small.size} pixels")
    return f"a picture became a thumbnail of {THUMBNAIL_SIDE} pixels"


def _is_told_of(site: Installation, sent: Sent) -> bool:
    """Whether a message ends sooner than the sweeper would find it."""
    site.put(sent)
    try:
        site.outcome(sent, seconds=EVENT_SECONDS)
    except Failed:
        if site.is_stopped.is_set():
            raise
        return False
    return True


def light(site: Installation) -> str:
    """PutObject → S3's event → handler, timed."""
    times = [_timed(site, f"light-{number:02}") for number in range(1 + WARM)]
    observed = site.account.observed
    # Corrected in the end, when most is known of the clocks; a warm event may take less than what is not known of them.
    cold, *warm = (max(0.0, began_at - sent_at - observed.ahead_seconds) for sent_at, began_at in times)
    site.measured("PutObject sent → handler, first message (cold)", f"{cold:.2f} s")
    site.measured(f"PutObject sent → handler, the next {WARM}, median", f"{statistics.median(warm):.3f} s")
    site.measured(f"PutObject sent → handler, the next {WARM}, slowest", f"{max(warm):.3f} s")
    clocks = f"{observed.ahead_seconds:+.3f} s, ±{observed.unsure_seconds:.3f} s"
    site.measured("S3's clock against this machine's, corrected above", clocks)
    return f"{1 + WARM} messages completed"


def _timed(site: Installation, name: str) -> tuple[float, float]:
    """When it was sent, by this machine's clock, and when its handler began, by that machine's."""
    sent = site.task(name)
    sent_at = site.put(sent)
    record = site.outcome(sent)
    return sent_at, float(record.result["began_at"])


def batch(site: Installation) -> str:
    """Many messages in one object."""
    lines = b"\n".join([json.dumps({"do": "return"}).encode()] * (LINES - 1) + [b'{"do": "fail"}'])
    sent = Sent(kind="batch", queue="smoke", path="messages/batch.ndjson", body=lines, count=LINES)
    site.put(sent)
    record = site.outcome(sent)
    _require(bool(record.lines and record.lines["completed"] == LINES), f"its lines: {record.lines}")
    _require(record.attempt == 2, f"the failed line was completed at attempt {record.attempt}")
    return f"{LINES} lines completed, one of them at its second attempt"


def delayed(site: Installation) -> str:
    """A message that must not run yet."""
    # By S3's clock: a laptop's may be minutes off.
    now = site.account.client("s3").head_bucket(Bucket=site.bucket)["ResponseMetadata"]["HTTPHeaders"]["date"]
    path = f"delayed/{format_due(parsedate_to_datetime(now) + DELAY)}/later.json"
    sent = Sent(kind="delayed", queue="smoke", path=path, body=b'{"do": "return"}', due_at=due_of(path))
    site.put(sent)
    record = site.outcome(sent)
    assert sent.due_at
    late = (record.attempts[0].started_at - sent.due_at).total_seconds()
    _require(late >= 0, f"it started {-late:.1f} s before its time")
    site.measured("delayed message, started after its due time by", f"{late:.1f} s")
    return f"not before its time, and {late:.1f} s after it"


def retry(site: Installation) -> str:
    """A handler that raises."""
    sent = site.task("retry", do="fail")
    site.put(sent)
    record = site.outcome(sent)
    _require([bool(one.failure) for one in record.attempts] == [True, False], f"its attempts: {record.attempts}")
    first, second = record.attempts
    pause = (second.started_at - first.ended_at).total_seconds()
    site.measured("retry after a failure", f"{pause:.1f} s")
    return f"failed once, completed {pause:.1f} s later"


def dead_and_replay(site: Installation) -> str:
    """A message that is refused, and an operator who puts it back."""
    sent = site.task("dead", do="reject")
    site.put(sent)
    site.outcome(sent, how="dead")
    letters = DeadLetters(site.queue(sent.queue))
    letter = site.until(lambda: [one for one in letters.list() if one.path == sent.path], "there is no dead letter")[0]
    _require(letters.get(letter.path)[1] == sent.body, "the dead letter is not what was sent")
    letters.replay(letter.path)
    site.outcome(sent)
    return "dead at once, its letter unchanged; replayed, it completed"


def killed_worker(site: Installation) -> str:
    """A function that dies in the middle of a message."""
    sent = site.task("killed", do="die")
    site.put(sent)
    record = site.outcome(sent)
    failures = [one.failure.type if one.failure else "" for one in record.attempts]
    _require(failures[:1] == ["LeaseExpired"] and len(failures) > 1, f"its attempts ended by {failures}")
    first, second, *_ = record.attempts
    again = (second.started_at - first.started_at).total_seconds()
    lease = site.queue("smoke").defined.visibility_timeout.total_seconds()
    site.measured(f"redelivery after a kill (the lease is {lease:.0f} s)", f"{again:.1f} s")
    prefix, kept = f"{FAILED_INVOCATIONS}{site.deployment.workers['smoke']}/", site.output("FailedEvents")
    s3 = site.account.client("s3")

    def noted() -> bool:
        return bool(s3.list_objects_v2(Bucket=kept, Prefix=prefix).get("KeyCount"))

    site.until(noted, f"Lambda left no record of the crash in {kept}/{prefix}")
    return f"another worker completed it {again:.1f} s after the claim; Lambda kept a record of the crash"


def lost_event(site: Installation) -> str:
    """A message whose event led to nothing: its queue was paused when it came."""
    queue = site.queue("emails")
    worker = site.deployment.workers["emails"]
    queue.configure(paused=True, rescue_after=RESCUE_SECONDS)
    sent = Sent(kind="lost", queue="emails", path="messages/lost.json", body=messages.email("lost", "example.com"))
    try:
        # Nobody has sent anything to it before, so its first process reads that it is paused.
        site.put(sent)
        seen = "queue paused, nothing claimed"
        site.until(lambda: site.logged(worker, seen), "S3's event did not reach the worker", every=ASK_SECONDS)
        _require(queue.status(sent.path).state == "pending", "the paused queue ran it")
        resumed_at = time.monotonic()
    finally:
        queue.resume()
    site.outcome(sent)
    seconds = time.monotonic() - resumed_at
    site.measured(f"rescue after a lost event (rescue_after is {RESCUE_SECONDS} s)", f"{seconds:.1f} s")
    return f"its event came while the queue was paused; it ran {seconds:.1f} s after that was resumed"


def rescue(site: Installation) -> str:
    """Who found the message of the lost event, by the sweeper's log, which may come late."""
    site.until(
        lambda: [line for line in site.logged(site.sweeper, '"swept"') if _rescued(line)],
        "the sweeper's log does not say that it found the message of the lost event",
        every=ASK_SECONDS,
    )
    return "the sweeper's log says that it found the message of the lost event"


def _rescued(line: str) -> bool:
    try:
        said = json.loads(line)
    except ValueError:
        return False
    return bool(said.get("queue") == "emails" and said.get("orphans"))


def dashboard(site: Installation) -> str:
    """The API behind its function URL, through the proxy that signs for a browser."""
    url = site.account.function_url(site.output("ApiUrl"))
    api = SignedApi(url, session=site.account.session, region=site.account.region)
    role = site.until(lambda: _role(api), f"{url} does not answer", every=ASK_SECONDS)
    _require(role == "operator", f"the profile is a {role} there")
    with Server(api) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            names = [queue["name"] for queue in _ask(server, "GET", "/api/queues", 200)["queues"]]
            _require("smoke" in names, f"it shows the queues {names}")
            enqueued = _ask(server, "POST", "/api/queues/smoke/messages", 201, {"body": {"do": "return"}})
        finally:
            server.shutdown()
    sent = Sent(kind="dashboard", queue="smoke", path=enqueued["path"], body=b"")
    site.sent.append(sent)
    site.outcome(sent)
    return f"it showed {len(names)} queues, and a message that it enqueued completed"


def _role(api: SignedApi) -> Role | None:
    try:
        return api.check()
    except Unavailable:
        # A new address is not known everywhere at once.
        return None


def accounted(site: Installation) -> str:
    """Every message has the outcome that it had to have."""
    opened = {one.queue: site.queue(one.queue) for one in site.sent}

    def balanced() -> Accounts | None:
        found = Accounts(opened, site.sent)
        return found if found.is_balanced else None

    # A picture that S3 did not tell of may still be waiting for the sweeper.
    with suppress(Failed):
        site.until(balanced, "not balanced", every=ASK_SECONDS)
    accounts = Accounts(opened, site.sent)
    enqueued, completed, dead = accounts.totals()
    said = f"{enqueued} messages enqueued: {completed} completed, {dead} dead, {accounts.missing} missing"
    _require(accounts.is_balanced, said)
    return said


def encrypted(site: Installation) -> str:
    """If a key was asked for (`-c kms_key=…`): what lies in the bucket is encrypted with it."""
    sent = site.task("encrypted")
    site.put(sent)
    site.outcome(sent)
    s3, keys = site.account.client("s3"), site.queue(sent.queue).keys
    found = s3.head_object(Bucket=site.bucket, Key=keys.record(sent.path))
    used = found.get("SSEKMSKeyId", found.get("ServerSideEncryption", "nothing"))
    # It may be given as an alias, or by its id.
    wanted = site.account.client("kms").describe_key(KeyId=site.kms_key)["KeyMetadata"]["Arn"]
    _require(used == wanted, f"its record is encrypted with {used}, not with {wanted}")
    return "a message completed, and its record is encrypted with the key"


def _ask(server: Server, method: str, path: str, status: int, body: Any = None) -> Any:
    connection = http.client.HTTPConnection(urlsplit(server.address).netloc, timeout=90)
    try:
        headers = {KEY_HEADER: server.key, "x-s3queue": "1", "content-type": "application/json"}
        connection.request(method, path, json.dumps(body) if body else None, headers)
        answer = connection.getresponse()
        said = answer.read()
    finally:
        connection.close()
    _require(answer.status == status, f"{method} {path} was answered with {answer.status}: {said[:300]!r}")
    return json.loads(said)


def _require(is_true: bool, otherwise: str) -> None:
    if not is_true:
        raise Failed(otherwise)
