"""What a request that was read holds of the byte budget."""

from dataclasses import replace

from services.gateway.prompt.prepared import PreparedPrompt, PreparedRequest
from services.gateway.routes.intake import BYTES_PER_HASH, BYTES_PER_TOKEN, held_bytes
from shared.protocol import Sampling


def test_what_the_answer_repeats_is_held_as_long_as_the_prompt() -> None:
    prompt = PreparedPrompt((1, 2, 3), (b"hash",), max_tokens=4)
    request = PreparedRequest(
        endpoint="chat",
        stream=False,
        include_usage=False,
        continuous_usage=False,
        stop=(),
        sampling=Sampling(max_tokens=4),
        prompts=(prompt,),
        num_choices=1,
    )
    plain = 3 * BYTES_PER_TOKEN + BYTES_PER_HASH
    assert held_bytes(request) == plain
    assert held_bytes(replace(request, echo="\u00e9" * 1000)) == plain + 2000
    scored = replace(request, prompt_logprobs=4, num_choices=2)
    assert held_bytes(scored) == plain + 2 * 3 * (4 + 4 + 4 * 8)
    shown = replace(prompt, text="\u00e9" * 5)
    echoing = replace(request, prompts=(shown,), shows_prompt=True, num_choices=3)
    assert held_bytes(echoing) == plain + 3 * 10
    logprobs = replace(echoing, sampling=Sampling(max_tokens=4, logprobs=0))
    assert held_bytes(logprobs) == plain + 3 * (10 + 3 * 8)
