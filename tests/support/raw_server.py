"""A server on 127.0.0.1 that sends exactly the bytes it is told to, connection by connection."""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field


@dataclass
class Raw:
    """What came in at a `raw_server`: the request line, the body and the number of the connection, per request."""

    endpoint: str
    requests: list[tuple[str, bytes, int]] = field(default_factory=list)
    #: What followed the request lines, in lower case.
    heads: list[bytes] = field(default_factory=list)


@contextlib.contextmanager
def raw_server(*script: Sequence[bytes | tuple[bytes, ...]], tls: ssl.SSLContext | None = None) -> Iterator[Raw]:
    """Sends these very bytes: the nth connection gets the nth list, one answer per request, and is closed then.

    The parts of a tuple go out one after the other. `Expect: 100-continue` is answered before the body is read: with
    nothing, with a 100, or with a refusal, which is the last word.
    """
    listener = socket.create_server(("127.0.0.1", 0))
    raw = Raw(f"http{'s' if tls else ''}://127.0.0.1:{listener.getsockname()[1]}")
    threads: list[threading.Thread] = []

    def listen() -> None:
        for number in range(len(script)):
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            threads.append(threading.Thread(target=talk, args=(number, connection), daemon=True))
            threads[-1].start()

    def talk(number: int, connection: socket.socket) -> None:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with contextlib.suppress(OSError), connection:
            spoken = tls.wrap_socket(connection, server_side=True) if tls else connection
            with spoken, spoken.makefile("rb") as heard:
                answers = list(script[number])
                while answers and (line := heard.readline()):
                    head = b"".join(iter(heard.readline, b"\r\n")).lower()
                    if b"expect: 100-continue" in head:
                        first = answers.pop(0)
                        say(spoken, first)
                        if first and b" 100 " not in (first if isinstance(first, bytes) else b"".join(first)):
                            return
                    raw.heads.append(head)
                    length = int(head.partition(b"content-length:")[2].partition(b"\r\n")[0] or 0)
                    body = heard.read(length)
                    if len(body) < length:
                        return
                    raw.requests.append((line.decode().strip(), body, number))
                    say(spoken, answers.pop(0))

    def say(connection: socket.socket, answer: bytes | tuple[bytes, ...]) -> None:
        for part in (answer,) if isinstance(answer, bytes) else answer:
            connection.sendall(part)
            time.sleep(0.05 if isinstance(answer, tuple) else 0)

    listening = threading.Thread(target=listen, daemon=True)
    listening.start()
    try:
        yield raw
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        for thread in (listening, *threads):
            thread.join(5)
