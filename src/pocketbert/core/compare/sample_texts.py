"""Sentences written for this project, for parity checks and golden rows when the user has no data."""

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


ASCII_SENTENCES: tuple[str, ...] = (
    *(text for text in SENTENCES if text.isascii()),
    "Book a table for two at eight o'clock, near the window if possible.",
    "The battery died on the first day; I want my money back.",
    "Add milk, eggs and flour to the shopping list.",
    "Honestly? The sequel is even worse than the original.",
    "Call my sister when I get home.",
    "I've never laughed so hard in a cinema.",
    "Skip this song, please.",
    "The instructions are missing page 4 (of 12).",
    "Why is the internet so slow today?",
    "A quiet, patient film about two brothers and a boat.",
    "Dim the lights in the living-room to 25 percent.",
    "e-mail: someone@example.org, phone: +49 30 1234567",
    "WHERE IS MY PARCEL???",
    "Half of the seats were empty, and rightly so.",
    "Translate 'good morning' into Portuguese.",
    "My flight (LH 1234) was cancelled without notice.",
    "C:\\Users\\guest\\notes.txt was not found [error 2]",
    "It's fine, I guess...",
    "Wake me at 6:45 a.m. on weekdays only.",
    "2 + 2 = 4, and 10 > 9; <b>bold</b> claims need proof & patience.",
    "The waiter was friendly but the soup arrived cold twice.",
    "Play something calm by a pianist I have not heard before.",
    "snake_case, CamelCase and kebab-case walk into a bar",
)
"""50 sentences that the tokenizer of every client must split alike."""

UNICODE_SENTENCES: tuple[str, ...] = (
    *(text for text in SENTENCES if not text.isascii()),
    "El niño pidió más azúcar para el café.",
    "Zażółć gęślą jaźń",
    "İstanbul'da hava nasıl, ışıklar açık mı?",
    "Где ближайшая аптека?",
    "Πού είναι ο σταθμός;",
    "今日はとても良い天気ですね。",
    "오늘 날씨가 어때요?",
    "أين أقرب محطة قطار؟",
    "मुझे कल सुबह छह बजे जगाना।",
    "Trời hôm nay đẹp quá!",
    "The cafe\u0301 on the corner is closed for the holidays.",
    "The price rose from €20 to £35 – a 75 % increase.",
    "“Don’t you dare!” she said… and left.",
    "Turn on the lights 💡 in 家 please",
    "Straße, ÆON, smørrebrød & crème brûlée 😋",
)
"""20 sentences with accents, other scripts and emoji, on which clients with a tokenizer of their own may differ."""


def sample_pairs() -> tuple[tuple[str, str], ...]:
    """Return each sample sentence paired with another one."""
    count = len(SENTENCES)
    return tuple((text, SENTENCES[(i * 7 + 3) % count]) for i, text in enumerate(SENTENCES))
