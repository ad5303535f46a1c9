"""What is claimed for a run is not lost: an error ends the claiming, and what was claimed by then runs.  [P5]"""

from __future__ import annotations

import pytest

from s3queue.errors import Unavailable
from s3queue.spark_runs.claims import claim_heavy
from s3queue.spark_runs.slots import as_run
from support.heavy_queue import SPARK, launcher, leases, manifest


def fails_later(operation, place, *, at, error):
    """The request of this kind, after so many that succeed, gets this error."""
    seen = []

    def around(asked, key, perform):
        if asked == operation and key.startswith(place):
            seen.append(key)
            if len(seen) == at:
                raise error
        return perform()

    return around


def a_list_fails(error, *, at):
    return fails_later("list", "exports/", at=at, error=error)


@pytest.mark.parametrize("threads", [1, 4])
@pytest.mark.parametrize(
    ("operation", "place", "error"),
    [
        ("list", "exports/", Unavailable("503 SlowDown")),
        ("list", "exports/", ZeroDivisionError("a bug")),
        ("put", "exports/leases/", ZeroDivisionError("a bug")),
    ],
)
def test_what_was_claimed_before_an_error_is_kept(bench, caplog, threads, operation, place, error):
    queue = bench.queue("exports", **SPARK)
    paths = [queue.enqueue({"n": n}) for n in range(2)]
    bench.around = fails_later(operation, place, at=2, error=error)

    claims = claim_heavy(as_run(queue, "run-1"), paths[:1], 10, seconds=60, threads=threads)

    bench.around = None
    assert claims
    assert sorted(claim.path for claim in claims) == sorted(leases(bench, queue))
    assert str(error) in caplog.text


@pytest.mark.parametrize("error", [Unavailable("503 SlowDown"), ZeroDivisionError("a bug")])
def test_an_error_before_anything_was_claimed_is_told(bench, error):
    queue = bench.queue("exports", **SPARK)
    queue.enqueue({"n": 1})
    bench.around = a_list_fails(error, at=1)

    with pytest.raises(type(error)):
        claim_heavy(as_run(queue, "run-1"), [], 10, seconds=60)


def test_one_list_that_fails_does_not_cost_an_attempt(bench, jobs):
    queue = bench.queue("exports", **SPARK)
    paths = [queue.enqueue({"n": n}) for n in range(2)]
    bench.around = a_list_fails(Unavailable("503 SlowDown"), at=2)

    assert launcher(jobs).launch(queue, paths[:1]) == "started"

    (run,) = jobs.started
    assert manifest(bench, queue, run)["paths"] == list(leases(bench, queue)) == paths[:1], "the driver claims on"


@pytest.mark.parametrize("error", [Unavailable("503 SlowDown"), ZeroDivisionError("a bug")])
def test_a_launch_that_could_claim_nothing_frees_its_slot(bench, jobs, error):
    queue = bench.queue("exports", **SPARK)
    queue.enqueue({"n": 1})
    bench.around = a_list_fails(error, at=1)

    with pytest.raises(type(error)):
        launcher(jobs).launch(queue, [])

    assert bench.keys("exports/runs/") == []
    assert launcher(jobs).launch(queue, []) == "started"
