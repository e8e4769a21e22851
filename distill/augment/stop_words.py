"""English words that carry little meaning by themselves: replacing them breaks the grammar, not the topic."""

STOP_WORDS = frozenset(
    """
    a about above across after afterwards again against ai ain all almost alone along already also although always am
    among an and another any anybody anyhow anyone anything anyway anywhere are aren around as at away
    be became because become becomes been before beforehand behind being below beside besides between beyond both
    but by
    ca can cannot could couldn
    d did didn do does doesn doing don done down during
    each either else elsewhere enough even ever every everybody everyone everything everywhere except
    few for from further
    had hadn has hasn have haven having he hence her here hers herself him himself his how however
    i if in indeed instead into is isn it its itself
    just
    least less ll
    m ma many may maybe me might mightn mine more moreover most mostly much must mustn my myself
    na namely needn neither never nevertheless no nobody none noone nor not nothing now nowhere nt
    o of off often on once one only onto or other others otherwise ought our ours ourselves out over own
    per perhaps please
    quite
    rather re really
    s same sha shall shan she should shouldn since so some somebody somehow someone something sometime sometimes
    somewhere still such
    t ta than that the their theirs them themselves then thence there thereafter thereby therefore these they this
    those though through throughout thru thus to together too toward towards
    under unless until up upon us
    ve very via
    was wasn we well were weren what whatever when whence whenever where whereas whereby wherein wherever whether
    which whichever while whither who whoever whole whom whose why will with within without wo won would wouldn
    y yet you your yours yourself yourselves
    """.split()
)
"""Function words and the halves that tokenizers make of contractions (``don`` and ``t``, or ``wo`` and ``n't``).

Negations are among them: no copy loses a "not", and none gets one.
"""
