"""The smoke's own judgement: a path that did not end as it has to is noticed. Needs no server."""

from __future__ import annotations

import io
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from PIL import Image

from infra.local.demo.messages import Sent
from infra.smoke import paths
from infra.smoke.installation import Failed, Installation
from s3queue.connect import connect
from s3queue.documents.message import Generation
from s3queue.documents.record import Attempt, Failure, Record
from s3queue.queue import Queue
from support.smoke_account import SmokeAccount

NOON = datetime(2026, 11, 16, 12, tzinfo=UTC)


class Site(Installation):
    """Messages end as `ends` says, at once; None: not in time."""

    def __init__(self, account: SmokeAccount, ends: Callable[[Sent], Record | None]) -> None:
        super().__init__(account, "s")  # type: ignore[arg-type]
        self._ends = ends
        self.__dict__["deployment"] = SimpleNamespace(bucket="b", workers={"smoke": "s-smoke", "emails": "s-emails"})
        self.__dict__["outputs"] = {"FailedEvents": "failed"}

    def queue(self, name: str) -> Queue:
        return connect(f"memory://smoke-paths/{name}")

    def put(self, sent: Sent) -> float:
        self.sent.append(sent)
        return NOON.timestamp()

    def outcome(self, sent: Sent, **_: Any) -> Record:
        if (record := self._ends(sent)) is None:
            raise Failed(f"{sent.key} is not completed")
        return record

    def until(self, question: Any, otherwise: str, **_: Any) -> Any:
        if not (answer := question()):
            raise Failed(otherwise)
        return answer


class S3:
    """A bucket with a thumbnail in it, and the record of a crash."""

    crashes = 1

    def get_object(self, **_: Any) -> Any:
        body = io.BytesIO()
        Image.new("L", (256, 100)).save(body, "JPEG")
        return {"Body": io.BytesIO(body.getvalue())}

    def head_bucket(self, **_: Any) -> Any:
        return {"ResponseMetadata": {"HTTPHeaders": {"date": "Mon, 16 Nov 2026 12:00:00 GMT"}}}

    def list_objects_v2(self, **_: Any) -> Any:
        return {"KeyCount": self.crashes}


@pytest.fixture
def account(tmp_path: Path) -> SmokeAccount:
    made = SmokeAccount(tmp_path)
    s3 = S3()
    made._s3 = lambda: s3  # type: ignore[method-assign]
    return made


def ended(*failures: str, started: float = 0.0, **fields: Any) -> Record:
    """With an attempt for each, ten seconds apart; an empty text is a success."""
    attempts = tuple(
        Attempt(
            number=number,
            worker=f"w{number}",
            started_at=NOON + timedelta(seconds=started + 10 * (number - 1)),
            ended_at=NOON + timedelta(seconds=started + 10 * (number - 1) + 1),
            failure=Failure(kind, "no") if kind else None,
        )
        for number, kind in enumerate(failures, start=1)
    )
    given = {"result": {"began_at": NOON.timestamp() + 0.25, "attempt": len(failures)}} | fields
    return Record(
        path="messages/x",
        outcome="completed",
        generation=Generation(etag="e", put_at=NOON),
        finished_at=NOON,
        attempt=len(failures),
        attempts=attempts,
        **given,
    )


def test_latency_is_from_the_put_to_the_handler_by_one_clock(account: SmokeAccount) -> None:
    site = Site(account, lambda sent: ended(""))
    # S3, and with it every function, is 0.2 s ahead of this machine.
    account.observed.heard(0.0, 0.0, -0.3)
    paths.light(site)
    figures = {figure.what: figure.value for figure in site.figures}
    assert figures["PutObject sent → handler, first message (cold)"] == "0.05 s"
    assert figures["PutObject sent → handler, the next 10, median"] == "0.050 s"
    assert len(site.sent) == 11


def test_the_first_picture_that_s3_tells_of_ends_the_wait(account: SmokeAccount) -> None:
    site = Site(account, lambda sent: ended("") if "photo-03" in sent.path else None)
    assert "thumbnail" in paths.image(site)
    # All of them are accounted for in the end.
    assert len(site.sent) == 3


def test_a_bucket_that_sends_no_events_is_noticed(account: SmokeAccount) -> None:
    with pytest.raises(Failed, match="S3 sends no events"):
        paths.image(Site(account, lambda sent: None))


LINES = {"total": 20, "completed": 20, "dead": 0}


@pytest.mark.parametrize(
    ("path", "good", "wrong", "said"),
    [
        (paths.batch, ended("X", "", lines=LINES), ended("X", "", lines=LINES | {"completed": 19}), "its lines"),
        (paths.batch, ended("X", "", lines=LINES), ended("", lines=LINES), "at attempt 1"),
        (paths.delayed, ended("", started=21), ended("", started=19), "before its time"),
        (paths.retry, ended("ConnectionError", ""), ended(""), "its attempts"),
        (paths.retry, ended("ConnectionError", ""), ended("X", "Y", ""), "its attempts"),
        (paths.killed_worker, ended("LeaseExpired", ""), ended("ConnectionError", ""), "its attempts ended by"),
        (paths.killed_worker, ended("LeaseExpired", ""), ended(""), "its attempts ended by"),
    ],
)
def test_a_message_that_ended_otherwise_is_noticed(
    account: SmokeAccount, path: Callable[[Installation], str], good: Record, wrong: Record, said: str
) -> None:
    assert path(Site(account, lambda sent: good))
    with pytest.raises(Failed, match=said):
        path(Site(account, lambda sent: wrong))


def test_a_crash_that_lambda_kept_no_record_of_is_noticed(account: SmokeAccount) -> None:
    account.client("s3").crashes = 0
    with pytest.raises(Failed, match="Lambda left no record of the crash in failed/aws/lambda/async/s-smoke/"):
        paths.killed_worker(Site(account, lambda sent: ended("LeaseExpired", "")))


def test_a_message_without_an_outcome_is_missing_from_the_accounts(account: SmokeAccount) -> None:
    site = Site(account, lambda sent: None)
    queue = connect("memory://smoke-accounts/smoke")
    site.queue = lambda name: queue  # type: ignore[method-assign]
    for name in ("done", "lost"):
        queue.enqueue({"do": "return"}, name=name)
        site.sent.append(Sent(kind="smoke", queue="smoke", path=f"messages/{name}", body=b""))
    claim = queue.claim("messages/done")
    assert claim
    queue.complete(claim)
    with pytest.raises(Failed, match="2 messages enqueued: 1 completed, 0 dead, 1 missing"):
        paths.accounted(site)
    claim = queue.claim("messages/lost")
    assert claim
    queue.complete(claim)
    assert "0 missing" in paths.accounted(site)
