"""What people read in a table: an error of several lines is one, and one message is no plural."""

from __future__ import annotations

import pytest

from s3queue import Context, Definition, Queue, QueueSettings, Worker, connect

URL = "memory://cells"


@pytest.fixture
def queue() -> Queue:
    return connect(f"{URL}/orders", settings=QueueSettings.of(max_attempts=1))


@pytest.mark.parametrize("arguments", [("dead", "list"), ("dead", "errors"), ("dead", "show"), ("show",)], ids=" ".join)
def test_an_error_of_several_lines_is_one(cli, queue, arguments):
    def fail(body: dict) -> None:
        raise ValueError("2 problems\n  to: missing\n  subject: missing")

    path = queue.enqueue({}, name=f"died-{'-'.join(arguments)}")
    Worker(queue, fail, concurrency=1, sweep=False).run_until_empty()

    of = [path] if arguments[-1] == "show" else []
    out = cli(*arguments, "orders", *of, url=URL).out

    # Groups of errors are told without their numbers.
    number = "*" if arguments == ("dead", "errors") else "2"
    assert f"{number} problems to: missing subject: missing" in out
    assert "\\n" not in out.partition("trace")[0]


@pytest.mark.parametrize(("sends", "said"), [(1, "1 message to emails"), (2, "2 messages to emails")])
def test_one_message_that_was_sent_is_no_plural(cli, queue, sends, said):
    definition = Definition("orders", queue.settings, ["emails"])

    @definition.handler
    def handle(body: dict, context: Context) -> None:
        for _ in range(sends):
            context.send("emails", {})

    path = queue.enqueue({})
    Worker(queue, definition, concurrency=1, sweep=False).run_until_empty()

    assert said in cli("show", "orders", path, url=URL).out


def test_a_line_break_in_a_cell_is_a_space():
    from s3queue.cli.output import words

    assert words("two\nlines\r\nor three").plain == "two lines or three"
    assert words(1234).plain == "1,234"
