"""Bugs in records, dead letters, batches, and in what an unknown answer is taken for."""

from __future__ import annotations

from simulation.mutations import Mutation

_ANEW = "tests/unit/protocol/test_put_anew.py::"
BUGS = (
    Mutation(
        "the lease is deleted before the message",
        "protocol/outcomes.py",
        "        deleted = self._delete_message(path, generation, is_alive, is_repeated)\n",
        "        delete_unique(self.store, self.keys.lease(path), if_match=lease_etag)\n"
        "        deleted = self._delete_message(path, generation, is_alive, is_repeated)\n",
    ),
    Mutation(
        "the completion is not conditional",
        "protocol/outcomes.py",
        "put_surely(self.store, key, body, if_absent=True)",
        "self.store.put(key, body)",
    ),
    Mutation("a 409 is taken as lost", "errors.py", "class Contended(Unavailable):", "class Contended(Conflict):"),
    Mutation(
        "the dead letter is not copied",
        "protocol/outcomes.py",
        "is_moved = self.move_to_dead(written, message, lines)",
        "is_moved = True",
    ),
    Mutation(
        "what was completed meanwhile is buried all the same",
        "protocol/outcomes.py",
        'and (written.outcome == "dead" or written.dead_lines)',
        "and written",
    ),
    Mutation(
        "an upload that cannot be told from a finished batch has a second letter",
        "protocol/lease_protocol.py",
        "is_done = record.dead_lines and not (lines and (lines.done or lines.dead))",
        "is_done = False",
        test=f"{_ANEW}test_an_upload_that_cannot_be_told_from_a_finished_batch_has_no_second_letter",
    ),
    Mutation(
        "the message's delete is not conditional",
        "store.py",
        "store.delete(key, if_match=etag)",
        "store.delete(key)",
    ),
    Mutation(
        "a delete without an answer is repeated blindly",
        "store.py",
        "        found = look_at(store, key)\n        if found is None:\n            return True\n",
        "        continue\n",
    ),
    Mutation(
        "outcomes compare bytes only, not generations",
        "protocol/outcomes.py",
        "if stored and stored.generation == record.generation:",
        "if stored and stored.generation.etag == record.generation.etag:",
    ),
    Mutation(
        "a newer record is replaced by an older one's",
        "protocol/outcomes.py",
        "if stored and not is_alive() and self._is_superseded(record):",
        "if stored and not record:",
    ),
    Mutation(
        "S3's dates decide which of two generations is newer",
        "protocol/outcomes.py",
        "if stored and not is_alive() and self._is_superseded(record):",
        "if stored and stored.generation.put_at > record.generation.put_at:",
    ),
    Mutation(
        "the next death under a name overwrites its dead letter",
        "protocol/outcomes.py",
        "            if found := self.store.head(letter):\n                return found\n",
        "            if found := self.store.head(letter):\n                self.store.delete(letter)\n",
    ),
    Mutation(
        "a letter that was written since the look is overwritten",
        "protocol/outcomes.py",
        "self.store.put(key, body, if_absent=True, metadata=metadata,",
        "self.store.put(key, body, metadata=metadata,",
    ),
    Mutation(
        "dead lines that did not run are forgotten",
        "protocol/outcomes.py",
        "                if number not in lines.done:\n",
        "                if number in lines.dead:\n",
    ),
    Mutation(
        "a replayed batch of dead lines runs the letter's own lines",
        "documents/dead_lines.py",
        "            yield number, dead.body if dead else line",
        "            yield number, line",
    ),
    Mutation(
        "a 412 after the SDK's own retry is believed",
        "store.py",
        "            if unknown is None and not conflict.retried:\n",
        "            if conflict:\n",
    ),
    Mutation(
        "a batch forgets which lines are done",
        "documents/batch.py",
        'done=LineNumbers.from_json(found.get("done", [])),',
        "done=LineNumbers(),",
    ),
    Mutation(
        "a replay deletes the letter of the next death",
        "protocol/removal.py",
        "if found is None or (found.modified_at, found.metadata) != (letter.modified_at, letter.metadata):",
        "if found is None:",
    ),
    Mutation(
        "a replay deletes before it copies",
        "protocol/dead_letters.py",
        "        if self.is_replayed(letter):\n",
        "        self.queue.store.delete(found.key, if_match=found.etag)\n        if self.is_replayed(letter):\n",
    ),
    Mutation(
        "a replay takes its twin's outcome for its own",
        "protocol/dead_letters.py",
        "record.put_id in (letter.replay_id, before)",
        "record.generation.etag == letter.etag",
    ),
    Mutation(
        "a name that ends like a mark is replayed as another",
        "documents/dead_letter.py",
        'origin=path.removesuffix(f"~{generation_mark(generation)}") if generation else path,',
        'origin=path.rpartition("~")[0] or path,',
    ),
    Mutation(
        "a long line that dies again is wrapped twice",
        "documents/dead_lines.py",
        "    if head := _HEAD.match(start):\n",
        '    if head := _HEAD.match(b""):\n',
    ),
    Mutation(
        "each dead line has an object of its own",
        "protocol/outcomes.py",
        "bury_line(letter, number, failure, line, batch, died_before=names.is_lines(record.path))\n",
        "letter.seek(0), letter.truncate()\n"
        "                    bury_line(letter, number, failure, line, batch, died_before=names.is_lines(record.path))\n"
        '                    self.store.put(f"{key}-{number}", (letter.seek(0), letter.read())[1])\n',
    ),
    Mutation(
        "a dead letter that is refused again and again counts as written",
        "protocol/outcomes.py",
        '        raise Unavailable(f"dead letter not written: {letter}: refused, and nothing is there; try again")\n',
        "        return None\n",
        test="tests/unit/protocol/test_outcomes.py::"
        "test_a_dead_letter_that_is_refused_although_nothing_is_there_is_left_for_later",
    ),
    Mutation(
        "what is PUT after an outcome is charged with the attempts before it",
        "protocol/expire.py",
        "    if record and lease.is_ended_by(record):\n",
        "    if record and not path:\n",
    ),
    Mutation(
        "a record does not say which claim it is of",
        "protocol/lease_protocol.py",
        'fence="" if claim.within else claim.lease.fence',
        'fence=""',
    ),
    Mutation(
        "a claim of what is PUT after an outcome goes on with the lines before it",
        "protocol/claiming.py",
        "            if record and taken.former and taken.former.is_ended_by(record):\n"
        "                self.queue.perform(record)\n",
        "            if record and not path:\n",
        test=f"{_ANEW}test_what_is_put_after_a_zombies_completion_runs_as_a_whole",
    ),
    Mutation(
        "a claim of equal bytes that were PUT anew does not name them",
        "protocol/claiming.py",
        "            self._write(path, taken, lease)\n",
        "            if lease.attempt == 1:\n                self._write(path, taken, lease)\n",
        test=f"{_ANEW}test_what_is_put_before_a_zombies_completion_keeps_its_attempts",
    ),
    Mutation(
        "the sends of an outcome are not stored before what is PUT after it begins",
        "protocol/claiming.py",
        "                self.queue.perform(record)\n                lease = taken.lease.anew(message)\n",
        "                lease = taken.lease.anew(message)\n",
        more=(
            (
                "protocol/expire.py",
                "        queue.perform(record)\n        _restart(leases, claim, held)\n",
                "        _restart(leases, claim, held)\n",
            ),
        ),
        test=f"{_ANEW}test_what_a_message_has_sent_is_stored_before_it_begins_anew",
    ),
    Mutation(
        "what nobody can read is charged with the attempts of what had its outcome before",
        "protocol/claiming.py",
        "        if record and taken.former and taken.former.is_ended_by(record):\n"
        "            # Equal bytes that were PUT after",
        "        if record and not path:\n            # Equal bytes that were PUT after",
        test=f"{_ANEW}test_what_nobody_can_read_has_all_its_attempts_if_it_was_put_after_an_outcome",
    ),
)
