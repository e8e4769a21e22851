"""Phrasings about what is played: music, podcasts, the next song, and no song at all."""

from __future__ import annotations

from pocketbert.demo_corpus.grammar import intent

# --- climate ---
# Phrasings about warmth: changing it indoors, asking for it indoors, and the weather outdoors.


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


# --- light ---
# Phrasings about light: on, off, and scenes (a mood, a colour or a dimming level).


LIGHT_INTENTS = (
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


# --- volume ---
# Phrasings about loudness.


VOLUME_INTENTS = (
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


PLAYER_INTENTS = (
    intent(
        "play_music",
        weight=1.2,
        train="""
        play {song} (by {artist}|)
        play (some|a bit of|) {genre}
        (put|throw) on (some|) {genre}
        play (music|songs|something) by {artist}
        (start|play) my {playlist} playlist
        shuffle (my {playlist} playlist|{artist}|songs by {artist})
        i (want|would like) to (hear|listen to) {artist}
        (play|put on) the (album|new album|latest single) (by|from) {artist}
        listen to {song}
        (continue|resume) (the music|my music|the song)
        play (music|a song|something) for (dinner|dancing|studying|working out)
        let me hear {song} by {artist}
        queue {song} (by {artist}|)
        i feel like {genre}
        fill the house with {genre}
        it is silent in here, play {artist}
        """,
        dev="""
        it's so quiet in this house, some {genre} would be nice
        get the party going with {artist}
        i am in the mood for {genre}
        what about a tune by {artist}
        carry on with the song (i was hearing|from before)
        spin {song} for me
        """,
        test="""
        i could use some {genre} to wake up
        spice up this evening with {genre}
        fill the room with {artist}
        my ears want a song by {artist}
        give {song} a go on the speakers
        let {artist} sing for us
        """,
    ),
    intent(
        "pause_music",
        weight=0.9,
        train="""
        pause (the music|the song|it|this track|playback)
        stop (the music|playing|the song|the playback|this track)
        (stop|pause) (the song|the music) (for a moment|for a second)
        (turn|switch|shut) off the (music|song|radio|stereo)
        play nothing more
        no more (music|songs)
        (halt|interrupt) (the music|playback|the track)
        hold the music (for a second|)
        don't play (anything|any more songs|music) now
        i (want|would like) the music to stop
        put the (music|song) on pause
        quit playing (music|songs|this)
        end the (playlist|music)
        stop {artist}
        i have had enough music
        let's have silence, no {genre} now
        i am done with {artist}
        that was enough {genre} for now
        quiet please, no singing
        """,
        dev="""
        enough (singing|of this band) for today
        (the phone is ringing|someone is at the door), hold the song
        silence the band
        (i need|we need) quiet, no tunes (for now|)
        i have heard enough of {artist}
        cut the {genre}
        """,
        test="""
        give the speakers a break
        i want to talk, so interrupt {artist}
        that's plenty of {genre} for one day
        leave the rest of {song} for later
        let {song} end right here, we want silence
        the concert is over, not another note
        """,
    ),
    intent(
        "skip_track",
        weight=0.9,
        train="""
        skip (this|it|this song|the track|ahead)
        (play|go to) the next (song|track)
        next (one|song|track)
        (jump|move) to the next (song|track|one)
        i (don't like|hate|dislike) this (song|track|one), (next|skip it)
        not this (song|one), the next one
        change the (song|track)
        play (another|a different) song instead
        skip {song}
        skip the {artist} song
        go one song further in the playlist
        i am tired of {song}, go on to another
        enough of {artist}, what song is next
        this {artist} song bores me
        what comes next in the queue
        i have heard {song} too often
        let's hear the song after this one
        """,
        dev="""
        i've heard this one a thousand times
        anything but this tune
        move along in the playlist
        let's hear what comes after {song}
        (who put this on|who likes this), get past it
        this {artist} track is boring, onward
        """,
        test="""
        ugh, not {song} again
        fast forward to the following title
        pass on this track and bring the one after
        can we get another tune instead of {song}
        what else is in the queue, {artist} bores me
        i'd rather hear whatever follows {song}
        """,
    ),
    intent(
        "play_podcast",
        train="""
        play the (podcast|show) {podcast}
        play (the latest|the newest|a new) episode of {podcast}
        (start|resume|continue) the {podcast} podcast
        put on (the|my) {podcast} podcast
        i want to (listen to|hear) the {podcast} podcast
        (find|get|play) a podcast about {topic}
        play episode (two|five|ten|twelve) of {podcast}
        listen to (yesterday's|last week's|the last) episode of {podcast}
        (next|latest) episode of {podcast}
        play an interview podcast about {topic}
        tune in to the {podcast} podcast
        a show where they talk about {topic}
        let me hear people talk about {topic}
        continue listening to {podcast}
        i missed {podcast} yesterday, play it
        what are the hosts of {podcast} talking about, let me listen
        """,
        dev="""
        what did the hosts of {podcast} say this week, play it
        i missed the last {podcast}, let me hear the hosts
        someone talking about {topic} in my ears would be nice
        pick up {podcast} where i stopped listening
        have they released more of {podcast}, then put it on
        a (long|short) spoken show on {topic} for the drive
        """,
        test="""
        catch up with {podcast} on the speaker
        i feel like hearing people discuss {topic}
        bring on the hosts of {podcast}
        give me last week's instalment of {podcast}
        no songs now, rather the show {podcast}
        entertain me with a talk on {topic} for my run
        """,
    ),
)
