"""Queues are found by being in the package: adding one is adding one module."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import infra
import queues

NEW_MODULE = """
from s3queue import define

queue = define("order-lines", concurrency=7)


@queue.handler
def handle(line: dict) -> None:
    pass
"""


def run(functions: Path, code: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", code]
    return subprocess.run(command, cwd=functions, capture_output=True, text=True, check=False)


@pytest.fixture
def functions(tmp_path: Path) -> Path:
    """A copy of the import root, as one would check it out and change it."""
    ignored = shutil.ignore_patterns("__pycache__")
    return shutil.copytree(infra.FUNCTIONS, tmp_path / "functions", ignore=ignored)


def test_the_shipped_queues_are_four_and_each_can_be_kept() -> None:
    from infra.constructs.s3_queue import function_timeout

    found = queues.load()
    assert list(found) == ["emails", "exports", "thumbnails", "webhooks"]
    for name, definition in found.items():
        assert queues.load_one(name) is definition
        assert definition.name == name
        # Raises if a handler may run longer than its lease, or than Lambda runs anything.
        function_timeout(name, definition.settings)
    assert [name for name, definition in found.items() if definition.settings.engine == "spark"] == ["exports"]
    assert [name for name, definition in found.items() if definition.function is None] == ["exports"]


def test_a_queue_says_which_variables_it_reads() -> None:
    assert "EMAIL_OUTBOX" in queues.environment("emails")
    assert queues.environment("thumbnails") == ()


def test_adding_a_queue_is_adding_one_module(functions: Path) -> None:
    (functions / "queues" / "order_lines.py").write_text(NEW_MODULE)
    done = run(
        functions, "import queues; print(*queues.load()); print(queues.load_one('order-lines').settings.concurrency)"
    )
    assert done.stdout.split() == ["emails", "exports", "order-lines", "thumbnails", "webhooks", "7"], done.stderr


def test_a_module_may_be_called_otherwise(functions: Path) -> None:
    (functions / "queues" / "anything.py").write_text(NEW_MODULE)
    assert run(functions, "import queues; print(queues.load_one('order-lines').name)").stdout.strip() == "order-lines"


@pytest.mark.parametrize(
    ("module", "complaint"),
    [
        ("x = 1", "queues.new defines no queue; add `queue = define(...)`"),
        ("queue = 'emails'", "queues.new defines no queue"),
        ("from s3queue import define; queue = define('emails')", "queues.emails and queues.new both define the queue"),
        (
            "from s3queue import define; queue = define('new', sends_to=['emails', 'invoices'])",
            "queues.new sends to the queue 'invoices', which no module in queues defines; it has emails, exports, new",
        ),
        ("import nothing_of_this_name", "while importing the queue module queues.new"),
        ("from s3queue import define; queue = define('Emails!')", "queue name 'Emails!'"),
        ("from s3queue import define; queue = define('new', retries=3)", "unknown setting 'retries'"),
    ],
)
def test_a_module_that_is_wrong_is_named(functions: Path, module: str, complaint: str) -> None:
    (functions / "queues" / "new.py").write_text(module)
    done = run(functions, "import queues; queues.load()")
    assert done.returncode != 0
    assert complaint in done.stderr


def test_a_module_with_an_underscore_is_no_queue(functions: Path) -> None:
    (functions / "queues" / "_shared.py").write_text("x = 1")
    assert run(functions, "import queues; print(len(queues.load()))").stdout.strip() == "4"


def test_a_queue_of_such_a_module_is_deployed_only_if_it_is_asked_for(functions: Path) -> None:
    assert "smoke" not in queues.load()
    assert list(queues.load(also=["smoke"])) == ["emails", "exports", "thumbnails", "webhooks", "smoke"]
    assert queues.load_one("smoke").name == "smoke"
    (functions / "queues" / "_shared.py").write_text("x = 1")
    assert (
        "no module in queues defines the queue 'shared'"
        in run(functions, "import queues; queues.load_one('shared')").stderr
    )


def test_an_unknown_queue_is_told_which_there_are() -> None:
    with pytest.raises(ValueError, match="defines the queue 'orders'; it has emails, exports"):
        queues.load_one("orders")
