"""Bugs in how Spark runs hold partitions, and in who launches runs for them."""

from __future__ import annotations

from simulation.mutations import Mutation

_RUNS = "tests/spark/test_run_partitions.py::"
_WATCH = "tests/unit/spark_runs/test_watch.py::"
_LAUNCHER = "tests/unit/spark_runs/test_launcher.py::"

BUGS = (
    Mutation(
        "the heartbeat of a Spark run does not name its partitions",
        "protocol/liveness.py",
        "if not self._run or is_partition(claim.path))",
        "if not self._run)",
    ),
    Mutation(
        "a Spark run does not look at the lease of a run that died",
        "spark_runs/partitions.py",
        "            return _Known(stored.over_at)\n",
        "            return _Known(NEVER)\n",
        test=f"{_RUNS}test_a_run_looks_at_the_lease_of_another_that_died",
    ),
    Mutation(
        "a launch that found nothing does not look at other partitions",
        "spark_runs/launcher.py",
        "                is_left = is_left or bool(found)\n",
        "",
        test=f"{_RUNS}test_a_launch_that_finds_nothing_looks_for_what_others_left_to_it",
    ),
    Mutation(
        "a Spark run is launched for a partition that is empty",
        "flow/partitions.py",
        "    return bool(window.find({})) or any(one.retry_at != NEVER for one in window.gone.values())\n",
        "    return True\n",
        test=f"{_RUNS}test_a_run_is_launched_for_a_partition_by_its_event_and_by_the_sweeper_but_only_once",
    ),
    Mutation(
        "a function runs the groups of a queue on Spark",
        "worker/invocation.py",
        ' and self._queue.settings.engine != "spark":\n                    return',
        ":\n                    return",
        test="tests/unit/worker/test_invocation.py::"
        "test_a_partition_of_a_queue_on_spark_is_handed_over_as_its_messages_are",
    ),
    Mutation(
        "run after run is started for a commit that cannot be finished",
        "spark_runs/launcher.py",
        "has_work(queue.leases, partition, finishes=True)",
        "has_work(queue.leases, partition)",
        test=f"{_RUNS}test_no_run_is_started_again_and_again_for_what_cannot_be_finished",
    ),
    Mutation(
        "a refused request for a run ends the run that its driver has begun",
        "spark_runs/watch.py",
        '        if manifest.state != "launching":\n',
        "        if not manifest:\n",
        test=f"{_WATCH}test_a_refusal_takes_nothing_from_a_run_whose_driver_is_at_work",
    ),
    Mutation(
        "a driver may take a run over while that is given up as refused",
        "spark_runs/watch.py",
        "            close_refused(run_store, manifest, etag, Failure.of(error))\n",
        "",
        test=f"{_WATCH}test_a_driver_that_starts_while_its_run_is_refused_keeps_it",
    ),
    Mutation(
        "a launcher takes a repetition that was refused for the request",
        "spark_runs/launcher.py",
        "            close_refused(run_store, manifest, etag, Failure.of(error))\n",
        "            pass\n",
        test=f"{_LAUNCHER}test_a_request_that_is_refused_when_it_is_repeated_may_have_started_the_run",
    ),
    Mutation(
        "the end of a second job of a run ends the run",
        "spark_runs/watch.py",
        "        is_known = job.id == held.slot.job and not job.succeeded\n",
        "        is_known = True\n",
        test=f"{_WATCH}test_the_end_of_a_second_job_of_a_run_does_not_end_the_run",
    ),
    Mutation(
        "the success of a second job whose id the slot has ends the run",
        "spark_runs/watch.py",
        "        is_known = job.id == held.slot.job and not job.succeeded\n",
        "        is_known = job.id == held.slot.job\n",
        test=f"{_WATCH}test_a_token_that_was_forgotten_makes_a_second_job_whose_success_ends_nothing",
    ),
    Mutation(
        "a Spark run that was silent loses what its driver has taken anew since",
        "spark_runs/watch.py",
        "if not is_dead and (not held.is_over() or self.is_fresh(mine, manifest.run)):",
        "if not is_dead and not held.is_over():",
        test=f"{_WATCH}test_a_driver_that_was_silent_and_is_at_work_again_keeps_its_messages",
    ),
    Mutation(
        "a silent driver of a Spark run loses what it asked an hour for",
        "spark_runs/watch.py",
        "if not is_dead and (not held.is_over() or self.is_fresh(mine, manifest.run)):",
        "if not is_dead and self.is_fresh(mine, manifest.run):",
        test=f"{_WATCH}test_a_silent_driver_keeps_what_it_asked_an_hour_for",
    ),
    Mutation(
        "a silent driver of partitions that is at work again loses its run",
        "spark_runs/watch.py",
        "if not is_given or (not is_dead and _is_fresh(beat)):",
        "if not is_given:",
        test=f"{_WATCH}test_a_silent_driver_of_partitions_that_is_at_work_again_keeps_its_run",
    ),
    Mutation(
        "a heartbeat that comes when its run has ended is deleted",
        "spark_runs/watch.py",
        "            delete_unique(queue.store, beat.key, if_match=beat.etag)\n",
        "            queue.store.delete(beat.key)\n",
        test=f"{_WATCH}test_a_heartbeat_that_comes_when_its_run_has_ended_is_not_deleted",
    ),
    Mutation(
        "a Spark run that changes while its end is told fails the sweeper function",
        "spark_runs/watch.py",
        "                except Conflict:\n                    continue  # its driver,",
        "                except IndexError:\n                    continue  # its driver,",
        test=f"{_WATCH}test_a_run_that_changes_while_its_end_is_told_is_left_to_the_next_sweep",
    ),
    Mutation(
        "of two watches that end a Spark run, one takes what vanished from the other",
        "protocol/expire.py",
        'leases.put_lease(path, replace(held.lease, state="burying"), if_match=etag)',
        "leases.put_lease(path, held.lease, if_match=etag)",
        test=f"{_WATCH}test_of_two_watches_one_records_what_vanished_and_the_other_waits",
    ),
    Mutation(
        "of two watches that end a Spark run, one takes the other's burial",
        "spark_runs/watch.py",
        'if held.lease.state == "burying" and not held.is_over():',
        "if not held:",
        test=f"{_WATCH}test_of_two_watches_that_end_a_run_one_buries_its_message",
    ),
    Mutation(
        "of a run with two jobs, the slot gets the id of any",
        "spark_runs/watch.py",
        '            run_store.write_slot(held, state="started")\n',
        "            known = self.jobs.find(run, since=manifest.opened_at - SKEW)\n"
        '            run_store.write_slot(held, state="started", job=known.id if known else "")\n',
        test=f"{_WATCH}test_the_end_of_a_second_job_of_a_run_does_not_end_the_run",
    ),
    Mutation(
        "a Spark job that cannot start is launched again and again",
        "spark_runs/watch.py",
        "        cools = found is not None and found[0].is_unstarted\n",
        "        cools = False\n",
        test=f"{_WATCH}test_a_job_that_cannot_start_is_launched_less_and_less_often",
    ),
    Mutation(
        "the failures of runs that could not start are forgotten by the next launch",
        "spark_runs/slots.py",
        "        failures = over.slot.failures if over else 0\n",
        "        failures = 0\n",
        test=f"{_WATCH}test_a_job_that_cannot_start_is_launched_less_and_less_often",
    ),
    Mutation(
        "one failure of a Spark run counts as often as it is told",
        "spark_runs/slots.py",
        ' and held.slot.state != "cooling":\n            failures',
        ":\n            failures",
        more=(
            (
                "spark_runs/watch.py",
                ' and held.slot.state != "cooling":\n                try:',
                ":\n                try:",
            ),
        ),
        test=f"{_WATCH}test_one_end_of_a_run_counts_once_however_often_it_is_told",
    ),
    Mutation(
        "a driver that gives up before its first message frees its slot",
        "spark/heavy/run_manifest.py",
        "        self._has_failed_early = self._known().is_unstarted\n",
        "",
        test="tests/spark/test_driver.py::test_after_a_session_that_was_dead_from_the_start_no_run_is_launched_at_once",
    ),
    Mutation(
        "a Spark run keeps what it has lost for as long as it lives",
        "spark/heavy/driver.py",
        "            self._manifest.drop_lost()\n",
        "            pass\n",
        test="tests/spark/test_driver.py::test_what_was_lost_beside_a_slow_message_is_not_kept_by_the_run",
    ),
    Mutation(
        "a Spark run keeps what it could not adopt for as long as it lives",
        "spark/heavy/run_manifest.py",
        "            self._keeps_lost = len(self._open) < len(self.paths)\n",
        "",
        test="tests/spark/test_feed.py::test_what_was_not_adopted_is_named_no_longer_after_the_next_heartbeat",
    ),
    Mutation(
        "a run of a mixed queue waits for the retries of light messages",
        "spark_runs/claims.py",
        "                    if not heavy[path]:\n                        continue\n",
        "",
        test="tests/spark/test_driver.py::test_a_run_of_a_mixed_queue_does_not_wait_for_the_retries_of_light_messages",
    ),
    Mutation(
        "a named message that is not the run's counts as a lost one",
        "spark_runs/claims.py",
        "is_hint=candidate.size is None)",
        "is_hint=candidate.is_hint)",
        test="tests/spark/test_driver.py::test_named_messages_that_are_not_the_runs_do_not_end_its_backlog",
    ),
    Mutation(
        "a query starts although the lease ran out while payloads were read",
        "spark/heavy/batches.py",
        "            left_out = {claim.path for claim in sized if not claim.is_alive()}\n",
        "            left_out = set[str]()\n",
    ),
    Mutation(
        "a batch that was deleted is taken for one without lines",
        "spark/heavy/batches.py",
        "        yield path, GONE, None, attempt, enqueued_at\n",
        "",
    ),
)
