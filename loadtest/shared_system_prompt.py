"""A customer service: all requests have one system prompt of 500 tokens and 50 tokens of their own.

    make load SCENARIO=shared-system-prompt
    locust -f loadtest/shared_system_prompt.py -H URL --headless -u 4 -r 1 -t 1m --answer-tokens 16

At the end it says how much of the prompts the prefix cache had, next to what the formula says for
as many requests: of 10,000 it is 4,999,500 of 5,500,000 tokens, 90.9 %. Prompts are token ids, so
that their lengths are exact for any tokenizer. Users should come one by one (-r 1): whoever comes
before the first prompt is computed finds nothing either.
"""

import logging
import sys
from pathlib import Path
from typing import Any

from locust import constant, events, task
from locust.env import Environment

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # locust knows this folder only

from loadtest.locustfile import ChatUser, saving
from loadtest.prefix_saving import compared
from loadtest.prompts import TokenWriter

logger = logging.getLogger(__name__)

NAME = "shared-system-prompt"
SYSTEM_TOKENS, OWN_TOKENS = 500, 50


class Visitor(ChatUser):
    """Asks one question after the other."""

    wait_time = constant(0)

    def on_start(self) -> None:
        super().on_start()
        seed = self.environment.parsed_options.load_seed
        self.tokens = TokenWriter(seed, self.prompts.seed(), _num_shared(self.environment))

    @task
    def visit(self) -> None:
        self.complete(NAME, self.tokens.prompt(OWN_TOKENS))


@events.test_stop.add_listener
def show_saving(environment: Environment, **_: Any) -> None:
    logger.info(compared(saving, _num_shared(environment), OWN_TOKENS))


def _num_shared(environment: Environment) -> int:
    options = environment.parsed_options
    return (options and options.system_tokens) or SYSTEM_TOKENS
