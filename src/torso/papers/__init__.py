"""The papers' tables and the leaderboard: run them, judge the results, and write the pages about them.

The packages, in the order in which they may import each other:

    experiments   runs of many configs in one folder: where the data are, which runs share training, order, time
    tables        the published numbers, the recipes that run them again, the answers, the claims
    board         the leaderboard: every method with the same budget, and the search for new combinations
    pretrained    bodies trained elsewhere: blocks of experiments, run in a given time, a json file for each cell
    privacy       what privacy costs: blocks of the same kind with a privacy budget, and audits
    robust        malicious clients: methods × attacks × server rules, run in a given time
    certified     small runs whose hashes are kept, and cells of all tables that are run again and compared
    pages         the pages in docs/ and the tables that the commands print
    commands      `torso papers`, `torso reproduce`, `torso leaderboard`, `torso doctor`

`docs.py` comes after all of them: `python -m torso.papers.docs` writes the pages. A file imports only from its own
package and from packages before it, and the imports between files form no cycle (tests/papers/test_rooms.py).
"""
