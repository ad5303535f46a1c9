"""What every command has in common: help, global options, errors in one line, exit codes."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
import typer

from s3queue.cli.app import program

ROOT = typer.main.get_command(program)


def commands(group=ROOT, before=()):
    for name, found in group.commands.items():
        if hasattr(found, "commands"):
            yield from commands(found, (*before, name))
        else:
            yield (*before, name)


COMMANDS = list(commands())


def test_every_command_of_the_issue_is_there():
    words = {" ".join(path) for path in COMMANDS}
    assert words >= {
        *("queues", "create", "delete", "configure", "set-concurrency", "pause", "resume", "purge"),
        *("send", "size", "stats", "show", "peek", "tail", "work", "sweep", "workers", "runs", "doctor", "estimate"),
        *(f"dead {verb}" for verb in ("list", "show", "errors", "replay", "delete", "purge")),
        *(f"locks {verb}" for verb in ("list", "why", "break")),
        *(f"schedule {verb}" for verb in ("add", "list", "next", "pause", "resume", "remove")),
    }


@pytest.mark.parametrize("path", COMMANDS, ids=" ".join)
def test_every_help_has_an_example_and_says_what_its_json_has(cli, path):
    for flag in ("--help", "-h"):
        out = cli(*path, flag).out
        assert "Examples:" in out
        assert f"s3queue {' '.join(path)}" in out
        assert "JSON" in out
        assert "--json" in out


def test_without_a_command_the_help_is_shown(cli):
    assert "Exit codes" in cli().out
    assert "replay" in cli("dead").out


def test_the_version(cli):
    from s3queue import __version__

    assert cli("--version").out == f"s3queue {__version__}\n"


def test_global_options_stand_before_or_behind_the_command(cli):
    cli("send", "orders", "a")
    assert cli("--json", "size", "orders").json["size"] == cli("size", "orders", "--json").json["size"] == 1
    assert cli("locks", "--json", "list", "orders").json == []
    elsewhere = cli("--url", f"{cli.url}-2", "size", "orders", "--json", code=1)
    assert "there is no queue 'orders'" in elsewhere.err


@pytest.mark.parametrize(
    ("args", "code", "said"),
    [
        (["stas"], 2, "Did you mean 'stats'"),
        (["stats", "--nope"], 2, "No such option"),
        (["stats", "Orders!"], 2, "queue name 'Orders!'"),
        (["stats"], 2, "no queue was given"),
        (["show", "orders", "messages/nope"], 1, "messages/nope"),
        (["show", "orders"], 2, "the message's PATH is missing"),
        (["send", "orders", "x", "--delay", "soon"], 2, "'soon' is not a duration"),
        (["send", "orders", "x", "--at", "2026-11-16"], 2, "is not an instant"),
        (["send", "orders", "x", "--priority", "256"], 2, "--priority"),
        (["send", "orders", "x", "--metadata", "novalue"], 2, "KEY=VALUE"),
        (["send", "orders", "@/no/such/file"], 2, "cannot be read"),
        (["send", "orders"], 2, "stdin is empty"),
        (["send", "orders", "x", "--delay", "1m", "--at", "2026-11-16T10:15:00Z"], 2, "not both"),
        (["send", "orders", "x", "--count", "2", "--dedup-id", "a"], 2, "--dedup-id"),
        (["configure", "orders", "speed=9"], 2, "there is no setting 'speed'"),
        (["configure", "orders", "max_attempts=0"], 2, "max_attempts"),
        (["configure", "orders", "paused=maybe"], 2, "true or false"),
        (["configure", "orders", "visibility_timeout=soon"], 2, "not a duration"),
        (["set-concurrency", "orders", "many"], 2, "must be a whole number"),
        (["purge", "orders", "--for"], 2, "No such option"),
        (["dead", "replay", "orders"], 2, "--all"),
        (["dead", "show", "orders", "messages/nope"], 1, "no such dead letter"),
        (["dead", "purge", "orders", "--all"], 1, "no such dead letter"),
        (["dead", "delete", "orders"], 2, "no PATH was given"),
        (["locks", "break", "orders", "nope"], 1, "no lock 'nope'"),
        (["work", "no.such.module"], 2, "there is no module"),
        (["sweep", "orders"], 2, "max_attempts"),
        (["estimate", "--rate", "fast"], 2, "not a rate"),
    ],
)
def test_a_mistake_is_one_line_and_a_code(cli, args, code, said):
    cli("create", "orders")
    ran = cli(*args, code=code)
    assert ran.out == ""
    (line,) = ran.err.splitlines()
    assert said in line
    assert line.startswith("s3queue")


def test_a_missing_or_strange_url_says_what_is_wanted(cli):
    assert "S3QUEUE_URL" in cli("queues", code=2, url="not-a-url").err
    assert "'ftp://x' is not s3://bucket" in cli("--url", "ftp://x", "queues", code=2).err


def test_debug_shows_the_trace_and_still_the_line(cli):
    err = cli("stats", "--debug", code=2).err
    assert "Traceback" in err
    assert err.splitlines()[-1].startswith("s3queue: no queue")


def test_the_url_may_name_the_queue(cli):
    url = f"{cli.url}/orders"
    path = cli("send", "hello", "--json", url=url).json["paths"][0]
    assert cli("size", url=url).out == "1\n"
    assert cli("show", path, "--json", url=url).json["queue"] == "orders"
    assert cli("configure", "max_attempts=7", "--json", url=url).json["overrides"] == {"max_attempts": 7}
    assert cli("set-concurrency", "9", "--json", url=url).json["concurrency"] == 9
    assert "there is no queue 'other'" in cli("size", "other", url=url, code=1).err
    assert cli("size", f"{cli.url}/orders", url="memory://elsewhere").out == "1\n"


def test_quiet_leaves_only_the_answer(cli):
    cli("create", "orders")
    assert cli("pause", "orders", "-q").out == ""
    assert cli("send", "orders", "-q", "--count", "3", "x").err == ""
    assert cli("dead", "list", "orders", "--quiet").err == ""


def test_importing_the_library_loads_neither_typer_nor_rich():
    code = "import sys, s3queue; assert not {'typer', 'rich', 'boto3', 'pyspark'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, env={"PYTHONPATH": "functions"})


def test_a_missing_extra_is_one_clear_line():
    code = "import sys; sys.modules['typer'] = None; from s3queue.cli import main; main()"
    ended = subprocess.run(
        [sys.executable, "-c", code], env={"PYTHONPATH": "functions"}, capture_output=True, text=True, check=False
    )
    assert ended.returncode == 2
    assert ended.stderr == "s3queue: the command needs typer: pip install 's3queue[cli]'\n"


def test_json_is_plain_ascii_whatever_is_stored(cli):
    cli("send", "orders", "--name", "ünïcode", "x")
    out = cli("peek", "orders", "--json").out
    assert out.isascii()
    assert json.loads(out)[0]["path"] == "messages/ünïcode"


@pytest.mark.parametrize("make", ["lambda", "logs", "s3", "emr-serverless"])
def test_a_shell_with_nothing_but_aws_region_is_enough(make: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from s3queue.cli.session import Session
    from s3queue.spark_runs.emr_serverless import client

    monkeypatch.setattr("boto3.DEFAULT_SESSION", None)
    for name in ("AWS_DEFAULT_REGION", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_CONFIG_FILE", "/nowhere")
    monkeypatch.setenv("AWS_REGION", "eu-central-1")

    session = Session(url="s3://jobs/emails")
    made = {"s3": session.s3_client, "emr-serverless": client}.get(make, lambda: session.client(make))()

    assert made.meta.region_name == "eu-central-1"


@pytest.mark.parametrize(
    "arguments",
    [["--url", "s3://key:s3cret@host/bucket", "stats", "orders"], ["stats", "s3://key:s3cret@host/bucket/orders"]],
)
def test_credentials_in_a_url_are_refused_and_not_repeated(cli, arguments):
    ran = cli(*arguments, code=2)
    assert "AWS_SECRET_ACCESS_KEY" in ran.err
    assert "s3cret" not in ran.out + ran.err


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("file:///tmp/queue", "is a folder, and a queue needs an S3 bucket"),
        ("s3://key:hidden@127.0.0.1:9000/bucket", "takes no credentials in a URL"),
        ("bucket", "is not s3://bucket"),
        ("s3://[my-bucket]/orders", "is not a URL"),
        ("s3://key:my/hidden@host/bucket", "has an @ in its path"),
    ],
)
def test_a_url_that_is_none_says_what_to_write(cli, url, said):
    ran = cli("queues", url=url, code=2)
    assert said in ran.err
    assert "hidden" not in ran.err
