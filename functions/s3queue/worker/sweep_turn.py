"""SweepTurn: what a pull worker does when it is its turn to sweep."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from s3queue.errors import QueueError
from s3queue.protocol.stats import Stats
from s3queue.queue import Queue
from s3queue.sweeper.hand_over import Dispatch
from s3queue.sweeper.report import Report
from s3queue.sweeper.sweeper import Sweeper

from .sweep_turns import BY_WORKER, SweepTurns

if TYPE_CHECKING:
    from s3queue.documents.schedule import Schedule

_log = logging.getLogger(__name__)


class SweepTurn:
    """The sweeper of one pull worker; a new one each time its turn begins, because what it knew before is old."""

    def __init__(
        self,
        queue: Queue,
        dispatch: Dispatch,
        schedules: Sequence[Schedule] | None = None,
        counted: Callable[[Stats | None], None] = lambda stats: None,
    ) -> None:
        """`schedules` are those of the queue's definition; None: the worker was given a plain handler. `counted` is
        told what each sweep has counted, and None when it is another's turn.
        """
        self._queue = queue
        self._dispatch = dispatch
        self._schedules = schedules
        self._counted = counted
        self._sweeper = self._new()

    def _new(self) -> Sweeper:
        return Sweeper(
            queue=self._queue,
            dispatch=self._dispatch,
            publishes_as=BY_WORKER,
            schedules=self._schedules,
            counts_hour=True,
        )

    def sweep(self, turns: SweepTurns, *, expects_leases: bool, is_idle: bool = False) -> float:
        """Sweep if it is this worker's turn; returns how many seconds to wait. Never raises.

        A sweeper function is asleep for most of its minute: if this worker is idle, it ends what is over meanwhile.
        """
        report: Report | None = None
        try:
            if turns.is_ours():
                if turns.is_new():
                    self._sweeper = self._new()
                if expects_leases:
                    self._sweeper.expect_leases()
                report = self._sweeper.tick()
            elif turns.is_functions:
                report = self._sweeper.tick_leases(are_expected=expects_leases and is_idle)
            if report is None or report.stats or turns.is_functions:
                self._counted(report.stats if report else None)
            if report and report.error:
                raise report.error
        except QueueError as error:
            _log.warning("sweep failed, trying again: %s: %s", self._queue.name, error)
        except Exception:
            # A thread that ends would hold the lock, and nobody would sweep.
            _log.exception("unexpected error in a sweep, continuing: %s", self._queue.name)
        return turns.pause(report.next_tick if report else None)
