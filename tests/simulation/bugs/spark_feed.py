"""Bugs in how a Spark run claims while it works, in what its jobs leave behind, and in how streams read and write.
Their threads, and Spark's offsets, are beyond the simulation: tests catch them."""

from __future__ import annotations

from simulation.mutations import Mutation

_FEED = "tests/spark/test_feed.py::"
_OFFSETS = "tests/spark/test_stream_offsets.py::"
_SOURCE = "tests/spark/test_source.py::"
_BULK = "tests/spark/test_bulk_enqueue.py::"
_FRAMES = "tests/spark/test_frame_runs.py::"
_STREAMS = "tests/spark/test_streams.py::"
_EXPORTS = "tests/spark/test_exports.py::"

BUGS = (
    Mutation(
        "a run claims nothing while one of its messages runs",
        "spark/heavy/feed.py",
        "        if self._is_claiming or self._source.has_others_waiting()",
        "        if self._running or self._is_claiming or self._source.has_others_waiting()",
        test=f"{_FEED}test_a_slow_message_holds_up_nobody",
    ),
    Mutation(
        "a feed ends while messages are still being claimed for it",
        "spark/heavy/feed.py",
        "            self._condition.wait_for(lambda: not self._is_claiming)\n",
        "",
        test=f"{_FEED}test_what_is_being_claimed_at_the_end_is_handed_back",
    ),
    Mutation(
        "what claiming beside the messages raised is forgotten",
        "spark/heavy/feed.py",
        "        if self._error:\n            raise self._error\n",
        "",
        test=f"{_FEED}test_what_claiming_raised_beside_the_messages_is_raised_at_the_end",
    ),
    Mutation(
        "a feed is drained though a message has failed since it looked",
        "spark/heavy/feed.py",
        "        return self._found_nothing and not self._ended_since\n",
        "        return self._found_nothing\n",
        test=f"{_FEED}test_a_feed_is_not_drained_if_something_ended_since_it_looked",
    ),
    Mutation(
        "a run that is over still hands out messages",
        "spark/heavy/feed.py",
        "                if self._is_stopped or self._source.is_over():\n",
        "                if self._is_stopped:\n",
        test=f"{_FEED}test_nothing_is_claimed_or_handed_out_when_it_is_the_turn_of_others_or_the_run_is_over",
    ),
    Mutation(
        "a run looks at an empty queue without a pause",
        "spark/heavy/feed.py",
        "else self._clock.monotonic() + LOOK_SECONDS",
        'else float("-inf")',
        test=f"{_FEED}test_a_queue_that_is_empty_is_looked_at_every_few_seconds",
    ),
    Mutation(
        "a run waits for the thread that should claim and was never started",
        "spark/heavy/feed.py",
        "            return False\n        return True\n",
        "        return True\n",
        test=f"{_FEED}test_a_feed_for_which_no_thread_can_be_started_claims_in_the_one_that_asks",
    ),
    Mutation(
        "a stream whose offset went back reads twice",
        "spark/source/streaming.py",
        "        if last < first:\n",
        "        if False:\n",
        test=f"{_OFFSETS}test_a_raised_settle_time_is_refused_while_it_would_read_twice",
    ),
    Mutation(
        "a stream that starts later forgets that when it is started again",
        "spark/source/streaming.py",
        "            end = max(settled, self._starting)\n",
        "            end = settled\n",
        test=f"{_OFFSETS}test_a_stream_that_begins_later_stays_there_over_a_restart",
    ),
    Mutation(
        "a stream reads a second that is not over",
        "spark/source/streaming.py",
        "        settled = (at - self._settle, ALL)\n",
        "        settled = (at, ALL)\n",
        test=f"{_SOURCE}test_a_second_is_read_when_it_is_over_and_every_object_of_it_once",
    ),
    Mutation(
        "a repeated microbatch is no different from a new one",
        "spark/source/writing.py",
        'f"{ONCE}bulk-{hashlib',
        'f"bulk-{hashlib',
        test=f"{_SOURCE}test_a_microbatch_killed_at_any_request_and_worked_off_in_between_runs_every_line_once",
    ),
    Mutation(
        "a partition of a frame with other rows is taken for the one that is done",
        "spark/bulk/buckets.py",
        "    if digest and not is_first:\n        _check_same(store, plan, bucket, digest)\n",
        "",
        test=f"{_FRAMES}test_a_bucket_with_other_rows_than_in_the_first_try_is_refused",
    ),
    Mutation(
        "a frame is done though a former start of its run had more partitions",
        "spark/source/writing.py",
        "        if self._is_begun:\n",
        "        if False:\n",
        test=f"{_FRAMES}test_a_run_that_had_more_partitions_does_not_become_done",
    ),
    Mutation(
        "a digest of a partition's rows is taken before they are read",
        "spark/bulk/digest.py",
        "        return chain(list(islice(found, 1)), found)\n",
        "        return chain(islice(found, 1), found)\n",
        test=f"{_FRAMES}test_a_bucket_with_other_rows_than_in_the_first_try_is_refused",
    ),
    Mutation(
        "a bulk enqueue reads what its source has become since it was listed",
        "spark/datasets/reading.py",
        "if_match=etag or None",
        "if_match=None",
        test=f"{_BULK}test_what_was_listed_is_read_or_nothing",
    ),
    Mutation(
        "the parts of a large object may be of two versions of it",
        "spark/datasets/ranged.py",
        '{"IfMatch": quoted(etag)} if etag else {}',
        "{}",
        test=f"{_BULK}test_an_object_that_is_read_in_parts_is_the_one_that_was_listed",
    ),
    Mutation(
        "a bulk enqueue is done though rows are missing",
        "spark/bulk_enqueue.py",
        "    is_short = seen != plan.rows and",
        "    is_short = False and",
        test=f"{_BULK}test_a_run_that_has_not_all_rows_is_not_done",
    ),
    Mutation(
        "a bulk enqueue is done though its rows are others than those that were counted",
        "spark/bulk_enqueue.py",
        "    if is_short or is_other:\n",
        "    if is_short:\n",
        test=f"{_BULK}test_a_run_that_has_not_all_rows_is_not_done",
    ),
    Mutation(
        "a stream's result that is no JSON is a failed attempt",
        "spark/heavy/streams.py",
        "    kept, problem = storable(result)\n",
        '    kept, problem = result, ""\n',
        test=f"{_STREAMS}test_what_a_stream_returns_is_recorded_as_that_of_a_message_is",
    ),
    Mutation(
        "an export removes the files of lower attempts only, though a replay begins with 1 again",
        "spark/jobs/exports.py",
        '(found["claimed"] or "") <= claimed:',
        '(not found["claimed"] or found["tag"].split("-")[2] < tag.split("-")[2]):',
        test=f"{_EXPORTS}test_a_replay_and_a_name_that_is_put_again_leave_no_file_of_before",
    ),
    Mutation(
        "a worker that is late removes the files of the attempt after it",
        "spark/jobs/exports.py",
        'found["tag"] != tag and (found["claimed"] or "") <= claimed:',
        'found["tag"] != tag:',
        test=f"{_EXPORTS}test_a_worker_that_is_late_removes_no_file_of_the_attempt_after_it",
    ),
    Mutation(
        "the exports of a batch's lines remove each other's files",
        "spark/jobs/exports.py",
        '    named = f"{context.path}\\0{context.line}" if context.line else context.path\n',
        "    named = context.path\n",
        test=f"{_EXPORTS}test_only_what_an_export_of_the_same_message_or_line_wrote_is_removed",
    ),
)
