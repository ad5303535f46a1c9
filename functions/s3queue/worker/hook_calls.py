"""HookCalls: calls the hooks of a pull worker in threads beside its own, so that one that hangs stops none of these."""

from __future__ import annotations

import contextvars
import logging
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from queue import Empty, SimpleQueue

from s3queue.events import Hook, Told
from s3queue.queue import Queue

from .watchdog import stack_of

_log = logging.getLogger(__name__)
#: So many calls of one hook may hang; until one of them returns, it is not called any more. Else each message would
#: cost the worker `handler_timeout` and a thread.
MOST_HUNG = 3
#: The longest time between two looks at a hook that runs.
LOOK_SECONDS = 0.5
#: A thread without a call ends after this long. Until then it is used again: a hook may keep a connection in it.
KEPT_SECONDS = 30.0


@dataclass(slots=True, eq=False)
class _Call:
    hook: Hook
    told: Told
    run: Callable[[], None]
    #: Waits for the hook, until it is given up.
    teller: threading.Thread = field(default_factory=threading.current_thread)
    has_returned: threading.Event = field(default_factory=threading.Event)
    is_given_up: bool = False
    error: BaseException | None = None

    def __str__(self) -> str:
        name = getattr(self.hook, "__qualname__", repr(self.hook))
        return f"{name}: {self.told['event']}: {self.told.get('queue', '')}/{self.told.get('path', '')}"


class HookCalls:
    """For `Events.call_through`; safe for threads. Whoever tells a hook waits until it returns, as if it called it
    itself, but not longer than `handler_timeout`: then the hook is given up, and its thread left to it.
    """

    def __init__(self, queue: Queue) -> None:
        self._queue = queue
        self._idle: list[_Caller] = []
        #: Of each hook, by its id, how many calls were given up and have not returned. `Events` keeps every hook.
        self._hung: Counter[int] = Counter()
        self._mutex = threading.Lock()

    def __call__(self, hook: Hook, told: Told, tell: Callable[[], None]) -> None:
        # With the context variables of whoever tells, such as the current span.
        call = _Call(hook, told, partial(contextvars.copy_context().run, tell))
        with self._mutex:
            is_hung = self._hung[id(hook)] >= MOST_HUNG
        if is_hung:
            _log.warning("hook not called, %d calls of it hang: %s", MOST_HUNG, call)
            return
        try:
            caller = self._hand_over(call)
        except RuntimeError as error:
            _log.warning("no thread for a hook, called here: %s: %s", call, error)
            return tell()
        self._wait(call, caller)

    def end(self) -> None:
        """End the threads that wait for a call. If more calls come, they get new ones."""
        with self._mutex:
            idle, self._idle = self._idle, []
        for caller in idle:
            caller.calls.put(None)

    def _hand_over(self, call: _Call) -> _Caller:
        with self._mutex:
            while self._idle:
                caller = self._idle.pop()
                if caller.is_alive():  # after a fork, none is
                    caller.calls.put(call)
                    return caller
        caller = _Caller(f"{self._queue.worker_id}-hook", self)
        caller.calls.put(call)
        caller.start()
        return caller

    def _wait(self, call: _Call, caller: _Caller) -> None:
        clock, limit = self._queue.clock, self._queue.settings.handler_timeout.total_seconds()
        began = clock.monotonic()
        while not call.has_returned.wait(min(LOOK_SECONDS, limit / 2)):
            if clock.monotonic() - began > limit and self._give_up(call):
                where = "".join(stack_of(caller.ident or 0).format())
                _log.error("hook given up after %g s, the outcome stands: %s\n%s", limit, call, where)
                return
        if call.error:
            raise call.error

    def _give_up(self, call: _Call) -> bool:
        """False if it has returned by now."""
        with self._mutex:
            if call.has_returned.is_set():
                return False
            call.is_given_up = True
            self._hung[id(call.hook)] += 1
            return True

    def ended(self, call: _Call, caller: _Caller) -> bool:
        """Whether its thread may have another call."""
        with self._mutex:
            call.has_returned.set()
            if call.is_given_up:
                self._hung[id(call.hook)] -= 1
                return False
            self._idle.append(caller)
            return True

    def leaves(self, caller: _Caller) -> bool:
        """Whether a thread that had no call for a while may end: none is on its way to it."""
        with self._mutex:
            if caller not in self._idle:
                return False
            self._idle.remove(caller)
            return True


class _Caller(threading.Thread):
    """Calls one hook after the other. A daemon: a process that ends does not wait for one that hangs."""

    def __init__(self, name: str, of: HookCalls) -> None:
        super().__init__(name=name, daemon=True)
        self.of = of
        #: None: it is not needed any more.
        self.calls: SimpleQueue[_Call | None] = SimpleQueue()
        self.teller: threading.Thread | None = None

    def run(self) -> None:
        while call := self._next():
            self.teller = call.teller
            try:
                call.run()
            except BaseException as error:
                call.error = error
            if not self.of.ended(call, self):
                return

    def _next(self) -> _Call | None:
        try:
            return self.calls.get(timeout=KEPT_SECONDS)
        except Empty:
            return None if self.of.leaves(self) else self.calls.get()


def waiting_threads() -> Iterator[threading.Thread]:
    """This thread and, if it calls a hook, the one that waits for that, whichever worker's threads they are."""
    thread: threading.Thread | None = threading.current_thread()
    while thread:
        yield thread
        thread = thread.teller if isinstance(thread, _Caller) else None
