"""Sentences written for this project: parity and golden rows where a user has no data at hand."""

SENTENCES: tuple[str, ...] = (
    "Set an alarm for half past six tomorrow morning.",
    "The film was far better than I had expected.",
    "I would not recommend this restaurant to anyone.",
    "ok",
    "What will the weather be like in Reykjavik on Sunday?",
    "Please forward the invoice to the accounting team before Friday, and copy me on the reply.",
    "Turn it down a little, the baby is asleep.",
    "The committee postponed its decision for the third time this year, citing a lack of reliable figures.",
    "Can you tell me where the nearest pharmacy is?",
    "She plays the cello beautifully.",
    "This is neither good nor bad, just forgettable.",
    "No.",
    "My order number is 48-2291-C and nothing has arrived yet.",
    "An unusually warm winter brought the almond trees into blossom six weeks early.",
    "Where did you put the keys?",
    "It broke after two days and the shop refuses to take it back.",
    "Une réservation pour quatre personnes à vingt heures, s'il vous plaît.",
    "Der Zug nach Köln fällt heute leider aus.",
    "明天早上七点叫我起床。",
    "Great 👍 see you there!! 🎉",
    "naïve café façade — “quoted” … and so on",
    "Increase the brightness to 80%.",
    "The quick brown fox jumps over the lazy dog while the band plays on.",
    "HELLO, IS ANYBODY THERE?",
    "Remind me to water the plants every other Tuesday until the end of March, except when I am travelling.",
    "He said that she said that they had said nothing at all.",
    "http-style words such as foo/bar?x=1&y=2 should not upset a tokenizer",
    "Pneumonoultramicroscopicsilicovolcanoconiosis is a very long word.",
    "Thanks for nothing.",
    "Thanks, that was exactly what I needed!",
    "We compared three phones over a month: battery, camera, and how warm they get while charging. "
    "The cheapest one lasted longest, the most expensive one took the nicest pictures, and the third did "
    "everything well without being the best at anything, which is why we would buy it again tomorrow.",
    "  blanks   in \t odd   places  ",
)
"""Short and long, plain and accented, other scripts, emoji, odd blanks."""


def sample_pairs() -> tuple[tuple[str, str], ...]:
    """The sentences as pairs, each with a later one."""
    count = len(SENTENCES)
    return tuple((text, SENTENCES[(i * 7 + 3) % count]) for i, text in enumerate(SENTENCES))
