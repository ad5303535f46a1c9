"""Bugs in reminders, probes and changed rates: what nobody tried waits for long; a breaker never closes, or falsely."""

from __future__ import annotations

from simulation.mutations import Mutation

_SWEEPER = "tests/unit/sweeper/test_unserved.py::"
_WORKER = "tests/unit/worker/test_unserved.py::"
_RATES = "tests/unit/flow/test_rate_changes.py::"
_PROBES = "tests/unit/flow/test_breaker_probes.py::"

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
    Mutation(
        "the success of a probe that was taken over is dropped",
        "flow/breaker.py",
        "                if error is not None or not _continues(known.document, probe.stored.document):\n",
        "                if True:\n",
        test=f"{_PROBES}test_a_probe_that_runs_longer_than_it_lasts_still_closes_the_breaker",
    ),
    Mutation(
        "a late success closes the breaker although a later probe has failed",
        "flow/breaker.py",
        'document.state == "probing" and not document.is_forced and document.round == probe.round',
        'document.state == "probing" and not document.is_forced',
        test=f"{_PROBES}test_a_late_success_does_not_count_for_a_probe_after_a_later_failure",
    ),
    Mutation(
        "a probe that says nothing is kept",
        "worker/processor.py",
        "        self.queue.note_undecided(claim)  # unless",
        "        pass  # unless",
        test=f"{_PROBES}test_a_message_that_says_nothing_leaves_the_probe_to_another_one_at_once[empty batch]",
    ),
    Mutation(
        "a message that cannot be parsed closes the breaker",
        "worker/processor.py",
        "        fail = self.queue.fail if is_called else (claim.leases or self.queue.leases).fail\n",
        "        fail = self.queue.fail\n",
        test=f"{_PROBES}test_a_message_that_says_nothing_leaves_the_probe_to_another_one_at_once[not parsed]",
    ),
    Mutation(
        "a probe that is given back ends the one that followed",
        "flow/breaker.py",
        "            self._write(undecided, probe.stored)\n",
        "            self._write(undecided, self._read())\n",
        test=f"{_PROBES}test_a_probe_that_is_given_back_late_does_not_end_the_one_that_followed",
    ),
    Mutation(
        "a function sleeps while an operator holds the breaker open",
        "worker/invocation.py",
        "            if not is_soon or self._queue.is_stopped() or",
        "            if not is_soon or",
        test=f"{_PROBES}test_a_function_ends_at_once_when_an_operator_holds_the_breaker_open",
    ),
    Mutation(
        "a worker that runs until its queue is empty ends while a rate holds messages back",
        "protocol/backlog.py",
        "            self._is_limited = True\n            return\n",
        "            return\n",
        test="tests/unit/worker/test_until_empty.py::test_a_message_that_was_held_back_last_is_not_forgotten",
    ),
    Mutation(
        "tokens in hand are used although the rate was lowered",
        "flow/limiter.py",
        "        return limit.left > 0 and limit.rate == rate and",
        "        return limit.left > 0 and",
        test=f"{_RATES}test_tokens_in_hand_do_not_count_after_the_rate_was_lowered",
    ),
    Mutation(
        "a grant of the last minute becomes one of the future when hours become minutes",
        "documents/limit_document.py",
        "            renamed = min(first + self.unit - 1, max(first, now)) // rate.unit\n",
        "            renamed = (first + self.unit - 1) // rate.unit\n",
        test=f"{_RATES}test_a_change_from_hours_to_minutes_does_not_close_the_queue[0]",
    ),
    Mutation(
        "a rate that was raised is used when the old one would have been free",
        "flow/limiter.py",
        "            is_closed = limit.closed_for == rate and self._queue.clock.monotonic() < limit.closed_until\n",
        "            is_closed = self._queue.clock.monotonic() < limit.closed_until\n",
        test=f"{_RATES}test_a_raised_rate_is_used_at_once_although_the_old_one_had_closed_the_queue",
    ),
    Mutation(
        "a line that is too late for its token throws it away",
        "flow/gate.py",
        "        token.cancel()\n        return False\n",
        "        return False\n",
        test=f"{_RATES}test_a_line_that_is_too_late_for_its_token_leaves_it_to_another_call",
    ),
    Mutation(
        "a limit of a newer version is written over while its tokens count",
        "flow/limiter.py",
        "granted(rate, _second(found.modified_at), rate.calls), found.etag",
        "granted(rate, 0, rate.calls), found.etag",
        test=f"{_RATES}test_a_newer_version_at_work_is_left_alone",
    ),
)
