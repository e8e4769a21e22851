"""Slot values about talking: people, messages, phrases, languages and words."""

from __future__ import annotations

from pocketbert.demo_corpus.grammar import vocabulary

VOCABULARIES = (
    vocabulary(
        "person",
        seen="""mom; dad; Anna; my sister; Peter; Julia; my boss; Tom Becker; aunt Mary; Carlos; Sophie; my wife;
        David; the babysitter; Mr Jones; Lisa; Ahmed; my husband; Emma Clark; the landlord; Nina; Mark""",
        held="""my brother; grandma; Doctor Weiss; Priya; Oliver; my landlady; uncle Frank; Fatima; Hannah Lee;
        my colleague; Mrs Novak; Kenji; the plumber; Ingrid; Rafael""",
    ),
    vocabulary(
        "message",
        seen="""i will be late; i am on my way; dinner is ready; i can't come tonight; the meeting is cancelled;
        i love you; i am stuck in traffic; we are at the restaurant; i forgot my keys; happy birthday;
        the package has arrived; i will call later; see you at eight; the kids are asleep; i need ten more minutes;
        the car is fixed; we should meet soon; i left the office""",
        held="""my flight is delayed; i passed the exam; the train was cancelled; lunch is on me; i have a cold;
        the heating is broken; we are out of bread; i found your scarf; practice starts at nine;
        i am nearly there; the cat is back home; i'm running behind""",
    ),
    vocabulary(
        "phrase",
        seen="""good morning; where is the station; thank you very much; how much does it cost; i am hungry;
        see you tomorrow; where is the bathroom; nice to meet you; the bill please; i am lost; good luck;
        can you help me; a table for two; i don't understand; happy new year""",
        held="""have a safe trip; what is your name; i am allergic to nuts; cheers; two tickets please; get well soon;
        i would like a coffee; is this seat taken; call a doctor; sleep well""",
    ),
    vocabulary(
        "foreign",
        seen="guten Morgen; merci beaucoup; buenas noches; grazie mille; bon appetit; hasta luego; auf Wiedersehen",
        held="obrigado; dankeschön; por favor; arrivederci; à bientôt",
    ),
    vocabulary(
        "language",
        seen="Spanish; French; German; Italian; Japanese; Chinese; Russian; Portuguese; Arabic; Dutch",
        held="Korean; Swedish; Turkish; Greek; Polish; Hindi; Finnish",
    ),
    vocabulary(
        "word",
        seen="""ephemeral; ambiguous; frugal; serendipity; paradox; nostalgia; candid; obsolete; inflation; empathy;
        photosynthesis; eloquent; dilemma; ubiquitous; irony; stoic; catalyst; entropy""",
        held="""resilient; quixotic; melancholy; hubris; osmosis; placid; mortgage; zeal; conundrum; tenacious;
        altruism; gullible""",
    ),
)
