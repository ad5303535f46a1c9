"""Application: the queues of a package, one module each. How functions, the CDK app and `s3queue work` find them."""

from __future__ import annotations

import importlib
import os
import pkgutil
from collections.abc import Iterable, Mapping
from types import ModuleType

from s3queue.errors import InvalidRequest

from .definition import Definition

#: Names the package of the application's queues in a deployed function; without it, `queues`.
VARIABLE = "S3QUEUE_PACKAGE"
DEFAULT = "queues"


class Application:
    """The queues of one package: every module of it defines one, as `queue = define(...)`.

    A module may name the environment variables that its handler reads as `ENVIRONMENT`, and what nobody else may read
    as `SECRETS`: names, or name → reference, which the handler reads with `s3queue.secret(name)`. One whose name begins
    with an underscore is no part of the application; if it has a queue, that is deployed only where someone asks for it
    by name.
    """

    def __init__(self, package: str = "") -> None:
        """Without a package, the one that the environment names."""
        self.package = package or os.environ.get(VARIABLE) or DEFAULT

    def load(self, also: Iterable[str] = ()) -> dict[str, Definition]:
        """Every queue by name; `also` names queues of modules that begin with an underscore.

        Raises:
            InvalidRequest: a module defines no queue, two define the same one, or one sends to a queue that none
                defines; the text names them.
        """
        modules = self._modules()
        modules |= {name: self._module_of(name) for name in also}
        defined = {name: self._definition(module) for name, module in modules.items()}
        for name, definition in defined.items():
            for target in definition.sends_to:
                if target not in defined:
                    raise InvalidRequest(
                        f"{modules[name].__name__} sends to the queue {target!r}, which no module in {self.package} "
                        f"defines; it has {', '.join(defined)}"
                    )
        return defined

    def load_one(self, name: str) -> Definition:
        """One queue, without importing the others if its module has its name (`order-lines` → `order_lines.py`).

        Raises:
            InvalidRequest: no module defines it.
        """
        return self._definition(self._module_of(name))

    def environment(self, name: str) -> tuple[str, ...]:
        """The variables that a queue's handler reads; whoever starts its worker sets them."""
        return tuple(getattr(self._module_of(name), "ENVIRONMENT", ()))

    def secrets(self, name: str, stack: str) -> dict[str, str]:
        """The secrets that a queue's handler reads, each with its reference: a parameter named after stack, queue and
        name, unless the module says otherwise.

        Raises:
            InvalidRequest: a reference is none.
        """
        from .secrets import Reference

        named = getattr(self._module_of(name), "SECRETS", ())
        found = dict(named) if isinstance(named, Mapping) else {one: f"ssm:/{stack}/{name}/{one}" for one in named}
        for reference in found.values():
            Reference.parse(reference)
        return found

    def _module_of(self, name: str) -> ModuleType:
        guess = name.replace("-", "_")
        if guess in self._names():
            module = self._import(guess)
            if self._definition(module).name == name:
                return module
        if f"_{guess}" in self._names(aside=True) and hasattr(module := self._import(f"_{guess}"), "queue"):
            return module
        modules = self._modules()
        if name not in modules:
            raise InvalidRequest(f"no module in {self.package} defines the queue {name!r}; it has {', '.join(modules)}")
        return modules[name]

    def _modules(self) -> dict[str, ModuleType]:
        found: dict[str, ModuleType] = {}
        for module in map(self._import, self._names()):
            name = self._definition(module).name
            if name in found:
                raise InvalidRequest(f"{found[name].__name__} and {module.__name__} both define the queue {name!r}")
            found[name] = module
        return found

    def _names(self, *, aside: bool = False) -> list[str]:
        found = (module.name for module in pkgutil.iter_modules(self._folders()))
        return sorted(name for name in found if name.startswith("_") == aside)

    def _import(self, name: str) -> ModuleType:
        try:
            return importlib.import_module(f"{self.package}.{name}")
        except Exception as error:
            error.add_note(f"while importing the queue module {self.package}.{name}")
            raise

    @staticmethod
    def _definition(module: ModuleType) -> Definition:
        found = getattr(module, "queue", None)
        if not isinstance(found, Definition):
            raise InvalidRequest(f"{module.__name__} defines no queue; add `queue = define(...)`")
        return found

    def _folders(self) -> Iterable[str]:
        try:
            package = importlib.import_module(self.package)
        except ModuleNotFoundError as error:
            if error.name != self.package.partition(".")[0] and error.name != self.package:
                raise
            raise InvalidRequest(
                f"there is no package {self.package!r} beside the program: make a folder of that name, with a module "
                "for each queue"
            ) from None
        if not hasattr(package, "__path__"):
            raise InvalidRequest(f"{self.package!r} is a module: make it a folder, with a module for each queue")
        return package.__path__
