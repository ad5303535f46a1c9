"""Who may send which request to which object: the protocol's table of prefixes, as IAM statements.

Written by hand because CDK's `grant_read` and its kin also grant LIST on the whole bucket, and that would let the
worker of one queue see the names, and so the existence, of every other queue's messages.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from aws_cdk import aws_iam as iam
from aws_cdk import aws_s3 as s3

from s3queue.keys import LATEST_STATISTICS, STATISTICS_STATE, Keys
from s3queue.spark_runs.data import DESTINATION, SOURCES

#: What a worker does to its own queue: g = GET and HEAD, p = PUT, d = DELETE. tests/infra/test_requests.py runs the
#: library under these tables: what it sends is in them, and what is in them it sends. A condition on an ETag needs GET
#: too; a COPY to `dead/` or `done/` is a GET of the message and a PUT, and beyond 5 GB it ends with a HEAD.
WORKER: Mapping[str, str] = {
    "messages": "gd",
    "delayed": "gd",
    "leases": "gpd",
    "records": "gp",
    "retries": "pd",
    "dead": "gp",
    # With `keep_payload`, which can be switched on at run time.
    "done": "gp",
    # For handlers: Lock, S3PersistenceLayer, and a place for what they make.
    "locks": "gp",
    "idempotency": "gpd",
    "results": "p",
}
#: What a rate needs, which an operator may set at run time; not where messages go to Spark, which has none.
LIMITED: Mapping[str, str] = {"limits": "gp"}
#: What a handler's `enqueue` does to the queue that it sends to. It reads after an unknown answer only: is the message
#: there, or its outcome? Missing objects are a 403 to it, as its names are nobody's business; `enqueue` knows that.
SENDER: Mapping[str, str] = {"messages": "gp", "delayed": "gp", "records": "g", "dedup": "gp"}
#: Large sends of its own messages, in a queue that sends; and what finishing them takes, for whoever finds them.
OUTBOX: Mapping[str, str] = {"outbox": "gpd"}
FOUND_OUTBOX: Mapping[str, str] = {"outbox": "gd"}
#: To store what a message of another queue has sent.
FOUND_SENDS: Mapping[str, str] = {"messages": "p", "delayed": "p"}
#: Of a queue whose messages are part of flows: outcomes and decisions of flows are written by whoever is last, and each
#: is written once; the marker is its own. A handler of it may start flows, whose home is its own queue.
FLOW_DATA: Mapping[str, str] = {"flows/*/d": "gp", "flows/*/flow.json": "gp", "flows/*/started": "gp"}
FLOW_MARKERS: Mapping[str, str] = {"flows": "pd"}
#: The sweeper stores what a crash left of a flow: its documents, the markers of flows within, and messages.
FOUND_FLOW_DATA: Mapping[str, str] = {"flows/": "gp"}
FOUND_FLOW_MARKERS: Mapping[str, str] = {"flows": "pd"}
#: The sweeper does for a silent worker what that worker would have done, and removes what is left behind.
SWEEPER: Mapping[str, str] = {
    "messages": "gd",
    # What schedules ask for is PUT there.
    "delayed": "gpd",
    "leases": "gpd",
    "records": "gp",
    "retries": "gpd",
    "dead": "gpd",
    "dedup": "gd",
    "done": "gp",
    "locks": "gd",
    "workers": "gd",
    "limits": "gd",
    "schedules": "gpd",
}
#: Whoever launches runs takes slots, writes manifests, and keeps a heartbeat for a run that cannot have one yet.
LAUNCHER: Mapping[str, str] = {"runs": "gpd", "workers": "gpd"}
#: A run's driver does what a worker does, and keeps its slot, manifest and heartbeat.
DRIVER: Mapping[str, str] = {**LAUNCHER}
#: Below it EMR writes what drivers and executors say, of every run.
SPARK_LOGS_PREFIX = "analytics/spark-logs/"
SPARK_LOGS: Mapping[str, str] = {SPARK_LOGS_PREFIX: "p"}
#: What a run's jobs read and write besides, as prefixes of the bucket: what the exports queue allows, and no more.
JOB_DATA: Mapping[str, str] = {
    **dict.fromkeys(SOURCES, "g"),
    # Which files of the archive count, if part of it may be exported.
    **({"archive/_delta_log/": "g"} if any(source.startswith("archive/") for source in SOURCES) else {}),
    DESTINATION: "gpd",
    **SPARK_LOGS,
}
#: Archive and statistics read every queue's outcomes and write beside the queues. A commit is never taken back; files
#: that a compaction replaced are. `_log` is that of the layout before the table, which is converted.
HISTORY: Mapping[str, str] = {"records": "g"}
HISTORY_DATA: Mapping[str, str] = {
    "archive/_delta_log/": "gp",
    "archive/queue=*/_log/": "g",
    "archive/queue=*/day=": "gpd",
    "analytics/hours/": "gp",
}
#: Bulk enqueue and replay, which is a PUT of the message and a DELETE of the letter; if only some lines of a batch are
#: replayed, a PUT of the letter without them. Of a group, it looks for an earlier replay in the lease, too, and PUTs a
#: marker. tests/spark/test_roles.py holds these tables, too, against what the jobs send.
BULK: Mapping[str, str] = {"messages": "p", "dead": "pd", "dedup": "p", "bulk": "gp"}
#: What it reads, in one pattern, or a hundred queues would have no room: `messages`, `delayed`, `records`, `dead`,
#: `leases` and `dedup`; and `retries` and `results`, which it leaves alone. Besides, `queue-settings.json` of a queue
#: that is replayed into.
BULK_PATTERNS: Mapping[str, str] = {"?e*": "g", "queue-s*": "g"}
BULK_DATA: Mapping[str, str] = {"datasets/": "g"}
#: The API shows everything of a queue, so it reads the whole prefix: five names in a policy instead of nine, or a
#: hundred queues would have no room. It enqueues, cancels, moves or deletes dead letters, or lines of them, and makes,
#: pauses and removes schedules. The readers' API shows the same but payloads, which only its code can hold back: HEAD
#: and GET are one permission.
API: Mapping[str, str] = {"schedules": "pd"}
#: In few patterns, for the same reason: `messages`, `delayed`, `dead`, `dedup`, `leases` and `records`, and `retries`,
#: which it leaves alone; `queue.json` and `queue-breaker.json`. No outcome is taken back, and what handlers made is not
#: touched.
API_PATTERNS: Mapping[str, str] = {"?e*": "pd", "queue*": "p"}
API_DENIED: Mapping[str, str] = {"records": "d", "results": "pd"}
#: It shows all flows; it cancels them if there is a queue for flows: outcomes and decisions. Their markers it leaves to
#: the sweeper: with one more name for each of a hundred queues, its role would have too many policies.
API_FLOWS: Mapping[str, str] = {"flows/": "g"}
API_FLOW_CHANGES: Mapping[str, str] = {"flows/*/d": "p"}
#: What Spark computed, for the API to show.
STATISTICS = LATEST_STATISTICS
#: A policy is split between statements, so none may be large. CDK joins small ones, as far as they fit.
_NAMES_PER_STATEMENT, _PREFIXES_PER_STATEMENT = 4, 20

_ACTIONS = {"g": "s3:GetObject", "p": "s3:PutObject", "d": "s3:DeleteObject"}


def worker_statements(
    bucket: s3.IBucket, queue: str, *, sends_to: Sequence[str] = (), launches: bool = False, flows: bool = False
) -> list[iam.PolicyStatement]:
    """One queue's prefix and nothing else; `sends_to` names the queues that its handler enqueues to; `flows`: its
    messages are part of flows.
    """
    keys = Keys(queue)
    table = {**WORKER, **(LAUNCHER if launches else LIMITED), **(OUTBOX if sends_to else {})}
    table |= FLOW_MARKERS if flows else {}
    documents = {keys.overrides: "g"} | ({} if launches else {keys.breaker: "gp"})
    documents |= _below(FLOW_DATA) if flows else {}
    return [
        *_on_objects(bucket, _patterns(keys, table) | documents),
        *_list(bucket, [f"{keys.root}*", *(["flows/*"] if flows else [])]),
        *(statement for target in sends_to for statement in sender_statements(bucket, target)),
        *use_key(bucket),
    ]


def sender_statements(bucket: s3.IBucket, queue: str) -> list[iam.PolicyStatement]:
    """Enqueue, with all that the library asks for: whether a PUT without an answer arrived, `queue.json` for a
    `max_depth`, and `stats.json` for the depth. The last two may be missing, and whoever may not list gets no 404.
    """
    keys = Keys(queue)
    documents = [keys.overrides, keys.stats]
    return [
        *_on_objects(bucket, _patterns(keys, SENDER) | dict.fromkeys(documents, "g")),
        *_list(bucket, documents),
    ]


def job_statements(
    bucket: s3.IBucket, queues: Mapping[str, Sequence[str]], *, flows: Sequence[str] = ()
) -> list[iam.PolicyStatement]:
    """A run's driver and executors: the heavy queues, the queues that each sends to, and the data that jobs work on.

    `flows` names those whose messages are part of flows: a run does what their workers would.
    """
    own = []
    for keys in map(Keys, queues):
        table = {**WORKER, **DRIVER, **(OUTBOX if queues[keys.queue] else {})}
        table |= FLOW_MARKERS if keys.queue in flows else {}
        own.append(_patterns(keys, table) | {keys.overrides: "g"})
    own += [_below(FLOW_DATA)] if flows else []
    targets = sorted({target for some in queues.values() for target in some})
    prefixes = [*JOB_DATA, *(["flows/"] if flows else [])]
    listed = _list(bucket, [*(f"{Keys(queue).root}*" for queue in queues), *(f"{prefix}*" for prefix in prefixes)])
    # Large files go in parts.
    parts = iam.PolicyStatement(
        actions=["s3:AbortMultipartUpload"], resources=[bucket.arn_for_objects(f"{DESTINATION}*")]
    )
    sends = [statement for target in targets for statement in sender_statements(bucket, target)]
    return [*_on_objects(bucket, _below(JOB_DATA), *own), *listed, *sends, parts, *use_key(bucket)]


def history_statements(bucket: s3.IBucket, queues: Sequence[str]) -> list[iam.PolicyStatement]:
    """Archive and statistics: outcomes in, Parquet and figures out; no message, no lease, no other object."""
    data = _below({**HISTORY_DATA, **SPARK_LOGS}) | {STATISTICS: "gp", STATISTICS_STATE: "gp"}
    own = [_patterns(keys, HISTORY) for keys in map(Keys, queues)]
    outcomes = [f"{Keys(queue).prefix(kind)}*" for queue in queues for kind in HISTORY]
    listed = _list(bucket, [*outcomes, "archive/*", STATISTICS, STATISTICS_STATE, "analytics/hours/*"])
    # What a compaction writes goes in parts if it is large.
    parts = iam.PolicyStatement(
        actions=["s3:AbortMultipartUpload"], resources=[bucket.arn_for_objects("archive/queue=*/day=*")]
    )
    return [*_on_objects(bucket, data, *own), *listed, parts, *use_key(bucket)]


def bulk_statements(bucket: s3.IBucket, queues: Sequence[str]) -> list[iam.PolicyStatement]:
    """Bulk enqueue and replay: datasets and dead letters become messages; outcomes are only read."""
    own = [_patterns(keys, BULK) | _short(keys, BULK_PATTERNS) for keys in map(Keys, queues)]
    roots = [*(f"{Keys(queue).root}*" for queue in queues), *(f"{prefix}*" for prefix in BULK_DATA)]
    data = _below({**BULK_DATA, **SPARK_LOGS})
    return [*_on_objects(bucket, data, *own), *_list(bucket, roots), *use_key(bucket)]


def sweeper_statements(
    bucket: s3.IBucket,
    queues: Mapping[str, Sequence[str]],
    *,
    heavy: Sequence[str] = (),
    flows: Sequence[str] = (),
) -> list[iam.PolicyStatement]:
    """Every queue's prefix, by name: what else lies in the bucket (archive, analytics) is not the sweeper's.

    `queues` says to which others each one sends: what a crash left unsent, the sweeper stores there. `flows` names
    those whose messages are part of flows.
    """
    own: dict[str, str] = {}
    for keys in map(Keys, queues):
        table = {**SWEEPER, **(LAUNCHER if keys.queue in heavy else {}), **(FOUND_OUTBOX if queues[keys.queue] else {})}
        table |= FOUND_FLOW_MARKERS if keys.queue in flows else {}
        own |= _patterns(keys, table) | {
            keys.overrides: "g",
            keys.stats: "gp",
            keys.progress: "gpd",
            keys.settings: "gp",
        }
    own |= _below(FOUND_FLOW_DATA) if flows else {}
    for target in sorted({target for targets in queues.values() for target in targets} | {*flows}):
        for pattern, letters in _patterns(Keys(target), FOUND_SENDS).items():
            own[pattern] = "".join(sorted({*own.get(pattern, ""), *letters}, key="gpd".index))
    listed = _list(bucket, [*(f"{Keys(queue).root}*" for queue in queues), *(["flows/*"] if flows else [])])
    return [*_on_objects(bucket, own), *listed, *use_key(bucket)]


def api_statements(
    bucket: s3.IBucket, queues: Sequence[str], *, changes: bool = True, flows: bool = False
) -> list[iam.PolicyStatement]:
    """Every queue by name; pausing one is a write of its `queue.json`. Without `changes`, nothing can be written.

    `flows`: messages of some are part of flows.
    """
    roots = [f"{Keys(queue).root}*" for queue in queues]
    written = [_below(API_FLOW_CHANGES)] if changes and flows else []
    if changes:
        written += [_patterns(keys, API) | _short(keys, API_PATTERNS) for keys in map(Keys, queues)]
    shown = [*roots, *(f"{prefix}*" for prefix in API_FLOWS), STATISTICS]
    kept = [_patterns(keys, API_DENIED) for keys in map(Keys, queues)] if changes else []
    denied = _on_objects(bucket, *kept, effect=iam.Effect.DENY)
    read = dict.fromkeys(shown, "g")
    return [*_on_objects(bucket, read, *written), *denied, *_list(bucket, shown), *use_key(bucket, writes=changes)]


def producer_statement(bucket: s3.IBucket, queue: str) -> iam.PolicyStatement:
    """Enqueue, now or later, and nothing else: a producer cannot even read back what it sent."""
    keys = Keys(queue)
    return iam.PolicyStatement(
        actions=["s3:PutObject"],
        resources=[bucket.arn_for_objects(keys.prefix(kind) + "*") for kind in ("messages", "delayed")],
    )


def create_only_statements(bucket: s3.IBucket, queue: str) -> list[iam.PolicyStatement]:
    """Enqueue, but never over a message that waits: every PUT must say `If-None-Match: *`, the only value S3 takes.

    The parts of a multipart upload cannot say it; what makes the object of them (`s3:ObjectCreationOperation`) must.
    """
    whole, parts = producer_statement(bucket, queue), producer_statement(bucket, queue)
    whole.add_condition("Null", {"s3:if-none-match": "false"})
    parts.add_condition("Bool", {"s3:ObjectCreationOperation": "false"})
    return [whole, parts]


def use_key(bucket: s3.IBucket, *, reads: bool = True, writes: bool = True) -> list[iam.PolicyStatement]:
    """What S3 asks for in the caller's name if the bucket has a KMS key: for this bucket's objects, and no others.

    The parts of an upload are read again when they are put together, so whoever writes large objects needs both.
    """
    if bucket.encryption_key is None:
        return []
    actions = [*(["kms:Decrypt"] if reads else []), *(["kms:GenerateDataKey"] if writes else [])]
    # With a bucket key S3 names the bucket; whoever switches that off in a PUT, the object.
    named = [bucket.bucket_arn, bucket.arn_for_objects("*")]
    return [
        iam.PolicyStatement(
            actions=actions,
            resources=[bucket.encryption_key.key_arn],
            conditions={"StringLike": {"kms:EncryptionContext:aws:s3:arn": named}},
        )
    ]


def _patterns(keys: Keys, table: Mapping[str, str]) -> dict[str, str]:
    return {f"{keys.prefix(kind)}*": letters for kind, letters in table.items()}


def _short(keys: Keys, patterns: Mapping[str, str]) -> dict[str, str]:
    return {keys.root + pattern: letters for pattern, letters in patterns.items()}


def _below(data: Mapping[str, str]) -> dict[str, str]:
    return {f"{prefix}*": letters for prefix, letters in data.items()}


def _on_objects(
    bucket: s3.IBucket, *patterns: Mapping[str, str], effect: iam.Effect = iam.Effect.ALLOW
) -> list[iam.PolicyStatement]:
    # Grouped by what is allowed, so that each name appears once.
    pairs = sorted({(letters, pattern) for some in patterns for pattern, letters in some.items()})
    by_letters = {allowed: [pattern for letters, pattern in pairs if letters == allowed] for allowed, _ in pairs}
    return [
        iam.PolicyStatement(
            effect=effect,
            actions=[_ACTIONS[letter] for letter in allowed],
            resources=[bucket.arn_for_objects(pattern) for pattern in some],
        )
        for allowed, found in by_letters.items()
        for some in _chunks(found, _NAMES_PER_STATEMENT)
    ]


def _list(bucket: s3.IBucket, prefixes: Sequence[str]) -> list[iam.PolicyStatement]:
    # Also what turns a missing object into a 404 instead of a 403, which the protocol tells apart.
    return [
        iam.PolicyStatement(
            actions=["s3:ListBucket"],
            resources=[bucket.bucket_arn],
            conditions={"StringLike": {"s3:prefix": some}},
        )
        for some in _chunks(prefixes, _PREFIXES_PER_STATEMENT)
    ]


def _chunks(names: Sequence[str], size: int) -> list[list[str]]:
    return [list(names[at : at + size]) for at in range(0, len(names), size)]
