"""Phrasings about what is played: music, podcasts, the next song, and no song at all."""

from __future__ import annotations

from pocketbert.demo_corpus.intents.intent import intent

INTENTS = (
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
