"""Phrasings about loudness."""

from __future__ import annotations

from pocketbert.demo_corpus.intents.intent import intent

INTENTS = (
    intent(
        "volume_up",
        train="""
        (turn|crank|bring) (the volume|the sound|it) up
        (turn|pump) up the (volume|sound|music|radio|tv)
        (increase|raise) the (volume|sound) (by {percent}|to {percent}|)
        (louder|a bit louder|a lot louder)
        (make|play) it louder
        volume up (by {percent}|)
        (set|put) the volume (higher|up) (a little|a notch|)
        make the (music|song|speaker|tv|podcast) louder
        i want (it|the music|the sound) louder
        more volume (on the speaker|on the tv|)
        (the music|it|the podcast) is too quiet
        (full|max|maximum) volume
        don't play it so (quietly|softly)
        i can hardly hear the (tv|speaker|music)
        the sound is too low for me
        unmute the (speaker|tv|phone|sound)
        what did they say, it is too quiet
        i can't hear the (song|tv) over the (traffic|dishwasher)
        i am deaf to this, give me more sound
        """,
        dev="""
        i can't hear a thing
        the (song|film|podcast) is (barely|hardly) audible
        speak up, i am in the shower
        my grandfather has poor hearing, help him with the sound
        (a few more|some extra) decibels for the (film|speaker)
        let the walls shake, a lot more sound
        """,
        test="""
        what are they saying on tv, i am missing half of it
        the (speaker|tv) is only whispering
        let it roar (a bit|)
        the sound has to beat the (vacuum cleaner|street noise)
        take the loudness a few notches higher
        i want to feel the bass in my stomach
        """,
    ),
    intent(
        "volume_down",
        train="""
        (turn|bring) (the volume|the sound|it) down
        turn down the (volume|sound|music|radio|tv)
        (decrease|lower|reduce) the (volume|sound) (by {percent}|to {percent}|)
        (quieter|a bit quieter|a lot quieter)
        (make|play) it (quieter|softer)
        volume down (by {percent}|)
        (set|put) the volume (lower|down) (a little|a notch|)
        make the (music|song|speaker|tv|podcast) (quieter|softer)
        i want (it|the music|the sound) (quieter|less loud)
        less volume (on the speaker|on the tv|)
        (the music|it|the podcast) is too loud
        (minimum|lowest) volume
        don't play it so loud
        you will wake the kids, keep the music low
        that is far too noisy
        mute the (speaker|tv|phone|sound)
        my head hurts from this noise
        the (music|tv) is shaking the house
        i can't think with {artist} so loud
        {song} should only be heard in the background
        """,
        dev="""
        my ears (hurt|are ringing) from this song
        the baby is asleep, keep the sound low
        you are shouting at me
        the neighbours (complained|are complaining) about the noise
        a gentler level for the speaker would be nice
        {song} was (deafening|ear splitting) just now
        """,
        test="""
        not so noisy, people are trying to sleep
        background loudness is enough for {song}
        the bass is booming through the whole house
        hush a little, but keep playing
        i can't hear myself think over {artist}
        take the loudness back a few steps
        """,
    ),
)
