"""Mixes all generators into training documents and turns them into token arrays."""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from multiprocessing import get_context
from random import Random

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer

from shared.demo_model.chat import Document, Exchange, conversation, plain_text
from shared.demo_model.knowledge import knowledge, table_fact, unknown_topic, vary
from shared.demo_model.recipe.corpus_files import entries
from shared.demo_model.recipe.exact_tasks import (
    copy_exchange,
    draw,
    sort_exchange,
    sum_exchange,
    word_sort_exchange,
)
from shared.demo_model.recipe.small_tasks import notes, remembered_fact, small_task
from shared.demo_model.recipe.stories import story_exchange, story_questions, tell

CHUNK = 2_000
"""documents that one seed makes; the result does not depend on the number of processes"""

SYSTEM_PROMPTS = (
    "You are a helpful assistant.",
    "You are Baton, a small and friendly language model.",
    "You are a helpful, honest and kind assistant.",
    "You are a careful assistant. Answer exactly.",
    "Be polite and helpful.",
)


@dataclass(frozen=True)
class TokenArrays:
    """Documents end to end: token ids, where the loss counts, and where each document starts."""

    token_ids: npt.NDArray[np.uint16]
    trained: npt.NDArray[np.bool_]
    starts: npt.NDArray[np.int64]
    """first token of each document, and the total at the end"""

    @property
    def num_documents(self) -> int:
        return len(self.starts) - 1


def _single(rng: Random, exchange: Exchange) -> Document:
    system = rng.choice(SYSTEM_PROMPTS) if rng.random() < 0.12 else ""
    return conversation([exchange], system)


def _exact(rng: Random) -> Exchange:
    generators = (copy_exchange, sort_exchange, word_sort_exchange, sum_exchange)
    generator = rng.choices(generators, (31, 32, 9, 28))[0]
    return draw(generator, rng, held_out=False)


def _varied(rng: Random, exchange: Exchange) -> Exchange:
    return replace(exchange, question=vary(rng, exchange.question))


def _knowledge_turns(rng: Random) -> list[Exchange]:
    kind = rng.random()
    if kind < 0.36:
        return knowledge(rng, "baton.txt")[1]
    if kind < 0.54:
        return knowledge(rng, "smalltalk.txt")[1]
    if kind < 0.68:
        return knowledge(rng, "facts.txt")[1]
    if kind < 0.85:
        return [table_fact(rng)]
    return [unknown_topic(rng)]


def _knowledge_document(rng: Random) -> Document:
    if rng.random() < 0.15:
        system, turns = knowledge(rng)
        return conversation([_varied(rng, turn) for turn in turns], system)
    turns = [_varied(rng, turn) for turn in _knowledge_turns(rng)]
    system = rng.choice(SYSTEM_PROMPTS) if rng.random() < 0.12 else ""
    return conversation(turns, system)


def _story_document(rng: Random) -> Document:
    if rng.random() < 0.2:
        return plain_text(tell(rng, invented=rng.random() < 0.3).text)
    exchange, story = story_exchange(rng)
    turns = [_varied(rng, exchange)]
    if rng.random() < 0.25:
        turns.append(story_questions(rng, story))
    return conversation(turns)


def _some_turns(rng: Random) -> list[Exchange]:
    kind = rng.random()
    if kind < 0.4:
        return [_varied(rng, turn) for turn in _knowledge_turns(rng)]
    if kind < 0.7:
        return [_exact(rng)]
    if kind < 0.8:
        return [small_task(rng)]
    exchange, story = story_exchange(rng)
    return [exchange, story_questions(rng, story)] if rng.random() < 0.5 else [exchange]


def _long_conversation(rng: Random) -> Document:
    told, asked = remembered_fact(rng)
    num_groups = rng.choice((1, 1, 2, 2, 3, 4, 6, 9, 14, 30))
    turns = [told] if rng.random() < 0.5 else []
    remembers = bool(turns)
    for _ in range(num_groups):
        turns += _some_turns(rng)
    if remembers:
        turns.append(asked)
    system = rng.choice(SYSTEM_PROMPTS) if rng.random() < 0.2 else ""
    return conversation(turns, system)


def _notes_document(rng: Random) -> Document:
    return _single(rng, notes(rng, rng.choice((2, 3, 5, 8, 12, 20, 30, 50, 80, 120, 200, 280))))


def _paragraph(rng: Random) -> Document:
    answers = [answer for entry in entries() for answer in entry.long_answers]
    return plain_text(rng.choice(answers))


MIX: tuple[tuple[float, Callable[[Random], Document]], ...] = (
    (56.0, lambda rng: _single(rng, _exact(rng))),
    (9.0, lambda rng: _single(rng, small_task(rng))),
    (22.0, _knowledge_document),
    (7.0, _story_document),
    (5.0, _long_conversation),
    (0.5, _notes_document),
    (0.5, _paragraph),
)
"""how often each kind of document is drawn"""


def documents(seed: int, num: int) -> Iterator[Document]:
    """`num` documents; the same seed gives the same documents everywhere."""
    rng = Random(seed)  # noqa: S311 - reproducible, not secret
    weights = [weight for weight, _ in MIX]
    makers = [maker for _, maker in MIX]
    for maker in rng.choices(makers, weights, k=num):
        yield maker(rng)


def encode(tokenizer: Tokenizer, batch: Sequence[Document], max_len: int) -> TokenArrays:
    """Token arrays of the documents; a document of more than `max_len` tokens is left out."""
    flat = [segment for document in batch for segment in document]
    encodings = tokenizer.encode_batch_fast(
        [segment.text for segment in flat], add_special_tokens=False
    )
    token_ids: list[int] = []
    trained: list[bool] = []
    starts = [0]
    position = 0
    for document in batch:
        for segment in document:
            ids = encodings[position].ids
            position += 1
            token_ids += ids
            trained += [segment.trained] * len(ids)
        if len(token_ids) - starts[-1] > max_len:
            del token_ids[starts[-1] :], trained[starts[-1] :]
        else:
            starts.append(len(token_ids))
    return TokenArrays(
        np.array(token_ids, np.uint16), np.array(trained, np.bool_), np.array(starts, np.int64)
    )


def _encoded_chunk(tokenizer_json: str, seed: int, num: int, max_len: int) -> TokenArrays:
    tokenizer = Tokenizer.from_str(tokenizer_json)
    return encode(tokenizer, list(documents(seed, num)), max_len)


def _joined(parts: Sequence[TokenArrays]) -> TokenArrays:
    lengths = np.concatenate([np.diff(part.starts) for part in parts])
    return TokenArrays(
        np.concatenate([part.token_ids for part in parts]),
        np.concatenate([part.trained for part in parts]),
        np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)]),
    )


def token_arrays(
    tokenizer: Tokenizer, num_documents: int, max_len: int, num_processes: int
) -> TokenArrays:
    """Makes and encodes the training documents in several processes."""
    tokenizer_json = tokenizer.to_str()
    seeds = range(1, -(-num_documents // CHUNK) + 1)
    chunk = min(CHUNK, num_documents)
    if num_processes == 1:
        return _joined([_encoded_chunk(tokenizer_json, seed, chunk, max_len) for seed in seeds])
    with ProcessPoolExecutor(num_processes, mp_context=get_context("spawn")) as pool:
        pending = [
            pool.submit(_encoded_chunk, tokenizer_json, seed, chunk, max_len) for seed in seeds
        ]
        return _joined([part.result() for part in pending])
