"""Batches: messages a second and requests a message, by messages per object, against PGMQ with the same batches.

Both sides are one Python process: ours a worker of four threads, PGMQ's a loop over one connection, as its clients are
written and as it was measured before; at the size of the goal also over four. A message is a small JSON document that
is encoded by who sends it and decoded for a handler that does nothing. Both confirm only what is on the disk. The S3
server, or PostgreSQL, shares the machine's cores with its client.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from typing import Any

from s3queue import Queue, Worker
from support.counting_store import CountingStore
from support.s3_servers import fresh_bucket, s3_client, seaweedfs_server

from .instruments.crews import crew
from .instruments.harness import Bench, Part
from .instruments.scene import queue_at
from .peers.postgres import Postgres, pgmq_script, postgres, programs

#: Messages per object, and how many objects a run has.
OBJECTS = {1: 400, 10: 300, 100: 200, 1_000: 60}
THREADS = 4
#: Single messages, in so many partitions.
PARTITIONS, SINGLES = 4, 1_500
#: The size at which ours is to be above PGMQ.
GOAL_AT = 100
#: The sizes at which several processes of ours are to be above PGMQ's connections, and how many processes.
IN_PROCESSES, PROCESSES = (100, 1_000), 2
KNOWN = "measured before, in batches of 100: send 25,630/s, read and delete 21,026/s"


def run(bench: Bench) -> None:
    with bench.part("batches", "Batches, against PGMQ on PostgreSQL") as part, ExitStack() as stack:
        endpoint = stack.enter_context(seaweedfs_server())
        bucket = fresh_bucket(s3_client(endpoint))
        server = stack.enter_context(pgmq_server(bench))

        def new(**settings: Any) -> Queue:
            return queue_at(endpoint, bucket, **settings)

        for size, objects in OBJECTS.items():
            for connections in (1, THREADS) if size == GOAL_AT and server else (1,):
                _rates(bench, new, server, size, objects, connections)
        for connections in (1, THREADS) if server else (1,):
            _rates(bench, new, server, 1, SINGLES, connections, partitions=PARTITIONS)
        for size in IN_PROCESSES if server else ():
            _rates_in_processes(bench, endpoint, bucket, server, size)
        _requests(bench, lambda: queue_at(endpoint, bucket))
        if server:
            _unsafe(bench, part, server)
        bench.note(f"one process on each side; ours has {THREADS} threads")


@contextmanager
def pgmq_server(bench: Bench) -> Iterator[Postgres | None]:
    home, script = programs(), pgmq_script()
    if home is None:
        bench.skip(f"PGMQ: PostgreSQL's server is not installed here (`apt-get install postgresql`); {KNOWN}")
    elif script is None:
        bench.skip(f"PGMQ: the Python package pgmq, which carries its SQL, is not installed; {KNOWN}")
    else:
        with postgres(home, *script) as server:
            bench.note(f"PGMQ {server.pgmq} on PostgreSQL {server.version}, settings as they come (fsync on)")
            yield server
        return
    yield None


def _rates(
    bench: Bench,
    new: Callable[..., Queue],
    server: Postgres | None,
    size: int,
    objects: int,
    connections: int,
    partitions: int = 0,
) -> None:
    """With a record of each message against PGMQ's archive, and without one against its delete."""
    bodies = _bodies(size * objects)
    shown = f"{size} messages per object{', in partitions' if partitions else ''}"
    ours: dict[bool, list[tuple[float, float]]] = {True: [], False: []}
    theirs: dict[bool, list[tuple[float, float]]] = {True: [], False: []}
    with bench.console.status(shown) as status:
        for turn in range(bench.repetitions):
            status.update(f"{shown}: {turn + 1} of {bench.repetitions}")
            for keeps in ours:
                if server and turn % 2:
                    theirs[keeps].append(_pgmq(server, bodies, size, connections, keeps=keeps))
                ours[keeps].append(_ours(new(history=keeps, partitions=partitions), bodies, size))
                if server and not turn % 2:
                    theirs[keeps].append(_pgmq(server, bodies, size, connections, keeps=keeps))
    for index, keeps, what, their in (
        (0, True, "enqueue", "send"),
        (1, True, "process, record kept", "read, archive"),
        (1, False, "process, no record", "read, delete"),
    ):
        said = f"{what}, {size:,} per object{', in partitions' if partitions else ''}"
        mine = [rates[index] for rates in ours[keeps]]
        if not server:
            bench.series(said, mine, unit="messages/s")
            continue
        pairs = list(zip(mine, (rates[index] for rates in theirs[keeps]), strict=True))
        goal = 1 if partitions or (size == GOAL_AT and connections == 1) else None
        against = f"PGMQ, {their}, {connections} connection{'s' if connections > 1 else ''}"
        bench.pair(said, pairs, against, unit="messages/s", goal=goal)


def _rates_in_processes(bench: Bench, endpoint: str, bucket: str, server: Postgres, size: int) -> None:
    """As `s3queue work --processes`, against as many connections of PGMQ as ours have threads in a process."""
    objects = OBJECTS[size]
    bodies = _bodies(size * objects)
    ours, theirs = [], []
    with bench.console.status(f"{size} messages per object, in processes"):
        for turn in range(bench.repetitions):
            if turn % 2:
                theirs.append(_pgmq(server, bodies, size, THREADS, keeps=True))
            ours.append(_ours_in_processes(endpoint, bucket, size, objects))
            if not turn % 2:
                theirs.append(_pgmq(server, bodies, size, THREADS, keeps=True))
    for index, what, their in ((0, "enqueue", "send"), (1, "process, record kept", "read, archive")):
        pairs = [(mine[index], other[index]) for mine, other in zip(ours, theirs, strict=True)]
        said = f"{what}, {size:,} per object, {PROCESSES} processes"
        bench.pair(said, pairs, f"PGMQ, {their}, {THREADS} connections", unit="messages/s", goal=1)


