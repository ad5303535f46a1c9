"""Bugs in flows.  [P8]"""

from __future__ import annotations

from simulation.mutations import Mutation

_UNREADABLE = "tests/unit/flow/test_unreadable_members.py::"
_EXPIRED = "tests/unit/sweeper/test_expired_leases.py::"

BUGS = (
    Mutation(
        "a start of a flow takes the document of another one for its own",
        "protocol/flow_progress.py",
        "            if queue.store.head(key):\n                return False\n",
        "            if queue.store.head(key):\n                return True\n",
        test="tests/unit/flow/test_flows.py::test_a_start_whose_document_has_no_answer_runs_nothing_twice",
    ),
    Mutation(
        "the marker of a flow that is started anew is deleted with the old one",
        "sweeper/flow_step.py",
        "            delete_unique(report.budget.store, entry.key, if_match=entry.etag)\n",
        "            report.budget.store.delete(entry.key)\n",
        test="tests/unit/flow/test_flows.py::test_a_marker_that_is_written_anew_is_not_deleted_with_the_old_one",
    ),
    Mutation(
        "a flow that is started again is left alone until its marker is as old as the former one",
        "sweeper/flow_step.py",
        "        if age < (due if written_at == entry.modified_at else first):\n",
        "        if age < due and written_at:\n",
        test="tests/unit/flow/test_flows.py::test_a_flow_that_is_started_again_is_looked_at_as_a_new_one",
    ),
    Mutation(
        "a cancelled flow whose message nobody can describe never ends",
        "flow/flow_repair.py",
        "            _finish_dead_in_place(queue, flow, _present(queue, flow, waiting))\n",
        "",
        test=f"{_UNREADABLE}test_a_cancelled_flow_within_another_ends_when_what_nobody_could_describe_is_dead",
    ),
    Mutation(
        "a forged decision for a step that the flow has not ends the sweep",
        "protocol/flow_storing.py",
        "    if found.steps > flow.last and not found.is_over:\n",
        "    if found.steps > flow.last + 1 and not found.is_over:\n",
        test="tests/unit/flow/test_flows.py"
        "::test_a_decision_for_a_step_that_the_flow_has_not_keeps_no_sweep_from_its_end",
    ),
    Mutation(
        "a member goes before its flow knows its outcome",
        "protocol/access.py",
        "        if record.is_member and self.flows is not False:\n",
        "        if record.is_member and self.flows is True:\n",
    ),
    Mutation(
        "a burial does not tell the flow",
        "protocol/lease_protocol.py",
        "        if is_ours and (recorded.has_sends or recorded.is_member):\n",
        "        if is_ours and recorded.has_sends:\n",
    ),
    Mutation(
        "a cancellation does not tell the flow",
        "flow/cancel.py",
        "        queue.perform(record)\n",
        "        pass\n",
    ),
    Mutation(
        "a dead member does not fail its flow",
        "documents/flow.py",
        '        if outcome == "completed":\n            return False\n',
        '        if outcome in ("completed", "dead"):\n            return False\n',
    ),
    Mutation(
        "a flow fails only after its last outcome is noted",
        "protocol/flow_progress.py",
        '            failed = decide(queue, flow, flow.stage_of(of.node) + 1, "failed", reason)\n',
        "            create(queue, done_key(of.flow_id, of.node, suffix), done.to_bytes())\n"
        '            failed = decide(queue, flow, flow.stage_of(of.node) + 1, "failed", reason)\n',
    ),
    Mutation(
        "whoever sees some outcomes goes on",
        "protocol/flow_progress.py",
        "    if listed is not None and len(listed) < of.beside:\n        return\n",
        "",
        more=(
            (
                "protocol/flow_progress.py",
                "        if not listed.issuperset(flow.done(node) for node in flow.nodes(stage)):\n"
                "            return\n",
                "",
            ),
            (
                "protocol/flow_progress.py",
                "    if any(look_at(queue.store, done_prefix(of.flow_id) + probe) is None for probe in of.probes):\n"
                "        return\n",
                "",
            ),
        ),
    ),
    Mutation(
        "a step is stored that nobody decided on",
        "protocol/flow_progress.py",
        '    decision = decide(queue, flow, stage + 1, wanted, "")\n',
        "    decision = Decision(decided=wanted, at=queue.clock.now())\n",
    ),
    Mutation(
        "whoever loses a decision believes in its own",
        "protocol/flow_progress.py",
        "            if found := read_decision(queue, flow.flow_id, step):\n                return found\n",
        "            return ours\n",
    ),
    Mutation(
        "a decision is written over the one before",
        "protocol/flow_progress.py",
        "            put_surely(queue.store, key, ours.to_bytes(), if_absent=True)\n            return ours\n",
        "            queue.store.put(key, ours.to_bytes())\n            return ours\n",
    ),
    Mutation(
        "a step that is PUT again after it has run runs again",
        "documents/once.py",
        "    if put_id_of(metadata).startswith((ONCE, MOVED)) or is_repeatable(path, metadata):\n",
        '    put_id = put_id_of(metadata).replace("once-flow/", "")\n'
        "    if put_id.startswith((ONCE, MOVED)) or is_repeatable(path, metadata):\n",
    ),
    Mutation(
        "the sweeper does not look for flows",
        "sweeper/flow_step.py",
        '        if "flows" not in kinds or self.queue.flows is False:\n',
        '        if "flows" in kinds:\n',
    ),
    Mutation(
        "the sweeper takes a member that was never stored for one that vanished",
        "flow/flow_repair.py",
        "    if stage == 0 and not found.is_started:\n",
        "    if stage == 0 and not waiting:\n",
    ),
    Mutation(
        "a flow is written before its marker",
        "flow/flows.py",
        "        put_marker(queue, flow)\n        if not create_flow(",
        "        if not create_flow(",
        more=(
            (
                "flow/flows.py",
                "        put_members(queue, flow, range(len(flow.members)), store_node)\n        return self.id\n",
                "        put_members(queue, flow, range(len(flow.members)), store_node)\n"
                "        put_marker(queue, flow)\n        return self.id\n",
            ),
        ),
    ),
    Mutation(
        "a flow within another does not tell it",
        "protocol/flow_progress.py",
        "        if parent is not None and parent.has(node, NESTED):\n",
        "        if parent is None and above and node < 0:\n",
    ),
    Mutation(
        "a step that nobody decided on moves the flow",
        "protocol/flow_progress.py",
        '    return not stage or (decision is not None and decision.decided == "continue")\n',
        "    return True\n",
    ),
    Mutation(
        "a flow that is cancelled while it is started runs what was not stored yet",
        "flow/flow_repair.py",
        "        may_come = found.stage > 0 or not found.is_started\n",
        "        may_come = found.stage > 0\n",
    ),
    Mutation(
        "the record of a member expires while its flow cannot be told",
        "protocol/access.py",
        "                    renew(self, record)\n                    raise\n",
        "                    raise\n",
    ),
    Mutation(
        "what was taken over to be cleared is called dead once its record is gone",
        "protocol/expire.py",
        'lease.is_cancelling or (lease.state == "burying" and lease.failure is None) or is_unstarted:',
        "lease.is_cancelling or is_unstarted:",
        test=f"{_EXPIRED}test_what_had_an_outcome_is_not_called_dead_because_its_record_is_gone",
    ),
    Mutation(
        "whoever takes a finished message over keeps the reason of an attempt before",
        "protocol/expire.py",
        'state="burying", failure=record.failure)',
        'state="burying")',
        test=f"{_EXPIRED}test_what_had_an_outcome_is_not_called_dead_because_its_record_is_gone",
    ),
    Mutation(
        "a flow is not told of a member that is dead where it lies",
        "flow/flow_repair.py",
        "    _finish_dead_in_place(queue, flow, present)\n",
        "",
    ),
    Mutation(
        "a message that was PUT over a dead one is taken for it",
        "flow/flow_repair.py",
        'record.outcome == "dead" and record.generation == generation:',
        'record.outcome == "dead":',
        test=f"{_UNREADABLE}test_what_was_put_there_since_is_not_what_died",
    ),
    Mutation(
        "a flow whose messages wait costs more with every look",
        "flow/flow_repair.py",
        "        if info.at - max(info.modified_at, due_of(path) or info.modified_at) < LIES_FOR_LONG:\n",
        "        if info.at < info.modified_at:\n",
        test=f"{_UNREADABLE}test_a_flow_whose_messages_do_not_lie_for_long_costs_nothing_more",
    ),
    Mutation(
        "a member that can be described dies without a put id",
        "protocol/claiming.py",
        "            message = replace(message, metadata=metadata)\n",
        "            pass\n",
        test=f"{_UNREADABLE}test_one_that_can_be_described_tells_its_flow_when_it_dies",
    ),
    Mutation(
        "the put id that an earlier attempt knew is forgotten",
        "protocol/lease_protocol.py",
        "            put_id=claim.message.put_id or claim.lease.put_id,\n",
        "            put_id=claim.message.put_id,\n",
        test=f"{_UNREADABLE}test_one_that_could_be_read_in_an_earlier_attempt_tells_its_flow_when_it_dies",
    ),
    Mutation(
        "what nobody may describe is neither claimed nor ended",
        "protocol/access.py",
        "        except AccessDenied:\n            return self.list_message(path), False\n",
        "        except AccessDenied:\n            raise\n",
    ),
)
