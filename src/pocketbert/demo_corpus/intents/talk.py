"""Phrasings about people: calls and messages."""

from __future__ import annotations

from pocketbert.demo_corpus.intents.intent import intent

INTENTS = (
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
