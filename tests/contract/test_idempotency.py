"""S3PersistenceLayer: of many calls with one key exactly one runs, and all get its result."""

from __future__ import annotations

import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path

import pytest
from aws_lambda_powertools.utilities.idempotency import IdempotencyConfig, idempotent_function
from aws_lambda_powertools.utilities.idempotency.exceptions import (
    IdempotencyAlreadyInProgressError,
    IdempotencyItemAlreadyExistsError,
    IdempotencyItemNotFoundError,
    IdempotencyPersistenceLayerError,
    IdempotencyValidationError,
)
from aws_lambda_powertools.utilities.idempotency.persistence.datarecord import DataRecord

from s3queue.clock import SystemClock
from s3queue.errors import Unavailable
from s3queue.idempotency import S3PersistenceLayer
from s3queue.keys import Keys
from s3queue.stores.memory import MemoryStore
from s3queue.stores.s3 import S3Store, client
from support.counting_store import CountingStore
from support.s3_servers import fresh_bucket

KEYS = Keys("orders")


class ShiftedClock(SystemClock):
    """This machine's time, and then some: Powertools itself reads the real one."""

    shift = timedelta()

    def now(self):
        return super().now() + self.shift


class RunningOut:
    """A Lambda context that has this much time left."""

    def __init__(self, milliseconds: int) -> None:
        self.milliseconds = milliseconds

    def get_remaining_time_in_millis(self) -> int:
        return self.milliseconds


@pytest.fixture(params=["memory", "moto"])
def store(request):
    if request.param == "memory":
        return MemoryStore()
    connected = client(request.getfixturevalue("moto_endpoint"))
    return S3Store(fresh_bucket(connected), client=connected)


@pytest.fixture
def clock() -> ShiftedClock:
    return ShiftedClock()


@pytest.fixture
def layer(store, clock) -> S3PersistenceLayer:
    return S3PersistenceLayer(store, KEYS, clock=clock)


def idempotent(layer, body, *, milliseconds: int = 60_000, **options):
    """`body(order)` made idempotent by the order's id."""
    config = IdempotencyConfig(
        event_key_jmespath="id", lambda_context=RunningOut(milliseconds), raise_on_no_idempotency_key=True, **options
    )

    @idempotent_function(data_keyword_argument="order", config=config, persistence_store=layer, key_prefix="charge")
    def charge(order):
        return body(order)

    return charge


def records(store) -> int:
    return len(store.list("orders/idempotency/").objects)


def test_a_repeated_call_gets_the_first_result_without_running(layer, store):
    runs = []
    charge = idempotent(layer, lambda order: runs.append(order["id"]) or {"receipt": len(runs), "für": "Zoë"})

    results = [charge(order={"id": "a"}) for _ in range(3)]

    assert results == [{"receipt": 1, "für": "Zoë"}] * 3
    assert charge(order={"id": "b"}) == {"receipt": 2, "für": "Zoë"}
    assert runs == ["a", "b"]
    assert records(store) == 2


def test_a_result_of_nothing_is_a_result(layer):
    runs = []
    charge = idempotent(layer, lambda order: runs.append(1))

    assert (charge(order={"id": "a"}), charge(order={"id": "a"})) == (None, None)
    assert runs == [1]


def test_of_racing_threads_exactly_one_runs_the_body(layer):
    racers = 16
    together = threading.Barrier(racers)
    runs, refused = [], []
    release = threading.Event()

    def body(order):
        runs.append(order["id"])
        release.wait(10)
        return {"receipt": order["id"]}

    charge = idempotent(layer, body)

    def call(racer: int):
        together.wait()
        try:
            return charge(order={"id": "a"})
        except IdempotencyAlreadyInProgressError:
            refused.append(racer)
            if len(refused) == racers - 1:
                release.set()

    with ThreadPoolExecutor(racers) as pool:
        results = list(pool.map(call, range(racers)))

    assert runs == ["a"]
    assert len(refused) == racers - 1
    assert [result for result in results if result] == [{"receipt": "a"}]
    assert charge(order={"id": "a"}) == {"receipt": "a"}


