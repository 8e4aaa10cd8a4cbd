"""A prefill worker's pool, and two requests whose prompts begin with the same block.

Each prompt fills two blocks: S, which is common to both, and one of its own. A request takes all
of its blocks at once, those that the prefix cache knows and others that it writes. What it has
computed is named, so that the cache knows it, and published to its reader, in either order. Where
both compute S at once, the second finds the first one's when it names its own. A request ends when
its reader has a copy, when it is cancelled or when its lease ends; its blocks stay cached until
somebody needs them. The first request's reader reads at any time, and verifies by generations
alone, as one that maps the pool does; what the second one's would do is the same with the names
exchanged.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from tests.model.search import Model, Move, Verdict, search

PROMPTS = ("SA", "SB")
"""names of the blocks of each"""
FOREIGN = "x"


@dataclass(frozen=True)
class Rules:
    """Size of one search, and the rules taken out."""

    num_blocks: int = 3
    max_others: int = 2
    """blocks that other requests take"""
    mutants: frozenset[str] = frozenset()


class Block(NamedTuple):
    generation: int = 0
    num_references: int = 0
    name: str = ""
    """by which the prefix cache knows it"""
    content: str = ""


class Tag(NamedTuple):
    block: int
    generation: int


class Request(NamedTuple):
    state: str = "new"
    """new, writing, held, gone"""
    table: tuple[int, ...] = ()
    num_computed: int = 0
    num_named: int = 0
    twin: int = -1
    """block of the other request with the same content as the first here, also held"""
    published: tuple[Tag, ...] = ()
    sealed: bool = False


class World(NamedTuple):
    blocks: tuple[Block, ...]
    requests: tuple[Request, ...] = (Request(), Request())
    copy: tuple[str, ...] = ()
    """what the first one's reader has read"""
    outcome: str = ""
    """of its verify: copied, stale"""
    lent: frozenset[int] = frozenset()
    """blocks that other requests have"""
    num_others: int = 0


def explore(rules: Rules) -> Verdict:
    start = World((Block(),) * rules.num_blocks)
    return search(Model(start, partial(moves, rules=rules), broken, settled))


def broken(world: World) -> str | None:
    """The first invariant this world breaks, or None."""
    if world.outcome == "copied" and world.copy != tuple(PROMPTS[0]):
        return "B1 a copy of something else was verified"
    for index, request in enumerate(world.requests):
        if request.state not in ("writing", "held"):
            continue
        computed = request.table[: request.num_computed]
        if any(
            world.blocks[block].content != name
            for block, name in zip(computed, PROMPTS[index], strict=False)
        ):
            return "B2 a request holds a block with something else in it"
        if not all(_in_force(world, tag) for tag in request.published):
            return "B3 a block is given away while its readers may come"
    return None


def settled(world: World) -> bool:
    """Both requests are over, and every block is free or cached."""
    over = all(request.state == "gone" for request in world.requests)
    return over and not any(block.num_references for block in world.blocks)


def moves(world: World, rules: Rules) -> Iterator[Move[World]]:
    for index, request in enumerate(world.requests):
        if request.state == "new":
            yield from _take(world, rules, index)
        elif request.state == "writing":
            yield from _write(world, rules, index)
        if request.state in ("writing", "held"):
            yield Move(f"r{index} gives its blocks back", _given_back(world, rules, index))
    if not world.outcome:
        yield from _read(world, rules)
    for block in world.lent:
        back = _freed(world, rules, block)._replace(lent=world.lent - {block})
        yield Move(f"another request gives {block} back", back)
    if world.num_others < rules.max_others:
        for after, (block,) in _allocated(world, rules, 1):
            taken = _with(after, block, after.blocks[block]._replace(content=FOREIGN))
            lent = taken._replace(lent=world.lent | {block}, num_others=world.num_others + 1)
            yield Move("another request takes a block", lent, environment=True)


# Requests


def _take(world: World, rules: Rules, index: int) -> Iterator[Move[World]]:
    """R17: all blocks at once. Those of the cache are referred to before any other is evicted."""
    cached = []
    for name in PROMPTS[index]:
        known = _named(world, name)
        if known is None:
            break
        cached.append(known)
    if "no reference to what was cached" not in rules.mutants:
        for block in cached:
            world = _referred(world, block)
    early = "named before it is computed" in rules.mutants
    for taken, fresh in _allocated(world, rules, len(PROMPTS[index]) - len(cached)):
        num_named = len(PROMPTS[index]) if early else len(cached)
        request = Request("writing", (*cached, *fresh), len(cached), num_named)
        after = _all_named(taken, index, request) if early else taken
        yield Move(f"r{index} takes {request.table}", _with_request(after, index, request))


