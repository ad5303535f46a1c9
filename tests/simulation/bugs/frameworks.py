"""Bugs in what Celery and Django see of a queue: the simulation has neither, so a named test catches each."""

from __future__ import annotations

from simulation.mutations import Mutation

_CANCEL = "tests/unit/flow/test_cancel.py::"
_CELERY = "tests/unit/test_celery.py::"
_DJANGO = "tests/unit/test_django.py::"

BUGS = (
    Mutation(
        "each part that sees the end of a chord calls its errbacks",
        "contrib/celery/backend.py",
        "        if not self._calls_errbacks(group, part):\n            return\n",
        "",
        test=f"{_CELERY}test_an_errback_of_a_chord_is_called_once_although_several_parts_saw_the_end",
    ),
    Mutation(
        "the part that was to call a chord's errbacks takes itself for another one when it is run again",
        "contrib/celery/backend.py",
        "                return found.read(RESULT_BYTES) == name\n",
        "                return False\n",
        test=f"{_CELERY}test_a_part_that_dies_before_it_calls_the_errbacks_calls_them_when_it_is_run_again",
    ),
    Mutation(
        "the failure of a chord's body is left to the part that calls its errbacks",
        "contrib/celery/backend.py",
        "        self.chord_error_from_stack(_without_errbacks(callback), error)\n        if not",
        "        if not",
        test=f"{_CELERY}test_a_part_that_dies_before_it_calls_the_errbacks_calls_them_when_it_is_run_again",
    ),
    Mutation(
        "the note that a chord has failed counts as the end of a part",
        "contrib/celery/backend.py",
        "len(ended - {folder + _FAILED})",
        "len(ended)",
        test=f"{_CELERY}test_a_part_that_gave_up_is_not_counted_twice",
    ),
    Mutation(
        "the body of a chord loses its own headers",
        "contrib/celery/backend.py",
        "                callback.apply_async((results,))\n",
        '                callback.apply_async((results,), headers={"s3queue-once": group})\n',
        test=f"{_CELERY}test_each_task_of_a_chords_body_keeps_its_own_headers_and_is_sent_once",
    ),
    Mutation(
        "the body of a chord is sent as often as its end is seen",
        "contrib/celery/backend.py",
        "            with sent_once(group):\n",
        "            if group:\n",
        test=f"{_CELERY}test_the_body_of_a_chord_is_sent_once_although_several_parts_saw_the_end",
    ),
    Mutation(
        "a task that its worker has acknowledged meanwhile is called revoked",
        "contrib/celery/revoking.py",
        '"revoked" if record.is_withdrawn else "running"',
        '"running" if queue.store.head(queue.keys.message(path)) else "revoked"',
        test=f"{_CELERY}test_a_task_that_was_taken_and_acknowledged_while_it_was_revoked_is_called_running",
    ),
    Mutation(
        "a canceller whose lease is over says that nobody works on its message",
        "flow/cancel.py",
        "record.generation == lease.generation and is_alive()\n    is_cleared",
        "record.generation == lease.generation\n    is_cleared",
        test=f"{_CANCEL}test_a_canceller_that_pauses_for_longer_than_its_lease_does_not_say_that_the_message_is_withdrawn",
    ),
    Mutation(
        "a Django task that ends by SystemExit is tried again, and nobody hears of its end",
        "contrib/django/running.py",
        "        except failures() as error:\n",
        "        except Exception as error:\n",
        test=f"{_DJANGO}test_what_is_no_exception_but_fails_an_attempt_is_final_as_well_and_told",
    ),
)
