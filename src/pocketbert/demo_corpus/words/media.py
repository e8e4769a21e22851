"""Slot values about media; songs, bands and shows are invented, composers are long dead."""

from __future__ import annotations

from pocketbert.demo_corpus.grammar import vocabulary

VOCABULARIES = (
    vocabulary(
        "song",
        seen="""Paper Lanterns; Midnight Ferry; Hold the River; Golden Static; Slow Motion Summer; Letters to Nowhere;
        Cherry Red Bicycle; The Long Way Down; Neon Harvest; Dust and Diamonds; Sleepless in June; Backyard Stars;
        Carry Me Over; Glass Elevator; Northern Train""",
        held="""Copper Moon; Falling Upstairs; A Thousand Kites; Saltwater Radio; Empty Ballroom; Tell the Ocean;
        Velvet Thunder; Seven Umbrellas; Winter Postcards; Run the Lights""",
    ),
    vocabulary(
        "artist",
        seen="""the Velvet Foxes; Mozart; Lena Hart; Static Harbour; Chopin; the Paper Kings; Otis Vale; Bach;
        Mira Solano; Electric Orchard; the Midnight Choir; Johnny Marlow; Vivaldi; Blue Tin Roof""",
        held="""Debussy; the Salt Brothers; Nadia Quill; Concrete Meadow; Beethoven; Harlan Pike; the Tin Sparrows;
        Schubert; Zuri Blake; Glacier Club""",
    ),
    vocabulary(
        "genre",
        seen="""jazz; rock; classical music; pop; hip hop; techno; country; reggae; blues; piano music; heavy metal;
        folk""",
        held="salsa; funk; lo-fi beats; ska; gospel; bossa nova; drum and bass; swing",
    ),
    vocabulary(
        "playlist",
        seen="workout; road trip; chill; focus; summer; cooking; favourites; running; Sunday morning; party",
        held="commute; gardening; rainy day; throwback; yoga; deep sleep",
    ),
    vocabulary(
        "podcast",
        seen="""Deep Sea Diaries; The Honest Hour; Science for Breakfast; Cold Trail; Money Made Plain;
        Two Chefs Talking; History Unboxed; The Night Shift; Garden Gossip; Startup Stories""",
        held="""Lost in Orbit; The Curious Plumber; Half a Mystery; Parents off Duty; Mind the Map; The Penalty Box;
        Kitchen Chemistry""",
    ),
    vocabulary(
        "topic",
        seen="""politics; football; the economy; climate change; technology; space travel; health; science; the war;
        electric cars; basketball; business""",
        held="""the elections; cycling; medicine; the housing market; robotics; archaeology; the royal family;
        renewable energy; tennis""",
    ),
)
