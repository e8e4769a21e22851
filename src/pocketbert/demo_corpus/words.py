"""Slot values about the world and the phone: places, apps, photo subjects, numbers and measures."""

from __future__ import annotations

from pocketbert.demo_corpus.grammar import vocabulary

# --- home ---
# Slot values about the home: rooms, scenes, colours, degrees and percentages.


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


# --- lists ---
# Slot values for lists: things to buy and things to do.


LISTS_VOCABULARIES = (
    vocabulary(
        "item",
        seen="""milk; eggs; bread; butter; apples; bananas; olive oil; toilet paper; coffee; cheese; rice; tomatoes;
        dog food; yoghurt; sugar; orange juice; chicken; pasta; potatoes; shampoo; onions; cereal""",
        held="""spinach; batteries; flour; honey; washing powder; lentils; mushrooms; toothpaste; salmon; oat biscuits;
        baking paper; garlic; blueberries; cat litter; mustard""",
    ),
    vocabulary(
        "food",
        seen="spaghetti; pumpkin; lobster; popcorn; chocolate; broccoli; tofu; bacon; pancakes; oatmeal",
        held="couscous; quinoa; octopus; marzipan; liver; asparagus; venison",
    ),
    vocabulary(
        "task",
        seen="""water the plants; take out the trash; pay the rent; call the dentist; feed the cat; buy a birthday card;
        take my pills; pick up the kids; send the invoice; clean the bathroom; walk the dog; return the library books;
        book the hotel; charge the laptop; renew my passport; text Julia back; wash the car; do the laundry;
        order new glasses; check the oven; lock the back door""",
        held="""mow the lawn; sign the contract; iron the shirts; email the teacher; empty the dishwasher;
        fix the bicycle; cancel the gym membership; get a flu shot; defrost the freezer; collect the dry cleaning;
        submit my expenses; change the bed sheets; phone the bank; turn off the sprinkler""",
    ),
)


# --- media ---
# Slot values about media; songs, bands and shows are invented, composers are long dead.


MEDIA_VOCABULARIES = (
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


# --- talk ---
# Slot values about talking: people, messages, phrases, languages and words.


TALK_VOCABULARIES = (
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


# --- times ---
# Slot values about time: clock times, durations, dates and events.


TIMES_VOCABULARIES = (
    vocabulary(
        "time",
        seen="""7 am; 6:30; half past six; 8 o'clock; quarter to seven; 5:45 am; 9 pm; noon; eleven thirty;
        4:15 pm; ten in the morning; 7:15; six am; 8:20 am; five o'clock; 2 pm; quarter past eight; 10:30;
        three thirty; 6 in the evening; 9:45; 1 pm; half past ten; seven forty five""",
        held="""7:20 am; five past eight; midnight; twenty to ten; 6:50; 3 in the afternoon; half past nine;
        5:10 am; four forty; 11 pm; quarter to twelve; 16:30; eight fifteen; 12:40""",
    ),
    vocabulary(
        "duration",
        seen="""ten minutes; 5 minutes; an hour; half an hour; 45 seconds; two hours; 20 minutes; three minutes;
        fifteen minutes; 30 seconds; one minute; 25 minutes; four hours; an hour and a half; 8 minutes;
        forty minutes; 2 minutes; sixty seconds; 90 minutes; seven minutes""",
        held="""twelve minutes; ninety seconds; a quarter of an hour; 35 minutes; three hours; 11 minutes;
        fifty minutes; 75 seconds; six hours; 6 minutes; two and a half minutes; an hour and ten minutes""",
    ),
    vocabulary(
        "date",
        seen="""tomorrow; on Monday; next Friday; on the third of May; this weekend; on Tuesday; on Sunday;
        next week; tomorrow morning; this evening; on Saturday morning; on March 12; next Tuesday; today;
        this Friday; on the first of July; tomorrow night; this afternoon""",
        held="""the day after tomorrow; on Thursday; next Wednesday; on the ninth of June; on Christmas Eve;
        on Wednesday afternoon; in two weeks; on October 4; next Thursday; on New Year's Day; a week from now;
        on the twentieth""",
    ),
    vocabulary(
        "event",
        seen="""dentist appointment; team lunch; yoga class; project review; parents evening; birthday party;
        job interview; piano lesson; budget meeting; car inspection; board meeting; book club; choir practice;
        haircut; doctor visit; coffee with Anna; sales call; football training; garden party; movie night""",
        held="""vet visit; wedding rehearsal; physio session; school concert; tax consultation; guitar lesson;
        swimming gala; quarterly briefing; housewarming party; blood test; chess tournament; museum tour""",
    ),
)


MEASURES = ("length", "weight", "volume", "heat", "money")

WORLD_VOCABULARIES = (
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
