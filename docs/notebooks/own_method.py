# %% [markdown]
# # Your own method
#
# FedProx holds a client near the received model by a quadratic penalty. Say you want the sum of absolute differences
# in its place, μ·‖θ − θ_G‖₁. That is a new choice on one axis: the correction of the gradient (`drift`).

# %%
from dataclasses import dataclass

import torso
from torso.learn.drift import Drift, DriftState, drifts
from torso.methods import Method, methods
from torso.methods.catalogue import fedbabu

# %% [markdown]
# ## The choice
#
# A choice is a frozen dataclass. Its fields are its options. `gradient` gets the gradients of G clients, `[G, …]` for
# each parameter, and returns the corrected ones. `at.params` are the clients' parameters and `at.start` is what they
# received.


# %%
@drifts.register("l1-proximal")
@dataclass(frozen=True)
class L1Proximal(Drift):
    """μ·‖θ − θ_G‖₁ is added to the loss."""

    mu: float = 1e-3

    def gradient(self, grads, at: DriftState):
        return {n: g + self.mu * (at.params[n] - at.start[n]).sign() for n, g in grads.items()}


# %% [markdown]
# ## The method
#
# `but` changes one choice of a known method. The docstring is what `torso methods` prints.


# %%
@methods.register("l1-babu")
def l1_babu() -> Method:
    """FedBABU whose body is held near the received one, coordinate by coordinate."""
    return fedbabu.but(drift=L1Proximal())


# %% [markdown]
# ## Compare it

# %%
config = torso.Config(data={"clients": 10}, train={"rounds": 4, "local_epochs": 2, "fraction": 0.5})
for result in torso.compare(["fedbabu", "l1-babu"], config):
    print(f"{result.method:8} {result.accuracy['personalized'].mean:5.1f} %")

# %% [markdown]
# ## Test it
#
# Find the setting at which your method becomes a known one, and compare all bits. With μ = 0 it is FedBABU:

# %%
first = torso.run(config.but("method.name=fedbabu"))
second = torso.run(config.but("method.name=l1-babu", "method.drift.mu=0.0"))
one, other = first.network().state_dict(), second.network().state_dict()
print(all(tensor.equal(other[name]) for name, tensor in one.items()))

# %% [markdown]
# On the command line, save the class and the function, with their imports, as `mine.py` and name the file: `torso
# compare fedbabu l1-babu --plugin mine`. [Your own method](../extending.md) goes on from here, up to a method of 60
# lines.
