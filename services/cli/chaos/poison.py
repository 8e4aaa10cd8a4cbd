"""A request that kills whoever computes it."""

import json
import time

from services.cli.chaos.asks import POISON, Ask, drawn_prompt
from services.cli.chaos.attempt import REFUSED, Attempt, Connection
from services.cli.chaos.fault import Kind, NotInjectedError, Scene

PLANTED = f"crash={POISON}"
PROMPT_TOKENS, ANSWER_TOKENS = 40, 16
CODE = "request_crashed_worker"
LIMIT_S = 60.0


async def poison(scene: Scene) -> str | None:
    """Its error is the proof that engines died of it: a gateway convicts by their deaths alone."""
    numbers, gateway = scene.numbers, scene.numbers.randrange(len(scene.cell.gateways))
    prompt = drawn_prompt(PROMPT_TOKENS - 1, numbers)
    body = Ask((*prompt, POISON), ANSWER_TOKENS, None).body(scene.load.model)
    attempt = Attempt(gateway, time.monotonic())
    key = f"poison-{numbers.getrandbits(64):x}"
    await Connection(attempt).exchange(scene.cell.gateways[gateway].url, body, key, LIMIT_S)
    if attempt.status in REFUSED:
        return None
    if CODE not in attempt.error:
        words = attempt.error or attempt.broken or json.dumps(attempt.text)
        raise NotInjectedError(f"the poison ended with {attempt.status} {words[:200]}")
    return f"convicted after {attempt.end_s - attempt.sent_s:.1f} s"


KINDS = (Kind("poison", poison, least_ready=2, hits_anyone=True),)
