"""Slot values about the home: rooms, scenes, colours, degrees and percentages."""

from __future__ import annotations

from pocketbert.demo_corpus.grammar import vocabulary

VOCABULARIES = (
    vocabulary(
        "room",
        seen="""kitchen; living room; bedroom; bathroom; hallway; office; garage; dining room; kids room;
        guest room; basement; study""",
        held="attic; conservatory; nursery; laundry room; porch; workshop; pantry; cloakroom; den",
    ),
    vocabulary(
        "scene",
        seen="movie; dinner; reading; party; relax; romantic; focus; bedtime; morning; sunset; cosy; gaming",
        held="campfire; meditation; candlelight; homework; cinema; aurora; spa; underwater",
    ),
    vocabulary(
        "color",
        seen="red; blue; warm white; green; purple; orange; soft yellow; cold white",
        held="turquoise; pink; amber; violet; daylight white; crimson",
    ),
    vocabulary(
        "degrees",
        seen="""20 degrees; 21 degrees; nineteen degrees; 22; twenty two degrees; 18 degrees; 23 degrees;
        seventeen degrees; 68 degrees; 21.5 degrees; twenty degrees""",
        held="24 degrees; sixteen degrees; 19.5 degrees; twenty five degrees; 66 degrees; 70 degrees",
    ),
    vocabulary(
        "change",
        seen="two degrees; one degree; half a degree; 3 degrees",
        held="four degrees; a few degrees; 1.5 degrees",
    ),
    vocabulary(
        "percent",
        seen="10 percent; 20 percent; fifty percent; 30 percent; thirty percent; 80%; 40 percent; 25 percent; 60%",
        held="15 percent; seventy percent; 35%; 45 percent; ninety percent; 5%",
    ),
)
