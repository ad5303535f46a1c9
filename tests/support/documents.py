"""The documents as tests read them: their code blocks, headings and links."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
#: Every document that people read. The order is that of a reader.
DOCUMENTS = (
    "README.md",
    "CONTRIBUTING.md",
    "SECURITY.md",
    "CHANGELOG.md",
    "functions/s3queue/PROTOCOL.md",
    "tests/bench/README.md",
    *sorted(str(path.relative_to(ROOT)) for path in (ROOT / "docs").rglob("*.md")),
)
_FENCE = re.compile(r"^```(?P<language>\S*)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)
_HEADING = re.compile(r"^#{1,6} (?P<title>.+?)\s*$", re.MULTILINE)
_LINK = re.compile(r"!?\[(?P<text>(?:[^\[\]]|\[[^\]]*\])*)\]\((?P<target>[^()\s]+)\)")


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced block."""

    document: str
    line: int
    language: str
    text: str

    @property
    def where(self) -> str:
        return f"{self.document}:{self.line}"


@dataclass(frozen=True, slots=True)
class Link:
    """A link to another place in the repository, or in the same document."""

    document: str
    line: int
    text: str
    target: str

    @property
    def where(self) -> str:
        return f"{self.document}:{self.line}: {self.target}"

    @property
    def path(self) -> Path:
        """The file or folder that it leads to."""
        place = self.target.partition("#")[0]
        here = ROOT / self.document
        return (here.parent / place).resolve() if place else here

    @property
    def anchor(self) -> str:
        return self.target.partition("#")[2]


def read(document: str) -> str:
    return (ROOT / document).read_text(encoding="utf-8")


def blocks(document: str) -> Iterator[Block]:
    text = read(document)
    for fence in _FENCE.finditer(text):
        yield Block(document, _line(text, fence.start()), fence["language"], fence["text"])


def links(document: str) -> Iterator[Link]:
    """Links that stay in the repository; those to other sites are not ours to keep alive."""
    text = _without_blocks(read(document))
    for found in _LINK.finditer(text):
        if not re.match(r"[a-z]+:", found["target"]):
            yield Link(document, _line(text, found.start()), " ".join(found["text"].split()), found["target"])


def anchors(document: str) -> set[str]:
    """What `#…` can lead to, as GitHub names headings; the site is set to name them alike."""
    found: set[str] = set()
    for heading in _HEADING.finditer(_without_blocks(read(document))):
        title = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading["title"])
        name = re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")
        number = 1
        while (slug := name if number == 1 else f"{name}-{number - 1}") in found:
            number += 1
        found.add(slug)
    return found


def _line(text: str, position: int) -> int:
    return text.count("\n", 0, position) + 1


def _without_blocks(text: str) -> str:
    """The same lines, with the blocks' empty."""
    return _FENCE.sub(lambda fence: "\n" * fence[0].count("\n"), text)
