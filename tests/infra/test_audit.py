"""`make audit`: the locks are held against an advisory database, here one on 127.0.0.1."""

from __future__ import annotations

import json
import os
import re
import socket
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

import infra
from infra.packaging import audit
from infra.packaging.audit import Package

Answer = Callable[[dict[str, Any]], bytes]


class Database:
    """Answers as OSV does: as many results as queries, in their order, with names only."""

    def __init__(self) -> None:
        self.known: dict[tuple[str, str], list[str]] = {}
        self.asked: list[dict[str, Any]] = []
        self.status = 200
        self.answer: Answer = self._answer
        #: More than this many names of one package come on the next page.
        self.page = 1000

    def _answer(self, request: dict[str, Any]) -> bytes:
        results = []
        for query in request["queries"]:
            names = self.known.get((query["package"]["name"], query["version"]), [])
            first = int(query.get("page_token", 0))
            result: dict[str, Any] = {}
            if shown := names[first : first + self.page]:
                result["vulns"] = [{"id": name, "modified": "2026-11-16T00:00:00Z"} for name in shown]
            if first + self.page < len(names):
                result["next_page_token"] = str(first + self.page)
            results.append(result)
        return json.dumps({"results": results}).encode()


@pytest.fixture
def database(monkeypatch: pytest.MonkeyPatch) -> Iterator[Database]:
    found = Database()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            found.asked.append(request)
            body = found.answer(request)
            self.send_response(found.status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *arguments: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        monkeypatch.setenv(audit.ADDRESS_VARIABLE, f"http://127.0.0.1:{server.server_port}/v1/querybatch")
        yield found
        server.shutdown()
        thread.join()


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "requirements.txt").write_text("boto3==1.44.0 \\\n    --hash=sha256:00\nUrllib3==1.0 ; x\n")
    (tmp_path / "requirements-docs.txt").write_text("urllib3==1.0 \\\n    --hash=sha256:00\n")
    tool = tmp_path / "infra" / "local" / "cdk-cli"
    tool.mkdir(parents=True)
    packages = {"": {"name": "us"}, "node_modules/a/node_modules/@scope/part": {"version": "2.0.0"}}
    (tool / "npm-shrinkwrap.json").write_text(json.dumps({"packages": packages}))
    return tmp_path


def test_a_finding_fails_with_its_name_and_its_locks(
    database: Database, root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    database.known = {("urllib3", "1.0"): ["GHSA-1", "PYSEC-2"], ("@scope/part", "2.0.0"): ["GHSA-3"]}
    assert audit.main(root) == 1
    said = capsys.readouterr().err
    assert "urllib3 1.0: https://osv.dev/GHSA-1 (in requirements-docs.txt, requirements.txt)" in said
    assert "https://osv.dev/PYSEC-2" in said
    assert "@scope/part 2.0.0: https://osv.dev/GHSA-3 (in infra/local/cdk-cli/npm-shrinkwrap.json)" in said


def test_a_finding_on_a_later_page_is_found(database: Database, root: Path) -> None:
    database.known, database.page = {("boto3", "1.44.0"): ["A", "B", "C"]}, 1
    found = audit.findings([Package("PyPI", "boto3", "1.44.0")], os.environ[audit.ADDRESS_VARIABLE])
    assert found == {Package("PyPI", "boto3", "1.44.0"): ["A", "B", "C"]}


def test_without_a_finding_it_says_what_it_looked_at(
    database: Database, root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert audit.main(root) == 0
    assert capsys.readouterr().out == "3 locked packages audited: no known vulnerability\n"
    (request,) = database.asked
    assert {"package": {"ecosystem": "npm", "name": "@scope/part"}, "version": "2.0.0"} in request["queries"]
    assert {"package": {"ecosystem": "PyPI", "name": "urllib3"}, "version": "1.0"} in request["queries"]


def test_a_finding_that_was_accepted_is_told_and_does_not_fail(
    database: Database, root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(audit, "ACCEPTED", {"GHSA-1": "not reached from here"})
    database.known = {("urllib3", "1.0"): ["GHSA-1"]}
    assert audit.main(root) == 0
    assert "GHSA-1 is accepted: not reached from here" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("status", "answer"),
    [
        (200, b"<html>please log in</html>"),
        (200, b'{"results": []}'),
        (200, b'{"results": [1, 2, 3]}'),
        (200, b'{"results": {"a": 1, "b": 2, "c": 3}}'),
        (200, b"[" * 100_000),
        (404, b"no such page"),
        (503, b"later"),
    ],
)
def test_an_answer_that_is_none_is_told_in_one_line(
    database: Database, root: Path, capsys: pytest.CaptureFixture[str], status: int, answer: bytes
) -> None:
    database.status, database.answer = status, lambda request: answer
    assert audit.main(root) == 0
    assert_not_audited(capsys)


def test_a_machine_without_network_is_told_in_one_line(
    root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    monkeypatch.setenv(audit.ADDRESS_VARIABLE, f"http://127.0.0.1:{port}/")
    assert audit.main(root) == 0
    assert_not_audited(capsys)


def test_a_database_that_never_answers_is_not_waited_for(
    root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(audit, "DEADLINE_SECONDS", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        monkeypatch.setenv(audit.ADDRESS_VARIABLE, f"http://127.0.0.1:{silent.getsockname()[1]}/")
        assert audit.main(root) == 0
    assert_not_audited(capsys)


def assert_not_audited(capsys: pytest.CaptureFixture[str]) -> None:
    said = capsys.readouterr().out
    assert said.startswith("no advisory database reachable; locks not audited (127.0.0.1: ")
    assert said.count("\n") == 1


def test_every_lock_is_read_and_the_gate_does_it() -> None:
    packages = audit.locked()
    locks = {lock for of in packages.values() for lock in of}
    assert {lock.name for lock in infra.ROOT.glob("requirements*.txt")} <= locks
    assert {"infra/local/cdk-cli/npm-shrinkwrap.json", "tests/support/chromium-npm/npm-shrinkwrap.json"} <= locks
    assert packages[audit.Package("npm", "uplot", "1.6.32")] == [
        "functions/s3queue/dashboard/vendored/uplot/package.json"
    ]
    pinned = sum(
        len(re.findall(r"^[^\s#].*==", lock.read_text(), re.MULTILINE)) for lock in infra.ROOT.glob("requirements*.txt")
    )
    assert sum(len(of) for package, of in packages.items() if package.ecosystem == "PyPI") == pinned
    gate = (infra.ROOT / "Makefile").read_text().partition("\ncheck: ")[2].partition("\n\n")[0]
    assert "$(MAKE) --no-print-directory audit" in gate
    assert all(reason for reason in audit.ACCEPTED.values())
