# %% [markdown]
# # A tour
#
# One run on scikit-learn's digits, and everything that comes out of it. It takes a few seconds on a laptop.

# %%
import torso

config = torso.Config(
    method="fedbabu",
    data={"clients": 10, "partition": "shards", "shards": 2},
    train={"rounds": 5, "local_epochs": 5, "fraction": 0.5},
)
result = torso.run(config)

# %% [markdown]
# ## Accuracy
#
# `initial` is the model that a client holds when training ends. `personalized` is the client's own model, here after
# some epochs of fine-tuning on its own data. Both are measured on the client's own test data. `generic` is one model
# for everybody, on the whole test set.

# %%
for name in ("initial", "personalized", "generic"):
    print(f"{name:13} {result.accuracy[name].mean:5.1f} %")

# %% [markdown]
# Clients differ. Here is each of them:

# %%
personalized = result.accuracy["personalized"]
print([round(value) for value in personalized.clients])

# %% [markdown]
# ## Cost
#
# What travelled between the server and the clients, in both directions. FedBABU sends the body and keeps the head as
# it was drawn.

# %%
print(f"{(result.cost.bytes_up + result.cost.bytes_down) / 1e6:.1f} MB")

# %% [markdown]
# ## Models
#
# Every model is an ordinary `nn.Module`. `prepare` turns uint8 images into what the network takes.

# %%
generic = result.network()
third = result.network(client=3)
rows = result.federation.test.rows(3)  # the test samples of client 3
images, labels = result.federation.test.samples[rows], result.federation.test.labels[rows]
for name, net in (("generic", generic), ("personal", third)):
    right = (net(net.prepare(images)).argmax(dim=1) == labels).float().mean()
    print(f"{name:9} {100 * right:5.1f} % of client 3's test images")

# %% [markdown]
# ## A client that comes later
#
# A newcomer has images and labels, and did not take part in training. It gets a model of its own from the result.

# %%
newcomer = result.newcomer(images.numpy(), labels.numpy(), epochs=5)
print(newcomer(newcomer.prepare(images)).shape)

# %% [markdown]
# ## Compare
#
# The same clients, initial weights, participants and batches with other methods:

# %%
for other in torso.compare(["fedavg", "fedper"], config):
    print(f"{other.method:7} {other.accuracy['personalized'].mean:5.1f} %")
