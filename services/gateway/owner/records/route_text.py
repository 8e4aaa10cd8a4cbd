"""Why a worker was chosen, as a receipt says it."""

from services.gateway.owner.placement.router import Route

_WHY_TEXT = {
    "only": "the only worker",
    "prefix": "the worker with the prefix",
    "preferred": "the preferred worker",
    "least_loaded": "the least loaded worker",
    "moves": "the worker that it leaves",
}
"""by Route.why"""


def route_text(route: Route) -> str:
    return (
        f"{route.mode}{':' + route.reason if route.reason else ''} on {_WHY_TEXT[route.why]};"
        f" estimated_ttft_ms={route.estimate_s * 1e3:.1f} uncached={route.num_uncached_tokens}"
        f" candidates={route.num_candidates}"
    )
