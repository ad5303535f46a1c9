"""Bugs in what an operator does to a message whose worker is taken for dead."""

from __future__ import annotations

from simulation.mutations import Mutation

UNIT = "tests/unit/flow/test_releasing.py"

BUGS = (
    Mutation(
        "a release uses an attempt",
        "flow/releasing.py",
        "attempt=max(0, held.lease.attempt - 1)",
        "attempt=held.lease.attempt",
        test=f"{UNIT}::test_a_released_message_runs_again_and_has_used_no_attempt",
    ),
    Mutation(
        "a release is not conditional",
        "flow/releasing.py",
        "leases.put_lease(path, waiting, if_match=held.etag)",
        "queue.store.put(queue.keys.lease(path), replace(waiting, nonce=queue.chance.token()).to_bytes())",
        test=f"{UNIT}::test_a_holder_that_writes_its_lease_meanwhile_keeps_the_message",
    ),
    Mutation(
        "a release deletes the lease",
        "flow/releasing.py",
        "leases.put_lease(path, waiting, if_match=held.etag)",
        "queue.store.delete(queue.keys.lease(path), if_match=held.etag)",
        test=f"{UNIT}::test_what_a_released_holder_records_is_not_run_again",
    ),
    Mutation(
        "a released holder believes that it still holds the message",
        "protocol/lease_protocol.py",
        "            if held is None or held.etag != claim.lease_etag:\n                claim.end()\n",
        "            pass\n",
        test=f"{UNIT}::test_a_released_holder_does_not_delete_equal_bytes_that_came_since",
    ),
)
