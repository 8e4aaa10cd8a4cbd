"""Load for a gateway as its users make it: chat turns, long documents, bursts of code.

    locust -f loadtest/locustfile.py -H http://127.0.0.1:8000          # then open locust's page
    locust -f loadtest/locustfile.py -H URL --headless -u 32 -r 4 -t 2m --csv out

Besides each request as a whole (POST), locust's tables, charts and CSV files show under TTFT the
time to the first token and under GAP each wait between two tokens. The model and its context are
asked of the server. Any OpenAI-compatible server will do, $BATON_API_KEY is sent to it; a Baton
gateway's own histograms of the same run are printed next to the result, and the share of the prompt
tokens that its prefix cache had, by the usage of the answers of this process.

A headless run with limits exits with 1 where one of them is broken, and says which:

    locust ... --headless -u 32 -t 2m --ttft-limit-ms 500 --gap-limit-ms 25 --failure-limit 0.01

Users wait for a slow server, so a run here hides overload: whether prefill and decode apart serve a
load better is for `baton bench verdict`, whose requests do not wait.
"""

import itertools
import logging
import sys
import time
from pathlib import Path
from typing import Any

import requests
from locust import User, between, events, task
from locust.argument_parser import LocustArgumentParser
from locust.env import Environment
from locust.exception import StopUser
from locust.runners import WorkerRunner
from locust.stats import StatsEntry

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # locust knows this folder only

from loadtest.answer_stream import AnswerError, AnswerTimes, read_answer
from loadtest.gateway_view import GAP, TTFT, Total, key_headers, read_totals
from loadtest.limits import RunLimits, merged
from loadtest.prefix_saving import PrefixSaving
from loadtest.prompts import Message, PromptWriter, trimmed

logger = logging.getLogger(__name__)

CHAT_PATH, COMPLETIONS_PATH = "/v1/chat/completions", "/v1/completions"
DEFAULT_CONTEXT = 4096
TIMEOUT_S = 600.0
KINDS = ("TTFT", "GAP")
VERDICT = (
    "users here wait for a slow server, which hides overload; whether prefill and decode apart "
    "serve this better: `baton bench verdict`"
)
_user_numbers = itertools.count()
_before: dict[str, Total] = {}
saving = PrefixSaving()
"""of this process since the test began"""


@events.init_command_line_parser.add_listener
def add_arguments(parser: LocustArgumentParser) -> None:
    group = parser.add_argument_group("what the users ask")
    group.add_argument("--model-name", default="", help="default: the first that /v1/models lists")
    group.add_argument("--answer-tokens", type=int, default=128, help="longest answer")
    group.add_argument("--system-tokens", type=int, default=0, help="shared; 0 = context / 8")
    group.add_argument("--document-tokens", type=int, default=0, help="0 = context / 2")
    group.add_argument("--load-seed", type=int, default=1, help="same seed, same questions")
    limits = parser.add_argument_group("limits, which the exit code tells of")
    add = limits.add_argument
    add("--ttft-limit-ms", type=float, env_var="LOADTEST_TTFT_LIMIT_MS", help="TTFT p99, all rows")
    add("--gap-limit-ms", type=float, env_var="LOADTEST_GAP_LIMIT_MS", help="GAP p99, all rows")
    share = "share of requests that may fail; default: none, as locust has it"
    add("--failure-limit", type=float, env_var="LOADTEST_FAILURE_LIMIT", help=share)


