"""QueueSettings: how one queue behaves, as its definition, `queue.json` and people write it.

Durations are `timedelta` inside; in JSON and in the environment they are numbers whose names end in `_seconds`.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from datetime import timedelta
from typing import Any, Literal

from .encoding import LONGEST, MOST_LINES, NONSENSE
from .errors import InvalidRequest
from .limits import Breaker, Rate, parse_rate
from .retry import RetryPolicy
from .run_memory import RunMemory

MIB = 1024 * 1024
#: Lambda's own limit for one invocation.
LAMBDA_LIMIT = timedelta(minutes=15)
#: An invocation that was throttled drains the queue, so it gets at least this long; an idle one returns at once.
DRAIN = timedelta(seconds=60)
#: Time between the end of the last handler and the end of the invocation: record the outcome, flush logs and traces.
WRAP_UP = timedelta(seconds=5)
#: The most messages that a Spark run claims at one time: its manifest names what it holds, up to twice as many, and has
#: to stay readable.
MOST_PER_RUN = 1000
#: Old name of a setting → its current name. Definitions and `queue.json` objects with the old name are still read.
RENAMED = {"batch": "messages_per_run"}
_UNITS = {"b": 1, "kb": 1000, "mb": 1000**2, "gb": 1000**3, "kib": 1024, "mib": MIB, "gib": 1024**3}
#: So few digits because Python reads no number of thousands of them.
_SIZE = re.compile(r"\s*([0-9]{1,100})(?:\.([0-9]{1,100}))?\s*(b|[kmg]i?b)?\s*", re.IGNORECASE)


def parse_size(size: int | str) -> int:
    """Bytes from a number, or from `"64 MiB"`.

    Raises:
        InvalidRequest: not a size.
    """
    if isinstance(size, int) and not isinstance(size, bool):
        return size
    match = _SIZE.fullmatch(size) if isinstance(size, str) else None
    if not match:
        raise InvalidRequest(f"size must be a number of bytes, or a text such as '64 MiB', not {size!r}")
    whole, fraction, unit = match[1], match[2] or "", _UNITS[(match[3] or "b").lower()]
    # In whole numbers: Decimal keeps 28 digits, and the last bytes of a longer number would be lost.
    scale: int = 10 ** len(fraction)
    return int(whole + fraction) * unit // scale


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueSettings:
    """How one queue behaves. It is a value: change it with `replace`, or at run time through `queue.json`."""

    #: How long a claimed message belongs to its worker before it is given to someone else.
    visibility_timeout: timedelta = timedelta(seconds=30)
    max_attempts: int = 3
    retry_base: timedelta = timedelta(seconds=1)
    retry_cap: timedelta = timedelta(seconds=300)
    retry_jitter: bool = True
    #: How many messages run at one time: threads of a pull worker, reserved concurrency of the function.
    concurrency: int = 3
    #: Memory and time of the deployed function.
    memory_mib: int = 512
    handler_timeout: timedelta = timedelta(seconds=25)
    #: Of a single message, and of each line of a batch. Larger ones become dead letters; a longer line dies alone.
    max_message_size: int = 64 * MIB
    #: Of a whole batch, in bytes and in lines; a larger one becomes a dead letter before a line of it has run. A batch
    #: is copied to the temporary folder of its worker; a function has 512 MiB there.
    max_batch_size: int = 256 * MIB
    max_batch_lines: int = MOST_LINES
    #: Enqueues are refused while the sweeper's last count is at or above this many messages, of a batch its lines;
    #: None: never.
    max_depth: int | None = None
    #: More pending messages than this, for five minutes, raise an alarm.
    pending_alarm: int = 10_000
    #: Names get one of this many prefixes, so that one queue can exceed S3's 3,500 writes/s per prefix; 0: no prefix.
    shards: int = 0
    #: False: completed messages leave no record. Saves one PUT; after a crash between run and delete the handler runs
    #: again.
    history: bool = True
    #: An event older than this was throttled: the worker reads before it claims, then drains the queue, which costs as
    #: much again as the message. Delivery and a cold start take two or three seconds; throttled events, which Lambda
    #: tries again after 1, 2, 4, … seconds, are older than this from the third time on.
    late_after: timedelta = timedelta(seconds=5)
    #: A message this old without a lease has lost its event: the sweeper hands it to a worker.
    rescue_after: timedelta = timedelta(seconds=60)
    record_retention: timedelta = timedelta(days=5)
    dead_retention: timedelta = timedelta(days=14)
    #: What goes to EventBridge.
    events: Literal["off", "failures", "all"] = "off"
    #: Who runs the messages: a deployed function, Spark runs, or pull workers alone: then no function is deployed.
    engine: Literal["lambda", "spark", "pull"] = "lambda"
    #: In a mixed queue, messages larger than this many bytes go to Spark; None: no message does.
    heavy_above: int | None = None
    #: Spark runs at one time, and messages that a run claims at one time.
    max_runs: int = 1
    messages_per_run: int = 100
    #: How long one run starts messages; what it has started by then may take as long again, and is ended then. With the
    #: executors that it may use, this bounds its cost.
    run_timeout: timedelta = timedelta(hours=1)
    max_executors: int = 4
    paused: bool = False
    #: At most so many calls of the handler in any window by S3's clock: `"100/min"`, with s, min or hour; None: any.
    rate: str | None = None
    #: What the rate is for: the whole queue, or (`"folder"`) each first folder of messages' names: `customer-42/…`.
    rate_key: Literal["", "folder"] = ""
    #: Stops the queue for a while after so many failures in a row; None: never.
    breaker: Breaker | None = None
    #: How often a handler may raise `Postpone` for one message; from then on it counts as a failed attempt.
    max_postpones: int = 1000
    #: True: the payload of a completed message is kept under `done/` for as long as its record. Costs one COPY; then
    #: completed messages can be replayed.
    keep_payload: bool = False
    #: False: what dies is recorded, and deleted; no dead letter is kept, and nothing can be replayed.
    dead_letters: bool = True
    #: Single messages are spread over so many partitions, each with one lease for all of its messages: a third of the
    #: requests while it is busy, more of them while it is not; 0: each message has its own lease.
    partitions: int = 0
    #: A handler of lists gets up to so many single messages in one call, with an outcome for each; 0: one. It needs
    #: partitions. A call with fewer comes after `within`.
    collect: int = 0
    within: timedelta = timedelta(seconds=1)
    #: Memory of a Spark run, of its driver and of each executor: Java's heap, and beside it Python's, through which all
    #: payloads go. Together they are what EMR bills.
    driver_memory_mib: int = 2048
    driver_python_mib: int = 3072
    executor_memory_mib: int = 2048
    executor_python_mib: int = 3072

    def __post_init__(self) -> None:
        durations = ("visibility_timeout", "handler_timeout", "rescue_after", "record_retention", "dead_retention")
        for name in (*durations, "run_timeout"):
            if getattr(self, name) <= timedelta():
                raise InvalidRequest(f"{name} must be longer than 0 seconds, not {getattr(self, name)}")
        for name in (*durations, "retry_base", "retry_cap", "late_after", "run_timeout"):
            if getattr(self, name) > LONGEST:
                raise InvalidRequest(f"{name} must be at most {LONGEST.days} days, not {getattr(self, name)}")
        for name in (
            "max_attempts",
            "concurrency",
            "memory_mib",
            "max_message_size",
            "max_batch_size",
            "max_batch_lines",
            "max_runs",
            "messages_per_run",
            "max_executors",
            "pending_alarm",
            "max_postpones",
        ):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise InvalidRequest(f"{name} must be a whole number of at least 1, not {value!r}")
        if self.max_batch_lines > MOST_LINES:
            raise InvalidRequest(f"max_batch_lines must be at most {MOST_LINES}, not {self.max_batch_lines}")
        if self.messages_per_run > MOST_PER_RUN:
            raise InvalidRequest(f"messages_per_run must be at most {MOST_PER_RUN}, not {self.messages_per_run}")
        if not 0 <= self.shards <= 256:
            raise InvalidRequest(f"shards must be from 0 to 256, not {self.shards}")
        if isinstance(self.partitions, bool) or not 0 <= self.partitions <= 1000:
            raise InvalidRequest(f"partitions must be a whole number from 0 to 1000, not {self.partitions!r}")
        if isinstance(self.collect, bool) or not 0 <= self.collect <= 1000:
            raise InvalidRequest(f"collect must be a whole number from 0 to 1000, not {self.collect!r}")
        if self.collect and not self.partitions:
            raise InvalidRequest("collect needs partitions: messages are collected within one; partitions=1 will do")
        if self.collect > 1 and self.max_attempts == 1:
            raise InvalidRequest("collect needs max_attempts of at least 2: with 1, messages run one at a time")
        if not timedelta() <= self.within <= timedelta(seconds=60):
            raise InvalidRequest(f"within must be from 0 to 60 seconds, not {self.within}")
        if self.partitions and self.is_mixed:
            raise InvalidRequest(
                "a queue with heavy_above cannot have partitions: whoever holds one runs all of its messages, large or "
                "small; leave heavy_above out, or send all of them to Spark with engine='spark'"
            )
        if self.collect and self.engine == "spark":
            raise InvalidRequest(
                "collect is not for Spark: a job with per_batch gets many messages in one DataFrame, up to "
                "messages_per_run of them; leave collect out"
            )
        if self.max_depth is not None and self.max_depth < 1:
            raise InvalidRequest(f"max_depth must be at least 1 or None, not {self.max_depth}")
        if self.events not in ("off", "failures", "all"):
            raise InvalidRequest(f"events must be off, failures or all, not {self.events!r}")
        if self.engine not in ("lambda", "spark", "pull"):
            raise InvalidRequest(f"engine must be lambda, spark or pull, not {self.engine!r}")
        if self.engine == "pull" and self.heavy_above is not None:
            raise InvalidRequest("engine pull has no Spark runs: leave heavy_above out")
        if self.rate_key not in ("", "folder"):
            raise InvalidRequest(f"rate_key must be 'folder' or '', not {self.rate_key!r}")
        if self.breaker is not None and not isinstance(self.breaker, Breaker):
            raise InvalidRequest(f"breaker must be a Breaker or None, not {self.breaker!r}")
        if self.is_limited and self.uses_spark:
            raise InvalidRequest(
                "a queue whose messages go to Spark cannot have a rate or a breaker: a run claims many messages at a "
                "time, and starts them later; use max_runs and messages_per_run"
            )
        if self.keep_payload and not self.history:
            raise InvalidRequest("keep_payload needs history: only the record of a message leads to its payload")
        _ = self.retry, self.run_memory

    @property
    def run_memory(self) -> RunMemory:
        """Of the driver and the executors of a Spark run."""
        return RunMemory(
            driver_heap=self.driver_memory_mib,
            driver_python=self.driver_python_mib,
            executor_heap=self.executor_memory_mib,
            executor_python=self.executor_python_mib,
        )

    @property
    def limit(self) -> Rate | None:
        """The parsed `rate`."""
        return None if self.rate is None else parse_rate(self.rate)

    @property
    def is_limited(self) -> bool:
        """Whether anything but a pause can keep messages from being claimed."""
        return self.limit is not None or self.breaker is not None

    @property
    def uses_spark(self) -> bool:
        """Whether any message of this queue can go to Spark."""
        return self.engine == "spark" or self.heavy_above is not None

    @property
    def runs_elsewhere(self) -> bool:
        """Whether pull workers or Spark runs run messages of this queue, of whose deaths no function hears."""
        return self.engine == "pull" or self.uses_spark

    @property
    def is_mixed(self) -> bool:
        """Whether messages go to Spark or not by their size."""
        return self.engine != "spark" and self.heavy_above is not None

    def is_heavy(self, size: int) -> bool:
        """Whether a message of this many bytes goes to Spark."""
        return self.engine == "spark" or (self.heavy_above is not None and size > self.heavy_above)

    @property
    def function_timeout(self) -> timedelta:
        """Of the worker function: time for one more handler after the drain has begun, and to record its outcome."""
        return min(max(DRAIN, 2 * self.handler_timeout + WRAP_UP), LAMBDA_LIMIT)

    @property
    def retry(self) -> RetryPolicy:
        return RetryPolicy(
            base=self.retry_base, cap=self.retry_cap, max_attempts=self.max_attempts, jitter=self.retry_jitter
        )

    @classmethod
    def of(cls, **options: Any) -> QueueSettings:
        """From what people write: seconds for durations, `"64 MiB"` for sizes.

        Raises:
            InvalidRequest: a name is unknown, or a value is out of range; the text says which.
        """
        return cls().with_overrides(options)

    def with_overrides(self, options: Mapping[str, Any]) -> QueueSettings:
        """These settings with some replaced, by name, by `{name}_seconds`, or by an old name."""
        known = {field.name: getattr(self, field.name) for field in fields(self)}
        changes: dict[str, Any] = {}
        for option, value in with_current_names(options).items():
            name = option.removesuffix("_seconds")
            # Only a duration may have the suffix: `concurrency_seconds` is a mistake.
            if option in known or not isinstance(known.get(name), timedelta):
                name = option
            if name not in known:
                raise InvalidRequest(f"unknown setting {option!r}; the settings are {', '.join(sorted(known))}")
            try:
                changes[name] = _coerce(name, value, known[name])
            except NONSENSE as error:
                raise InvalidRequest(f"setting {option!r} cannot be {value!r}: {error}") from None
        return replace(self, **changes)

    def with_suitable(
        self, options: Mapping[str, Any], check: Callable[[QueueSettings], None] = lambda settings: None
    ) -> tuple[QueueSettings, dict[str, str]]:
        """These settings with those of the options that suit them, and why each of the others does not.

        If not all of them suit, each is tried alone, `paused` first: one that does not suit must not keep the others
        from counting. `check` raises InvalidRequest for settings that whoever asks cannot keep.
        """

        def changed(settings: QueueSettings, some: Mapping[str, Any]) -> QueueSettings:
            found = settings.with_overrides(some)
            check(found)
            return found

        try:
            return changed(self, options), {}
        except NONSENSE:
            pass
        settings = self
        unknown = {name: "this version does not know it" for name in options if not _is_known(name)}
        left = sorted((name for name in options if name not in unknown), key=lambda name: name != "paused")
        # Again as long as that helps: one of them may need another one that comes later.
        while True:
            refused: dict[str, str] = {}
            for name in left:
                try:
                    settings = changed(settings, {name: options[name]})
                except NONSENSE as error:
                    refused[name] = str(error)[:300]
            if len(refused) == len(left):
                return settings, refused | unknown
            left = list(refused)

    def check_function(self, deployed: QueueSettings | None = None) -> None:
        """Whether a function can keep these settings; `deployed` are those that it was deployed with, None: it will be
        deployed with these. A function has no heartbeat, and its time limit is that of its deployment.

        Raises:
            InvalidRequest: it cannot; the text says what to change.
        """
        # What `queue.json` calls the engine takes no function away: it goes on with its handler.
        runs_handlers = self.engine == "lambda" or (deployed is not None and self.engine == "pull")
        if not runs_handlers:
            return
        if self.handler_timeout >= self.visibility_timeout:
            raise InvalidRequest(
                f"handler_timeout ({self.handler_timeout}) must be shorter than visibility_timeout "
                f"({self.visibility_timeout}), or its messages are given to a second worker while the first still runs"
            )
        if self.handler_timeout + WRAP_UP > LAMBDA_LIMIT:
            raise InvalidRequest(
                f"handler_timeout ({self.handler_timeout}) leaves no room in Lambda's 15 minutes; make it at most "
                f"{LAMBDA_LIMIT - WRAP_UP}, or the queue engine='spark'"
            )
        if deployed and self.handler_timeout + WRAP_UP > deployed.function_timeout:
            raise InvalidRequest(
                f"handler_timeout ({self.handler_timeout}) leaves no room in the {deployed.function_timeout} of the "
                f"deployed function; make it at most {deployed.function_timeout - WRAP_UP}, or change it in the "
                "queue's definition and deploy that"
            )

    def check_override(self, changed: QueueSettings) -> None:
        """Whether the function that was deployed with these settings can keep changed ones. One whose deployment would
        have been refused is not there: pull workers alone run the queue, and their heartbeat keeps what they hold.

        Raises:
            InvalidRequest: it cannot; the text says what to change.
        """
        if self.engine == "pull":
            return
        try:
            self.check_function()
        except InvalidRequest:
            return
        changed.check_function(self)

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values; `with_overrides` reads them back."""
        described: dict[str, Any] = {}
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, timedelta):
                described[f"{field.name}_seconds"] = value.total_seconds()
            elif isinstance(value, Breaker):
                described[field.name] = value.to_json()
            else:
                described[field.name] = value
        return described


