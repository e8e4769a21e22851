"""Phrasings that ask for facts: news, translations, units, sums and word meanings."""

from __future__ import annotations

from pocketbert.demo_corpus.grammar import for_each, intent
from pocketbert.demo_corpus.words import MEASURES

INTENTS = (
    intent(
        "news",
        train="""
        (what is|what's) (in|on) the news (today|)
        (read|tell|give) me the (news|headlines) (about {topic}|)
        (latest|today's|top) (news|headlines) (about {topic}|on {topic}|)
        what (happened|is happening) in (the world|{city}) (today|)
        any news (about|on) {topic}
        (play|start|read) the news (briefing|bulletin)
        news about {topic}
        update me on the {topic} (news|headlines)
        what are the (main|big) (stories|headlines) (today|right now)
        show (me|) (news|articles) about {topic}
        i want to hear the (news|headlines)
        headlines from {city}
        what is new in {topic}
        what is the latest on {topic}
        what do reporters say about {topic}
        what is going on in {city} these days
        """,
        dev="""
        what's going on in the world of {topic}
        did anything important happen in {city} (overnight|while i was asleep)
        what is everybody in the country talking about today
        bring me up to speed on {topic}
        what are the papers saying about {topic}
        is there a new development in {topic}
        """,
        test="""
        what did i miss out there in the world
        anything worth knowing about {city} this morning
        current affairs (in short|in a nutshell)
        what are journalists reporting on {topic}
        what is the press writing about {topic}
        how do things stand with {topic} these days
        """,
    ),
    intent(
        "translate",
        weight=1.1,
        train="""
        translate {phrase} (to|into) {language}
        how do (you|i) say {phrase} in {language}
        what is {phrase} in {language}
        what is the {language} word for {word}
        (say|tell me) {phrase} in {language}
        what does {phrase:foreign} mean in english
        (give me|i need) the {language} (translation|version) of {phrase}
        {language} (for|translation of) {phrase}
        {phrase} in {language}
        (put|turn) {phrase} into {language}
        what would a {language} person say for {phrase}
        i need to tell someone {phrase} in {language}
        """,
        dev="""
        how would a {language} speaker put {phrase}
        i want to tell my host {phrase}, but he only speaks {language}
        help me ask the waiter in {language} {phrase}
        convert {phrase} to {language}
        my {language} is rusty, what was {phrase} again
        which {language} expression stands for {phrase}
        """,
        test="""
        which words do i use for {phrase} if i speak {language}
        render {phrase} in {language}
        teach me {phrase} the {language} way
        they only understand {language} here and i mean to say {phrase}
        what would {word} be called in {language}
        the menu says {phrase:foreign}, what is that in english
        """,
    ),
    for_each(
        intent(
            "convert_units",
            train="""
            convert {amount:@_amount} (to|into) {unit:@_unit}
            how many {unit:@_unit} (is|are) {amount:@_amount}
            how many {unit:@_unit} are in {amount:@_amount}
            what is {amount:@_amount} in {unit:@_unit}
            {amount:@_amount} (to|in) {unit:@_unit}
            change {amount:@_amount} (to|into) {unit:@_unit}
            express {amount:@_amount} in {unit:@_unit}
            (give|tell) me {amount:@_amount} in {unit:@_unit}
            how much is {amount:@_amount} in {unit:@_unit}
            (calculate|work out) {amount:@_amount} in {unit:@_unit}
            """,
            dev="""
            the label says {amount:@_amount}, but i only think in {unit:@_unit}
            what would {amount:@_amount} come to in {unit:@_unit}
            switch {amount:@_amount} over to {unit:@_unit}
            {amount:@_amount} equals how many {unit:@_unit}
            if it says {amount:@_amount} here, what's that in {unit:@_unit}
            """,
            test="""
            i don't get {amount:@_amount}, put it in {unit:@_unit}
            they quoted me {amount:@_amount}, which is how much in {unit:@_unit}
            i need the number of {unit:@_unit} for {amount:@_amount}
            translate {amount:@_amount} into {unit:@_unit}
            is {amount:@_amount} a lot when counted in {unit:@_unit}
            """,
        ),
        "@",
        MEASURES,
    ),
    intent(
        "calculate",
        train="""
        what is {sum}
        calculate {sum}
        how much is {sum}
        (work out|compute|figure out|solve) {sum}
        what does {sum} (make|equal|come to)
        (tell|give) me the result of {sum}
        {sum} (equals|is|makes) what
        i need the (result|answer) (of|for) {sum}
        do the maths, {sum}
        add {number} (and|to) {number}
        (divide|multiply) {number} by {number}
        how many times does {number} go into {number}
        what is {percent} of {number}
        one costs {number}, how much are (two|five)
        what is {percent} off {number}
        i had {number} and lost {number}, how much remains
        """,
        dev="""
        if i have {number} and spend {number}, what is left
        split a bill of {number} between (three|four|five) people
        how much tip is {percent} on {number}
        take {number} away from {number}
        what do i get when i combine {number} and {number}
        is {sum} more than {number}
        """,
        test="""
        each ticket costs {number}, what do (three|six|eight) cost
        by how much does {number} exceed {number}
        (halve|double|triple) {number}
        my homework asks for {sum}
        {number} off a price of {number} leaves how much
        {number} a month makes how much in (six|nine|ten) months
        """,
    ),
    intent(
        "define_word",
        train="""
        what does {word} mean
        (define|explain) (the word|) {word}
        what is the (meaning|definition) of {word}
        (look up|check) {word} in the dictionary
        give me (the|a) definition of {word}
        dictionary entry for {word}
        i don't (know|understand) the word {word}
        (tell me|explain) what {word} means
        meaning of {word}
        what do people mean by {word}
        what is {word}
        i read {word} in a text, what is that
        is {word} a good thing
        """,
        dev="""
        somebody used the term {word}, what was meant
        what is {word} supposed to be
        i stumbled over {word} in my book
        clear up {word} for me
        in which sense is {word} used
        is {word} something good or bad
        """,
        test="""
        i've never come across {word} before, enlighten me
        what should i understand by {word}
        put {word} in simpler terms
        my teacher wrote {word} and i am puzzled
        what's another way to say {word}
        how would an encyclopedia describe {word}
        """,
    ),
)


