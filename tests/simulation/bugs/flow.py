"""Bugs in what the flow adds: cancelling, and ids that count for a while."""

from __future__ import annotations

from simulation.mutations import Mutation

BUGS = (
    Mutation(
        "a canceller takes a message from whoever works on it",
        "flow/cancel.py",
        'return held, held is None or held.lease.state == "waiting"',
        "return held, True",
    ),
    Mutation(
        "what is no message is cancelled",
        "flow/cancel.py",
        "    if partition_of(check_path(path)):\n",
        "    if partition_of(path):\n",
        test="tests/unit/flow/test_cancel.py::test_what_is_no_message_is_nobodys_to_take",
    ),
    Mutation(
        "what is no message is claimed",
        "protocol/claiming.py",
        "self.queue.keys.problem(check_path(path))",
        "self.queue.keys.problem(path)",
        test="tests/unit/flow/test_cancel.py::test_what_is_no_message_is_nobodys_to_take",
    ),
    Mutation(
        "a message that nobody works on is cancelled without a lease",
        "flow/cancel.py",
        'return held, held is None or held.lease.state == "waiting"',
        "return held, False",
    ),
    Mutation(
        "a cancellation takes the place of an outcome",
        "flow/cancel.py",
        "    written = leases.outcomes.write_record(record, is_alive)\n",
        "    written = replace(record, nonce=queue.chance.token())\n"
        "    queue.store.put(queue.keys.record(path), written.to_bytes())\n",
    ),
    Mutation(
        "a cancelled message is deleted before its outcome is recorded",
        "flow/cancel.py",
        "    record = _write(leases, path, present, lease, is_alive)\n",
        "    queue.store.delete(queue.keys.message(path), if_match=present.etag)\n"
        "    record = _write(leases, path, present, lease, is_alive)\n",
    ),
    Mutation(
        "the lease of a canceller stays",
        "flow/cancel.py",
        "        leases.outcomes.clear(path, record.generation, written.etag, is_alive)\n",
        "        queue.store.delete(queue.keys.message(path), if_match=present.etag)\n",
        more=(("protocol/expire.py", "    delete_unique(queue.store, held.key, if_match=etag)\n", ""),),
    ),
    Mutation(
        "a message of which there is only one is run whenever it is PUT",
        "documents/once.py",
        "    if put_id_of(metadata).startswith((ONCE, MOVED)) or is_repeatable(path, metadata):\n",
        "    if is_repeatable(path, metadata):\n",
    ),
    Mutation(
        "whoever finds a marker believes that its message is stored",
        "protocol/producer.py",
        "if not is_new and self._is_stored(path, put_id):",
        "if not is_new:",
    ),
    Mutation(
        "a marker is written whatever lies there",
        "flow/dedup.py",
        "put_surely(\n"
        "                queue.store, key, marker.to_bytes(), "
        "if_match=found.etag if found else None, if_absent=not found\n"
        "            )\n",
        "queue.store.put(key, marker.to_bytes())\n",
    ),
    Mutation(
        "whoever finds a marker stores a message of its own",
        "flow/dedup.py",
        "return Reserved(theirs.path, theirs.put_id, is_new=False)",
        "return Reserved(ours.path, ours.put_id, is_new=True)",
    ),
    Mutation(
        "a marker counts for half its time",
        "flow/dedup.py",
        "if found.at - found.modified_at > within + GRAIN:",
        "if found.at - found.modified_at > within / 2:",
    ),
    Mutation(
        "a producer's clock that is ahead hides the outcome of its message",
        "documents/once.py",
        "    return at is not None and at > reserved_at + RESERVED_WITHIN\n",
        "    return False\n",
        test="tests/unit/flow/test_journals.py::test_a_producers_clock_that_is_ahead_hides_no_outcome_of_a_dedup_id",
    ),
    Mutation(
        "a message at work that is gone when its canceller looks again is called withdrawn",
        "flow/cancel.py",
        "            return record or _finished(leases, path)\n",
        "            return replace(record, is_withdrawn=True) if record else _finished(leases, path)\n",
    ),
    Mutation(
        "a message at work is called withdrawn",
        "flow/cancel.py",
        "is_withdrawn=is_cancelling and _is_there(leases, path, generation)",
        "is_withdrawn=True",
    ),
    Mutation(
        "a message that its worker ran is called withdrawn because of another canceller's late lease",
        "flow/cancel.py",
        "is_withdrawn=is_cancelling and _is_there(leases, path, generation)",
        "is_withdrawn=is_cancelling",
    ),
    Mutation(
        "what is cancelled is charged with the attempts of equal bytes that had their outcome before",
        "flow/cancel.py",
        "    if held is None or found is None or not held.lease.is_ended_by(found):\n",
        "    if held is None or found or not found:\n",
    ),
)
