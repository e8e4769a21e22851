"""Phrasings about the clock: alarms, timers and the time itself.

An alarm rings at a time of day, a timer after a stretch of time.
"""

from __future__ import annotations

from pocketbert.demo_corpus.grammar import intent

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


# --- plan ---
# Phrasings about plans: reminders, tasks and the calendar.
#
# A reminder speaks up by itself, a task waits on a list, a calendar entry takes up time on a day.


PLAN_INTENTS = (
    intent(
        "add_reminder",
        weight=1.1,
        train="""
        remind me to {task}
        remind me to {task} (at {time}|{date})
        remind me {date} to {task}
        (set|create|add|make) a reminder to {task}
        (set|create) a reminder for {time} to {task}
        don't let me forget to {task}
        i (need|want) a reminder to {task} {date}
        (ping|notify|nudge) me at {time} to {task}
        remind me that i (have|need) to {task}
        help me remember to {task}
        (tell|remind) me in {duration} to {task}
        when i get home remind me to {task}
        i keep forgetting to {task}, remind me {date}
        in {duration} remind me to {task}
        i must not forget to {task} {date}
        """,
        dev="""
        i always forget to {task}, say something at {time}
        make sure i think of it {date} when i have to {task}
        give me a poke {date} so that i {task}
        at {time} (let me know|tell me) that i should {task}
        keep me from forgetting that i must {task}
        my memory is bad, so bring up at {time} that i have to {task}
        """,
        test="""
        in {duration} i should be told to {task}
        jog my memory about having to {task} {date}
        it must not slip my mind to {task} {date}
        send me a notification at {time} saying {task}
        alert me {date} because i have to {task}
        i might not think of it, so {date} tell me to {task}
        """,
    ),
    intent(
        "todo_add",
        train="""
        add {task} to my (to-do|task) list
        put {task} on my (to-do|task) list
        (add|create|make) a task to {task}
        (new|another) (task|to-do) {task}
        (put|write) {task} on (my|the) list of (things to do|tasks|chores)
        add a to-do item to {task}
        write down (as a task|on my to-do list) that i (have|need) to {task}
        add {task} to my chores
        include {task} in my (tasks|to-do list)
        my to-do list needs {task}
        i have one more task, {task}
        (list|enter) {task} as a (task|to-do)
        one job still open is {task}
        keep {task} on file as a task
        """,
        dev="""
        among my open jobs should be {task}
        another thing to tick off some day is {task}
        extend my chores by {task}
        one more errand for the list, {task}
        track {task} as something i have to finish
        i still have to {task} at some point, list it
        """,
        test="""
        the list of stuff i must do should contain {task}
        stick {task} under my jobs
        log {task} as unfinished business
        here is a chore to keep on file, {task}
        append {task} to what i have to get done
        when i tick things off, {task} should be there too
        """,
    ),
    intent(
        "calendar_add",
        weight=1.1,
        train="""
        add (a|the|my) {event} to my calendar {date}
        put (a|the|my) {event} on my calendar {date}
        (schedule|book) a {event} {date} at {time}
        (create|make) a calendar entry for the {event} {date}
        (put|enter) the {event} in (my|the) (diary|calendar|agenda) {date} at {time}
        new (event|appointment) {event} {date}
        i have a {event} {date} at {time}, (put|write) it in my calendar
        (plan|pencil in) a {event} {date}
        (block|reserve) {duration} {date} for the {event}
        (set up|arrange) a meeting with {person} {date} at {time}
        mark the {event} on my calendar {date}
        save the date, {event} {date}
        """,
        dev="""
        the {event} is happening {date} at {time}, note it in my schedule
        keep me free {date} at {time} for the {event}
        my agenda should (show|list) a {event} {date}
        we agreed on a {event} {date}, make it official in my planner
        slot in a {event} {date} from {time}
        there will be a {event} {date}, so fill that spot
        """,
        test="""
        get the {event} into my planner {date}
        i was invited to a {event} {date} at {time}, don't lose that appointment
        the spot {date} at {time} now belongs to the {event}
        make room in my week for the {event} {date}
        jot the {event} down under my appointments {date}
        extend my schedule with a {event} {date}
        """,
    ),
    intent(
        "calendar_query",
        train="""
        what is on my (calendar|schedule|agenda) {date}
        what do i have (planned|scheduled|going on) {date}
        (do i have|are there) any (meetings|appointments) {date}
        when is my (next|first) (meeting|appointment)
        (show|read|list) my (calendar|appointments|schedule) {date}
        what does my day look like {date}
        am i (free|busy) {date} (at {time}|)
        when is my {event}
        what time does my {event} (start|begin)
        how many (meetings|appointments) do i have {date}
        check my calendar {date}
        who am i meeting {date}
        how long is it until the {event}
        do i have time {date} at {time}
        is anything planned for me {date}
        """,
        dev="""
        is there anything i have to attend {date}
        how packed am i {date}
        do i have a gap {date} around {time}
        which day was the {event} again
        where do i need to be {date} at {time}
        what am i supposed to be doing {date} at {time}
        """,
        test="""
        have i got plans {date}
        am i expected anywhere {date}
        give me a rundown of my commitments {date}
        did i already book a {event} {date}
        could i still say yes to something {date} at {time}
        how long until my {event}
        """,
    ),
)