def test_of_racing_threads_over_many_keys_each_key_runs_once(layer):
    runs = []
    charge = idempotent(layer, lambda order: runs.append(order["id"]) or {"receipt": order["id"]})

    def call(number: int):
        try:
            return charge(order={"id": number % 5})
        except IdempotencyAlreadyInProgressError:
            return None

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(call, range(60)))

    assert sorted(runs) == [0, 1, 2, 3, 4]


def test_an_exception_deletes_the_record_so_that_the_next_call_runs(layer, store):
    outcomes = [ValueError("declined"), None]

    def body(order):
        outcome = outcomes.pop(0)
        if outcome:
            raise outcome
        return {"receipt": 1}

    charge = idempotent(layer, body)

    with pytest.raises(ValueError, match="declined"):
        charge(order={"id": "a"})
    assert records(store) == 0
    assert charge(order={"id": "a"}) == {"receipt": 1}


def test_a_call_in_progress_is_not_repeated_until_its_time_has_run_out(layer, clock):
    runs = []

    def body(order):
        runs.append(1)
        if len(runs) == 1:
            raise KeyboardInterrupt  # the function is killed: nobody deletes its record
        return {"receipt": len(runs)}

    charge = idempotent(layer, body, milliseconds=30_000)
    with pytest.raises(KeyboardInterrupt):
        charge(order={"id": "a"})

    with pytest.raises(IdempotencyAlreadyInProgressError):
        charge(order={"id": "a"})

    clock.shift = timedelta(seconds=31)
    assert charge(order={"id": "a"}) == {"receipt": 2}
    assert len(runs) == 2


def test_of_racing_threads_exactly_one_takes_over_what_ran_out(layer, clock):
    put = DataRecord("charge#a", status="INPROGRESS", expiry_timestamp=2**40, in_progress_expiry_timestamp=1)
    layer._put_record(put)
    together = threading.Barrier(8)

    def take(_: int) -> bool:
        again = DataRecord("charge#a", "INPROGRESS", 2**40, in_progress_expiry_timestamp=2**50)
        together.wait()
        try:
            layer._put_record(again)
        except IdempotencyItemAlreadyExistsError:
            return False
        return True

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(take, range(8))) == 1


def test_without_an_in_progress_expiry_a_call_in_progress_blocks_until_the_record_expires(layer, clock):
    layer._put_record(DataRecord("charge#a", "INPROGRESS", expiry_timestamp=int(clock.now().timestamp()) + 100))
    again = DataRecord("charge#a", "INPROGRESS", expiry_timestamp=2**40)

    clock.shift = timedelta(seconds=99)
    with pytest.raises(IdempotencyItemAlreadyExistsError):
        layer._put_record(again)

    clock.shift = timedelta(seconds=102)
    layer._put_record(again)


def test_an_expired_result_is_forgotten(layer, clock):
    runs = []
    charge = idempotent(layer, lambda order: runs.append(1) or {"receipt": len(runs)}, expires_after_seconds=60)
    charge(order={"id": "a"})

    clock.shift = timedelta(seconds=62)

    assert charge(order={"id": "a"}) == {"receipt": 2}


def test_another_payload_under_the_same_key_is_refused(layer):
    runs = []
    charge = idempotent(layer, lambda order: runs.append(1), payload_validation_jmespath="amount")
    charge(order={"id": "a", "amount": 10})

    with pytest.raises(IdempotencyValidationError):
        charge(order={"id": "a", "amount": 99})
    charge(order={"id": "a", "amount": 10})

    assert runs == [1]


def test_the_old_record_comes_with_the_refusal(layer):
    layer._put_record(DataRecord("charge#a", "INPROGRESS", 2**40))
    layer._update_record(DataRecord("charge#a", "COMPLETED", 2**40, response_data='{"receipt": 1}'))

    with pytest.raises(IdempotencyItemAlreadyExistsError) as refused:
        layer._put_record(DataRecord("charge#a", "INPROGRESS", 2**40))

    assert refused.value.old_data_record.status == "COMPLETED"
    assert refused.value.old_data_record.response_json_as_dict() == {"receipt": 1}


def test_a_record_that_does_not_exist_is_not_found(layer):
    with pytest.raises(IdempotencyItemNotFoundError):
        layer._get_record("charge#nothing")


