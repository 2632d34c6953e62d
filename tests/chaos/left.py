"""What a run leaves behind: processes, connections, requests, half-written files."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from pathlib import Path
from urllib.parse import urlsplit

import psutil

from tests.chaos.cluster import living
from tests.chaos.service import CountingService
from tests.spark.helpers import GONE


class Left:
    """Notes the processes of executors while a run goes on.

    Args:
        cluster: the directory of the cluster.
    """

    def __init__(self, cluster: Path, service: CountingService) -> None:
        self._cluster = cluster
        self._service = service
        self._noted: set[psutil.Process] = set()

    def note(self) -> None:
        """Note what runs now."""
        self._noted |= self._family(None)

    def behind(self, application: str, files: Path, parts: int) -> list[str]:
        """What is left in the end, of the time that it has to end.

        Args:
            application: the one whose executors may live.
            files: the directory of journals.
            parts: half-written files that kills may have left there.
        """
        deadline = time.monotonic() + GONE
        while found := self._remains(application, files, parts):
            if time.monotonic() > deadline:
                return found
            time.sleep(0.05)
        return []

    def _family(self, application: str | None) -> set[psutil.Process]:
        return {one for executor in living(self._cluster, application) for one in executor.family()}

    def _remains(self, application: str, files: Path, parts: int) -> list[str]:
        family = self._family(application)
        found = [f"a process of no executor: {one.pid}" for one in self._noted - family if _lives(one)]
        if self._service.running:
            found.append(f"{self._service.running} requests run")
        if strays := _connections(urlsplit(self._service.url).port or 0, family):
            found.append(f"{strays} connections of no executor")
        if (some := len([*files.rglob("*.part")])) > parts:
            found.append(f"{some} files in the journal that no kill explains")
        return found


def _lives(process: psutil.Process) -> bool:
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def _connections(port: int, processes: Iterable[psutil.Process]) -> int:
    """Connections to a service at `port` that are not of these processes, nor of this one."""
    known = {one.pid for one in processes} | {os.getpid()}
    open_ones = [one for one in psutil.net_connections("tcp") if one.raddr and one.raddr.port == port]
    return sum(one.status == psutil.CONN_ESTABLISHED and one.pid not in known for one in open_ones)
