# %% [markdown]
# # Reading a report
#
# `torso report` makes a page from finished runs. This notebook makes the runs, and looks up the page's main numbers
# in Python.

# %%
import json
from pathlib import Path

import torso
from torso.measure.fairness import worse_off, worst

config = torso.Config(
    data={"clients": 10},
    train={"rounds": 4, "local_epochs": 2, "fraction": 0.5},
    measure={"every": 2, "names": ["initial", "personalized", "generic", "local_only"]},
)
results = torso.compare(["fedavg", "fedbabu"], config, out="runs")

# %% [markdown]
# In a terminal you would now type `torso report runs` and open `report.html`. Folders of runs can be read again at
# any time:

# %%
fedavg, fedbabu = (torso.Result.read(f"runs/{name}-seed0") for name in ("fedavg", "fedbabu"))
print(fedbabu.method, fedbabu.status)

# %% [markdown]
# ## The summary: who is best, and is it more than chance?
#
# Differences are paired: a client has the same data under both methods. So the mean of the clients' differences is more
# certain than the difference of two means.

# %%
pairs = zip(fedbabu.accuracy["personalized"].clients, fedavg.accuracy["personalized"].clients, strict=True)
differences = [ours - theirs for ours, theirs in pairs]
print([round(value) for value in differences])
print(f"mean {sum(differences) / len(differences):+.1f} points")

# %% [markdown]
# The page adds the 95 % interval. If it contains zero, these clients cannot tell the methods apart.
#
# ## Client by client: the worst tenth, and who would be better off alone
#
# `local_only` is the accuracy of a client that trained alone, with as many epochs.

# %%
own, alone = fedbabu.accuracy["personalized"].clients, fedbabu.accuracy["local_only"].clients
print(f"worst tenth: {worst(own):.1f} %")
print(f"better off alone: {worse_off(own, alone)} of {len(own)} clients")

# %% [markdown]
# ## Over rounds
#
# `history.jsonl` has a line for each round. Accuracies are there where they were measured (`measure.every`).

# %%
for line in Path("runs/fedbabu-seed0/history.jsonl").read_text().splitlines():
    entry = json.loads(line)
    print(entry["round"], f"{entry['loss']:.3f}", {k: round(v["mean"]) for k, v in entry.get("accuracy", {}).items()})

# %% [markdown]
# ## As a figure
#
# `torso.plot` gives any chart of the page as a matplotlib figure.

# %%
figure = torso.plot("runs", "clients", of="personalized")
figure.savefig("clients.pdf")
print(figure.axes[0].get_xlabel() or figure.axes[0].get_ylabel())
