"""Replay: dead letters become messages again, by filter, from the executors; nothing is lost and a rerun is safe.

    replay --bucket B --queue emails --error-type SMTPServerDisconnected --older-than 3600 --path-prefix messages/p200/

Each letter is replayed as `DeadLetters.replay` does it: PUT the message If-None-Match, then DELETE the letter If-Match;
of a batch's dead lines, those with a wanted error, and the letter keeps the others. A task that dies in between leaves
both. The rerun tells by the record: if it names this very letter as replayed and completed, the letter is only cleared
away; if its message is still there, it is left for a later run. What died again meanwhile is a new death: `--before`
(when this replay was decided, by S3's clock) leaves it out, so that a job that is retried with the same arguments does
not run a poison message in circles.

With `--to`, they become messages of another queue, as `Queue.replay(to=…)` does it, each once however often the job is
repeated; of a batch, all its dead lines go together, or none.

Not promised: two replays of the same letter at the same time run it twice if it is completed between their two PUTs.
With `--to`, a letter of a share runs twice if the other queue's `partitions` change between a replay that could not
delete the letter and the next one.
Letters of a group are replayed side by side, so they come to its end in any order: `s3queue dead replay` keeps it.
"""

from __future__ import annotations

import argparse
import json
import logging
import sys
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from s3queue.documents.dead_letter import DeadLetter
from s3queue.encoding import format_instant, parse_instant
from s3queue.errors import Conflict, InvalidRequest, MessageNotFound, QueueError
from s3queue.keys import Keys, check_queue
from s3queue.protocol.dead_letters import DeadLetters
from s3queue.queue import Queue
from s3queue.settings import QueueSettings
from spark.rows.schemas import columns
from spark.storage.bucket import Bucket
from spark.storage.scan import Batches, batches_of, in_threads, listed, rows_of, survey

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_log = logging.getLogger("spark.replay")
REPLAYED = columns(path="string", outcome="string", detail="string")
#: Examples of each thing that went wrong.
EXAMPLES = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Filter:
    """Which dead letters; everything that is given must hold."""

    #: Died before this instant, by S3's clock: the age of the letter as an object.
    before: datetime
    since: datetime | None = None
    error_types: tuple[str, ...] = ()
    path_prefix: str = ""

    def by_age(self, listed: DataFrame) -> DataFrame:
        found = listed.filter(listed["modified_at"] < self.before)
        return found.filter(found["modified_at"] >= self.since) if self.since else found

    def wants(self, error_type: str) -> bool:
        return not self.error_types or error_type in self.error_types


def replay(
    spark: SparkSession, bucket: Bucket, queue: str, chosen: Filter, *, dry_run: bool = False, to: str | None = None
) -> dict[str, Any]:
    """Replay what the filter selects, if asked for into another queue; how many letters came to which end.

    replayed: a message again · cleared: an earlier replay had done it, and its message was completed · waiting: a
    message of that name is there, or is being buried this moment; run again later · gone: someone else took it ·
    unwanted: of another error type · failed: see the examples; run again.

    Raises:
        InvalidRequest: `to` is no other queue of this bucket; nothing was replayed.
    """
    into = _target_settings(bucket, queue, to) if to is not None else None
    extent = survey(bucket.store(), Keys(queue).prefix("dead") + chosen.path_prefix)
    told: dict[str, Any] = {"queue": queue, "before": format_instant(chosen.before), "letters": extent.objects}
    counts: Counter[str] = Counter()
    examples: dict[str, list[str]] = defaultdict(list)
    if extent.objects:
        ends = replayed(
            chosen.by_age(listed(spark, bucket, extent.ranges)),
            bucket,
            queue,
            chosen,
            dry_run=dry_run,
            to=to,
            into=into,
        )
        # Counted by the executors: a million outcomes need not come to the driver.
        for row in _summary(ends).collect():
            counts[row.outcome] = row.letters
            if row.outcome in ("failed", "waiting"):
                examples[row.outcome] = [f"{each.path}: {each.detail}" for each in row.examples]
    if to is not None:
        told["to"] = to
    return told | {"counts": dict(sorted(counts.items())), "examples": dict(examples)}


def _target_settings(bucket: Bucket, queue: str, to: str) -> QueueSettings:
    """Of the other queue, as they are published: they say whether it takes groups, and where in it a message goes."""
    check_queue(to)
    if to == queue:
        raise InvalidRequest(f"--to {to} is the queue itself: leave it out")
    if not bucket.store().list(Keys(to).root, limit=1).objects:
        raise InvalidRequest(f"there is no queue {to!r} in this bucket: what is replayed there would wait for ever")
    target = Queue(store=bucket.store(), name=to)
    published = target.published_settings()
    if published:
        target.define(published.settings)
    return target.settings


def replayed(
    letters: DataFrame,
    bucket: Bucket,
    queue: str,
    chosen: Filter,
    *,
    dry_run: bool = False,
    to: str | None = None,
    into: QueueSettings | None = None,
) -> DataFrame:
    """Replay listed letters in the executors; a row for each. `into`: the settings of the queue `to`."""

    def per_partition(batches: Batches) -> Batches:
        connected = Queue(store=bucket.store(), name=queue)
        target = Queue(store=connected.store, name=to, settings=into or QueueSettings()) if to else None
        keys = (key for (key,) in rows_of(batch.select(["key"]) for batch in batches))
        yield from batches_of(
            in_threads(lambda key: replay_one(connected, key, chosen, dry_run, target), keys), REPLAYED
        )

    return letters.mapInArrow(per_partition, REPLAYED)


