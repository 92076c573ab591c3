"""The texts a model is asked to continue, fixed for good so that two runs ask the same.

It never sends them and never judges an answer's numbers.
"""

from __future__ import annotations

from dataclasses import dataclass

QUESTION = "What is the capital of France?"
PLAIN_PROMPT = "The capital of France is"

# Three kinds of text, because a damaged model may keep one of them. SmolLM2-135M reads them at 2.2, 0.9
# and 0.4 nats a token; with random weights any model reads all three at ln(vocabulary), above 10.
PROSE = (
    "It was raining when she came home from work. She took off her wet shoes, put the kettle on the stove, "
    "and sat down at the kitchen table. There was a letter on the table from her brother. She had not heard "
    "from him for a long time, and she was afraid to open it. At last she took a knife, opened the letter, "
    "and began to read. He wrote that he was well, that he had found a new job in the city, and that he "
    "would come to see her in the spring."
)
WELL_KNOWN = (
    "We hold these truths to be self-evident, that all men are created equal, that they are endowed by "
    "their Creator with certain unalienable Rights, that among these are Life, Liberty and the pursuit of "
    "Happiness."
)
COUNTING = "one, two, three, four, five, six, seven, eight, nine, ten, " * 3 + "one, two, three, four, five"
PASSAGES = (("prose", PROSE), ("well_known", WELL_KNOWN), ("counting", COUNTING))


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """Something every language model can do; `raw` is for a bare completion, `chat` for a chat."""

    name: str
    raw: str
    chat: str
    expected: tuple[str, ...]  # words, lower case, in this order
    needed: int  # how many of them must come
    max_tokens: int

    def found(self, answer: str) -> int:
        """How many of the expected words the answer holds in order: the longest common subsequence,
        so that one slip (fp8 KV cache: "pillow six" for "pillow eleven") costs one word."""
        best = [0] * (len(self.expected) + 1)
        for word in "".join(c if c.isalnum() else " " for c in answer.lower()).split():
            before = best.copy()
            for place, expected in enumerate(self.expected):
                hit = before[place] + 1 if word == expected else 0
                best[place + 1] = max(before[place + 1], best[place], hit)
        return best[-1]

    def passed(self, answer: str) -> bool:
        return self.found(answer) >= self.needed


_LIST = (
    "violet lantern seven, brown kettle nine, silver ladder two, green pillow eleven, "
    "yellow hammer three, orange basket six"
)
_FILLER = (
    "The clerk opened the second drawer and counted the envelopes again. ",
    "Outside, a cart went by, and somebody laughed at the corner of the street. ",
    "It had rained since the morning, and the windows would not stay shut. ",
    "A letter from the north lay unread beneath the lamp. ",
    "Nobody had asked about the missing key for more than a week. ",
    "The kettle was cold, the fire was low, and the ink was nearly gone. ",
)


def _code_word(repeats: int) -> Task:
    filler = "".join(_FILLER) * repeats
    note = "Note: the code word is marigold. Remember that the code word is marigold. "
    return Task(
        name="code_word",
        raw=f"{note}{filler}Remember that the code word is",
        # a 135M chat model forgets a bare "code word" behind a story, but not a name
        chat=f"Hello, my name is Marigold. Here is a story. {filler}\n\n"
        "That is the end of the story. What is my name?",
        expected=("marigold",),
        needed=1,
        max_tokens=8,
    )


# Eleven of thirteen: a model with three partly zeroed layers copied eight words before it derailed
# while two of its three passages still read below 6 nats; one with an fp8 KV cache copied twelve.
COPY = Task(
    name="copy",
    raw=f"The list: {_LIST}.\nThe same list once more: violet lantern seven, brown kettle",
    chat=f"Repeat this sentence word for word: {_LIST}",
    expected=tuple(_LIST.replace(",", "").split()[5:]),
    needed=11,
    max_tokens=30,
)
CODE_WORD = _code_word(repeats=8)  # about 700 tokens: many blocks of KV cache, more than one tile
CODE_WORD_SHORT = _code_word(repeats=1)  # about 110, for a server whose context is too short for that
