"""The requests of a file, asked for side by side until each has its answer.

503, 429 and a gateway that is away are asked again, when Retry-After says or after a pause that
grows; any other answer is the line's. Nothing is given up for one line: the batch ends when no line
was answered for PATIENCE_S, and the same command goes on from there.
"""

import json
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from services.cli.batch.input_file import BatchRequest, InputFile
from services.cli.batch.output_file import OK, OutputFile
from services.cli.gateway_client import GatewayClient, Reply
from shared.errors import BatonError, NoGatewayError

BUSY = (429, 502, 503, 504)
"""statuses that say nothing about a request"""
NOT_ALLOWED = (401, 403)
"""statuses that every other line would get too"""
PATIENCE_S = 600.0
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.5, 30.0
LOOK_EVERY_S = 0.2


class Batch:
    """Runs once."""

    def __init__(
        self, client: GatewayClient, source: InputFile, target: OutputFile, concurrency: int
    ) -> None:
        self._client = client
        self._source = source
        self._target = target
        waiting = [each for each in source.custom_ids if each not in target.answered]
        self.num_waiting = len(waiting)
        """lines to answer in this run"""
        self.num_answered = 0
        self.num_failed = target.num_failed
        """of all that are answered, with a status that is not 200"""
        self._next: Iterator[str] = iter(waiting)
        self._lock = threading.Lock()
        self._progress_s = time.monotonic()
        """when the latest line was answered"""
        self._stop = threading.Event()
        self._failure: Exception | None = None
        most = min(concurrency, self.num_waiting)
        self._threads = [threading.Thread(target=self._work, daemon=True) for _ in range(most)]

    def run(self, on_look: Callable[[], None]) -> None:
        """Until every line is answered, or `stop`; `on_look` is called a few times a second.
        NoGatewayError where nothing answers at all."""
        self._client.models()
        for thread in self._threads:
            thread.start()
        try:
            while any(thread.is_alive() for thread in self._threads) and not self._stop.is_set():
                on_look()
                self._stop.wait(LOOK_EVERY_S)
        finally:
            self.stop()
        if self._failure is not None:
            raise self._failure

    def stop(self) -> None:
        """No line is begun any more, and none written: what is under way is asked again by the
        next run."""
        with self._lock:
            self._stop.set()

    def _work(self) -> None:
        """One line after the other."""
        try:
            while (custom_id := self._take()) is not None:
                request = self._source.read(custom_id)
                reply = self._answered(request)
                if reply is not None:
                    self._write(custom_id, reply)
        except Exception as error:  # noqa: BLE001 else the batch would look done
            self._failure = self._failure or error
            self._stop.set()

    def _take(self) -> str | None:
        with self._lock:
            return None if self._stop.is_set() else next(self._next, None)

    def _answered(self, request: BatchRequest) -> Reply | None:
        """The first reply that is about the request; None once the batch stops."""
        pause_s = FIRST_PAUSE_S
        while not self._stop.is_set():
            try:
                reply = self._client.post(request.path, request.body, request.headers)
                if reply.status in NOT_ALLOWED:
                    raise BatonError(f"{self._client.url}: {reply.status} {reply.error_text}")
                if reply.status not in BUSY:
                    return reply
                problem, wait_s = f"{reply.status} {reply.error_text}", reply.retry_after_s
            except NoGatewayError as error:
                problem, wait_s = str(error), None
            if time.monotonic() - self._progress_s > PATIENCE_S:
                text = f"no line was answered for {PATIENCE_S:.0f} s: {problem}"
                raise NoGatewayError(f"{text}; run the same command to go on")
            self._stop.wait(pause_s if wait_s is None else min(wait_s, LONGEST_PAUSE_S))
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
        return None

    def _write(self, custom_id: str, reply: Reply) -> None:
        with self._lock:
            if self._stop.is_set():
                return
            self._target.append(answer_line(self._source.answer_id(custom_id), custom_id, reply))
            self._progress_s = time.monotonic()
            self.num_answered += 1
            self.num_failed += reply.status != OK


def answer_line(answer_id: str, custom_id: str, reply: Reply) -> dict[str, Any]:
    """As OpenAI's batches have it."""
    try:
        body, error = json.loads(reply.content), None
    except ValueError:
        body, error = None, {"code": "not_json", "message": "the answer is no JSON"}
    return {
        "id": answer_id,
        "custom_id": custom_id,
        "response": {
            "status_code": reply.status,
            "request_id": reply.request_id,
            "body": body,
        },
        "error": error,
    }
