"""Bugs in what handlers send.  [P7]"""

from __future__ import annotations

from simulation.mutations import Mutation

BUGS = (
    Mutation(
        "a send is stored before its completion is recorded",
        "worker/processor.py",
        '            self.queue.leases.log_step("handler returned", claim)\n            step = partial(',
        "            from dataclasses import replace\n"
        '            record = replace(self.queue.leases._record(claim, "completed"), sends=tuple(sends))\n'
        "            self.queue.perform(record)\n"
        "            step = partial(",
    ),
    Mutation(
        "the sweeper clears a completed message without storing its sends",
        "protocol/lease_protocol.py",
        "        claim.check_alive()\n        self._send(claim, record)\n",
        "        claim.check_alive()\n",
    ),
    Mutation(
        "a completion that lost stores its own sends, not the recorded ones",
        "protocol/lease_protocol.py",
        "            record = self.outcomes.write_record(record, claim.is_alive, partial(self._check_held, claim))\n"
        "            self.log_step",
        "            own = record\n"
        "            record = self.outcomes.write_record(record, claim.is_alive, partial(self._check_held, claim))\n"
        "            record = replace(record, sends=own.sends, outbox=own.outbox)\n"
        "            self.log_step",
    ),
    Mutation(
        "a sent message whose PUT is repeated runs again",
        "documents/once.py",
        "    if put_id_of(metadata).startswith((ONCE, MOVED)) or is_repeatable(path, metadata):\n",
        "    if put_id_of(metadata).startswith((ONCE, MOVED)):\n",
    ),
    Mutation(
        "a repeated send with an expired lease is failed, not cleared",
        "protocol/expire.py",
        "    if record and metadata is not None and was_finished(path, metadata, record):\n",
        "    if not path:\n",
        more=(
            (
                "protocol/claiming.py",
                "        if record and was_finished(path, message.metadata, record):\n",
                "        if not path:\n",
            ),
        ),
    ),
    Mutation(
        "the sends of a record are forgotten when its name is recorded anew",
        "protocol/outcomes.py",
        "            if stored:\n                self.perform(stored)\n",
        "",
        more=(("protocol/expire.py", "        _perform(leases, path)\n        _restart", "        _restart"),),
    ),
    Mutation(
        "sends are staged after the record that names them",
        "protocol/outbox.py",
        "    put_surely(queue.store, queue.keys.outbox(name), staged(sends, queue.chance.token()), if_absent=True)\n",
        "",
    ),
    Mutation(
        "a staged part is deleted before its sends are stored",
        "protocol/outbox.py",
        "                self._store(read_staged(found))\n"
        "                delete_unique(self.queue.store, found.key, if_match=found.etag)\n",
        "                sends = read_staged(found)\n"
        "                delete_unique(self.queue.store, found.key, if_match=found.etag)\n"
        "                self._store(sends)\n",
    ),
    Mutation(
        "a failed attempt sends, too",
        "worker/processor.py",
        "            return partial(self.end, claim, error, is_called=is_called)\n",
        "            claim.lines.sends = list(context.sends)\n"
        "            self.queue.perform(self.queue.leases._record(claim, 'completed'))\n"
        "            return partial(self.end, claim, error, is_called=is_called)\n",
    ),
    Mutation(
        "the sends of a batch are forgotten between its attempts",
        "documents/batch.py",
        '            sends=[Send.from_json(send) for send in as_list(found.get("sends", []))],\n',
        "",
    ),
    Mutation(
        "equal bytes that were PUT anew send what the former ones have sent",
        "documents/lease.py",
        "        if lines and lines.has_sends and self.generation not in (None, present):\n            lines = None\n",
        "",
        # Schedule 271 met it while what was PUT after an outcome had the lines of what was PUT before it.
        test="tests/unit/protocol/test_put_anew.py::"
        "test_lines_that_have_sent_something_begin_again_for_equal_bytes_that_are_put_while_they_are_at_work",
    ),
    Mutation(
        "who buries a batch may clear it although its sends took longer than its lease",
        "protocol/lease_protocol.py",
        "            self._send(claim, recorded)\n            claim.check_alive()\n",
        "            self._send(claim, recorded)\n",
    ),
    Mutation(
        "a repetition that is half cleared is recorded as vanished",
        "protocol/lease_protocol.py",
        'replace(claim.lease, state="burying", generation=record.generation))\n        self.clear(claim)\n',
        'replace(claim.lease, state="burying"))\n        self.clear(claim)\n',
        # The simulation met it once in 20,000 schedules (20618).
        test="tests/unit/protocol/test_outbox.py::test_a_repeated_send_that_is_half_cleared_is_not_called_vanished",
    ),
)
