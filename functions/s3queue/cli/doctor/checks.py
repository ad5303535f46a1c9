"""The checks of the doctor; each is a generator of findings."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Literal

from s3queue.cli.aws import NotificationRule, asking, notifications
from s3queue.cli.session import Session
from s3queue.cli.words import age, counted
from s3queue.clock import SystemClock
from s3queue.dashboard.overview import live_workers, overview
from s3queue.dashboard.verdicts import unswept_for
from s3queue.errors import AccessDenied, Conflict, CorruptState, QueueError
from s3queue.queue import Queue

Verdict = Literal["ok", "warning", "problem", "skipped"]
#: Test keys of each kind that no worker, sweeper or producer takes for its own. Under `messages/` and `delayed/`, an
#: empty object whose name ends with a slash is a folder and not a message; and the delayed one is never due.
SCRATCH = {
    "messages": "messages/doctor-{token}/",
    "delayed": "delayed/99991231T235959Z/doctor-{token}/",
    "leases": "leases/doctor-{token}",
    "records": "records/doctor-{token}",
    "retries": "retries/doctor-{token}",
    "dead": "dead/doctor-{token}",
    "locks": "locks/doctor-{token}",
    "workers": "workers/doctor-{token}",
    "runs": "runs/doctor-{token}",
}
#: With more skew than the first, a producer's `delay` is noticeably wrong; S3 refuses requests at 15 minutes.
SKEWED, REFUSED = timedelta(seconds=5), timedelta(minutes=5)


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the doctor's answer."""

    check: str
    verdict: Verdict
    found: str
    way_out: str = ""

    def to_json(self) -> dict[str, Any]:
        return {"check": self.check, "verdict": self.verdict, "found": self.found, "way_out": self.way_out or None}


@dataclass(slots=True)
class Examination:
    """The queue that is examined, and the test objects that have to be deleted."""

    session: Session
    queue: Queue
    _scratch: set[str] = field(default_factory=set)

    def scratch(self, kind: str) -> str:
        """A fresh key; its object is deleted when the check is over."""
        key = self.queue.keys.root + SCRATCH[kind].format(token=self.queue.chance.token())
        self._scratch.add(key)
        return key

    def clean_up(self) -> None:
        for key in sorted(self._scratch):
            try:
                self.queue.store.delete(key)
                self._scratch.discard(key)
            except QueueError:
                continue

    def leftovers(self) -> list[Finding]:
        """Test objects that could not be deleted: these credentials may write them, but not delete them."""
        left = []
        for key in sorted(self._scratch):
            try:
                if self.queue.store.head(key) is None:
                    continue
            except QueueError:
                continue
            left.append(key)
        if not left:
            return []
        return [
            Finding("clean up", "warning", f"not deleted: {', '.join(left)}", "harmless; delete them with aws s3 rm")
        ]


def credentials(of: Examination) -> Iterator[Finding]:
    if not of.session.is_s3:
        yield Finding("credentials", "skipped", "a bucket in memory needs none")
        return
    import boto3

    with asking("credentials", "sts:GetCallerIdentity"):
        found = boto3.session.Session().get_credentials()
    if found is None:
        yield Finding("credentials", "problem", "none found", "aws configure, aws sso login, or set AWS_PROFILE")
    else:
        yield Finding("credentials", "ok", f"found by {found.method}, key {found.access_key[:4]}…")


def reach(of: Examination) -> Iterator[Finding]:
    """One LIST shows that the bucket answers, and its Date header shows how wrong this machine's clock is."""
    clock = SystemClock()
    before, started = clock.now(), clock.monotonic()
    page = of.queue.store.list(of.queue.keys.root, limit=1)
    took = clock.monotonic() - started
    where = f"{of.session.bucket_url}/{of.queue.name}"
    if page.objects:
        yield Finding("bucket", "ok", f"{where} answers in {took * 1000:.0f} ms")
    else:
        yield Finding("bucket", "warning", f"{where} answers, but has no objects", f"s3queue create {of.queue.name}")
    # Date has whole seconds, and was written between the request and the answer.
    skew = page.at + timedelta(seconds=0.5) - (before + timedelta(seconds=took / 2))
    if abs(skew) <= SKEWED:
        yield Finding("clock", "ok", "this machine and S3 agree within a few seconds")
        return
    ahead = "behind" if skew > timedelta() else "ahead of"
    verdict: Verdict = "problem" if abs(skew) > REFUSED else "warning"
    yield Finding(
        "clock", verdict, f"this machine is {age(abs(skew))} {ahead} S3", "synchronise it (NTP): delays count from it"
    )


def permissions(of: Examination) -> Iterator[Finding]:
    """PUT, GET and DELETE in every prefix, with the conditions that the protocol uses."""
    for kind in SCRATCH:
        yield _permitted(of, kind)
    store, keys = of.queue.store, of.queue.keys
    try:
        overrides = of.queue.overrides()
        store.head(keys.stats)
        yield Finding("permissions: queue.json", "ok", "GET")
        for name, why in of.queue.defined.with_suitable(overrides)[1].items():
            yield Finding("queue.json", "warning", f"{name} does not apply: {why}", f"queue.configure({name}=None)")
    except AccessDenied as error:
        yield Finding("permissions: queue.json", "problem", "GET is denied", str(error))
    except CorruptState as error:
        yield Finding("queue.json", "problem", str(error), "correct it, or delete it to go back to the definition")


