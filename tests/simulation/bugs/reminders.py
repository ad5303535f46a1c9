"""Bugs in reminders: what the sweeper handed over and nobody tried waits for the end of its lease's time."""

from __future__ import annotations

from simulation.mutations import Mutation

_SWEEPER = "tests/unit/sweeper/test_unserved.py::"
_WORKER = "tests/unit/worker/test_unserved.py::"

BUGS = (
    Mutation(
        "the sweeper forgets what it has handed over",
        "sweeper/expired_leases.py",
        "        self._handed_over |= dict.fromkeys(paths, now)\n",
        "        self._handed_over |= dict.fromkeys((), now)\n",
        test=f"{_SWEEPER}test_a_retry_that_nobody_tried_is_handed_over_again[10]",
    ),
    Mutation(
        "a lease whose reminder was lost waits for a whole visibility timeout",
        "sweeper/expired_leases.py",
        "            again = min(settings.visibility_timeout, settings.rescue_after)\n",
        "            again = settings.visibility_timeout\n",
        test=f"{_SWEEPER}test_a_reminder_that_was_lost_delays_a_retry_by_rescue_after",
    ),
    Mutation(
        "a lease that was handed over is read again although it was written since",
        "sweeper/expired_leases.py",
        "                if entry.modified_at > self._handed_over.get(path, entry.modified_at):\n",
        "                if not seen:\n",
        test=f"{_SWEEPER}test_a_retry_that_is_tried_costs_no_more_than_before",
    ),
    Mutation(
        "a function that is out of time forgets what it was sent for",
        "worker/invocation.py",
        "                self._leave(waiting[place:])\n",
        "",
        test=f"{_WORKER}test_a_function_that_is_out_of_time_reminds_of_what_waits_and_of_nothing_else",
    ),
    Mutation(
        "a function reminds of one message that the rate held back, not of each",
        "worker/invocation.py",
        "                        self._unserved.add(path, at)\n",
        "                        pass\n",
        test=f"{_WORKER}test_a_function_reminds_of_each_message_that_the_rate_held_back_and_that_waits",
    ),
    Mutation(
        "a pull worker drops what the rate of a folder held back",
        "worker/pull_worker.py",
        "                self._unserved.not_tried(candidate.path)\n",
        "                pass\n",
        test=f"{_WORKER}test_a_pull_worker_reminds_of_what_the_rate_of_a_folder_held_back",
    ),
    Mutation(
        "a pull worker that stops drops its inbox",
        "worker/pull_worker.py",
        "            self._unserved.leave(self._inbox.take)\n",
        "",
        test=f"{_WORKER}test_a_pull_worker_that_stops_leaves_reminders_of_its_inbox",
    ),
)
