"""One process for many queues, and many processes on one machine: real processes, a real server, real signals."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest

from s3queue import Queue, QueueSettings, Worker
from s3queue.clock import SystemClock
from s3queue.stores.s3 import S3Store
from s3queue.worker.processes import MOST_YOUNG_DEATHS, RECYCLED, Processes, resident_mib
from s3queue.worker.several import SeveralWorkers
from support.s3_servers import fresh_bucket, s3_client
from support.workbench import Workbench

ROOT = Path(__file__).parents[2]
COMMAND = [sys.executable, "-m", "s3queue.cli"]
HANDLER = """
import os, time
from s3queue import define

queue = define("{name}", visibility_timeout=4, concurrency=1{more})

@queue.handler
def handle(body: dict) -> int:
    with open("starts", "a") as log:
        log.write(f"{{os.getpid()}} {{body.get('n')}}\\n")
    time.sleep(body.get("seconds", 0))
    return os.getpid()
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """Two queues with handlers, one whose messages run on Spark, and a module that is no queue's."""
    folder = tmp_path / "queues"
    folder.mkdir()
    (folder / "__init__.py").write_text("")
    (folder / "_helper.py").write_text("1 / 0")
    for name, more in (("orders", ""), ("emails", ""), ("exports", ', engine="spark"')):
        (folder / f"{name}.py").write_text(HANDLER.format(name=name, more=more))
    return tmp_path


@pytest.fixture
def bucket(moto_endpoint):
    return fresh_bucket(s3_client(moto_endpoint))


@pytest.fixture
def queue(moto_endpoint, bucket):
    def opened(name: str) -> Queue:
        store = S3Store(bucket, client=s3_client(moto_endpoint))
        return Queue(store=store, name=name, settings=QueueSettings.of(visibility_timeout=4))

    return opened


@pytest.fixture
def work(moto_endpoint, bucket, project):
    started: list[subprocess.Popen[str]] = []

    def start(*args: str) -> subprocess.Popen[str]:
        environment = os.environ | {
            "PYTHONPATH": str(ROOT / "functions"),
            "AWS_ENDPOINT_URL": moto_endpoint,
            "S3QUEUE_URL": f"s3://{bucket}",
        }
        command = [*COMMAND, "work", *args, "--json", "--poll-interval", "200ms"]
        pipe = subprocess.PIPE
        started.append(subprocess.Popen(command, env=environment, cwd=project, stdout=pipe, stderr=pipe, text=True))
        return started[-1]

    yield start
    for process in started:
        if process.poll() is None:
            process.kill()
        process.communicate()


def starts(project: Path) -> list[list[str]]:
    log = project / "starts"
    return [line.split() for line in log.read_text().splitlines()] if log.exists() else []


def until(happens, seconds: float = 60.0):
    limit = time.monotonic() + seconds
    while not (found := happens()):
        assert time.monotonic() < limit, "it did not happen"
        time.sleep(0.1)
    return found


def ended(process: subprocess.Popen[str], code: int = 0) -> tuple[dict, str]:
    out, err = process.communicate(timeout=90)
    assert process.returncode == code, f"{process.returncode}\n{out}\n{err}"
    return json.loads(out), err


def children(parent: int) -> list[int]:
    return [int(pid) for pid in Path(f"/proc/{parent}/task/{parent}/children").read_text().split()]


def test_one_process_works_on_every_queue_of_the_project(work, queue):
    paths = {name: queue(name).enqueue({"n": 1}) for name in ("orders", "emails")}
    left = queue("exports").enqueue({"n": 1})
    told, err = ended(work("--all", "--until-empty", "--no-sweep"))
    assert (told["queues"], told["succeeded"]) == (["emails", "orders"], 2)
    assert len(told["workers"]) == 2
    assert "exports is left out: its messages run on Spark" in err
    assert {queue(name).status(path).state for name, path in paths.items()} == {"completed"}
    assert queue("exports").status(left).state == "pending"


