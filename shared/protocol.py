"""The words gateway and workers say to each other, and their encoding.

A link begins with the bytes of `shared.challenge`, which also settle the version. Then the worker
says HELLO, and the gateway, if it is the worker it looked for. A frame is a 4-byte big-endian
length and what `shared.codec` encodes. A kind of message that the receiver does not know is
skipped; a peer that sends anything else gets its link closed.

Every message about a request carries its attempt, (rid, epoch). An epoch names one prefill
incarnation and one decode incarnation, once; a receiver ignores any epoch but its current one.
What is to be computed for an attempt is its `Work`, which ASSIGN, RECEIVE and the engine's sequence
carry: what a worker must know is a field of it, or of its `Sampling` if it changes the choice of
tokens. CONTRIBUTING.md says what is a new version, of links, of KV pulls and of the challenge.

Version 6 is the oldest that a release was made of: from it on both ends name the versions they
speak, fields may be added, and HELLO and pulls name none.
"""

import typing
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from shared.challenge import Versions
from shared.codec import Codec, PackedIds
from shared.message_parts.prompt_logprobs import PromptLogprobs
from shared.message_parts.span import Span
from shared.message_parts.step_costs import NO_COSTS, StepCosts
from shared.transfer_address import NOWHERE, TransferAddress

SPOKEN = Versions(oldest=6, newest=6)
MAX_HELLO_BYTES = 64 * 2**10
"""of a frame before HELLO"""
MAX_FRAME_BYTES = 8 * 2**20
"""of a worker's frame after it"""
MAX_LIVE_ATTEMPTS = 1000
"""in one HELLO; each takes some 50 bytes"""
DEFAULT_PRIORITY = 3


class Attempt(NamedTuple):
    """One try at one request: the key of everything a worker holds for it."""

    rid: str
    epoch: int


FinishReason = Literal["stop", "length"]
Refusal = Literal["no_room", "incarnation", "draining", "too_long", "invalid", "grammar"]
"""why a worker does not accept an attempt"""
GREEDY_BELOW = 1e-3
"""a temperature under this is greedy: logits / T overflows or leaves no second candidate"""


@dataclass(frozen=True)
class Sampling:
    """How the next token is chosen; travels with the attempt and survives every hand-over.

    The random draw at a position is a function of (seed, position) alone, so a resumed or
    handed-over sequence continues with the draws the first attempt would have made.
    """

    max_tokens: int
    temperature: float = 1.0
    """under GREEDY_BELOW is greedy"""
    top_k: int = 0
    """0 keeps all"""
    top_p: float = 1.0
    seed: int = 0
    min_tokens: int = 0
    """until then EOS and stop ids are masked, as far as they could end the request"""
    ignore_eos: bool = False
    stop_token_ids: tuple[int, ...] = ()
    eos_token_ids: tuple[int, ...] = ()
    logprobs: int = -1
    """-1 none; 0 the chosen token's; k also the k most likely"""
    min_p: float = 0.0
    """tokens less likely than this share of the likeliest one's probability are left out"""
    presence_penalty: float = 0.0
    """taken from the logit of each token that the output has already"""
    frequency_penalty: float = 0.0
    """taken from it once for each time that the output has it"""
    repetition_penalty: float = 1.0
    """divides the logit, if positive, of each token of prompt or output, else multiplies it"""
    logit_bias: tuple[tuple[int, float], ...] = ()
    """(token id, what is added to its logit)"""
    grammar: str = ""
    """what the output must match, as `shared.grammar` reads it; empty is anything"""

    @property
    def least_tokens(self) -> int:
        """Of an answer that no stop string ends."""
        may_end = self.stop_token_ids or self.grammar or not self.ignore_eos
        return self.min_tokens if may_end else self.max_tokens


ALONE_TOKENS = 8


@dataclass(frozen=True)
class Work:
    """What one attempt at a request is to compute, wherever it runs."""

    attempt: Attempt
    token_ids: PackedIds
    """the client's prompt, then the tokens already delivered by earlier attempts"""
    num_prompt_tokens: int
    """length of the client's prompt alone"""
    hash_root: bytes
    """parent of the first block, salted with the tenant; the worker names the blocks itself"""
    sampling: Sampling
    traceparent: str = ""
    alone: bool = False
    """engines have died of it: no step computes it with others, until ALONE_TOKENS more"""
    priority: int = DEFAULT_PRIORITY
    prompt_logprobs: int = -1
    """as `Sampling.logprobs`, of the client's prompt: SCORED says them"""
    accepted: bool = True
    """it waits for KV blocks and is not refused: a worker has taken the request before, or its
    gateway never has it refused"""


