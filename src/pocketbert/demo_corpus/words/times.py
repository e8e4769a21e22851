"""Slot values about time: clock times, durations, dates and events."""

from __future__ import annotations

from pocketbert.demo_corpus.grammar import vocabulary

VOCABULARIES = (
    vocabulary(
        "time",
        seen="""7 am; 6:30; half past six; 8 o'clock; quarter to seven; 5:45 am; 9 pm; noon; eleven thirty;
        4:15 pm; ten in the morning; 7:15; six am; 8:20 am; five o'clock; 2 pm; quarter past eight; 10:30;
        three thirty; 6 in the evening; 9:45; 1 pm; half past ten; seven forty five""",
        held="""7:20 am; five past eight; midnight; twenty to ten; 6:50; 3 in the afternoon; half past nine;
        5:10 am; four forty; 11 pm; quarter to twelve; 16:30; eight fifteen; 12:40""",
    ),
    vocabulary(
        "duration",
        seen="""ten minutes; 5 minutes; an hour; half an hour; 45 seconds; two hours; 20 minutes; three minutes;
        fifteen minutes; 30 seconds; one minute; 25 minutes; four hours; an hour and a half; 8 minutes;
        forty minutes; 2 minutes; sixty seconds; 90 minutes; seven minutes""",
        held="""twelve minutes; ninety seconds; a quarter of an hour; 35 minutes; three hours; 11 minutes;
        fifty minutes; 75 seconds; six hours; 6 minutes; two and a half minutes; an hour and ten minutes""",
    ),
    vocabulary(
        "date",
        seen="""tomorrow; on Monday; next Friday; on the third of May; this weekend; on Tuesday; on Sunday;
        next week; tomorrow morning; this evening; on Saturday morning; on March 12; next Tuesday; today;
        this Friday; on the first of July; tomorrow night; this afternoon""",
        held="""the day after tomorrow; on Thursday; next Wednesday; on the ninth of June; on Christmas Eve;
        on Wednesday afternoon; in two weeks; on October 4; next Thursday; on New Year's Day; a week from now;
        on the twentieth""",
    ),
    vocabulary(
        "event",
        seen="""dentist appointment; team lunch; yoga class; project review; parents evening; birthday party;
        job interview; piano lesson; budget meeting; car inspection; board meeting; book club; choir practice;
        haircut; doctor visit; coffee with Anna; sales call; football training; garden party; movie night""",
        held="""vet visit; wedding rehearsal; physio session; school concert; tax consultation; guitar lesson;
        swimming gala; quarterly briefing; housewarming party; blood test; chess tournament; museum tour""",
    ),
)
