"""Small stories: a hero, a wish or a trouble, a friend, a good end. The request may choose the hero and its name."""

from __future__ import annotations

import random

from swarm.demo.corpus.grammar import expand

HEROES = (
    *("fox", "cat", "dog", "mouse", "bear", "rabbit", "bird", "frog", "owl", "horse", "duck", "hedgehog"),
    *("squirrel", "turtle", "goat", "lion", "bee", "sheep", "wolf", "robot", "dragon", "girl", "boy", "farmer"),
)
HER = ("Mia", "Lily", "Anna", "Rosa", "Nora", "Ella", "Ida", "Zoe", "Clara", "Emma")
HIS = ("Tom", "Ben", "Max", "Leo", "Sam", "Tim", "Oskar", "Paul", "Finn", "Hugo")
PLACES = ("forest", "village", "valley", "meadow", "town", "garden")
THINGS = ("kite", "ball", "key", "hat", "bell", "boat", "lamp", "book", "drum", "map")

REQUESTS = (
    "{tell|tell me|write|write me|give me|read me} {a|a|one|another|a short|a little|a small|a nice|a new|a good} story",
    "{tell|tell me|write|write me|give me} {a|a|a short|a little|a small|a nice} {story|tale|story} about a HERO",
    "{tell|tell me|write|write me} {a|a|a short|a little|a small|a nice} {story|tale|story} about a HERO {named|called} NAME",
    "{can|could|will|would} you {tell|tell me|write} a story{| about a HERO| about a HERO named NAME}",
    "{i want|i would like|i'd like|i want to hear|i would like to hear|i need} a {|short |nice |little }story{| about a HERO| about a HERO named NAME}",
    "{a|one|another|one more} story{| please| about a HERO| about a HERO named NAME| about NAME the HERO}",
    "do you know {a story|any stories|a nice story|a story about a HERO}",
    "{story|story time|story please|a bedtime story|tell me something about a HERO named NAME}",
    "{make up|invent|think of} a {|little |short }story{| about a HERO| with a HERO}",
)  # fmt: skip
HELD_OUT = (
    "please invent a nice story about a frog",
    "i would like to read a short tale",
    "could you write me a story about a dragon named Mia",
    "let me hear a story about a bear called Hugo",
    "do you know a little story about an owl",
)

_OPENINGS = (
    "Once upon a time there was a {little|small|young|kind|brave} HERO named NAME. SHE lived in a {quiet|green|small|old} PLACE.",
    "In a {quiet|green|small|old} PLACE there lived a {little|small|young|kind|brave} HERO. HER name was NAME.",
    "NAME was a {little|small|young|kind|brave} HERO who lived in a {quiet|green|small|old} PLACE.",
)
_PLOTS = (
    "NAME had a {red|blue|golden|tiny} THING and loved it very much. One {morning|day|evening} the THING was gone. "
    "NAME looked {behind every tree|under every stone|in every corner}, but SHE could not find it. "
    'Then a HELPER came by. "Do not be sad," said the HELPER, "I will help you." '
    "Together they found the THING {near the river|under a bush|on the hill}. NAME {laughed|was happy again} and thanked the HELPER.",
    "One {morning|day|evening} a big storm came. The wind {took the roof of the house|broke the old bridge}, and NAME was afraid. "
    'Then a HELPER {came by|knocked at the door}. "We can {build it again|repair it} together," said the HELPER. '
    "They worked all day, and in the evening everything {was ready|was as good as new}. NAME {danced|smiled} and gave the HELPER {a cake|a warm soup}.",
    "NAME had a {red|blue|golden|tiny} THING, but nobody to play with. One {morning|day|evening} SHE met a HELPER who had nothing at all. "
    '"You may have a turn with my THING," said NAME. The HELPER was {glad|happy}, and they played until the stars came out. '
    "Since then NAME was never {alone|lonely} again.",
    "NAME wanted to {climb the high hill|cross the wide river|learn to sing}, but it was too hard. SHE tried once and {fell|failed}. SHE tried twice and {fell|failed} again. "
    'A HELPER saw it and said, "Try once more. I will stay with you." '
    "So NAME tried once more, and this time it worked. NAME {laughed|was proud} and hugged the HELPER.",
    "One {morning|day|evening} NAME found a {red|blue|golden|tiny} THING {near the river|under a bush|on the hill}. "
    'SHE asked everybody, "Is this your THING?" At last a HELPER said, "Yes, it is mine. I lost it." '
    "NAME gave it back at once. The HELPER was {glad|happy} and shared {a cake|some apples|some berries} with NAME.",
    "One {cold|dark} night NAME heard a {small|soft} voice. It was a HELPER who had lost the way home. "
    '"Come in," said NAME, "it is warm here." In the morning NAME took a {lamp|map} and they walked to the PLACE of the HELPER together. '
    "From then on they visited each other every {week|Sunday}.",
)  # fmt: skip
_ENDINGS = (
    "And so they became good friends.",
    "From that day on they were best friends.",
    "And they lived happily for a long time.",
    "Now NAME knows that friends make everything easier.",
)


def story(luck: random.Random, hero: str = "", name: str = "") -> str:
    """One story, about `hero` and `name` where they are given."""
    hero = hero or luck.choice(HEROES)
    name = name or _name(hero, luck)
    she, her = ("she", "her") if name in HER else ("he", "his")
    words = {
        "HERO": hero,
        "NAME": name,
        "HELPER": luck.choice([other for other in HEROES if other != hero and other[0] not in "aeiou"]),
        "PLACE": luck.choice(PLACES),
        "THING": luck.choice(THINGS),
    }
    text = expand(" ".join(luck.choice(part) for part in (_OPENINGS, _PLOTS, _ENDINGS)), luck)
    text = text.replace(". SHE ", f". {she.capitalize()} ").replace(". HER ", f". {her.capitalize()} ")
    text = text.replace("' SHE ", f"' {she.capitalize()} ").replace("SHE", she).replace("HER name", f"{her} name")
    return fill(text, words)


def request(luck: random.Random) -> tuple[str, str, str]:
    """A request for a story, and the hero and the name it asks for, each empty when it does not."""
    template = expand(luck.choice(REQUESTS), luck)
    hero = luck.choice(HEROES) if "HERO" in template else ""
    name = _name(hero, luck) if "NAME" in template else ""
    return fill(template, {"HERO": hero, "NAME": name}), hero, name


def _name(hero: str, luck: random.Random) -> str:
    return luck.choice({"girl": HER, "boy": HIS}.get(hero, HER + HIS))


def fill(text: str, words: dict[str, str]) -> str:
    """`text` with its capital words replaced; `a` becomes `an` before a vowel."""
    for slot, word in words.items():
        if word[:1] in ("a", "e", "i", "o", "u"):
            for article, better in (("a ", "an "), ("A ", "An ")):
                text = text.replace(f" {article}{slot}", f" {better}{slot}")
        text = text.replace(slot, word)
    return text
