"""stats --last-hour: what the sweeper counted, for people and for scripts."""

from __future__ import annotations

from datetime import timedelta

from s3queue.sweeper import last_hour
from support.finished_messages import put_record, record


def test_the_last_hour_is_shown_after_a_sweep(cli, monkeypatch):
    # What was stored within the last two seconds is left to the next look; this test has no time for that.
    monkeypatch.setattr(last_hour, "SETTLED", -timedelta(seconds=2))
    queue = cli.queue()
    queue.enqueue("x")
    assert "no figures: no sweeper has counted yet" in cli("stats", "orders", "--last-hour").out
    for number in range(3):
        put_record(queue.store, "orders", record(f"messages/x{number}", tries=1))

    cli("sweep", "orders", "--defaults")

    answer = cli("stats", "orders", "--last-hour", "--json").json
    assert (answer["available"], answer["finished"], answer["retried"]) == (True, 3, 3)
    assert answer["errors"] == [{"error_type": "Flaky", "failed_attempts": 3}]
    shown = cli("stats", "orders", "--last-hour").out
    assert "waited, p50 / p95 / p99" in shown
    assert "Flaky" in shown
    assert "3 records read" in shown


def test_what_the_sweeper_counted_cannot_be_counted_again_now(cli):
    cli.queue().enqueue("x")
    assert "neither --watch nor --exact" in cli("stats", "orders", "--last-hour", "--watch", code=2).err
