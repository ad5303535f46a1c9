"""Asks OSV, the database of published vulnerabilities, about every package of every lock: `make audit`.

One request, without a package of its own: docs/decisions/sbom.md says why this is not pip-audit. A finding fails; a
machine that cannot reach the database is told so in one line, and goes on.
"""

from __future__ import annotations

import http.client
import json
import os
import re
import sys
import urllib.request
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from threading import Thread
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from .. import ROOT

#: Another address of the same API, say a mirror inside a company.
ADDRESS_VARIABLE, ADDRESS = "S3QUEUE_ADVISORIES", "https://api.osv.dev/v1/querybatch"
#: For all of it: a name server that does not answer must not hold up the gate.
DEADLINE_SECONDS = 8.0
#: OSV takes so many questions at once, and answers with 32 MiB at most.
MOST_QUESTIONS, MOST_BYTES = 1000, 32 * 1024 * 1024
#: Pages of one package's findings.
MOST_PAGES = 20
#: A finding that cannot be fixed yet → why it does no harm here, and until when to look again.
ACCEPTED: Mapping[str, str] = {}

_PINNED = re.compile(r"^([A-Za-z0-9_.-]+)(?:\[[\w,-]+\])?==([^\s;\\]+)", re.MULTILINE)


class Package(NamedTuple):
    ecosystem: str
    name: str
    version: str


class Unreachable(Exception):
    """The database did not answer, or not in a way that makes sense."""


def locked(root: Path = ROOT) -> dict[Package, list[str]]:
    """Every locked package, and the locks that name it.

    Not the peers of `make bench`: they are measured as they are published.
    """
    found: dict[Package, list[str]] = defaultdict(list)
    for lock in sorted(root.glob("requirements*.txt")):
        for name, version in _PINNED.findall(lock.read_text("utf-8")):
            found[Package("PyPI", name.lower(), version)].append(lock.name)
    for folder in ("infra/local/cdk-cli", "tests/support/chromium-npm"):
        lock = root / folder / "npm-shrinkwrap.json"
        packages = json.loads(lock.read_text("utf-8"))["packages"] if lock.exists() else {}
        for place, package in packages.items():
            if place:
                name = package.get("name") or place.rpartition("node_modules/")[2]
                found[Package("npm", name, package["version"])].append(lock.relative_to(root).as_posix())
    for manifest in sorted(root.glob("functions/s3queue/dashboard/vendored/*/package.json")):
        package = json.loads(manifest.read_text("utf-8"))
        found[Package("npm", package["name"], package["version"])].append(manifest.relative_to(root).as_posix())
    return dict(found)


def findings(packages: Sequence[Package], address: str) -> dict[Package, list[str]]:
    """The names of what is known against each package.

    Raises:
        Unreachable: there is no answer.
    """
    known: dict[Package, list[str]] = defaultdict(list)
    for first in range(0, len(packages), MOST_QUESTIONS):
        questions = [(package, "") for package in packages[first : first + MOST_QUESTIONS]]
        for _ in range(MOST_PAGES):
            if not questions:
                break
            more = []
            for (package, _token), result in zip(questions, _ask(questions, address), strict=True):
                known[package] += [str(vulnerability["id"]) for vulnerability in result.get("vulns") or ()]
                if token := result.get("next_page_token"):
                    more.append((package, str(token)))
            questions = more
    return {package: names for package, names in known.items() if names}


def _ask(questions: Sequence[tuple[Package, str]], address: str) -> list[dict[str, Any]]:
    asked = [
        {"package": {"ecosystem": package.ecosystem, "name": package.name}, "version": package.version}
        | ({"page_token": token} if token else {})
        for package, token in questions
    ]
    request = urllib.request.Request(
        address, json.dumps({"queries": asked}).encode(), {"Content-Type": "application/json"}
    )
    try:
        with urllib.request.urlopen(request, timeout=DEADLINE_SECONDS) as answer:
            results = json.loads(answer.read(MOST_BYTES))["results"]
        if len(results) != len(asked):
            raise ValueError(f"{len(results)} answers to {len(asked)} questions")
        return [dict(result) for result in results]
    except (OSError, http.client.HTTPException, ValueError, KeyError, TypeError, RecursionError) as error:
        raise Unreachable(f"{urlsplit(address).hostname}: {error}") from None


def _within_deadline(packages: Sequence[Package], address: str) -> dict[Package, list[str]]:
    results: list[dict[Package, list[str]] | Unreachable] = []

    def ask() -> None:
        try:
            results.append(findings(packages, address))
        except Unreachable as problem:
            results.append(problem)

    # urlopen's limit is for each step, and none for the name server.
    thread = Thread(target=ask, daemon=True)
    thread.start()
    thread.join(DEADLINE_SECONDS)
    answer = results[0] if results else Unreachable(f"{urlsplit(address).hostname}: no answer in time")
    if isinstance(answer, Unreachable):
        raise answer
    return answer


def main(root: Path = ROOT) -> int:
    packages = locked(root)
    try:
        known = _within_deadline(list(packages), os.environ.get(ADDRESS_VARIABLE) or ADDRESS)
    except Unreachable as problem:
        print(f"no advisory database reachable; locks not audited ({problem})")
        return 0
    open_findings = list(_open(known))
    for package, name in open_findings:
        locks = ", ".join(packages[package])
        print(f"{package.name} {package.version}: https://osv.dev/{name} (in {locks})", file=sys.stderr)
    if open_findings:
        print("Raise the version in pyproject.toml and run `make lock`, or accept it in infra/packaging/audit.py.")
        return 1
    print(f"{len(packages)} locked packages audited: no known vulnerability")
    return 0


def _open(known: Mapping[Package, Sequence[str]]) -> Iterator[tuple[Package, str]]:
    for package, names in sorted(known.items()):
        for name in names:
            if name in ACCEPTED:
                print(f"{package.name} {package.version}: {name} is accepted: {ACCEPTED[name]}")
            else:
                yield package, name


if __name__ == "__main__":
    sys.exit(main())
