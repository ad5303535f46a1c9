"""Bugs in how Spark runs are launched and ended. Slow functions, and settings that change, are beyond the simulation:
tests catch them."""

from __future__ import annotations

from simulation.mutations import Mutation

_CLAIMS = "tests/unit/spark_runs/test_claims.py::"
_LAUNCHER = "tests/unit/spark_runs/test_launcher.py::"
_SETTINGS = "tests/unit/spark_runs/test_run_settings.py::"
_SLOW = "tests/unit/spark_runs/test_slow_launches.py::"

BUGS = (
    Mutation(
        "a LIST that fails loses what was claimed before it",
        "spark_runs/claims.py",
        "    if errors and not claims:\n",
        "    if errors:\n",
        test=f"{_CLAIMS}test_one_list_that_fails_does_not_cost_an_attempt",
    ),
    Mutation(
        "a launch keeps every payload in the memory of its function",
        "spark_runs/launcher.py",
        "            mine.keeps_body = lambda path: False\n",
        "",
        test=f"{_LAUNCHER}test_a_launch_keeps_no_payload_in_its_memory",
    ),
    Mutation(
        "a launch whose slot was given away starts its run",
        "spark_runs/launcher.py",
        "            held = run_store.write_slot(held)\n",
        "",
        test=f"{_SLOW}test_a_launch_whose_slot_was_given_away_gives_its_messages_back_and_starts_nothing",
    ),
    Mutation(
        "a sweeper frees a slot that its slow launcher has written since",
        "spark_runs/watch.py",
        "            delete_unique(queue.store, queue.keys.slot(held.number), if_match=held.etag)\n",
        "            run_store.free_slot(held.number, run)\n",
        test=f"{_SLOW}test_a_sweeper_frees_only_the_slot_that_it_has_read",
    ),
    Mutation(
        "a launch claims until its function is killed",
        "spark_runs/launcher.py",
        "            seconds = min(limits) / CLAIMING_PART\n",
        "            seconds = limits[0] / CLAIMING_PART\n",
        test=f"{_SLOW}test_claiming_leaves_time_to_start_the_run",
    ),
    Mutation(
        "a run is launched only after the queue was drained",
        "worker/invocation.py",
        "        # Before the queue is drained: that may take all of the time.\n        self._launch()\n",
        "",
        test="tests/unit/worker/test_invocation.py::"
        "test_a_run_is_launched_before_the_queue_is_drained_which_may_take_all_of_the_time",
    ),
    Mutation(
        "the end of a run does not heed what an operator has changed",
        "spark_runs/watch.py",
        "            queue.refresh()\n            mine = as_run(queue, run)\n",
        "            mine = as_run(queue, run)\n",
        test=f"{_SETTINGS}test_the_end_of_a_run_heeds_what_an_operator_has_changed",
    ),
    Mutation(
        "a request that is repeated has the settings of now",
        "spark_runs/watch.py",
        "queue.settings, manifest.asked)",
        "queue.settings)",
        test=f"{_SETTINGS}test_a_request_that_is_repeated_is_the_same_whatever_has_changed_since",
    ),
    Mutation(
        "a question that was throttled means that nothing was started",
        "spark_runs/emr_serverless.py",
        "refused: type[QueueError] = Unavailable",
        "refused: type[QueueError] = NotStarted",
        test="tests/unit/spark_runs/test_emr_serverless.py::test_a_question_that_was_refused_says_nothing_about_a_job",
    ),
)
