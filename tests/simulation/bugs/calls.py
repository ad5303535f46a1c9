"""Bugs in what producers and operators call: enqueue, replay, configure. The history catches them."""

from __future__ import annotations

from simulation.mutations import Mutation

_ONCE = "tests/contract/test_s3_errors.py::test_what_may_be_sent_only_once_is_not_sent_again_after_a_409"
_UNANSWERED = (
    "tests/contract/test_s3_errors.py::"
    "test_a_request_that_may_have_been_carried_out_is_never_repeated_below_the_protocol"
)

BUGS = (
    Mutation(
        "an enqueue is repeated blindly after a lost answer",
        "protocol/producer.py",
        "                arrived = self._has_arrived(path, put_id)\n",
        "                arrived = False\n",
    ),
    Mutation(
        "an enqueue is repeated while nobody can tell whether it arrived",
        "protocol/producer.py",
        "        return False if is_known else None\n",
        "        return False\n",
    ),
    Mutation(
        "an enqueue takes another's message for its own",
        "protocol/producer.py",
        "if found and (not put_id or put_id_of(found.metadata) == put_id):",
        "if found:",
    ),
    Mutation(
        "an enqueue takes another's outcome for its own",
        "protocol/producer.py",
        "if record is not None and (not put_id or record.put_id == put_id):",
        "if record is not None:",
    ),
    Mutation(
        "a replay is repeated blindly after a lost answer",
        "protocol/dead_letters.py",
        "            except Conflict as conflict:\n",
        "            except QueueError as unknown:\n"
        "                if isinstance(unknown, Conflict):\n                    raise\n"
        "                again = self._open(path)[1]\n"
        "                put_back(self.queue, target, again, with_put_id(own, letter.replay_id), if_absent=True)\n"
        "            except Conflict as conflict:\n",
        more=(("documents/once.py", "startswith((ONCE, MOVED))", "startswith(ONCE)"),),
    ),
    Mutation(
        "a repeated replay runs what has completed since",
        "protocol/dead_letters.py",
        "return record if record and record.put_id in (letter.replay_id, before) else None",
        "return record if record and not before else None",
        more=(("documents/once.py", "startswith((ONCE, MOVED))", "startswith(ONCE)"),),
    ),
    Mutation(
        "a replay takes the place of a message that is there already",
        "protocol/dead_letters.py",
        "with_put_id(own, letter.replay_id), if_absent=True)",
        "with_put_id(own, letter.replay_id))",
    ),
    Mutation(
        "the last of two operators wins the whole of queue.json",
        "protocol/overrides.py",
        "                    if_match=etag,\n                    if_absent=etag is None,\n",
        "",
    ),
    Mutation(
        "the client `direct` sends a message again after a 409",
        "stores/direct.py",
        "if once or contended == CONTENDED_TRIES:",
        "if contended == CONTENDED_TRIES:",
        test=_ONCE,
    ),
    Mutation(
        "boto3's client sends a message again after a 409",
        "stores/s3.py",
        "            if once:\n                break\n",
        "            if once and not isinstance(problem, Contended):\n                break\n",
        test=_ONCE,
    ),
    Mutation(
        "the client `direct` repeats a DELETE that had no answer",
        "stores/direct.py",
        '"DELETE", key, headers, condition=condition_of(if_match), once=True)',
        '"DELETE", key, headers, condition=condition_of(if_match))',
        test=_UNANSWERED,
    ),
    Mutation(
        "boto3's client repeats a DELETE that had no answer",
        "stores/s3.py",
        'self._request("delete", key, send, date_in, condition=condition_of(if_match), once=True)',
        'self._request("delete", key, send, date_in, condition=condition_of(if_match))',
        test=_UNANSWERED,
    ),
    Mutation(
        "a PUT that is answered 404 counts as one that was stored",
        "stores/s3_errors.py",
        '(status == 404 and code == NO_SUCH_KEY and condition == "match")',
        'status == 404 or code == "never"',
        test="tests/contract/test_s3_errors.py::test_a_message_whose_put_is_answered_404_is_not_called_stored",
    ),
    Mutation(
        "a 404 of another web server says that there is no object",
        "stores/s3_errors.py",
        '(verb in ("get", "copy") and code == NO_SUCH_KEY)',
        'verb in ("get", "copy")',
        test="tests/contract/test_s3_errors.py::test_a_404_that_no_bucket_answers_names_bucket_and_endpoint",
    ),
    Mutation(
        "an upload that is gone says that the source of its copy is",
        "stores/s3_errors.py",
        '    "NoSuchUpload",\n',
        '    "NoSuchUploadAtAll",\n',
        test="tests/contract/test_s3_errors.py::"
        "test_a_copy_in_parts_whose_upload_is_gone_is_not_taken_for_one_whose_source_is",
    ),
    Mutation(
        "a copy in parts is made again after a 409",
        "stores/s3.py",
        "send_parts, written_in, condition=condition, tries=1)",
        "send_parts, written_in, condition=condition)",
        test="tests/contract/test_s3_errors.py::test_a_copy_in_parts_is_not_made_again_after_a_409",
    ),
    Mutation(
        "a batch of bulk enqueue is PUT again below the task",
        "spark/bulk/buckets.py",
        'content_type="application/x-ndjson", once=True)',
        'content_type="application/x-ndjson")',
        test="tests/spark/test_bulk_enqueue.py::test_a_batch_that_is_worked_off_before_its_answer_comes_is_not_put_again",
    ),
    Mutation(
        "the letter of lines that were replayed is written once only",
        "protocol/dead_line_choice.py",
        "        except (Conflict, Unavailable) as error:\n",
        "        except Conflict as error:\n",
        test="tests/unit/protocol/test_dead_line_choice.py::test_a_letter_whose_writing_has_no_answer_is_read_again",
    ),
    Mutation(
        "coroutines are not run",
        "worker/definition.py",
        "return loop.run(result) if inspect.isawaitable(result) else result",
        "return str(result)",
    ),
    Mutation(
        "a generator may be a handler",
        "worker/definition.py",
        "if inspect.isgeneratorfunction(code) or inspect.isasyncgenfunction(code):",
        "if code is None:",
        test="tests/unit/worker/test_async_handlers.py::test_a_generator_is_refused_when_it_is_decorated",
    ),
)
