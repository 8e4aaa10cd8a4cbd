"""The flags of `baton bench serve`, and the facts they turn into."""

import argparse
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from services.cli.amount import above_zero
from services.cli.bench.serve.arrivals import Arrivals
from services.cli.bench.serve.endpoint import Endpoint
from services.cli.bench.serve.report.goodput import ServiceLimits
from services.cli.bench.serve.report.ideal_replay import PointPrefill, PrefillTime, QuadraticPrefill
from services.cli.bench.serve.workload import Limits
from services.cli.gateway_client import gateway_url
from shared.errors import SettingsError

DEFAULT_DURATION_S = 30.0
PRICE_HELP = "of one GPU for an hour: what Baton's answers cost, and its prefix cache saved"
T = TypeVar("T", int, float)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    _add_endpoint(parser.add_argument_group("endpoint"))
    _add_load(parser.add_argument_group("load (one of --rate, --trace, --concurrency)"))
    add_requests(parser.add_argument_group("requests"))
    _add_judgement(parser.add_argument_group("judgement"))
    output = parser.add_argument_group("output")
    output.add_argument("--json", type=Path, metavar="FILE", help="JSON lines; - is the output")
    output.add_argument("--plot", type=Path, metavar="FILE.svg", help="TTFT, gaps, timeline")


