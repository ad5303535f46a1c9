"""`make down`: ends what `make up` left, however that ended, and nothing else."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from infra.local.__main__ import main
from infra.local.down import down
from infra.local.emr.job_runs import PID_FILE
from infra.local.home import Home, State
from infra.local.ministack.server import GATEWAY
from infra.local.processes import end_group, members

PORT = 4566
SLEEP = "import time; time.sleep(600)"
#: As a Lambda process of MiniStack: another one in its group.
WITH_CHILD = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {SLEEP!r}])"

Start = Callable[..., subprocess.Popen[bytes]]


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path / "local")


@pytest.fixture
def start() -> Iterator[Start]:
    started: list[subprocess.Popen[bytes]] = []

    def starting(code: str, *arguments: str, env: dict[str, str] | None = None) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-c", code, *arguments]
        started.append(subprocess.Popen(command, start_new_session=True, env=env, stdout=subprocess.PIPE))
        return started[-1]

    yield starting
    for process in started:
        end_group(process.pid, grace=0.1)
        process.wait()
        assert process.stdout
        process.stdout.close()


def remember(home: Home, pid: int, starter: int = 0) -> None:
    home.path.mkdir(parents=True, exist_ok=True)
    home.remember(State(pid=pid, port=PORT, endpoint=f"http://127.0.0.1:{PORT}", starter=starter))


def ministack(start: Start, code: str = WITH_CHILD) -> subprocess.Popen[bytes]:
    return start(code, str(GATEWAY), f"--port={PORT}")


def job(home: Home, start: Start, arguments: Sequence[str]) -> subprocess.Popen[bytes]:
    folder = home.emr / "00job"
    folder.mkdir(parents=True)
    process = start(SLEEP, *arguments)
    (folder / PID_FILE).write_text(str(process.pid))
    return process


def test_where_nothing_runs_it_says_so_each_time(home: Home, monkeypatch, capsys) -> None:
    monkeypatch.setattr("infra.local.__main__.Home", lambda: home)
    assert main(["down"]) == main(["down"]) == 0
    assert capsys.readouterr().out == "Nothing is running.\n" * 2


def test_it_ends_ministack_with_its_group_and_spark_jobs_that_a_killed_make_up_left(home: Home, start: Start) -> None:
    server = ministack(start)
    spark = job(home, start, [str(home.emr / "00job" / "drain.py")])
    remember(home, server.pid)

    assert down(home) == [f"MiniStack (pid {server.pid})", "Spark job 00job"]

    # Not by exit status: ending a group collects it.
    assert members(server.pid) == members(spark.pid) == []
    assert home.state() is None
    assert down(home) == []


def test_a_living_make_up_is_asked_first_and_ends_the_rest_itself(home: Home, start: Start) -> None:
    server = ministack(start, SLEEP)
    code = """
import os, signal, sys, time
def end(*_):
    os.kill(int(sys.argv[3]), signal.SIGKILL)
    os.unlink(sys.argv[4])
    sys.exit(0)
signal.signal(signal.SIGTERM, end)
print("ready", flush=True)
time.sleep(600)
"""
    up = start(code, "infra.local", "up", str(server.pid), str(home.state_file))
    assert up.stdout
    assert up.stdout.readline() == b"ready\n"
    remember(home, server.pid, starter=up.pid)

    assert down(home) == [f"make up (pid {up.pid})"]

    assert up.wait(5) == 0


def test_a_make_up_that_does_not_listen_is_killed(home: Home, start: Start) -> None:
    code = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(flush=True); time.sleep(600)"
    up = start(code, "infra.local", "up")
    assert up.stdout
    up.stdout.readline()
    remember(home, pid=up.pid, starter=up.pid)

    assert down(home, patience=0.2) == [f"make up (pid {up.pid})"]

    assert up.wait(5) == -9


def test_lambda_processes_that_outlived_ministack_are_ended(home: Home, start: Start) -> None:
    code = f"import subprocess, sys; print(subprocess.Popen([sys.executable, '-c', {SLEEP!r}]).pid, flush=True)"
    server = start(code, env={"TMPDIR": str(home.scratch)})
    assert server.stdout
    server.stdout.readline()
    server.wait(5)
    remember(home, server.pid)

    assert down(home) == ["Lambda processes that outlived MiniStack"]
    assert members(server.pid) == []
    assert down(home) == []


def test_a_process_that_only_has_the_old_number_is_left_alone(home: Home, start: Start) -> None:
    stranger, other = start(SLEEP), job(home, start, ["somebody's", "own"])
    remember(home, stranger.pid, starter=stranger.pid)

    assert down(home) == []

    time.sleep(0.1)
    assert stranger.poll() is None
    assert other.poll() is None
