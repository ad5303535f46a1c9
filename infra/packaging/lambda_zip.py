"""The zip of the functions, made without Docker: `functions/` as it is, next to the locked dependencies.

Deterministic, so that an unchanged zip is not deployed again, and cached under `build/` by a hash of what goes in, so
that the second synth installs nothing. One zip serves every function: each imports from it only what it needs.

boto3 is shipped although Lambda has one: the protocol rests on how the SDK retries and on conditional DELETE, and what
was tested should be what runs. Of botocore's 400 API models, 90 % of its size, only those in use go in.

Bytecode goes in too, where this machine has the Python that runs it: Lambda's disk is read-only, so a function without
it compiles all that it imports at every cold start.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from pathlib import Path

from aws_cdk import aws_lambda as lambda_

from .. import BUILD as BUILT
from .. import FUNCTIONS, ROOT
from . import sbom
from .platforms import Platform

#: With hashes, for every platform; `make lock` writes it.
LOCK = ROOT / "requirements-lambda.txt"
BUILD = BUILT / "lambda"
#: Amazon Linux 2023 has glibc 2.34, so it takes all of these.
MANYLINUX = ("manylinux_2_34", "manylinux_2_28", "manylinux_2_17", "manylinux2014")
MACHINES = {"arm64": "aarch64", "x86_64": "x86_64"}
#: None is read at run time; a word changed in PROTOCOL.md or a new picture must not deploy every function anew.
NOT_SHIPPED = {"__pycache__", "ruff.toml", "screenshots"}
NOT_SHIPPED_SUFFIXES = {".md", ".pyc", ".pyi"}
#: What pip notes for itself; RECORD and its hashes of files that are gone.
PIP_NOTES = {"RECORD", "INSTALLER", "REQUESTED", "direct_url.json"}

_PIN = re.compile(r"^[A-Za-z0-9._-]+==[^\s;]+", re.MULTILINE)
_CLIENT = re.compile(r"""(?:client|resource)\(\s*(?:service_name\s*=\s*)?["']([a-z0-9-]+)["']""")
_TEXT = re.compile(r"""["']([a-z0-9-]+)["']""")


def package(built_for: Platform, *, functions: Path = FUNCTIONS) -> lambda_.Code:
    """The code of every function."""
    return lambda_.Code.from_asset(str(prepare(built_for, functions=functions)))


def prepare(
    built_for: Platform,
    *,
    functions: Path = FUNCTIONS,
    lock: Path = LOCK,
    build: Path = BUILD,
    more: Path | None = None,
) -> Path:
    """A directory whose content is the zip's. `more` are somebody's own requirements; what the lock names stays.

    Raises:
        ValueError: `more` is not there, or cannot be installed beside the lock; it says why.
        subprocess.CalledProcessError: pip could not install the lock; its own words are on stderr.
    """
    if more and not more.is_file():
        raise ValueError(f"there is no file {str(more)!r} of requirements: paths count from where cdk is called")
    python = interpreter(built_for)
    kind = f"{built_for} {'bytecode' if python else 'source'}"
    locked: list[str | bytes] = [kind, lock.read_bytes(), *([more.read_bytes()] if more else [])]
    dependencies = _once(build, "dependencies", locked, lambda into: _install(lock, built_for, python, into, more))
    sources = list(_shipped(functions))
    inputs: list[str | bytes] = [dependencies.name]
    for source in sources:
        inputs += [source.relative_to(functions).as_posix(), source.read_bytes()]
    return _once(build, "zip", inputs, lambda into: _assemble(functions, sources, dependencies, python, into))


@cache
def interpreter(built_for: Platform) -> str | None:
    """A Python of the version that will run the functions; None if this machine has none."""
    name = "python{}.{}".format(*built_for.python)
    for candidate in (sys.executable, shutil.which(name)):
        if candidate:
            answer = subprocess.run(
                [candidate, "-c", "import sys; print('python{}.{}'.format(*sys.version_info))"],
                capture_output=True,
                text=True,
                check=False,
            )
            if answer.stdout.strip() == name:
                return candidate
    return None


def _once(build: Path, kind: str, inputs: Iterable[str | bytes], make: Callable[[Path], None]) -> Path:
    # The code that makes it is an input too.
    digest = hashlib.sha256(Path(__file__).read_bytes() + Path(sbom.__file__).read_bytes())
    for part in inputs:
        raw = part.encode() if isinstance(part, str) else part
        digest.update(len(raw).to_bytes(8, "big") + raw)
    finished = build / f"{kind}-{digest.hexdigest()[:20]}"
    if not finished.exists():
        build.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=build, prefix="unfinished-") as unfinished:
            make(Path(unfinished) / "content")
            try:
                (Path(unfinished) / "content").rename(finished)
            except OSError:
                # Another synth made the same thing meanwhile.
                if not finished.exists():
                    raise
    return finished


def _install(lock: Path, built_for: Platform, python: str | None, into: Path, more: Path | None = None) -> None:
    # pip, not uv: it is in every environment and knows the index, proxy and certificates that the machine configured.
    # Its platform options never build anything, so no compiler and no code of a dependency runs here.
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-compile"]
    command += ["--only-binary=:all:", "--implementation=cp"]
    command += ["--python-version={}.{}".format(*built_for.python), f"--target={into}"]
    if built_for == Platform.of("aws"):
        command += [f"--platform={version}_{MACHINES[built_for.architecture]}" for version in MANYLINUX]
    subprocess.run([*command, "--no-deps", "--require-hashes", f"--requirement={lock}"], check=True)
    if more:
        _install_more(command, lock, more)
    shutil.rmtree(into / "bin", ignore_errors=True)
    for path in [*into.rglob("*")]:
        if path.name in NOT_SHIPPED or _is_pip_note(path) or (_is_unread(path) and not sbom.is_legal(path)):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    if python:
        _compile(python, into, [into])
    for path in into.rglob("*"):
        # Lambda runs as another user; and the machine's umask must not change the zip.
        path.chmod(0o755 if path.is_dir() else 0o644)


def _install_more(command: Sequence[str], lock: Path, more: Path) -> None:
    """The protocol rests on the versions of the lock: what needs others is refused, instead of lying beside them."""
    with tempfile.TemporaryDirectory() as folder:
        pins = Path(folder) / "constraints.txt"
        pins.write_text("".join(f"{pin}\n" for pin in _PIN.findall(lock.read_text())))
        ran = subprocess.run(
            [*command, f"--requirement={more}", f"--constraint={pins}"], capture_output=True, text=True, check=False
        )
    if ran.returncode:
        reason = ran.stderr.strip()
        raise ValueError(f"{more} cannot be installed beside what the functions run with ({lock.name}):\n{reason}")


def _compile(python: str, root: Path, paths: Iterable[Path]) -> None:
    # Unchecked: a zip changes every file's time. Relative names and a fixed seed: the same bytes wherever it is built.
    command = [python, "-m", "compileall", "-q", "--invalidation-mode=unchecked-hash", "-s", str(root)]
    subprocess.run([*command, *map(str, paths)], check=True, env={**os.environ, "PYTHONHASHSEED": "0"})


def _assemble(functions: Path, sources: Sequence[Path], dependencies: Path, python: str | None, into: Path) -> None:
    models = dependencies / "botocore" / "data"
    kept = _models_in_use(functions, sources, dependencies)

    def unused(directory: str, names: list[str]) -> list[str]:
        inside = Path(directory)
        if inside != models:
            return []
        return [name for name in names if (inside / name).is_dir() and name not in kept]

    # Links, not copies: a new zip after each edit costs names, not megabytes.
    shutil.copytree(dependencies, into, ignore=unused, copy_function=os.link)
    targets = [into / source.relative_to(functions) for source in sources]
    for source, target in zip(sources, targets, strict=True):
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, target)
        target.chmod(0o644)
    if python:
        _compile(python, into, [target for target in targets if target.suffix == ".py"])