def _write(world: World, rules: Rules, index: int) -> Iterator[Move[World]]:
    request = world.requests[index]
    at, prompt = request.num_computed, PROMPTS[index]
    if at < len(prompt):
        block = request.table[at]
        written = _with(world, block, world.blocks[block]._replace(content=prompt[at]))
        computed = _with_request(written, index, request._replace(num_computed=at + 1))
        yield Move(f"r{index} computes {prompt[at]}", computed)
    at = len(request.published)
    if at < request.num_computed:
        block = request.table[at]
        tag = Tag(block, world.blocks[block].generation)
        told = request._replace(published=(*request.published, tag))
        yield Move(f"r{index} publishes {prompt[at]}", _with_request(world, index, told))
    if request.num_named < request.num_computed:
        yield Move(f"r{index} names {prompt[request.num_named]}", _name_next(world, rules, index))
    if len(request.published) == request.num_named == len(prompt):
        held = request._replace(state="held", sealed=True)
        yield Move(f"r{index} seals", _with_request(world, index, held))


def _name_next(world: World, rules: Rules, index: int) -> World:
    """A twin's block takes the place of one's own, unless readers know that."""
    request = world.requests[index]
    at = request.num_named
    own, name = request.table[at], PROMPTS[index][at]
    twin = _named(world, name)
    request = request._replace(num_named=at + 1)
    if twin is None:
        named = _with(world, own, world.blocks[own]._replace(name=name))
        return _with_request(named, index, request)
    world = _referred(world, twin)
    if at < len(request.published) and "twin's block under readers" not in rules.mutants:
        return _with_request(world, index, request._replace(twin=twin))
    table = (*request.table[:at], twin, *request.table[at + 1 :])
    return _with_request(_freed(world, rules, own), index, request._replace(table=table))


def _all_named(world: World, index: int, request: Request) -> World:
    for block, name in zip(request.table, PROMPTS[index], strict=True):
        if _named(world, name) is None:
            world = _with(world, block, world.blocks[block]._replace(name=name))
    return world


def _given_back(world: World, rules: Rules, index: int) -> World:
    request = world.requests[index]
    gone = request._replace(state="gone", table=(), twin=-1)
    twins = (request.twin,) if request.twin >= 0 else ()
    for block in (*request.table, *twins):
        world = _freed(world, rules, block)
    return _with_request(world, index, gone)


def _read(world: World, rules: Rules) -> Iterator[Move[World]]:
    """R11, R13: what is published, in any state of the pool; one verify after the last read."""
    request, at = world.requests[0], len(world.copy)
    if at < len(request.published):
        content = world.blocks[request.published[at].block].content
        yield Move(f"the reader reads {at}", world._replace(copy=(*world.copy, content)))
    elif request.sealed and at == len(PROMPTS[0]):
        asked = request.published
        if "prefix is not verified" in rules.mutants:
            asked = asked[1:]
        whole = all(_in_force(world, tag) for tag in asked)
        answered = world._replace(outcome="copied" if whole else "stale")
        yield Move("the reader verifies", answered)


# The pool


def _allocated(world: World, rules: Rules, number: int) -> Iterator[tuple[World, tuple[int, ...]]]:
    """The ways to take blocks to write: a free one, or a cached one that no other builds on."""
    if not number:
        yield world, ()
        return
    for block in _available(world):
        former = world.blocks[block]
        kept = "a cached block keeps its generation" in rules.mutants and former.name
        bumped = former.generation + (not kept)
        taken = _with(world, block, Block(bumped, 1, content=former.content))
        for after, others in _allocated(taken, rules, number - 1):
            yield after, (block, *others)


def _available(world: World) -> list[int]:
    unused = [at for at, block in enumerate(world.blocks) if not block.num_references]
    free = [at for at in unused if not world.blocks[at].name]
    if free:
        return free[:1]
    built_on = any(block.name not in ("", "S") for block in world.blocks)
    return [at for at in unused if world.blocks[at].name != "S" or not built_on]


def _freed(world: World, rules: Rules, block: int) -> World:
    former = world.blocks[block]
    left = 0 if "freed by the first" in rules.mutants else former.num_references - 1
    return _with(world, block, former._replace(num_references=max(left, 0)))


def _referred(world: World, block: int) -> World:
    former = world.blocks[block]
    return _with(world, block, former._replace(num_references=former.num_references + 1))


def _named(world: World, name: str) -> int | None:
    return next((at for at, block in enumerate(world.blocks) if block.name == name), None)


def _in_force(world: World, tag: Tag) -> bool:
    return world.blocks[tag.block].generation == tag.generation


def _with(world: World, at: int, block: Block) -> World:
    return world._replace(blocks=(*world.blocks[:at], block, *world.blocks[at + 1 :]))


def _with_request(world: World, index: int, request: Request) -> World:
    requests = world.requests
    return world._replace(requests=(*requests[:index], request, *requests[index + 1 :]))
