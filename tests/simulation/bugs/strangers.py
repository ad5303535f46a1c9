"""Bugs that matter when someone else writes into the queue: forged state, refused objects, names that make no sense."""

from __future__ import annotations

from simulation.mutations import Mutation

_UNDESCRIBED = "tests/unit/protocol/test_undescribed.py::"
_UNREADABLE = "tests/unit/worker/test_unreadable_messages.py::"
_STATE = "tests/unit/stores/test_open_state.py::"
_TURNS = "tests/unit/worker/test_forged_worker.py::"

BUGS = (
    Mutation(
        "a lease that cannot be read keeps its message for ever",
        "sweeper/expired_leases.py",
        "self._end(expire, path, which, StoredLease.of(found, unreadable), leases, report)",
        "self._wait(which, None)",
    ),
    Mutation(
        "a record that cannot be read stops its message",
        "protocol/outcomes.py",
        "    except CorruptState:\n        return None\n",
        "    except CorruptState:\n        raise\n",
    ),
    Mutation(
        "a message that nobody may read is given back for ever",
        "protocol/claiming.py",
        "            self._fail_unreadable(path, taken, before, refused)\n",
        "            raise\n",
    ),
    Mutation(
        "a claim in vain counts as won before its attempt is written",
        "protocol/claiming.py",
        "            self._fail_unreadable(path, taken, before, refused)\n",
        "            self.queue.in_vain += 1\n            self._fail_unreadable(path, taken, before, refused)\n",
        test="tests/unit/spark_runs/test_unreadable_claims.py::"
        "test_a_claim_that_fails_and_is_given_back_does_not_count_as_won",
    ),
    Mutation(
        "a function tries what fails as often as a LIST shows it",
        "worker/invocation.py",
        "        self._failed.add(path)\n",
        "",
        test=f"{_UNREADABLE}test_it_is_tried_once_however_many_others_run_meanwhile",
    ),
    Mutation(
        "a HEAD that is refused without a reason is no refusal",
        "stores/s3_errors.py",
        'if verb == "head" and status == 400:',
        'if verb == "head" and not status:',
        test=f"{_UNREADABLE}test_what_can_neither_be_read_nor_described_dies_after_its_attempts",
    ),
    Mutation(
        "in a mixed queue, what cannot be described is never claimed",
        "worker/invocation.py",
        "found, _ = self._queue.find_message(path)",
        "found = self._queue.store.head(self._queue.keys.message(path))",
        test=f"{_UNREADABLE}test_what_can_neither_be_read_nor_described_dies_after_its_attempts",
    ),
    Mutation(
        "what cannot be described, and may be a folder, is never claimed",
        "protocol/claiming.py",
        "is_placeholder(self.queue.find_message(path)[0])",
        "is_placeholder(self.queue.store.head(self.queue.keys.message(path)))",
        test=f"{_UNREADABLE}test_one_whose_name_ends_with_a_slash_dies_after_its_attempts",
    ),
    Mutation(
        "a run never claims what cannot be described",
        "spark_runs/claims.py",
        "found, _ = queue.find_message(candidate.path)",
        "found = queue.store.head(queue.keys.message(candidate.path))",
        test="tests/unit/spark_runs/test_unreadable_claims.py::"
        "test_a_heavy_message_that_cannot_be_described_has_all_its_attempts_and_dies",
    ),
    Mutation(
        "a message that nobody may read, and that is gone, leaves no record",
        "protocol/claiming.py",
        "            self._end_vanished(path, taken, before)\n            return\n",
        "            self._end_vanished(path, replace(taken, former=None), before)\n            return\n",
        test="tests/unit/protocol/test_unreadable.py::"
        "test_one_that_is_deleted_by_hand_between_two_attempts_is_recorded",
    ),
    Mutation(
        "a dead message that nobody may read is deleted",
        "protocol/outcomes.py",
        "            self._stand_for(record, message, refused)\n            return False\n",
        "            self._stand_for(record, message, refused)\n            return True\n",
    ),
    Mutation(
        "no letter stands for a message that nobody may read",
        "protocol/outcomes.py",
        "            self._stand_for(record, message, refused)\n",
        "",
    ),
    Mutation(
        "the letter of what cannot be read takes what was PUT since",
        "protocol/letter_writes.py",
        "return Generation(etag=message.etag, put_at=message.modified_at) == letter.generation",
        "return message is not None",
    ),
    Mutation(
        "a replay of what cannot be read passes for what has died there",
        "protocol/letter_writes.py",
        "    if not is_once(letter.origin, message.metadata):\n",
        "    if message:\n",
    ),
    Mutation(
        "a replay of what cannot be read has equal bytes of a producer deleted",
        "protocol/letter_writes.py",
        "    if put_id_of(message.metadata).startswith(MOVED) and not is_once(letter.origin, own):\n",
        "    if not message:\n",
        # The crash matrix finds it, too: `replay what could not be copied, and was replayed before`, case 38.
        test="tests/unit/protocol/test_replay_in_place.py::"
        "test_equal_bytes_of_a_producer_run_though_a_slow_replay_is_put_over_them",
    ),
    Mutation(
        "a cursor of any type is believed",
        "sweeper/progress.py",
        "return cls(**{name: _value(name, document[name]) for name in names})",
        "return cls(**{name: document[name] for name in names})",
    ),
    Mutation(
        "what cannot be claimed is buried in a group",
        "keys.py",
        '        while partition := partition_of(f"messages/{name}"):\n',
        '        if partition := partition_of(f"messages/{name}"):\n',
        test="tests/unit/protocol/test_names.py::test_what_cannot_be_claimed_is_buried_in_no_group_and_found_by_all",
    ),
    Mutation(
        "a message whose key is the prefix itself is never rescued",
        "sweeper/unleased_messages.py",
        'after = "" if progress.messages == prefix else progress.messages',
        "after = progress.messages",
        test="tests/unit/sweeper/test_sweeper.py::test_a_message_whose_key_is_the_prefix_itself_is_rescued",
    ),
    Mutation(
        "plain names hide the urgent ones",
        "protocol/backlog.py",
        "        groups.update(self._groups_beyond(prefix, top.next_after))\n",
        "",
    ),
    Mutation(
        "what is no reminder stays for ever",
        "sweeper/due_messages.py",
        "            if reminded is None:\n                remove([entry], report)\n",
        "            if reminded is None:\n                continue\n",
    ),
    Mutation(
        "a message whose name makes no sense is left where it is",
        "protocol/claiming.py",
        "            bury_misnamed(self.leases, path, problem)\n",
        "",
    ),
    Mutation(
        "what nobody may describe is taken for a message without a put id",
        "protocol/expire.py",
        "    metadata = stored.metadata if is_described else told_by(lease, generation)\n",
        "    metadata = stored.metadata\n",
        test=f"{_UNDESCRIBED}test_a_replay_of_what_died_unread_is_not_taken_for_what_has_died",
    ),
    Mutation(
        "the death of what nobody may describe takes the place of an outcome",
        "protocol/expire.py",
        "    if is_last and metadata is None and may_be_finished(path, record):\n",
        "    if not path:\n",
        test=f"{_UNDESCRIBED}test_the_outcome_of_what_may_be_a_late_repetition_is_kept",
    ),
    Mutation(
        "a claim of what nobody may describe takes the place of an outcome",
        "protocol/claiming.py",
        "        if is_last and known is None and may_be_finished(path, record):\n",
        "        if not path:\n",
        test=f"{_UNDESCRIBED}test_the_outcome_of_what_may_be_a_late_repetition_is_kept",
    ),
    Mutation(
        "what nobody may describe waits for its next attempt, however many it has had",
        "protocol/expire.py",
        "        leases.put_off(claim, dies_of or failure)\n",
        "        leases.give_back(path, replace(lease, attempt=lease.attempt + 1), held.etag, held.read_at)\n",
        test=f"{_UNDESCRIBED}test_who_kills_his_workers_has_no_more_attempts_although_the_sweeper_cannot_describe_it",
    ),
    Mutation(
        "the put id in a lease does not tell what nobody may describe",
        "documents/once.py",
        "    return with_put_id({}, lease.put_id) if lease.put_id and lease.generation == present else None\n",
        "    return None\n",
        test=f"{_UNDESCRIBED}"
        "test_a_burial_goes_on_although_its_message_cannot_be_described_since_the_lease_has_its_put_id",
    ),
    Mutation(
        "in a partition, the death of what nobody may describe takes the place of an outcome",
        "flow/partition_reading.py",
        "        if known is None and not retry.can_retry(claim.attempt) and self._may_be_repeated(claim.path):\n",
        "        if not claim.path:\n",
        test=f"{_UNDESCRIBED}test_in_a_group_the_outcome_of_what_may_be_a_late_repetition_is_kept",
    ),
    Mutation(
        "in a partition, what dies unread is recorded without its put id",
        "flow/partition_reading.py",
        "        message = message if metadata is None else replace(message, metadata=metadata)\n",
        "",
        test=f"{_UNDESCRIBED}test_in_a_group_a_late_replay_of_what_died_unread_does_not_run",
    ),
    Mutation(
        "a document that nobody can read is an error",
        "store.py",
        "    except Unreadable:\n        pass  # whose ETag is not in the answer\n",
        "    except Unreadable:\n        raise\n",
    ),
    Mutation(
        "a document that nobody can read takes the ETag of a good one",
        "store.py",
        "            return store.open(key, if_match=seen.etag)\n        except Conflict:\n            continue\n",
        "            if not seen.etag:\n                continue\n"
        "            raise Unreadable(key)\n"
        "        except Conflict:\n            continue\n",
        test=f"{_STATE}test_a_good_document_that_takes_its_place_meanwhile_is_not_taken_for_it",
    ),
    Mutation(
        "a permission that is missing makes a document garbage",
        "store.py",
        "    except Unreadable:\n        pass  # whose ETag is not in the answer\n",
        "    except AccessDenied:\n        pass\n",
        more=(
            (
                "store.py",
                "        except Unreadable as refused:\n            return Object(\n",
                "        except AccessDenied as refused:\n            return Object(\n",
            ),
        ),
        test="tests/unit/protocol/test_forged_state.py::"
        "test_state_that_this_role_may_not_read_is_not_taken_for_garbage",
    ),
    Mutation(
        "a document of which a HEAD is refused, too, is an error",
        "store.py",
        "    except AccessDenied:\n"
        "        return next((entry for entry in store.list(key, limit=1).objects if entry.key == key), None)\n",
        "    except AccessDenied:\n        raise\n",
    ),
    Mutation(
        "a write that takes the place of what nobody can read is not repeated",
        "store.py",
        "            found = open_state(store, key)\n            is_ours",
        "            found = store.open(key)\n            is_ours",
        test=f"{_STATE}test_it_is_replaced_although_the_first_answer_is_lost",
    ),
    Mutation(
        "settings that cannot be read end every sweep",
        "sweeper/sweeper.py",
        '            _log.warning("queue.json not read, settings kept: %s: %s", self.queue.name, error)\n',
        "            raise\n",
        test="tests/unit/sweeper/test_sweeper.py::test_settings_that_cannot_be_read_now_keep_no_sweep_from_its_work",
    ),
    Mutation(
        "the lock of a newer version ends all sweeping",
        "worker/sweep_turns.py",
        "found = self.lock.read(is_newer_garbage=True)",
        "found = self.lock.read()",
        test=f"{_TURNS}test_a_lock_that_nobody_can_hold_does_not_end_all_sweeping",
    ),
    Mutation(
        "the lock of a newer version that is at work is taken over",
        "worker/sweep_turns.py",
        "                grace = max(grace, self.lock.ttl)\n",
        "                pass\n",
        test=f"{_TURNS}test_the_lock_of_a_newer_version_is_left_to_it_while_it_is_renewed",
    ),
    Mutation(
        "a lock whose owner can have no heartbeat ends all sweeping",
        "worker/sweep_turns.py",
        "        except InvalidRequest:\n            return False  # a name",
        "        except InvalidRequest:\n            raise  # a name",
        test=f"{_TURNS}test_a_lock_that_nobody_can_hold_does_not_end_all_sweeping",
    ),
)
