"""The papers' tables and the leaderboard: run them, judge them, and write their pages.

The rooms, in the order in which they may import each other:

    experiments   many configs in one folder: where the data lie, which runs share training, the order, the time
    tables        the published numbers, the recipes that run them again, the answers, the claims
    board         the leaderboard: every method at one budget, and the search for new combinations
    pretrained    bodies trained elsewhere: blocks of experiments, run in a given time, one json file a cell
    privacy       what privacy costs: such blocks with a budget, and audits
    robust        malicious clients: methods × attacks × server rules, run in a given time
    certified     small runs kept as hashes, and cells of all tables that are run again and compared
    pages         the pages in docs/ and the tables that the commands print
    commands      `torso papers`, `torso reproduce`, `torso leaderboard`: parse, call, print

`docs.py` stands after all of them: `python -m torso.papers.docs` writes the pages. A file imports only from its own
room and from rooms before it, and the imports between files form no cycle (tests/papers/test_rooms.py).
"""
