"""Python, and the packages that gateways and workers need. Imports none of them."""

import platform
from collections.abc import Iterable
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version

from services.cli.doctor.finding import Finding, fail, ok, warn
from shared.errors import MissingError
from shared.state.embedded import CURE, find_server

SHARED = frozenset({"msgpack", "opentelemetry-sdk", "prometheus-client", "redis"})
GATEWAY = SHARED | {"fastapi", "httptools", "jinja2", "pydantic", "tokenizers", "uvicorn"}
WORKER = SHARED | {"jinja2", "numpy", "safetensors", "tokenizers", "torch"}
OPTIONAL = {
    "huggingface_hub": "models by hub id",
    "llguidance": "structured output and strict tools",
    "opentelemetry-exporter-otlp-proto-http": "export of traces",
    "uvloop": "the faster event loop",
}
"""package -> what goes without it"""
INSTALL = "`make install` in a checkout, or `pip install '.[{}]'` there, installs them"


@dataclass(frozen=True)
class PackageFacts:
    """What is installed of all that is named above."""

    python: str
    installed: frozenset[str]
    redis_server: str
    """path of the binary that `baton up` starts; empty: there is none"""


def gather_packages() -> PackageFacts:
    try:
        server = str(find_server())
    except MissingError:
        server = ""
    installed = frozenset(name for name in GATEWAY | WORKER | OPTIONAL.keys() if _is_there(name))
    return PackageFacts(platform.python_version(), installed, server)


def judge_packages(facts: PackageFacts, *, embedded_redis: bool) -> list[Finding]:
    """`embedded_redis`: whether `baton up` starts a Redis of its own."""
    found = [ok("Python", facts.python), _judge_roles(facts.installed)]
    found += _judge_optional(facts.installed)
    if embedded_redis:
        found.append(_judge_server(facts.redis_server))
    return found


def judge_worker_packages(facts: PackageFacts) -> list[Finding]:
    """Where one worker and nothing else shall run."""
    found = ok("packages", "all that a worker needs")
    if missing := sorted(WORKER - facts.installed):
        found = fail("packages", _missing(missing), INSTALL.format("engine"))
    return [ok("Python", facts.python), found, *_judge_optional(facts.installed)]


def _judge_optional(installed: frozenset[str]) -> list[Finding]:
    if missing := OPTIONAL.keys() - installed:
        without = ", ".join(f"{name} ({OPTIONAL[name]})" for name in sorted(missing))
        return [
            warn(
                "optional packages",
                f"not installed: {without}",
                f"`pip install {' '.join(sorted(missing))}` if that is wanted",
            )
        ]
    return []


def _judge_roles(installed: frozenset[str]) -> Finding:
    no_gateway, no_worker = GATEWAY - installed, WORKER - installed
    if no_gateway and no_worker:
        everything = sorted(no_gateway | no_worker)
        return fail("packages", _missing(everything), INSTALL.format("gateway,engine"))
    if no_worker:
        return warn(
            "packages",
            f"this machine can run a gateway, and no worker: {_missing(sorted(no_worker))}",
            INSTALL.format("engine"),
        )
    if no_gateway:
        return warn(
            "packages",
            f"this machine can run workers, and no gateway: {_missing(sorted(no_gateway))}",
            INSTALL.format("gateway"),
        )
    return ok("packages", "all that a gateway and workers need")


def _missing(names: Iterable[str]) -> str:
    return f"not installed: {', '.join(names)}"


def _judge_server(path: str) -> Finding:
    if path:
        return ok("Redis server", path)
    return fail(
        "Redis server",
        "no redis-server or valkey-server on PATH",
        f"install one ({CURE}), or name a Redis that runs with --redis",
    )


def _is_there(name: str) -> bool:
    try:
        version(name)
    except PackageNotFoundError:
        return False
    return True
