"""What others wrote and we ship or install is listed, each with a licence and its text."""

from __future__ import annotations

import hashlib
import json
import re
import tarfile
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import pytest

import infra
from infra.packaging import sbom
from infra.packaging.sbom import NoLicence, Part


def installed(folder: Path, *, metadata: str, **files: str) -> Path:
    """A folder with one package in it."""
    info = folder / "thing-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.4\nName: Some_Thing\nVersion: 1.0\n{metadata}\n\nThings.")
    for name, text in files.items():
        file = info / name.replace("__", "/").replace("_DOT_", ".")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return folder


@pytest.mark.parametrize(
    ("metadata", "licence"),
    [
        ("License-Expression: MIT OR Apache-2.0", {"expression": "MIT OR Apache-2.0"}),
        ("License: BSD-3-Clause", {"license": {"name": "BSD-3-Clause"}}),
        ("License: UNKNOWN\nClassifier: License :: OSI Approved :: MIT License", {"license": {"name": "MIT License"}}),
        (
            "Classifier: License :: OSI Approved :: BSD License\nClassifier: License :: OSI Approved :: MIT License",
            {"license": {"name": "BSD License, MIT License"}},
        ),
    ],
)
def test_a_licence_is_read_however_it_is_said(tmp_path: Path, metadata: str, licence: dict[str, object]) -> None:
    (part,) = sbom.python_parts(installed(tmp_path, metadata=metadata, licenses__LICENSE_DOT_md="text"))
    component = part.component()
    assert component["licenses"] == [licence]
    assert component["purl"] == "pkg:pypi/some-thing@1.0"
    assert component["properties"] == [
        {"name": "s3queue:licence-text", "value": "thing-1.0.dist-info/licenses/LICENSE.md"}
    ]


@pytest.mark.parametrize(
    ("metadata", "files", "reason"),
    [
        ("License-Expression: MIT", {}, "without the text"),
        ("Summary: a thing", {"LICENSE": "text"}, "says nothing"),
        ("License: UNKNOWN", {"LICENSE": "text"}, "says nothing"),
    ],
)
def test_a_part_without_a_licence_is_refused_by_name(
    tmp_path: Path, metadata: str, files: dict[str, str], reason: str
) -> None:
    parts = sbom.python_parts(installed(tmp_path / "licenses", metadata=metadata, **files))
    with pytest.raises(NoLicence, match=f"some-thing 1.0 .*{reason}"):
        sbom.document("zip", parts)


def test_a_text_may_lie_beside_a_part_that_is_named_if_it_is_that_of_a_licence_it_offers() -> None:
    bare = Part("arro3-core", "0.9.1", "pypi", "MIT OR Apache-2.0", True, ())
    beside = Part("deltalake", "1.6.6", "pypi", "Apache-2.0", True, ("deltalake/LICENSE.txt",))

    listed = sbom.document("spark", [bare, beside])["components"][0]

    assert listed["properties"] == [{"name": "s3queue:licence-text", "value": "deltalake/LICENSE.txt"}]
    for parts in (
        [bare],
        [bare, replace(beside, texts=())],
        [bare, replace(beside, licence="BSD-3-Clause")],
        [replace(bare, licence="MIT"), beside],
        [replace(bare, licence="MIT AND Apache-2.0"), beside],
        [replace(bare, name="somebody-else"), beside],
    ):
        with pytest.raises(NoLicence, match="without the text"):
            sbom.document("spark", parts)


def test_what_a_wheel_lists_itself_is_pointed_to(tmp_path: Path) -> None:
    folder = installed(
        tmp_path, metadata="License-Expression: MIT", LICENSE="text", sboms__libraries_DOT_cdx_DOT_json="{}"
    )
    (part,) = sbom.python_parts(folder)
    assert part.component()["externalReferences"] == [
        {"type": "bom", "url": "thing-1.0.dist-info/sboms/libraries.cdx.json"}
    ]


def test_an_archive_is_read_like_the_folder_that_it_was(tmp_path: Path) -> None:
    folder = installed(tmp_path / "packages", metadata="License-Expression: MIT", LICENSE="text")
    with tarfile.open(tmp_path / "packages.tgz", "w:gz") as archive:
        archive.add(folder, ".")
    assert sbom.archived_parts(tmp_path / "packages.tgz") == list(sbom.python_parts(folder))


@pytest.mark.slow
@pytest.mark.parametrize("group", ["shipped", "tools"])
def test_every_part_that_is_shipped_or_installed_is_listed_with_its_licence(tmp_path: Path, group: str) -> None:
    parts = {title: list(of) for title, of in getattr(sbom, group)().items()}
    for file in sbom.write(parts, tmp_path):
        found = json.loads(file.read_text())
        assert (found["bomFormat"], found["specVersion"]) == ("CycloneDX", "1.6")
        references = [component["bom-ref"] for component in found["components"]]
        assert references
        assert len(references) == len(set(references))
        assert all(re.fullmatch(r"pkg:(pypi|npm)/[a-z0-9%.@/-]+@[^@/]+", reference) for reference in references)
        again = sbom.document(found["metadata"]["component"]["name"], reversed(parts[file.name.split(".")[0]]))
        assert again == found, "the same parts give the same document"


@pytest.mark.slow
def test_the_list_names_what_the_locks_name() -> None:
    def locked(name: str) -> set[str]:
        lines = (infra.ROOT / name).read_text().splitlines()
        return {line.partition("==")[0] for line in lines if "==" in line}

    def names(parts: Iterable[Part]) -> set[str]:
        return {part.name for part in parts}

    parts = sbom.shipped()
    functions, spark = names(parts["s3queue-lambda"]), names(parts["s3queue-spark"])
    # Some entries of a lock are for other systems.
    assert {"boto3", "botocore", "idna", "pillow", "urllib3", "uplot"} <= functions
    assert functions <= locked("requirements-lambda.txt") | {"uplot"}
    assert {"boto3", "pandas", "pyarrow"} <= spark
    assert spark <= locked("requirements-spark.txt") | locked("requirements-lambda.txt")


def test_what_lies_vendored_in_our_folders_is_what_was_published_and_is_listed() -> None:
    """The page's charts: its files are npm's own, byte for byte; its licence lies beside them."""
    (part,) = sbom.node_parts(sbom.VENDORED)
    assert (part.name, part.version, part.licence, part.texts) == ("uplot", "1.6.32", "MIT", ("uplot/LICENSE",))
    static = sbom.VENDORED.parent / "static"
    published = {
        "uplot.min.css": "df630c6a8d6f8eeaff264b50f73ce5b114f646ffd9a0bb74f049b0a00135fa04",
        "uplot.min.js": "19c8d4c6ad88929a79f4ae49d6f7161566dfd0ba3d15cc495e974f787eb78f1f",
    }
    assert {name: hashlib.sha256((static / name).read_bytes()).hexdigest() for name in published} == published
    assert b"v1.6.32" in (static / "uplot.min.js").read_bytes()


def test_the_command_line_tool_is_read_from_its_folder(tmp_path: Path) -> None:
    for name in ("plain", "@scope/part"):
        folder = tmp_path / name
        folder.mkdir(parents=True)
        (folder / "package.json").write_text(json.dumps({"name": name, "version": "2.0.0", "license": "MIT"}))
        (folder / "LICENSE").write_text("text")
    found = sbom.document("tools", sbom.node_parts(tmp_path))["components"]
    assert [component["purl"] for component in found] == ["pkg:npm/%40scope/part@2.0.0", "pkg:npm/plain@2.0.0"]