class TokenLogprobs(NamedTuple):
    """Log-probabilities at one position, of the unscaled distribution."""

    logprob: float
    top_ids: tuple[int, ...] = ()
    top_logprobs: tuple[float, ...] = ()


class Incoming(NamedTuple):
    """What a decode worker has still to pull from one prefill worker."""

    prefill_incarnation: str
    num_tokens: int
    tokens_s: float
    """measured while several reads were unanswered; 0 until they were once"""


@dataclass(frozen=True)
class Load:
    """What a worker says of itself on every frame; a hint, the worker stays the judge."""

    room_tokens: int
    """prompt tokens it would accept now beyond what runs"""
    queued_tokens: int
    """prompt tokens accepted and not yet computed"""
    running: int
    waiting: int
    total: int
    free: int
    cached: int
    held: int
    """blocks: free + cached + held == total"""
    state: Literal["starting", "ready", "draining"] = "ready"
    unpulled_tokens: int = 0
    """prompt tokens whose KV nobody pulls yet; prefill workers only"""
    incoming: tuple[Incoming, ...] = ()
    """what this worker pulls, by prefill worker; decode workers only"""
    unreserved_tokens: dict[str, int] = field(default_factory=dict)
    """of prompts whose KV lacks blocks here, by prefill worker; there they are unpulled too"""
    step_costs: StepCosts = NO_COSTS
    """of this worker's engine: a trial's at first, then fitted to its steps"""
    step_error: float = 0.0
    """relative error of what they predicted, 90th percentile of the latest steps; 0 before any"""
    stalled: bool = False
    """its engine has answered nothing for some seconds, nor does it compute"""
    early_room_tokens: int = -1
    """room of prompts of the default priority or earlier; -1: of an earlier release"""
    queued_s: float = -1.0
    """that `queued_tokens` add to its steps; -1: of an earlier release"""
    place_s: float = 0.0
    """that a sequence waits for a place in the batch at least; of the default priority or later"""
    long_place: int = -1
    """`shared.queue.room.LongPlace`: whom its place for a long prompt is for; -1: of an earlier
    release"""


@dataclass(frozen=True)
class Hello:
    """First frame in each direction. The worker's names itself; the gateway's names what lives."""

    role: Literal["gateway", "prefill", "decode"]
    incarnation: str
    """worker or gateway id, a dot, and a 128-bit boot nonce in hex"""
    pool: str
    """(model, revision, layout fingerprint) in one string; peers of another pool are refused"""
    attempts: tuple[Attempt, ...] = ()
    """gateway only: all that it still owns on this worker, at most MAX_LIVE_ATTEMPTS"""
    load: Load | None = None
    transfer_address: TransferAddress = NOWHERE
    """worker only, as `load`: where a decode worker pulls this worker's KV from"""
    pid: int = 0
    host: str = ""
    prefill_token_s: float = 0.0
    """worker only: seconds a prompt token took in a trial at its start"""
    to: str = ""
    """gateway only: the receiver's incarnation, as its HELLO said"""
    session: str = ""
    """gateway only: its incarnation's secret for this receiver, the same on every link"""
    dial: int = 0
    """gateway only: the number of this dial; what comes after the HELLO of a later one is late"""
    room_limit_tokens: int = 0
    """worker only: its room where nothing waits; 0: of an earlier release"""


@dataclass(frozen=True)
class Assign:
    """Gateway -> worker: compute this prompt. `mode` prefill = hand over after token 1;
    local = keep the sequence and decode it here, with the recorded reason."""

    work: Work
    incarnation: str
    """receiver's incarnation; a restarted worker refuses"""
    mode: Literal["prefill", "local"]
    reason: Literal["", "agg", "no_prefill_worker", "no_pair", "slow_link"] = ""
    ticket: str = ""
    """secret of this attempt that authorises its KV pull"""


@dataclass(frozen=True)
class Receive:
    """Gateway -> decode worker, after START: reserve all blocks, pull from `source`, decode."""

    work: Work
    incarnation: str
    prefill_incarnation: str
    source: TransferAddress
    """of the prefill worker"""
    ticket: str


