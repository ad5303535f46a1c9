"""The clock: what passed for the world has passed, even if this process slept through it."""

from __future__ import annotations

import threading

import pytest

from s3queue.clock import TOLERANCE_SECONDS, PassedTime, SystemClock


class Machine:
    """Two raw clocks, and what can happen to them."""

    def __init__(self) -> None:
        self.raw, self.wall = 1000.0, 5_000_000.0
        self.passed = PassedTime(lambda: self.raw, lambda: self.wall)
        self.begun = self.passed.seconds()

    def runs(self, seconds: float) -> None:
        self.raw += seconds
        self.wall += seconds

    def stands_still(self, seconds: float) -> None:
        self.wall += seconds

    def elapsed(self) -> float:
        return self.passed.seconds() - self.begun


@pytest.fixture
def machine() -> Machine:
    return Machine()


def test_a_machine_that_runs_counts_its_seconds(machine):
    machine.runs(12.5)
    assert machine.elapsed() == 12.5


def test_a_freeze_in_which_the_monotonic_clock_stands_still_has_passed(machine):
    machine.runs(1)
    machine.stands_still(600)
    machine.runs(1)
    assert machine.elapsed() == 602


def test_many_short_freezes_add_up(machine):
    for _ in range(100):
        machine.stands_still(TOLERANCE_SECONDS * 0.9)
        machine.runs(0.01)
        machine.elapsed()
    assert machine.elapsed() == pytest.approx(100 * (TOLERANCE_SECONDS * 0.9 + 0.01), abs=TOLERANCE_SECONDS)


def test_a_wall_clock_that_is_set_back_changes_nothing(machine):
    machine.runs(10)
    machine.wall -= 3600
    assert machine.elapsed() == 10
    machine.runs(5)
    assert machine.elapsed() == 15


def test_a_freeze_is_seen_after_the_wall_clock_was_set_back(machine):
    machine.wall -= 3600
    machine.elapsed()
    machine.stands_still(60)
    assert machine.elapsed() == 60


def test_a_wall_clock_that_is_set_forward_ends_leases_early_and_never_late(machine):
    machine.runs(10)
    machine.wall += 100
    assert machine.elapsed() == 110
    machine.wall -= 100
    machine.runs(10)
    assert machine.elapsed() == 120


def test_small_corrections_of_the_wall_clock_do_not_count(machine):
    for _ in range(1000):
        machine.runs(1)
        machine.wall += 0.1
        machine.elapsed()
        machine.wall -= 0.1
    assert machine.elapsed() == 1000


def test_it_never_runs_backwards_even_if_a_restored_snapshot_does(machine):
    machine.runs(100)
    before = machine.elapsed()
    machine.raw -= 90  # started again from a snapshot that was taken 90 seconds before
    assert machine.elapsed() == before
    machine.runs(20)
    assert machine.elapsed() == before + 20


def test_a_thread_that_waits_between_the_two_readings_invents_no_freeze():
    readings = iter([0.0, 0.0, 0.0, 1.0, 9.0, 9.0, 9.0])  # 8 seconds without the processor, in the middle
    walls = iter([100.0, 100.0, 109.0, 109.0])
    passed = PassedTime(lambda: next(readings), lambda: next(walls))
    first = passed.seconds()
    assert passed.seconds() - first == 9.0


def test_the_systems_clock_is_one_for_the_process_and_every_thread():
    found: list[float] = []
    threads = [
        threading.Thread(target=lambda: found.extend(SystemClock().monotonic() for _ in range(200))) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert max(found) - min(found) < 60
    assert SystemClock().monotonic() >= max(found)
