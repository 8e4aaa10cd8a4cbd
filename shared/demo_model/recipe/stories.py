"""Short stories from a grammar: a plot is a chain of steps, a step has several sentences.

Who, where and what are drawn once for a story and fill the slots of all its sentences, so a
story stays true to itself and to the request that asked for it.
"""

from dataclasses import dataclass
from functools import cache
from random import Random

from shared.demo_model.chat import Exchange
from shared.demo_model.recipe.corpus_files import sections, words
from shared.demo_model.recipe.exact_tasks import made_up_word

FEMALE_NAMES = frozenset(
    [
        "Ruby",
        "Minnie",
        "Rosie",
        "Olive",
        "Daisy",
        "Hazel",
        "Susie",
        "Dilly",
        "Holly",
        "Dolly",
        "Wren",
        "Willow",
        "Lily",
        "Emma",
        "Nora",
        "Iris",
        "Merle",
        "Kay",
        "Robin",
        "Skip",
    ]
)
"""besides these, names that end in "a" are female, Luca and Noa excepted"""
PLAIN_REQUESTS = (
    "Tell me a story.",
    "Tell me a short story.",
    "Write a story.",
    "Write a short story.",
    "I would like to hear a story.",
    "Can you tell me a story?",
    "A story, please.",
    "Please tell me a story.",
    "Do you know a story?",
    "Tell me another story.",
    "Another story, please.",
)
ABOUT_REQUESTS = (
    "Tell me a story about {x}.",
    "Tell me a short story about {x}.",
    "Write a story about {x}.",
    "Write a short story about {x}.",
    "Can you tell me a story about {x}?",
    "Please tell me a story about {x}.",
    "I want a story about {x}.",
    "A story about {x}, please.",
    "Make up a story about {x}.",
    "Do you know a story about {x}?",
    "Tell me about {x}, as a story.",
    "Invent a story about {x}.",
)


@dataclass(frozen=True)
class Character:
    """Someone in a story."""

    adjective: str
    kind: str
    name: str
    she: str

    @property
    def described(self) -> str:
        """With article and adjective: "a small fox"."""
        return with_article(f"{self.adjective} {self.kind}")

    @property
    def her(self) -> str:
        """The possessive pronoun."""
        return "her" if self.she == "she" else "his"

    @property
    def her_obj(self) -> str:
        """The object pronoun."""
        return "her" if self.she == "she" else "him"


@dataclass(frozen=True)
class Story:
    """A finished story and the facts one can ask about it."""

    text: str
    hero: Character
    friend: Character
    home: str
    thing: str


def with_article(noun: str) -> str:
    """The noun with "a" or "an"."""
    return f"{'an' if noun[0] in 'aeiou' else 'a'} {noun}"


def _upper_first(text: str) -> str:
    return text[0].upper() + text[1:]


def _character(rng: Random, *, invented: bool) -> Character:
    cast = sections("cast.txt")
    kind, names = (cell.strip() for cell in rng.choice(cast["hero"]).split("|"))
    name = rng.choice(names.split())
    if invented:
        kind = rng.choice(words()) if rng.random() < 0.7 else made_up_word(rng)
        name = made_up_word(rng).capitalize() if rng.random() < 0.5 else name
    female = name in FEMALE_NAMES or (name.endswith("a") and name not in ("Luca", "Noa"))
    if kind in ("boy", "king", "girl", "princess"):
        female = kind in ("girl", "princess")
    she = "she" if female else "he"
    return Character(rng.choice(cast["adjective"]), kind, name, she)


@cache
def plots() -> dict[str, tuple[tuple[str, ...], ...]]:
    """Every plot as its steps, every step as its alternatives."""
    result = {}
    for name, lines in sections("plots.txt").items():
        steps = "\n".join(lines).split("\n--\n")
        result[name] = tuple(tuple(step.split("\n")) for step in steps)
    return result


def _slots(rng: Random, hero: Character, friend: Character, thing: str) -> dict[str, str]:
    cast = sections("cast.txt")
    (home, place), (_, place2) = (
        [cell.strip() for cell in line.split("|")] for line in rng.sample(cast["place"], 2)
    )
    weather, lesson = rng.choice(cast["weather"]), rng.choice(cast["lesson"])
    return {
        "a_hero": hero.described,
        "a_hero_cap": _upper_first(hero.described),
        "name": hero.name,
        "adjective": hero.adjective,
        "she": hero.she,
        "She": _upper_first(hero.she),
        "her": hero.her,
        "Her": _upper_first(hero.her),
        "her_obj": hero.her_obj,
        "her_obj_self": hero.her_obj + "self",
        "a_friend": friend.described,
        "friend_name": friend.name,
        "friend_she": friend.she,
        "home": home,
        "home_cap": _upper_first(home),
        "place": place,
        "place2": place2,
        "thing": thing,
        "a_thing": with_article(thing),
        "colour": rng.choice(cast["colour"]),
        "weather": weather,
        "weather_low": weather[0].lower() + weather[1:],
        "lesson": lesson,
        "lesson_say": lesson,
    }


def tell(rng: Random, *, invented: bool = False) -> Story:
    """A new story; an invented hero has a kind or a name that no list holds."""
    hero = _character(rng, invented=invented)
    friend = _character(rng, invented=False)
    while friend.kind == hero.kind or friend.name == hero.name:
        friend = _character(rng, invented=False)
    thing = rng.choice(sections("cast.txt")["thing"])
    if rng.random() < 0.3:
        thing = f"{rng.choice(sections('cast.txt')['colour'])} {thing}"
    slots = _slots(rng, hero, friend, thing)
    plot = plots()[rng.choice(sorted(plots()))]
    sentences = [rng.choice(step).format_map(slots) for step in plot]
    text = " ".join(sentences).replace(" ~", "\n\n")
    return Story(text, hero, friend, slots["home"], thing)


def _wish(rng: Random, story: Story) -> str:
    """What a reader may ask for to get exactly this kind of story."""
    hero = story.hero
    kind = with_article(hero.kind)
    return rng.choice(
        (
            kind,
            kind,
            hero.described,
            f"{kind} named {hero.name}",
            f"{hero.described} called {hero.name}",
            f"{kind} and {with_article(story.friend.kind)}",
            f"{kind} who lives {story.home}",
            hero.name,
            f"{hero.name} the {hero.kind}",
            f"{hero.name} and {story.friend.name}",
        )
    )


def story_exchange(rng: Random) -> tuple[Exchange, Story]:
    """A request for a story and the story."""
    if rng.random() < 0.2:
        story = tell(rng)
        return Exchange(rng.choice(PLAIN_REQUESTS), story.text), story
    story = tell(rng, invented=rng.random() < 0.3)
    request = rng.choice(ABOUT_REQUESTS).replace("{x}", _wish(rng, story))
    return Exchange(request, story.text), story


def story_questions(rng: Random, story: Story) -> Exchange:
    """A question about a story that was just told."""
    hero, friend = story.hero, story.friend
    return rng.choice(
        (
            Exchange(f"What is the name of the {hero.kind}?", f"The {hero.kind} is {hero.name}."),
            Exchange("Who is the story about?", f"It is about {hero.name}, {hero.described}."),
            Exchange(f"Where did {hero.name} live?", f"{hero.name} lived {story.home}."),
            Exchange(f"Who is {friend.name}?", f"{friend.name} is {friend.described}."),
            Exchange(f"Who is {hero.name}?", f"{hero.name} is {hero.described}."),
        )
    )
