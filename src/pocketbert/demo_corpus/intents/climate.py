"""Phrasings about warmth: changing it indoors, asking for it indoors, and the weather outdoors."""

from __future__ import annotations

from pocketbert.demo_corpus.intents.intent import intent

INTENTS = (
    intent(
        "set_temperature",
        weight=1.1,
        train="""
        set the (temperature|thermostat|heating) to {degrees}
        put the (thermostat|heating) at {degrees}
        set the {room} to {degrees}
        turn (up|down) the (heating|thermostat|heat)
        turn the (heating|thermostat|heater) (up|down) (in the {room}|by {change})
        make it (warmer|cooler|colder) in the {room}
        (heat|warm) the {room} (up|) to {degrees}
        (cool|chill) the {room} (down|) to {degrees}
        (raise|lower|increase|decrease) the temperature (in the {room}|by {change}|to {degrees})
        i want it {degrees} in the {room}
        (thermostat|heating) (to|at) {degrees}
        change the (thermostat|room temperature) to {degrees}
        turn the (heating|air conditioning) (on|off) in the {room}
        don't let the {room} (get|fall) below {degrees}
        it is too (cold|hot) in the {room}
        i am (cold|hot)
        my hands are cold in the {room}
        i am shivering in the {room}
        the {room} is too hot to work in
        it feels like winter in the {room}, warm it up
        """,
        dev="""
        i am freezing in the {room}
        it is boiling hot in the {room}, do something
        my (toes|fingers) are like ice (in here|in the {room})
        we are sweating in the {room}
        {degrees} would be comfortable in the {room}
        the radiators could work (a bit|) harder
        """,
        test="""
        brr, the {room} is like a fridge
        it's stuffy and hot in here, bring it down to {degrees}
        i need a sweater in the {room}, fix that
        aim for {degrees} while (i sleep|we are out)
        the {room} should not be that cold when we get back
        let the boiler take the {room} to {degrees}
        """,
    ),
    intent(
        "home_temperature",
        weight=0.9,
        train="""
        what is the temperature (in the {room}|inside|indoors)
        how (warm|cold|hot) is it in the {room}
        what is the thermostat set to
        (tell|show) me the (indoor|room|inside) temperature
        (check|read) the thermostat (in the {room}|)
        how many degrees is it in the {room}
        (current|indoor) temperature in the {room}
        is the (heating|heater|air conditioning) (on|off|running) (in the {room}|)
        is it (warm|cold) in the {room}
        is the {room} (above|below) {degrees}
        what temperature is the {room} at
        how (warm|cold) is the house (right now|)
        measure how warm the {room} is
        is the {room} warm enough to sit in
        how is the climate in the {room}
        """,
        dev="""
        did the {room} reach {degrees} (yet|already)
        what does the thermometer in the {room} (read|say)
        are the radiators (doing anything|warm) in the {room}
        has it cooled down in the {room}
        which value is the heating controller at
        is my apartment too cold for (the plants|a baby) right now
        """,
        test="""
        how chilly did the {room} get
        give me a degree reading for the {room}
        could i sit in the {room} without a sweater right now
        is the boiler still heating the house
        are we at {degrees} in the {room} or is it less
        do you know the climate inside my {room}
        """,
    ),
    intent(
        "weather",
        weight=1.1,
        train="""
        what is the weather like (in {city}|today|{date})
        (how is|what's) the weather (in {city}|{date}|outside)
        will it (rain|snow|be sunny|be windy) (in {city}|{date})
        what is the (forecast|weather forecast) (for {city}|{date})
        (weather|forecast) in {city} {date}
        how (warm|cold|hot) (will it be|is it going to be) (outside|in {city}) {date}
        (show|give|tell) me the (weather|forecast) (for {city}|)
        is it (raining|snowing|sunny|windy) (outside|in {city}|right now)
        do i need an umbrella {date}
        what is the temperature (outside|outdoors|in {city})
        (what is the|) chance of rain {date}
        any storms (coming|expected) {date}
        should i wear (a jacket|boots) outside {date}
        is it a good day for (a hike|the beach) {date}
        how many degrees are there in {city}
        will i get wet {date}
        """,
        dev="""
        do i need a coat {date}
        should i take sunglasses {date}
        can i hang the washing outside {date}
        is {city} going to be wet {date}
        would the grass be dry enough for a picnic {date}
        what's the sky doing (over {city}|)
        """,
        test="""
        are shorts fine {date}
        am i going to get soaked on my bike {date}
        is the frost coming back {date}
        how many degrees should i pack for in {city}
        will the barbecue be rained off {date}
        does {city} get any sunshine {date}
        is it t-shirt season in {city} yet
        """,
    ),
)
