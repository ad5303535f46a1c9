"""Dead letters: listed, grouped, replayed and deleted, by path or by filter."""

from __future__ import annotations

import time

import pytest

from s3queue import DeadLetters, Definition, Processor, Queue, QueueSettings, Reject


@pytest.fixture
def paths(cli):
    return [
        cli.dies({"n": 1}, ValueError("bad number"), name="one"),
        cli.dies({"n": 2}, ValueError("bad number"), name="two"),
        cli.dies({"n": 3}, TimeoutError("no answer"), name="three"),
    ]


def test_the_list_is_the_library_s(cli, paths):
    found = cli("dead", "list", "orders", "--json").json
    assert found == [letter.to_json() for letter in DeadLetters(cli.queue()).list()]
    assert {one["path"] for one in found} == set(paths)
    assert len(cli("dead", "list", "orders", "--json", "--limit", "2").json) == 2
    shown = cli("dead", "list", "orders")
    assert "no answer" in shown.out
    assert '"n"' not in shown.out


def test_filters_select_and_nothing_selected_is_code_1(cli, paths):
    only = cli("dead", "list", "orders", "--error-type", "TimeoutError", "--json").json
    assert [one["path"] for one in only] == ["messages/three"]
    assert len(cli("dead", "list", "orders", "--newer-than", "1h", "--json").json) == 3
    assert cli("dead", "list", "orders", "--older-than", "1h", "--json", code=1).json == []
    cli("dead", "list", "orders", "--error-type", "Nope", code=1)
    cli("create", "emails")
    assert cli("dead", "list", "emails", "--json").json == []


def test_errors_groups_with_an_example(cli, paths):
    first, second = cli("dead", "errors", "orders", "--json").json
    assert (first["error_type"], first["count"], first["error"]) == ("ValueError", 2, "bad number")
    assert (second["error_type"], second["example"]) == ("TimeoutError", "messages/three")
    assert "bad number" in cli("dead", "errors", "orders").out


def test_one_class_with_several_messages_is_several_groups(cli):
    for number in range(3):
        cli.dies({"n": number}, Reject(f"mailbox {number} is full"), name=f"full-{number}")
    cli.dies({}, Reject("no address for customer 7"), name="other")
    first, second = cli("dead", "errors", "orders", "--json").json
    assert (first["error_type"], first["message"], first["count"]) == ("Reject", "mailbox * is full", 3)
    assert (second["message"], second["example"]) == ("no address for customer *", "messages/other")
    assert "mailbox * is full" in cli("dead", "errors", "orders").out
    group = ("--message", first["message"])
    assert len(cli("dead", "list", "orders", *group, "--json").json) == 3
    cli("dead", "list", "orders", "--message", "no such text", code=1)

    said = cli("dead", "acknowledge", "orders", *group, "--error-type", "Reject")
    assert "3 dead letters acknowledged; 3 of 4 acknowledged" in said.out
    assert cli("dead", "errors", "orders", "--json").json[0]["acknowledged"] == 3
    assert cli("dead", "acknowledge", "orders", *group, "--undo", "--json").json["acknowledged"] == 0

    assert set(cli("dead", "replay", "orders", *group, "--json").json["replayed"]) == {
        f"messages/full-{number}" for number in range(3)
    }
    purged = cli("dead", "purge", "orders", "--message", "no address for customer 99", "--yes", "--json").json
    assert purged["deleted"] == ["messages/other"]


def test_nothing_is_acknowledged_by_mistake(cli, paths):
    cli("dead", "acknowledge", "orders", code=2)
    cli("dead", "acknowledge", "orders", "--all", "--error-type", "ValueError", code=2)
    cli("dead", "acknowledge", "orders", "--error-type", "Nope", code=1)
    assert cli("dead", "acknowledge", "orders", "--all", "--json").json["acknowledged"] == 3


def test_show_has_the_error_and_only_on_request_the_payload(cli, paths):
    document = cli("dead", "show", "orders", "messages/one", "--json").json
    assert (document["error_type"], document["attempts"]) == ("ValueError", 1)
    assert "fail" in document["details"]
    assert "body" not in document
    assert cli("dead", "show", "orders", "messages/one", "--body", "--json").json["body"] == '{"n":1}'
    assert '{"n":1}' in cli("dead", "show", "orders", "messages/one", "--body").out
    assert "ValueError: bad number" in cli("dead", "show", "orders", "messages/one").out


