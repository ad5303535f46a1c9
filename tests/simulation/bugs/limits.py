"""Bugs in rates, Postpone and the breaker: a token spent twice, a window forgotten, two probes."""

from __future__ import annotations

from simulation.mutations import Mutation

_RATES = "tests/simulation/test_rates.py::test_twenty_workers_keep_a_rate_and_use_it[100/min-60-5]"
_BREAKER = "tests/simulation/test_breaker.py::test_a_breaker_opens_for_everyone_probes_with_one_message_and_closes[0]"
_TOKENS = "tests/unit/flow/test_limiter.py::"
_PROBES = "tests/unit/flow/test_breaker_probes.py::"

BUGS = (
    Mutation(
        "a token counts for a lease that is written anew, however late",
        "protocol/claiming.py",
        "if self._is_late(path, taken.lease, taken.written, permit):\n                return None\n        claim = ",
        "pass\n        claim = ",
        # Schedules 115794 and 127658 met it.
        test="tests/unit/flow/test_limiter.py::test_a_token_does_not_count_for_a_lease_that_is_written_anew_too_late",
    ),
    Mutation(
        "a token is spent twice",
        "flow/limiter.py",
        "        limit.left -= 1\n        limit.used += 1\n",
        "        limit.left -= limit.used % 2\n        limit.used += 1\n",
        test=_RATES,
    ),
    Mutation(
        "the last of two workers wins all tokens of a limit",
        "flow/limiter.py",
        "body, if_match=limit.etag, if_absent=limit.etag is None)",
        "body)",
        test=_RATES,
    ),
    Mutation(
        "a window forgets what was granted shortly before it",
        "documents/limit_document.py",
        "    return (unit + 1) * rate.unit - 1 + rate.usable > at - rate.window - rate.grain",
        "    return (unit + 1) * rate.unit - 1 + rate.usable > at - rate.window // 2",
        more=(
            (
                "documents/limit_document.py",
                "at = (unit + 1) * rate.unit - 1 + rate.usable + rate.window + rate.grain",
                "at = (unit + 1) * rate.unit - 1 + rate.usable + rate.window // 2",
            ),
        ),
        test=_RATES,
    ),
    Mutation(
        "a token may be used at any time",
        "flow/limiter.py",
        "        return 0 <= _second(at) - self.at <= self.rate.usable\n",
        "        return True\n",
        test="tests/unit/flow/test_limiter.py::"
        "test_a_token_that_is_used_too_late_does_not_count_and_the_claim_is_undone",
    ),
    Mutation(
        "what was given back is given back again",
        "flow/limiter.py",
        "            spare.clear()\n",
        "",
        test="tests/unit/flow/test_limiter.py::test_what_is_given_back_is_granted_once",
    ),
    Mutation(
        "what may have been given back by a write without an answer is given back again",
        "flow/limiter.py",
        "                if not conflict.retried:\n",
        "                if conflict:\n",
        test="tests/simulation/test_rates.py::test_a_token_is_given_back_once_whatever_becomes_of_the_answer[0]",
    ),
    Mutation(
        "a token that comes back while others are asked for is dropped",
        "flow/limiter.py",
        "                for at, tokens in spare.items():\n                    limit.come_back(at, tokens)\n",
        "                limit.left, limit.spare = spare.get(limit.at, 0), {}\n",
        test=f"{_TOKENS}test_the_last_token_that_comes_back_while_another_thread_asks_is_not_lost",
    ),
    Mutation(
        "a token that comes back while others are granted is dropped",
        "flow/limiter.py",
        "        self.come_back(former, left)\n",
        "",
        test=f"{_TOKENS}test_a_token_that_comes_back_while_another_one_is_granted_is_granted_anew",
    ),
    Mutation(
        "a token that comes back after others were granted is dropped",
        "flow/limiter.py",
        "            self.spare[at] = self.spare.get(at, 0) + tokens\n",
        "            pass\n",
        test=f"{_TOKENS}test_a_token_that_comes_back_after_others_were_granted_is_granted_anew[0]",
    ),
    Mutation(
        "a token that comes back is not asked for before the limit is free",
        "flow/limiter.py",
        "                self.limit.closed_for = None  # what",
        "                pass  # what",
        test=f"{_TOKENS}test_a_token_that_comes_back_after_others_were_granted_is_granted_anew[400]",
    ),
    Mutation(
        "a token that comes back too late is not asked for if another thread has just asked",
        "flow/limiter.py",
        "                if limit.left or limit.spare:\n",
        "                if limit.left < 0:\n",
        test=f"{_TOKENS}test_a_token_that_comes_back_too_late_while_another_thread_asks_is_granted_anew",
    ),
    Mutation(
        "a token of a former rate comes back",
        "flow/limiter.py",
        "            if self.limit.rate == self.rate:\n",
        "            if self.limit:\n",
        test=f"{_TOKENS}test_a_token_of_a_former_rate_does_not_come_back",
    ),
    Mutation(
        "a token that was granted too late is not given back",
        "flow/limiter.py",
        "            spare[at] = tokens  # too late",
        "            pass  # too late",
        test=f"{_TOKENS}test_tokens_that_were_granted_too_late_to_be_used_are_given_back",
    ),
    Mutation(
        "a token in hand is dropped if the limit cannot be read",
        "flow/limiter.py",
        "        try:\n            return self._ask(key, limit, rate, spare)\n        finally:\n",
        "        answer = self._ask(key, limit, rate, spare)\n        if not answer:\n",
        more=(
            (
                "flow/limiter.py",
                "                    limit.come_back(at, tokens)\n",
                "                    limit.come_back(at, tokens)\n        return answer\n",
            ),
        ),
        test=f"{_TOKENS}test_unused_tokens_are_not_lost_if_the_limit_cannot_be_read",
    ),
    Mutation(
        "a token of the future is waited for by writes without end",
        "flow/limiter.py",
        "document.latest > now + AHEAD",
        "document.latest > now + rate.kept",
        test=f"{_TOKENS}test_grants_of_the_future_close_a_queue_for_one_window[1.02-60/hour]",
    ),
    Mutation(
        "two workers probe",
        "flow/breaker_access.py",
        "queue.keys.breaker, body, if_match=etag, if_absent=etag is None)",
        "queue.keys.breaker, body)",
        test=_BREAKER,
    ),
    Mutation(
        "a probe does not wait for the end of the pause",
        "flow/breaker.py",
        "or self._time.seen_at < known.until or self._is_asking",
        "or self._is_asking",
        test=_BREAKER,
    ),
    Mutation(
        "a probe that fails closes the breaker",
        "flow/breaker.py",
        "        if error is not None:\n                document",
        "        if error is None:\n                document",
        test=_BREAKER,
    ),
    Mutation(
        "a probe is kept by a process whose claim found nothing",
        "flow/breaker.py",
        "        self._end(probe.fence)\n        self._give_back(probe)\n",
        "        self._end(probe.fence)\n        self._kept = probe\n",
        test="tests/unit/flow/test_breaker.py::test_a_probe_that_decides_nothing_lets_another_message_probe[gone]",
    ),
    Mutation(
        "a probe is kept if its outcome could not be written",
        "worker/processor.py",
        "        self.queue.note_undecided(claim)  # unless",
        '        ending == "lost" or self.queue.note_undecided(claim)  # unless',
        test=f"{_PROBES}test_a_probe_whose_outcome_cannot_be_written_decides_nevertheless[postponed-open]",
    ),
    Mutation(
        "a probe is kept if its partition was lost",
        "worker/collecting.py",
        "        processor.queue.note_undecided(claim)  # unless",
        '        endings[claim.path] == "lost" or processor.queue.note_undecided(claim)  # unless',
        test="tests/unit/worker/test_collecting.py::"
        "test_a_probe_whose_partition_is_lost_meanwhile_does_not_keep_the_others_waiting[raises]",
    ),
    Mutation(
        "a probe is kept if its message could not be released",
        "queue.py",
        "        finally:\n            self.note_undecided(claim)  # also",
        "        finally:\n            pass  # also",
        test=f"{_PROBES}test_a_worker_that_stops_gives_its_probe_back_although_its_message_cannot_be_given_back",
    ),
    Mutation(
        "a probe is forgotten that could not be given back",
        "flow/breaker.py",
        'kept for the next claim: %s: %s", self.queue.name, error)\n            self._kept = probe\n',
        'kept for the next claim: %s: %s", self.queue.name, error)\n',
        test=f"{_PROBES}test_a_probe_that_cannot_be_given_back_is_used_by_the_next_claim",
    ),
    Mutation(
        "a probe is used again that may have been given back",
        "flow/breaker.py",
        "known is None or known.etag != probe.stored.etag or",
        "known is None or",
        test=f"{_PROBES}test_a_probe_that_was_given_back_by_a_write_without_an_answer_is_not_used_again",
    ),
    Mutation(
        "a probe that was lost ends the next one of its message",
        "flow/breaker.py",
        "            self._used[fence] = probe\n",
        "            self._used[probe.path] = probe\n",
        more=(
            ("queue.py", "limits.ended(claim.fence, error)", "limits.ended(claim.path, error)"),
            ("queue.py", "limits.gave_back(claim.fence)", "limits.gave_back(claim.path)"),
        ),
        test=f"{_PROBES}test_a_probe_that_was_lost_does_not_end_the_next_one_of_the_same_message",
    ),
    Mutation(
        "a probe says nothing if its outcome could not be written",
        "worker/processor.py",
        "            self.queue.note_call(claim, error.type if isinstance(error, Failure) else error)\n  ",
        "  ",
        test=f"{_PROBES}test_a_probe_whose_outcome_cannot_be_written_decides_nevertheless[well-closed]",
    ),
    Mutation(
        "a message that is postponed has used an attempt",
        "protocol/lease_writes.py",
        "attempt=claim.attempt - 1, retry_at=retry_at)",
        "attempt=claim.attempt, retry_at=retry_at)",
        test="tests/unit/flow/test_postpone.py::test_a_postponed_message_runs_again_with_the_same_attempt",
    ),
    Mutation(
        "a message is postponed for ever",
        "queue.py",
        "        if claim.lease.postponed >= most:\n",
        "        if claim.lease.postponed < 0:\n",
        test="tests/unit/flow/test_postpone.py::test_after_max_postpones_each_is_a_failed_attempt",
    ),
    Mutation(
        "a postponed line is forgotten",
        "worker/batch_run.py",
        "        if postponed is not None:\n            return partial(processor.postpone, claim, postponed)\n",
        "",
        test="tests/unit/flow/test_postpone.py::test_lines_are_postponed_alone_and_the_others_go_on",
    ),
)
