"""The promises [P1] to [P10] are written down, kept by code that says so, and proven by tests that say so."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import s3queue

LIBRARY = Path(s3queue.__file__).resolve().parent
TESTS = Path(__file__).resolve().parents[1]
PROMISES = ["P1", "P2", "P3", "P4", "P5", "P6", "P7", "P8", "P9", "P10"]
_TAG = re.compile(r"\[(P\d+)\]")


def tags_in(paths: list[Path]) -> set[str]:
    return {tag for path in paths for tag in _TAG.findall(path.read_text(encoding="utf-8"))}


def sources(folder: Path) -> list[Path]:
    return [path for path in sorted(folder.rglob("*.py")) if path != Path(__file__).resolve()]


@pytest.mark.parametrize("promise", PROMISES)
def test_each_promise_is_in_the_document_in_the_code_and_in_a_test(promise):
    missing = [
        where
        for where, tags in {
            "PROTOCOL.md": tags_in([LIBRARY / "PROTOCOL.md"]),
            "the library": tags_in(sources(LIBRARY)),
            "the tests": tags_in([path for path in sources(TESTS) if path.name.startswith("test_")]),
        }.items()
        if promise not in tags
    ]

    assert missing == [], f"[{promise}] is missing in {', '.join(missing)}"


def test_no_tag_names_a_promise_that_does_not_exist():
    assert tags_in([LIBRARY / "PROTOCOL.md", *sources(LIBRARY), *sources(TESTS)]) == set(PROMISES)


def test_the_document_names_every_kind_of_object():
    text = (LIBRARY / "PROTOCOL.md").read_text(encoding="utf-8")

    kinds = [
        "messages/",
        "delayed/",
        "leases/",
        "retries/",
        "records/",
        "outbox/",
        "dead/",
        "locks/",
        "workers/",
        "flows/",
        "queue.json",
    ]
    assert [kind for kind in kinds if kind not in text] == []
