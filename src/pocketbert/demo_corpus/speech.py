"""How people dress up a command: politeness, hesitation, typing slips, letter case and punctuation.

Slot values keep their wording: only untagged words get typing slips, and nothing is put inside a value.
"""

from __future__ import annotations

from dataclasses import replace

from pocketbert.demo_corpus.grammar import Stream, Word

REQUESTS = (
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
GREETINGS = ("hey", "ok", "hi", "hello", "alright", "so", "hey there")
HELD_GREETINGS = ("good day", "good evening", "sorry to bother you but", "quick one")
THANKS = ("please", "thanks", "thank you", "for me please", "ok")
HELD_THANKS = ("much appreciated", "will you", "if that's possible", "cheers")
FILLERS = ("uh", "um", "er", "uhm", "hmm", "you know", "i mean")

# A word of thanks after free text would read as a part of that text.
_FREE_TEXT = frozenset({"message", "task", "phrase"})
_COMMAND_TEXT = """
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
"""
_COMMANDS = frozenset(_COMMAND_TEXT.split())
_ASKING_TEXT = """
    what what's how who when where which why is are am does did will would can could should has any
"""
_ASKING = frozenset(_ASKING_TEXT.split())
_ASKING_PAIRS = frozenset({("do", "i"), ("do", "you"), ("have", "i"), ("have", "you"), ("in", "which")})


def spoken(words: list[Word], stream: Stream, *, held: bool) -> list[Word]:
    """Dresses up an utterance.

    Args:
        words: The plain utterance.
        stream: Where the choices come from.
        held: Whether politeness that train never has may be used.

    Returns:
        The utterance as somebody would say or type it.
    """
    command = words[0].tag == "O" and words[0].text in _COMMANDS
    asking = _is_question(words)
    if command and stream.chance(0.22):
        request = stream.pick(REQUESTS + HELD_REQUESTS if held else REQUESTS)
        asking = request.startswith(("can", "could", "would"))
        words = _plain(request) + words
    if stream.chance(0.1):
        words = _plain(stream.pick(GREETINGS + HELD_GREETINGS if held else GREETINGS)) + words
    if command and words[-1].tag[2:] not in _FREE_TEXT and stream.chance(0.1):
        words = words + _plain(stream.pick(THANKS + HELD_THANKS if held else THANKS))
    if stream.chance(0.1):
        words = _hesitant(words, stream)
    if stream.chance(0.08):
        words = _mistyped(words, stream)
    return _written(words, stream, asking)


def _plain(text: str) -> list[Word]:
    return [Word(word, "O") for word in text.split()]


def _is_question(words: list[Word]) -> bool:
    first = words[0].text
    second = words[1].text if len(words) > 1 else ""
    return words[0].tag == "O" and (first in _ASKING or (first, second) in _ASKING_PAIRS)


def _hesitant(words: list[Word], stream: Stream) -> list[Word]:
    if stream.chance(0.3):
        short = [at for at in _outside_slots(words) if len(words[at].text) < 5]
        if short:
            at = stream.pick(short)
            return [*words[: at + 1], words[at], *words[at + 1 :]]
    gaps = [at for at, word in enumerate(words) if not word.tag.startswith("I-")]
    at = 0 if stream.chance(0.4) else stream.pick(gaps)
    return [*words[:at], *_plain(stream.pick(FILLERS)), *words[at:]]


def _outside_slots(words: list[Word]) -> list[int]:
    return [at for at, word in enumerate(words) if word.tag == "O" and word.text.isalpha()]


def _mistyped(words: list[Word], stream: Stream) -> list[Word]:
    # Five letters and more: a slip in "on" or "off" would change what the utterance means.
    long = [at for at in _outside_slots(words) if len(words[at].text) > 4]
    if not long:
        return words
    at = stream.pick(long)
    text = words[at].text
    cut = 1 + stream.below(len(text) - 2)
    slips = (
        text[:cut] + text[cut + 1 :],
        text[:cut] + text[cut] + text[cut:],
        text[:cut] + text[cut + 1] + text[cut] + text[cut + 2 :],
    )
    return [*words[:at], replace(words[at], text=stream.pick(slips)), *words[at + 1 :]]


def _written(words: list[Word], stream: Stream, asking: bool) -> list[Word]:
    style = stream.below(100)
    if style < 55:
        return [replace(word, text=word.text.lower()) for word in words]
    if style < 67:
        return words
    if style < 69:
        return [replace(word, text=word.text.upper()) for word in words]
    words = [replace(word, text=_first_person(word.text)) for word in words]
    words[0] = replace(words[0], text=words[0].text[0].upper() + words[0].text[1:])
    if style < 74:
        return words
    words[-1] = replace(words[-1], text=words[-1].text + ("?" if asking else stream.pick((".", ".", "!"))))
    return words


def _first_person(text: str) -> str:
    return "I" + text[1:] if text == "i" or text.startswith("i'") else text
