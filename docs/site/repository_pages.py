"""Pages for what the documents link to outside of docs/: the site shows the repository's own files.

On GitHub `../functions/s3queue/queue.py` leads to the file. The site has no such file, so each one that a page links to
becomes a page of its own: Markdown as it is, code highlighted, a folder as a list. A link to nothing stays as it is,
and `mkdocs --strict` fails on it. The promises' tags, `[P3]`, stay text: Markdown would read two of them as a link.
"""

from __future__ import annotations

import os.path
import posixpath
import re
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit
from xml.etree.ElementTree import Element

from markdown import Markdown
from markdown.extensions import Extension
from markdown.inlinepatterns import InlineProcessor
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[2]
DOCS = "docs/"
#: Where the pages of files outside of docs/ lie on the site.
PLACE = "repository"
#: Folders whose files are generated, or nobody's to read.
SKIPPED = ("__pycache__", "node_modules")
LANGUAGES = {".py": "python", ".json": "json", ".toml": "toml", ".js": "javascript", ".css": "css"}
_FENCE = re.compile(r"^(```|~~~).*?^\1\s*$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"(?<=\]\()(?P<target>[^()\s]+)(?=\))")


class PromiseTags(Extension):
    """`[P3]` is a tag, not a link."""

    def extendMarkdown(self, md: Markdown) -> None:  # noqa: N802
        # After code, which keeps its brackets anyway, and before everything that reads brackets as links.
        md.inlinePatterns.register(_PromiseTag(r"\[P\d+\]", md), "promise", 175)


class _PromiseTag(InlineProcessor):
    def handleMatch(self, m: re.Match[str], data: str) -> tuple[Element, int, int]:  # type: ignore[override]  # noqa: N802
        tag = Element("span")
        tag.text = m[0]
        return tag, m.start(0), m.end(0)


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Teach the pages, and the docstrings in them, what a promise's tag is."""
    config.markdown_extensions.append(PromiseTags())  # type: ignore[arg-type]
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add a page for everything outside of docs/ that a page links to, and for what those pages link to in turn."""
    waiting = [(DOCS + file.src_uri, Path(str(file.abs_src_path)).read_text()) for file in files.documentation_pages()]
    added: set[str] = set()
    while waiting:
        home, text = waiting.pop()
        for target in sorted(_outside(home, text)):
            if target in added:
                continue
            added.add(target)
            path = ROOT / target
            if path.suffix in (".png", ".svg"):
                files.append(File.generated(config, f"{PLACE}/{target}", abs_src_path=str(path)))
                continue
            content = _page_of(target)
            files.append(File.generated(config, _source_of(target), content=content))
            if path.suffix == ".md":
                waiting.append((target, content))
    return files


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Let links that leave docs/ lead to those pages, and links from those pages lead back."""
    source = page.file.src_uri
    home = source.removeprefix(f"{PLACE}/") if source.startswith(f"{PLACE}/") else DOCS + source
    home = home.removesuffix(".page.md")

    def rewritten(match: re.Match[str]) -> str:
        target, _, anchor = match["target"].partition("#")
        if not target or urlsplit(target).scheme:
            return match["target"]
        found = posixpath.normpath(posixpath.join(posixpath.dirname(home), target))
        if not (ROOT / found).exists():
            return match["target"]
        there = found.removeprefix(DOCS) if _is_document(found) else _source_of(found)
        return posixpath.relpath(there, posixpath.dirname(source) or ".") + (f"#{anchor}" if anchor else "")

    return _outside_of_fences(markdown, lambda text: _LINK.sub(rewritten, text))


def _outside(home: str, text: str) -> set[str]:
    """Files and folders of the repository, but not of docs/, that a text links to."""
    found = set()
    for match in _LINK.finditer(_FENCE.sub("", text)):
        target = match["target"].partition("#")[0]
        if not target or urlsplit(target).scheme:
            continue
        path = posixpath.normpath(posixpath.join(posixpath.dirname(home), target))
        if (ROOT / path).exists() and not _is_document(path):
            found.add(path)
    return found


def _is_document(path: str) -> bool:
    return path.startswith(DOCS) and path.endswith(".md")


def _source_of(target: str) -> str:
    """The name of a target's page; code and folders get a suffix, so that no name is taken twice."""
    suffix = Path(target).suffix
    return f"{PLACE}/{target}" if suffix in (".md", ".png", ".svg") else f"{PLACE}/{target}.page.md"


def _page_of(target: str) -> str:
    path = ROOT / target
    if path.suffix == ".md":
        return path.read_text()
    if path.is_dir():
        files = sorted(os.path.relpath(file, path) for file in path.rglob("*") if file.is_file())
        listed = [f"    {file}" for file in files if not any(part in file for part in SKIPPED)]
        return "\n".join([f"# {target}", "", *listed, ""])
    return f"# {target}\n\n````{LANGUAGES.get(path.suffix, 'text')}\n{path.read_text()}\n````\n"


def _outside_of_fences(text: str, change: Callable[[str], str]) -> str:
    parts: list[str] = []
    end = 0
    for fence in _FENCE.finditer(text):
        parts += [change(text[end : fence.start()]), fence[0]]
        end = fence.end()
    return "".join([*parts, change(text[end:])])
