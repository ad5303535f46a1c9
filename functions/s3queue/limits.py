"""Rate and Breaker: how fast a queue may run, and when it stops by itself, as values that settings hold."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from functools import lru_cache
from typing import Any

from .errors import InvalidRequest

#: S3's clock ticks in whole seconds, so no window is shorter.
WINDOWS = {"s": 1, "min": 60, "hour": 3600}
MOST_CALLS = 1_000_000
MOST_FAILURES = 1_000_000
LONGEST_PAUSE = timedelta(days=7)
MOST_KINDS = 50
_RATE = re.compile(r"\s*([0-9]{1,9})\s*/\s*(s|min|hour)\s*")
_KIND = re.compile(r"[A-Za-z_][A-Za-z0-9_.]{0,199}")


@dataclass(frozen=True, slots=True)
class Rate:
    """At most `calls` calls of the handler in any window of so many seconds, by S3's clock."""

    calls: int
    window: int

    @property
    def usable(self) -> int:
        """For how many seconds after its grant a token may be used. Every window has room for so much less."""
        return self.window // 20

    @property
    def grain(self) -> int:
        """S3's dates are whole seconds: two of them may be further apart than they look. A window of one second is
        one of S3's; a longer one may begin anywhere.
        """
        return 1 if self.window > 1 else 0

    @property
    def unit(self) -> int:
        """Grants are remembered by units of so many seconds: about sixty of them are in a window."""
        return max(1, self.window // 60)

    @property
    def kept(self) -> int:
        """For how many seconds a grant can count."""
        return self.window + self.grain + self.usable + self.unit


def parse_rate(text: str) -> Rate:
    """The rate that `"100/min"` means.

    Raises:
        InvalidRequest: it is none; the text says what is allowed.
    """
    found = _rate(text) if isinstance(text, str) else None
    if found is None:
        raise InvalidRequest(
            f"rate must be a number from 1 to {MOST_CALLS} and a window of s, min or hour, such as '100/min', "
            f"not {text!r}"
        )
    return found


@lru_cache(maxsize=64)
def _rate(text: str) -> Rate | None:
    match = _RATE.fullmatch(text)
    if not match or not 1 <= int(match[1]) <= MOST_CALLS:
        return None
    return Rate(int(match[1]), WINDOWS[match[2]])


@dataclass(frozen=True, slots=True)
class Breaker:
    """`failures` in a row stop the queue for `pause` seconds; then one message probes, and its success ends the stop.

    `on` names the errors that count, as classes or by their names: `(ConnectionError, "requests.Timeout")`. Subclasses
    count, too. Without it, every failure counts but `Reject`, which says that the message is wrong.

    Raises:
        InvalidRequest: a value is out of range.
    """

    failures: int = 10
    pause: float | timedelta = 30
    on: Iterable[type[BaseException] | str] = ()

    def __post_init__(self) -> None:
        if isinstance(self.failures, bool) or not isinstance(self.failures, int):
            raise InvalidRequest(f"failures of a breaker must be a whole number, not {self.failures!r}")
        if not 1 <= self.failures <= MOST_FAILURES:
            raise InvalidRequest(f"failures of a breaker must be from 1 to {MOST_FAILURES}, not {self.failures}")
        pause = self.pause
        if isinstance(pause, bool) or not isinstance(pause, (int, float, timedelta)):
            raise InvalidRequest(f"pause of a breaker must be a number of seconds, not {pause!r}")
        seconds = pause.total_seconds() if isinstance(pause, timedelta) else float(pause)
        # S3's clock ticks in whole seconds. Not <: a NaN is no number of seconds either.
        if not 1 <= seconds <= LONGEST_PAUSE.total_seconds():
            raise InvalidRequest(f"pause of a breaker must be from 1 second to {LONGEST_PAUSE.days} days, not {pause}")
        object.__setattr__(self, "pause", timedelta(seconds=seconds))
        if isinstance(self.on, str) or not isinstance(self.on, Iterable):
            raise InvalidRequest(f"on of a breaker must be a list of errors, such as [{self.on!r}]")
        kinds = tuple(dict.fromkeys(map(_kind, self.on)))
        if len(kinds) > MOST_KINDS:
            raise InvalidRequest(f"on of a breaker must be at most {MOST_KINDS} errors, not {len(kinds)}")
        object.__setattr__(self, "on", kinds)

    @property
    def pause_time(self) -> timedelta:
        assert isinstance(self.pause, timedelta)
        return self.pause

    def counts(self, error: BaseException | str) -> bool:
        """Whether this failure is of a kind that counts; of one that is only known by name, its name decides."""
        if isinstance(error, str):
            return error in self.on if self.on else error != "Reject"
        names = {name for kind in type(error).__mro__ for name in (kind.__name__, _qualified(kind))}
        return not names.isdisjoint(map(str, self.on)) if self.on else "Reject" not in names

    def to_json(self) -> dict[str, Any]:
        found: dict[str, Any] = {"failures": self.failures, "pause_seconds": self.pause_time.total_seconds()}
        return found | ({"on": list(self.on)} if self.on else {})

    @classmethod
    def from_json(cls, found: Any) -> Breaker:
        """Raises InvalidRequest if this is not what `to_json` makes."""
        if isinstance(found, Breaker):
            return found
        if not isinstance(found, Mapping):
            raise InvalidRequest(
                'breaker must be an object such as {"failures": 10, "pause_seconds": 30, "on": ["ConnectionError"]}, '
                f"not {found!r}"
            )
        unknown = set(found) - {"failures", "pause_seconds", "on"}
        if unknown:
            raise InvalidRequest(f"a breaker has failures, pause_seconds and on, not {', '.join(sorted(unknown))}")
        defaults = cls()
        return cls(
            failures=found.get("failures", defaults.failures),
            pause=found.get("pause_seconds", defaults.pause),
            on=found.get("on", ()),
        )


def _kind(error: Any) -> str:
    if isinstance(error, type) and issubclass(error, BaseException):
        return _qualified(error)
    if isinstance(error, str) and _KIND.fullmatch(error):
        return error
    raise InvalidRequest(f"on of a breaker must name errors, by class or by name, not {error!r}")


def _qualified(kind: type) -> str:
    return kind.__name__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
