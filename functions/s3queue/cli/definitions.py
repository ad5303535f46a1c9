"""Finds the definition of a queue: the application's module with `queue = define(…)`."""

from __future__ import annotations

import importlib
import importlib.util
import os
import pkgutil
import sys
from pathlib import Path
from types import ModuleType

from s3queue.errors import InvalidRequest
from s3queue.worker.definition import Definition

#: Folders of a project that can be its import root.
_ROOTS = ("", "functions")


def load(module: str) -> Definition:
    """`queues.emails`, `queues.emails:queue` or `path/to/emails.py`.

    Raises:
        InvalidRequest: it cannot be imported, or it defines no queue, or several.
    """
    name, _, attribute = module.partition(":")
    found = _import(name)
    if attribute:
        definition = getattr(found, attribute, None)
        if not isinstance(definition, Definition):
            raise InvalidRequest(f"{name} has no queue {attribute!r}; add `{attribute} = define(…)`")
        return definition
    definitions = {id(value): (key, value) for key, value in vars(found).items() if isinstance(value, Definition)}
    if not definitions:
        queue = Path(name).stem if name.endswith(".py") else name.rpartition(".")[2]
        raise InvalidRequest(f"{name} defines no queue; add `queue = define('{queue}')`")
    if len(definitions) > 1:
        names = ", ".join(f"{name}:{key}" for key, _ in definitions.values())
        raise InvalidRequest(f"{name} defines several queues; choose one: {names}")
    return next(iter(definitions.values()))[1]


def find(queue: str) -> Definition | None:
    """The definition of a queue in this project's `queues` package; None if there is none."""
    _see_here()
    name = f"queues.{queue.replace('-', '_')}"
    try:
        if importlib.util.find_spec(name) is None:
            return None
    except ModuleNotFoundError:
        return None
    definition = load(name)
    return definition if definition.name == queue else None


def find_all() -> dict[str, str]:
    """The modules of this project's `queues` package that define a queue: module → the queue's name.

    Raises:
        InvalidRequest: there is no such package, a module cannot be imported, or two define the same queue.
    """
    _see_here()
    try:
        package = importlib.import_module("queues")
    except ModuleNotFoundError as missing:
        if missing.name != "queues":
            raise InvalidRequest(f"queues needs the module {missing.name!r}, which is not installed") from missing
        raise InvalidRequest("--all runs the queues of the package `queues`, and there is none here") from None
    found: dict[str, str] = {}
    for module in pkgutil.iter_modules(package.__path__):
        if module.name.startswith("_"):
            continue
        name = f"queues.{module.name}"
        queue = load(name).name
        if queue in found.values():
            raise InvalidRequest(f"{name} defines the queue {queue!r}, which another module of queues defines, too")
        found[name] = queue
    return found


def _import(name: str) -> ModuleType:
    _see_here()
    try:
        if name.endswith(".py"):
            return _from_file(Path(name))
        return importlib.import_module(name)
    except ModuleNotFoundError as missing:
        if missing.name and (name == missing.name or name.startswith(f"{missing.name}.")):
            raise InvalidRequest(
                f"there is no module {name!r} here; write it as in an import, or give a .py file"
            ) from None
        raise InvalidRequest(f"{name} needs the module {missing.name!r}, which is not installed") from missing
    except InvalidRequest:
        raise
    except Exception as error:
        # An error in a module of the application has to be corrected by its author.
        raise InvalidRequest(
            f"{name} cannot be imported: {type(error).__name__}: {error} (--debug shows where)"
        ) from error


def _from_file(file: Path) -> ModuleType:
    if not file.is_file():
        raise InvalidRequest(f"there is no file {file}")
    spec = importlib.util.spec_from_file_location(file.stem, file)
    if spec is None or spec.loader is None:
        raise InvalidRequest(f"{file} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules.setdefault(file.stem, module)
    spec.loader.exec_module(module)
    return module


def _see_here() -> None:
    """Unlike `python -m`, an installed command does not import from the current folder."""
    for root in _ROOTS:
        folder = os.path.join(os.getcwd(), root) if root else os.getcwd()
        if folder not in sys.path and os.path.isdir(folder):
            sys.path.append(folder)
