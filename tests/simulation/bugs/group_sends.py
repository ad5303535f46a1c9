"""Bugs in what handlers send into groups, and in the flows that they start.  [P7] [P8] [P9]"""

from __future__ import annotations

from simulation.mutations import Mutation

_JOURNALS = "tests/unit/flow/test_journals.py::"
_STARTED = "tests/unit/flow/test_started_flows.py::"
_TESTS = "tests/unit/protocol/test_group_sends.py::"

BUGS = (
    Mutation(
        "what is sent to a group is named without leading zeros",
        "documents/sent_objects.py",
        "{part:04x}{index:03x}{digest[:_DIGITS]}-sent-",
        "{part:x}{index:x}{digest[:_DIGITS]}-sent-",
        test=f"{_TESTS}test_the_sends_of_one_message_to_a_group_run_in_their_order",
    ),
    Mutation(
        "what a group sends to a group is named by the time of its senders alone",
        "documents/sent_objects.py",
        "    if partition and is_ordered(partition):\n",
        "    if False:\n",
    ),
    Mutation(
        "what a sent message sends goes before what another of its sender's name sends",
        "documents/sent_objects.py",
        "min(int(sent[2], 16) + 1, _MOST_SENDERS)",
        "int(sent[2], 16)",
        # Schedule 43096 meets it.
        test=f"{_TESTS}test_two_messages_of_one_name_do_not_mix_up_what_the_next_group_gets",
    ),
    Mutation(
        "what a replay behind a sent message sends on goes before what later ones send",
        "documents/sent_objects.py",
        '_MARKS = r"(?:~[0-9a-f-]{36})*"',
        '_MARKS = r""',
        # Schedule 97736 met it.
        test=f"{_TESTS}test_the_order_of_a_group_goes_on_in_the_next_whatever_was_sent_and_replayed_in_it",
    ),
    Mutation(
        "what is sent to a group may become a batch",
        "documents/sent_objects.py",
        "        is_line = is_line and not group_of(send.place) and send.place != STARTS\n",
        "        is_line = is_line and send.place != STARTS\n",
        test=f"{_TESTS}test_the_lines_of_a_batch_send_to_groups_one_object_each",
    ),
    Mutation(
        "a send to a group that is repeated late runs again",
        "documents/sends.py",
        'SENT_ONCE = f"{ONCE}sent-"',
        'SENT_ONCE = "sent-"',
        test="tests/unit/protocol/test_group_sends.py::test_a_put_that_comes_after_its_message_was_finished_is_cleared_not_run",
    ),
    Mutation(
        "a send that is refused lets the later ones of its group go first",
        "protocol/outbox.py",
        "                if group[1]:\n                    held_up.add(group)\n",
        "",
        test=f"{_TESTS}test_a_send_that_is_refused_holds_the_later_ones_of_its_group_up_and_no_others",
    ),
    Mutation(
        "a completion that is finished again wakes a cancelled flow",
        "protocol/flow_storing.py",
        "            put_missing(queue, read_flow(queue, flow.flow_id) or flow, put)\n",
        "            put_members(queue, flow, range(len(flow.members)), put)\n",
        test=f"{_STARTED}test_a_completion_that_is_finished_again_does_not_wake_a_cancelled_flow",
    ),
    Mutation(
        "a forged record starts a flow that sends anywhere",
        "protocol/outbox.py",
        '                found |= targets(send, f"{self.queue.name}/{self.record.path}")\n',
        "                found |= targets(send, self.queue.name) - {*map(str, targets(send, self.queue.name))}\n",
        test=f"{_STARTED}test_a_forged_record_starts_no_flow_that_its_queue_may_not",
    ),
    Mutation(
        "a list of journals answers for messages that came after it",
        "flow/partition_journals.py",
        "        if until > listed.at or not",
        "        if listed.at == EARLIEST or not",
        test=f"{_JOURNALS}test_a_repetition_that_comes_within_the_same_hold_is_found_in_its_own_journal",
    ),
)