@pytest.mark.parametrize(
    "call",
    [
        ["replay", "orders", "--all"],
        ["replay", "orders", "messages/one"],
        ["purge", "orders", "--all"],
        ["delete", "orders", "messages/one"],
    ],
)
def test_a_dry_run_changes_nothing(cli, paths, call):
    before = cli.stored_keys()
    ran = cli("dead", *call, "--dry-run", "--json")
    assert ran.json["dry_run"] is True
    assert "nothing was changed" in ran.err
    assert "messages/one" in cli("dead", *call, "--dry-run").out
    assert cli.stored_keys() == before


def test_replay_by_path_by_filter_and_all(cli, paths):
    assert cli("dead", "replay", "orders", "messages/one", "--json").json["replayed"] == {
        "messages/one": "messages/one"
    }
    assert "1 dead letter replayed" in cli("dead", "replay", "orders", "--error-type", "TimeoutError").out
    assert cli("dead", "replay", "orders", "--all", "--json").json["replayed"] == {"messages/two": "messages/two"}
    assert cli("stats", "orders", "--json").json["pending"] == 3
    cli("dead", "replay", "orders", "--all", code=1)


def test_a_replay_into_another_queue(cli, paths):
    cli("create", "by-hand")
    answer = cli("dead", "replay", "orders", "messages/one", "--to", "by-hand", "--json").json
    assert answer["replayed"] == {"messages/one": "messages/one"}
    assert cli.queue("by-hand").status("messages/one").state == "pending"
    assert [one["path"] for one in cli("list", "by-hand", "--json").json["messages"]] == ["messages/one"]
    assert cli.queue().list("pending").messages == ()


def test_a_replay_that_cannot_be_done_says_why(cli, paths):
    cli("send", "orders", "--name", "two", "in the way")
    ran = cli("dead", "replay", "orders", "--all", "--json", code=1)
    assert set(ran.json["replayed"]) == {"messages/one", "messages/three"}
    assert "exists already" in ran.json["failed"]["messages/two"]
    assert "not replayed: messages/two" in ran.err


def test_delete_and_purge_ask_first(cli, paths):
    before = cli.stored_keys()
    assert "--yes" in cli("dead", "delete", "orders", "messages/one", code=2).err
    assert "--yes" in cli("dead", "purge", "orders", "--all", code=2).err
    cli("dead", "purge", "orders", "--yes", code=2)
    assert cli.stored_keys() == before

    assert cli("dead", "delete", "orders", "messages/one", "--yes", "--json").json["deleted"] == ["messages/one"]
    purged = cli("dead", "purge", "orders", "--error-type", "ValueError", "--yes", "--json").json
    assert purged["deleted"] == ["messages/two"]
    assert cli("dead", "purge", "orders", "--newer-than", "1h", "--yes", "--json").json["deleted"] == ["messages/three"]
    assert cli.stored_keys("orders/dead/") == []
    assert len(cli.stored_keys("orders/records/")) == 3


def test_of_a_batch_only_the_lines_with_the_error_are_purged(cli):
    queue = cli.queue()
    (path,) = queue.enqueue_many(["a", "b"])

    def handler(body: str) -> None:
        raise Reject("a") if body == "a" else KeyError("b")

    definition = Definition(queue.name, QueueSettings.of(max_attempts=1))
    definition.handler(handler)
    Processor(queue=Queue(store=queue.store, name=queue.name, settings=definition.settings), definition=definition).run(
        path
    )

    cli("dead", "purge", "orders", "--error-type", "Reject", "--yes")

    assert [line.body for line in DeadLetters(queue).lines(f"{path}.lines")] == [b"b"]


def test_the_second_letter_of_a_batch_is_searched_line_by_line(cli):
    queue = cli.queue()
    definition = Definition(queue.name, QueueSettings.of(max_attempts=1))

    @definition.handler
    def handler(body: object) -> None:
        raise Reject("no")

    runs = Queue(store=queue.store, name=queue.name, settings=definition.settings)
    for number in (1, 2):
        queue.store.put("orders/messages/a.ndjson", b'{"id": %d}\n{"id": 0}\n' % number)
        Processor(queue=runs, definition=definition).run("messages/a.ndjson")
    first, second = (key.removeprefix("orders/dead/") for key in cli.stored_keys("orders/dead/"))

    found = cli("dead", "list", "orders", "--field", "id", "--value", "2", "--json").json
    assert [one["path"] for one in found] == [second]
    assert second.startswith(f"{first}~")


