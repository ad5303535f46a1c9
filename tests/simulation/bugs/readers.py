"""Bugs that hostile readers found and that were mended: each comes back here, and a named test catches it."""

from __future__ import annotations

from simulation.mutations import Mutation

_OUTBOX = "tests/unit/protocol/test_outbox.py::"
_RENEWAL = "tests/unit/protocol/test_record_renewal.py::"
_CRON = "tests/unit/flow/test_cron.py::"
_FIRING = "tests/unit/flow/test_schedule_firing.py::"
_LATE = "tests/unit/protocol/test_late_replays.py::"
_CANCEL = "tests/unit/flow/test_cancel.py::"
_BREAKER = "tests/unit/flow/test_breaker.py::"

BUGS = (
    Mutation(
        "staged sends are written as text, which a reader may refuse",
        "documents/sends.py",
        "[send.to_json(as_base64=True) for send in sends]",
        "[send.to_json() for send in sends]",
        test=f"{_OUTBOX}test_whatever_is_staged_can_be_read_back",
    ),
    Mutation(
        "the metadata of a send weighs nothing",
        "documents/sends.py",
        "len(send.body) + metadata_size(send.metadata) + len(send.content_type) + 200",
        "len(send.body) + 200",
        test=f"{_OUTBOX}test_metadata_counts_as_bytes_of_a_send",
    ),
    Mutation(
        "the sends of former lines leave no room for those of the next",
        "worker/processor.py",
        "            self._known(lambda: self.queue.leases.make_room(claim, sends))\n",
        "",
        test=f"{_OUTBOX}test_lines_that_may_each_send_do_not_hinder_each_other",
    ),
    Mutation(
        "however many sends become one batch",
        "documents/sent_objects.py",
        "            merged.extend(group[at : at + MERGED_FROM] for at in range(0, len(group), MERGED_FROM))\n",
        "            merged.append(group)\n",
        test=f"{_OUTBOX}test_merged_sends_are_batches_of_a_hundred",
    ),
    Mutation(
        "whoever goes on with staged parts begins with the first one again",
        "protocol/outbox.py",
        "                delete_unique(self.queue.store, found.key, if_match=found.etag)\n",
        "",
        test=f"{_OUTBOX}test_whoever_goes_on_with_the_parts_does_not_begin_anew",
    ),
    Mutation(
        "a message whose sends are refused holds up the others",
        "protocol/claiming.py",
        "            except (CorruptState, NotSent) as error:\n",
        "            except CorruptState as error:\n",
        test=f"{_OUTBOX}test_a_message_whose_sends_cannot_be_stored_does_not_hold_up_the_others",
    ),
    Mutation(
        "the sends of a message that is deleted by hand are forgotten",
        "protocol/expire.py",
        "    else:\n        _perform(leases, path)\n",
        "",
        test=f"{_OUTBOX}test_sends_are_stored_also_if_someone_deletes_the_message_by_hand",
    ),
    Mutation(
        "cancelling a late repetition replaces its outcome",
        "flow/cancel.py",
        "        if record is None and found and was_finished(path, stored.metadata, found):\n",
        "        if not path and found:\n",
        test=f"{_OUTBOX}test_a_late_repetition_that_is_cancelled_keeps_its_outcome",
    ),
    Mutation(
        "a forged record makes the sweeper send anywhere",
        "protocol/outbox.py",
        "        if target not in (queue.sends_to or ()):\n",
        "        if not target:\n",
        test=f"{_OUTBOX}test_a_record_cannot_make_a_sweeper_send_where_the_definition_does_not",
    ),
    Mutation(
        "a Spark run may send anywhere",
        "spark_runs/slots.py",
        "        sends_to=queue.sends_to,\n",
        "",
        test="tests/unit/spark_runs/test_watch.py::test_a_run_may_send_no_more_than_its_queue",
    ),
    Mutation(
        "the worker of a plain handler may send anywhere",
        "worker/definition.py",
        "            queue.sends_to = ()\n",
        "            pass\n",
        test="tests/unit/worker/test_definition.py::test_a_workers_queue_stores_the_sends_of_its_definition_and_no_others",
    ),
    Mutation(
        "a dedup id no longer counts once its message was replayed",
        "protocol/producer.py",
        'self._has_arrived(path, "")',
        'self._has_arrived(path, "the first one\'s")',
        test="tests/unit/flow/test_dedup.py::test_an_id_still_counts_after_its_message_was_replayed",
    ),
    Mutation(
        "a claim without an ETag that is taken up elsewhere ends what was PUT since",
        "flow/claimed.py",
        "stored is None or is_another or lease",
        "stored is None or lease",
        test="tests/unit/flow/test_claimed.py::"
        "test_what_was_put_since_a_claim_that_named_no_message_is_not_taken_for_it",
    ),
    Mutation(
        "a replay within the second of its message shares its death",
        "protocol/dead_letters.py",
        "                self.queue.clock.sleep(1.0)\n",
        "                pass\n",
        test="tests/unit/protocol/test_replay_identity.py::"
        "test_a_replay_within_the_second_of_its_message_is_a_message_of_its_own",
    ),
    Mutation(
        "a release forgets how often its message was postponed",
        "protocol/lease_writes.py",
        " and not lease.postponed\n",
        "\n",
        test="tests/unit/flow/test_postpone.py::test_a_release_does_not_forget_how_often_a_message_was_postponed",
    ),
    Mutation(
        "a probe that nobody ended stops the queue for whoever looks rarely",
        "flow/breaker.py",
        "        if self._time.now() >= known.until:\n            return 0.0\n",
        "",
        test=f"{_BREAKER}test_a_probe_that_nobody_ended_is_taken_over_however_rarely_one_looks",
    ),
    Mutation(
        "a claim that fails keeps its probe",
        "protocol/claiming.py",
        "            if claim is None:\n                permit.cancel()\n",
        "            pass\n",
        test=f"{_BREAKER}test_a_claim_that_fails_gives_its_probe_back",
    ),
    Mutation(
        "a line whose model's own check fails takes its batch along",
        "worker/definition.py",
        "        except Exception as error:\n            raise Reject(",
        "        except (ValueError, TypeError, KeyError, RecursionError) as error:\n            raise Reject(",
        test="tests/unit/worker/test_batches.py::test_a_line_whose_parsing_fails_in_any_way_dies_alone",
    ),
    Mutation(
        "the record of a message that cannot be finished expires",
        "protocol/record_renewal.py",
        "        elif found.at - found.modified_at < queue.settings.record_retention * RENEWED_FROM:\n",
        "        else:\n",
        test=f"{_RENEWAL}test_an_outcome_outlives_its_retention_while_a_send_is_refused",
    ),
    Mutation(
        "the record of a message whose payload cannot be kept expires",
        "protocol/lease_protocol.py",
        "            renew(self.queue, record)\n            raise\n",
        "            raise\n",
        test=f"{_RENEWAL}test_an_outcome_outlives_its_retention_while_its_payload_cannot_be_kept",
    ),
    Mutation(
        "what is stored is stored again with every try of another send",
        "protocol/outbox.py",
        "            if index in self.stored or sent.queue in closed or group in held_up:\n",
        "            if sent.queue in closed or group in held_up:\n",
        test=f"{_RENEWAL}test_what_is_stored_is_not_stored_again_because_another_send_is_refused",
    ),
    Mutation(
        "a refused send hinders those to other queues",
        "protocol/outbox.py",
        "                refused = refused or error\n",
        "                raise\n",
        test=f"{_RENEWAL}test_what_is_stored_is_not_stored_again_because_another_send_is_refused",
    ),
    Mutation(
        "the sends of one record use up a sweep",
        "protocol/outbox.py",
        "            self.queue.pace()\n",
        "            pass\n",
        test=f"{_RENEWAL}test_one_records_sends_do_not_use_up_a_sweep",
    ),
    Mutation(
        "a record may name parts by a path",
        "documents/sends.py",
        'if not as_name(name) or "/" in name:',
        "if not as_name(name):",
        test=f"{_RENEWAL}test_a_record_that_nobody_here_can_have_written_is_refused",
    ),
    Mutation(
        "a batch sends more parts than its record can name",
        "worker/processor.py",
        "            if len(context.claim.lines.outbox) > MOST_PARTS - 2:\n",
        "            if not context.claim:\n",
        test=f"{_RENEWAL}test_a_batch_cannot_send_more_parts_than_its_record_can_name",
    ),
    Mutation(
        "a change of the clock by half an hour swallows an instant",
        "flow/cron.py",
        "            if change := _first_change(zone, at, min(instant, at + _DAY), offset):\n",
        "            if change := None:\n",
        test=f"{_CRON}test_a_line_that_follows_the_time_is_due_whenever_the_clock_on_the_wall_shows_it",
    ),
    Mutation(
        "a line that is due once in decades is looked for before the calendar began",
        "flow/cron.py",
        "islice(takewhile(lambda at: at > after - _AROUND, back), most + 1)",
        "islice(back, most + 1)",
        test=f"{_CRON}test_the_instants_of_a_line_that_is_due_once_in_decades",
    ),
    Mutation(
        "a changed line loses an instant of the next minutes",
        "flow/schedules.py",
        "stored.schedule.is_due_as(wanted) else now\n",
        "stored.schedule.is_due_as(wanted) else max(stored.after, now)\n",
        test=f"{_FIRING}test_a_line_that_is_changed_loses_no_instant_of_the_next_minutes",
    ),
    Mutation(
        "a schedule that is made anew with another priority puts an instant again",
        "flow/schedule_firing.py",
        "        return [at for at in passed + ahead if at not in put], decided\n",
        "        return passed + ahead, decided\n",
        test=f"{_FIRING}test_an_instant_has_one_message_also_if_its_schedule_is_made_anew_with_another_priority",
    ),
    Mutation(
        "a rollback of the code forgets that a schedule is paused",
        "flow/schedule_firing.py",
        " and is_old and not known.stored.paused:",
        " and is_old:",
        test=f"{_FIRING}test_a_paused_schedule_stays_paused_if_the_code_that_defines_it_is_rolled_back_and_comes_again",
    ),
    Mutation(
        "every sweep begins with the same schedule",
        "flow/schedule_firing.py",
        "key=lambda name: (name < begin, name)",
        "key=lambda name: (name < '' and begin, name)",
        test=f"{_FIRING}test_no_schedule_waits_for_ever_behind_others_that_use_up_the_budget",
    ),
    Mutation(
        "schedules behind a thousand other objects are not seen",
        "sweeper/schedule_step.py",
        "MOST_PAGES = 10\n",
        "MOST_PAGES = 1\n",
        test=f"{_FIRING}test_a_schedule_is_found_behind_thousands_of_other_objects",
    ),
    Mutation(
        "a replay whose first PUT lands late runs again",
        "documents/dead_letter.py",
        "        return MOVED + hashlib",
        "        return hashlib",
        test=f"{_LATE}test_the_replay_of_a_letter",
    ),
    Mutation(
        "a replayed completion whose first PUT lands late runs again",
        "documents/kept_payload.py",
        "    return MOVED + hashlib",
        "    return hashlib",
        test=f"{_LATE}test_the_replay_of_a_completion",
    ),
    Mutation(
        "a replay of some lines whose first PUT lands late runs again",
        "protocol/dead_line_choice.py",
        "with_put_id({}, MOVED + mark)",
        "with_put_id({}, mark)",
        test=f"{_LATE}test_the_replay_of_some_lines",
    ),
    Mutation(
        "the completion of a delayed message is replayed again after its replay's replay",
        "flow/replay_completed.py",
        "    if target != record.path and queue.outcome_of(target):\n",
        "    if not target:\n",
        test=f"{_LATE}test_the_completion_of_a_delayed_message_is_replayed_once",
    ),
    Mutation(
        "a lease without an ETag is given back as free although its message was cancelled",
        "protocol/lease_writes.py",
        'lease.leased_etag in ("", record.generation.etag)',
        "record.generation.etag == lease.leased_etag",
        test=f"{_CANCEL}test_a_lease_that_names_no_message_is_not_given_back_as_free_if_its_message_was_cancelled",
    ),
    Mutation(
        "a canceller that crashes forgets how often its message was postponed",
        "flow/cancel.py",
        "        postponed=before.postponed,\n",
        "",
        test=f"{_CANCEL}test_a_canceller_that_crashes_does_not_forget_how_often_a_message_was_postponed",
    ),
)
