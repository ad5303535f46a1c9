"""Bugs in partitions: one lease for many messages.  [P9]"""

from __future__ import annotations

from simulation.mutations import Mutation

_BESIDE = "tests/unit/flow/test_partition_beside.py::"
_BY_HAND = "tests/unit/flow/test_deleted_by_hand.py::"

BUGS = (
    Mutation(
        "a partition's lease that comes late gives a second outcome to what waited in it",
        "flow/partition_hold.py",
        "if record.path not in ended:",
        "if record.path:",
        # Schedule 74596 found it.
        test=f"{_BY_HAND}test_a_lease_that_comes_late_gives_no_second_outcome_to_what_waited_in_it",
    ),
    Mutation(
        "a failed message that is gone when it is read is forgotten",
        "flow/partition_hold.py",
        "            if path in self._waiting:\n                self.look_again(path)\n",
        "            if not path:\n                self.look_again(path)\n",
        test=f"{_BY_HAND}test_a_failed_message_that_is_gone_when_it_is_read_has_its_record_whatever_has_no_answer",
    ),
    Mutation(
        "a failed message that is gone has no record if the journals do not answer",
        "flow/partition_hold.py",
        "                self._waiting.update(gone)\n",
        "                self._waiting.update(())\n",
        test=f"{_BY_HAND}test_a_failed_message_that_is_gone_when_it_is_read_has_its_record_whatever_has_no_answer",
    ),
    Mutation(
        "a lease that comes late dates the outcomes that it does not know",
        "flow/partition_journals.py",
        ' if one.failure and one.failure.type != "LeaseExpired"]',
        "]",
        test=f"{_BY_HAND}test_a_lease_that_comes_late_gives_no_second_outcome_whatever_its_attempts_are_dated",
    ),
    Mutation(
        "an outcome is taken to be younger than the end of the last attempt that its lease knows",
        "flow/partition_journals.py",
        "    began = [one.started_at for",
        "    began = [one.ended_at for",
        test=f"{_BY_HAND}test_a_lease_that_comes_late_gives_no_second_outcome_whatever_its_attempts_are_dated",
    ),
    Mutation(
        "all journals are read for messages that are gone, however many there are",
        "flow/partition_journals.py",
        "former[-MOST_READ:]",
        "former",
        test=f"{_BY_HAND}test_whoever_finds_many_messages_gone_reads_each_journal_since_their_last_attempt_once",
    ),
    Mutation(
        "threads of a partition wait while journals are read for messages that are gone",
        "flow/partition_hold.py",
        "        self._settle_gone()\n        with self._mutex:\n            new, self._is_last",
        "            self._settle_gone()\n        with self._mutex:\n            new, self._is_last",
        test=f"{_BY_HAND}test_no_thread_waits_while_the_journals_are_read",
    ),
    Mutation(
        "the lease of a partition is written whatever lies there",
        "flow/held_lease.py",
        "                    self._queue.store, self._key, lease.to_bytes(), if_match=etag, if_absent=etag is None\n",
        "                    self._queue.store, self._key, lease.to_bytes()\n",
    ),
    Mutation(
        "whoever takes a partition over drops what was committed",
        "flow/partition_hold.py",
        "        self._uncleared = stored.lease.ended if stored else ()\n",
        "        self._uncleared = ()\n",
    ),
    Mutation(
        "messages of a partition are deleted before the commit",
        "flow/partition_hold.py",
        "        if window or ended:\n            self._commit(window, ended, name)\n",
        "        for one in ended:\n"
        "            self.queue.store.delete(self.queue.keys.message(one.path), if_match=one.generation.etag)\n"
        "        if window or ended:\n            self._commit(window, ended, name)\n",
    ),
    Mutation(
        "outcomes of a partition are in no journal",
        "flow/partition_clearing.py",
        "        if any(self._is_recorded(record) for record in ended):\n",
        "        if not ended:\n",
    ),
    Mutation(
        "nobody looks again after a partition was given up",
        "worker/partition_run.py",
        "        if run.is_lost or queue.held_back != before or should_stop():\n",
        "        if run:\n",
    ),
    Mutation(
        "each of several messages is charged with the death of their worker",
        "flow/partitions.py",
        "        if len(lease.taken) == 1:\n",
        "        if lease.taken:\n",
    ),
    Mutation(
        "no message is charged with the death of its worker",
        "flow/partitions.py",
        "        if len(lease.taken) == 1:\n",
        "        if not lease.taken:\n",
    ),
    Mutation(
        "what a worker may have died of runs beside others again",
        "flow/partition_window.py",
        "            window.append(info)\n            if waiting and waiting.is_suspect:\n                break\n",
        "            window.append(info)\n",
        more=(
            (
                "flow/partition_window.py",
                "            if waiting and waiting.is_suspect and (window or beside is not None):\n",
                "            if not path:\n",
            ),
        ),
    ),
    Mutation(
        "a group goes on while one of its messages waits",
        "flow/partition_hold.py",
        "            if self.is_ordered:\n                self._list_again()\n",
        "",
    ),
    Mutation(
        "a group passes over what waits for its retry",
        "flow/partition_window.py",
        "                if goes_in_order and waiting.retry_at != NEVER:\n                    break\n",
        "",
    ),
    Mutation(
        "several messages of a group run at once",
        "flow/partition_hold.py",
        "                if not self._window or (self.is_ordered and self._running) or self._must_commit():\n",
        "                if not self._window or self._must_commit():\n",
        more=(
            (
                "flow/partition_hold.py",
                "return bool(self._window) and not (self.is_ordered and self._running) and not",
                "return bool(self._window) and not",
            ),
        ),
    ),
    Mutation(
        "equal bytes that were PUT after the deletion are deleted by the next holder",
        "flow/partition_clearing.py",
        "for record, info in listed if _generation(info) == record.generation}",
        "for record, info in listed if info.etag == record.generation.etag}",
    ),
    Mutation(
        "failed messages are forgotten when a partition is given up",
        "flow/partition_hold.py",
        "        if self._waiting:\n            if following",
        "        if not self._lease:\n            if following",
    ),
    Mutation(
        "an outlasted lease is given up, and its attempt not counted",
        "flow/partition_hold.py",
        "        self.claim.check_alive()\n        if self._waiting:\n",
        "        if self._waiting:\n",
    ),
    Mutation(
        "a message that was PUT anew since the LIST runs, and no lease names it",
        "flow/partition_reading.py",
        "        if message.generation.etag != info.etag:\n",
        "        if not message:\n",
        test="tests/unit/flow/test_partitions.py::"
        "test_a_message_that_was_put_anew_since_the_list_runs_under_a_lease_that_names_it",
    ),
    Mutation(
        "a partition whose lease ran out is taken from a worker whose heartbeat keeps it",
        "flow/partitions.py",
        "    return not owners.keep(stored.lease.owner, path, over_at=stored.over_at, now=stored.read_at)\n",
        "    return bool(owners)\n",
        # The simulation has too few pull workers that outlast their lease in a partition to meet it soon.
        test="tests/unit/worker/test_partition_runs.py::test_a_heartbeat_keeps_a_partition_whose_lease_is_old",
    ),
    Mutation(
        "whoever wants a partition takes it from its holder",
        "flow/partitions.py",
        "    if not stored.is_over():\n        return False\n    path",
        "    path",
    ),
    Mutation(
        "what a message of a partition sends is left out",
        "flow/partition_clearing.py",
        "                self.queue.perform(record, self.keep)\n",
        "                self.keep()\n",
    ),
    Mutation(
        "a dead message of a partition leaves no letter",
        "flow/partition_clearing.py",
        "            return self.outcomes.move_to_dead(record, info, None)\n",
        "            return True\n",
    ),
    Mutation(
        "the sweeper hands no partition over whose holder died",
        "sweeper/expired_leases.py",
        "        elif is_over:\n            due.append(path)\n",
        "        elif is_over:\n",
    ),
    Mutation(
        "a group is reminded of what waits behind the message that it waits for",
        "documents/partition.py",
        "        if waiting and is_ordered(partition_of(waiting[0].path)):\n",
        "        if not self.nonce:\n",
        # It comes late, and breaks no promise.
        test="tests/unit/flow/test_partitions.py::test_a_group_is_reminded_of_the_message_that_it_waits_for",
    ),
    Mutation(
        "what a partition has committed is told only once it is cleared",
        "flow/partition_hold.py",
        "            self._commit(window, ended, name)\n            new.tell_all_but(())\n",
        "            self._commit(window, ended, name)\n",
        test="tests/unit/flow/test_partition_events.py",
    ),
    Mutation(
        "outcomes of a partition are told before their part is committed",
        "flow/partition_hold.py",
        "            new.tell_all_but(left)\n",
        "            new.tell_all_but(())\n",
        test="tests/unit/flow/test_partition_events.py",
    ),
    Mutation(
        "a commit beside messages that run does not name them",
        "flow/partition_hold.py",
        " for info in (*self._window, *window)} | self._running\n",
        " for info in window}\n",
    ),
    Mutation(
        "what a worker may have died of is taken beside messages that run",
        "flow/partition_window.py",
        "is_suspect and (window or beside is not None):",
        "is_suspect and window:",
        more=(("flow/partition_hold.py", "known.is_suspect for path in beside)", "not path for path in beside)"),),
        test=f"{_BESIDE}test_what_its_worker_may_have_died_of_is_not_taken_beside_others",
    ),
    Mutation(
        "a name that was PUT anew is taken before the finished message is deleted",
        "flow/partition_window.py",
        "            if beside is not None and (path in beside or path in finished):\n",
        "            if beside is not None and info.etag in (beside.get(path), finished.get(path)):\n",
        test=f"{_BESIDE}test_a_name_that_was_put_anew_is_left_until_the_finished_message_is_deleted",
    ),
    Mutation(
        "a message that runs is taken once more beside itself",
        "flow/partition_window.py",
        "            if beside is not None and (path in beside or path in finished):\n",
        "            if beside is not None and path in finished:\n",
        test=f"{_BESIDE}test_what_runs_is_not_taken_once_more",
    ),
    Mutation(
        "a thread that is done with a failed message puts its next attempt back",
        "flow/partition_hold.py",
        "(claim is None or self._claims.get(path) is claim)",
        "(claim is None or path)",
        # Schedule 48954 found it.
        test=f"{_BESIDE}test_a_thread_that_is_done_with_a_failed_message_leaves_its_next_attempt_alone",
    ),
    Mutation(
        "messages are read before the lease of their partition is written",
        "flow/partition_hold.py",
        "            self._commit(window, self._uncleared, journal)\n",
        "            self._ahead.begin(((self.messages.path(one), one) for one in window), 0)\n"
        "            self._commit(window, self._uncleared, journal)\n",
        # Schedules break P4 with it, too, but only one in thousands.
        test="tests/unit/flow/test_read_ahead.py::test_no_message_is_read_before_the_lease_that_names_it_is_written",
    ),
    Mutation(
        "a message that could not be read early is taken for a deleted one",
        "flow/read_ahead.py",
        "        if early and self.queue.clock.monotonic() - early.since <= FRESH_SECONDS:\n",
        "        if under_way:\n",
        test="tests/unit/flow/test_read_ahead.py::test_an_early_read_that_fails_costs_no_attempt",
    ),
    Mutation(
        "the outcome of a message that vanished does not name its put id",
        "documents/lease.py",
        '            put_id="" if self.put_id.startswith(MOVED) else self.put_id,\n',
        "",
        # Schedule 34504 found it.
        test=f"{_BY_HAND}test_what_is_put_again_before_its_loss_is_recorded_has_that_outcome",
    ),
    Mutation(
        "what was PUT again before its journal was written is left there",
        "flow/partition_clearing.py",
        "        self._delete_repetitions(ended, deleted)\n",
        "",
        # Schedule 14578 found it.
        test=f"{_BY_HAND}test_what_is_put_again_while_the_first_one_runs_does_not_run_after_that_is_completed",
    ),
    Mutation(
        "a message whose deletion was refused counts as deleted",
        "flow/partition_clearing.py",
        "            deleted -= delete_all_seen(",
        "            _ = delete_all_seen(",
        test=f"{_BY_HAND}test_what_is_put_again_while_the_first_one_runs_does_not_run_after_that_is_completed",
    ),
    Mutation(
        "what waited and is gone is recorded by a later write than the one that forgets it",
        "flow/partition_hold.py",
        "                self._uncleared = tuple(self._begin_commit().ended.values())\n",
        "                pass\n",
    ),
    Mutation(
        "a lease that waits for more messages forgets what waited and is gone",
        "flow/held_lease.py",
        '        self._write(self._timeout + within, taken={}, ended=(), journal="")\n',
        '        self._write(self._timeout + within, taken={}, ended=(), journal="", waiting={})\n',
    ),
)
