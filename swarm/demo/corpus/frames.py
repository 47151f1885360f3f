"""The ways of asking that many topics share."""

DEFINE = (
    "{what is|what's|what exactly is|what is meant by|what do you mean by|what do you call} NOUN",
    "{explain|define|describe|tell me about|explain to me|talk about|say something about} NOUN",
    "{explain|tell me|say|describe} what NOUN {is|does|means}",
    "{can|could|would|will} you {explain|define|describe|tell me about|tell me what is} NOUN",
    "{can|could} you {explain|tell me|describe} what NOUN {is|does|means}",
    "what {does|do} NOUN {do|mean|stand for}",
    "what is NOUN {for|good for|used for|there for|about|in swarm|in a swarm|here}",
    (
        "{i do not|i don't|i still do not|sorry i don't} "
        "{know|understand|get} {what NOUN is|NOUN|what NOUN means|what NOUN does}"
    ),
    (
        "{i want to|i would like to|i'd like to} "
        "{know|understand|learn} {what NOUN is|about NOUN|what NOUN does|more about NOUN}"
    ),
    "{what|which} {role|job|task|purpose} does NOUN {have|play}",
    "{what is|what's} the {role|job|task|purpose|point|meaning|idea|definition} of NOUN",
    "{why do i need|why do we need|why is there|what do i need} NOUN",
    "{what about|how about|and|and what about|and what is} NOUN",
    "how does NOUN work",
    "NOUN",
    "NOUN {in one sentence|in simple words|briefly|in short}",
    "{give me|i need} {a definition|an explanation|a description} of NOUN",
)
"""Asking what a thing is; NOUN is the thing."""

HOW_TO = (
    "how {do|can|would|could|should|may|must} {i|we|i|you|one|someone|people|a friend} DO",
    "how to DO",
    "how does {one|somebody|a person} DO",
    "{i|we} {want to|would like to|wish to|need to|have to|plan to|am going to|'d like to} DO",
    "{i want to|i would like to} know how to DO",
    (
        "{what|which} command {do i use|should i use|do i need|must i run|is used|is there|do i type|lets me use} "
        "to DO"
    ),
    (
        "{what is|what's|give me|tell me|show me|i need} "
        "the {command|way|right command|command line|steps} to DO"
    ),
    "{show|tell|teach|explain to} me how {to|i can|i} DO",
    "{can|could|would} you {show|tell|teach} me how {to|i can} DO",
    "{help me|help me to|please help me|i need help to|let me} DO",
    "what {do i|should i|must i|do we|can i} {type|run|do|have to do|enter|start} to DO",
    (
        "{is it possible|is there a way|is there a command|what does it take|what is needed|what is the way} "
        "to DO"
    ),
    "{can|could|may} {i|we|anyone|anybody} DO",
    "{steps|command|instructions|way} to DO",
    "{what if i want to|and if i want to|suppose i want to|and how do i} DO",
    "DO",
)
"""Asking how something is done; DO is a verb phrase."""
