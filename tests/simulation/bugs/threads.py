"""Bugs of real threads, of pull workers and producers, which no scheduler here can hold: tests with threads do."""

from __future__ import annotations

from simulation.mutations import Mutation

_SETTINGS = "tests/unit/worker/test_worker_settings.py::"
_INBOX = "tests/unit/worker/test_inbox.py::"
_PACE = "tests/unit/protocol/test_heartbeat_pace.py::"
_HOOKS = "tests/unit/worker/test_hooks.py::"
_BACKGROUND = "tests/unit/worker/test_background.py::"
_PROCESSOR = "tests/unit/worker/test_processor.py::"
_JOURNALS = "tests/unit/flow/test_partition_journals.py::"
_BUFFER = "tests/unit/flow/test_buffer.py::"
_INTERRUPTED = "tests/unit/flow/test_buffer_interrupted.py::"
_BATCHES = "tests/unit/protocol/test_producer_batches.py::"
BUGS = (
    Mutation(
        "a thread of a worker dies alone of what nobody foresaw",
        "worker/crew.py",
        "                if should_stop():\n                    return\n                pause()\n",
        "                return\n",
        test="tests/unit/worker/test_worker_settings.py::test_no_thread_of_a_worker_dies_alone",
    ),
    Mutation(
        "a GET that fails after a heartbeat was lost ends the thread that beats",
        "protocol/liveness.py",
        "        except QueueError:\n            return\n        _log.error(",
        "        except ZeroDivisionError:\n            return\n        _log.error(",
        test=f"{_PACE}test_a_get_that_fails_after_a_conflict_is_a_heartbeat_that_was_not_written",
    ),
    Mutation(
        "the thread that beats ends by an error that nobody foresaw",
        "protocol/liveness.py",
        '            _log.exception("unexpected error in the heartbeat thread, continuing")\n',
        "            raise\n",
        test=f"{_PACE}test_the_thread_that_beats_survives_an_error_that_nobody_foresaw",
    ),
    Mutation(
        "nobody is told where a handler hangs",
        "worker/supervisor.py",
        '            "".join(stack.format()),\n',
        '            "",\n',
        test="tests/unit/worker/test_hung_handlers.py::test_a_message_whose_handler_hangs_is_retried_and_its_thread_replaced",
    ),
    Mutation(
        "a handler that hangs is kept alive for ever",
        "worker/supervisor.py",
        "            self._watchdog.check(self._queue.clock.monotonic(), self._give_up)\n",
        "",
        test="tests/unit/worker/test_hung_handlers.py::test_a_message_whose_handler_hangs_is_retried_and_its_thread_replaced",
    ),
    Mutation(
        "what a hung handler returns at last still counts",
        "worker/watchdog.py",
        "                call.is_given_up = True\n",
        "",
        test="tests/unit/worker/test_hung_handlers.py::test_the_watchdog_gives_a_handler_up_once_and_tells_it",
    ),
    Mutation(
        "a partition whose hung handler cannot be recorded never runs again",
        "worker/pull_worker.py",
        "        if claim.within:\n            self._partitions.lose(claim)\n",
        "",
        test="tests/unit/worker/test_partition_runs.py::"
        "test_a_partition_whose_hung_handler_cannot_be_recorded_runs_again",
    ),
    Mutation(
        "a thread that hung and was replaced takes a partition once more",
        "worker/partition_runs.py",
        "is_ours = self._is_wanted() and run.is_over and self._end(run)",
        "is_ours = run.is_over and self._end(run)",
        test="tests/unit/worker/test_partition_runs.py::test_a_thread_that_was_replaced_takes_no_partition_again",
    ),
    Mutation(
        "a running worker takes no notice of a new concurrency",
        "worker/pull_worker.py",
        "    def _follow_settings(self) -> None:\n        self._crew.resize(self._concurrency)\n",
        "    def _follow_settings(self) -> None:\n",
        test="tests/unit/worker/test_worker_settings.py::test_running_workers_follow_the_concurrency_within_ten_seconds",
    ),
    Mutation(
        "a worker starts as if there were no queue.json",
        "worker/pull_worker.py",
        "        self._stopping.clear()\n        self._supervisor.refresh()\n",
        "        self._stopping.clear()\n",
        test=f"{_SETTINGS}test_a_worker_starts_with_what_queue_json_says",
    ),
    Mutation(
        "a worker does not heed the settings of its definition",
        "worker/definition.py",
        "    queue.define(handler.settings)\n",
        "",
        test=f"{_SETTINGS}test_a_definition_brings_its_settings_along",
    ),
    Mutation(
        "a worker runs the definition of another queue",
        "worker/definition.py",
        "    if handler.name != queue.name:\n",
        "    if not handler.name:\n",
        test=f"{_SETTINGS}test_another_queues_definition_is_refused",
    ),
    Mutation(
        "a worker with one thread takes any message of a priority",
        "worker/pull_worker.py",
        "Backlog(self.queue, competes=self._concurrency > 1, partitions=True)",
        "Backlog(self.queue, competes=True, partitions=True)",
        test=f"{_INBOX}test_a_worker_with_one_thread_takes_the_oldest_first",
    ),
    Mutation(
        "the inbox of a worker has room for whatever the sweep finds",
        "worker/inbox.py",
        "accepted = paths[: max(0, self._room - len(self._heap))]",
        "accepted = paths",
        test=f"{_INBOX}test_what_does_not_fit_is_not_taken",
    ),
    Mutation(
        "what the sweep found goes before more urgent messages",
        "worker/pull_worker.py",
        "self._inbox.take(above=self._backlog.next_priority())",
        "self._inbox.take()",
        test=f"{_INBOX}test_what_the_sweep_found_waits_for_more_urgent_messages",
    ),
    Mutation(
        "two threads of a producer are given one instant",
        "clock.py",
        "        with self._mutex:\n            self._last = max(",
        "        if True:\n            self._last = max(",
        test="tests/unit/protocol/test_producer.py::test_threads_that_share_a_queue_never_share_an_instant_in_a_group",
    ),
    Mutation(
        "a lease is not kept while its outcome is written",
        "worker/background.py",
        "        try:\n            if step:\n",
        "        self._heartbeat.drop(claim)\n        try:\n            if step:\n",
        test=f"{_BACKGROUND}test_a_lease_is_kept_while_its_outcome_is_written",
    ),
    Mutation(
        "what a handler returns is kept by reference until it is written",
        "encoding.py",
        "is_copied = isinstance(result, (dict, list, tuple)) and",
        "is_copied = isinstance(result, ()) and",
        test="tests/unit/worker/test_partition_runs.py::"
        "test_each_message_has_its_own_result_although_the_handler_uses_one_object_for_all",
    ),
    Mutation(
        "what a handler returns is made JSON when it is written",
        "worker/processor.py",
        "result=returned(result), sends=sends)",
        "result=result, sends=sends)",
        test=f"{_BACKGROUND}test_a_result_that_is_written_late_is_the_one_that_was_returned",
    ),
    Mutation(
        "what a handler reports as its progress may be no number that can be written",
        "worker/context.py",
        "        fraction = float(fraction)\n",
        "",
        test=f"{_PROCESSOR}test_progress_in_any_kind_of_number_can_be_written",
    ),
    Mutation(
        "what a handler reports as its progress may be no text",
        "worker/context.py",
        "        if not isinstance(text, str):\n",
        "        if text is None:\n",
        test=f"{_PROCESSOR}test_progress_that_cannot_be_written_is_a_failure_of_its_own_attempt_alone",
    ),
    Mutation(
        "what a handler says about when to run its message again is taken for a time unread",
        "errors.py",
        '    raise TypeError(f"{asked}(after=…)',
        '    return after\n    raise TypeError(f"{asked}(after=…)',
        test=f"{_PROCESSOR}test_a_delay_that_is_none_is_a_failed_attempt_of_its_own_message_alone",
    ),
    Mutation(
        "any number of outcomes waits to be written",
        "worker/background.py",
        "            is_free = self._under_way < self._most\n",
        "            is_free = True\n",
        test=f"{_BACKGROUND}test_no_more_outcomes_wait_than_there_are_threads_for_them",
    ),
    Mutation(
        "what a pool has queued although it could start no thread is done twice",
        "pools.py",
        "        if taken.acquire(blocking=False):\n            work()\n",
        "        work()\n",
        test=f"{_BACKGROUND}test_what_waits_for_a_thread_that_cannot_be_started_is_written_once",
    ),
    Mutation(
        "a buffer whose thread could not be started once lingers for ever",
        "flow/buffer.py",
        "if self._lingering is None or not self._lingering.is_alive():",
        "if self._lingering is None:",
        test=f"{_BUFFER}test_a_buffer_that_could_not_start_its_thread_does_so_with_the_next_body",
    ),
    Mutation(
        "a flush in the callback of a future waits for that callback",
        "flow/buffer.py",
        "return self._under_way if self._is_telling else self._untold",
        "return self._untold",
        test=f"{_BUFFER}test_the_callback_of_a_future_may_flush_and_close",
    ),
    Mutation(
        "a batch whose call was interrupted is stored by nobody",
        "flow/buffer.py",
        "                # Also what a call that was interrupted left to nobody.\n                self._store(batch)\n",
        "                batch.is_begun = True\n",
        test=f"{_BUFFER}test_a_batch_whose_call_was_interrupted_is_stored_by_the_next_flush",
    ),
    Mutation(
        "an exit while a batch is PUT is taken for its error",
        "flow/buffer.py",
        "        except Exception as error:\n            batch.problem = error\n",
        "        except BaseException as error:\n            batch.problem = error\n",
        test=f"{_INTERRUPTED}test_a_batch_whose_put_is_interrupted_is_stored_once_by_the_next_close",
    ),
    Mutation(
        "a batch whose PUT was interrupted gets another name",
        "flow/buffer.py",
        "batch.path = batch.path or self._producer",
        "batch.path = self._producer",
        test=f"{_INTERRUPTED}test_a_batch_whose_put_is_interrupted_is_stored_once_by_the_next_close",
    ),
    Mutation(
        "a batch whose PUT was interrupted is PUT anew, although it has run",
        "flow/buffer.py",
        "again=was_named",
        "again=False",
        test=f"{_INTERRUPTED}test_an_interrupted_batch_that_has_run_meanwhile_is_not_put_anew",
    ),
    Mutation(
        "a close that was interrupted cannot be repeated, also at exit",
        "flow/buffer.py",
        "            self._is_closed = False\n            raise\n",
        "            raise\n",
        test=f"{_INTERRUPTED}test_a_batch_whose_put_is_interrupted_is_stored_once_by_the_next_close",
    ),
    Mutation(
        "a flush waits for a thread that has left its batch",
        "flow/buffer.py",
        "                    batch.is_begun = False\n                    self._changed.notify_all()\n",
        "                    batch.is_begun = False\n",
        test=f"{_INTERRUPTED}test_a_flush_goes_on_with_a_batch_whose_thread_was_interrupted",
    ),
    Mutation(
        "a callback that exits leaves the other futures of its batch untold",
        "flow/buffered_batch.py",
        "            except BaseException as error:\n",
        "            except Exception as error:\n",
        test=f"{_INTERRUPTED}test_a_callback_that_exits_ends_the_flush_after_all_futures_are_told",
    ),
    Mutation(
        "a future that was told when Ctrl-C came never hears of it again",
        "flow/buffered_batch.py",
        "        while not self.is_told:\n            try:\n"
        "                for number, future in enumerate(self.futures, 1):\n"
        "                    if future.done():\n                        continue\n",
        "        for number, future in enumerate(self.futures, 1):\n            try:\n                if True:\n",
        test=f"{_INTERRUPTED}test_a_future_that_is_told_when_ctrl_c_comes_is_told_again",
    ),
    Mutation(
        "a thread whose telling was interrupted is taken for a callback from then on",
        "flow/buffer.py",
        "            batch.tell()\n        finally:\n            self._thread.is_telling = was_telling\n",
        "            batch.tell()\n            self._thread.is_telling = was_telling\n        finally:\n",
        test=f"{_INTERRUPTED}test_a_callback_that_exits_ends_the_flush_after_all_futures_are_told",
    ),
    Mutation(
        "a child process stores what its parent has buffered, without its threads",
        "flow/buffer.py",
        "        _buffers.add(self)\n",
        "",
        test=f"{_INTERRUPTED}test_in_a_child_process_a_buffer_begins_empty_and_with_threads_of_its_own",
    ),
    Mutation(
        "every buffer that ever was is kept for a fork",
        "flow/buffer.py",
        "_buffers: weakref.WeakSet[Buffer] = weakref.WeakSet()",
        "_buffers: set[Buffer] = set()",
        test=f"{_INTERRUPTED}test_a_buffer_that_is_closed_is_not_kept_for_a_fork",
    ),
    Mutation(
        "a callback waits for room that only its own thread can make",
        "flow/buffer.py",
        "            if not self._makes_room():\n                self._queue.clock.sleep(_LOOK_SECONDS)\n",
        "            self._queue.clock.sleep(_LOOK_SECONDS)\n",
        test=f"{_BUFFER}test_a_callback_that_waits_for_room_makes_it",
    ),
    Mutation(
        "a callback that waits for room runs others, which wait for room within it",
        "flow/buffer.py",
        "self._store(batch, tells=False)",
        "self._store(batch)",
        test=f"{_BUFFER}test_a_callback_that_waits_for_room_runs_no_other_callbacks_meanwhile",
    ),
    Mutation(
        "a batch is lost if Ctrl-C comes while it is taken",
        "flow/buffer.py",
        "            self._untold.add(batch)\n            self._batch = None\n            self._under_way.add(batch)\n",
        "            self._batch = None\n            self._under_way.add(batch)\n            self._untold.add(batch)\n",
        test=f"{_INTERRUPTED}test_ctrl_c_while_a_batch_is_taken_loses_nothing",
    ),
    Mutation(
        "a batch that is full waits for the next body, and is lost if that is refused",
        "protocol/batch_lines.py",
        "        if count == most:\n            yield lines.getvalue(), count\n"
        "            lines, count = io.BytesIO(), 0\n",
        "",
        more=(
            (
                "protocol/batch_lines.py",
                "if count and lines.tell() + len(line) > room:",
                "if count and (count == most or lines.tell() + len(line) > room):",
            ),
        ),
        test=f"{_BATCHES}test_a_batch_that_is_full_is_enqueued_whatever_body_comes_after_it",
    ),
    Mutation(
        "a refused body hides that a batch before it was not stored",
        "protocol/producer.py",
        "                for earlier in under_way:\n                    earlier.result()\n",
        "",
        test=f"{_BATCHES}test_a_refused_body_does_not_hide_that_a_batch_before_it_was_not_stored",
    ),
    Mutation(
        "a thread takes a message of a partition that another one is about to give up",
        "flow/partition_hold.py",
        "            if is_done := self.is_done:\n                self.messages.put_back(self._window)\n"
        "            return is_done\n",
        "            return self.is_done\n",
        test="tests/unit/worker/test_partition_runs.py::"
        "test_no_thread_takes_a_message_of_a_partition_that_is_about_to_be_given_up",
    ),
    Mutation(
        "a partition whose retry hung is taken for one that is worked on for ever",
        "worker/pull_worker.py",
        "    return partition_path(partition) if partition else path\n",
        "    return path\n",
        test="tests/unit/worker/test_partition_runs.py::test_a_partition_whose_retry_hung_is_found_again_as_any_other",
    ),
    Mutation(
        "a thread searches the journals that another one has listed",
        "flow/partition_journals.py",
        "        for info in reversed(listed.journals):\n",
        "        for info in reversed(self._listed.journals):\n",
        test=f"{_JOURNALS}test_a_thread_searches_the_journals_that_it_knows_of_whatever_another_one_lists_meanwhile",
    ),
    Mutation(
        "what a thread has read of a journal is forgotten by another one",
        "flow/partition_journals.py",
        "            self._kept[key] = names\n        return names\n",
        "            self._kept[key] = names\n        return self._kept[key]\n",
        test=f"{_JOURNALS}test_what_a_thread_has_read_of_a_journal_is_its_own",
    ),
    Mutation(
        "what another thread has committed is not told if its partition was given up since",
        "flow/partition_hold.py",
        "            with self._mutex:\n                self._is_told = True\n",
        "",
        test="tests/unit/flow/test_partition_events.py::"
        "test_what_another_thread_commits_before_it_is_told_is_told_all_the_same",
    ),
    Mutation(
        "payloads are kept in memory for as long as their partition is held",
        "flow/partition_hold.py",
        "        self._claims.pop(path, None)  # it has the payload, and the partition may be held for long\n",
        "",
        test="tests/unit/flow/test_partition_beside.py::"
        "test_what_has_ended_is_not_kept_in_memory_for_as_long_as_its_partition_is_held",
    ),
    Mutation(
        "a candidate is lost with the refill beside it",
        "worker/pull_worker.py",
        "            except Exception:\n                # The candidate is in hand, and must not be lost with it.\n",
        "            except ZeroDivisionError:\n",
        test="tests/unit/worker/test_pull_worker.py::"
        "test_a_candidate_is_not_lost_if_the_refill_beside_it_fails_as_nobody_foresaw",
    ),
    Mutation(
        "a commit that gives less time than the last one counts when its answer comes",
        "flow/held_lease.py",
        "            self._claim.leased_until = min(self._claim.leased_until, until)\n",
        "",
        test="tests/unit/flow/test_partition_beside.py::"
        "test_a_commit_that_gives_less_time_than_a_handler_asked_for_counts_from_when_it_is_sent",
    ),
    Mutation(
        "the heartbeat ends while a handler is about to start",
        "worker/supervisor.py",
        "return self._is_stopping() and not len(self._crew) and not len(self._heartbeat)",
        "return self._is_stopping() and not len(self._heartbeat)",
        test="tests/unit/worker/test_stopping.py::"
        "test_the_heartbeat_of_a_worker_that_stops_waits_for_a_handler_that_is_about_to_start",
    ),
    Mutation(
        "limits that are switched off between two looks at them end a partition",
        "flow/partition_reading.py",
        "            permit = None if gate.wait(path) > 0 else gate.enter(path)\n",
        "            permit = None if gate.wait(path) > 0 else queue.gate.enter(path)\n",
        test="tests/unit/flow/test_partition_limits.py::"
        "test_a_share_whose_rate_is_switched_off_between_wait_and_enter_goes_on",
    ),
    Mutation(
        "a hook that hangs stops the worker for good",
        "worker/hook_calls.py",
        "            if clock.monotonic() - began > limit and self._give_up(call):\n",
        "            if not call.hook:\n",
        test=f"{_HOOKS}test_a_hook_that_hangs_stops_no_worker_and_no_outcome",
    ),
    Mutation(
        "a hook that hung once too often is never called again",
        "worker/hook_calls.py",
        "                self._hung[id(call.hook)] -= 1\n",
        "",
        test=f"{_HOOKS}test_a_hook_that_has_returned_at_last_is_called_again",
    ),
)
