"""A link of any speed on the loopback address: a proxy that lets so many bytes pass in a second, and each late."""

from __future__ import annotations

import contextlib
import math
import queue
import socket
import threading
import time

PIECE = 16 * 1024


class Proxy:
    """Forwards connections to a port, `rate` bytes a second and `delay` seconds late in each direction. All three may
    change while it runs."""

    def __init__(self, port: int) -> None:
        self.to = port
        self.rate, self.delay = math.inf, 0.0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._listener.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                here, _ = self._listener.accept()
                try:
                    there = socket.create_connection(("127.0.0.1", self.to))
                except OSError:  # nobody is there
                    here.close()
                    continue
                for a, b in ((here, there), (there, here)):
                    a.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                    passing: queue.Queue[tuple[float, bytes]] = queue.Queue()
                    threading.Thread(target=self._take, args=(a, passing), daemon=True).start()
                    threading.Thread(target=self._give, args=(b, passing), daemon=True).start()

    def _take(self, a: socket.socket, passing: queue.Queue[tuple[float, bytes]]) -> None:
        """Each piece leaves when the ones before it have, and arrives half a round trip later."""
        free = 0.0
        with contextlib.suppress(OSError):
            while data := a.recv(PIECE):
                free = max(free, time.perf_counter()) + len(data) / self.rate
                time.sleep(max(0.0, free - time.perf_counter()))
                passing.put((free + self.delay, data))
        passing.put((0.0, b""))

    def _give(self, b: socket.socket, passing: queue.Queue[tuple[float, bytes]]) -> None:
        with contextlib.suppress(OSError):
            while True:
                due, data = passing.get()
                if not data:
                    b.shutdown(socket.SHUT_WR)
                    return
                time.sleep(max(0.0, due - time.perf_counter()))
                b.sendall(data)
