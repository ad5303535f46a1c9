"""Bugs in kept payloads, and in replays of completed messages."""

from __future__ import annotations

from simulation.mutations import Mutation

BUGS = (
    Mutation(
        "a completion is replayed while its partition's holder is about to delete equal bytes",
        "flow/replay_completed.py",
        "or target in {one.path for one in held.lease.ended})",
        "and not held)",
        # Schedule 131704 met it.
        test="tests/unit/protocol/test_kept_payloads.py::"
        "test_a_replay_in_a_partition_waits_until_its_completion_is_cleared_away",
    ),
    Mutation(
        "a worker deletes a message without keeping its payload",
        "protocol/lease_protocol.py",
        "        if claim.record and claim.is_alive():\n",
        "        if claim.record and not claim.is_alive():\n",
    ),
    Mutation(
        "the sweeper clears a completed message away without keeping its payload",
        "protocol/lease_protocol.py",
        "        self._keep(claim, record)\n",
        "        pass\n",
    ),
    Mutation(
        "a batch with dead lines is deleted without being kept",
        "protocol/lease_protocol.py",
        "            self._keep(claim, recorded)\n",
        "",
    ),
    Mutation(
        "whoever clears decides by its own settings whether a payload is kept",
        "protocol/lease_protocol.py",
        "if record.keeps_payload and record.outcome",
        "if self.queue.settings.keep_payload and record.outcome",
    ),
    Mutation(
        "the copy that keeps a payload is not conditional",
        "protocol/keeping.py",
        "store.copy(message.key, target, if_match=etag, metadata=metadata, content_type=message.content_type)",
        "store.copy(message.key, target, metadata=metadata, content_type=message.content_type)",
    ),
    Mutation(
        "a completed message that was replayed, and has run, is replayed again",
        "flow/replay_completed.py",
        "    if _is_there(queue, target, mark) or _has_run(queue, target, mark):\n        return target\n"
        "    _check_latest(queue, record)\n",
        "",
    ),
    Mutation(
        "a completed message is replayed while its worker's lease is still there",
        "flow/replay_completed.py",
        "    _check_cleared(queue, target)\n    kept",
        "    kept",
        # If that worker died, the replay begins anew; if it is only slow, its DELETE would take the replay.
        test="tests/unit/protocol/test_kept_payloads.py::test_a_replay_waits_until_its_former_life_is_cleared_away",
    ),
)