def _permitted(of: Examination, kind: str) -> Finding:
    store, key = of.queue.store, of.scratch(kind)
    allowed, denied = [], {}
    etag = ""
    steps: dict[str, Any] = {
        "PUT": lambda: store.put(key, b"", if_absent=True),
        "GET": lambda: store.head(key),
        "DELETE": lambda: store.delete(key, if_match=etag) if etag else store.delete(key),
    }
    for verb, ask in steps.items():
        try:
            answer = ask()
            etag = answer.etag if verb == "PUT" else etag
            allowed.append(verb)
        except AccessDenied as error:
            denied[verb] = str(error)
        except Conflict:
            # A sweeper may have deleted it already; the request was allowed.
            allowed.append(verb)
    name = f"permissions: {kind}/"
    if denied:
        return Finding(name, "problem", f"denied: {', '.join(denied)}", "; ".join(denied.values()))
    return Finding(name, "ok", ", ".join(allowed))


def bucket_settings(of: Examination) -> Iterator[Finding]:
    if not of.session.is_s3:
        return
    try:
        with asking("versioning", "s3:GetBucketVersioning"):
            status = of.session.s3_client().get_bucket_versioning(Bucket=of.session.bucket).get("Status")
    except QueueError as error:
        yield Finding("versioning", "skipped", f"cannot be read: {error}")
        return
    if status == "Enabled":
        yield Finding(
            "versioning",
            "warning",
            "on: every version of every lease is kept and billed",
            "suspend it, and expire noncurrent versions",
        )
    else:
        yield Finding("versioning", "ok", "off")


def events(of: Examination) -> Iterator[Finding]:
    """Whether S3 notifies a worker of new messages, and of nothing else."""
    if not of.session.is_s3:
        yield Finding("events", "skipped", "a bucket in memory sends no notifications")
        return
    try:
        rules = [rule for rule in notifications(of.session) if rule.hears_creation]
    except QueueError as error:
        yield Finding("events", "skipped", f"cannot be read: {error}", "--send-test shows whether they arrive")
        return
    keys = of.queue.keys
    notified = [rule for rule in rules if keys.prefix("messages").startswith(rule.prefix)]
    if notified:
        targets = ", ".join(_named(rule) for rule in notified)
        yield Finding("events", "ok", f"{keys.prefix('messages')} notifies {targets}")
    else:
        fresh = [worker for worker in live_workers(of.queue) if worker.is_fresh]
        if fresh:
            yield Finding("events", "ok", f"none needed: {counted(len(fresh), 'pull worker')} running")
        else:
            yield Finding(
                "events",
                "problem",
                f"{keys.prefix('messages')} notifies nobody, and no pull worker is running",
                "deploy the queue, or run s3queue work MODULE",
            )
    for rule in rules:
        if rule.function and rule.is_notified_of(keys.prefix("leases")):
            yield Finding(
                "event filter",
                "problem",
                f"{keys.prefix('leases')} also notifies {_named(rule)}: every claim invokes it again",
                f"set the rule's prefix to {keys.prefix('messages')}",
            )


def _named(rule: NotificationRule) -> str:
    return rule.function or ("EventBridge" if rule.target == "events" else rule.target)


def event_arrives(of: Examination, wait: timedelta) -> Iterator[Finding]:
    """Sends an empty batch: it has no line, so no handler runs, but a worker completes it."""
    queue, clock = of.queue, SystemClock()
    queue.refresh()
    if queue.settings.paused:
        yield Finding("test message", "skipped", "the queue is paused", f"s3queue resume {queue.name}")
        return
    name = f"doctor-{queue.chance.token()}.ndjson"
    started = clock.monotonic()
    path = queue.enqueue(b"\n", name=name, priority=255, content_type="application/x-ndjson")
    key = queue.keys.message(path)
    while clock.monotonic() - started < wait.total_seconds():
        if queue.store.head(key) is None:
            record = queue.outcomes.read(path)
            by = f" by {record.worker}" if record and record.worker else ""
            queue.store.delete(queue.keys.record(path))
            yield Finding("test message", "ok", f"completed{by} after {age(clock.monotonic() - started)}")
            return
        clock.sleep(0.25)
    queue.store.delete(key)
    yield Finding(
        "test message",
        "problem",
        f"not completed within {age(wait)}, and deleted again",
        "check the worker function's log, its permission to be invoked by S3, and its reserved concurrency",
    )


def sweeper(of: Examination) -> Iterator[Finding]:
    found = overview(of.queue.store, of.queue.name, pages=1)
    swept_at, now = found.swept_at, found.stats.at
    busy = found.stats.pending or found.stats.processing or found.stats.failed or found.stats.delayed
    if swept_at is None:
        verdict: Verdict = "problem" if busy else "warning"
        way_out = f"deploy the sweeper, or run s3queue work MODULE, or s3queue sweep {of.queue.name}"
        yield Finding("sweeper", verdict, "never swept", way_out)
    elif busy and (silence := unswept_for(found.stats, found.published)):
        found_it = f"not swept for {age(silence)}, although there is work"
        yield Finding(
            "sweeper", "problem", found_it, "check its log and its schedule; crashes are not repaired meanwhile"
        )
    else:
        idle = "" if busy else "; enough for an idle queue"
        yield Finding("sweeper", "ok", f"swept {age(now - swept_at)} ago{idle}")


def state(of: Examination) -> Iterator[Finding]:
    found = overview(of.queue.store, of.queue.name, pages=2)
    verdicts: dict[str, Verdict] = {
        "stuck": "problem",
        "behind": "problem",
        "unswept": "problem",
        "failing": "warning",
        "paused": "warning",
    }
    ways = {
        "behind": f"s3queue set-concurrency {found.name} N; s3queue workers {found.name}",
        "stuck": f"s3queue workers {found.name}; s3queue peek {found.name}",
        "failing": f"s3queue dead errors {found.name}",
        "paused": f"s3queue resume {found.name}",
    }
    verdict = verdicts.get(found.health, "ok")
    yield Finding("queue", verdict, f"{found.health}: {found.reason}", ways.get(found.health, ""))
