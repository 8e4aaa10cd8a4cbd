"""Greedy answers from the recipe's own network: plain, batched, without a KV cache."""

from collections.abc import Sequence

import torch
from tokenizers import Tokenizer

from shared.demo_model.chat import END_OF_TEXT, SPECIAL_TOKENS, TURN_END, Message, render
from shared.demo_model.recipe.network import Network

MAX_ROWS = {"cuda": 128, "cpu": 16}
"""prompts decoded together; few on a CPU, where padding costs time"""


@torch.no_grad()
def _greedy_rows(
    network: Network, prompts: Sequence[list[int]], max_tokens: int, stop_ids: list[int]
) -> list[list[int]]:
    device = next(network.parameters()).device
    width = max(map(len, prompts)) + max_tokens
    rows = torch.zeros(len(prompts), width, dtype=torch.long)
    for index, prompt in enumerate(prompts):
        rows[index, : len(prompt)] = torch.tensor(prompt)
    rows = rows.to(device)
    lengths = torch.tensor([len(prompt) for prompt in prompts], device=device)
    stops = torch.tensor(stop_ids, device=device)
    done = torch.zeros(len(prompts), dtype=torch.bool, device=device)
    each = torch.arange(len(prompts), device=device)
    for _ in range(max_tokens):
        used = int(lengths.max())
        hidden = network.hidden_states(rows[:, :used])
        chosen = network.logits(hidden[each, lengths - 1]).argmax(-1)
        rows[each, lengths] = torch.where(done, rows[each, lengths], chosen)
        done |= torch.isin(chosen, stops)
        lengths = torch.where(done, lengths, lengths + 1)
        if bool(done.all()):
            break
    ends, table = lengths.tolist(), rows.tolist()
    return [row[len(prompt) : end] for row, prompt, end in zip(table, prompts, ends, strict=True)]


def greedy_ids(
    network: Network, prompts: Sequence[list[int]], max_tokens: int, stop_ids: list[int]
) -> list[list[int]]:
    """The new token ids of each prompt, without the stop token; prompts of like length together."""
    order = sorted(range(len(prompts)), key=lambda index: len(prompts[index]))
    answers: list[list[int]] = [[] for _ in prompts]
    max_rows = MAX_ROWS[next(network.parameters()).device.type]
    for start in range(0, len(order), max_rows):
        indices = order[start : start + max_rows]
        found = _greedy_rows(network, [prompts[i] for i in indices], max_tokens, stop_ids)
        for index, answer in zip(indices, found, strict=True):
            answers[index] = answer
    return answers


def answer_all(
    network: Network,
    tokenizer: Tokenizer,
    conversations: Sequence[list[Message]],
    max_tokens: int,
) -> list[str]:
    """The greedy answer to each conversation."""
    prompts = [
        tokenizer.encode(render(messages), add_special_tokens=False).ids
        for messages in conversations
    ]
    stop_ids = [SPECIAL_TOKENS.index(token) for token in (TURN_END, END_OF_TEXT)]
    answers = greedy_ids(network, prompts, max_tokens, stop_ids)
    return [tokenizer.decode(answer, skip_special_tokens=True) for answer in answers]