# --- shopping ---
# Phrasings about the shopping list; jobs that are no purchase belong to `todo_add`.


SHOPPING_INTENTS = (
    intent(
        "shopping_add",
        weight=1.1,
        train="""
        add {item} to (my|the) (shopping|grocery) list
        put {item} on (my|the) (shopping|grocery) list
        we need to buy {item}
        we are out of {item}
        note that we need {item} from the (store|supermarket)
        shopping list {item}
        put {item} and {item} on the (shopping|grocery) list
        i (need|have) to (buy|get) {item}
        add (a pack of|some|more) {item} to the (groceries|shopping)
        include {item} in the groceries
        don't forget {item} on the (grocery|shopping) list
        write {item} on the (shopping|grocery) list
        get {item} on the list for the supermarket
        we have run out of {item}
        we have hardly any {item}, note it
        there is no more {item} at home
        somebody took the last {item}, we need more
        when we go to the store we need {item}
        the kitchen has no {item}
        """,
        dev="""
        no {item} left in the house, see to that
        (the kids|my guests) went through all the {item}
        next time i am at the store i should get {item}
        we're running low on {item}
        i used up the last of the {item}
        {item} should come home with the groceries
        """,
        test="""
        the shelf is empty, {item} would help
        someone used all the {item}
        what i still need for the house is {item} and {item}
        let's pick up {item} at the market
        stock up on {item} at the supermarket
        the cupboard lacks {item}
        """,
    ),
    intent(
        "shopping_remove",
        train="""
        (remove|delete) {item} from (my|the) (shopping|grocery) list
        (take|cross|scratch) {item} off (the|my) (shopping|grocery) list
        (clear|empty|delete) (the|my) (whole|entire|) (shopping|grocery) list
        we (don't|do not) need {item} (any more|from the store)
        i already (bought|have|got) {item}
        no {item} on the (shopping|grocery) list
        don't buy {item}
        forget about the {item} on the (grocery|shopping) list
        undo adding {item} to the (shopping|grocery) list
        (drop|erase) {item} from the groceries
        {item} no longer needed
        {item} came with the last delivery, take that off
        we have enough {item}, (remove|delete) it
        we still have {item} at home
        there is enough {item} in the cupboard
        make a fresh shopping list without the old things
        {item} was on the list by mistake
        """,
        dev="""
        there is plenty of {item} at home
        scrap {item}, my neighbour picked it up
        my partner brought {item} home already
        start the grocery list from scratch
        leave out {item} when we shop
        turns out we still have {item}
        """,
        test="""
        {item} can go, i found some in the (cellar|cupboard)
        skip {item} on the shopping trip
        wipe all groceries off the list
        getting {item} was a mistake, off with it
        no point in getting {item}, the shelf is full already
        i was wrong, we are not short of {item}
        """,
    ),
)


