"""Messages: sent, counted, peeked at, shown, watched."""

from __future__ import annotations

import json
import threading

import pytest

from s3queue import Retry, connect
from s3queue.cli.commands.tail import Watcher
from s3queue.clock import SystemClock
from s3queue.errors import AccessDenied
from s3queue.flow.partitions import hold_partition
from s3queue.paths import due_of, priority_of
from s3queue.stores.memory import MemoryStore

#: Clears the screen, sets the title, rings, overrides the direction of text, moves the cursor by a C1 sequence.
HOSTILE = "\x1b[2J\x1b]0;owned\x07 \u202eevil\x9b31m\r\x08[bold]markup[/bold]"


def stored(cli, path):
    queue = cli.queue()
    found = queue.store.open(queue.keys.message(path))
    return found.read(), found.content_type, dict(found.metadata)


@pytest.mark.parametrize(
    ("body", "content_type"),
    [
        ('{"id": 17}', "application/json"),
        ("plain words", "text/plain; charset=utf-8"),
        ("@@home", "text/plain; charset=utf-8"),
    ],
)
def test_a_body_is_sent_as_it_is_typed(cli, body, content_type):
    path = cli("send", "orders", body).out.strip()
    assert stored(cli, path)[:2] == (body.removeprefix("@").encode(), content_type)


def test_a_file_and_stdin(cli, tmp_path):
    file = tmp_path / "picture.bin"
    file.write_bytes(b"\x89PNG\xff\x00")
    path = cli("send", "orders", f"@{file}").out.strip()
    assert stored(cli, path)[:2] == (b"\x89PNG\xff\x00", "application/octet-stream")
    path = cli("send", "orders", stdin="piped").out.strip()
    assert stored(cli, path)[0] == b"piped"
    path = cli("send", "orders", "-", stdin=b'{"a": 1}').out.strip()
    assert stored(cli, path)[1] == "application/json"


def test_a_url_for_someone_without_credentials(cli):
    answer = json.loads(
        cli("presign", "orders", "--name", "17.json", "--priority", "200", "--expires", "10m", "--json").out
    )

    assert (answer["path"], answer["method"]) == ("messages/p200/17.json", "PUT")
    assert answer["headers"] == {"If-None-Match": "*"}
    assert answer["url"].endswith("/orders/messages/p200/17.json?expires=600&if-none-match=*")
    said = cli("presign", "orders")
    assert said.out.startswith("memory://")
    assert "curl -fT FILE -H 'If-None-Match: *' URL" in said.err


@pytest.mark.parametrize("command", [("presign", "orders"), ("send", "orders", "{}")])
def test_a_path_or_url_is_one_line_however_long_it_is(cli, command):
    name = "x" * 400

    assert len(cli(*command, "--name", name).out.splitlines()) == 1


def test_a_url_to_read_what_a_handler_made(cli):
    queue = cli.queue()
    queue.store.put("orders/results/17.pdf", b"%PDF")

    assert (
        cli("presign", "orders", "--get", "results/17.pdf").out.strip().endswith("/orders/results/17.pdf?expires=3600")
    )
    missing = cli("presign", "orders", "--get", "results/18.pdf", code=1)
    assert "there is no" in missing.err
    assert "--priority" in cli("presign", "orders", "--get", "results/17.pdf", "--priority", "1", code=2).err


def test_a_url_for_longer_than_s3_signs_is_refused(cli):
    assert "7 days" in cli("presign", "orders", "--expires", "8d", code=2).err


def test_a_definition_checks_what_is_sent(cli, tmp_path):
    module = tmp_path / "orders_checked.py"
    module.write_text(
        "from dataclasses import dataclass\n"
        "from s3queue import define\n"
        "queue = define('orders')\n"
        "@dataclass\n"
        "class Order:\n    id: int\n"
        "@queue.handler\n"
        "def handle(order: Order) -> None: ...\n"
    )
    refused = cli("send", "orders", '{"id": "x"}', "--module", str(module), code=None)
    assert refused.code != 0
    assert "Order.id: must be a JSON int, not str" in refused.err
    lines = tmp_path / "o.ndjson"
    lines.write_text('{"id": 1}\n{}\n')
    refused = cli("send", "orders", f"@{lines}", "--module", str(module), code=None)
    assert "Order.id: the field is missing" in refused.err
    assert "not emails" in cli("send", "emails", "{}", "--module", str(module), code=None).err
    assert cli.queue().stats().pending == 0
    path = cli("send", "orders", '{"id": 1}', "--module", str(module)).out.strip()
    assert stored(cli, path)[0] == b'{"id": 1}'


