"""open_state: a document that nobody can read is garbage, a permission that is missing says nothing about it."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import s3queue
from s3queue.errors import AccessDenied, Conflict, CorruptState, Unavailable
from s3queue.flow.effective_settings import publish_settings
from s3queue.protocol.overrides import read_published
from s3queue.store import delete_unique, look_at, open_state, put_surely
from support.counting_store import CountingStore
from support.forged_documents import ARCHIVED, FOREIGN, ForgedStore
from support.workbench import Workbench

KEY = "orders/queue.json"
UNREADABLE = pytest.mark.parametrize("body", [ARCHIVED, FOREIGN], ids=["archived", "foreign key"])


@pytest.fixture
def bench() -> Workbench:
    bench = Workbench()
    bench.memory = ForgedStore("bench", clock=bench.clock, around=bench._request)
    bench.store = CountingStore(bench.memory)
    return bench


@UNREADABLE
def test_it_has_the_etag_and_the_age_by_which_it_can_be_replaced(bench, body):
    written = bench.put(KEY, body)
    bench.clock.advance(60)

    found = open_state(bench.store, KEY)

    assert found
    assert (found.key, found.etag, found.size) == (KEY, written.etag, len(body))
    assert (found.at - found.modified_at).total_seconds() == 60
    with pytest.raises(CorruptState, match=r"orders/queue\.json cannot be read: .*InvalidObjectState"):
        found.read(1024)
    put_surely(bench.store, KEY, b"{}", if_match=found.etag)
    assert bench.read(KEY) == b"{}"


def test_what_can_be_read_or_is_not_there_costs_one_request(bench):
    bench.put(KEY, b"{}")

    found = open_state(bench.store, KEY)

    assert found
    assert found.read() == b"{}"
    assert open_state(bench.store, "orders/stats.json") is None
    assert bench.store.take() == {"get": 2}


def test_a_permission_that_is_missing_says_nothing_about_the_document(bench):
    bench.put(KEY, ARCHIVED)

    def deny(operation: str, key: str, perform: Callable[[], Any]) -> Any:
        raise AccessDenied(f"{operation} {key}: AccessDenied; allow s3:GetObject")

    bench.around = deny
    with pytest.raises(AccessDenied, match="allow s3:GetObject"):
        open_state(bench.store, KEY)


@UNREADABLE
def test_a_good_document_that_takes_its_place_meanwhile_is_not_taken_for_it(bench, body):
    """It would be replaced by its own ETag: a lease under which a message runs."""
    bench.put(KEY, body)

    def replace_first(operation: str, key: str, perform: Callable[[], Any]) -> Any:
        bench.around = None
        if operation == "get":
            bench.around = replace_now
        return perform()

    def replace_now(operation: str, key: str, perform: Callable[[], Any]) -> Any:
        bench.around = None
        bench.put(KEY, b"good")
        return perform()

    bench.around = replace_first
    found = open_state(bench.store, KEY)

    assert found
    assert found.read() == b"good"


def test_one_that_is_deleted_meanwhile_is_gone(bench):
    bench.put(KEY, ARCHIVED)

    def delete_now(operation: str, key: str, perform: Callable[[], Any]) -> Any:
        if operation == "head":
            bench.around = None
            bench.memory.delete(KEY)
        return perform()

    bench.around = delete_now
    assert open_state(bench.store, KEY) is None


@UNREADABLE
def test_it_is_replaced_although_the_first_answer_is_lost(bench, body):
    found = bench.put(KEY, body)
    lost = ["put"]

    def lose(operation: str, key: str, perform: Callable[[], Any]) -> Any:
        if operation in lost:
            lost.remove(operation)
            raise Unavailable("no answer")
        return perform()

    bench.around = lose
    put_surely(bench.store, KEY, b"{}", if_match=found.etag)

    assert bench.read(KEY) == b"{}"


@UNREADABLE
def test_a_write_is_lost_to_what_nobody_can_read(bench, body):
    bench.put(KEY, body)

    def lose(operation: str, key: str, perform: Callable[[], Any]) -> Any:
        if operation == "put":
            raise Unavailable("no answer")
        return perform()

    bench.around = lose
    with pytest.raises(Conflict):
        put_surely(bench.store, KEY, body[::-1], if_absent=True)


@UNREADABLE
def test_a_delete_whose_answer_is_lost_knows_what_lies_there_now(bench, body):
    found = bench.put(KEY, b"{}")

    def lose(operation: str, key: str, perform: Callable[[], Any]) -> Any:
        if operation == "delete":
            bench.around = None
            bench.put(KEY, body)
            raise Unavailable("no answer")
        return perform()

    bench.around = lose
    assert delete_unique(bench.store, KEY, if_match=found.etag) is False
    seen = look_at(bench.store, KEY)
    assert seen
    assert seen.size == len(body)


def test_published_settings_that_nobody_can_read_are_published_anew(bench):
    queue = bench.queue()
    bench.put("orders/queue-settings.json", ARCHIVED)

    assert read_published(queue) is None
    assert publish_settings(queue, "worker")
    assert read_published(queue)


#: What reads payloads and letters, whose refusal says something else; and the archive's and frameworks' own objects.
OTHERS = {
    *("flow/replay_completed.py", "flow/edited_replay.py", "flow/replay_to.py", "flow/read_ahead.py"),
    *("protocol/dead_letters.py", "protocol/dead_line_choice.py", "protocol/letter_writes.py", "protocol/opening.py"),
    *("protocol/outcomes.py", "protocol/partition_replay.py", "protocol/claiming.py", "protocol/dead_groups.py"),
    *("cli/commands/dead_replay.py", "cli/commands/stats.py", "cli/commands/dead.py", "cli/commands/show.py"),
    *("cli/commands/dead_search.py", "dashboard/search.py", "dashboard/browse.py", "testing/bucket.py"),
    *("contrib/celery/backend.py", "contrib/celery/revoking.py", "contrib/django/backend.py"),
    *("archive/parts.py", "archive/old_log.py", "store.py"),
}


def test_every_other_module_opens_what_it_reads_as_state():
    library = Path(s3queue.__file__).parent
    opens = {
        str(path.relative_to(library))
        for path in library.rglob("*.py")
        if re.search(r"store\.open\(", path.read_text(encoding="utf-8"))
    }

    assert opens == OTHERS
