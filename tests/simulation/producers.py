"""Producers: they PUT names once or several times, in every form of a message, and repeat what is unknown."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from s3queue.errors import QueueError, Unavailable
from s3queue.paths import due_of

from .cast import Cast
from .chains import draw_chain
from .machines import Process

#: What a handler does, attempt by attempt; the last letter holds for all that follow. k: ok, f: fails, r: rejects.
PLANS = ("k", "k", "k", "k", "fk", "fk", "ffk", "f", "f", "r", "kf", "kr", "fr")
FORMS = ("single", "single", "single", "batch", "delayed", "urgent", "unnamed", "dedup", "many")
#: Forms whose names are the library's, or say that equal bytes are the same message: they are not PUT anew.
ONCE = ("unnamed", "many")


class Producers:
    """Everyone who enqueues into one queue."""

    def __init__(self, cast: Cast, lasts: float) -> None:
        self._cast = cast
        self._world = cast.world
        self._began_at = cast.world.now
        self._lasts = lasts
        self.at_work = 0
        #: Forms of messages that this queue can have; a queue with limits of its own has fewer.
        self.forms: tuple[str, ...] = FORMS
        #: Whether what handlers send goes into groups.
        self.is_chained = False

    def produce(self) -> None:
        """One name, PUT once or several times."""
        chance, profile = self._world.random, self._cast.profile
        number = self._cast.count("messages")
        # Only names that are PUT anew can be overtaken by an upload that began before.
        form = chance.choice(self.forms[:4] if profile.multipart else self.forms)
        puts = [(self._began_at + chance.random() * self._lasts * 0.4, self._body(f"{number}a", form))]
        while profile.re_puts and form not in ONCE and len(puts) < 4 and chance.random() < 0.5:
            body = puts[-1][1]
            if not (profile.equal_re_puts and chance.random() < 0.6):
                body = self._body(f"{number}{'abcd'[len(puts)]}", form)
            puts.append((puts[-1][0] + chance.choice((0.3, 2.0, 8.0, 16.0)) * chance.random(), body))
        process = self._cast.process("producer")
        self.keep(process, lambda: self._put_all(process, number, form, puts))

    def _put_all(self, process: Process, number: int, form: str, puts: list[tuple[float, bytes]]) -> None:
        world, chance, queue = self._world, self._world.random, self._cast.queue(process)
        options = self._options(number, form)
        for at, body in puts:
            world.sleep(max(0.0, at - world.now))
            if self._cast.profile.multipart and form not in ("delayed", *ONCE) and chance.random() < 0.4:
                self._upload(process, f"{queue.keys.root}messages/{options.get('name', f'm{number}')}", body)
                continue
            for _ in range(3):
                try:
                    if form == "many":
                        queue.enqueue_many(body.splitlines(), **options)
                        break
                    path = queue.enqueue(body, **options)
                except Unavailable:
                    # Its own name again: with a name or a dedup id, calling again is safe.
                    if form in ONCE:
                        break
                    continue
                except QueueError:
                    continue
                if "delay" in options:
                    # A re-PUT has the same name only if it has the same due time.
                    options = {"name": options["name"], "due_at": due_of(path)}
                break

    def _options(self, number: int, form: str) -> dict[str, Any]:
        chance = self._world.random
        if form == "unnamed":
            return {}
        if form == "many":
            return {"per_object": 2, "concurrency": 2}
        if form == "dedup":
            return {"dedup_id": f"d{number}"}
        # Some names look like the mark of a second dead letter.
        mark = ".ndjson" if form == "batch" else chance.choice(("", "", "", "~0123456789ab"))
        options: dict[str, Any] = {"name": f"m{number}{mark}"}
        if form == "urgent":
            options["priority"] = 200
        if form == "delayed":
            options["delay"] = chance.uniform(1.0, 8.0)
        return options

    def _upload(self, process: Process, key: str, body: bytes) -> None:
        """A multipart upload that ends now: S3 dates it by its start, and others may have PUT the name meanwhile."""
        with suppress(QueueError), self._cast.judge.history.call(process, "upload", path=key):
            self._world.store.upload(key, body, seconds=self._world.random.random() * 12.0)

    def keep(self, process: Process, function: Callable[[], None]) -> None:
        """Run it as a process whose end, or death, the schedule waits for."""
        self.at_work += 1

        def end() -> None:
            self.at_work -= 1

        def run() -> None:
            function()
            end()

        process.on_death = end
        self._world.spawn(process, run)

    def _body(self, name: str, form: str) -> bytes:
        if form not in ("batch", "many"):
            return self.script(name)
        count = self._world.random.choice((2, 3, 4))
        return b"".join(self.script(f"{name}{line}") + b"\n" for line in range(1, count + 1))

    def script(self, name: str) -> bytes:
        chance, profile = self._world.random, self._cast.profile
        takes = chance.random() * 0.6
        if profile.long_handlers and chance.random() < profile.long_handlers:
            takes = chance.random() * 10.0
        script = {"id": name, "takes": round(takes, 2), "plan": chance.choice(PLANS)}
        if chance.random() < (0.5 if takes > 0.6 else 0.1):
            script["extends"] = True
        if chance.random() < 0.2:
            script["later"] = True
        if chance.random() < 0.5:
            script["heals"] = "k"
        if profile.sends and chance.random() < profile.sends:
            script |= {"sends": chance.choice((1, 1, 2, 3)), "sent_plan": chance.choice(PLANS)}
            if chance.random() < 0.3:
                script["sent_delay"] = 2.0
            if self.is_chained:
                script |= draw_chain(chance, shares=bool(self._cast.settings.partitions))
        return json.dumps(script).encode()