# --- phone ---
# Phrasings about the phone itself and the way to places.


PHONE_INTENTS = (
    intent(
        "navigate",
        weight=1.1,
        train="""
        navigate (me|) to {place}
        (take|guide|bring|lead) me to {place}
        (directions|route) to {place}
        how do i get to {place}
        (show|find|give) me the (way|route) to {place}
        (start|begin) navigation to {place}
        i want to (drive|go|walk) to {place}
        (what is|find) the (fastest|shortest) way to {place}
        i need directions to {place}
        route to {place:city} (by bike|by car|by train|avoiding tolls)
        get me to {place}
        don't take the motorway to {place}
        where is {place}
        which way is {place}
        i have to be at {place} soon, lead the way
        where do i go from here for {place}
        """,
        dev="""
        i am lost, i have to be at {place}
        which road leads to {place}
        where do i turn for {place}
        (i have an appointment|my friends are waiting) at {place}, which way now
        plot a course to {place}
        i've got to reach {place} by {time}, on which streets
        """,
        test="""
        point me towards {place}
        left or right for {place}
        how long is the drive to {place}
        we want to end up at {place} tonight, lead on
        set {place} as my destination
        where on earth is {place} and how do i reach it
        """,
    ),
    intent(
        "open_app",
        train="""
        open {app}
        open the {app:app_kind} app
        (launch|start|run) (the|) {app} (app|)
        (launch|start|run) the {app:app_kind} app
        (go|switch) to the {app:app_kind} app
        (bring|pull) up {app}
        open {app} on my phone
        i (want|need) to (use|open) the {app} app
        (show|load) the {app:app_kind} app
        start the {app} application
        don't play music, just open the {app:app_kind} app
        let me use {app}
        show me {app} on the screen
        i want to see the {app} window
        """,
        dev="""
        get the {app:app_kind} app on my screen
        fire up {app}
        i'd like to do something in {app}
        where did the {app} window go, i want it in front
        tap on {app} for me
        let me into {app}
        """,
        test="""
        i want to look at {app} on my phone
        boot the {app:app_kind} app
        take me to the {app:app_kind} app
        put {app} in the foreground
        i have to look something up in the {app:app_kind} app
        press the {app} icon
        """,
    ),
    intent(
        "take_photo",
        train="""
        (take|snap|shoot) a (photo|picture|selfie)
        take a (photo|picture) of {subject}
        (take|snap) a selfie with {person}
        capture (this moment|{subject})
        use the (front|back|rear) camera and take a (picture|photo)
        photo of {subject}
        i want to (photograph|take a picture of) {subject}
        photograph {subject}
        take a picture in (three|five|ten) seconds
        shoot a portrait of {subject}
        keep a picture of {subject}
        don't film, take a (photo|picture) (of {subject}|)
        i want a picture of {subject} for my album
        use the camera on {subject}
        save an image of {subject}
        {subject} looks great, take a picture
        """,
        dev="""
        smile everybody, press the (button|shutter)
        {subject} looks amazing, keep it for my album
        immortalise {subject} with the lens
        i want {subject} in my gallery
        point the lens at {subject} and shoot
        let's have a visual memory of {subject}
        """,
        test="""
        {subject} looks lovely, click
        everyone squeeze in for the camera
        i need proof of {subject} as an image
        freeze {subject} in a frame
        get a shot of {subject}
        record {subject} as a still
        """,
    ),
    intent(
        "battery_status",
        weight=0.9,
        train="""
        how much battery (do i have|is left|remains)
        what is (my|the) battery (level|status|percentage)
        (check|show|tell me) (my|the) battery (level|status)
        battery (status|level|percentage)
        is my (phone|battery) (charged|full|charging|low|empty)
        how (full|charged) is (my|the) (battery|phone)
        how long will the battery last
        do i (need|have) to charge my phone
        how many percent does the battery have
        will the battery last until {time}
        is the charger (working|connected)
        is my mobile about to die
        does my phone need power
        how much charge does my (mobile|device) have
        should i plug in the phone
        did the phone finish charging
        """,
        dev="""
        am i about to run out of juice
        how much power does this phone have left
        can i leave home without a charging cable
        is my mobile dying
        will this phone survive until {time}
        has my device finished charging
        """,
        test="""
        should i look for a socket (soon|)
        how many hours of energy are in this device
        is there enough charge for {duration} of video
        how close to empty is my phone
        did plugging in the phone help
        when does my mobile go dead
        """,
    ),
    intent(
        "find_phone",
        weight=0.9,
        train="""
        where is my (phone|mobile)
        find my (phone|mobile|cell phone|handset)
        help me (find|locate) my (phone|mobile)
        i (lost|can't find|misplaced) my (phone|mobile)
        ring my (phone|mobile) so i can find it
        make my phone (ring|beep)
        (locate|track) my phone
        my (phone|mobile) is (gone|missing)
        have you seen my phone
        play a sound on my phone
        search for my phone (in the {room}|)
        where did i (leave|put) my phone
        is my phone in the {room}
        my mobile was in the {room} and now it is gone
        make a noise so i can find my phone
        i don't remember where i put my mobile
        my phone fell down somewhere in the {room}
        """,
        dev="""
        the handset must be somewhere in the {room}, let it sing
        i've searched every pocket and my mobile isn't there
        which room is my mobile hiding in
        i put the handset down in the {room} and now it has vanished
        show the last place of my device on a map
        buzz the phone so i hear where it lies
        """,
        test="""
        i can't remember where my mobile is lying
        help, someone hid my smartphone
        make some noise so that i can track down the handset
        did i drop my mobile at {place}
        trace the device i lost
        my cell fell out of my pocket in the {room}, give me a signal
        """,
    ),
)


