"""What other people wrote and this project ships or installs, as CycloneDX 1.6: `make sbom` writes it to `build/sbom`.

Read from what was really installed, not from the locks: from the zip of the functions, the archive of Spark's packages,
and the local tools. docs/decisions/sbom.md says why this is no library.
"""

from __future__ import annotations

import json
import sys
import tarfile
import tempfile
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from email.parser import HeaderParser
from pathlib import Path
from typing import Any

from .. import BUILD as BUILT
from .. import FUNCTIONS, ROOT

BUILD = BUILT / "sbom"
#: What lies in our own folders as others wrote it: the charts of the dashboard's page.
VENDORED = FUNCTIONS / "s3queue" / "dashboard" / "vendored"
#: How the files begin that say what may be done with a part.
LEGAL = ("licen", "copying", "notice", "third_party_licen")
#: Older metadata that say nothing write this.
SAYS_NOTHING = ("", "UNKNOWN", "Dual License")
#: A part whose wheels never have the text → the licence that we choose of those it offers, and the part beside it that
#: is under the same licence and brings its text. Without that part it is refused like any other.
TEXT_BESIDE = {"arro3-core": ("Apache-2.0", "deltalake")}


class NoLicence(Exception):
    """A part says nothing about its licence, or its text is not there: it must not be shipped."""


@dataclass(frozen=True, slots=True, order=True)
class Part:
    """One package, and what it says about its licence."""

    name: str
    version: str
    #: `pypi` or `npm`.
    registry: str
    #: An SPDX expression, or the older words; empty: it says nothing.
    licence: str
    #: Whether `licence` is an SPDX expression.
    is_expression: bool
    #: The files with the licence's text, from the root of what is shipped.
    texts: tuple[str, ...]
    #: What the package itself lists: libraries compiled into it.
    listings: tuple[str, ...] = ()

    def component(self) -> dict[str, Any]:
        scope, _, rest = self.name.rpartition("/")
        address = f"pkg:{self.registry}/{scope.replace('@', '%40') + '/' if scope else ''}{rest}@{self.version}"
        licence = {"expression": self.licence} if self.is_expression else {"license": {"name": self.licence}}
        found: dict[str, Any] = {
            "type": "library",
            "bom-ref": address,
            "name": self.name,
            "version": self.version,
            "purl": address,
            "licenses": [licence],
            "properties": [{"name": "s3queue:licence-text", "value": text} for text in self.texts],
        }
        if self.listings:
            found["externalReferences"] = [{"type": "bom", "url": listing} for listing in self.listings]
        return found


def python_parts(folder: Path) -> Iterator[Part]:
    """The packages that pip or uv installed into a folder."""
    for metadata in sorted(folder.glob("*.dist-info/METADATA")):
        said = HeaderParser().parsestr(metadata.read_text("utf-8"))
        expression = said.get("License-Expression", "")
        files = [file for file in sorted(metadata.parent.rglob("*")) if file.is_file()]
        yield Part(
            name=said["Name"].lower().replace("_", "-"),
            version=said["Version"],
            registry="pypi",
            licence=expression or _older_words(said.get("License", ""), said.get_all("Classifier", [])),
            is_expression=bool(expression),
            texts=tuple(file.relative_to(folder).as_posix() for file in files if is_legal(file)),
            listings=tuple(file.relative_to(folder).as_posix() for file in files if "sboms" in file.parts),
        )


def node_parts(modules: Path) -> Iterator[Part]:
    """The packages in a `node_modules`."""
    for manifest in sorted([*modules.glob("*/package.json"), *modules.glob("@*/*/package.json")]):
        said = json.loads(manifest.read_text("utf-8"))
        files = sorted(file for file in manifest.parent.iterdir() if file.is_file() and is_legal(file))
        licence = said.get("license", "")
        yield Part(
            name=said["name"],
            version=said["version"],
            registry="npm",
            licence=licence,
            is_expression=bool(licence),
            texts=tuple(file.relative_to(modules).as_posix() for file in files),
        )


