"""Real processes, kill -9 and SIGSTOP: the shorter form of proof part 4."""

from __future__ import annotations

import pytest

from simulation import processes


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_nothing_is_lost_when_worker_processes_are_killed_and_paused() -> None:  # [P1] [P2] [P3] [P6]
    verdict = processes.run(seconds=15, messages=240)

    assert verdict["enqueued"] == 240 == verdict["completed"] + verdict["dead"], verdict
    assert verdict["lost"] == verdict["duplicate outcomes"] == verdict["double live leases"] == 0, verdict
    assert verdict["unexpected"] == 0, verdict
    assert verdict["dead"] > 0, verdict
    # A run in which nobody was hurt, or whose records nobody saw being written, would prove nothing.
    assert verdict["records observed"] > 0, verdict
    assert verdict["kills"] >= 3, verdict
    assert verdict["pauses"] >= 1, verdict


def _held(path: str, fence: str, pid: int, at: float, until: float) -> processes.Json:
    return {"event": "held", "path": path, "fence": fence, "pid": pid, "at": at, "until": until}


def test_the_judge_sees_two_live_leases() -> None:
    events = [_held("a", "1-x", 1, at=0.0, until=3.0), _held("a", "2-y", 2, at=2.9, until=5.9)]

    assert len(processes.double_live_leases(events)) == 1


@pytest.mark.parametrize(
    "between",
    [
        [],
        [{"event": "given up", "path": "a", "fence": "1-x", "pid": 1, "at": 2.0}],
        [{"event": "killed", "pid": 1, "at": 2.0}],
    ],
)
def test_the_judge_lets_a_lease_follow_one_that_is_over(between: list[processes.Json]) -> None:
    start = 3.1 if not between else 2.1
    events = [_held("a", "1-x", 1, at=0.0, until=3.0), *between, _held("a", "2-y", 2, at=start, until=9.0)]

    assert processes.double_live_leases(events) == []


def test_the_judge_sees_a_lease_that_was_kept_by_a_heartbeat() -> None:
    events = [
        _held("a", "1-x", 1, at=0.0, until=3.0),
        _held("a", "1-x", 1, at=2.0, until=5.0),
        _held("a", "2-y", 2, at=4.0, until=9.0),
    ]

    assert len(processes.double_live_leases(events)) == 1


def test_the_judge_sees_two_outcomes_of_one_message() -> None:
    told = {"event": "recorded", "path": "a", "generation": ["e", "t"]}

    assert processes.conflicting_outcomes([told | {"nonce": "1"}, told | {"nonce": "1"}], {}) == []
    assert len(processes.conflicting_outcomes([told | {"nonce": "1"}, told | {"nonce": "2"}], {})) == 1


def test_the_judge_says_why_a_handler_ran_again() -> None:
    def start(fence: str, pid: int, at: float) -> processes.Json:
        return {"event": "start", "path": "a", "line": 0, "fence": fence, "pid": pid, "at": at}

    events = [
        start("1", 1, 0.0),
        {"event": "killed", "pid": 1, "at": 1.0},
        start("2", 2, 6.0),
        {"event": "failed", "path": "a", "line": 0, "fence": "2", "pid": 2, "at": 6.5},
        start("3", 2, 8.0),
        {"event": "paused", "pid": 2, "at": 8.1},
        start("4", 3, 15.0),
        start("5", 3, 15.1),
    ]

    assert processes.runs_beyond_the_first(events) == {
        "its worker was killed": 1,
        "it failed, as planned": 1,
        "its worker was paused beyond its lease": 1,
        processes.UNEXPLAINED: 1,
    }