def test_priority_delay_instant_name_and_metadata(cli):
    path = cli(
        "send", "orders", "x", "--priority", "200", "--metadata", "customer=4711", "--metadata", "note=grüße"
    ).out
    assert priority_of(path.strip()) == 200
    metadata = cli.queue().claim(path.strip()).message.metadata
    assert metadata == {"customer": "4711", "note": "grüße"}
    assert due_of(cli("send", "orders", "x", "--delay", "1h30m").out.strip()) > SystemClock().now()
    assert due_of(cli("send", "orders", "x", "--at", "2099-11-16T10:15:00+01:00").out.strip()).hour == 9
    assert cli("send", "orders", "x", "--name", "mine").out == "messages/mine\n"


def test_a_dedup_id_sends_once(cli):
    first = cli("send", "orders", "x", "--dedup-id", "order 17").out
    assert cli("send", "orders", "y", "--dedup-id", "order 17").out == first
    assert cli("size", "orders").out == "1\n"


def test_a_dedup_id_that_counts_for_a_while_sends_once(cli):
    first = cli("send", "orders", "x", "--dedup-id", "order 18", "--dedup-for", "5m").out
    assert cli("send", "orders", "y", "--dedup-id", "order 18", "--dedup-for", "5m").out == first
    assert "--dedup-id" in cli("send", "orders", "x", "--dedup-for", "5m", code=2).err


@pytest.mark.parametrize("more", [[], ["--dedup-for", "5m"], ["--name", "night"]])
@pytest.mark.parametrize("per_object", [False, True])
def test_a_dedup_id_that_a_batch_would_ignore_is_refused_and_nothing_is_sent(cli, tmp_path, more, per_object):
    lines = tmp_path / "orders.ndjson"
    lines.write_text('{"id": 1}\n{"id": 2}\n')
    body = ['{"id": 1}', "--per-object", "10"] if per_object else [f"@{lines}"]
    said = cli("send", "orders", *body, "--dedup-id", "night-17", *more, code=2).err
    assert "--dedup-id" in said
    assert "one by one, each with an id of its own" in said
    assert cli.queue().stats().total == 0


def test_a_group_gets_its_messages_in_the_order_they_were_sent(cli):
    one = cli("send", "orders", "first", "--group", "customer 42").out.strip()
    more = cli("send", "orders", "{n}", "--group", "customer 42", "--count", "30").out.split()
    paths = [one, *more]
    assert paths == sorted(paths)
    assert {path.rpartition("/")[0] for path in paths} == {"messages/@customer%2042"}
    assert [stored(cli, path)[0] for path in more] == [str(number).encode() for number in range(1, 31)]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--priority", "9"], "a message with a group has no priority and no delay"),
        (["--delay", "1h"], "a message with a group has no priority and no delay"),
        (["--at", "2100-01-01T00:00:00Z"], "a message with a group has no priority and no delay"),
        (["--per-object", "10"], "a batch cannot have a --group"),
        (["--name", "lines.ndjson"], "enqueue its lines one by one"),
        (["--group", "x" * 900], "900 bytes when quoted for a key, at most 512"),
        (["--group", ""], "give a text that is not empty"),
    ],
)
def test_what_a_group_cannot_have_is_refused_and_nothing_is_sent(cli, options, said):
    assert said in cli("send", "orders", "x", "--group", "customer-42", *options, code=2).err
    assert cli.queue().stats().total == 0


