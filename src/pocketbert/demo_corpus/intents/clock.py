"""Phrasings about the clock: alarms, timers and the time itself.

An alarm rings at a time of day, a timer after a stretch of time.
"""

from __future__ import annotations

from pocketbert.demo_corpus.intents.intent import intent

INTENTS = (
    intent(
        "set_alarm",
        weight=1.1,
        train="""
        (set|create|make) an alarm for {time}
        (set|put) (my|the) alarm (to|for) {time} {date}
        wake me (up|) at {time}
        wake me (up|) at {time} {date}
        i (need|want|have) to (get up|be up) at {time}
        (make sure|see to it that) i am awake (at|by) {time}
        alarm (at|for) {time}
        alarm {date} at {time}
        i need an alarm (for|at) {time}
        (add|turn on) an alarm for {time} every (weekday|morning|saturday)
        (schedule|program) my morning alarm for {time}
        don't let me sleep past {time}
        let the alarm go off at {time}
        change my alarm to {time}
        i must not be late {date}, wake me by {time}
        i have to leave the house early, get me up at {time}
        {date} i want to wake up at {time}
        """,
        dev="""
        i can't oversleep {date}, get me out of bed (by|at) {time}
        my (flight|train) leaves early so i must be on my feet by {time}
        i'd like to be woken at {time}
        rouse me at {time} {date}
        be the rooster that wakes me {date} at {time}
        no sleeping in {date}, {time} and not a minute later
        """,
        test="""
        get me up when it is {time}
        the bell should (sound|ring) {date} at {time} so that i rise
        sleep has to end at {time} (for me|)
        {time} is when i want to open my eyes {date}
        do not let me doze beyond {time}
        early shift {date}, so make some noise at {time}
        """,
    ),
    intent(
        "cancel_alarm",
        train="""
        (cancel|delete|remove|clear) (my|the) {time} alarm
        (turn|switch) off (the|my) alarm (for|at) {time}
        (cancel|delete|disable|turn off) (all my alarms|every alarm|all alarms)
        i (don't|do not) need (the|my) alarm {date}
        (don't|do not) wake me {date}
        (no alarm|no alarms) {date}
        (stop|get rid of) the alarm (at|for) {time}
        (forget|drop) the {time} alarm
        (cancel|skip) my wake up call {date}
        remove the alarm i set for {time}
        you don't have to wake me at {time}
        (deactivate|unset) the alarm {date}
        i want to stay in bed {date}
        i am not getting up at {time} after all
        i can sleep longer {date}, no alarm needed
        getting up at {time} is off
        let me rest {date}, no waking
        """,
        dev="""
        let me sleep in {date}
        i am off {date}, so no need to ring me awake
        my {time} wake up is not needed any more
        i changed my mind about getting up at {time}
        nobody should wake me {date}
        take the alarm for {time} off my phone
        """,
        test="""
        i want to sleep as long as i like {date}
        there is no school {date} so leave me in bed
        the morning buzzer at {time} can go
        no ringing at {time} {date}, i'm on holiday
        call off the {time} alarm
        the shop is closed {date}, getting me up has no purpose then
        """,
    ),
    intent(
        "set_timer",
        weight=1.1,
        train="""
        (set|start) a timer for {duration}
        (set|start) a {duration} timer
        timer (for|of) {duration}
        count down {duration}
        (begin|run) a countdown (of|for) {duration}
        (start|set) (the|a) (kitchen|egg|pizza|laundry|tea) timer for {duration}
        give me {duration} on the timer
        (set|put) {duration} on the clock
        (time|clock) {duration} for (me|the pasta|the eggs|the oven)
        new timer {duration}
        i need a {duration} countdown
        (tell|alert) me when {duration} is over
        let me know when {duration} is up
        beep (in|after) {duration}
        the pizza takes {duration}, tell me when to take it out
        cook the noodles for {duration} and tell me to stop
        the tea needs {duration}, then call me
        """,
        dev="""
        the (pasta|rice) needs {duration}, keep track of it
        i put the cake in, shout after {duration}
        measure off {duration} (starting now|from now)
        it takes {duration} to steep, warn me when that is done
        let's do a plank of {duration}, say stop at the end
        make a sound once {duration} has gone by
        """,
        test="""
        the eggs boil for {duration}, tell me when they are ready
        start the clock, i have {duration}
        {duration} from now i want to hear a beep
        the dough has to rest {duration}, give a signal then
        keep an eye on the oven for {duration} and then ring
        quick workout, {duration}, go
        """,
    ),
    intent(
        "time_query",
        weight=0.9,
        train="""
        what time is it (now|right now|)
        what is the time
        (tell|give) me the (time|current time)
        (do you have|have you got) the time
        what time is it in {city}
        what is the (local|current) time in {city}
        (what|which) day is (it|today)
        what is (today's date|the date today|the date)
        how late is it (in {city}|)
        (current|exact) time in {city}
        check the time in {city}
        is it already {time}
        is it still early in {city}
        is everybody still in bed in {city}
        what does your clock show
        is it night time in {city}
        """,
        dev="""
        what does the clock say (in {city}|)
        is it (morning|night) in {city} (right now|at the moment|)
        which date do we have today
        i left my watch at home, what hour is it
        would people in {city} be asleep (now|at this hour)
        are we past {time} yet
        """,
        test="""
        read me the clock (for {city}|)
        what hour has it struck
        are we still in (march|april|may|october)
        how many hours is {city} ahead of (us|here)
        if i phone {city} now, will it be the middle of the night
        tell me where the hands of the clock are
        """,
    ),
)
