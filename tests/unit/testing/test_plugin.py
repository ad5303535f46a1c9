"""The plugin in a project of one's own: two lines, and the fixtures are there."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import s3queue

FUNCTIONS = Path(s3queue.__file__).resolve().parents[1]
TEST = """
import os

def test_it(bucket, clock):
    assert os.environ["S3QUEUE_URL"] == bucket.url
    orders = bucket.queue("orders")
    orders.enqueue({}, delay=60)
    clock.advance(60)
    assert len(bucket.messages("orders")) == 1

def test_it_is_another_bucket(bucket):
    assert bucket.messages("orders") == []
"""


def test_two_lines_give_a_project_the_fixtures(tmp_path):
    (tmp_path / "conftest.py").write_text('pytest_plugins = ["s3queue.testing.plugin"]\n')
    (tmp_path / "test_it.py").write_text(TEST)

    ran = pytest_in(tmp_path)

    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "2 passed" in ran.stdout


def test_without_them_there_are_none(tmp_path):
    (tmp_path / "test_it.py").write_text(TEST)

    assert "fixture 'bucket' not found" in pytest_in(tmp_path).stdout


def pytest_in(folder: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", str(folder)]
    environment = os.environ | {"PYTHONPATH": str(FUNCTIONS)}
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=120, check=False
    )