class ChatUser(User):
    """A user of the chat endpoint."""

    abstract = True

    def on_start(self) -> None:
        options = self.environment.parsed_options
        number = next(_user_numbers)
        self.url = (self.host or "").rstrip("/")
        self.session = requests.Session()
        self.session.headers.update(key_headers())
        self.prompts = PromptWriter(options.load_seed * 1_000_003 + number)
        self.model, self.model_len = self._ask_model(options.model_name)
        self.answer_tokens = min(options.answer_tokens, self.model_len // 4)
        self.system_tokens = options.system_tokens or self.model_len // 8
        self.document_tokens = options.document_tokens or self.model_len // 2

    def ask(self, name: str, messages: list[Message]) -> AnswerTimes | None:
        """One streamed answer, reported under `name`; None if it failed."""
        return self._asked(name, CHAT_PATH, {"messages": messages})

    def complete(self, name: str, token_ids: list[int]) -> AnswerTimes | None:
        """The same of a prompt of token ids."""
        return self._asked(name, COMPLETIONS_PATH, {"prompt": token_ids})

    def _asked(self, name: str, path: str, prompt: dict[str, Any]) -> AnswerTimes | None:
        body = {
            "model": self.model,
            **prompt,
            "max_tokens": self.answer_tokens,
            "seed": self.prompts.seed(),
            "stream": True,
            "stream_options": {"include_usage": True, "continuous_usage_stats": True},
        }
        sent_s = time.perf_counter()
        times, failure = self._stream(path, body, sent_s)
        whole_ms = (time.perf_counter() - sent_s) * 1000
        self._report("POST", name, whole_ms, len(times.text.encode()) if times else 0, failure)
        if times is None or times.first_token_ms is None:
            return None
        saving.note(times)
        self._report("TTFT", name, times.first_token_ms)
        for gap_ms in times.gaps_ms:
            self._report("GAP", name, gap_ms)
        return times

    def _stream(
        self, path: str, body: dict[str, Any], sent_s: float
    ) -> tuple[AnswerTimes | None, Exception | None]:
        url = self.url + path
        try:
            with self.session.post(url, json=body, stream=True, timeout=TIMEOUT_S) as response:
                if response.status_code != requests.codes.ok:
                    return None, AnswerError(f"HTTP {response.status_code}: {_reason(response)}")
                return read_answer(response.iter_content(chunk_size=None), sent_s), None
        except (requests.RequestException, AnswerError, ValueError) as error:
            return None, error

    def _report(
        self, kind: str, name: str, ms: float, length: int = 0, failure: Exception | None = None
    ) -> None:
        self.environment.events.request.fire(
            request_type=kind,
            name=name,
            response_time=ms,
            response_length=length,
            exception=failure,
            context={},
        )

    def _ask_model(self, wanted: str) -> tuple[str, int]:
        """Name and context length of the model to load."""
        try:
            response = self.session.get(f"{self.url}/v1/models", timeout=TIMEOUT_S)
            response.raise_for_status()
            models = response.json()["data"]
        except (requests.RequestException, ValueError, KeyError) as error:
            logger.error("no models at %s/v1/models: %s", self.url, error)
            raise StopUser from error
        for model in models:
            if wanted in ("", model["id"]):
                return model["id"], int(model.get("max_model_len") or DEFAULT_CONTEXT)
        logger.error("the server has no model %r: %s", wanted, [model["id"] for model in models])
        raise StopUser


class Chatting(ChatUser):
    """Several turns over a system prompt that many share; reads and thinks between them."""

    weight = 6
    wait_time = between(0.5, 3.0)

    @task
    def converse(self) -> None:
        messages = [self.prompts.system_prompt(self.system_tokens)]
        for _ in range(self.prompts.num_turns()):
            messages.append(self.prompts.question())
            times = self.ask("chat turn", messages)
            if times is None:
                return
            messages.append({"role": "assistant", "content": times.text})
            limit = self.model_len - 2 * self.answer_tokens
            messages = trimmed(messages, times.num_total_tokens, limit)
            self.wait()


class Summarising(ChatUser):
    """One long document after the other; nothing of it is shared."""

    weight = 1
    wait_time = between(2.0, 6.0)

    @task
    def summarise(self) -> None:
        self.ask("summary", [self.prompts.document(self.document_tokens)])


class Coding(ChatUser):
    """An editor's requests: several at once in quick succession, then none for a while."""

    weight = 3
    wait_time = between(3.0, 8.0)

    @task
    def burst(self) -> None:
        system = self.prompts.system_prompt(self.system_tokens)
        for _ in range(self.prompts.burst_size()):
            self.ask("code", [system, self.prompts.code_task()])


def _reason(response: requests.Response) -> str:
    try:
        return str(response.json()["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return response.text[:200]


@events.test_start.add_listener
def note_start(environment: Environment, **_: Any) -> None:
    saving.clear()
    _before.clear()
    _before.update(read_totals(environment.host or ""))


@events.test_stop.add_listener
def show_gateway(environment: Environment, **_: Any) -> None:
    """Both sides' means of the run, for whoever wonders which of them to believe."""
    after = read_totals(environment.host or "")
    for kind, name in (("TTFT", TTFT), ("GAP", GAP)):
        own_ms = _mean_ms(environment, kind)
        gateway_ms = (
            after[name].since(_before.get(name, Total())).mean_ms if name in after else None
        )
        if own_ms is not None and gateway_ms is not None:
            logger.info("%s mean: %.2f ms here, %.2f ms at the gateway", kind, own_ms, gateway_ms)
    logger.info(saving.text)
    logger.info("read the rows POST, TTFT and GAP: the row Aggregated mixes all three")


def _mean_ms(environment: Environment, kind: str) -> float | None:
    entries = _rows(environment, kind)
    count = sum(entry.num_requests for entry in entries)
    return sum(entry.total_response_time for entry in entries) / count if count else None


@events.quitting.add_listener
def judge(environment: Environment, **_: Any) -> None:
    """The exit code, by the limits that were stated. Without a share of requests that may fail, a
    failed one is locust's own affair."""
    options = environment.parsed_options
    if options is None or isinstance(environment.runner, WorkerRunner):
        return
    logger.info(VERDICT)
    limits = RunLimits(options.ttft_limit_ms, options.gap_limit_ms, options.failure_limit)
    if not limits.stated:
        return
    times = {kind: merged(one.response_times for one in _rows(environment, kind)) for kind in KINDS}
    asked = _rows(environment, "POST")
    num = sum(entry.num_requests for entry in asked)
    broken = limits.broken(times, num, sum(entry.num_failures for entry in asked))
    for limit in broken:
        logger.error("limit broken: %s", limit)
    if broken:
        environment.process_exit_code = 1
    elif limits.failed is not None:
        environment.process_exit_code = 0


def _rows(environment: Environment, kind: str) -> list[StatsEntry]:
    return [entry for entry in environment.stats.entries.values() if entry.method == kind]
