"""A gateway as its HTTP ports show it: ready or why not, what it serves, how KV travels."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from services.cli.doctor.finding import Finding, fail, failed, ok, warn
from services.cli.gateway_client import GatewayClient, NoSuchPathError
from shared.errors import BatonError, NoGatewayError

TIMEOUT_S = 5.0
START = "the workers below, or their logs, say more; `baton serve prefill|decode` starts one"


@dataclass(frozen=True)
class GatewayFacts:
    url: str
    is_ready: bool
    said: str
    """why it is not ready, and what else is the matter"""
    redis: str
    """how Redis is, as the gateway knows"""
    status: Mapping[str, Any]
    """the body of `baton status --json`; empty: nobody may see it here"""
    unseen: str = ""
    """why nobody may"""
    is_elsewhere: bool = False
    """the port is for clients alone"""

    @property
    def linked(self) -> frozenset[str]:
        """Incarnations of the workers that it is linked to."""
        return frozenset(worker["incarnation"] for worker in self.status.get("workers", ()))

    @property
    def release(self) -> str:
        return str(self.status.get("version", ""))


def gather_gateway(url: str, admin_url: str = "") -> GatewayFacts:
    """NoGatewayError when nothing answers. `admin_url`: where status is, if not at `url`."""
    is_ready, body = GatewayClient(url, TIMEOUT_S).readiness()
    error = body.get("error")
    said = str(error.get("message", error)) if isinstance(error, dict) else str(error or "")
    said = said or str(body.get("trouble", ""))
    facts = GatewayFacts(url, is_ready, said, str(body.get("redis", "")), {})
    try:
        status = GatewayClient(admin_url or url, TIMEOUT_S).status()
    except NoSuchPathError:
        return replace(facts, is_elsewhere=True)
    except NoGatewayError:
        raise
    except BatonError as refusal:
        return replace(facts, unseen=str(refusal))
    return replace(facts, status=status, said=said or str(status.get("trouble", "")))


def judge_gateway(facts: GatewayFacts) -> list[Finding]:
    found = [_judge_ready(facts)]
    if facts.is_elsewhere:
        found.append(ok("status", "not shown at this port; the admin port shows more of the cell"))
    elif facts.unseen:
        cure = "give a key with BATON_API_KEY, or name the admin port with --url"
        found.append(warn("status", facts.unseen, cure))
    hosts = {worker["id"]: worker["host"] for worker in facts.status.get("workers", ())}
    found += [judge_pair(pair, hosts) for pair in facts.status.get("hand_overs", ())]
    return found


def judge_no_gateway(error: NoGatewayError) -> Finding:
    return failed("gateway", error, "start one with `baton up` or `baton serve gateway`")


def judge_pair(pair: Mapping[str, Any], hosts: Mapping[str, str]) -> Finding:
    """How KV goes from one worker to another; tcp within a host is slower than need be."""
    prefill, decode, transport = pair["prefill"], pair["decode"], pair["transport"]
    check, seen = f"{prefill} -> {decode}", f"KV by {transport} ({pair['why']})"
    same_host = hosts.get(prefill) is not None and hosts.get(prefill) == hosts.get(decode)
    if transport == "tcp" and same_host and not pair["why"].startswith("named by"):
        cure = "give both the same --transfer-dir, of one user and mounted in both"
        return warn(check, f"{seen}, though both are on one host", cure)
    return ok(check, seen)


def _judge_ready(facts: GatewayFacts) -> Finding:
    check = "gateway"
    if not facts.is_ready:
        return fail(check, facts.said or "not ready", START)
    if facts.redis not in ("", "ok"):
        return fail(
            check, f"ready, and its Redis: {facts.redis}", "see Redis; new requests get 503"
        )
    if facts.said:
        return warn(check, f"ready, and {facts.said}", START)
    return ok(check, f"ready{_served(facts.status)}")


def _served(status: Mapping[str, Any]) -> str:
    workers: Sequence[Any] = status.get("workers", ())
    return f": {status.get('model')}, {len(workers)} workers linked" if status else ""
