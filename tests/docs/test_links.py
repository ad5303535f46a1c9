"""Every link of the documents leads somewhere, and code that a link names is where the link says."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.documents import DOCUMENTS, ROOT, anchors, links

#: [`Queue`](…) or [`Sweeper.tick`](…): a name that is defined there.
_NAME = re.compile(r"`(?P<name>[A-Za-z_]+(?:\.[A-Za-z_]+)?)`")


@pytest.mark.parametrize("document", DOCUMENTS)
def test_every_relative_link_leads_to_a_file_or_folder(document):
    broken = [link.where for link in links(document) if not link.path.exists()]
    outside = [link.where for link in links(document) if not link.path.is_relative_to(ROOT)]

    assert broken == []
    assert outside == []


@pytest.mark.parametrize("document", DOCUMENTS)
def test_every_anchor_is_a_heading(document):
    broken = [
        link.where
        for link in links(document)
        if link.anchor and link.anchor not in anchors(str(link.path.relative_to(ROOT)))
    ]

    assert broken == []


@pytest.mark.parametrize("document", DOCUMENTS)
def test_code_that_a_link_names_is_defined_where_it_leads(document):
    """A call chain in a document is only worth something while its links are right."""
    wrong = [
        f"{link.where}: no {match['name']}"
        for link in links(document)
        if (match := _NAME.fullmatch(link.text)) and (link.path.is_dir() or link.path.suffix == ".py")
        if match["name"] not in set(defined(link.path))
    ]

    assert wrong == []


def test_the_call_chains_are_held_by_the_test_above():
    named = [link for link in links("docs/architecture.md") if _NAME.fullmatch(link.text)]

    assert len(named) > 30


def test_no_link_counts_lines_which_move():
    counted = [link.where for document in DOCUMENTS for link in links(document) if re.match(r"L\d", link.anchor)]

    assert counted == []


def defined(path: Path) -> Iterator[str]:
    """Functions and classes of a module, or of all modules of a folder, and the methods of its classes."""
    for module in path.rglob("*.py") if path.is_dir() else [path]:
        for node in ast.parse(module.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.FunctionDef | ast.ClassDef):
                yield node.name
            if isinstance(node, ast.ClassDef):
                for member in node.body:
                    if isinstance(member, ast.FunctionDef):
                        yield f"{node.name}.{member.name}"
