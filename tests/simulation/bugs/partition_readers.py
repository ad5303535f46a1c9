"""Bugs that hostile readers found in partitions, flows and what is sent into groups, planted again.  [P7] [P8] [P9]"""

from __future__ import annotations

from simulation.mutations import Mutation

_FLOWS = "tests/unit/flow/test_flows.py::"
_JOURNALS = "tests/unit/flow/test_journals.py::"
_RUNS = "tests/unit/worker/test_partition_runs.py::"
_SIZES = "tests/unit/flow/test_partition_sizes.py::"
_WINDOW = "tests/unit/flow/test_partition_window.py::"
_LIMITS = "tests/unit/flow/test_partition_limits.py::"

BUGS = (
    Mutation(
        "what two messages of one date sent loses its order in the next group",
        "documents/sent_objects.py",
        "_DIGITS = 8\n",
        "_DIGITS = 0\n",
        more=(("documents/sent_objects.py", "[0-9a-f]{{15}}", "[0-9a-f]{{7}}"),),
        # Schedule 1656 meets it.
        test="tests/unit/protocol/test_group_sends.py::"
        "test_what_two_senders_of_one_second_sent_keeps_its_order_in_the_next_group",
    ),
    Mutation(
        "what a longer name sends goes before what a shorter one sends",
        "documents/sent_objects.py",
        "!{senders:04x}{sends[",
        "-{senders:04x}{sends[",
        test="tests/unit/protocol/test_group_sends.py::"
        "test_the_order_of_the_senders_is_that_of_their_names_whatever_these_are",
    ),
    Mutation(
        "the flow of a completion is never stored",
        "protocol/outbox.py",
        "        return start_flow(self.queue, self.record, sent.body, self.between)\n",
        "        return bool(start_flow)\n",
    ),
    Mutation(
        "what a crash left out of a flow that a handler started is not stored",
        "protocol/flow_storing.py",
        "            put_missing(queue, read_flow(queue, flow.flow_id) or flow, put)\n",
        "            pass\n",
        more=(
            (
                "protocol/flow_storing.py",
                "        put_marker(queue, flow)\n        is_new",
                "        is_new",
            ),
        ),
        # Schedule 1022 meets it, and the crash matrix.
        test="tests/unit/flow/test_started_flows.py::test_a_crash_at_any_request_loses_and_repeats_nothing",
    ),
    Mutation(
        "a failed attempt starts its flow",
        "worker/processor.py",
        "            return partial(self.end, claim, error, is_called=is_called)\n",
        "            if any(send.place == 'flows/' for send in context.sends):\n"
        "                claim.lines.sends = list(context.sends)\n"
        "                self.queue.perform(self.queue.leases._record(claim, 'completed'))\n"
        "            return partial(self.end, claim, error, is_called=is_called)\n",
    ),
    Mutation(
        "the marker of whoever found a flow's id taken stays",
        "flow/flow_repair.py",
        "    if flow is None or flow.home != queue.name:\n",
        "    if flow is None:\n",
        test=f"{_FLOWS}test_the_marker_of_whoever_found_the_id_taken_is_removed",
    ),
    Mutation(
        "a member that has its outcome in the flow is stored anew",
        "protocol/flow_storing.py",
        "[node for node in flow.nodes(0) if flow.done(node) not in found.done]",
        "[*flow.nodes(0)]",
        test=f"{_FLOWS}test_starting_again_after_records_are_gone_runs_nothing_twice",
    ),
    Mutation(
        "a member that nobody could store has vanished",
        "protocol/flow_storing.py",
        "            is_whole &= put(queue, flow, node) is not False\n",
        "            put(queue, flow, node)\n",
        test=f"{_FLOWS}test_a_member_that_nobody_could_store_has_not_vanished",
    ),
    Mutation(
        "who cancels a flow stores what its records have sent",
        "flow/flow_repair.py",
        "        sends_to=(queue.sends_to or ()) if name == queue.name else (),\n",
        "        sends_to=queue.sends_to,\n",
        test=f"{_FLOWS}test_who_cancels_a_flow_stores_nothing_that_a_record_asks_for",
    ),
    Mutation(
        "a stranger's message is shown the results of a flow",
        "flow/flow_results.py",
        "            if not flow.has(self.number, self._queue):\n",
        "            if not flow.members:\n",
        test=f"{_FLOWS}test_a_handler_reads_no_results_for_a_message_that_its_queue_has_not_in_the_flow",
    ),
    Mutation(
        "whoever completes a batch by hand drops what its done lines sent",
        "protocol/lease_protocol.py",
        "            lines.sends = [*before, *sends]\n",
        "            lines.sends = [*sends]\n",
        test="tests/unit/protocol/test_outbox.py::"
        "test_whoever_completes_a_batch_that_others_began_sends_what_they_sent_as_well",
    ),
    Mutation(
        "messages that are parked for ever fill their partition",
        "flow/partition_window.py",
        "        waiting = sum(one.retry_at != NEVER for one in self.waiting.values())\n",
        "        waiting = len(self.waiting)\n",
        test=f"{_WINDOW}test_messages_that_nobody_can_read_do_not_stop_their_partition",
    ),
    Mutation(
        "a page of folders hides the messages of a partition",
        "flow/partition_window.py",
        "            if window or self._next_after is None or self._must_wait():\n                return window\n",
        "            return window\n",
        test=f"{_WINDOW}test_a_page_of_folders_hides_no_message",
    ),
    Mutation(
        "a name that is too long for a lease stops its partition",
        "flow/partition_window.py",
        "            if problem := keys.problem(path):\n",
        "            if problem := '':\n",
        test=f"{_WINDOW}test_a_name_that_is_too_long_for_a_lease_dies_alone",
    ),
    Mutation(
        "a message of a partition is claimed alone, and nobody is told",
        "protocol/claiming.py",
        '            raise InvalidRequest(\n                f"{name}/{path} is claimed with',
        "            if way_out:\n                return None\n"
        '            raise InvalidRequest(\n                f"{name}/{path} is claimed with',
        test="tests/unit/flow/test_partitions.py::"
        "test_a_message_of_a_partition_cannot_be_claimed_alone_and_the_error_names_the_way_out",
    ),
    Mutation(
        "the lease of a partition grows until nobody can read it",
        "documents/partition.py",
        "        if len(body) <= _LONG_BYTES:\n",
        "        if body:\n",
        test=f"{_SIZES}test_long_errors_of_many_messages_do_not_lose_their_attempts",
    ),
    Mutation(
        "large outcomes of a partition are committed together",
        "flow/partition_hold.py",
        "in_parts(all_ended) if new.size > PART_BYTES else [all_ended]",
        "[all_ended]",
        test=f"{_SIZES}test_large_results_are_committed_in_parts_that_can_be_read",
    ),
    Mutation(
        "the journals of one second have no order",
        "flow/partition_clearing.py",
        "self.queue.journaled_at.next(at or self.claim.now())",
        "at or self.claim.now()",
        test="tests/unit/flow/test_partitions.py::test_the_last_of_two_outcomes_within_a_second_is_told",
    ),
    Mutation(
        "messages are gathered before their partition is taken",
        "flow/partition_hold.py",
        "                self._lease.wait(within)\n",
        "",
        test="tests/unit/worker/test_collecting.py::"
        "test_while_one_process_gathers_the_events_of_others_find_the_partition_held",
    ),
    Mutation(
        "a heartbeat keeps a partition that no thread works on",
        "worker/partition_run.py",
        "        except (LeaseLost, Unavailable) as error:\n            # The hold is closed: what has ended",
        "        except Unavailable as error:\n            # The hold is closed: what has ended",
        more=(
            (
                "worker/partition_run.py",
                "            # Else a heartbeat would keep for ever what no thread works on.\n"
                "            self.lose()\n"
                "            raise\n"
                "        return claims\n",
                "            raise\n        return claims\n",
            ),
        ),
        test=f"{_RUNS}test_a_heartbeat_keeps_no_partition_whose_lease_ran_out_while_a_message_was_read",
    ),
    Mutation(
        "what another holder finished since the LIST has failed, if it is not answered for",
        "flow/partition_reading.py",
        "            if self._hold.waiting(path) is None:\n",
        "            if not path:\n",
        # Schedule 30896 met it.
        test="tests/unit/flow/test_partitions.py::test_what_another_holder_has_finished_since_the_list_has_one_outcome",
    ),
    Mutation(
        "a refused GET counts for what an old LIST has shown",
        "flow/partition_reading.py",
        "        found = self._hold.queue.list_message(path)\n",
        "        found: ObjectInfo | None = info\n",
        test="tests/unit/flow/test_partitions.py::"
        "test_a_refused_get_counts_for_what_lies_there_and_not_for_what_the_list_has_shown",
    ),
    Mutation(
        "the late answer to a commit lets a start be forgotten that outlasted the lease",
        "flow/held_leases.py",
        "        if not self.hold.claim.is_alive():\n            self.hold.claim.end()\n",
        "",
        # Schedule 19354 meets it.
        test="tests/unit/flow/test_partition_beside.py::"
        "test_a_late_answer_gives_no_time_to_a_hold_that_could_not_record_how_a_message_ended",
    ),
    Mutation(
        "messages whose names look like partitions hide them",
        "flow/partition_states.py",
        "        while cursor is not None and not folders:\n",
        "        if cursor is not None:\n",
        test="tests/unit/flow/test_partition_states.py::test_messages_whose_names_look_like_partitions_hide_none",
    ),
    Mutation(
        "journals from before a message are searched for it",
        "flow/partition_journals.py",
        "            if info.modified_at > until or (since is not None and info.modified_at < since):\n",
        "            if info.modified_at > until:\n",
        more=(
            (
                "flow/partition_journals.py",
                "list_journals(self.queue, self.partition, since)",
                "list_journals(self.queue, self.partition, None)",
            ),
        ),
        test=f"{_JOURNALS}test_sent_messages_of_a_hold_share_one_list_and_read_no_journals_from_before_their_sender",
    ),
    Mutation(
        "a message that a run ended without an outcome is still held by its clock",
        "spark/heavy/driver.py",
        "        claim.end()\n        self.heartbeat.drop(claim)\n",
        "        self.heartbeat.drop(claim)\n",
        test="tests/spark/test_driver.py::test_what_a_run_has_ended_is_not_held_any_more",
    ),
    Mutation(
        "what a Spark session died of is not charged with it",
        "spark/heavy/partition_rounds.py",
        "                self._fail_started(error)\n",
        "",
    ),
    Mutation(
        "a full share looks for what waits on its first pages only",
        "flow/partition_window.py",
        "                self._seek(self._next_after, beside or ())\n                break\n",
        "                pass\n",
    ),
    Mutation(
        "what is gone of a full share keeps its place",
        "flow/partition_window.py",
        "            else:\n                self.gone[one.path] = self.waiting.pop(one.path)\n",
        "",
    ),
    Mutation(
        "what is gone of a partition is noticed only once one page shows all of it",
        "flow/partition_window.py",
        "            if after < (key := keys.message(path)) <= (page.next_after or key) and key not in present:\n",
        "            if page.next_after is None and after < (key := keys.message(path)) and key not in present:\n",
        test=f"{_WINDOW}test_messages_of_a_full_share_that_are_deleted_by_hand_leave_their_places",
    ),
    Mutation(
        "a lease keeps what was never tried and is gone",
        "flow/partition_hold.py",
        "len(self._waiting) < max(1, len(last.lease.waiting)))",
        "not self._waiting or self._new.ended)",
        test=f"{_WINDOW}test_messages_of_a_full_share_that_are_deleted_by_hand_leave_their_places",
    ),
    Mutation(
        "a folder without tokens hides the other folders of its share",
        "flow/partition_window.py",
        "            self._next_after = self._behind(self._next_after)\n",
        "",
        test=f"{_LIMITS}test_a_folder_without_tokens_hides_no_other_however_many_messages_it_has",
    ),
    Mutation(
        "a folder that is named like a priority hides those that lie in it",
        "flow/partition_window.py",
        '        is_whole = path.startswith(folder) and rate_key_of(f"{folder}x") == rate_key_of(path)\n',
        "        is_whole = path.startswith(folder)\n",
        test=f"{_LIMITS}test_a_folder_that_is_named_like_a_priority_hides_none_that_lies_in_it",
    ),
)
