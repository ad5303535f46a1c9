"""`make aws-smoke ARGS=--local`, whole: a stack of its own, deployed and destroyed by the CDK CLI, Spark included."""

from __future__ import annotations

import io
import re
from pathlib import Path

import pytest
from rich.console import Console

from infra.local.home import Home
from infra.smoke import __main__ as command
from infra.smoke import run


@pytest.mark.timeout(1200)
def test_the_smoke_sends_one_message_down_every_path_and_leaves_nothing(tmp_path: Path) -> None:
    screen = io.StringIO()
    console = Console(file=screen, width=200)

    ended = command.main(["--local", "--yes"], console=console, home=Home(tmp_path))

    assert ended == 0, screen.getvalue()
    report = (tmp_path / "aws-smoke.md").read_text()
    assert report.splitlines()[2].startswith("**Against: NOT AWS, but the emulator of this machine")
    paths = [path.__name__.replace("_", " ") for group in run.GROUPS for path in group]
    assert len(paths) == 13
    # A rehearsal has a key of its own.
    for path in (*paths, "encrypted"):
        assert re.search(rf"^\| {path} \| ok \| .+ \| \d+ \|$", report, re.MULTILINE), path
    for measured in ("first message (cold)", "median", "redelivery after a kill", "rescue after a lost event"):
        assert re.search(rf"^\| .*{re.escape(measured)}.* \| [\d.]+ s \|$", report, re.MULTILINE), measured
    # Forty, of which the batch is twenty; more only if the machine is so busy that an event takes half a minute.
    counted = re.search(r"(\d+) messages enqueued: \1 completed, 0 dead, 0 missing", report)
    assert counted
    assert int(counted[1]) >= 40
    # They were asked for, and MiniStack keeps most of them.
    assert re.search(r"^\| facts \| ok \|", report, re.MULTILINE)
    assert report.count("\n    as written") > 10
    # Requests of this process, as it sent them, and a bill that is not empty.
    assert re.search(r"^Requests of the smoke itself: .*\d+ GetObject.*\d+ PutObject\.$", report, re.MULTILINE)
    assert 0 < float(re.findall(r"^\| \*\*all\*\* .* \*\*([\d.]+)\*\*", report, re.MULTILINE)[0]) < 1
    assert "No stack, no bucket and no log group of this name is left." in report
