"""A cluster that begins with processes that earlier tests have left: to load torch takes longer than a run."""

from __future__ import annotations

from contextlib import suppress
from typing import Any, ClassVar, Self

import ray
from ray.exceptions import RayActorError

from torso.engine.cluster import Cluster, Place
from torso.engine.parcels import Account
from torso.engine.worker import Worker


class Lent(Cluster):
    """Each process that is there becomes a new worker, with these data and this network. One that is to replace a dead
    one is started, as it would be elsewhere."""

    spare: ClassVar[list[Any]] = []
    _begins = False

    def __enter__(self) -> Self:
        self._begins = True
        super().__enter__()
        self._begins = False
        return self

    def _new(self, slot: int) -> Place:
        while self._begins and self.spare:
            actor = self.spare.pop()
            with suppress(RayActorError):  # it has died
                self._born += 1
                ray.get(actor.__ray_call__.remote(Worker.__init__, self._born, *self._luggage))
                account = Account()
                self.ledger.accounts.append(account)
                return Place(slot, actor, account)
        return super()._new(slot)

    def __exit__(self, *exc: object) -> None:
        Lent.spare += [place.actor for place in self.places if place.who]
        self.places = [place for place in self.places if not place.who]  # has not come
        super().__exit__(*exc)


def let_go() -> None:
    while Lent.spare:
        ray.kill(Lent.spare.pop())
