"""Phrasings about the shopping list; jobs that are no purchase belong to `todo_add`."""

from __future__ import annotations

from pocketbert.demo_corpus.intents.intent import intent

INTENTS = (
    intent(
        "shopping_add",
        weight=1.1,
        train="""
        add {item} to (my|the) (shopping|grocery) list
        put {item} on (my|the) (shopping|grocery) list
        we need to buy {item}
        we are out of {item}
        note that we need {item} from the (store|supermarket)
        shopping list {item}
        put {item} and {item} on the (shopping|grocery) list
        i (need|have) to (buy|get) {item}
        add (a pack of|some|more) {item} to the (groceries|shopping)
        include {item} in the groceries
        don't forget {item} on the (grocery|shopping) list
        write {item} on the (shopping|grocery) list
        get {item} on the list for the supermarket
        we have run out of {item}
        we have hardly any {item}, note it
        there is no more {item} at home
        somebody took the last {item}, we need more
        when we go to the store we need {item}
        the kitchen has no {item}
        """,
        dev="""
        no {item} left in the house, see to that
        (the kids|my guests) went through all the {item}
        next time i am at the store i should get {item}
        we're running low on {item}
        i used up the last of the {item}
        {item} should come home with the groceries
        """,
        test="""
        the shelf is empty, {item} would help
        someone used all the {item}
        what i still need for the house is {item} and {item}
        let's pick up {item} at the market
        stock up on {item} at the supermarket
        the cupboard lacks {item}
        """,
    ),
    intent(
        "shopping_remove",
        train="""
        (remove|delete) {item} from (my|the) (shopping|grocery) list
        (take|cross|scratch) {item} off (the|my) (shopping|grocery) list
        (clear|empty|delete) (the|my) (whole|entire|) (shopping|grocery) list
        we (don't|do not) need {item} (any more|from the store)
        i already (bought|have|got) {item}
        no {item} on the (shopping|grocery) list
        don't buy {item}
        forget about the {item} on the (grocery|shopping) list
        undo adding {item} to the (shopping|grocery) list
        (drop|erase) {item} from the groceries
        {item} no longer needed
        {item} came with the last delivery, take that off
        we have enough {item}, (remove|delete) it
        we still have {item} at home
        there is enough {item} in the cupboard
        make a fresh shopping list without the old things
        {item} was on the list by mistake
        """,
        dev="""
        there is plenty of {item} at home
        scrap {item}, my neighbour picked it up
        my partner brought {item} home already
        start the grocery list from scratch
        leave out {item} when we shop
        turns out we still have {item}
        """,
        test="""
        {item} can go, i found some in the (cellar|cupboard)
        skip {item} on the shopping trip
        wipe all groceries off the list
        getting {item} was a mistake, off with it
        no point in getting {item}, the shelf is full already
        i was wrong, we are not short of {item}
        """,
    ),
)
