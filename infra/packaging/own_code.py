"""The code of somebody's own application: its packages beside the handlers and the installed library."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from aws_cdk import aws_lambda as lambda_

import s3queue

from .. import FUNCTIONS
from .lambda_zip import BUILD, prepare
from .platforms import Platform

LEFT_OUT = shutil.ignore_patterns("__pycache__", "*.pyc")


def own_package(
    built_for: Platform, packages: Sequence[str], *, requirements: Path | None = None, build: Path = BUILD
) -> lambda_.Code:
    """The code of every function of an application.

    Raises:
        ValueError: a package cannot be found, or has a name that the functions need.
    """
    build.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=build, prefix="unfinished-") as folder:
        functions = Path(folder)
        shutil.copytree(FUNCTIONS / "handlers", functions / "handlers", ignore=LEFT_OUT)
        shutil.copytree(Path(s3queue.__file__).parent, functions / "s3queue", ignore=LEFT_OUT)
        for name in packages:
            source = _find(name)
            target = functions / source.name
            if target.exists():
                raise ValueError(f"the package {name!r} has a name that the functions of s3queue need: rename it")
            if source.is_dir():
                shutil.copytree(source, target, ignore=LEFT_OUT)
            else:
                shutil.copy(source, target)
        return lambda_.Code.from_asset(str(prepare(built_for, functions=functions, build=build, more=requirements)))


def _find(package: str) -> Path:
    """The folder of a package, or the file of a module, which the program can import."""
    found = find_spec(package)
    if found is None:
        raise ValueError(f"there is no package {package!r} beside the program: the functions need its code")
    if found.submodule_search_locations:
        return Path(next(iter(found.submodule_search_locations)))
    assert found.origin
    return Path(found.origin)
