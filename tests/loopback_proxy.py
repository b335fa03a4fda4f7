"""A TCP proxy on the loopback interface that a test can cut, or have hold back what one side says."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field

_CHUNK = 65536


@dataclass
class Proxy:
    """Passes connections to its own :attr:`port` on to *target*, a port of this machine.

    :param heard: all that clients have said so far.
    """

    target: int
    heard: bytearray = field(default_factory=bytearray)

    def __post_init__(self) -> None:
        self._held: list[threading.Event] = []
        self.let_pass()
        self._up = True
        self._ends: set[socket.socket] = set()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def hold(self, side: str) -> threading.Event:
        """Keep back what one side of each connection made from now on says, until the event is set.

        It is passed on even then when whoever said it is gone.

        :param side: ``requests`` or ``answers``.
        """
        gate = threading.Event()
        self._held.append(gate)
        self._gates = {**self._gates, side: gate}
        return gate

    def let_pass(self) -> None:
        """Connections made from now on are passed on at once."""
        gate = threading.Event()
        gate.set()
        self._gates = {"requests": gate, "answers": gate}

    def cut(self) -> None:
        """Break every connection, and each new one at once."""
        self._up = False
        for each in list(self._ends):
            _shut(each)

    def mend(self) -> None:
        self._up = True

    def close(self) -> None:
        self.cut()
        # A listener that is only closed would go on accepting.
        _shut(self._listener)
        self._listener.close()
        for gate in self._held:
            gate.set()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:  # closed
                return
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with client, contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.target)) as server:
            if not self._up:
                return
            ends, gates = {client, server}, self._gates
            self._ends |= ends
            back = threading.Thread(
                target=self._pass_on, args=(server, client, gates["answers"], bytearray()), daemon=True
            )
            back.start()
            self._pass_on(client, server, gates["requests"], self.heard)
            back.join()
            self._ends -= ends

    def _pass_on(self, source: socket.socket, sink: socket.socket, gate: threading.Event, said: bytearray) -> None:
        with contextlib.suppress(OSError):
            while chunk := source.recv(_CHUNK):
                said += chunk
                gate.wait()
                sink.sendall(chunk)
        with contextlib.suppress(OSError):
            sink.shutdown(socket.SHUT_WR)


def _shut(end: socket.socket) -> None:
    with contextlib.suppress(OSError):
        end.shutdown(socket.SHUT_RDWR)


@contextlib.contextmanager
def proxy(target: int) -> Iterator[Proxy]:
    found = Proxy(target)
    try:
        yield found
    finally:
        found.close()
