"""Links between sites on one machine that a test can cut: a TCP relay in front of each site.

Peers dial the relay's port, which the manifest names; the relay passes bytes on to the port on
which the site listens. Who dials is found in /proc, by the process that holds the other end, so
the link between two sites can be cut while all others work.
"""

import asyncio
import contextlib
import os
import threading
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Literal

from tests.waiting import PATIENCE

LOOPBACK = "127.0.0.1"
PIECE = 1 << 16
SLOW_SECONDS = 0.2
"""The delay of each piece on a slow link."""

State = Literal["works", "refuses", "is silent", "is slow"]
Pair = tuple[str, str]
"""(the site that dials, the site that listens)"""


class Links:
    """Relays for some sites, in a thread of their own. Use it as a context manager."""

    def __init__(self, ports: Mapping[str, tuple[int, int]]) -> None:
        """``ports`` has for each site the relay's port and the one that the site listens on."""
        self._ports = ports
        self._owners: dict[int, str] = {}
        self._states: dict[Pair, State] = {}
        self._servers: list[asyncio.Server] = []
        self._open: dict[Pair, set[asyncio.StreamWriter]] = {}
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="links", daemon=True)

    def __enter__(self) -> "Links":
        self._thread.start()
        for name, (port, _) in self._ports.items():
            self._call(self._listen(name, port))
        return self

    def __exit__(self, *_: object) -> None:
        self._call(self._close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(PATIENCE)
        self._loop.close()

    def own(self, process: int, name: str) -> None:
        """The connections of ``process`` are those of the site ``name``."""
        self._owners[process] = name

    def set(self, state: State, pairs: Iterable[Pair]) -> None:
        """From now on these links are in ``state``; one that refuses also drops what is open."""
        pairs = list(pairs)
        for pair in pairs:
            self._states[pair] = state
        if state == "refuses":
            self._call(self._abort(pairs))

    def heal(self) -> None:
        """All links work."""
        self._states.clear()

    def drop(self, name: str) -> None:
        """End all connections from and to a site, with what is under way in them."""
        self._call(self._abort([pair for pair in list(self._open) if name in pair]))

    def _call(self, work: "asyncio.Future[None] | object") -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result(30)  # type: ignore[arg-type]

    async def _listen(self, name: str, port: int) -> None:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            with contextlib.suppress(asyncio.CancelledError):  # the relay is closed
                try:
                    await self._serve(name, reader, writer)
                except* OSError:
                    pass  # an end went away
            writer.transport.abort()

        self._servers.append(await asyncio.start_server(serve, LOOPBACK, port))

    async def _serve(
        self, name: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        dialler = self._dialler(int(writer.get_extra_info("peername")[1]))
        pair = (dialler, name)
        if not dialler or self._states.get(pair) == "refuses":
            return
        target = self._ports[name][1]
        back, forth = await asyncio.open_connection(LOOPBACK, target)
        both = {writer, forth}
        self._open.setdefault(pair, set()).update(both)
        try:
            async with asyncio.TaskGroup() as both_ways:
                both_ways.create_task(self._pump(reader, forth, pair))
                both_ways.create_task(self._pump(back, writer, pair))
        finally:
            self._open[pair] -= both
            forth.transport.abort()

    async def _pump(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, pair: Pair
    ) -> None:
        while piece := await reader.read(PIECE):
            while self._states.get(pair) == "is silent":
                await asyncio.sleep(0.05)
            if self._states.get(pair) == "is slow":
                await asyncio.sleep(SLOW_SECONDS)
            writer.write(piece)
            await writer.drain()
        with contextlib.suppress(OSError):
            writer.write_eof()

    async def _abort(self, pairs: Iterable[Pair]) -> None:
        for pair in pairs:
            for writer in self._open.get(pair, ()):
                writer.transport.abort()

    async def _close(self) -> None:
        tasks = asyncio.all_tasks(self._loop) - {asyncio.current_task()}
        for server in self._servers:
            server.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.sleep(0)  # the transports that were aborted let go of their sockets

    def _dialler(self, port: int) -> str:
        """The site whose process holds the connection from ``port``; empty if none does."""
        socket = f"socket:[{_inode(port)}]"
        for process, name in list(self._owners.items()):
            with contextlib.suppress(OSError):
                for entry in Path(f"/proc/{process}/fd").iterdir():
                    with contextlib.suppress(OSError):
                        if os.readlink(entry) == socket:  # noqa: PTH115  # not a path of files
                            return name
        return ""


def _inode(port: int) -> str:
    """The inode of the socket whose local port is ``port`` and which is connected."""
    for table in ("tcp", "tcp6"):
        path = Path("/proc/net") / table
        if not path.exists():
            continue
        for line in path.read_text().splitlines()[1:]:
            words = line.split()
            if int(words[1].rpartition(":")[2], 16) == port and words[9] != "0":
                return words[9]
    return ""