@pytest.mark.timeout(180)
@pytest.mark.skipif(sys.platform != "linux", reason="/proc tells which processes are the command's")
def test_a_process_that_is_killed_is_replaced_and_no_message_is_lost(work, queue, project):
    """[P1] [P6]"""
    orders = queue("orders")
    paths = [orders.enqueue({"n": number, "seconds": 2 if number == 0 else 0.1}) for number in range(12)]
    process = work("queues.orders", "--processes", "2")
    victim = int(until(lambda: [one for one in starts(project) if one[1] == "0"])[0][0])
    assert victim in children(process.pid)
    os.kill(victim, signal.SIGKILL)
    until(lambda: all(orders.status(path).state == "completed" for path in paths), seconds=120)
    until(lambda: len(children(process.pid)) == 2)
    assert victim not in children(process.pid)
    process.send_signal(signal.SIGTERM)
    told, err = ended(process)
    assert (told["processes"], told["deaths"]) == (2, 1)
    assert "died (signal 9)" in err
    assert [one for one in starts(project) if one[1] == "0"][-1][0] != str(victim)
    # Others ran as often as they should: what the victim held was tried again, and nothing else.
    assert sorted({int(number) for _, number in starts(project)}) == list(range(12))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_lets_the_handlers_of_all_processes_finish(work, queue, project, number):
    orders = queue("orders")
    paths = [orders.enqueue({"n": n, "seconds": 3}) for n in range(2)]
    process = work("queues.orders", "--processes", "2", "--no-sweep")
    until(lambda: len({pid for pid, _ in starts(project)}) == 2)
    process.send_signal(number)
    told, _ = ended(process)
    assert (told["succeeded"], told["deaths"]) == (2, 0)
    assert [orders.status(path).state for path in paths] == ["completed"] * 2


def test_a_process_is_recycled_after_so_many_messages(work, queue, project):
    orders = queue("orders")
    for n in range(7):
        orders.enqueue({"n": n, "seconds": 0.3})
    options = ("--processes", "1", "--max-messages-per-process", "2", "--until-empty", "--no-sweep")
    told, _ = ended(work("queues.orders", *options))
    assert (told["succeeded"], told["deaths"]) == (7, 0)
    assert told["recycled"] >= 2
    assert len({pid for pid, _ in starts(project)}) >= 3


def test_processes_end_without_the_one_that_started_them(work, queue, project):
    process = work("queues.orders", "--processes", "1", "--no-sweep")
    path = queue("orders").enqueue({"n": 1})
    child = int(until(lambda: starts(project))[0][0])
    process.kill()
    process.wait()

    def is_gone() -> bool:
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, 0)
            stat = Path(f"/proc/{child}/stat")
            return stat.exists() and stat.read_text().rpartition(")")[2].split()[0] == "Z"
        return True

    until(is_gone)
    assert queue("orders").status(path).state == "completed"


@pytest.mark.parametrize(
    ("args", "said"),
    [
        ((), "give a MODULE, or several, or --all"),
        (("queues.orders", "--all"), "give a MODULE, or several, or --all"),
        (("queues.orders", "--max-mib-per-process", "5"), "only with --processes"),
        (("queues.orders", "queues.orders:queue"), "which another module does, too"),
        (("--all", "--processes", "2"), "--processes needs a bucket"),
        (("--all",), "there is none here"),
    ],
)
def test_what_makes_no_sense_is_refused_at_once(cli, project, monkeypatch, args, said):
    monkeypatch.delitem(sys.modules, "queues", raising=False)
    if said == "there is none here":
        (project / "queues" / "__init__.py").unlink()
        for file in (project / "queues").glob("*.py"):
            file.unlink()
        (project / "queues").rmdir()
        monkeypatch.setattr(sys, "path", [one for one in sys.path if not (Path(one) / "queues").is_dir()])
    monkeypatch.chdir(project)
    if "queues.orders:queue" in args:
        args = tuple(one.replace("queues.orders", "./queues/orders.py") for one in args[:1]) * 2
    assert said in cli("work", *args, code=2).err


