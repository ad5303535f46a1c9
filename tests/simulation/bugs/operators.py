"""Bugs in what operators do in the middle of it: pause, purge, delete by hand, replay some, limit a queue."""

from __future__ import annotations

from simulation.mutations import Mutation

_OVERRIDES = "tests/unit/protocol/test_overrides.py::"
BUGS = (
    Mutation(
        "a letter is replayed in the middle of its burial, and comes back",
        "protocol/dead_letters.py",
        '        self._check_buried(letter, found, "" if is_last else target)\n',
        "",
    ),
    Mutation(
        "an invocation's own retries take no notice of a pause",
        "worker/invocation.py",
        "self._retries.wait() == 0.0 and self._may_claim()",
        "self._retries.wait() == 0.0 and not self._is_over()",
    ),
    Mutation(
        "a paused queue is worked on",
        "worker/invocation.py",
        "        return not self._queue.settings.paused\n",
        "        return True\n",
    ),
    Mutation(
        "a purge takes what is at work",
        "protocol/removal.py",
        '            if held.lease.state != "waiting":\n',
        "            if not path:\n",
    ),
    Mutation(
        "a purge deletes the lease before its message",
        "protocol/removal.py",
        "            return self._purge_waiting(held, entry, before)\n",
        "            return delete_unique(self.queue.store, held.key, if_match=held.etag) and self._delete(entry)\n",
    ),
    Mutation(
        "a purge forgets the attempts of a partition's message before it is deleted",
        "protocol/removal.py",
        "            lease = replace(held.lease, waiting={**held.lease.waiting, path: marked})\n",
        "            held.lease.waiting.pop(path)  # type: ignore[attr-defined]\n            lease = held.lease\n",
    ),
    Mutation(
        "what a purge was deleting when it crashed is recorded as a death",
        "protocol/expire.py",
        " and queue.settings.history and not held.lease.is_cancelling:\n",
        " and queue.settings.history:\n",
        test="tests/unit/protocol/test_removal.py::test_a_purge_that_crashed_leaves_no_record_of_a_death",
    ),
    Mutation(
        "what is PUT after a purge that crashed has the lines of what was purged",
        "protocol/expire.py",
        '        is_at_work = lease.state != "burying" and not lease.is_cancelling\n',
        '        is_at_work = lease.state != "burying"\n',
        test="tests/unit/protocol/test_removal.py::test_what_is_put_after_a_purge_that_crashed_begins_anew",
    ),
    Mutation(
        "what is PUT where a message of a partition was being purged has its attempts",
        "documents/lease.py",
        "        if self.generation and (self.retry_at == NEVER or self.is_cancelling):\n",
        "        if self.generation and self.retry_at == NEVER:\n",
        test="tests/unit/flow/test_partition_listing.py::test_what_is_put_where_a_message_was_being_purged_begins_anew",
    ),
    Mutation(
        "of two purges in a partition the second leaves its entry behind",
        "protocol/removal.py",
        "        for _ in range(UNKNOWN_TRIES):\n            held = read_partition(",
        "        for _ in range(0):\n            held = read_partition(",
        test="tests/unit/flow/test_partition_listing.py::"
        "test_of_two_purges_at_once_in_a_partition_neither_leaves_anything_behind",
    ),
    Mutation(
        "a count that is not at its end hides what the last one found",
        "sweeper/progress.py",
        "return max(self.pending, self.last_pending), max(self.delayed, self.last_delayed)",
        "return self.pending, self.delayed",
        more=(
            (
                "sweeper/unleased_messages.py",
                "progress.pending, progress.delayed = before[0] + counter.unleased, before[1] + counter.delayed",
                "progress.pending, progress.delayed = counter.unleased, counter.delayed",
            ),
        ),
    ),
    Mutation(
        "a full queue refuses nothing",
        "protocol/producer.py",
        "if self._depth >= self.queue.settings.max_depth:",
        "if self._depth < 0:",
    ),
    Mutation(
        "an idle queue whose count was not stored stays full",
        "sweeper/publication.py",
        "if has_news or not self._is_known_idle(root, report):\n            self._idle_etag = self._put(report)\n",
        "if has_news or not self._idle_etag:\n            self._put(report)\n            self._idle_etag = 'idle'\n",
    ),
    Mutation(
        "what vanished leaves no record",
        "protocol/lease_protocol.py",
        "if record is None or not is_outcome_of(record, lease.generation):",
        "if record and not path:",
    ),
    Mutation(
        "the record of a former death stands for what vanished",
        "protocol/lease_protocol.py",
        '    return record.outcome != "dead" or record.generation.put_at >= generation.put_at\n',
        "    return True\n",
    ),
    Mutation(
        "the lease of a message that was deleted by hand stays",
        "protocol/claiming.py",
        "lambda: self.queue.clock.monotonic() < until)\n"
        "        delete_unique(self.queue.store, self.queue.keys.lease(path), if_match=written.etag)\n",
        "lambda: self.queue.clock.monotonic() < until)\n",
        more=(("protocol/expire.py", "    delete_unique(queue.store, held.key, if_match=etag)\n", ""),),
    ),
    Mutation(
        "replaying some dead lines takes the others with them",
        "protocol/dead_line_choice.py",
        "_keep(queue, found, [line for line in lines if not _is_in(selection, line)])",
        "_keep(queue, found, [])",
    ),
    Mutation(
        "lines that are replayed stay in their letter",
        "protocol/dead_line_choice.py",
        "_keep(queue, found, [line for line in lines if not _is_in(selection, line)])",
        "_keep(queue, found, lines)",
    ),
    Mutation(
        "a choice of dead lines is forgotten when its letter loses others",
        "protocol/dead_line_choice.py",
        "    if letter.generation:\n",
        "    if not letter:\n",
        # The crash matrix finds it, too: `replay some dead lines beside others`, case 8.
        test="tests/unit/protocol/test_dead_line_choice.py::"
        "test_a_choice_that_is_repeated_after_a_crash_is_known_also_without_the_other_lines",
    ),
    Mutation(
        "a choice of dead lines that are the last of their letter is replayed again",
        "protocol/dead_letters.py",
        "is_whole = not is_begun(self.queue, letter, selection)",
        "pass",
        # The same operation and case find it.
        test="tests/unit/protocol/test_dead_line_choice.py::"
        "test_a_choice_that_is_repeated_after_a_crash_is_known_also_without_the_other_lines",
    ),
    Mutation(
        "lines that are replayed stay in a letter that somebody else changes",
        "protocol/dead_line_choice.py",
        "            problem: QueueError = error\n",
        "            raise error\n",
        test="tests/unit/protocol/test_dead_line_choice.py::test_two_choices_at_once_take_each_their_own_lines",
    ),
    Mutation(
        "the lines of a later death leave its letter with those that were replayed",
        "protocol/dead_line_choice.py",
        "    return (now.generation, now.died_at) == (letter.generation, letter.died_at)\n",
        "    return True\n",
        test="tests/unit/protocol/test_dead_line_choice.py::test_the_letter_of_a_later_death_is_left_alone",
    ),
    Mutation(
        "a purge of one error takes the lines of the others",
        "protocol/dead_letters.py",
        "            return discard_lines(self.queue, letter, selection)\n",
        "            pass\n",
    ),
    Mutation(
        "a message is replayed whatever it died of",
        "protocol/dead_letters.py",
        "if not selection.has(group_key(letter.error_type, letter.error)):",
        "if selection.message is not None and not selection.has(group_key(letter.error_type, letter.error)):",
        # Schedules find it, too, the first after more than a minute (677).
        test="tests/unit/protocol/test_dead_letters.py::test_replayed_lines_that_died_as_a_whole_are_chosen_by_their_last_error",
    ),
    Mutation(
        "a letter that does not name its errors is replayed as a whole",
        "documents/dead_letter.py",
        "return self.error_types.keys() == {error_type}",
        "return not self.error_types.keys() - {error_type}",
    ),
    Mutation(
        "letters of a group are replayed side by side",
        "protocol/partition_replay.py",
        "rows.setdefault(partition_of(path) if goes_to_end(path) else path, [])",
        "rows.setdefault(path, [])",
        test="tests/unit/flow/test_partition_replay.py::test_of_many_replays_those_of_a_group_wait_for_one_another_and_others_do_not",
    ),
    Mutation(
        "claim_next takes any message of a priority",
        "protocol/claiming.py",
        "backlog = Backlog(self.queue, competes=False, overdue=True)",
        "backlog = Backlog(self.queue, overdue=True)",
    ),
    Mutation(
        "claim_next leaves expired leases to a sweeper",
        "protocol/claiming.py",
        "backlog = Backlog(self.queue, competes=False, overdue=True)",
        "backlog = Backlog(self.queue, competes=False)",
    ),
    Mutation(
        "names decide which message is the oldest",
        "protocol/backlog.py",
        "(-one.priority, False, one.since, one.path),",
        "(-one.priority, False, one.path),",
    ),
    Mutation(
        "one override that does not suit keeps all of queue.json from counting",
        "settings.py",
        "        except NONSENSE:\n            pass\n        settings = self\n",
        "        except NONSENSE as error:\n            return self, dict.fromkeys(options, str(error))\n"
        "        settings = self\n",
        test=f"{_OVERRIDES}test_one_override_that_does_not_suit_keeps_no_other_from_counting",
    ),
    Mutation(
        "a change that no deployed function can keep is taken at run time",
        "protocol/overrides.py",
        "        check(settings)\n    except InvalidRequest as error:\n",
        "        pass\n    except InvalidRequest as error:\n",
        test=f"{_OVERRIDES}test_a_change_that_a_deployed_function_cannot_keep_is_refused_as_at_its_deployment",
    ),
    Mutation(
        "a function goes by an override that leaves no time for any handler",
        "worker/invocation.py",
        "        queue.serve_function()\n",
        "",
        test="tests/unit/worker/test_invocation.py::"
        "test_an_override_that_a_function_cannot_keep_stops_no_queue_and_is_not_applied",
    ),
)
