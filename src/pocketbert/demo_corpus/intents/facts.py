"""Phrasings that ask for facts: news, translations, units, sums and word meanings."""

from __future__ import annotations

from pocketbert.demo_corpus.intents.intent import for_each, intent
from pocketbert.demo_corpus.words.world import MEASURES

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
