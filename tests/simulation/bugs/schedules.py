"""Bugs in schedules: an instant that comes twice, or never."""

from __future__ import annotations

from simulation.mutations import Mutation

BUGS = (
    Mutation(
        "a scheduled message that is put again late runs again",
        "documents/once.py",
        "    return runs_once(path) and not dead_facts(metadata)\n",
        "    return False\n",
    ),
    Mutation(
        "an instant is decided on before anyone knows its message",
        "flow/schedule_firing.py",
        "after=decided, placing=paths, ahead",
        "after=decided, ahead",
    ),
    Mutation(
        "what someone began to put is believed to be there",
        "flow/schedule_firing.py",
        "                self._put(store, schedule, path)\n                placed += 1\n",
        "                placed += 1\n",
    ),
    Mutation(
        "what passed while nobody swept is forgotten",
        "flow/schedule_firing.py",
        "        if now > stored.after:\n",
        "        if now < stored.after:\n",
    ),
    Mutation(
        "an instant has as many names as sweepers",
        "flow/schedule_firing.py",
        "                self._put(store, schedule, path)\n                placed += 1\n",
        "                self._put(store, schedule, path.replace('/sch', '/p001/sch'))\n                placed += 1\n",
        test="tests/unit/flow/test_schedule_firing.py::test_a_crash_or_a_lost_answer_at_any_request_of_a_firing_sweep",
    ),
    Mutation(
        "the last instants of a line are looked for across a gap that ends at midnight",
        "flow/cron.py",
        ".astimezone(zone).replace(tzinfo=None), reverse=True)",
        ".astimezone(zone), reverse=True)",
        test="tests/unit/flow/test_cron.py::test_the_search_for_the_last_instants_ends_where_a_gap_ends_at_midnight",
    ),
    Mutation(
        "times that the clock never showed count as instants that were missed",
        "flow/cron.py",
        "        if instant.astimezone(zone).replace(tzinfo=None) == wall:\n            yield instant\n",
        "        yield instant\n",
        test="tests/unit/flow/test_cron.py::test_times_that_the_clock_never_showed_are_not_among_the_last",
    ),
    Mutation(
        "what was placed is forgotten once it is due, although its schedule begins anew before it",
        "flow/schedule_firing.py",
        "*stored.placing), min(now, stored.after))",
        "*stored.placing), now)",
        test="tests/unit/flow/test_schedule_firing.py::"
        "test_a_line_and_a_priority_that_are_changed_while_messages_are_put_make_no_second_ones",
    ),
    Mutation(
        "the sweep that finds a new schedule in the code leaves its first instant to the next one",
        "flow/schedule_firing.py",
        "            known = self._write(store, name, None, fresh)\n",
        "            self._write(store, name, None, fresh)\n            return 0\n",
        test="tests/unit/flow/test_schedule_firing.py::test_the_first_instant_of_a_new_schedule_in_code_is_not_missed",
    ),
    Mutation(
        "a line that is changed in code begins before what old code has dropped meanwhile",
        "flow/schedule_firing.py",
        "max(now, known.modified_at)",
        "now",
        test="tests/unit/flow/test_schedule_firing.py::"
        "test_old_code_that_sweeps_within_a_sweep_of_new_code_makes_no_instant_run_twice",
    ),
    Mutation(
        "a schedule that is made anew begins before anyone looked what the former one has put",
        "flow/schedule_firing.py",
        "        at = max(at, page.at)\n",
        "",
        test="tests/unit/flow/test_schedule_firing.py::"
        "test_a_schedule_that_is_made_anew_does_not_run_again_what_ran_meanwhile",
    ),
)
