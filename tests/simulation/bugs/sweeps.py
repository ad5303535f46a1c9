"""Bugs in the sweeper: what it finds, how much it hands over, and when it wakes up."""

from __future__ import annotations

from simulation.mutations import Mutation

_REDELIVERY = "tests/unit/sweeper/test_redelivery.py::"

BUGS = (
    Mutation(
        "the sweeper ignores heartbeats",
        "sweeper/expired_leases.py",
        "elif owners.keep(",
        "elif not owners and owners.keep(",
    ),
    Mutation(
        "a lease's age is judged by the sweeper's wall clock",
        "sweeper/expired_leases.py",
        "elif not held.is_over():",
        "elif self.queue.clock.now() <= held.over_at:",
    ),
    Mutation(
        "the sweeper rescues nobody",
        "sweeper/unleased_messages.py",
        "handed_over = self._hand_over.once(orphans)",
        "handed_over = 0",
    ),
    Mutation(
        "a waiting lease without a reminder is forgotten",
        "sweeper/expired_leases.py",
        "            if held.is_due():\n                due.append(path)\n",
        "            if held.is_due():\n                pass\n",
    ),
    Mutation(
        "delayed messages that wait hide the others",
        "protocol/backlog.py",
        "queue.store.list(prefix), prefix, leases, due_by=root.at)",
        "queue.store.list(prefix), prefix, None, due_by=root.at)",
    ),
    Mutation(
        "reminders of what is finished hide the others",
        "protocol/backlog.py",
        "        elif not is_hint:\n",
        "        else:\n",
    ),
    Mutation(
        "what could not be read hides what was PUT there since",
        "sweeper/expired_leases.py",
        "elif path in self._present and not held.lease.waits_for(self._present.pop(path)):",
        "elif not held.lease:",
    ),
    Mutation(
        "a lock is deleted while it is held",
        "sweeper/cleanup.py",
        " and age > found.ttl + GRAIN:",
        ":",
    ),
    Mutation(
        "dispatches are limited per page, not per sweep",
        "sweeper/hand_over.py",
        "            self._left = max(0, self._left - len(chunk))\n",
        "",
    ),
    Mutation(
        "a new sweeper forgets where the last one ended",
        "sweeper/sweeper.py",
        "self._progress or Progress.read(queue, store, root)",
        "self._progress or Progress()",
    ),
    Mutation(
        "strangers under the root hide the queue",
        "protocol/kinds.py",
        "    if root.next_after is not None:\n",
        "    if root is None:\n",
    ),
    Mutation(
        "leases are listed by whole sweeps only",
        "sweeper/sweeper.py",
        '(self._is_turn_of_leases and "leases" in self._kinds)',
        "False",
    ),
    Mutation(
        "the sweeper does not wake up when a lease ends",
        "sweeper/sweeper.py",
        "if next_at := self._expired_leases.next_at():",
        "if next_at := None:",
    ),
    Mutation(
        "a pull worker leaves expired leases to a sweeper function that is asleep",
        "worker/sweep_turn.py",
        "report = self._sweeper.tick_leases(are_expected=expects_leases and is_idle)",
        "pass",
        test=f"{_REDELIVERY}test_by_a_pull_worker_beside_a_function_that_sleeps_at_any_moment",
    ),
    Mutation(
        "a pull worker beside a sweeper function sleeps as long as that may",
        "worker/sweep_turns.py",
        "self._look_after is None or self.is_functions:",
        "self._look_after is None:",
        test=f"{_REDELIVERY}test_by_a_pull_worker_beside_a_function_that_sleeps_at_any_moment",
    ),
    Mutation(
        "a pull worker beside a sweeper function lists leases where none are",
        "worker/sweep_turn.py",
        "are_expected=expects_leases and is_idle",
        "are_expected=True",
        test=f"{_REDELIVERY}test_a_pull_worker_beside_a_function_sends_nothing_more_in_an_idle_queue",
    ),
    Mutation(
        "a busy pull worker beside a sweeper function lists leases",
        "worker/sweep_turn.py",
        "are_expected=expects_leases and is_idle",
        "are_expected=expects_leases",
        test=f"{_REDELIVERY}test_a_busy_pull_worker_beside_a_function_leaves_leases_to_idle_ones",
    ),
    Mutation(
        "a pull worker keeps its old count while a sweeper function counts",
        "worker/sweep_turn.py",
        "if report is None or report.stats or turns.is_functions:",
        "if report is None or report.stats:",
        test=f"{_REDELIVERY}test_a_pull_worker_that_looks_after_leases_forgets_what_it_counted_in_its_own_turn",
    ),
    Mutation(
        "the record of a crash wakes no sweeper",
        "handlers/sweeper.py",
        "        one.worker_crashed()\n",
        "        pass\n",
        test="tests/functions/test_sweeper.py::test_the_record_of_a_crash_wakes_it_between_its_minutes",
    ),
    Mutation(
        "the first step of a sweep may use up its whole budget",
        "sweeper/budget.py",
        "self._step_requests = self.spent + -(-max(0, self._requests - self.spent) // steps_left)",
        "self._step_requests = self._requests",
        test="tests/unit/sweeper/test_progress.py::test_leases_that_take_many_lists_do_not_keep_due_messages_waiting",
    ),
    Mutation(
        "one lease that cannot be read stops the others",
        "sweeper/expired_leases.py",
        "            except QueueError as error:\n                # Unknown, or not allowed",
        "            except QueueError:\n                raise\n            except Conflict as error:\n"
        "                # Unknown, or not allowed",
    ),
    Mutation(
        "the sweeper function begins with the same queue every minute",
        "handlers/sweeper.py",
        "return names[first:] + names[:first]",
        "return names",
    ),
    Mutation(
        "the first queues use up the time of all the others, every minute",
        "handlers/sweeper.py",
        "seconds = max(SHORTEST_SWEEP_SECONDS, min(SWEEP_SECONDS, share))",
        "seconds = 600.0",
        more=(("handlers/sweeper.py", "return names[first:] + names[:first]", "return names"),),
    ),
    Mutation(
        "queues that were swept take time from those that were not",
        "handlers/sweeper.py",
        "share = (end - clock.monotonic()) / (others + 1)",
        "share = (end - clock.monotonic()) / (len(agenda) + 1)",
        test="tests/functions/test_sweeper.py::test_the_last_of_seven_large_queues_has_as_much_time_as_the_first",
    ),
    Mutation(
        "a sweep that did not finish leaves no trace",
        "sweeper/progress.py",
        "            self.write(queue, store)\n",
        "            pass\n",
    ),
    Mutation(
        "a dead worker's turn to sweep lasts as long as its lock",
        "worker/sweep_turns.py",
        "        return found.at <= fresh_until\n",
        "        return True\n",
    ),
    Mutation(
        "wall clocks decide who looks after the sweeping worker",
        "worker/sweep_turns.py",
        "if self._look_after and self._time.now() <= self._look_after:",
        "if self._look_after and self._queue.clock.now() <= self._look_after:",
    ),
    Mutation(
        "a worker believes that another one sweeps for ever",
        "worker/sweep_turns.py",
        "        return min(self._time.seconds_until(self._look_after), self.lock.ttl.total_seconds())\n",
        "        return 3600.0\n",
    ),
    Mutation(
        "where schedules and flows ended is known to this process alone",
        "sweeper/progress.py",
        '"messages", "cleanup", "schedules", "flows"})',
        '"messages", "cleanup"})',
        more=(("sweeper/sweeper.py", "            progress.write(queue, store)\n", "            pass\n"),),
        test="tests/unit/sweeper/test_progress.py",
    ),
    Mutation(
        "a sweeper that is killed begins with the same flows again",
        "sweeper/sweeper.py",
        "        if progress.schedules or progress.flows:\n",
        "        if not queue:\n",
        test="tests/unit/sweeper/test_progress.py::test_no_flow_starves_if_each_sweeper_is_killed",
    ),
)