class FastClock(SystemClock):
    """A minute passes in a second, and a pause is as short."""

    def monotonic(self) -> float:
        return super().monotonic() * 60


def script(text: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", text])


@pytest.mark.parametrize(("code", "exit_code", "deaths"), [(2, 2, 0), (1, 1, MOST_YOUNG_DEATHS)])
def test_what_dies_again_and_again_is_given_up_and_the_exit_code_says_so(code, exit_code, deaths, monkeypatch):
    monkeypatch.setattr("s3queue.worker.processes.YOUNG_SECONDS", 10_000.0)
    said: list[str] = []
    running = Processes(lambda number: script(f"raise SystemExit({code})"), 1, clock=FastClock())
    assert running.run(lambda: False, said.append) == exit_code
    assert running.deaths == deaths
    assert "stopping the others" in said[-1]
    if deaths:
        assert [line.partition(" in ")[2].partition(" s;")[0] for line in said[:-1]] == ["1", "2", "4", "8", "16"]


@pytest.mark.parametrize(
    ("text", "exit_code", "told"),
    [
        ("signal.signal(signal.SIGTERM, lambda *_: sys.exit(3)); ready(); time.sleep(60)", 1, ["exit code 3"]),
        ("ready(); time.sleep(60)", 0, []),
    ],
)
def test_one_that_does_not_stop_well_is_told_by_the_exit_code(tmp_path, text, exit_code, told):
    ready = tmp_path / "ready"
    said: list[str] = []
    head = f"import signal, sys, time, pathlib; ready = pathlib.Path({str(ready)!r}).touch; "
    running = Processes(lambda number: script(head + text), 1)
    assert running.run(ready.exists, said.append) == exit_code
    assert [line.partition("did not stop well: ")[2] for line in said] == told


def test_finished_and_recycled_processes_are_no_deaths(tmp_path):
    codes = iter([RECYCLED, RECYCLED, 0])
    running = Processes(lambda number: script(f"raise SystemExit({next(codes)})"), 1)
    assert running.run(lambda: False, lambda text: None) == 0
    assert (running.recycled, running.deaths) == (2, 0)


def test_a_process_that_has_grown_is_worn_and_what_it_holds_is_finished():
    bench = Workbench()
    queue = bench.queue()
    sizes = iter([10.0])
    several = SeveralWorkers([Worker(queue, lambda body: None)], max_mib=100, memory=lambda: next(sizes, 200.0))
    assert not several.has_to_end()
    assert several.has_to_end()
    assert several.is_worn
    assert 5 < resident_mib() < 100_000


def two_free_ports() -> int:
    """The first of two that follow each other."""
    while True:
        with socket.create_server(("127.0.0.1", 0)) as first, contextlib.suppress(OSError, OverflowError):
            port = int(first.getsockname()[1])
            with socket.create_server(("127.0.0.1", port + 1)):
                return port


@pytest.mark.timeout(180)
def test_each_process_serves_its_metrics_on_a_port_of_its_own(work, queue, project):
    port = two_free_ports()
    path = queue("orders").enqueue({"n": 1})
    process = work("queues.orders", "--processes", "2", "--metrics-port", str(port))

    def scraped(number: int) -> str:
        with contextlib.suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{port + number}/metrics") as found:
            return found.read().decode()
        return ""

    until(lambda: all(map(scraped, range(2))))
    until(lambda: queue("orders").status(path).state == "completed")
    until(lambda: sum('s3queue_succeeded_total{queue="orders"} 1\n' in scraped(number) for number in range(2)) == 1)
    process.send_signal(signal.SIGTERM)
    told, err = ended(process)
    assert (told["succeeded"], told["deaths"]) == (1, 0)
    assert f"metrics at http://127.0.0.1:{port + 1}/metrics" in err
