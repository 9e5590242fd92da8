"""The watch over the processes of a run: the death of one ends the others with a sentence.

Process 0 listens on the coordinator's port. Each of the others keeps a connection to it on which
nothing is sent, so the operating system reports a killed process at once, and a host that is gone
after `SILENT_SECONDS`, however busy the processes are.

JAX's coordination service would end the others too, but its client aborts with a stack trace as
soon as its connection to process 0 breaks, and no option of `jax.distributed.initialize` changes
that. So JAX's traffic passes through relays, which do not hand on that a connection broke: process
0 relays what arrives on the coordinator's port to JAX's service, and the others give JAX a port of
their own.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from collections.abc import Callable
from typing import NoReturn

from jaxrl.core.errors import UserError

SILENT_SECONDS = 17  # until a host that no longer answers is given up: 5 + 4 x 3
LEAVE_SECONDS = 10.0
PATIENCE_SECONDS = 10.0
LOST = 1  # exit code after the death of another process
_GREETING = b"jaxrl "  # first bytes of a watch's connection; others are JAX's


class Watch:
    """One process's part of the watch.

    jax_address: where JAX finds its coordination service. On process 0 it is also where the service
        listens.
    """

    jax_address: str

    def __init__(self, process: int, processes: int):
        self.process, self.processes = process, processes
        self.advice: Callable[[], str] = lambda: ""  # a sentence for the user, once there is one
        self._leaving = False
        self._lock = threading.Lock()

    def leave(self) -> None:
        """End the watch; all processes call this when all have done their work."""
        raise NotImplementedError

    def _end(self, lost: int) -> None:
        """End this process, since process `lost` is dead; do nothing while all are leaving."""
        with self._lock:
            if not self._leaving:
                end_process(
                    f"error: Process {lost} of the run's {self.processes} ended, so process "
                    f"{self.process} ends too. {self.advice()}".rstrip()
                )


def end_process(message: str) -> NoReturn:
    """Print a line and end this process at once, whatever its threads are doing."""
    os.write(2, f"{message}\n".encode())
    os._exit(LOST)


class Hub(Watch):
    """The watch of process 0: it listens, and tells the others who is dead."""

    def __init__(self, port: int, processes: int, settings: str):
        """Listen on `port`. settings: what the others' settings must equal.

        Raises:
            UserError: if another program listens there.
        """
        super().__init__(0, processes)
        self.settings = settings
        try:
            self._server = _listen(port)
        except OSError as error:
            raise UserError(
                f"Process 0 cannot listen on port {port}: {error.strerror}; give another port with "
                "--coordinator."
            ) from error
        self.jax_address = f"127.0.0.1:{_free_port()}"
        self._others: dict[int, socket.socket] = {}
        self._left: set[int] = set()
        self._refused = ""
        self._changed = threading.Condition()
        _start(self._accept)

    def wait_for_all(self, seconds: float, say: Callable[[str], None]) -> None:
        """Wait until all processes have come, and tell them so. If that takes long, `say` is called
        with a sentence.

        Raises:
            UserError: if they do not come in `seconds`, or if one does not fit.
        """
        came = lambda: self._refused or len(self._others) == self.processes - 1
        with self._changed:
            if not self._changed.wait_for(came, min(seconds, PATIENCE_SECONDS)):
                say(f"Waiting for {self._missing()} ...")
            if not self._changed.wait_for(came, seconds):
                raise UserError(f"{self._missing()} did not come within {seconds:.0f} seconds.")
            if self._refused:
                raise UserError(self._refused)
        self._tell("start")

    def _missing(self) -> str:
        numbers = sorted(set(range(1, self.processes)) - set(self._others))
        return f"Process {', '.join(map(str, numbers))} of {self.processes}"

    def leave(self) -> None:
        self._leaving = True
        self._tell("bye")
        with self._changed:
            self._changed.wait_for(lambda: self._left >= set(self._others), LEAVE_SECONDS)

    def _tell(self, message: str) -> None:
        for other in list(self._others.values()):
            with contextlib.suppress(OSError):
                other.sendall(f"{message}\n".encode())

    def _accept(self) -> None:
        while True:
            connection, _ = self._server.accept()
            _start(self._serve, connection)

    def _serve(self, connection: socket.socket) -> None:
        with contextlib.suppress(OSError, ValueError):  # a stranger's words are ignored
            first = connection.recv(len(_GREETING), socket.MSG_PEEK | socket.MSG_WAITALL)
            if first == _GREETING:
                self._follow(connection)
            elif first:
                _relay_to_service(connection, self.jax_address)

    def _follow(self, connection: socket.socket) -> None:
        """Watch the process at the other end until it leaves or dies."""
        _keep_alive(connection)
        lines = connection.makefile("r", encoding="utf-8")
        _, processes, process, settings = lines.readline().split()
        refused = self._refusal(int(processes), int(process), settings)
        if refused:
            connection.sendall(f"refused {refused}\n".encode())
            with self._changed:
                self._refused = self._refused or refused
                self._changed.notify_all()
            return
        with self._changed:
            self._others[int(process)] = connection
            self._changed.notify_all()
        left = False
        with contextlib.suppress(OSError):
            left = lines.readline() == "bye\n"
        if not left and not self._leaving:
            self._tell(f"lost {process}")
            self._end(int(process))
        with self._changed:
            self._left.add(int(process))
            self._changed.notify_all()

    def _refusal(self, processes: int, process: int, settings: str) -> str:
        """Return why a process cannot take part; empty if it can."""
        if processes != self.processes:
            return (
                f"Process 0 is one of {self.processes}, and process {process} one of {processes}."
            )
        if process in self._others or process == 0:
            return f"There are two processes with number {process}."
        if settings != self.settings:
            return f"Process {process} has other settings than process 0; give all the same."
        return ""


class Follower(Watch):
    """The watch of a process other than 0."""

    def __init__(
        self, address: tuple[str, int], process: int, processes: int, settings: str, seconds: float
    ):
        """Connect to process 0 at `address`, and wait there until all processes have come.

        Raises:
            UserError: if nobody answers there for `seconds`, or if process 0 refuses this one.
        """
        super().__init__(process, processes)
        self._address, self._deadline = address, time.monotonic() + seconds
        self._connection = self._reach()
        greeting = f"{_GREETING.decode()}{processes} {process} {settings}\n"
        self._connection.sendall(greeting.encode())
        self._lines = self._connection.makefile("r", encoding="utf-8")
        self._wait_for_start()
        server = _listen(0, "127.0.0.1")
        self.jax_address = f"127.0.0.1:{server.getsockname()[1]}"
        _start(self._accept, server)
        _start(self._follow)

    def leave(self) -> None:
        self._leaving = True
        with contextlib.suppress(OSError):
            self._connection.sendall(b"bye\n")

    def _reach(self) -> socket.socket:
        """Return a connection to process 0, which may not listen yet."""
        host, port = self._address
        while True:
            try:
                connection = socket.create_connection(self._address, timeout=10)
            except OSError as error:
                if time.monotonic() > self._deadline:
                    raise UserError(
                        f"Process 0 does not answer at {host}:{port} ({error})."
                    ) from error
                time.sleep(0.2)
            else:
                connection.settimeout(None)
                _keep_alive(connection)
                return connection

    def _wait_for_start(self) -> None:
        line = ""
        with contextlib.suppress(OSError):
            line = self._lines.readline()
        kind, _, reason = line.strip().partition(" ")
        if kind != "start":
            raise UserError(reason or "Process 0 ended before all processes had come.")

    def _accept(self, server: socket.socket) -> None:
        while True:
            connection, _ = server.accept()
            _start(self._relay, connection)

    def _relay(self, connection: socket.socket) -> None:
        """Relay JAX's traffic to process 0; a connection that breaks there stays open here."""
        with contextlib.suppress(OSError):
            upstream = socket.create_connection(self._address)
            _start(_copy, upstream, connection)
            _copy(connection, upstream)
            upstream.shutdown(socket.SHUT_WR)

    def _follow(self) -> None:
        """Wait for the end of process 0, or for its word that another one is dead."""
        line = ""
        with contextlib.suppress(OSError):
            line = self._lines.readline()
        if line != "bye\n":
            kind, _, number = line.strip().partition(" ")
            self._end(int(number) if kind == "lost" else 0)


