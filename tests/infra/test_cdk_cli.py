"""`make cdk`: the CDK CLI of the lock, asked for real."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest

import infra
from infra.local.toolchain import CDK_LOCK


def make_cdk(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """As the Makefile calls it, with the credentials of somebody's shell."""
    shell = {
        "AWS_ACCESS_KEY_ID": "AKIASOMEBODY",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "AWS_REGION": "us-east-1",
        "AWS_ENDPOINT_URL": "http://127.0.0.1:9",
        "PYTHONPATH": f"functions{os.pathsep}.",
    }
    return subprocess.run(
        [infra.ROOT / ".venv" / "bin" / "python", "-m", "infra.local", "cdk", *arguments],
        cwd=infra.ROOT,
        env={**os.environ, **shell, **environment},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )


@pytest.fixture
def account() -> Iterator[tuple[str, list[str]]]:
    """An address that refuses everything, and who signed what was asked of it."""
    signatures: list[str] = []

    class Refusal(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            signatures.append(self.headers.get("Authorization", ""))
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
            self.send_response(403)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *arguments: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Refusal) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}", signatures
        server.shutdown()
        thread.join()


def test_the_makefile_calls_it_so() -> None:
    recipe = (infra.ROOT / "Makefile").read_text().partition("\ncdk: ")[2].splitlines()[1]
    assert recipe.strip() == "@PYTHONPATH=functions:. $(PY) -m infra.local cdk $(ARGS)"


def test_it_is_the_cli_of_the_lock() -> None:
    locked = json.loads((CDK_LOCK / "npm-shrinkwrap.json").read_text())["packages"]["node_modules/aws-cdk"]["version"]
    asked = make_cdk("--version")
    assert asked.stdout.startswith(f"{locked} "), asked.stderr


@pytest.mark.slow
def test_the_documented_commands_choose_both_stacks_and_then_ask_the_account(
    tmp_path: Path, account: tuple[str, list[str]]
) -> None:
    listed = make_cdk("list", f"--output={tmp_path}")
    assert listed.stdout.split() == ["s3queue-spark", "s3queue"], listed.stderr
    # What was just synthesized is an app, too, so that the rest is quick.
    without = make_cdk("deploy", f"--app={tmp_path}")
    assert without.returncode != 0
    assert "specify `--all`" in without.stderr
    asked = make_cdk("deploy", "--all", f"--app={tmp_path}", "--require-approval=never", AWS_ENDPOINT_URL=account[0])
    assert asked.returncode != 0
    assert account[1], asked.stderr
    assert all("Credential=AKIASOMEBODY/" in signature for signature in account[1])
