"""One engine whose KV blocks run short: the three policies, classes, and which sequence gives way.

Blocks have two positions. Requests arrive in any order of events; a step is atomic, as the engine's
is: the head of the queue takes from later classes, decoding sequences advance by a token, the queue
is admitted, prompts advance by a chunk. In mode decode a reserved sequence waits for its KV, which
comes at any time with token 1, and one that gives way comes back after everybody else.

What is asked: no order of events leaves a world that the engine cannot finish from (deadlock), none
can be gone round forever (livelock, `endless`), and no step breaks what the policies promise.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal, NamedTuple

from tests.model.search import Model, Move, Verdict, search

BLOCK, CHUNK = 2, 2


class Request(NamedTuple):
    """What a client asks for."""

    priority: int
    num_prompt: int
    num_total: int


@dataclass(frozen=True)
class Rules:
    """Size of one search, and the rules taken out."""

    requests: tuple[Request, ...]
    num_blocks: int
    policy: Literal["preempt", "queue", "reject"] = "preempt"
    mode: Literal["full", "decode"] = "full"
    max_preemptions: int = 1
    mutants: frozenset[str] = frozenset()

    def whole(self, at: int) -> int:
        """Blocks that it can ever need; its last token is never fed back."""
        return blocks_for(self.requests[at].num_total - 1)

    def takes_whole(self, one: "Story") -> bool:
        if "growth in a queue" in self.mutants:
            return False
        return self.policy != "preempt" or self.pinned(one)

    def pinned(self, one: "Story") -> bool:
        return one.num_preemptions >= self.max_preemptions and "never pinned" not in self.mutants


class Story(NamedTuple):
    """Where one request is."""

    state: str = "out"
    """out, waiting, writing, running, reserved, away (handed back), done, refused"""
    num_tokens: int = 0
    num_computed: int = 0
    num_blocks: int = 0
    num_preemptions: int = 0


class World(NamedTuple):
    """The requests, and those the engine knows in order of arrival."""

    stories: tuple[Story, ...]
    order: tuple[int, ...] = ()
    broken: str = ""
    """the promise that the last step broke"""


def blocks_for(num_tokens: int) -> int:
    return -(-num_tokens // BLOCK)


def explore(rules: Rules) -> Verdict:
    return search(_model(rules))


def endless(rules: Rules) -> bool:
    """Some world comes back to itself: that can go on forever."""
    model = _model(rules)
    after, queue = {}, [model.start]
    for world in queue:
        if world not in after:
            after[world] = [move.world for move in model.moves(world)]
            queue += after[world]
    num_before = dict.fromkeys(after, 0)
    for following in after.values():
        for world in following:
            num_before[world] += 1
    left = [model.start]
    for world in left:  # in an order in which each comes after all that lead to it
        for following_world in after[world]:
            num_before[following_world] -= 1
            if not num_before[following_world]:
                left.append(following_world)
    return len(left) < len(after)


def _model(rules: Rules) -> Model[World]:
    start = World(tuple(Story() for _ in rules.requests))
    return Model(start, partial(_moves, rules=rules), lambda world: world.broken or None, _settled)


def _settled(world: World) -> bool:
    return all(one.state in ("out", "done", "refused") for one in world.stories)


def _moves(world: World, rules: Rules) -> Iterator[Move[World]]:
    for at, one in enumerate(world.stories):
        if one.state == "out":
            yield Move("arrives", _arrived(world, at, rules), environment=True)
        if one.state == "away":
            yield Move("comes back", _queued(world, at, one))
        if one.state == "reserved":
            token_1 = one._replace(num_computed=one.num_tokens, num_tokens=one.num_tokens + 1)
            after = _with(world, at, _ended(token_1, rules.requests[at]) or _running(token_1))
            yield Move("KV arrives", after)
    after = Step(world, rules).taken()
    if after != world:
        yield Move("step", after)


def _running(one: Story) -> Story:
    return one._replace(state="running")


def _ended(one: Story, request: Request) -> Story | None:
    return Story("done") if one.num_tokens >= request.num_total else None


def _with(world: World, at: int, one: Story) -> World:
    stories = (*world.stories[:at], one, *world.stories[at + 1 :])
    gone = one.state in ("done", "refused", "away")
    return World(stories, tuple(each for each in world.order if not (gone and each == at)))


def _queued(world: World, at: int, one: Story) -> World:
    return _with(world, at, one._replace(state="waiting"))._replace(order=(*world.order, at))


def _arrived(world: World, at: int, rules: Rules) -> World:
    num_prompt = rules.requests[at].num_prompt
    if rules.policy == "reject" and rules.mode == "full" and Step(world, rules).would_wait(at):
        return _with(world, at, Story("refused"))
    return _queued(world, at, Story("waiting", num_prompt))


class Step:
    """One step of the engine."""

    def __init__(self, world: World, rules: Rules) -> None:
        self._rules = rules
        self._stories = list(world.stories)
        self._order = list(world.order)
        self._scheduled: set[int] = set()
        self._grew = False
        self._served: int | None = None
        """head of the queue that later classes have blocks for"""
        self._broken = ""

    def taken(self) -> World:
        self._give_to_head()
        for at in self._by_rank("running"):
            self._decode(at)
        self._admit()
        for at in self._by_rank("writing"):
            self._compute(at)
        return World(tuple(self._stories), tuple(self._order), self._broken)

    def would_wait(self, at: int) -> bool:
        """Whether a newcomer would wait for blocks."""
        priority = self._rules.requests[at].priority
        before = [one for one in self._by_rank("waiting") if self._priority(one) <= priority]
        if "no queue is counted" in self._rules.mutants:
            before = []
        wanted = sum(self._rules.whole(one) for one in (*before, at))
        given = sum(self._stories[one].num_blocks for one in self._givers(at))
        return wanted > self._num_free + given

    @property
    def _num_free(self) -> int:
        return self._rules.num_blocks - sum(one.num_blocks for one in self._stories)

    def _priority(self, at: int) -> int:
        return self._rules.requests[at].priority

    def _rank(self, at: int) -> tuple[int, int]:
        return self._priority(at), self._order.index(at)

    def _by_rank(self, *states: str) -> list[int]:
        return sorted(
            (at for at in self._order if self._stories[at].state in states), key=self._rank
        )

    def _set(self, at: int, **facts: object) -> None:
        self._stories[at] = self._stories[at]._replace(**facts)  # type: ignore[arg-type]

    def _break(self, promise: str) -> None:
        self._broken = self._broken or promise

    # The one that gives way

    def _giving_order(self, at: int) -> tuple[int, int, int]:
        priority, arrival = self._rank(at)
        lost = self._stories[at].num_computed
        if "the dearest" in self._rules.mutants:
            lost = -lost
        if "the earliest class" in self._rules.mutants:
            priority = -priority
        return -priority, lost, -arrival

    def _victim(self, asking: int) -> int | None:
        running = self._by_rank("running", "writing")
        mutants = self._rules.mutants
        begin = 0 if "one that is scheduled" in mutants else running.index(asking)
        found = [at for at in running[begin:] if not self._rules.pinned(self._stories[at])]
        if "gives way itself" in mutants:
            return asking
        if asking == running[0] and len(found) > 1 and "the oldest" not in mutants:
            found = found[1:]
        if not found:
            return None
        return min(found, key=self._giving_order)

    def _judge(self, victim: int, asking: int) -> None:
        """By the promises, not by the order above."""
        running = self._by_rank("running", "writing")
        may = [at for at in running[running.index(asking) :] if not self._kept(at)]
        others = [at for at in may if at != running[0]] or may
        if victim in self._scheduled:
            self._break("one that is scheduled gives way")
        elif victim == running[0] and others != [victim]:
            self._break("the oldest gives way")
        elif any(self._priority(at) > self._priority(victim) for at in others):
            self._break("a later class keeps its blocks")
        elif any(
            self._stories[at].num_computed < self._stories[victim].num_computed
            for at in others
            if self._priority(at) == self._priority(victim)
        ):
            self._break("one that is cheaper to restore keeps its blocks")

    def _kept(self, at: int) -> bool:
        return self._stories[at].num_preemptions >= self._rules.max_preemptions

    def _preempt(self, at: int) -> None:
        one = self._stories[at]
        if self._kept(at):
            self._break("preempted too often")
        num_tokens = one.num_tokens
        if "the answer begins again" in self._rules.mutants:
            num_tokens = self._rules.requests[at].num_prompt
        if self._rules.mode == "decode":
            self._stories[at] = Story("away", num_tokens)
            self._order.remove(at)
            return
        num_preemptions = min(one.num_preemptions + 1, self._rules.max_preemptions + 1)
        self._stories[at] = Story("waiting", num_tokens, num_preemptions=num_preemptions)
        if "what was taken is refused" in self._rules.mutants and self.would_wait(at):
            self._stories[at] = Story("refused")
            self._order.remove(at)
            self._break("what was taken is lost")

    def _givers(self, head: int) -> list[int]:
        """Those of a later class than the head of the queue."""
        if self._rules.mode == "decode":
            return []
        running = self._by_rank("running", "writing")
        later = [at for at in running if self._priority(at) > self._priority(head)]
        return [at for at in later if not self._rules.pinned(self._stories[at])]

    def _give_to_head(self) -> None:
        queue = self._by_rank("waiting")
        if not queue:
            return
        found = sorted(self._givers(queue[0]), key=self._giving_order)
        lacking = self._to_admit(queue[0]) + self._num_spare() - self._num_free
        gains = [self._stories[at].num_blocks + self._grows(at) for at in found]
        if sum(gains) < lacking:
            return
        self._served = queue[0]
        if "no class" in self._rules.mutants:
            return
        for at, gain in zip(found, gains, strict=True):
            if lacking > 0:
                lacking -= gain
                self._preempt(at)

    # What is computed

    def _decode(self, at: int) -> None:
        one = self._stories[at]
        if one.state != "running":
            return  # it gave way in this step
        if one.num_computed >= one.num_blocks * BLOCK and not self._grow(at):
            return
        self._scheduled.add(at)
        self._sample(at, one.num_computed + 1)

    def _grow(self, at: int) -> bool:
        if self._rules.takes_whole(self._stories[at]):
            self._break("all blocks were not enough")
        while not self._num_free:
            if "waits for a block" in self._rules.mutants or (
                "growth in a queue" in self._rules.mutants
            ):
                return False
            victim = self._victim(at)
            if victim is None:
                self._break("nobody can give way")
                return False
            if self._rules.policy != "preempt":
                self._break("an equal makes it give way")
            self._judge(victim, at)
            self._preempt(victim)
            if victim == at:
                return False
        self._set(at, num_blocks=self._stories[at].num_blocks + 1)
        self._grew = True
        return True

    def _sample(self, at: int, num_computed: int) -> None:
        num_tokens = self._stories[at].num_tokens + 1
        self._set(at, state="running", num_computed=num_computed, num_tokens=num_tokens)
        if (ended := _ended(self._stories[at], self._rules.requests[at])) is not None:
            self._stories[at] = ended
            self._order.remove(at)

    def _compute(self, at: int) -> None:
        one = self._stories[at]
        num_computed = min(one.num_computed + CHUNK, one.num_tokens)
        self._set(at, num_computed=num_computed)
        if num_computed == one.num_tokens:
            self._sample(at, num_computed)

    def _admit(self) -> None:
        for at in self._by_rank("waiting"):
            num_blocks, num_spare = self._to_admit(at), self._num_spare()
            if num_blocks + num_spare > self._num_free:
                self._judge_wait(at)
                return
            state = "writing" if self._rules.mode == "full" else "reserved"
            self._set(at, state=state, num_blocks=num_blocks)

    def _judge_wait(self, at: int) -> None:
        """The head of the queue finds no blocks."""
        one_class = len({request.priority for request in self._rules.requests}) == 1
        if self._rules.policy == "reject" and self._rules.mode == "full" and one_class:
            self._break("what was taken waits for blocks")
        if at == self._served and not self._grew:
            self._break("a later class keeps blocks that the head wants")

    def _to_admit(self, at: int) -> int:
        one = self._stories[at]
        if self._rules.takes_whole(one) and "pinned with less" not in self._rules.mutants:
            return self._rules.whole(at)
        return blocks_for(one.num_tokens)

    def _num_spare(self) -> int:
        if "growth in a queue" in self._rules.mutants:
            return 0
        return sum(map(self._grows, self._by_rank("running", "writing", "reserved")))

    def _grows(self, at: int) -> bool:
        return not self._rules.takes_whole(self._stories[at])


def sizes(*, classes: Sequence[int]) -> tuple[Request, ...]:
    """Requests of some lengths, one for each class given."""
    lengths = [(2, 6), (4, 7), (1, 5), (3, 6)]
    return tuple(Request(each, *lengths[at]) for at, each in enumerate(classes))