def test_a_queue_whose_large_messages_go_to_spark_has_no_groups(cli, tmp_path, monkeypatch):
    (tmp_path / "heavy_orders.py").write_text(
        "from s3queue import define\norders = define('orders', heavy_above=1000)\n\n"
        "@orders.handler\ndef handle(body): ...\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    ran = cli("send", "orders", "x", "--group", "customer-42", "--module", "heavy_orders", code=2)
    assert "cannot have groups" in ran.err
    assert "engine='spark'" in ran.err


def test_cancel_ends_what_waits_and_says_what_was_finished_before(cli):
    path = cli("send", "orders", "x", "--delay", "1h").out.strip()
    assert cli("cancel", "orders", path, "--dry-run", "--json").json["outcomes"] == {path: "delayed"}
    assert "--yes" in cli("cancel", "orders", path, code=2).err
    assert cli("cancel", "orders", path, "--yes").out == "orders: 1 message cancelled\n"
    assert cli("show", "orders", path, "--json").json["state"] == "cancelled"
    assert "cancelled" in cli("show", "orders", path).out
    assert cli("cancel", "orders", path, "--yes", "--json").json["outcomes"] == {path: "cancelled"}
    gone = cli("cancel", "orders", path, "messages/never", "--yes", code=1)
    assert "not cancelled: messages/never" in gone.err
    assert "no PATH" in cli("cancel", "orders", "--yes", code=2).err


def test_list_shows_messages_by_state_and_where_to_go_on(cli):
    paths = [cli("send", "orders", "x", "--name", f"m{number}").out.strip() for number in range(3)]
    page = cli("list", "orders", "--limit", "2", "--json").json
    assert [row["path"] for row in page["messages"]] == paths[:2]
    rest = cli("list", "orders", "--limit", "2", "--after", page["next_after"], "--json").json
    assert ([row["path"] for row in rest["messages"]], rest["next_after"]) == (paths[2:], None)
    shown = cli("list", "orders", "--limit", "2")
    assert "messages/m0" in shown.out
    assert "--after messages/m1" in shown.err
    assert "no waiting message" in cli("list", "orders", "--state", "waiting").err
    assert "there is no state 'lost'" in cli("list", "orders", "--state", "lost", code=2).err


def test_retry_tries_now_what_waits_and_refuses_the_rest(cli):
    queue = cli.queue("orders")
    path = cli("send", "orders", "x").out.strip()
    assert "pending" in cli("retry", "orders", path, code=1).err
    queue.fail(queue.claim(path), "away", retry_after=3600)
    info = cli("retry", "orders", path, "--dry-run", "--json").json["messages"][path]
    assert (info["state"], info["attempt"], info["failure"]["message"]) == ("waiting", 1, "away")
    assert "attempt 1 of" in cli("retry", "orders", path).out
    assert [claim.path for claim in queue.claim_next()] == [path]


def test_release_gives_back_what_is_held_says_by_whom_and_refuses_the_rest(cli):
    queue = cli.queue("orders")
    path = cli("send", "orders", "x").out.strip()
    assert "waits for a worker" in cli("release", "orders", path, "--yes", code=1).err
    queue.claim(path)
    held = cli("release", "orders", path, "--dry-run", "--json").json["messages"][path]
    assert (held["worker"], held["attempt"]) == (queue.worker_id, 1)
    assert f"{path}: held by {queue.worker_id}, attempt 1" in cli("release", "orders", path, "--dry-run").out
    assert "--yes" in cli("release", "orders", path, code=2).err
    assert queue.status(path).state == "processing"
    assert f"released, was held by {queue.worker_id}, attempt 1" in cli("release", "orders", path, "--yes").out
    (again,) = queue.claim_next()
    assert (again.path, again.attempt) == (path, 1)
    gone = cli("release", "orders", path, "messages/never", "--yes", "--json", code=1)
    assert list(gone.json["messages"]) == [path]
    assert "not released: messages/never" in gone.err


def test_count_sends_many_and_numbers_them(cli):
    answer = cli("send", "orders", '{"n": {n}}', "--count", "25", "--json").json
    assert answer["messages"] == len(answer["paths"]) == 25
    assert {json.loads(stored(cli, path)[0])["n"] for path in answer["paths"]} == set(range(1, 26))


def test_count_per_object_makes_batches(cli):
    answer = cli("send", "orders", '{"n": {n}}', "--count", "25", "--per-object", "10", "--json").json
    assert (answer["messages"], len(answer["paths"])) == (25, 3)
    assert all(path.endswith(".ndjson") for path in answer["paths"])


def test_a_whole_ndjson_is_one_object(cli, tmp_path):
    file = tmp_path / "orders.ndjson"
    file.write_text('{"n": 1}\n\n{"n": 2}\r\n{"n": 3}')
    ran = cli("send", "orders", f"@{file}")
    assert stored(cli, ran.out.strip())[:2] == (b'{"n": 1}\n{"n": 2}\n{"n": 3}\n', "application/x-ndjson")
    assert "3 messages sent to orders in 1 object" in ran.err
    seen = []
    cli.work(lambda body: seen.append(body["n"]))
    assert seen == [1, 2, 3]
    file.write_text("\n\n")
    assert "no line to send" in cli("send", "orders", f"@{file}", code=2).err


def test_queue_json_limits_what_is_sent(cli):
    cli("create", "orders", "max_message_size=10")
    assert "max_message_size is 10" in cli("send", "orders", "eleven bytes", code=2).err


def test_a_producer_that_may_only_create_can_send(cli, tmp_path, monkeypatch):
    """As the policy of `-c create_only_producers=true` has it: no GET, and a PUT only with `If-None-Match: *`."""
    allowed = MemoryStore.put

    def put(store, key, body, *, if_absent=False, **options):
        if not if_absent:
            raise AccessDenied(key)
        return allowed(store, key, body, if_absent=if_absent, **options)

    def refuse(store, key, **options):
        raise AccessDenied(key)

    monkeypatch.setattr(MemoryStore, "put", put)
    monkeypatch.setattr(MemoryStore, "open", refuse)
    monkeypatch.setattr(MemoryStore, "head", refuse)
    (tmp_path / "orders.ndjson").write_text('{"n": 1}\n{"n": 2}\n')
    for arguments in (["hello"], [f"@{tmp_path / 'orders.ndjson'}"], ["--delay", "1h", "x"], ["--dedup-id", "7", "x"]):
        cli("send", "orders", *arguments)
    assert len(list(connect(f"{cli.url}/orders").store.list("orders/").objects)) == 4
    cli("send", "orders", "--name", "mine", "x", code=None)
    assert len(list(connect(f"{cli.url}/orders").store.list("orders/").objects)) == 4


def test_size_and_stats_are_the_library_s(cli):
    cli("send", "orders", "--count", "3", "x")
    cli("send", "orders", "x", "--delay", "1h")
    assert cli("size", "orders").out == "4\n"
    sized = cli("size", "orders", "--json").json
    assert (sized["size"], sized["exact"]) == (4, True)
    shown = cli("stats", "orders", "--json").json
    expected = cli.queue().stats().to_json()
    assert {name: shown[name] for name in ("pending", "delayed", "total", "dead")} == {
        name: expected[name] for name in ("pending", "delayed", "total", "dead")
    }
    assert shown.keys() >= expected.keys() | {"queue", "health", "reason", "paused", "swept_at"}
    assert "pending" in cli("stats", "orders").out


def test_stats_watch_counts_again_and_says_what_it_costs(cli):
    cli("send", "orders", "x")
    ran = cli("stats", "orders", "--watch", "--interval", "100ms", "--for", "350ms", "--json")
    assert len(ran.lines) >= 2
    assert "per hour" in ran.err
    assert cli("stats", "orders", "--watch", "--interval", "50ms", "--for", "60ms").out.count("pending") >= 1


def test_peek_shows_the_next_ones_in_the_order_of_claims_and_claims_nothing(cli):
    cli("send", "orders", "ordinary", "--name", "b")
    cli("send", "orders", "later", "--delay", "1h")
    cli("send", "orders", "urgent", "--priority", "9", "--name", "a")
    before = cli.stored_keys()

    found = cli("peek", "orders", "--json").json

    assert [one["path"].rpartition("/")[2] for one in found[:2]] == ["a", "b"]
    assert found[2]["due_at"]
    assert "body" not in found[0]
    assert cli.stored_keys() == before
    assert [one["body"] for one in cli("peek", "orders", "--body", "--json", "--limit", "1").json] == ["urgent"]
    assert "urgent" not in cli("peek", "orders").out
    assert "urgent" in cli("peek", "orders", "--body").out


def test_a_hostile_payload_and_name_reach_no_terminal(cli):
    queue = cli.queue()
    queue.store.put(f"orders/messages/evil{HOSTILE}", HOSTILE.encode(), metadata={})
    path = f"messages/evil{HOSTILE}"
    cli.dies(HOSTILE, ValueError(HOSTILE), name="dead-one")
    calls = [
        ["peek", "orders", "--body"],
        ["show", "orders", path, "--body"],
        ["show", "orders", "messages/dead-one", "--body", "--trace"],
        ["show", "orders", f"messages/missing{HOSTILE}"],
        ["dead", "list", "orders"],
        ["dead", "show", "orders", "messages/dead-one", "--body"],
        ["dead", "errors", "orders"],
        ["send", "orders", f"@{HOSTILE}"],
    ]
    for call in calls:
        for flags in ([], ["--json"]):
            ran = cli(*call, *flags, code=None)
            for dangerous in "\x1b\x07\u202e\x9b\r\x08":
                assert dangerous not in ran.out + ran.err, (call, flags)
    shown = cli("show", "orders", "messages/dead-one", "--body").out
    assert "\\x1b[2J" in shown
    assert "[bold]markup[/bold]" in shown


def test_a_payload_that_is_no_text(cli, tmp_path):
    body = b"\x00\xff\x1b"
    queue = cli.queue()
    path = queue.enqueue(body)
    assert cli("show", "orders", path, "--body", "--json").json["body_base64"] == "AP8b"
    assert "\\x00\\xff\\x1b" in cli("show", "orders", path, "--body").out
    cli("show", "orders", path, "--save", str(tmp_path / "saved"))
    assert (tmp_path / "saved").read_bytes() == body
    assert "cannot be written" in cli("show", "orders", path, "--save", str(tmp_path), code=2).err


def test_a_long_payload_is_cut(cli):
    path = cli.queue().enqueue(b"x" * 100_000)
    document = cli("show", "orders", path, "--body", "--json").json
    assert len(document["body"]) == 64 * 1024
    assert document["body_cut"] is True
    assert "--save" in cli("show", "orders", path, "--body").out


def test_show_tells_a_life_from_the_first_attempt_to_the_outcome(cli):
    path = cli("send", "orders", '{"a": 1}').out.strip()
    assert "enqueued" in cli("show", "orders", path).out
    tries = iter([Retry("not yet", after=0), None])

    def second_time_lucky(_: bytes) -> dict[str, str]:
        if error := next(tries):
            raise error
        return {"sent": "yes"}

    queue = cli.work(second_time_lucky)
    waiting = cli("show", "orders", path, "--json").json
    if waiting["state"] == "waiting":
        assert waiting["attempts"][0]["failure"]["message"] == "not yet"
        assert "next attempt" in cli("show", "orders", path).out
        SystemClock().sleep(2.1)
        cli.work(second_time_lucky)

    document = cli("show", "orders", path, "--json").json
    shown = cli("show", "orders", path).out

    assert document["state"] == "completed"
    assert [attempt["number"] for attempt in document["attempts"]] == [1, 2]
    assert document == {"queue": "orders"} | queue.status(path).to_json()
    order = ["enqueued", "attempt 1 ", "attempt 1 failed", "attempt 2 ", "attempt 2 succeeded", "completed"]
    timeline = shown[shown.index("when") :]
    positions = [timeline.index(word) for word in order]
    assert positions == sorted(positions)
    assert "Retry: not yet" in shown
    assert "sent" in shown
    assert "was deleted" in cli("show", "orders", path, "--body", code=1).err


def test_show_tells_who_is_at_it_now(cli):
    cli("send", "orders", "x")
    queue = cli.queue(worker_id="worker-7")
    (claim,) = queue.claim_next()
    shown = cli("show", "orders", claim.path).out
    assert "attempt 1 is running" in shown
    assert "worker-7" in shown
    assert cli("show", "orders", claim.path, "--json").json["state"] == "processing"


def told(events):
    return [(event["event"], event["path"]) for event in events]


def test_tail_tells_each_step_once(cli):
    queue = cli.queue()
    queue.enqueue(b"0", name="before")
    watcher = Watcher(cli.queue())
    assert watcher.poll() == []

    path = queue.enqueue(b"1", name="slow", priority=9)
    assert told(watcher.poll()) == [("message.enqueued", path)]
    (claim,) = queue.claim_next()
    (claimed,) = watcher.poll()
    assert (claimed["event"], claimed["path"], claimed["worker"]) == ("message.claimed", path, queue.worker_id)
    queue.fail(claim, ValueError("broken"), retry_after=0)
    (retry,) = watcher.poll()
    assert (retry["event"], retry["error_type"], retry["error"]) == ("message.retry", "ValueError", "broken")
    claim = None
    while claim is None:
        claim = queue.claim(path, read_first=True)
    queue.complete(claim)
    assert ("message.completed", path) in told(watcher.poll())
    assert watcher.poll() == []


def test_tail_shows_the_outcome_of_what_comes_and_goes_between_two_looks(cli):
    queue = cli.queue()
    watcher = Watcher(cli.queue())
    watcher.poll()
    path = queue.enqueue(b"1")
    (claim,) = queue.claim_next()
    queue.complete(claim)
    assert told(watcher.poll()) == [("message.completed", path)]
    assert watcher.poll() == []


def test_tail_tells_each_step_of_a_message_in_a_group_once(cli):
    queue = cli.queue()
    watcher = Watcher(cli.queue())
    watcher.poll()
    bad = queue.enqueue(b"1", group="a")
    good = queue.enqueue(b"2", group="a")
    assert told(watcher.poll()) == [("message.enqueued", bad), ("message.enqueued", good)]

    hold = hold_partition(queue.leases, "@a")
    claimed = watcher.poll()
    assert told(claimed) == [("message.claimed", bad), ("message.claimed", good)]
    assert {event["worker"] for event in claimed} == {queue.worker_id}
    claim = hold.take()
    queue.fail(claim, ValueError("broken"), retry_after=0)
    hold.advance(stop=True)
    (retry,) = watcher.poll()
    assert (retry["event"], retry["path"], retry["error"]) == ("message.retry", bad, "broken")
    while queue.store.list(queue.keys.prefix("messages")).objects:
        cli.work(lambda body: None)
    events = watcher.poll()
    # Within a second, the order of two of them is that of two clocks.
    completed = sorted(one for one in told(events) if one[0] == "message.completed")
    assert completed == [("message.completed", bad), ("message.completed", good)]
    assert not [one for one in events if one["event"] == "message.gone"]
    assert watcher.poll() == []


def test_tail_shows_the_outcomes_of_a_partition_that_it_has_seen_before(cli):
    queue = cli.queue()
    watcher = Watcher(cli.queue())
    watcher.poll()
    paths = []
    for _ in range(2):
        paths.append(queue.enqueue(b"1", group="a"))
        if len(paths) == 1:
            watcher.poll()
        cli.work(lambda body: None)
        assert told(watcher.poll()) == [("message.completed", paths[-1])]
    assert watcher.poll() == []


def test_tail_says_that_a_message_of_a_group_is_gone_if_nothing_tells_its_outcome(cli):
    queue = cli.queue()
    path = queue.enqueue(b"1", group="a")
    watcher = Watcher(cli.queue())
    watcher.poll()
    queue.store.delete(queue.keys.message(path))
    assert told(watcher.poll()) == [("message.gone", path)]


def test_tail_lists_the_journals_of_few_groups_only(cli):
    queue = cli.queue()
    for number in range(100):
        queue.enqueue(b"1", group=f"g{number}")
    watcher = Watcher(cli.queue())
    watcher.poll()
    assert watcher.requests == {"list": 2}
    for number in range(100):
        queue.enqueue(b"2", group=f"g{number}")
    watcher.poll()
    watcher.requests.clear()
    watcher.poll()
    assert watcher.requests == {"list": 2 + 20}


def test_tail_looks_cheaply_at_a_queue_with_a_long_history(cli):
    queue = cli.queue()
    for number in range(3000):
        queue.store.put(queue.keys.record(f"messages/0190{number:04d}-0000-7000-8000-000000000000"), b"{}")
    watcher = Watcher(cli.queue())
    watcher.poll()
    assert watcher.requests == {"list": 2}


def test_tail_prints_what_happens_and_what_looking_costs(cli):
    stop = threading.Event()

    def act():
        while not stop.wait(0.2):
            cli.dies(b"x", ValueError("broken"))

    cli("create", "orders")
    thread = threading.Thread(target=act)
    thread.start()
    try:
        ran = cli("tail", "orders", "--interval", "100ms", "--for", "1500ms")
        lines = cli("tail", "orders", "--interval", "100ms", "--for", "1s", "--json").lines
    finally:
        stop.set()
        thread.join()
    assert "ValueError: broken" in ran.out
    assert "per hour" in ran.err
    assert "requests, " in ran.err
    assert {"event", "queue", "path", "at"} <= lines[0].keys()


def test_a_count_without_a_body_sends_numbered_test_messages(cli):
    """Also in a script, where stdin is no terminal, and empty."""
    assert cli("send", "orders", "--count", "3", "--json", stdin="").json["messages"] == 3
    queue = cli.queue()
    bodies = {queue.store.open(f"orders/{row.path}").read() for row in queue.list("pending").messages}
    assert bodies == {b'{"test": true, "n": %d}' % number for number in (1, 2, 3)}


def test_a_body_that_is_no_text_is_refused(cli):
    assert "not valid Unicode" in cli("send", "orders", "\ud800", code=2).err
    # Müller in Latin-1, as Python hands over an argument that is not UTF-8: the bytes are sent.
    (path,) = cli("send", "orders", "M\udcfcller", "--json").json["paths"]
    assert cli.queue().store.open(f"orders/{path}").read() == b"M\xfcller"
