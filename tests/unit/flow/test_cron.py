"""The instants of cron lines: which there are, over both changes of the clock, and which lines are refused."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import takewhile
from zoneinfo import ZoneInfo

import pytest
from cronsim import CronSim

from s3queue import InvalidRequest
from s3queue.flow.cron import check_cron, last_occurrences, occurrences

BERLIN = "Europe/Berlin"
#: 2026: the hour from 2 to 3 does not exist on 29 March, and comes twice on 25 October.
SPRING, AUTUMN = datetime(2026, 3, 28, 22, tzinfo=UTC), datetime(2026, 10, 24, 22, tzinfo=UTC)
NIGHT = timedelta(hours=9)


def night(cron: str, begin: datetime, tz: str = BERLIN) -> list[datetime]:
    return list(takewhile(lambda at: at <= begin + NIGHT, occurrences(cron, tz, begin)))


def shown(instants: list[datetime]) -> list[str]:
    return [f"{at:%H:%M}" for at in instants]


@pytest.mark.parametrize(
    ("cron", "spring", "autumn"),
    [
        ("30 2 * * *", ["01:00"], ["00:30"]),
        ("15,45 2 * * *", ["01:00"], ["00:15", "00:45"]),
        # 02:00 is put off to 03:00, which is due anyway: once.
        ("0 2-4 * * *", ["01:00", "02:00"], ["00:00", "02:00", "03:00"]),
        ("0 3 * * *", ["01:00"], ["02:00"]),
        ("*/30 2 * * *", [], ["00:00", "00:30", "01:00", "01:30"]),
    ],
)
def test_both_changes_of_the_clock_in_utc(cron, spring, autumn):
    assert shown(night(cron, SPRING)) == spring
    assert shown(night(cron, AUTUMN)) == autumn


@pytest.mark.parametrize("begin", [SPRING, AUTUMN])
def test_a_line_of_every_half_hour_follows_the_time_that_passes(begin):
    assert night("*/30 * * * *", begin) == [begin + timedelta(minutes=30) * n for n in range(1, 19)]


@pytest.mark.parametrize("tz", [BERLIN, "Australia/Lord_Howe", "America/New_York", "UTC"])
@pytest.mark.parametrize("cron", ["30 2 * * *", "15,45 1-3 * * *", "*/20 * * * *", "0 */2 * * *", "7 * * * *"])
@pytest.mark.parametrize("begin", [SPRING, AUTUMN, datetime(2026, 4, 4, 12, tzinfo=UTC)])
def test_which_instants_there_are_does_not_depend_on_where_one_begins(cron, tz, begin):
    whole = night(cron, begin, tz)

    for minutes in range(0, 540, 35):
        start = begin + timedelta(minutes=minutes)
        rest = takewhile(lambda at: at <= begin + NIGHT, occurrences(cron, tz, start))
        assert list(rest) == [at for at in whole if at > start]
        assert last_occurrences(cron, tz, begin, start, 30) == [at for at in whole if at <= start]
        assert last_occurrences(cron, tz, begin, start, 2) == [at for at in whole if at <= start][-2:]


def test_the_last_instants_of_years_are_found_without_counting_them_all():
    found = last_occurrences("* * * * *", BERLIN, datetime(1990, 1, 1, tzinfo=UTC), AUTUMN, 100)

    assert found == [AUTUMN - timedelta(minutes=minutes) for minutes in range(99, -1, -1)]


@pytest.mark.parametrize("tz", ["America/Nuuk", "America/Scoresbysund"])
@pytest.mark.parametrize("cron", ["0 * * * 6", "30 * 27 3 *", "* * * * 6"])
def test_the_search_for_the_last_instants_ends_where_a_gap_ends_at_midnight(cron, tz, monkeypatch):
    """[P10] On Saturday, 27 March 2027, there is no 23:00 to 24:00: with a zone, cronsim tries it again for ever."""
    reverse_day, tries = CronSim.reverse_day, 0

    def bounded(line):
        nonlocal tries
        tries += 1
        assert tries < 10_000
        return reverse_day(line)

    monkeypatch.setattr(CronSim, "reverse_day", bounded)
    after, until = datetime(2027, 3, 20, tzinfo=UTC), datetime(2027, 3, 28, 12, tzinfo=UTC)

    found = last_occurrences(cron, tz, after, until, 100)

    assert found == list(takewhile(lambda at: at <= until, occurrences(cron, tz, after)))[-100:]
    assert found


#: Zones, and days on which their clocks are changed in 2026: by half an hour, two hours, at midnight, before it.
CHANGES = [
    (BERLIN, (3, 29), (10, 25)),
    ("Australia/Lord_Howe", (4, 5), (10, 4)),
    ("America/Nuuk", (3, 28), (10, 24)),
    ("America/Havana", (3, 8), (11, 1)),
    ("Africa/Cairo", (4, 24), (10, 30)),
    ("Antarctica/Troll", (3, 29), (10, 25)),
]


@pytest.mark.parametrize(("tz", "spring", "autumn"), CHANGES)
@pytest.mark.parametrize(
    "cron", ["*/30 * * * *", "7 * * * 6", "15,45 0-3 * * *", "30 23 * * *", "*/9 1-2 * * 0", "0 2 * * *"]
)
def test_the_last_instants_are_the_end_of_the_way_forward(cron, tz, spring, autumn):
    """[P10] Wherever one looks back from, over changes of the clock."""
    for month, day in (spring, autumn):
        begin = datetime(2026, month, day, tzinfo=UTC) - timedelta(days=1)
        whole = list(takewhile(lambda at, end=begin + timedelta(days=3): at <= end, occurrences(cron, tz, begin)))
        for minutes in range(0, 3 * 24 * 60, 215):
            until = begin + timedelta(minutes=minutes)
            passed = [at for at in whole if at <= until]
            for most in (2, 20):
                assert last_occurrences(cron, tz, begin, until, most) == passed[-most:]


def test_times_that_the_clock_never_showed_are_not_among_the_last():
    """On 29 March 2026 there is no hour from 2 to 3 in Berlin: the last hundred are of the two years before."""
    after, until = datetime(2020, 1, 1, tzinfo=UTC), datetime(2026, 6, 1, tzinfo=UTC)

    found = last_occurrences("* 2 29 3 *", BERLIN, after, until, 100)

    assert [at.year for at in found] == [2024] * 40 + [2025] * 60


@pytest.mark.parametrize(
    "cron",
    [
        "",
        "x",
        "* * * *",
        "* * * * * *",
        "@daily",
        "61 * * * *",
        "0 0 31 2 *",
        "0 0 30 2 *",
        "* * * * MON#1/2",
        "9" * 300,
    ],
)
def test_a_line_that_cannot_be_read_or_is_never_due_is_refused(cron):
    with pytest.raises(InvalidRequest, match="cron line"):
        check_cron(cron, "UTC", SPRING)


@pytest.mark.parametrize("tz", ["Mars/Olympus", "", "../etc/passwd", "/etc/passwd", "Europe", None, "x" * 5000])
def test_an_unknown_time_zone_is_refused(tz):
    with pytest.raises(InvalidRequest, match="time zone"):
        check_cron("* * * * *", tz, SPRING)


def test_a_day_that_comes_once_in_decades_is_no_mistake():
    check_cron("0 0 * 2 MON#5", "UTC", SPRING)

    assert next(occurrences("0 0 * 2 MON#5", "UTC", SPRING)) == datetime(2044, 2, 29, tzinfo=UTC)


@pytest.mark.parametrize("tz", [BERLIN, "Australia/Lord_Howe", "Antarctica/Troll", "Asia/Kathmandu", "UTC"])
@pytest.mark.parametrize("cron", ["0 */2 * * *", "45 * * * *", "*/20 1-3 * * *", "*/7 */3 * * *", "* 2 * * *"])
@pytest.mark.parametrize(
    "begin", [SPRING, AUTUMN, datetime(2026, 4, 4, 12, tzinfo=UTC), datetime(2026, 10, 3, 12, tzinfo=UTC)]
)
def test_a_line_that_follows_the_time_is_due_whenever_the_clock_on_the_wall_shows_it(cron, tz, begin):
    """[P10] Also where the clock is changed by half an hour."""
    zone = ZoneInfo(tz)
    walls = [(begin + timedelta(minutes=n), (begin + timedelta(minutes=n)).astimezone(zone)) for n in range(1, 600)]
    expected = []
    for instant, wall in walls:
        shown = wall.replace(tzinfo=None, fold=0)
        if next(CronSim(cron, shown - timedelta(seconds=1))) == shown:
            expected.append(instant)

    found = takewhile(lambda at: at < begin + timedelta(minutes=600), occurrences(cron, tz, begin))

    assert list(found) == expected


@pytest.mark.parametrize("tz", ["UTC", BERLIN, "Australia/Lord_Howe"])
@pytest.mark.parametrize("cron", ["0 0 * 2 MON#5", "*/30 0 * 2 MON#5"])
def test_the_instants_of_a_line_that_is_due_once_in_decades(cron, tz):
    """[P10] Looking back for a hundred of them ends before the calendar begins."""
    after, until = datetime(1970, 1, 1, tzinfo=UTC), datetime(2026, 11, 16, tzinfo=UTC)

    found = last_occurrences(cron, tz, after, until, 100)

    ahead = takewhile(lambda at: at <= until, occurrences(cron, tz, after))
    assert found == list(ahead)
    assert found
    list(occurrences(cron, tz, datetime(9000, 1, 1, tzinfo=UTC)))
