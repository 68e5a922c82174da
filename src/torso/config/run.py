"""The section `run`: seed, device, engines, and simulated faults and speeds of clients."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from torso.config.section import Section
from torso.kinds import Chance, CountOrZero, NotNegative, Positive, Seed

Spread = Annotated[float, Field(ge=0, le=10)]


class RayConfig(Section):
    """The workers of `run.engine = "ray"`."""

    address: str = Field("local", description="local: this machine; auto or HOST:PORT: a cluster that already runs")
    workers: CountOrZero = Field(0, description="processes that train clients; 0: as many as the cluster has room for")
    gpus_per_worker: NotNegative = Field(0.0, description="accelerators of a worker, or a share of one; 0: CPU")
    wait: Positive = Field(
        180.0, description="seconds to wait until a worker has started, also one that replaces a lost worker"
    )


class FaultsConfig(Section):
    """Simulated faults of clients: the probability of each fault, per participant and round."""

    drop: Chance = Field(0.0, description="probability that a participant does not answer at all")
    crash: Chance = Field(0.0, description="probability that it trains, and breaks down before it uploads")
    late: Chance = Field(0.0, description="probability that its upload arrives after the deadline and is not used")
    corrupt: Chance = Field(0.0, description="probability that its upload arrives damaged and is not used")

    @model_validator(mode="after")
    def _one_at_most(self) -> FaultsConfig:
        """A client has one fault in a round, or none."""
        total = self.drop + self.crash + self.late + self.corrupt
        if total > 1 + 1e-9:
            raise ValueError(f"the chances add up to {total:g}; a client has one fault at most, so expected: 1 or less")
        return self


class SpeedsConfig(Section):
    """Simulated duration of a visit in hours: hours · exp(sigma · z_client + jitter · z_visit), z standard normal."""

    hours: Annotated[float, Field(gt=0, le=1e6)] = Field(
        1.0, description="simulated hours of a visit of the median client"
    )
    sigma: Spread = Field(0.0, description="how much clients differ: standard deviation of the log of their hours")
    jitter: Spread = Field(0.0, description="how much the visits of one client differ, in the same unit")

    @property
    def simulated(self) -> bool:
        """Whether a key differs from its default: if so, synchronous rounds take simulated time, too."""
        return self != SpeedsConfig()


class SecureConfig(Section):
    """Secure aggregation in a real federation: the server learns the sum of the uploads, but no single upload."""

    kind: Literal["none", "secagg+"] = Field(
        "none", description="secagg+: the server can open only sums of uploads (SecAgg+)"
    )
    shares: CountOrZero = Field(
        0, description="participants that hold shares of a client's secrets, itself included; odd; 0: all of them"
    )
    threshold: Annotated[float, Field(ge=0.5, lt=1)] = Field(
        0.6667, description="a sum can be opened if more than this share of them, and at least 3, have answered"
    )
    clip: Positive = Field(8.0, description="largest change of a weight that is sent; larger changes are cut to it")
    bits: Annotated[int, Field(ge=8, le=28)] = Field(
        22, description="a number is rounded to 2^bits steps between −clip and clip; participants · 2^bits < 2^32"
    )

    @model_validator(mode="after")
    def _a_ring(self) -> SecureConfig:
        """A client has as many neighbours on one side as on the other."""
        if self.shares and (self.shares < 3 or self.shares % 2 == 0):
            raise ValueError(f"shares = {self.shares}; expected: 0, or an odd number from 3 on")
        return self


class FlowerConfig(Section):
    """How long the server of a real federation waits for clients (`torso federation run`)."""

    clients: CountOrZero = Field(
        0, description="clients to wait for before the run begins; 0: as many as train.min_clients"
    )
    wait: Positive = Field(600.0, description="seconds to wait for clients, at the start and when too few are left")
    deadline: Positive = Field(600.0, description="seconds within which a client must answer in a round")
    secure: SecureConfig = SecureConfig()


class RunConfig(Section):
    """Seed, device, engine and checkpoints."""

    seed: Seed = Field(0, description="seed of everything random: partition, weights, participants, batches")
    device: str = Field("auto", description="auto: cuda if available, else cpu")
    engine: str = Field(
        "auto",
        description="where clients run: one-by-one, batched, auto (batched on an accelerator), ray (a cluster), or "
        "flower (a real federation: torso federation run)",
    )
    workers: CountOrZero = Field(
        0, description="threads that train clients side by side on CPU; 0: one per core (engine = ray: one per worker)"
    )
    clients_at_once: CountOrZero = Field(
        0,
        description="clients stacked into one step; 0: as many as fit (batched), one (one-by-one; up to 32 of a small "
        "network, if no bit changes)",
    )
    precision: Literal["auto", "fp32", "tf32", "bf16"] = Field(
        "auto",
        description="precision of training on an accelerator; auto: tf32. Evaluation, and everything on CPU, is fp32",
    )
    features: Literal["auto", "off", "device", "disk"] = Field(
        "auto",
        description="where the features of a frozen body are kept, each computed once; device: in memory; disk: in a "
        "file that later runs find; auto: in memory if they fit, else in a file; off: computed every time. Features of "
        "model.encoder are kept in a file; with device or off, in the memory of this run",
    )
    compile: Literal["auto", "on", "off"] = Field(
        "auto",
        description="torch.compile for a body that is not Torso's, on an accelerator: steps are faster, but the first "
        "one takes up to a minute; on: from the first step; auto: once a run has taken 30,000 steps; off: never",
    )
    checkpoint_every: CountOrZero = Field(
        10, description="rounds between checkpoints; 0: only when stopped and at the end"
    )
    faults: FaultsConfig = FaultsConfig()
    speeds: SpeedsConfig = SpeedsConfig()
    ray: RayConfig = RayConfig()
    flower: FlowerConfig = FlowerConfig()
