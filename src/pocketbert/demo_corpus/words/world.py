"""Slot values about the world and the phone: places, apps, photo subjects, numbers and measures."""

from __future__ import annotations

from pocketbert.demo_corpus.grammar import vocabulary

MEASURES = ("length", "weight", "volume", "heat", "money")

VOCABULARIES = (
    vocabulary(
        "city",
        seen="""London; Paris; Berlin; New York; Tokyo; Madrid; Chicago; Rome; Sydney; Vienna; Boston; Amsterdam;
        Munich; San Francisco; Dublin; Mumbai""",
        held="Lisbon; Oslo; Toronto; Nairobi; Prague; Seoul; Seattle; Cairo; Buenos Aires; Geneva; Edinburgh",
    ),
    vocabulary(
        "place",
        seen="""the airport; the nearest pharmacy; Oak Street 12; the train station; the city hospital; work; the gym;
        the next gas station; 5 Park Avenue; the zoo; the town hall; the Italian restaurant; the shopping mall;
        the central library; the university; Baker Street""",
        held="""the harbour; the botanical garden; 48 Mill Lane; the nearest bakery; the football stadium;
        the old castle; the police station; Elm Road; the swimming pool; the art museum; the ferry terminal""",
    ),
    vocabulary(
        "app",
        seen="""Trailmate; Pocketbank; Chatterbox; Fotobox; Skynote; Puzzle Farm; Mealplanner; Runlog; Ticketbird;
        Parkwise; Bookworm; Cloudbox""",
        held="Fitpal; Moneyjar; Chess Arena; Gardenly; Snaproom; Trainbuddy; Wordsnake; Medcard",
    ),
    vocabulary(
        "app_kind",
        seen="""calculator; camera; music; weather; maps; banking; calendar; notes; settings; podcast; mail;
        gallery""",
        held="alarm; translator; fitness; shopping; radio; messaging; recipe; health",
    ),
    vocabulary(
        "subject",
        seen="""the dog; this cake; the view; my family; the sunset; this receipt; the whiteboard; the kids;
        my dinner; this sign; the garden; the group; the car; these flowers""",
        held="""the rainbow; my new haircut; this painting; the baby; the bridge; that waterfall; the trophy;
        the parking spot; our tent; the snowman""",
    ),
    vocabulary(
        "sum",
        seen="""12 plus 30; 7 times 8; 100 divided by 4; 45 minus 17; 15 percent of 80; the square root of 49;
        230 plus 19; 6 times 14; nine times nine; 81 divided by 9; 500 minus 123; twenty plus thirty three;
        3.5 times 4; 10 percent of 250; 1000 divided by 8; 18 times 3""",
        held="""64 minus 28; 13 times 12; two to the power of ten; 96 divided by 6; 8 percent of 120; 77 plus 88;
        the cube root of 27; forty minus eleven; 2.5 times 9; a third of 96; 410 plus 65""",
    ),
    vocabulary(
        "number",
        seen="12; 30; 45; 150; seventy; 8; 200; 64; 99; twenty four; 17; 500; 36; 3.5; ninety",
        held="13; 72; 310; fifty six; 28; 1250; 84; eleven; 41; sixty; 19.99",
    ),
    vocabulary(
        "length_amount",
        seen="5 miles; 10 feet; 12 inches; 26 miles; 100 yards; six feet; 3 miles; 72 inches; half a mile",
        held="8 miles; 40 feet; nine inches; 220 yards; 62 miles",
    ),
    vocabulary("length_unit", seen="kilometres; metres; centimetres; kilometers", held="millimetres; meters"),
    vocabulary(
        "weight_amount",
        seen="10 pounds; 8 ounces; 150 pounds; three ounces; 2 tons; 20 pounds; five stone",
        held="12 ounces; ninety pounds; 11 stone; 7 pounds",
    ),
    vocabulary("weight_unit", seen="kilograms; grams; kilos", held="milligrams; kg"),
    vocabulary(
        "volume_amount",
        seen="two cups; 3 gallons; a pint; 16 fluid ounces; one tablespoon; half a cup; 5 gallons",
        held="four cups; 9 gallons; two pints; six teaspoons",
    ),
    vocabulary("volume_unit", seen="litres; millilitres; liters", held="cubic centimetres; ml"),
    vocabulary(
        "heat_amount",
        seen="350 degrees fahrenheit; 100 fahrenheit; 72 degrees fahrenheit; zero fahrenheit; 450 fahrenheit",
        held="400 degrees fahrenheit; 55 fahrenheit; 98.6 fahrenheit",
    ),
    vocabulary("heat_unit", seen="celsius; degrees celsius", held="kelvin; centigrade"),
    vocabulary(
        "money_amount",
        seen="50 dollars; 100 dollars; 20 pounds sterling; five thousand yen; 75 dollars; ten dollars; 300 yen",
        held="40 dollars; 60 Canadian dollars; a thousand rupees; 15 pounds sterling",
    ),
    vocabulary("money_unit", seen="euros; swiss francs; euro", held="pesos; kroner"),
)