# --- talk ---
# Phrasings about people: calls and messages.


TALK_INTENTS = (
    intent(
        "call_contact",
        weight=1.1,
        train="""
        call {person}
        (call|phone|ring|dial) {person} (on speaker|at work|on the mobile|at home|)
        (make|place|start) a (call|phone call|video call) to {person}
        give {person} a (call|ring)
        i (want|need) to (talk|speak) (to|with) {person}
        dial the number of {person}
        connect me with {person}
        put me through to {person}
        get {person} on the (phone|line)
        call {person} back
        video call {person}
        try {person} on the phone again
        don't text {person}, call instead
        i want to hear {person} on the phone
        video chat with {person}
        see whether {person} answers the phone
        i promised to ring {person}
        """,
        dev="""
        i'd like to hear the voice of {person}
        make the phone of {person} ring
        is {person} reachable, (try it|try now)
        i promised {person} a phone chat, go ahead
        a face to face video with {person} now
        hook me up with {person} on the line
        """,
        test="""
        i must have a word with {person}, get the line open
        use the phone to reach {person}
        {person} tried to ring me earlier, return that
        see if {person} picks up
        i'd rather talk than write to {person}
        open a line to {person}
        """,
    ),
    intent(
        "send_message",
        weight=1.1,
        train="""
        (text|message) {person} {message}
        send (a message|a text) to {person} (saying|that says) {message}
        (send|write) {person} a (message|text) (saying|that) {message}
        tell {person} {message}
        let {person} know (that|) {message}
        (text|message) {person} that {message}
        send a (message|text) to {person}
        reply to {person} (with|saying) {message}
        write an sms to {person}
        answer {person} that {message}
        i (want|need) to (text|message) {person}
        don't call {person}, (write|text) that {message}
        shoot {person} a text {message}
        {person} has to know that {message}
        write to {person} that {message}
        """,
        dev="""
        {person} should know that {message}
        inform {person} that {message}
        drop {person} a line saying {message}
        pass on to {person} that {message}
        let my reply to {person} be {message}
        i can't talk now, type to {person} that {message}
        """,
        test="""
        get word to {person} that {message}
        {person} is waiting for an answer, put {message}
        notify {person} that {message}
        in the chat with {person} put {message}
        make {person} aware that {message}
        say to {person} in writing that {message}
        """,
    ),
    intent(
        "read_messages",
        train="""
        read my (messages|texts|new messages|unread messages)
        (do i have|are there) any (new|unread) messages (from {person}|)
        what did {person} (write|text|send) me
        read (the|my) (last|latest) (message|text) (from {person}|)
        (show|open|check) my (messages|inbox|texts)
        any (messages|texts) from {person}
        has {person} (texted|messaged|written|replied)
        read me what {person} (wrote|sent)
        check for new (messages|texts)
        read the (text|message) {person} sent
        who (texted|messaged|wrote to) me
        play my voice messages
        did {person} get back to me
        what is new in my inbox
        is there anything from {person}
        how did {person} answer
        what did i get in the chat with {person}
        """,
        dev="""
        did i hear from {person} (today|lately)
        what's waiting in my inbox
        is there an answer from {person} (yet|)
        read aloud what people sent while i was (driving|asleep)
        my phone buzzed, what does it say
        catch me up on the chat with {person}
        """,
        test="""
        let me hear the note from {person}
        did anybody write while i was (out|in a meeting)
        how did {person} respond
        what is {person} saying in the chat
        i got a ping, read it out
        go through the conversation with {person} for me
        """,
    ),
)
