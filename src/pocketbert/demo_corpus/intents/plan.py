"""Phrasings about plans: reminders, tasks and the calendar.

A reminder speaks up by itself, a task waits on a list, a calendar entry takes up time on a day.
"""

from __future__ import annotations

from pocketbert.demo_corpus.intents.intent import intent

INTENTS = (
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
