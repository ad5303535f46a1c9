"""What handlers and hooks take: functions, methods, `functools.partial`, and objects that can be called."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from types import MethodType, SimpleNamespace
from typing import Any, get_type_hints


def accepts(function: Callable[..., Any], count: int) -> bool:
    """Whether it can be called with so many arguments by position."""
    try:
        _taken(function).bind(*range(count))
    except TypeError:
        return False
    except ValueError:
        return count == 1  # a built-in that does not say what it takes
    return True


def takes_two(function: Callable[..., Any]) -> bool:
    """Whether it is to be called with two arguments. `*args` alone may stand for one parameter of a function behind."""
    try:
        return len(_taken(function).parameters) > 1 and accepts(function, 2)
    except ValueError:
        return False


def _taken(function: Callable[..., Any]) -> inspect.Signature:
    """What a call may have: of a decorator, its own parameters, and not those of the function behind it, which it may
    call with others; unless it passes on whatever comes.
    """
    own = inspect.signature(function, follow_wrapped=False)
    if all(one.kind is not inspect.Parameter.VAR_POSITIONAL for one in own.parameters.values()):
        return own
    inner = getattr(function, "__wrapped__", None)
    if inner is None:
        return inspect.signature(function)
    return _taken(MethodType(inner, function.__self__) if inspect.ismethod(function) else inner)


def code_of(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function whose code runs when it is called."""
    while isinstance(function, functools.partial):
        function = function.func
    if inspect.isclass(function):
        return function.__init__
    called: Callable[..., Any] = function if inspect.isroutine(function) else type(function).__call__
    return called


def parameters(function: Callable[..., Any]) -> list[inspect.Parameter]:
    """Of what it still takes; none of a built-in that does not say."""
    try:
        return list(inspect.signature(function).parameters.values())
    except ValueError:
        return []


def annotation_of(function: Callable[..., Any], place: int = 0) -> Any:
    """What the parameter at this place, the first one by default, is annotated as; Any if it is not. Others may name
    what exists for type checkers alone.

    Raises:
        Exception: the annotation is text, and cannot be evaluated: NameError, most often.
    """
    taken = parameters(function)[place:]
    if not taken or taken[0].annotation is inspect.Parameter.empty:
        return Any
    # Read by `get_type_hints`, which also evaluates the text within `list["Order"]`.
    one = SimpleNamespace(__annotations__={"one": taken[0].annotation})
    return get_type_hints(one, globalns=_globals(function))["one"]


def _globals(function: Callable[..., Any]) -> dict[str, Any]:
    """Of the module that its signature is written in: decorators and partials may be around each other."""
    while (inner := inspect.unwrap(code_of(function))) is not function:
        function = inner
    found: dict[str, Any] = getattr(function, "__globals__", {})
    return found