def _ours_in_processes(endpoint: str, bucket: str, size: int, objects: int) -> tuple[float, float]:
    name = f"ours-{uuid.uuid4().hex[:12]}"
    options = {"endpoint": endpoint, "bucket": bucket, "queue": name, "concurrency": THREADS, "per_object": size}
    messages = size * objects
    with crew(PROCESSES, role="produce", messages=messages // PROCESSES, **options) as producers:
        enqueued, _ = producers.run(messages)
    with crew(PROCESSES, role="work", **options) as workers:
        processed, _ = workers.run(objects)
    return messages / enqueued, messages / processed


def _requests(bench: Bench, new: Callable[[], Queue]) -> None:
    for size, objects in OBJECTS.items():
        queue = new()
        counted = CountingStore(queue.store)
        _ours(Queue(store=counted, name=queue.name), _bodies(size * objects), size)
        requests, billed = sum(counted.requests.values()), counted.billed
        messages = size * objects
        bench.series(
            f"requests a message, {size:,} per object",
            [requests / messages],
            unit="",
            note=f"billed: {billed / messages:.3g}",
        )


def _unsafe(bench: Bench, part: Part, server: Postgres) -> None:
    """What PGMQ would do if it did not wait for the disk. Ours has no such switch."""
    import psycopg

    with psycopg.connect(server.address, autocommit=True) as connection:
        connection.execute("ALTER SYSTEM SET fsync = off")
        connection.execute("SELECT pg_reload_conf()")
    sent, processed = _pgmq(server, _bodies(GOAL_AT * OBJECTS[GOAL_AT]), GOAL_AT, 1, keeps=False)
    part.raw["PGMQ without fsync"] = {"send": sent, "read and delete": processed, "batch": GOAL_AT}
    bench.note(f"PGMQ with fsync off, batches of {GOAL_AT}: send {sent:,.0f}/s, read and delete {processed:,.0f}/s")


def _bodies(messages: int) -> list[dict[str, Any]]:
    return [{"number": number, "payload": "x" * 100} for number in range(messages)]


# Ours


def _ours(queue: Queue, bodies: Sequence[dict[str, Any]], size: int) -> tuple[float, float]:
    """Messages/s to enqueue, and to process."""
    began = time.perf_counter()
    if size == 1:
        with ThreadPoolExecutor(THREADS) as pool:
            list(pool.map(queue.enqueue, bodies))
    else:
        queue.enqueue_many(bodies, per_object=size, concurrency=THREADS)
    enqueued = len(bodies) / (time.perf_counter() - began)
    worker = Worker(queue, _one if size == 1 else _many, concurrency=THREADS)
    objects = len(bodies) // size
    began = time.perf_counter()
    worker.start()
    try:
        while worker.stats()["succeeded"] < objects:
            time.sleep(0.002)
        return enqueued, len(bodies) / (time.perf_counter() - began)
    finally:
        worker.stop()


def _one(_message: dict) -> None: ...


def _many(_messages: list[dict]) -> None: ...


# PGMQ


def _pgmq(
    server: Postgres, bodies: Sequence[dict[str, Any]], size: int, threads: int, *, keeps: bool
) -> tuple[float, float]:
    """Messages/s to send, and to read and archive or delete."""
    import psycopg

    queue = f"q{uuid.uuid4().hex[:12]}"
    with ExitStack() as stack:
        connections = [stack.enter_context(psycopg.connect(server.address, autocommit=True)) for _ in range(threads)]
        connections[0].execute("SELECT pgmq.create(%s)", (queue,))
        shares = list(zip(connections, _shares(bodies, size, threads), strict=True))
        sent = len(bodies) / _timed(lambda given: _send(*given, queue, size), shares)
        end = "archive" if keeps else "delete"
        processed = len(bodies) / _timed(lambda connection: _read_and(end, connection, queue, size), connections)
        connections[0].execute("SELECT pgmq.drop_queue(%s)", (queue,))
    return sent, processed


def _send(connection: Any, share: Sequence[dict[str, Any]], queue: str, size: int) -> None:
    for first in range(0, len(share), size):
        encoded = [json.dumps(body) for body in share[first : first + size]]
        if size == 1:
            connection.execute("SELECT pgmq.send(%s, %s::jsonb)", (queue, encoded[0]))
        else:
            connection.execute("SELECT pgmq.send_batch(%s, %s::jsonb[])", (queue, encoded))


def _read_and(end: str, connection: Any, queue: str, size: int) -> None:
    read = "SELECT msg_id, message FROM pgmq.read(%s, 30, %s)"
    while rows := connection.execute(read, (queue, size)).fetchall():
        if size == 1:
            _one(rows[0][1])
            connection.execute(f"SELECT pgmq.{end}(%s, %s::bigint)", (queue, rows[0][0]))
        else:
            _many([message for _, message in rows])
            connection.execute(f"SELECT pgmq.{end}(%s, %s::bigint[])", (queue, [number for number, _ in rows]))


# Both


def _shares(bodies: Sequence[dict[str, Any]], size: int, threads: int) -> list[Sequence[dict[str, Any]]]:
    """One for each thread, in whole objects."""
    each = len(bodies) // size // threads * size
    return [bodies[first : first + each] for first in range(0, len(bodies), each)]


def _timed(work: Callable[[Any], None], shares: Sequence[Any]) -> float:
    """Seconds until every thread has done its share."""
    with ThreadPoolExecutor(len(shares)) as pool:
        began = time.perf_counter()
        for done in [pool.submit(work, share) for share in shares]:
            done.result()
        return time.perf_counter() - began