@pytest.mark.parametrize("command", [("dead", "replay"), ("replay",)])
def test_letters_of_a_group_are_replayed_one_after_the_other(cli, monkeypatch, command):
    """A replay goes to the end of its group: side by side, they would come in any order."""
    queue = cli.queue()
    paths = [cli.dies({"n": number}, ValueError("bad number"), group="ada") for number in range(5)]
    paths.append(cli.dies({}, ValueError("bad number"), name="other"))
    seen = []
    replay = DeadLetters.replay

    def replayed(letters: DeadLetters, path: str, **options: object) -> str:
        seen.append(path)
        time.sleep(0.005)  # for others, if they may
        target = replay(letters, path, **options)
        seen.append(path)
        return target

    monkeypatch.setattr(DeadLetters, "replay", replayed)
    cli(*command, queue.name, *paths)

    ada = [path for path in seen if "@ada" in path]
    assert ada == [path for path in paths[:-1] for _ in range(2)]


def test_the_queue_may_be_left_out_before_paths(cli, paths):
    url = f"{cli.url}/orders"
    assert cli("dead", "replay", "messages/one", "messages/two", "--json", url=url).json["replayed"].keys() == {
        "messages/one",
        "messages/two",
    }
    assert cli("dead", "show", "messages/three", "--json", url=url).json["path"] == "messages/three"


def test_paths_and_a_filter_together_are_a_mistake(cli, paths):
    cli("dead", "replay", "orders", "messages/one", "--error-type", "ValueError", code=2)


def test_letters_are_found_by_error_text_and_by_field(cli, monkeypatch):
    for number in range(6):
        cli.dies({"customer": {"id": number}, "n": "Ada"}, TimeoutError(f"no answer from {number}"), name=f"m{number}")
    cli.dies(b"\xff", ValueError("bad bytes"), name="raw")

    def paths(*options: str, code: int = 0) -> list[str]:
        return [one["path"] for one in cli("dead", "list", "orders", *options, "--json", code=code).json]

    assert paths("--error", "FROM 3") == ["messages/m3"]
    assert paths("--field", "customer.id", "--value", "4") == ["messages/m4"]
    assert paths("--field", "n", "--value", "ada", "--error", "from 5") == ["messages/m5"]
    assert len(paths("--field", "customer")) == 6
    assert paths("--field", "nope", code=1) == []
    assert "1 payload could not be searched" in cli("dead", "list", "orders", "--field", "customer").err
    assert "name it with --field" in cli("dead", "list", "orders", "--value", "4", code=2).err

    said = cli("dead", "list", "orders", "--limit", "2", "--field", "customer").err
    assert "the first 2 are shown; --after messages/m1 goes on" in said
    assert paths("--after", "messages/m4", "--field", "customer") == ["messages/m5"]
    monkeypatch.setattr("s3queue.cli.commands.dead_search.MOST_READS", 3)
    monkeypatch.setattr("s3queue.cli.commands.dead_search.PORTION", 3)
    said = cli("dead", "list", "orders", "--field", "customer.id", "--value", "5", code=1).err
    assert "payloads of 3 letters were read; --after messages/m2 goes on" in said


def test_a_letter_is_edited_and_replayed_once(cli, tmp_path):
    path = cli.dies({"id": "seventeen"}, ValueError("not a number"), name="one")
    assert "is JSON, and the new one is not" in cli("dead", "edit", "orders", path, "{id: 17}", code=2).err
    said = cli("dead", "edit", "orders", path, '{"id": 17}', "--dry-run", "--json").json
    assert (said["message"], said["dry_run"], said["size"]) == (None, True, 10)
    assert cli.queue().stats().dead == 1
    file = tmp_path / "repaired.json"
    file.write_text('{"id": 17}')
    said = cli("dead", "edit", "orders", path, f"@{file}", "--json").json
    assert (said["path"], said["message"]) == (path, path)
    assert (cli.queue().stats().dead, cli.queue().stats().pending) == (0, 1)
    seen = []
    cli.work(seen.append)
    assert seen == [{"id": 17}]
    assert "no such dead letter" in cli("dead", "edit", "orders", path, "{}", code=1).err
    assert "no PATH was given" in cli("dead", "edit", "orders", code=2).err


def test_a_payload_is_edited_from_stdin_where_the_url_names_the_queue(cli):
    path = cli.dies({"id": 1}, ValueError("no"), name="one")
    said = cli("dead", "edit", path, "-", stdin='{"id": 2}', url=f"{cli.url}/orders").out
    assert f"orders: {path} replayed as {path} with 9 B" in said
