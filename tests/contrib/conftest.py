"""A bucket of SeaweedFS, a project in a folder, and real worker processes of its framework."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from infra import ROOT
from s3queue import Queue, connect
from support.s3_servers import fresh_bucket, s3_client


def until(happens: Callable[[], object], seconds: float = 90.0) -> object:
    """What it returns, once that is true."""
    end = time.monotonic() + seconds
    while not (found := happens()):
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.05)
    return found


@pytest.fixture
def bucket(seaweedfs_endpoint: str) -> str:
    return fresh_bucket(s3_client(seaweedfs_endpoint))


@pytest.fixture
def queue(seaweedfs_endpoint: str, bucket: str) -> Callable[[str], Queue]:
    def opened(name: str) -> Queue:
        return connect(f"s3://{bucket}/{name}", endpoint_url=seaweedfs_endpoint)

    return opened


@pytest.fixture
def keys(queue: Callable[[str], Queue]) -> Callable[[str], list[str]]:
    """The keys in the bucket behind a prefix."""
    store = queue("any").store

    def listed(prefix: str) -> list[str]:
        return [entry.key for entry in store.list(prefix).objects]

    return listed


class Started:
    """A worker process in a process group of its own, so that its pool is killed with it."""

    def __init__(self, command: list[str], folder: Path, environment: dict[str, str]) -> None:
        self.log = folder / f"worker-{time.monotonic_ns()}.log"
        with self.log.open("wb") as output:
            self.process = subprocess.Popen(
                command, cwd=folder, env=environment, stdout=output, stderr=output, start_new_session=True
            )

    def says(self, text: str) -> bool:
        assert self.process.poll() is None, self.log.read_text()
        return text in self.log.read_text()

    def kill(self) -> None:
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def terminate(self) -> int:
        """SIGTERM to the process itself, as a container's manager sends it; returns the exit code."""
        self.process.terminate()
        return self.process.wait(60)


@pytest.fixture
def start(seaweedfs_endpoint: str, bucket: str, tmp_path: Path) -> Iterator[Callable[..., Started]]:
    """Starts `python …` in the project's folder; what it is about is in the environment."""
    started: list[Started] = []

    def run(*args: str) -> Started:
        environment = os.environ | {
            "PYTHONPATH": f"{ROOT / 'functions'}{os.pathsep}{tmp_path}",
            "AWS_ENDPOINT_URL": seaweedfs_endpoint,
            "BUCKET": bucket,
        }
        started.append(Started([sys.executable, *args], tmp_path, environment))
        return started[-1]

    yield run
    for one in started:
        if one.process.poll() is None:
            one.kill()
