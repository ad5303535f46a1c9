"""Bugs in what handlers send.  [P7]"""

from __future__ import annotations

from simulation.mutations import Mutation

BUGS = (
    Mutation(
        "a send is stored before its completion is recorded",
        "worker/processor.py",
        "        self._known(lambda: self.queue.complete(claim, result, sends=sends, clear=self.clears))\n",
        "        from dataclasses import replace\n"
        '        record = replace(self.queue.leases._record(claim, "completed"), sends=tuple(sends))\n'
        "        self.queue.perform(record)\n"
        "        self._known(lambda: self.queue.complete(claim, result, sends=sends, clear=self.clears))\n",
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
        "            record = self.outcomes.write_record(record, claim.is_alive)\n        if record.generation",
        "            own = record\n"
        "            record = self.outcomes.write_record(record, claim.is_alive)\n"
        "            record = replace(record, sends=own.sends, outbox=own.outbox)\n"
        "        if record.generation",
    ),
    Mutation(
        "a sent message whose PUT is repeated runs again",
        "protocol/claiming.py",
        "self.leases.outcomes.read(path) if is_sent or not is_first else None",
        "self.leases.outcomes.read(path) if not is_first else None",
    ),
    Mutation(
        "a repeated send with an expired lease is failed, not cleared",
        "protocol/expire.py",
        "    if record and is_repeatable(path, stored.metadata):\n",
        "    if record and False:\n",
        more=(("protocol/claiming.py", "        if record and is_sent:\n", "        if record and False:\n"),),
    ),
    Mutation(
        "the sends of a record are forgotten when its name is recorded anew",
        "protocol/outcomes.py",
        "            if stored:\n                self.perform(stored)\n",
        "",
        more=(("protocol/expire.py", "        _perform(leases, path)\n", ""),),
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
        "            parts.append((found.key, found.etag))\n            sends = read_staged(found)\n",
        "            sends = read_staged(found)\n"
        "            delete_unique(queue.store, found.key, if_match=found.etag)\n",
    ),
    Mutation(
        "a failed attempt sends, too",
        "worker/processor.py",
        "            _check_ours(claim, error)\n            return self._fail(claim, error, after=error.after",
        "            _check_ours(claim, error)\n"
        "            claim.lines.sends = list(context.sends)\n"
        "            self.queue.perform(self.queue.leases._record(claim, 'completed'))\n"
        "            return self._fail(claim, error, after=error.after",
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
    ),
    Mutation(
        "who buries a batch may clear it although its sends took longer than its lease",
        "protocol/lease_protocol.py",
        "            self._send(claim, recorded)\n            claim.check_alive()\n",
        "            self._send(claim, recorded)\n",
    ),
)