def _models_in_use(functions: Path, sources: Iterable[Path], dependencies: Path) -> set[str]:
    # Found, not listed: nobody has to remember a list when a handler first says boto3.client("ses"). The strings of
    # handlers count wherever they stand, because the name may be passed on; the library's, where "ec2" and "connect"
    # are also other things, only in modules that speak of clients; a dependency's only where it makes one.
    named: set[str] = set()
    for source in sources:
        text = _read(source) if source.suffix == ".py" else ""
        is_ours = source.relative_to(functions).parts[0] == "s3queue"
        if not is_ours or "client(" in text or "boto3" in text:
            named.update(_TEXT.findall(text))
    for module in dependencies.rglob("*.py"):
        if module.relative_to(dependencies).parts[0] not in ("boto3", "botocore", "s3transfer"):
            named.update(_CLIENT.findall(_read(module)))
    # Credentials may come through STS without anybody naming it.
    return {*named, "sts"}


def _shipped(functions: Path) -> Iterator[Path]:
    for path in sorted(functions.rglob("*")):
        inside = path.relative_to(functions)
        hidden = any(part.startswith(".") or part in NOT_SHIPPED for part in inside.parts)
        if path.is_file() and not hidden and not _is_unread(path):
            yield path


def _is_unread(path: Path) -> bool:
    return path.suffix in NOT_SHIPPED_SUFFIXES


def _is_pip_note(path: Path) -> bool:
    return path.parent.suffix == ".dist-info" and path.name in PIP_NOTES


def _read(source: Path) -> str:
    return source.read_text("utf-8", errors="replace")
