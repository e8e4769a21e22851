"""Phrasings about the phone itself and the way to places."""

from __future__ import annotations

from pocketbert.demo_corpus.intents.intent import intent

INTENTS = (
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