def _relay_to_service(connection: socket.socket, address: str) -> None:
    """Relay JAX's traffic to its service on this host, which may not listen yet."""
    host, _, port = address.rpartition(":")
    deadline = time.monotonic() + 60
    while True:
        try:
            service = socket.create_connection((host, int(port)))
            break
        except OSError:
            if time.monotonic() > deadline:
                return
            time.sleep(0.05)
    _start(_copy, service, connection, True)
    _copy(connection, service, True)


def _copy(source: socket.socket, target: socket.socket, close: bool = False) -> None:
    """Copy bytes until `source` ends; then end `target` too if `close`."""
    with contextlib.suppress(OSError):
        while data := source.recv(2**16):
            target.sendall(data)
    if close:
        with contextlib.suppress(OSError):
            target.shutdown(socket.SHUT_WR)


def _start(function: Callable[..., None], *args: object) -> None:
    threading.Thread(target=function, args=args, daemon=True).start()


def _listen(port: int, host: str = "") -> socket.socket:
    if host or not socket.has_dualstack_ipv6():
        return socket.create_server((host, port), backlog=1024)
    both = {"family": socket.AF_INET6, "dualstack_ipv6": True, "backlog": 1024}
    return socket.create_server((host, port), **both)


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def _keep_alive(connection: socket.socket) -> None:
    """Let the operating system find out that the other host is gone (`SILENT_SECONDS`)."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (("TCP_KEEPIDLE", 5), ("TCP_KEEPINTVL", 3), ("TCP_KEEPCNT", 4)):
        if hasattr(socket, name):  # not all systems have all of these
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
