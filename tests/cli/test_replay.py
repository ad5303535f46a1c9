"""replay: completed messages whose payload was kept, and dead ones, by path."""

from __future__ import annotations

import pytest

from s3queue import QueueSettings, Worker


@pytest.fixture
def completed(cli):
    queue = cli.queue(settings=QueueSettings.of(keep_payload=True))
    queue.enqueue({"n": 1}, name="one")
    Worker(queue, lambda body: "done", sweep=False).run_until_empty()
    return "messages/one"


def test_a_completed_message_shows_its_payload_and_runs_again(cli, completed):
    shown = cli("show", "orders", completed, "--body")
    assert "kept: orders/done/messages/one" in shown.out
    assert '{"n":1}' in shown.out
    assert cli("show", "orders", completed, "--json").json["kept_payload"] == "orders/done/messages/one"

    answer = cli("replay", "orders", completed, "--json").json
    assert answer == {"queue": "orders", "replayed": {completed: completed}, "failed": {}}
    assert cli.queue().status(completed).state == "pending"
    assert cli("replay", "orders", completed).code == 0
    assert cli.queue().stats().pending == 1


def test_a_payload_that_was_not_kept_says_what_to_do(cli):
    queue = cli.queue()
    queue.enqueue({"n": 1}, name="one")
    Worker(queue, lambda body: "done", sweep=False).run_until_empty()

    ran = cli("replay", "orders", "messages/one", code=1)
    assert "keep_payload=True" in ran.err
    assert "keep_payload=True" in cli("show", "orders", "messages/one", "--body", code=1).err
    assert cli("replay", "orders", "messages/none", "--json", code=1).json["failed"]


def test_a_dead_letter_is_replayed_too_and_a_path_is_needed(cli):
    path = cli.dies({"n": 1}, ValueError("bad number"), name="one")
    assert cli("replay", path, url=f"{cli.url}/orders", **{}).code == 0
    assert cli.queue().status(path).state == "pending"
    assert "no PATH was given" in cli("replay", "orders", code=2).err
