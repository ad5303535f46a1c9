"""The application's queues: every module of this package defines one.

A module has `queue = define(...)` and, if its handler reads environment variables, their names as `ENVIRONMENT`. What
nobody else may read is in `SECRETS`: names, or name → reference, which the handler reads with `secret(name)`.
Importing one is cheap and sends no request: `infra` imports all of them to deploy them, a worker only its own.
A module whose name begins with an underscore is no part of the application; if it has a queue, that is deployed only
where someone asks for it by name.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterable, Mapping
from types import ModuleType

from s3queue.errors import InvalidRequest
from s3queue.worker.definition import Definition

from ._secrets import Reference, secret

__all__ = ["Reference", "environment", "load", "load_one", "secret", "secrets"]


def load(also: Iterable[str] = ()) -> dict[str, Definition]:
    """Every queue by name; `also` names queues of modules that begin with an underscore.

    Raises:
        InvalidRequest: a module defines no queue, two define the same one, or one sends to a queue that none defines;
            the text names them.
    """
    modules = _modules()
    modules |= {name: _module_of(name) for name in also}
    defined = {name: _definition(module) for name, module in modules.items()}
    for name, definition in defined.items():
        for target in definition.sends_to:
            if target not in defined:
                raise InvalidRequest(
                    f"{modules[name].__name__} sends to the queue {target!r}, which no module in {__name__} defines; "
                    f"it has {', '.join(defined)}"
                )
    return defined


def load_one(name: str) -> Definition:
    """One queue, without importing the others if its module has the queue's name (`order-lines` → `order_lines.py`).

    Raises:
        InvalidRequest: no module defines it.
    """
    return _definition(_module_of(name))


def environment(name: str) -> tuple[str, ...]:
    """The variables that a queue's handler reads; whoever starts its worker sets them."""
    return tuple(getattr(_module_of(name), "ENVIRONMENT", ()))


def secrets(name: str, stack: str) -> dict[str, str]:
    """The secrets that a queue's handler reads, each with its reference: a parameter named after stack, queue and name,
    unless the module says otherwise.

    Raises:
        InvalidRequest: a reference is none.
    """
    named = getattr(_module_of(name), "SECRETS", ())
    found = dict(named) if isinstance(named, Mapping) else {one: f"ssm:/{stack}/{name}/{one}" for one in named}
    for reference in found.values():
        Reference.parse(reference)
    return found


def _module_of(name: str) -> ModuleType:
    guess = name.replace("-", "_")
    if guess in _names():
        module = _import(guess)
        if _definition(module).name == name:
            return module
    if f"_{guess}" in _names(aside=True) and hasattr(module := _import(f"_{guess}"), "queue"):
        return module
    modules = _modules()
    if name not in modules:
        raise InvalidRequest(f"no module in {__name__} defines the queue {name!r}; it has {', '.join(modules)}")
    return modules[name]


def _modules() -> dict[str, ModuleType]:
    found: dict[str, ModuleType] = {}
    for module in map(_import, _names()):
        name = _definition(module).name
        if name in found:
            raise InvalidRequest(f"{found[name].__name__} and {module.__name__} both define the queue {name!r}")
        found[name] = module
    return found


def _names(*, aside: bool = False) -> list[str]:
    found = (module.name for module in pkgutil.iter_modules(__path__))
    return sorted(name for name in found if name.startswith("_") == aside)


def _import(name: str) -> ModuleType:
    try:
        return importlib.import_module(f"{__name__}.{name}")
    except Exception as error:
        error.add_note(f"while importing the queue module {__name__}.{name}")
        raise


def _definition(module: ModuleType) -> Definition:
    found = getattr(module, "queue", None)
    if not isinstance(found, Definition):
        raise InvalidRequest(f"{module.__name__} defines no queue; add `queue = define(...)`")
    return found
