"""All objects under one path of an API server, as they are now."""

import json
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import httpx

from tests.kube.api_server import Cluster, Object

AGAIN_S = 0.2


class Watch:
    """Lists, then follows from `start` to `stop`; lists again when the connection ends."""

    def __init__(self, client: httpx.Client, path: str, on_change: Callable[[], None]) -> None:
        """`on_change` is called in a thread after each change, and must not raise."""
        self.items: dict[str, Object] = {}
        """by uid; replaced, never changed in place"""
        self._client = client
        self._path = path
        self._on_change = on_change
        self._stopping = threading.Event()
        self._response: httpx.Response | None = None

    def start(self) -> None:
        threading.Thread(target=self._run, daemon=True).start()

    def stop(self) -> None:
        self._stopping.set()
        if self._response is not None:
            stream = self._response.extensions["network_stream"]
            with suppress(OSError):
                stream.get_extra_info("socket").shutdown(socket.SHUT_RDWR)

    def _run(self) -> None:
        while not self._stopping.wait(AGAIN_S):
            try:
                listed = Cluster(self._client).get(self._path)
                self._take({item["metadata"]["uid"]: item for item in listed["items"]})
                self._follow(listed["metadata"]["resourceVersion"])
            except (httpx.HTTPError, OSError, RuntimeError):
                time.sleep(AGAIN_S)  # the server restarts, or the client is closed

    def _follow(self, version: str) -> None:
        asked: dict[str, Any] = {"watch": "1", "resourceVersion": version}
        with self._client.stream("GET", self._path, params=asked, timeout=None) as response:
            response.raise_for_status()
            self._response = response
            for line in response.iter_lines():
                event = json.loads(line)
                if self._stopping.is_set() or event["type"] == "ERROR":
                    return
                item = event["object"]
                rest = {k: v for k, v in self.items.items() if k != item["metadata"]["uid"]}
                gone = event["type"] == "DELETED"
                self._take(rest if gone else {**rest, item["metadata"]["uid"]: item})

    def _take(self, items: dict[str, Object]) -> None:
        self.items = items
        if not self._stopping.is_set():
            self._on_change()
