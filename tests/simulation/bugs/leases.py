"""Bugs in claiming, leases, heartbeats, clocks and what the sweeper does with a lease that ran out."""

from __future__ import annotations

from simulation.mutations import Mutation

_LIVENESS = "tests/unit/protocol/test_liveness.py::"
BUGS = (
    Mutation(
        "a lease that is written for less time counts when its answer comes",
        "protocol/lease_writes.py",
        "        claim.leased_until = min(claim.leased_until, until)\n",
        "",
        test="tests/unit/protocol/test_outcomes.py::test_a_claim_that_is_extended_for_less_time_is_over_in_time",
    ),
    Mutation(
        "the heartbeat keeps its pace when the visibility timeout is lowered",
        "protocol/liveness.py",
        "due = min([self._beat_at + ttl.total_seconds() / BEATS, *map(self._due, leases)])",
        "due = self._beat_at + self._queue.defined.visibility_timeout.total_seconds() / BEATS",
    ),
    Mutation(
        "a heartbeat counts for as long as the settings of whoever reads it say",
        "protocol/liveness.py",
        "if not heartbeat.is_fresh(found.at - found.modified_at):",
        "if found.at - found.modified_at > self._queue.settings.visibility_timeout + GRAIN:",
        test="tests/unit/sweeper/test_expired_leases.py::"
        "test_a_heartbeat_counts_by_its_own_time_however_low_the_timeout_is_by_now",
    ),
    Mutation(
        "a heartbeat is deleted by the settings of now",
        "sweeper/cleanup.py",
        "if age > self._heartbeats[which]:",
        "if age > suspicious:",
        test="tests/unit/sweeper/test_cleanup.py::"
        "test_a_heartbeat_goes_by_its_own_time_however_low_the_timeout_is_by_now",
    ),
    Mutation(
        "the clock stands still in a freeze",
        "clock.py",
        "elif lead - self._lead > TOLERANCE_SECONDS:",
        "elif not self._wall:",
    ),
    Mutation(
        "leases carry no nonce",
        "protocol/lease_writes.py",
        "        nonce = self.queue.chance.token()\n",
        '        nonce = ""\n',
    ),
    Mutation(
        "the sweeper skips the record check",
        "protocol/expire.py",
        "    record = leases.outcomes.read(path)\n    if record and record.generation == generation:\n        # Take",
        "    record = None\n    if record and record.generation == generation:\n        # Take",
    ),
    Mutation(
        "a retry skips the record check",
        "protocol/claiming.py",
        "record = self.leases.outcomes.read(path) if must_look else None",
        "record = None",
    ),
    Mutation(
        "a release forgets the attempts before it",
        "protocol/lease_writes.py",
        'state="waiting", attempt=lease.attempt - 1, retry_at=retry_at)',
        'state="waiting", attempt=0, retry_at=retry_at)',
    ),
    Mutation(
        "a release burns an attempt",
        "protocol/lease_writes.py",
        'state="waiting", attempt=lease.attempt - 1, retry_at=retry_at)',
        'state="waiting", attempt=lease.attempt, retry_at=retry_at)',
    ),
    Mutation(
        "a zombie's failure counts",
        "protocol/lease_writes.py",
        'raise LeaseLost(f"{self.queue.name}/{claim.path}: {conflict}") from conflict',
        "return",
    ),
    Mutation(
        "a claim takes what is taken", "protocol/lease_writes.py", "if_absent=if_match is None)", "if_absent=False)"
    ),
    Mutation(
        "lease writes do not look whose lease it is",
        "protocol/lease_writes.py",
        "lease.to_bytes(), if_match=if_match, if_absent",
        "lease.to_bytes(), if_match=None, if_absent",
    ),
    Mutation(
        "the sweeper believes a heartbeat that it read too early",
        "protocol/liveness.py",
        "if owner not in self._held or (over_at and (read_at is None or read_at < over_at)):",
        "if owner not in self._held:",
    ),
    Mutation(
        "two workers that were given one id replace each other's heartbeat",
        "protocol/liveness.py",
        "        return heartbeat.is_fresh(found.at - found.modified_at) and heartbeat.nonce not in self._ours\n",
        "        return False\n",
    ),
    Mutation(
        "what a heartbeat gave counts although another worker has replaced it",
        "protocol/liveness.py",
        '                claim.named_until = float("-inf")\n',
        "                pass\n",
        test=f"{_LIVENESS}test_what_the_heartbeat_gave_is_over_when_another_worker_has_replaced_it",
    ),
    Mutation(
        "a worker that leaves deletes the heartbeat of another one with its id",
        "protocol/liveness.py",
        "if_match=None if self._run else etag)",
        "if_match=None)",
        more=(("protocol/liveness.py", "        if etag is None and not self._run:\n            return\n", ""),),
        test=f"{_LIVENESS}test_a_worker_that_leaves_does_not_take_the_heartbeat_of_another_one_along",
    ),
    Mutation(
        "two workers of one queue have one id",
        "worker/identity.py",
        "    if queue.identity.acquire(blocking=False):\n",
        "    if queue.identity:\n",
        test="tests/unit/worker/test_identity.py::test_two_workers_of_one_queue_keep_what_each_of_them_holds",
    ),
    Mutation(
        "a child process goes on with the ids of its parent",
        "protocol/access.py",
        "        queue.worker_id = queue.new_worker_id(chance)\n",
        "        pass\n",
        test="tests/unit/worker/test_identity.py::test_a_child_process_has_ids_of_its_own",
    ),
    Mutation(
        "heartbeats name nothing",
        "protocol/liveness.py",
        "holds=tuple(claim.path for claim in claims if not self._run or is_partition(claim.path))",
        "holds=()",
    ),
    Mutation(
        "a late heartbeat revives a lease",
        "protocol/liveness.py",
        "                if self._is_held(claim) and claim.is_alive():\n",
        "                if self._is_held(claim):\n",
    ),
    Mutation(
        "the deadline counts from the answer",
        "protocol/claiming.py",
        "            leased_until=before + lease.timeout.total_seconds(),\n            clock=self.queue.clock",
        "            leased_until=self.queue.clock.monotonic() + lease.timeout.total_seconds(),\n"
        "            clock=self.queue.clock",
    ),
    Mutation(
        "an extension counts from the answer",
        "protocol/lease_writes.py",
        "        claim.leased_until = until\n",
        "        claim.leased_until = self.queue.clock.monotonic() + lease.timeout.total_seconds()\n",
    ),
    Mutation(
        "handlers start on a lease that is over",
        "protocol/claim.py",
        "        if not self.is_alive():\n",
        "        if not self.message:\n",
    ),
    Mutation(
        "leases run out early", "documents/lease.py", "GRAIN = timedelta(seconds=2)", "GRAIN = timedelta(seconds=-2)"
    ),
    Mutation(
        "a burial takes no burying lease",
        "protocol/lease_protocol.py",
        '        self.write(claim, lease)\n        self.log_step("burying", claim, failure.type)\n',
        "        claim.lease = lease = replace(lease, state=claim.lease.state)\n",
    ),
    Mutation(
        "the sweeper does not redo the copy",
        "protocol/lease_protocol.py",
        "self.outcomes.move_to_dead(record, self._stored(claim), lines)",
        "_ = record",
    ),
    Mutation(
        "a zombie clears away",
        "protocol/lease_protocol.py",
        "        if claim.is_alive():\n            is_repeated",
        "        if claim:\n            is_repeated",
    ),
    Mutation(
        "a re-PUT keeps the old attempts",
        "protocol/claiming.py",
        "if expected and expected != message.generation.etag:",
        "if expected and not message:",
    ),
    Mutation(
        "the sweeper charges a re-PUT with the old attempts",
        "protocol/expire.py",
        "    if _is_another(held, generation):",
        "    if not generation:",
    ),
    Mutation(
        "a re-PUT is charged with the attempt of a worker that died at once",
        "protocol/expire.py",
        "    if lease.expected_etag:\n        return lease.expected_etag != generation.etag\n",
        "    if lease.expected_etag:\n        return False\n",
    ),
    Mutation(
        "a failure writes no waiting lease",
        "protocol/lease_protocol.py",
        "self.write(claim, replace(waiting, lines=claim.progressed()))",
        "claim.lease = waiting",
    ),
    Mutation(
        "no record is written",
        "protocol/lease_protocol.py",
        "        is_recorded = history or record.has_sends or is_once(claim.path, claim.message.metadata)\n",
        "        is_recorded = False\n",
    ),
    Mutation(
        "an expired lease waits for its backoff",
        "protocol/expire.py",
        "leases.fail(claim, failure, retry_after=-1.0)",
        "leases.fail(claim, failure, retry_after=5.0)",
    ),
    Mutation(
        "a lease that is written anew takes away what the heartbeat gave",
        "protocol/lease_writes.py",
        "        claim.leased_until = until\n",
        '        claim.leased_until = until\n        claim.named_until = float("-inf")\n',
        # The simulation finds it, too, but once in many thousand schedules.
        test="tests/unit/protocol/test_heartbeat_pace.py::"
        "test_a_short_lease_that_is_written_anew_takes_nothing_from_what_the_heartbeat_gave",
    ),
    Mutation(
        # To save a round trip, a GET beside the PUT would have to be safe when it comes first.
        "a message is read beside the PUT of its lease, not after it",
        "protocol/claiming.py",
        "        try:\n"
        "            lease, written = self.leases.put_lease(path, lease, if_match=held.etag if held else None)\n",
        "        early = None\n"
        "        with contextlib.suppress(QueueError):\n"
        "            early = self.queue.store.open(self.queue.keys.message(path)) if held is None else None\n"
        "        try:\n"
        "            lease, written = self.leases.put_lease(path, lease, if_match=held.etag if held else None)\n",
        more=(
            (
                "protocol/claiming.py",
                "self._read_message(path, taken, before, permit)",
                "self._read_message(path, taken, before, permit, early=early)",
            ),
            (
                "protocol/claiming.py",
                "before: float, permit: Permit | None) -> Claim | None:\n        try:\n            found",
                "before: float, permit: Permit | None, early=None) -> Claim | None:\n        try:\n            found",
            ),
            (
                "protocol/claiming.py",
                "            found = self.queue.store.open(self.queue.keys.message(path))\n",
                "            found = early or self.queue.store.open(self.queue.keys.message(path))\n",
            ),
        ),
    ),
    Mutation(
        "a claim that fails after its name was PUT anew gives back the lease before",
        "protocol/claiming.py",
        "self.leases.give_back(path, taken.lease, taken.written.etag, taken.written.at)",
        "self.leases.give_back(path, lease, written.etag, written.at)",
    ),
)