def _summary(ends: DataFrame) -> DataFrame:
    from pyspark.sql import functions as sf

    kept = sf.when(sf.col("outcome").isin("failed", "waiting"), sf.struct("path", "detail"))
    return ends.groupBy("outcome").agg(
        sf.count("*").alias("letters"), sf.slice(sf.collect_list(kept), 1, EXAMPLES).alias("examples")
    )


def replay_one(
    queue: Queue, key: str, chosen: Filter, dry_run: bool, target: Queue | None = None
) -> tuple[str, str, str]:
    """One letter to its end: path, outcome, detail."""
    path = queue.keys.path_under("dead", key)
    if path is None:
        return key, "failed", "this key is no dead letter's"
    try:
        return (path, *_replay(queue, path, chosen, dry_run, target))
    except MessageNotFound:
        return path, "gone", ""
    except Conflict as conflict:
        return path, "waiting", str(conflict)
    except QueueError as error:
        return path, "failed", f"{type(error).__name__}: {error}"


def _replay(queue: Queue, path: str, chosen: Filter, dry_run: bool, target: Queue | None) -> tuple[str, str]:
    letters = DeadLetters(queue)
    info = queue.store.head(queue.keys.dead(path))
    # Again, because it may have died anew since the LIST.
    if info is None or info.modified_at >= chosen.before:
        return "gone", ""
    letter = DeadLetter.of(path, info)
    if target:
        return _replay_to(queue, letter, chosen, dry_run, target)
    if chosen.error_types and letter.lines:
        return _replay_lines(letters, letter, chosen, dry_run)
    if not chosen.wants(letter.error_type):
        return "unwanted", ""
    is_replayed = letters.is_replayed(letter)
    if dry_run:
        return ("would clear" if is_replayed else "would replay"), ""
    # Not if it has died anew since, of another error.
    arrived = letters.replay(path, error_type=letter.error_type if chosen.error_types else None)
    return ("cleared", "") if is_replayed else ("replayed", arrived)


def _replay_to(queue: Queue, letter: DeadLetter, chosen: Filter, dry_run: bool, target: Queue) -> tuple[str, str]:
    """A repeated call finds the message there, or its record, and only clears the letter away."""
    found = {letter.error_type}
    if chosen.error_types and letter.lines:
        found = set(letter.error_types) or {line.failure.type for line in DeadLetters(queue).lines(letter.path)}
    wanted = {error_type for error_type in found if chosen.wants(error_type)}
    if not wanted:
        return "unwanted", ""
    if wanted != found:
        return "failed", "its lines died of several errors, and go to another queue together: name all of them"
    if dry_run:
        return "would replay", ""
    return "replayed", queue.replay(letter.path, to=target)


def _replay_lines(letters: DeadLetters, letter: DeadLetter, chosen: Filter, dry_run: bool) -> tuple[str, str]:
    """Each line of a batch has an error of its own; the metadata names these errors, if they are few."""
    found = letter.error_types or {line.failure.type for line in letters.lines(letter.path)}
    wanted = [error_type for error_type in found if chosen.wants(error_type)]
    if not wanted:
        return "unwanted", ""
    if dry_run:
        return "would replay", ""
    return "replayed", ", ".join(letters.replay(letter.path, error_type=error_type) for error_type in wanted)


def main(argv: Sequence[str] | None = None) -> int:
    """Replay dead letters; 0 unless some could not be."""
    parser = argparse.ArgumentParser(prog="replay", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--bucket", required=True)
    parser.add_argument("--queue", required=True)
    parser.add_argument("--error-type", action="append", default=[], help="may be repeated; any if left out")
    parser.add_argument("--older-than", type=float, help="seconds since it died, at least")
    parser.add_argument("--newer-than", type=float, help="seconds since it died, at most")
    parser.add_argument("--path-prefix", default="", help="for example messages/p200/")
    parser.add_argument("--before", type=parse_instant, help="only what died before this instant; now if left out")
    parser.add_argument("--to", help="another queue of the bucket that they go to")
    parser.add_argument("--dry-run", action="store_true", help="only tell what would be done")
    parser.add_argument("--endpoint-url", help="an S3 server other than AWS")
    chosen = parser.parse_args(argv)
    from spark.runtime.session import build_session

    bucket = Bucket(chosen.bucket, chosen.endpoint_url)
    now = chosen.before or datetime.now(UTC)
    wanted = Filter(
        before=now - timedelta(seconds=chosen.older_than or 0),
        since=now - timedelta(seconds=chosen.newer_than) if chosen.newer_than is not None else None,
        error_types=tuple(chosen.error_type),
        path_prefix=chosen.path_prefix,
    )
    if chosen.to is not None:
        try:
            _target_settings(bucket, chosen.queue, chosen.to)
        except InvalidRequest as mistake:
            # Before a session is started, which takes a minute of machines.
            parser.error(str(mistake))
    told = replay(build_session("s3queue replay"), bucket, chosen.queue, wanted, dry_run=chosen.dry_run, to=chosen.to)
    # ASCII: paths and errors are strangers' words.
    print(json.dumps(told))
    return 1 if told["counts"].get("failed") else 0


if __name__ == "__main__":
    sys.exit(main())
