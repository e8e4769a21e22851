"""Utterances that none of the commands covers.

Small talk, general knowledge, services and appliances the assistant lacks, and remarks that mention an
alarm, a lamp or a song without asking for anything.
"""

from __future__ import annotations

from pocketbert.demo_corpus.intents.intent import intent

INTENTS = (
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