@dataclass(frozen=True)
class Cancel:
    """Gateway -> worker: drop this attempt and everything of it."""

    attempt: Attempt
    reason: str = ""


@dataclass(frozen=True)
class Ping:
    """Gateway -> worker, twice a second and whenever the backlog grows."""

    seq: int
    num_backlogged: int = 0
    """requests of this gateway that wait in the pool's backlog; a worker with room pops"""


@dataclass(frozen=True)
class Pong:
    seq: int
    load: Load
    counters: dict[str, int] = field(default_factory=dict)
    """totals since the worker's start, by metric name; the gateway exports them"""
    stages: dict[str, int] = field(default_factory=dict)
    """attempts it holds now, by stage"""
    advanced: tuple[Attempt, ...] = ()
    """attempts of this gateway that went on since the last PONG without a token to show for it"""
    gauges: dict[str, float] = field(default_factory=dict)
    """of now, by metric name; the gateway exports them"""


@dataclass(frozen=True)
class Start:
    """Worker -> gateway: the first chunk of the attempt is scheduled."""

    attempt: Attempt
    incarnation: str
    num_cached_tokens: int
    load: Load


@dataclass(frozen=True)
class Refuse:
    """Worker -> gateway: not accepted, nothing kept. `reason` is a word for the receipt."""

    attempt: Attempt
    incarnation: str
    reason: Refusal
    text: str = ""
    """of `invalid`: what the worker does not take; of `grammar`: why nothing can match it; of
    `no_room`: that KV blocks lack, and it takes nobody who would wait for them"""


class TokenRun(NamedTuple):
    """Consecutive tokens of one attempt; `index` counts the client's output tokens from 0."""

    rid: str
    epoch: int
    index: int  # type: ignore[assignment]  # hides tuple.index
    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprobs, ...] = ()
    finish_reason: FinishReason | None = None
    """set when the worker ended the sequence with the last token of this run"""

    @property
    def attempt(self) -> Attempt:
        """Two fields on the wire: as one, a frame of 256 runs takes half as long again to read."""
        return Attempt(self.rid, self.epoch)


@dataclass(frozen=True)
class Tokens:
    """Worker -> gateway: all tokens of one step for this gateway."""

    incarnation: str
    runs: tuple[TokenRun, ...]
    load: Load


@dataclass(frozen=True)
class Scored:
    """Worker -> gateway: of prompt tokens that a step computed; all are told before token 1."""

    attempt: Attempt
    incarnation: str
    values: PromptLogprobs


@dataclass(frozen=True)
class Spans:
    """Worker -> gateway: the stages this attempt went through here. A later span of the same
    name replaces an earlier one: a stage may be told while it still goes on. `kv_held` is told
    once its worker keeps no KV of the attempt any more."""

    attempt: Attempt
    incarnation: str
    spans: tuple[Span, ...]


@dataclass(frozen=True)
class Fail:
    """Worker -> gateway: the attempt is lost here."""

    attempt: Attempt
    incarnation: str
    code: str
    message: str
    own_fault: bool = False
    """the engine died by itself, in a step that computed it"""
    alone: bool = False
    """and nothing else"""


@dataclass(frozen=True)
class Handback:
    """Worker -> gateway: given back cleanly (pressure, drain); not a strike."""

    attempt: Attempt
    incarnation: str
    reason: str


@dataclass(frozen=True)
class Pull:
    """Worker -> gateway: popped from the backlog; answer with Assign or Cancel."""

    rid: str
    incarnation: str


Message = (
    Hello
    | Assign
    | Receive
    | Cancel
    | Ping
    | Pong
    | Start
    | Refuse
    | Tokens
    | Scored
    | Spans
    | Fail
    | Handback
    | Pull
)

CODEC = Codec(typing.get_args(Message), max_items=4096)
"""at a gateway: a worker's step has at most 4,096 sequences"""
WORKER_CODEC = Codec((Hello, Assign, Receive, Cancel, Ping), max_items=1024, max_arrays=2048)
"""at a worker: what gateways say, with bounds on what a frame of a stranger's can cost"""


def encode(message: Message) -> bytes:
    """Frame body of one message, without the length prefix."""
    return CODEC.encode(message)


def decode(body: bytes) -> Message:
    """The message in a frame body; ProtocolError if it is none of ours."""
    message: Message = CODEC.decode(body)
    return message