def with_current_names(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options under their current names. Where an old and a new name are given, the new one counts."""
    old = {RENAMED[name]: value for name, value in options.items() if name in RENAMED}
    return old | {name: value for name, value in options.items() if name not in RENAMED}


def _is_known(option: str) -> bool:
    known = QueueSettings.__dataclass_fields__
    return option in known or option in RENAMED or option.removesuffix("_seconds") in known


def _coerce(name: str, value: Any, default: Any) -> Any:
    if isinstance(default, timedelta):
        if isinstance(value, bool):
            raise TypeError("it must be a number of seconds")
        return value if isinstance(value, timedelta) else timedelta(seconds=float(value))
    if name in ("max_message_size", "max_batch_size", "heavy_above") and value is not None:
        return parse_size(value)
    if name in ("rate", "breaker") and (value is None or value == "off"):
        return None
    if name == "breaker":
        return Breaker.from_json(json.loads(value) if isinstance(value, str) else value)
    if isinstance(default, bool):
        if not isinstance(value, bool):
            raise TypeError("it must be true or false")
        return value
    if isinstance(default, int) or name == "max_depth":
        if value is None and name == "max_depth":
            return None
        if isinstance(value, bool) or int(value) != float(value):
            raise TypeError("it must be a whole number")
        return int(value)
    return value


def aws_region() -> str | None:
    """The region that the environment names: boto3 itself reads AWS_DEFAULT_REGION alone, other tools AWS_REGION."""
    return os.environ.get("AWS_DEFAULT_REGION") or os.environ.get("AWS_REGION") or None
