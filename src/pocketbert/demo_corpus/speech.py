"""How people dress up a command: politeness, hesitation, typing slips, letter case and punctuation.

`make_spoken` applies them in this order. Slot values keep their wording: only untagged words get typing slips, and nothing is
put inside a value.
"""

from __future__ import annotations

from dataclasses import replace

from pocketbert.demo_corpus.grammar import Stream, Word

_REQUESTS = (
    "please",
    "can you",
    "could you",
    "can you please",
    "could you please",
    "i need you to",
    "would you",
)
HELD_REQUESTS = (
    "be so kind and",
    "would it be possible to",
    "i was wondering if you could",
    "do me a favour and",
    "kindly",
)
_GREETINGS = ("hey", "ok", "hi", "hello", "alright", "so", "hey there")
_HELD_GREETINGS = ("good day", "good evening", "sorry to bother you but", "quick one")
_THANKS = ("please", "thanks", "thank you", "for me please", "ok")
_HELD_THANKS = ("much appreciated", "will you", "if that's possible", "cheers")
FILLERS = ("uh", "um", "er", "uhm", "hmm", "you know", "i mean")

_FREE_TEXT = frozenset({"message", "task", "phrase"})
"""Slots of free text: a word of thanks after one would read as a part of it."""

_COMMAND_VERBS = frozenset(
    """
    activate add alert answer append arrange ask bathe beep begin block book boot bring brighten buzz
    calculate call cancel capture catch change check clear clock compute connect continue convert cool
    count crank create cross cut deactivate decrease define delete dial dim disable divide double draw
    drop empty enable end enter erase explain express extend extinguish figure find fire forget freeze
    get give go guide halt halve heat help hold hook hush illuminate immortalise include increase inform
    interrupt jot kill launch lead let light list listen load locate lock log look lower make mark
    measure message move multiply mute navigate note notify nudge open order pass pause pay pencil phone
    photograph pick ping plan play plot point power press program pull pump put queue quit raise read
    recommend record redial reduce remind remove render renew reply reserve resume ring rouse run save
    say schedule scrap scratch search see send set share shoot show shuffle shut silence skip slot snap
    solve spin split start stick stop switch take tap teach tell text throw time tone trace track
    transfer translate triple try tune turn undo unlock unmute unset update use video wake wipe work
    write
    """.split()
)
_QUESTION_WORDS = frozenset(
    "what what's how who when where which why is are am does did will would can could should has any".split()
)
_QUESTION_PAIRS = frozenset({("do", "i"), ("do", "you"), ("have", "i"), ("have", "you"), ("in", "which")})


def make_spoken(words: list[Word], stream: Stream, *, held: bool) -> list[Word]:
    """Return an utterance as somebody may say or type it: by chance with polite words, fillers, a slip or other letter case.

    Args:
        words: Tagged words of the plain utterance.
        stream: Source of the random choices.
        held: Whether polite phrases may be used that `train` never contains.

    Returns:
        Tagged words of the new utterance, perhaps more than before.
    """
    first, second = words[0].text, words[1].text if len(words) > 1 else ""
    is_command = words[0].tag == "O" and first in _COMMAND_VERBS
    is_question = words[0].tag == "O" and (first in _QUESTION_WORDS or (first, second) in _QUESTION_PAIRS)
    if is_command and stream.chance(0.22):
        request = stream.pick(_REQUESTS + HELD_REQUESTS if held else _REQUESTS)
        is_question = request.startswith(("can", "could", "would"))
        words = _untagged(request) + words
    if stream.chance(0.1):
        words = _untagged(stream.pick(_GREETINGS + _HELD_GREETINGS if held else _GREETINGS)) + words
    if is_command and words[-1].tag[2:] not in _FREE_TEXT and stream.chance(0.1):
        words = words + _untagged(stream.pick(_THANKS + _HELD_THANKS if held else _THANKS))
    if stream.chance(0.1):
        words = _add_hesitation(words, stream)
    if stream.chance(0.08):
        words = _add_typing_slip(words, stream)
    return _write_with_case(words, stream, is_question)


def _add_hesitation(words: list[Word], stream: Stream) -> list[Word]:
    """Return the words with a short untagged word repeated, or with a filler such as "uh" outside slot values."""
    if stream.chance(0.3):
        short = [position for position in _untagged_positions(words) if len(words[position].text) < 5]
        if short:
            position = stream.pick(short)
            return [*words[: position + 1], words[position], *words[position + 1 :]]
    gaps = [position for position, word in enumerate(words) if not word.tag.startswith("I-")]
    position = 0 if stream.chance(0.4) else stream.pick(gaps)
    return [*words[:position], *_untagged(stream.pick(FILLERS)), *words[position:]]


def _add_typing_slip(words: list[Word], stream: Stream) -> list[Word]:
    """Return the words with one letter left out, doubled or swapped in a long word outside slots, if there is such a word."""
    # five letters and more: a slip in "on" or "off" would change what the utterance means
    long = [position for position in _untagged_positions(words) if len(words[position].text) > 4]
    if not long:
        return words
    position = stream.pick(long)
    text = words[position].text
    cut = 1 + stream.below(len(text) - 2)
    slips = (
        text[:cut] + text[cut + 1 :],
        text[:cut] + text[cut] + text[cut:],
        text[:cut] + text[cut + 1] + text[cut] + text[cut + 2 :],
    )
    return [*words[:position], replace(words[position], text=stream.pick(slips)), *words[position + 1 :]]


def _write_with_case(words: list[Word], stream: Stream, is_question: bool) -> list[Word]:
    """Return the words in lower case, unchanged, in capitals, or as a sentence with or without a final mark."""
    style = stream.below(100)
    if style < 55:
        return [replace(word, text=word.text.lower()) for word in words]
    if style < 67:
        return words
    if style < 69:
        return [replace(word, text=word.text.upper()) for word in words]
    words = [
        replace(word, text="I" + word.text[1:]) if word.text == "i" or word.text.startswith("i'") else word
        for word in words
    ]
    words[0] = replace(words[0], text=words[0].text[0].upper() + words[0].text[1:])
    if style < 74:
        return words
    words[-1] = replace(words[-1], text=words[-1].text + ("?" if is_question else stream.pick((".", ".", "!"))))
    return words


def _untagged(text: str) -> list[Word]:
    """Return the words of a text, none of them in a slot."""
    return [Word(word, "O") for word in text.split()]


def _untagged_positions(words: list[Word]) -> list[int]:
    """Return the positions of words outside slot values that consist of letters only."""
    return [position for position, word in enumerate(words) if word.tag == "O" and word.text.isalpha()]
