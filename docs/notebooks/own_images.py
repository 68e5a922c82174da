# %% [markdown]
# # Your own images
#
# You have images and labels for some clients, and want a personal model for each client. In this notebook the clients
# are three clinics, made of scikit-learn's digits. Put your own arrays in their place.

# %%
import numpy as np
from sklearn.datasets import load_digits

import torso

digits = load_digits()
images = (digits.images * 255 / 16).astype(np.uint8)  # [n, height, width], or [n, height, width, 3] in colour
labels = digits.target

# %% [markdown]
# ## Clients by name
#
# A client is a pair of samples and labels. These clinics see different digits.

# %%
seen = {"north": [0, 1, 2, 3], "south": [3, 4, 5, 6], "west": [6, 7, 8, 9]}
clinics = {}
for name, classes in seen.items():
    mine = np.isin(labels, classes)
    clinics[name] = (images[mine], labels[mine])
    print(name, len(labels[mine]), "images of the classes", classes)

# %% [markdown]
# ## Train
#
# A fifth of each client's images is held out for testing. uint8 arrays are images; they are scaled and normalised for
# you.

# %%
config = torso.Config(method="fedbabu", train={"rounds": 5, "fraction": 1.0, "local_epochs": 2})
result = torso.run(config, clients=clinics)
for name, before, after in zip(
    result.names, result.accuracy["initial"].clients, result.accuracy["personalized"].clients, strict=True
):
    print(f"{name:6} {before:5.1f} % → {after:5.1f} %")

# %% [markdown]
# ## Use a personal model
#
# `network(name)` gives the model of a client. This one was fine-tuned on the images of `south`.

# %%
south = result.network("south")
some = clinics["south"][0][:8]
print(south(south.prepare(some)).argmax(dim=1).tolist())
print(clinics["south"][1][:8].tolist())

# %% [markdown]
# ## Keep it as a file

# %%
path = torso.save_model(south, "south.safetensors")
again = torso.load_model(path)
print(again.card.method, again.card.classes, "classes")
