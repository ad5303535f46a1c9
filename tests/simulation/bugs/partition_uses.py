"""Bugs in what operators, limits and handlers of lists do in partitions.  [P9]"""

from __future__ import annotations

from simulation.mutations import Mutation

BUGS = (
    Mutation(
        "a message is cancelled although another one holds its partition",
        "flow/partition_operating.py",
        "    if held and not is_free(queue, partition_of(path), held):\n"
        '        raise _is_held(queue, path, held, "cancelled")\n',
        "",
    ),
    Mutation(
        "a message of a partition is called cancelled, and its outcome is not committed",
        "flow/partition_operating.py",
        "    hold.end(path, record)\n    return record\n",
        "    return record\n",
    ),
    Mutation(
        "a message that failed in a call for several is completed with the others",
        "worker/collecting.py",
        "        if isinstance(result, BaseException):\n",
        "        if result is NotImplemented:\n",
    ),
    Mutation(
        "a payload that is nested deeply takes its partition along",
        "worker/definition.py",
        "        except (ValueError, RecursionError) as error:\n",
        "        except ValueError as error:\n",
        more=(
            (
                "worker/collecting.py",
                "        except failures() as error:\n            endings",
                "        except (Reject, QueueError) as error:\n            endings",
            ),
        ),
        test="tests/unit/worker/test_collecting.py::"
        "test_a_payload_that_no_parser_survives_dies_alone_and_its_partition_goes_on",
    ),
    Mutation(
        "a partition is given up for a lock of its handler's own",
        "worker/collecting.py",
        "        if isinstance(error, LeaseLost) and not first.is_alive():\n",
        "        if isinstance(error, LeaseLost):\n",
        test="tests/unit/worker/test_collecting.py::test_a_lock_of_the_handlers_own_that_is_lost_is_a_failure_like_any",
    ),
    Mutation(
        "messages of a call that was given up end in two threads",
        "worker/collecting.py",
        "        if isinstance(error, LeaseLost) and not first.is_alive():\n",
        "        if not error:\n",
        test="tests/unit/worker/test_collecting.py::"
        "test_a_call_that_another_thread_has_given_up_ends_none_of_its_messages_again",
    ),
    Mutation(
        "a replay goes into its group under its old name",
        "protocol/partition_replay.py",
        '    target = f"{folder}{last}~{name}" if last else folder + name\n',
        "    target = path\n",
    ),
    Mutation(
        "a replay goes before messages of its group whose names are later than the present",
        "protocol/partition_replay.py",
        '    target = f"{folder}{last}~{name}" if last else folder + name\n',
        "    target = folder + name\n",
    ),
    Mutation(
        "a replay that lies in its group twice runs twice",
        "flow/partition_reading.py",
        "        if not was_finished(path, message.metadata, record):\n",
        "        if record is None or path:\n",
    ),
    Mutation(
        "without history, the ids of a partition's messages are forgotten",
        "flow/partition_clearing.py",
        '        return self.queue.settings.history or is_once or record.outcome != "completed"\n',
        '        return self.queue.settings.history or (is_once and False) or record.outcome != "completed"\n',
    ),
    Mutation(
        "a new process runs the first message of a partition past the rate",
        "flow/partition_hold.py",
        "        self.queue.follow_limits()\n",
        "",
        more=(("flow/partition_reading.py", "        queue.follow_limits()\n", ""),),
        test="tests/unit/worker/test_partition_limits.py::test_a_function_keeps_the_rate_from_its_first_message_on",
    ),
    Mutation(
        "reading many journals outlasts the lease of a partition",
        "flow/partition_hold.py",
        "HeldJournals(queue, partition, self.keep)",
        "HeldJournals(queue, partition, lambda: None)",
        test="tests/unit/flow/test_partition_journals.py::test_many_journals_do_not_outlast_the_lease",
    ),
    Mutation(
        "an open lease whose messages were deleted by hand stays for ever",
        "flow/partition_hold.py",
        "(last.is_over() or len(self._waiting) < max(1, len(last.lease.waiting)))",
        "last.is_over()",
        test="tests/unit/flow/test_partition_leftovers.py::test_an_open_lease_is_deleted_when_all_that_waited_was_deleted_by_hand",
    ),
    Mutation(
        "with one attempt, several messages of a partition are taken together",
        "flow/partition_window.py",
        "if settings.max_attempts > 1 else 1\n",
        "if settings.max_attempts else 1\n",
    ),
    Mutation(
        "what could not be parsed fails past its partition",
        "worker/processor.py",
        "(claim.leases or self.queue.leases).fail\n",
        "self.queue.leases.fail\n",
        test="tests/unit/worker/test_partition_runs.py::test_a_payload_that_cannot_be_parsed_dies_and_its_group_goes_on",
    ),
    Mutation(
        "the permit of a message that is gone from its partition is not given back",
        "flow/partition_reading.py",
        "                permit.cancel()\n",
        "                pass\n",
        test="tests/unit/worker/test_partition_limits.py::test_a_probe_that_finds_its_message_gone_lets_the_next_one_probe",
    ),
    Mutation(
        "a call for several that fails counts for each of them",
        "worker/collecting.py",
        "is_called=claim is first",
        "is_called=True",
        test="tests/unit/worker/test_partition_limits.py::test_a_call_that_fails_is_one_failure_however_many_messages_it_was_for",
    ),
    Mutation(
        "tokens for the next second are granted again and again",
        "flow/limiter.py",
        "            if _second(written.at) == at - 1:\n",
        "            if written is None:\n",
        test="tests/unit/flow/test_fast_clocks.py::test_tokens_that_were_granted_for_the_next_second_are_used_then",
    ),
    Mutation(
        "the last outcome of a name is told by the names of journals",
        "protocol/journal.py",
        "key=lambda info: (info.modified_at, info.key)",
        "key=lambda info: info.key",
        test="tests/unit/flow/test_partition_journals.py::test_the_last_outcome_of_a_name_is_told_whichever_process_wrote_it",
    ),
)