def _add_endpoint(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    add("--url", metavar="U", help="default: $BATON_URL, else 127.0.0.1:8000")
    add("--against", metavar="U", help="a second endpoint, for the same requests in turns")
    add("--against-model", metavar="NAME", help="default: the first that it lists")
    add("--against-api-key-env", metavar="VARIABLE", help="as --api-key-env, for the second")
    add("--against-api-key-file", type=Path, metavar="FILE", help="as --api-key-file")
    add("--model", metavar="NAME", help="default: the first that the endpoint lists")
    add_asking(group)


def add_asking(group: argparse._ArgumentGroup) -> None:
    """How an endpoint is asked, whichever it is."""
    add = group.add_argument
    add("--endpoint", choices=("completions", "chat"), default="completions")
    add("--api-key-env", metavar="VARIABLE", help="environment variable that holds the key")
    add("--api-key-file", type=Path, metavar="FILE", help="file that holds the key")
    add("--timeout-s", type=float, default=600.0, metavar="S", help="a request's limit; 600")


def _add_load(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    add("--rate", metavar="R[,R...]", help="requests/s, open loop; several make a sweep; 1")
    add_arrivals(group)
    add("--speed", metavar="X[,X...]", help="how much faster than the trace; 1")
    add("--concurrency", metavar="N[,N...]", help="closed loop with N requests at every moment")
    add("--num-requests", type=int, metavar="N", help="per load point")
    add("--duration", type=float, metavar="S", help="of sending, per load point; 30")


def add_arrivals(group: argparse._ArgumentGroup) -> None:
    """How requests come in an open loop, at whatever rate."""
    add = group.add_argument
    add("--arrivals", choices=("poisson", "gamma", "onoff", "constant"), default="poisson")
    add("--burstiness", type=float, metavar="B", help="gamma arrivals: 1 Poisson, < 1 in bursts")
    add("--on-s", type=float, default=1.0, metavar="S", help="onoff: time with load; 1")
    add("--off-s", type=float, default=4.0, metavar="S", help="onoff: time without; 4")
    add("--trace", type=Path, metavar="FILE", help="Mooncake JSON lines, open loop")
    add("--no-jitter", action="store_true", help="keep coarse equal timestamps as they are")


def add_requests(group: argparse._ArgumentGroup) -> None:
    """What is asked."""
    add = group.add_argument
    add("--input", default="512", metavar="N|A-B", help="prompt tokens; a range is uniform; 512")
    add("--output", default="128", metavar="N|A-B", help="output tokens asked for; 128")
    add("--shared-prefix", type=int, default=0, metavar="N", help="equal first tokens; 0")
    add("--vocab", type=int, metavar="N", help="size of the vocabulary; default: ask /tokenize")
    add("--seed", type=int, default=0, metavar="S", help="same seed, same requests; 0")
    add("--warmup", type=int, default=1, metavar="N", help="requests before the run; 1")
    add("--ignore-eos", action="store_true", help="answers of exactly the length asked for")
    add("--temperature", type=float, default=0.0, metavar="T", help="0 is greedy; 0")
    add("--continuous-usage", action="store_true", help="ask for the usage in every chunk")


def _add_judgement(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    add_limits(group)
    add("--ideal-servers", type=int, metavar="K", help="of the replay; default: as Baton says, 1")
    add("--prefill-ms-per-1k", type=float, metavar="MS", help="of the replay; default: measured")
    add("--prefill-file", type=Path, metavar="FILE", help='JSON {"tokens": ms, ...} for the replay')
    add("--no-ideal", action="store_true", help="no replay and no idle measurement for it")
    add("--price", type=above_zero, default=0.0, metavar="USD", help=PRICE_HELP)


def add_limits(group: argparse._ArgumentGroup) -> None:
    """What a request has to keep, and the client."""
    add = group.add_argument
    add("--ttft-limit-ms", type=float, metavar="MS", help="goodput: time to first token")
    add("--gap-limit-ms", type=float, metavar="MS", help="goodput: p99 of a request's gaps")
    add("--tpot-limit-ms", type=float, metavar="MS", help="goodput: mean time per later token")
    add("--max-lag-ms", type=float, default=10.0, metavar="MS", help="client's lateness p99; 10")


def read_endpoints(arguments: argparse.Namespace) -> tuple[Endpoint, ...]:
    """The one under load; with `--against` two, which are called ours and theirs."""
    url, kind, model = gateway_url(arguments.url), arguments.endpoint, arguments.model
    key = read_api_key("--api-key", arguments.api_key_env, arguments.api_key_file)
    their_model, price = arguments.against_model, arguments.price
    env, file = arguments.against_api_key_env, arguments.against_api_key_file
    if arguments.against is None:
        if (their_model, env, file) != (None, None, None):
            raise SettingsError("--against-model and --against-api-key-... belong to --against")
        return (Endpoint(url, kind, key, model, usd_per_gpu_hour=price),)
    their_url, their_key = (
        gateway_url(arguments.against),
        read_api_key("--against-api-key", env, file),
    )
    return (
        Endpoint(url, kind, key, model, "ours", usd_per_gpu_hour=price),
        Endpoint(their_url, kind, their_key, their_model, "theirs", "--against", price),
    )


def read_arrivals(arguments: argparse.Namespace) -> Arrivals:
    kind, burstiness = arguments.arrivals, arguments.burstiness
    if burstiness is not None and kind not in ("gamma", "poisson"):
        raise SettingsError(f"--burstiness belongs to --arrivals gamma, not {kind}")
    if burstiness is not None:
        kind = "gamma"
    shape = 1.0 if burstiness is None else burstiness
    return Arrivals(kind, shape, arguments.on_s, arguments.off_s)


def read_limits(arguments: argparse.Namespace) -> Limits:
    num, duration_s = arguments.num_requests, arguments.duration
    if num is not None and num < 1:
        raise SettingsError("--num-requests: at least 1")
    if duration_s is not None and duration_s <= 0:
        raise SettingsError("--duration: more than 0")
    if num is None and duration_s is None and arguments.trace is None:
        duration_s = DEFAULT_DURATION_S
    return Limits(num, duration_s)


def read_service_limits(arguments: argparse.Namespace) -> ServiceLimits:
    return ServiceLimits(arguments.ttft_limit_ms, arguments.gap_limit_ms, arguments.tpot_limit_ms)


def read_list(text: str, flag: str, kind: Callable[[str], T]) -> list[T]:
    """`1,2,4`, each more than 0."""
    try:
        values = [kind(part) for part in text.split(",")]
    except ValueError:
        raise SettingsError(f"{flag} {text}: numbers like 1,2,4") from None
    if min(values) <= 0:
        raise SettingsError(f"{flag} {text}: more than 0")
    return values


def given_prefill(arguments: argparse.Namespace) -> PrefillTime | None:
    """The replay's prefill times as flags give them; None: measure them."""
    if arguments.prefill_file is not None:
        return _points(arguments.prefill_file)
    if arguments.prefill_ms_per_1k is not None:
        if arguments.prefill_ms_per_1k <= 0:
            raise SettingsError("--prefill-ms-per-1k: more than 0")
        return QuadraticPrefill(arguments.prefill_ms_per_1k / 1e6, 0.0)
    return None


def _points(path: Path) -> PointPrefill:
    wanted = f'--prefill-file {path}: a JSON object {{"1024": 23.0, "8192": 205.0}}'
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
        points = sorted((int(num), float(ms) / 1e3) for num, ms in value.items())
    except (OSError, ValueError, AttributeError, TypeError) as error:
        raise SettingsError(f"{wanted} ({error})") from error
    if not points or points[0][0] < 1:
        raise SettingsError(wanted)
    return PointPrefill(tuple(points))


def read_api_key(flag: str, name: str | None, path: Path | None) -> str:
    """From the variable `name` or the file at `path`, as `flag`-env or `flag`-file says."""
    try:
        if path is not None:
            return path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"{flag}-file {path}: {error}") from error
    if name is None:
        return ""
    if not os.environ.get(name):
        raise SettingsError(f"{flag}-env {name}: the variable is not set")
    return os.environ[name]