def test_a_record_is_read_back_as_it_was_written(layer):
    written = DataRecord("charge#a", "INPROGRESS", 2**40, 2**50, "", "hash of the payload")
    layer._put_record(written)

    found = layer._get_record("charge#a")

    for name in ("idempotency_key", "status", "expiry_timestamp", "in_progress_expiry_timestamp", "payload_hash"):
        assert getattr(found, name) == getattr(written, name)


def test_a_zombies_failure_does_not_delete_its_successors_record(store, clock):
    zombie, successor = (S3PersistenceLayer(store, KEYS, clock=clock) for _ in range(2))
    zombie._put_record(DataRecord("charge#a", "INPROGRESS", 2**40, in_progress_expiry_timestamp=1))
    successor._put_record(DataRecord("charge#a", "INPROGRESS", 2**40, in_progress_expiry_timestamp=2**50))

    zombie._delete_record(DataRecord("charge#a"))

    assert successor._get_record("charge#a").in_progress_expiry_timestamp == 2**50


@pytest.mark.parametrize("first", ["zombie", "successor"])
def test_of_two_results_the_first_is_kept(store, clock, first):
    zombie, successor = (S3PersistenceLayer(store, KEYS, clock=clock) for _ in range(2))
    zombie._put_record(DataRecord("charge#a", "INPROGRESS", 2**40, in_progress_expiry_timestamp=1))
    successor._put_record(DataRecord("charge#a", "INPROGRESS", 2**40, in_progress_expiry_timestamp=2**50))
    results = {"zombie": zombie, "successor": successor}

    for name in (first, *(name for name in results if name != first)):
        results[name]._update_record(DataRecord("charge#a", "COMPLETED", 2**40, response_data=f'"{name}"'))

    assert zombie._get_record("charge#a").response_data == f'"{first}"'


def test_a_result_is_kept_even_if_the_record_has_vanished(layer, store):
    layer._put_record(DataRecord("charge#a", "INPROGRESS", 2**40))
    store.delete(KEYS.idempotency("charge#a"))

    layer._update_record(DataRecord("charge#a", "COMPLETED", 2**40, response_data='"done"'))

    assert layer._get_record("charge#a").response_data == '"done"'


@pytest.mark.parametrize("garbage", [b"", b"garbage", b'{"v":1}', b'{"v":9}', b'{"v":1,"idempotency_key":"x"}'])
def test_garbage_is_an_error_and_never_a_run(layer, store, garbage):
    runs = []
    charge = idempotent(layer, lambda order: runs.append(1))
    charge(order={"id": "a"})
    key = store.list("orders/idempotency/").objects[0].key
    store.put(key, garbage)

    with pytest.raises(IdempotencyPersistenceLayerError, match="idempotency/"):
        charge(order={"id": "a"})

    assert runs == [1]


def test_a_first_call_costs_two_puts_and_a_repeated_one_a_put_and_a_get(store):
    counting = CountingStore(store)
    charge = idempotent(S3PersistenceLayer(counting, KEYS), lambda order: {"receipt": 1})

    charge(order={"id": "a"})
    assert counting.take() == {"put": 2}
    charge(order={"id": "a"})
    assert counting.take() == {"put": 1, "get": 1}


def test_a_lost_answer_is_no_second_run():
    lost = []

    def around(operation, key, perform):
        answer = perform()
        if operation == "put" and len(lost) < 2:
            lost.append(key)
            raise Unavailable("lost")
        return answer

    runs = []
    charge = idempotent(S3PersistenceLayer(MemoryStore(around=around), KEYS), lambda order: runs.append(1) or {"n": 1})

    assert charge(order={"id": "a"}) == charge(order={"id": "a"}) == {"n": 1}
    assert (runs, len(lost)) == ([1], 2)


def test_importing_s3queue_does_not_import_powertools():
    script = (
        "import sys, s3queue, s3queue.protocol.locks\n"
        "assert not [name for name in sys.modules if name.startswith(('aws_lambda_powertools', 'boto'))]"
    )
    functions = Path(__file__).parents[2] / "functions"

    subprocess.run([sys.executable, "-c", script], env={"PYTHONPATH": str(functions)}, check=True, timeout=60)
