"""Bugs in how Spark runs hold partitions, and in who launches runs for them."""

from __future__ import annotations

from simulation.mutations import Mutation

_RUNS = "tests/spark/test_run_partitions.py::"
_WATCH = "tests/unit/spark_runs/test_watch.py::"
_FEED = "tests/spark/test_feed.py::"
_DRIVER = "tests/spark/test_driver.py::"
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
        "                if not is_dead and self.is_fresh(mine, manifest.run):\n",
        "                if False:\n",
        test=f"{_WATCH}test_a_driver_that_was_silent_and_is_at_work_again_keeps_its_messages",
    ),
    Mutation(
        "a silent driver of a Spark run loses what it asked an hour for",
        "spark_runs/watch.py",
        'if not held.is_over() and (held.lease.state == "burying" or not is_dead):',
        'if not held.is_over() and held.lease.state == "burying":',
        test=f"{_WATCH}test_a_silent_driver_keeps_what_it_asked_an_hour_for",
    ),
    Mutation(
        "one message that asked for an hour keeps the slot of a Spark run that is over",
        "spark_runs/watch.py",
        "of the queue need not wait for that.  [P2]\n                    continue\n",
        "of the queue need not wait for that.  [P2]\n                    return False\n",
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
        'if not held.is_over() and (held.lease.state == "burying" or not is_dead):',
        "if not held.is_over() and not is_dead:",
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
        "            self._manifest.drop_ended()\n",
        "            pass\n",
        test="tests/spark/test_driver.py::test_what_was_lost_beside_a_slow_message_is_not_kept_by_the_run",
    ),
    Mutation(
        "a Spark run keeps what it could not adopt for as long as it lives",
        "spark/heavy/run_manifest.py",
        "if self._is_adopted and not self._open.keys() >= set(self.paths):",
        "if self._is_adopted and self.counts and not self._open.keys() >= set(self.paths):",
        test=f"{_FEED}test_what_was_not_adopted_is_named_no_longer_when_it_is_tidied",
    ),
    Mutation(
        "what a Spark run is about to adopt is named no longer",
        "spark/heavy/run_manifest.py",
        "if self._is_adopted and not self._open.keys() >= set(self.paths):",
        "if not self._open.keys() >= set(self.paths):",
    ),
    Mutation(
        "the heartbeat of a Spark run waits for its manifest",
        "spark/heavy/driver.py",
        "        # The first beat finds the launcher's, or the sweeper's, and the second replaces it.\n",
        "        self.tidy()\n",
        test=f"{_DRIVER}test_a_manifest_that_cannot_be_written_does_not_keep_the_heartbeat_from_it",
    ),
    Mutation(
        "what a Spark run had not started is charged by the sweeper",
        "protocol/expire.py",
        '    is_unstarted = because is None and lease.state == "processing" and ',
        "    is_unstarted = False and ",
        test=f"{_DRIVER}test_what_a_run_had_not_started_is_not_charged_by_the_sweeper_either",
    ),
    Mutation(
        "the lines of a batch run on a session that is gone",
        "spark/heavy/messages.py",
        "            return driver.is_over() or not self._is_alive()\n",
        "            return driver.is_over()\n",
        test=f"{_DRIVER}test_the_lines_of_a_batch_are_not_run_on_a_session_that_is_gone",
    ),
    Mutation(
        "a claim that ran out starts the next one of its message",
        "spark/heavy/run_manifest.py",
        "wanted = {claim.path for claim in claims if self._open.get(claim.path) is claim}",
        "wanted = {claim.path for claim in claims}",
        test=f"{_FEED}test_a_claim_that_ran_out_does_not_start_the_next_one_of_its_message",
    ),
    Mutation(
        "a Spark run takes its own manifest for anothers",
        "spark/heavy/run_manifest.py",
        "                    if not self._read_again():\n",
        "                    if not self.is_lost:\n",
        test=f"{_FEED}test_a_write_that_had_no_answer_is_not_taken_for_anothers",
    ),
    Mutation(
        "a Spark run takes its own manifest for anothers if it comes late",
        "spark/heavy/run_manifest.py",
        "                try:\n                    self._put(changed)\n",
        "                if len(self._ours) > 1:\n                    self._read_again()\n"
        "                try:\n                    self._put(changed)\n",
        more=(
            (
                "spark/heavy/run_manifest.py",
                "                    if not self._read_again():\n",
                "                    if not self.is_lost:\n",
            ),
        ),
        test=f"{_FEED}test_a_write_that_had_no_answer_may_come_late",
    ),
    Mutation(
        "a Spark run takes anothers manifest for its own",
        "spark/heavy/run_manifest.py",
        "        if found is None or found[0].nonce not in self._ours:\n",
        "        if found is None:\n",
        test=f"{_FEED}test_a_write_that_had_no_answer_is_not_taken_for_anothers",
    ),
    Mutation(
        "a request that fails while others are claimed stops a Spark run",
        "spark/heavy/feed.py",
        "not (error is None or isinstance(error, QueueError))",
        "error is not None",
        test=f"{_FEED}test_a_request_that_fails_while_others_are_claimed_is_made_again",
    ),
    Mutation(
        "a Spark run keeps what it does not start any more until its last message has ended",
        "spark/heavy/feed.py",
        "            if not (self._is_stopped or self._source.is_over()):\n",
        "            if not self._is_claiming:\n",
        test=f"{_FEED}test_what_nobody_takes_any_more_is_left_before_the_last_has_ended",
    ),
    Mutation(
        "the slot and the manifest of a Spark run go although it is at work",
        "sweeper/cleanup.py",
        'if kind != "runs" or not self._is_at_work(entry.key, report)',
        "if entry",
        test="tests/unit/sweeper/test_cleanup.py::test_a_run_is_kept_for_as_long_as_it_has_a_heartbeat",
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
