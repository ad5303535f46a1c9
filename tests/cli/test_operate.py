"""The doctor's verdicts, and the words of every command."""

from __future__ import annotations

import threading
from datetime import timedelta

import pytest

from s3queue import Worker
from s3queue.cli.aws import NotificationRule
from s3queue.cli.doctor import races
from s3queue.cli.doctor.checks import Examination, reach
from s3queue.cli.session import Session
from s3queue.cli.words import age, clean, duration
from s3queue.errors import AccessDenied, Conflict


def verdicts(checks):
    return {one["check"]: one["verdict"] for one in checks}


def test_a_healthy_queue(cli):
    cli("send", "orders", "x")
    cli("sweep", "orders", "--defaults")
    before = cli.stored_keys()

    answer = cli("doctor", "orders", "--races", "3", "--json").json

    assert answer["healthy"] is True
    found = verdicts(answer["checks"])
    assert found["conditional writes"] == found["race to create"] == found["race to delete"] == "ok"
    assert found["permissions: leases/"] == found["sweeper"] == found["clock"] == "ok"
    assert found["credentials"] == "skipped"
    assert cli.stored_keys() == before
    assert "one winner each" in cli("doctor", "orders", "--races", "1").out


def test_scratch_objects_are_nobody_s_messages(cli):
    """A sweeper and a worker that run at the same time see nothing to do, and nothing corrupt."""
    ran = []
    queue = cli.queue()
    worker = Worker(queue, lambda body: ran.append(body), concurrency=2, poll_interval=0.01)
    worker.start()
    for _ in range(3):
        cli("doctor", "orders", "--races", "1", code=None)
    worker.stop()
    assert ran == []
    assert (
        cli.stored_keys("orders/records/") == cli.stored_keys("orders/dead/") == cli.stored_keys("orders/leases/") == []
    )


def test_problems_have_a_way_out_and_code_1(cli):
    cli("send", "orders", "x")
    answer = cli("doctor", "orders", "--races", "0", "--json", code=1).json
    assert answer["healthy"] is False
    (sweeper,) = [one for one in answer["checks"] if one["check"] == "sweeper"]
    assert sweeper["verdict"] == "problem"
    assert "s3queue sweep orders" in sweeper["way_out"]
    assert verdicts(answer["checks"])["races"] == "skipped"


def test_the_test_message_runs_no_handler_and_leaves_nothing(cli):
    ran = []
    worker = Worker(cli.queue(), lambda body: ran.append(body), concurrency=1, poll_interval=0.02)
    worker.start()
    try:
        answer = cli("doctor", "orders", "--races", "0", "--send-test", "--json", code=None).json
    finally:
        worker.stop()
    assert verdicts(answer["checks"])["test message"] == "ok"
    assert ran == []
    assert [key for key in cli.stored_keys() if "doctor" in key] == []


def test_a_test_message_that_nobody_takes_is_taken_back(cli):
    ran = cli("doctor", "orders", "--races", "0", "--send-test", "--wait", "300ms", "--json", code=1)
    assert verdicts(ran.json["checks"])["test message"] == "problem"
    assert cli.stored_keys("orders/messages/") == []
    cli("create", "orders")
    cli("pause", "orders")
    ran = cli("doctor", "orders", "--races", "0", "--send-test", "--json", code=None)
    assert verdicts(ran.json["checks"])["test message"] == "skipped"


class Broken:
    """A store that is a little worse than S3."""

    def __init__(self, inner):
        self.inner = inner
        self.url = inner.url
        self.denied = ()
        self.skew = timedelta()
        self.ignores_conditions = False
        self.mutex = threading.Lock()

    def put(self, key, body, *, if_match=None, if_absent=False, **more):
        if ("put", key.split("/")[1]) in self.denied:
            raise AccessDenied(f"PUT {key}: allow s3:PutObject")
        if self.ignores_conditions:
            if_match, if_absent = None, False
        return self.inner.put(key, body, if_match=if_match, if_absent=if_absent, **more)

    def delete(self, key, *, if_match=None):
        if ("delete", key.split("/")[1]) in self.denied:
            raise AccessDenied(f"DELETE {key}: allow s3:DeleteObject")
        return self.inner.delete(key, if_match=None if self.ignores_conditions else if_match)

    def delete_many(self, seen):
        for key, etag in seen.items():
            self.delete(key, if_match=etag)
        return frozenset()

    def list(self, *args, **more):
        from dataclasses import replace

        page = self.inner.list(*args, **more)
        return replace(page, at=page.at + self.skew)

    def __getattr__(self, name):
        return getattr(self.inner, name)