def archived_parts(archive: Path) -> list[Part]:
    """The packages in a tar of them."""
    with tempfile.TemporaryDirectory() as folder, tarfile.open(archive) as opened:
        wanted = [entry for entry in opened.getmembers() if ".dist-info/" in entry.name]
        opened.extractall(folder, members=wanted, filter="data")
        return list(python_parts(Path(folder)))


def is_legal(file: Path) -> bool:
    """Whether a file says what may be done with a part; wheels have a folder for such."""
    inside = any(folder.name == "licenses" and folder.parent.suffix == ".dist-info" for folder in file.parents)
    return inside or file.name.lower().startswith(LEGAL)


def _with_texts_beside(parts: Sequence[Part]) -> list[Part]:
    """The same parts; those of TEXT_BESIDE point to the text that is shipped with another."""
    known = {part.name: part for part in parts}

    def completed(part: Part) -> Part:
        licence, name = TEXT_BESIDE.get(part.name, ("", ""))
        beside = known.get(name)
        offered = part.is_expression and licence in part.licence.split(" OR ")
        if part.texts or not offered or beside is None or beside.licence != licence:
            return part
        return replace(part, texts=beside.texts)

    return [completed(part) for part in parts]


def document(title: str, parts: Iterable[Part]) -> dict[str, Any]:
    """A CycloneDX document; the same parts give the same bytes.

    Raises:
        NoLicence: a part has none, or comes without its text.
    """
    found = _with_texts_beside(sorted(parts))
    for part in found:
        if part.licence in SAYS_NOTHING or not part.texts:
            lacks = "says nothing about its licence" if part.texts else "comes without the text of its licence"
            raise NoLicence(f"{title}: {part.name} {part.version} {lacks}; ship another version, or none")
    components = [part.component() for part in found]
    content: dict[str, Any] = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {"component": {"type": "application", "bom-ref": title, "name": title}},
        "components": components,
    }
    return {"serialNumber": f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, json.dumps(content))}", **content}


def write(documents: Mapping[str, Iterable[Part]], into: Path = BUILD) -> list[Path]:
    """One file for each."""
    into.mkdir(parents=True, exist_ok=True)
    written = []
    for title, parts in documents.items():
        file = into / f"{title}.cdx.json"
        file.write_text(json.dumps(document(title, parts), indent=2) + "\n", "utf-8")
        written.append(file)
    return written


def shipped() -> dict[str, Iterable[Part]]:
    """What goes to AWS: beside the functions, and beside the Spark jobs."""
    # Here: the CDK takes seconds to load.
    from .lambda_zip import prepare
    from .platforms import Platform
    from .spark_code import packages_tar

    return {
        "s3queue-lambda": [*python_parts(prepare(Platform.of("aws"))), *node_parts(VENDORED)],
        "s3queue-spark": archived_parts(packages_tar()),
    }


def tools() -> dict[str, Iterable[Part]]:
    """What the stack on this machine needs beside `.venv`."""
    from ..local import toolchain
    from ..local.steps import Steps

    steps = Steps()
    (packages,) = toolchain.ministack(steps).parents[1].glob("lib/python*/site-packages")
    modules = toolchain.cdk(steps)[1].parents[2]
    return {"s3queue-ministack": python_parts(packages), "s3queue-cdk-cli": node_parts(modules)}


def _older_words(licence: str, classifiers: Iterable[str]) -> str:
    """What is said where there is no expression: a short text, else the classifiers."""
    said = licence.strip()
    if said not in SAYS_NOTHING and "\n" not in said:
        return said
    kinds = [kind.rpartition(" :: ")[2] for kind in classifiers if kind.startswith("License :: ")]
    # Not an expression: classifiers do not say whether all of them hold, or one may be chosen.
    return ", ".join(kinds)


def main() -> int:
    try:
        for file in write({**shipped(), **tools()}):
            print(file.relative_to(ROOT))
    except NoLicence as problem:
        print(problem, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
