"""Phrasings about light: on, off, and scenes (a mood, a colour or a dimming level)."""

from __future__ import annotations

from pocketbert.demo_corpus.intents.intent import intent

INTENTS = (
    intent(
        "light_on",
        train="""
        (turn|switch) on the (light|lights|lamp) in the {room}
        (turn|switch) the {room} (light|lights|lamp) on
        (turn|switch|put) on the {room} (light|lights|lamp)
        lights on in the {room}
        {room} lights on
        illuminate the {room}
        (i need|give me) (some|more) light in the {room}
        (light up|brighten) the {room}
        make it (bright|lighter) in the {room}
        turn on all the (lights|lamps)
        (don't|do not) leave the {room} (dark|in the dark)
        the lamp in the {room} should be on
        it is too dark in the {room}
        i can't find my way through the dark {room}
        i can hardly see in the {room}
        it is black as night in the {room}, help
        i want to read in the {room} but there is no light
        """,
        dev="""
        it is (way|far) too dark in here
        the {room} is dark like a cave
        i can't see (a thing|anything) in the {room}
        i am (reading|sewing) in the {room} and it is pitch black
        it's so gloomy in the {room}, do something
        let there be light (in the {room}|)
        power up the bulbs in the {room}
        """,
        test="""
        why is it pitch dark in the {room}, fix that
        i keep bumping into things in the {room} without any light
        the {room} could use some brightness
        the sun has set and i can't read in the {room}
        start the ceiling lamp in the {room}
        make sure i can see where i walk in the {room}
        """,
    ),
    intent(
        "light_off",
        train="""
        (turn|switch) off the (light|lights|lamp) in the {room}
        (turn|switch) the {room} (light|lights|lamp) off
        (turn|switch|shut) off the {room} (light|lights|lamp)
        lights (off|out) in the {room}
        {room} lights (off|out)
        (kill|cut) the lights (in the {room}|)
        make the {room} dark
        (turn off|deactivate) all the (lights|lamps)
        no (light|lights) in the {room}
        (don't|do not) leave the (light|lights) on in the {room}
        nobody is in the {room}, (switch|turn) the light off
        the {room} lamp should be off
        put out the lamp in the {room}
        it is too bright in the {room}
        i want to sleep now, no light in the {room}
        i want the {room} dark
        the light in the {room} is bothering me
        the light in the {room} can go out now
        """,
        dev="""
        it is (far too|much too) bright to sleep in the {room}
        the {room} is glaring at me, i want darkness
        we are leaving, the {room} needs no lamps
        did i forget the lamp in the {room}, then it should go out
        stop lighting the {room}, i am (wasting power|going to bed)
        (good night|bed time), darkness in the {room}
        """,
        test="""
        the bulb in the {room} is burning for nothing
        i'd like it pitch black in the {room}
        save electricity and don't light the {room}
        extinguish everything that shines in the {room}
        the brightness in the {room} keeps me awake, end it
        i can't fall asleep with that lamp shining in the {room}
        """,
    ),
    intent(
        "set_scene",
        train="""
        (set|start|activate) the {scene} (scene|mode)
        (switch|change) (to|into) {scene} mode
        (turn on|enable) the {scene} scene (in the {room}|)
        {scene} (scene|mode) in the {room}
        put the {room} (in|into) {scene} mode
        i (want|would like) the {scene} (scene|lighting) in the {room}
        dim the lights (in the {room}|) (to {percent}|for the {scene} scene)
        make the lights {color} in the {room}
        set the {room} lights to {color}
        change the {room} lamp to {color}
        load my {scene} lighting
        create a {scene} (mood|atmosphere) in the {room}
        lower the lights to {percent}
        make the lights a little softer in the {room}
        i'd like some {color} light in the {room}
        soft lighting in the {room}
        only half the light in the {room}
        """,
        dev="""
        we are about to watch a film, adjust the (lamps|lights) for that
        (the guests|our friends) arrive soon, prepare the {scene} look
        some warm and gentle light for the {room}, nothing harsh
        i'd love {color} lamps tonight
        half the brightness will do in the {room}
        give the {room} that {scene} feeling
        """,
        test="""
        make the {room} look (romantic|moody)
        bathe the {room} in {color}
        softer lamps in the {room}, not fully off
        the lighting should fit a {scene} evening
        go for {scene} ambience
        tone the brightness down to {percent} in the {room}
        """,
    ),
)
