"""The command in the hands of somebody who was woken up: a narrow terminal, a typo, a failing queue."""

from __future__ import annotations

import subprocess
import sys
from datetime import timedelta

import pytest

from s3queue import Queue
from s3queue.documents.run_documents import Manifest
from s3queue.stores.memory import MemoryStore
from support.manual_clock import ManualClock

#: What an installation with the extra `cli` alone has not.
BARE = """
import sys
for name in ("pydantic", "aws_lambda_powertools"):
    sys.modules[name] = None
from s3queue import Queue
from s3queue.dashboard.overview import overview
from s3queue.stores.memory import MemoryStore
import s3queue.cli.app
queue = Queue(store=MemoryStore(), name="orders")
queue.fail(queue.claim(queue.enqueue("x")), "no", retry_after=900)
print(overview(queue.store, "orders").health)
"""


def test_a_failing_queue_is_judged_without_the_dashboard_s_packages():
    ran = subprocess.run([sys.executable, "-c", BARE], capture_output=True, text=True)
    assert (ran.stdout.strip(), ran.returncode) == ("healthy", 0), ran.stderr


@pytest.mark.parametrize("columns", ["80", "110"])
def test_reasons_are_readable_in_a_narrow_terminal(cli, columns):
    cli.dies({}, ValueError("no"), name="one")
    cli("create", "a-queue-whose-name-has-as-many-letters-as-a-name-may-have-0")
    shown = cli("queues", COLUMNS=columns).out
    assert "health " in shown, "no heading is cut"
    assert "dead " in shown
    words = " ".join(shown.split())
    assert "1 dead letter waits" in words
    if columns == "80":
        assert "orders: 1 dead letter waits for a decision" in shown
    assert shown.index("failing") < shown.index("idle"), "the worst comes first"


def test_a_command_under_a_word_is_suggested(cli):
    said = cli("errors", "orders", code=2).err
    assert "No such command 'errors'. Did you mean 'dead errors'?" in said
    assert "Did you mean" not in cli("nonsense", code=2).err


def test_a_batch_s_letter_shows_how_many_lines_died(cli):
    queue = cli.queue()
    queue.enqueue_many([{"n": 1}, {"n": 2}])
    cli.work(lambda body: 1 / 0, max_attempts=1)
    assert "2 lines, the first: ZeroDivisionError: division by zero" in cli("dead", "list", "orders").out
    said = cli("dead", "list", "orders", "--error-type", "ZeroDivision", code=1).err
    assert "s3queue dead errors orders shows what there is" in said
    assert "acknowledged" in cli("dead", "errors", "orders").out.splitlines()[1]


def test_runs_have_the_words_of_the_page(cli):
    queue = cli.queue("exports")
    for name, state in (("a", "closed"), ("b", "failed")):
        note = "the driver was killed" if state == "failed" else ""
        run = Manifest(run=f"run-{name}", slot=0, opened_at=queue.clock.now(), state=state, note=note)
        queue.store.put(queue.keys.manifest(f"run-{name}"), run.to_bytes())
    shown = cli("runs", "exports").out
    assert "ended" in shown
    assert "closed" not in shown
    assert "the driver was killed" in shown


def test_a_run_without_a_sign_of_life_is_silent(monkeypatch, cli):
    clock = ManualClock()
    queue = Queue(store=MemoryStore("old", clock=clock), name="exports")
    queue.store.put(
        queue.keys.manifest("run"), Manifest(run="run", slot=0, state="running", opened_at=clock.now()).to_bytes()
    )
    clock.advance(timedelta(minutes=30).total_seconds())
    monkeypatch.setattr("s3queue.cli.session.Session.store", lambda session: queue.store)
    assert "silent" in cli("runs", "exports").out