@pytest.fixture
def broken(cli):
    return Broken(cli.queue().store)


def examined(cli, store):
    from s3queue import Queue

    return Examination(Session(url=cli.url), Queue(store=store, name="orders"))


def test_a_server_that_ignores_conditions_is_found(cli, broken):
    broken.ignores_conditions = True
    of = examined(cli, broken)
    found = [*races.conditional_writes(of), *races.run(of, 3)]
    assert {one.verdict for one in found} == {"problem"}
    assert "two winners" in found[1].found
    assert "do not use this server" in found[1].way_out
    of.clean_up()
    assert cli.stored_keys() == []


def test_a_race_that_is_lost_to_a_retry_is_not_called_a_second_winner(cli, broken):
    of = examined(cli, broken)
    put = broken.inner.put

    def confused(key, body, **more):
        try:
            return put(key, body, **more)
        except Conflict as lost:
            raise Conflict(str(lost), retried=True) from None

    broken.put = confused
    (first, *_) = races.run(of, 2)
    assert first.verdict == "ok"
    assert "unclear answers" in first.found


def test_denied_permissions_name_the_action_and_what_stays_behind(cli, broken):
    from s3queue.cli.doctor.checks import permissions

    broken.denied = (("put", "leases"), ("delete", "records"))
    of = examined(cli, broken)
    found = {one.check: one for one in permissions(of)}
    of.clean_up()
    assert found["permissions: leases/"].verdict == "problem"
    assert "s3:PutObject" in found["permissions: leases/"].way_out
    assert found["permissions: records/"].found == "denied: DELETE"
    assert found["permissions: messages/"].verdict == "ok"
    (left,) = of.leftovers()
    assert "orders/records/doctor-" in left.found


@pytest.mark.parametrize(("seconds", "verdict"), [(0, "ok"), (60, "warning"), (-60, "warning"), (3600, "problem")])
def test_a_clock_that_is_off_is_noticed(cli, broken, seconds, verdict):
    broken.skew = timedelta(seconds=seconds)
    (_, clock) = reach(examined(cli, broken))
    assert clock.verdict == verdict
    if seconds > 0:
        assert "behind S3" in clock.found


def test_an_event_filter_that_is_too_wide_is_told_from_a_narrow_one():
    arn = "arn:aws:lambda:us-east-1:123456789012:function:orders-worker"
    narrow = NotificationRule(arn, "orders/messages/", "", ("s3:ObjectCreated:*",))
    wide = NotificationRule(arn, "orders/", "", ("s3:ObjectCreated:*",))
    assert narrow.function == "orders-worker"
    assert not narrow.is_notified_of("orders/leases/")
    assert wide.is_notified_of("orders/leases/")


# Words


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90s", 90), ("15m", 900), ("2h", 7200), ("3d", 259200), ("1h30m", 5400), ("250ms", 0.25), ("7", 7)],
)
def test_durations(text, seconds):
    assert duration(text) == timedelta(seconds=seconds)


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (None, "-"),
        (0, "0 s"),
        (0.0689, "69 ms"),
        (7.38, "7.4 s"),
        (59, "59 s"),
        (125, "2 min 5 s"),
        (7500, "2 h 5 min"),
        (90000, "1 d 1 h"),
    ],
)
def test_ages(seconds, words):
    assert age(seconds) == words


def test_clean_text_keeps_words_and_shows_controls():
    assert clean("grüße 你好 \x1b[0m\x9b\u2066\n") == "grüße 你好 \\x1b[0m\\x9b\\u2066\\n"
    assert clean("a\nb\tc", keep="\n\t") == "a\nb\tc"
