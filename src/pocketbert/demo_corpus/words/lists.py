"""Slot values for lists: things to buy and things to do."""

from __future__ import annotations

from pocketbert.demo_corpus.grammar import vocabulary

VOCABULARIES = (
    vocabulary(
        "item",
        seen="""milk; eggs; bread; butter; apples; bananas; olive oil; toilet paper; coffee; cheese; rice; tomatoes;
        dog food; yoghurt; sugar; orange juice; chicken; pasta; potatoes; shampoo; onions; cereal""",
        held="""spinach; batteries; flour; honey; washing powder; lentils; mushrooms; toothpaste; salmon; oat biscuits;
        baking paper; garlic; blueberries; cat litter; mustard""",
    ),
    vocabulary(
        "food",
        seen="spaghetti; pumpkin; lobster; popcorn; chocolate; broccoli; tofu; bacon; pancakes; oatmeal",
        held="couscous; quinoa; octopus; marzipan; liver; asparagus; venison",
    ),
    vocabulary(
        "task",
        seen="""water the plants; take out the trash; pay the rent; call the dentist; feed the cat; buy a birthday card;
        take my pills; pick up the kids; send the invoice; clean the bathroom; walk the dog; return the library books;
        book the hotel; charge the laptop; renew my passport; text Julia back; wash the car; do the laundry;
        order new glasses; check the oven; lock the back door""",
        held="""mow the lawn; sign the contract; iron the shirts; email the teacher; empty the dishwasher;
        fix the bicycle; cancel the gym membership; get a flu shot; defrost the freezer; collect the dry cleaning;
        submit my expenses; change the bed sheets; phone the bank; turn off the sprinkler""",
    ),
)