# --- other ---
# Utterances that none of the commands covers.
#
# Small talk, general knowledge, services and appliances the assistant lacks, and remarks that mention an
# alarm, a lamp or a song without asking for anything.


OTHER_INTENTS = (
    intent(
        "out_of_scope",
        weight=1.6,
        train="""
        tell me a (joke|riddle|bedtime story|fairy tale)
        who invented the (telephone|bicycle|printing press|light bulb)
        who (painted the mona lisa|wrote hamlet|discovered penicillin)
        how (old|tall|smart) are you
        book a (flight|hotel|rental car) in {O:city}
        order (a pizza|some sushi|a taxi|flowers)
        how do i (bake bread|tie a tie|change a tyre|remove a coffee stain)
        write (a poem|an essay|a speech) about {O:topic}
        do you (love me|dream|like dogs|believe in ghosts)
        how (far away is the moon|deep is the ocean|high is the tallest mountain)
        transfer (fifty|two hundred) dollars to {O:person}
        pay my (phone|electricity|water) bill
        what should i (cook tonight|wear to a wedding|name my cat)
        i feel (so tired|bored|lonely|happy today)
        my new (alarm clock|lamp|camera|speaker) was made in {O:city}
        my old (alarm clock|radio|lamp) was a gift from {O:person}
        how does (a thermostat|an alarm clock|an egg timer|a battery) work
        i (like|love) the (colour|shape) of that (lamp|phone)
        what does (gold|a new phone|a house) cost in {O:city}
        recommend (a book|a restaurant|a film)
        are you a (robot|human|real person)
        (lock|unlock) the (front door|garage|back door)
        start the (dishwasher|robot vacuum|washing machine)
        i called {O:person} yesterday and we talked for hours
        we danced to {O:genre} at our wedding
        how many calories are in {O:food}
        how long do i have to cook {O:food}
        (why|when) is {O:food} unhealthy
        {O:person} never answers my messages
        what is the capital of (france|kenya|brazil|canada)
        why do (cats|people) sleep so much
        i slept badly last night
        open the (window|gate)
        i spent last summer in {O:city}
        what do (cats|hamsters) like
        {O:person} took great photos at our wedding
        the light in {O:city} is beautiful in autumn
        """,
        dev="""
        did the dinosaurs have feathers
        i need advice on my tax return
        which shares should i buy
        i took a lovely photo in {O:city} last year
        the music at the bar was awful last night
        how long do (tortoises|elephants) live
        why do (batteries|phones) explode sometimes
        (close|open) the (curtains|garage|blinds)
        renew my gym subscription
        what's a good gift for {O:person}
        the egg timer at my office broke and nobody cares
        is it rude to text during dinner
        how much does a (plumber|lawyer) earn
        who built the pyramids
        i used to wake up at dawn when i was young
        """,
        test="""
        ask the car to park itself
        my shirts need ironing, can you do that
        how is a (radio|lamp|calendar) made
        the last podcast i heard was dull
        what do (bees|owls) eat
        i met {O:person} at the market by chance
        who was the first person on the moon
        give me some dating advice
        are dogs allowed to eat {O:food}
        which team do you support
        my uncle turned off the lights once and we laughed for an hour
        get me two tickets for the opera
        i can't decide between {O:city} and {O:city} for our honeymoon
        why do reminders annoy people
        draw a (horse|castle)
        """,
    ),
)
