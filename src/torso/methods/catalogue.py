"""The catalogue, one line a method. The assignments are the list: `fedprox_babu` is the preset `fedprox-babu`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from torso.learn.drift import Dynamic, Proximal, Scaffold
from torso.learn.objectives import BalancedSoftmax, FeatureNorm, SquaredError
from torso.learn.phases import Phase
from torso.methods.method import Method, Share, method
from torso.methods.starts import ClassMeans, Finished
from torso.nets.heads import Dual, MlpHead, Normalized, Sphere
from torso.personal import FineTune
from torso.registry import Registry
from torso.server.rules import Adaptive, FedExp, Momentum, TorchAdam

fedavg = method(about="Everybody trains and shares the whole network (spec 3.1).")
fedbabu = method(
    train="body", share="body", about="The head stays as drawn; only the body learns and travels (spec 4.1)."
)
fedper = method(share="body", about="The body travels, every client keeps a head of its own (spec 4.2).")
fedper_reset = fedper.but(
    share=Share("body", rest="reset"),
    about="FedPer as FedBABU's code ran it: the trained head is thrown away (spec 4.2).",
)
fedrep = method(
    share="body",
    train=[Phase("head"), Phase("body", epochs=1)],
    personal=FineTune((Phase("head"), Phase("body", epochs=1))),
    about="First the client's own head learns, then the body for one epoch; the body travels (spec 4.4).",
)
lg_fedavg = method(
    share="head",
    start=Finished("fedavg"),
    about="The head travels, every client keeps a body; begins at FedAvg (spec 4.3).",
)
local_only = method(share="none", about="Every client trains alone from the common start (spec 5.1).")
fedprox = fedavg.but(drift=Proximal(0.01), about="FedAvg held near the received model (spec 3.5).")
fedprox_babu = fedbabu.but(drift=Proximal(0.01), about="FedBABU held near the received body (spec 3.6).")
scaffold = method(
    drift=Scaffold(), about="FedAvg with control variates; with momentum set method.drift.divisor=momentum (spec 3.7)."
)
scaffold_babu = fedbabu.but(drift=Scaffold("momentum"), about="FedBABU with control variates on the body (spec 3.11).")
feddyn = method(drift=Dynamic(), about="FedAvg with a dynamic regulariser on every client (spec 3.8).")
feddyn_babu = fedbabu.but(drift=Dynamic(), about="FedBABU with a dynamic regulariser on the body (spec 3.11).")
fedavgm = method(server=Momentum(), about="FedAvg with momentum on the server (spec 3.9).")
fedadam = method(server=Adaptive(), about="FedAvg with Adam on the server, as Reddi et al. define it (spec 3.9).")
fedadam_torch = method(server=TorchAdam(), about="FedAvg with torch's Adam on the server, as FedNCM's code (spec 3.9).")
fedadam_babu = fedbabu.but(server=Adaptive(), about="FedBABU with Adam on the server (spec 3.11).")
fedyogi = method(server=Adaptive("yogi"), about="FedAvg with Yogi on the server (spec 3.9).")
fedadagrad = method(server=Adaptive("adagrad", beta1=0.0), about="FedAvg with Adagrad on the server (spec 3.9).")
fedexp = method(server=FedExp(), about="FedAvg with a server step that grows when clients disagree (spec 3.10).")
fedexp_babu = fedbabu.but(server=FedExp(), about="FedBABU with FedEXP's server step on the body (spec 3.11).")
fedfn = method(head=Normalized(), about="FedAvg with features of length one (spec 8.1).")
scaffold_fn = scaffold.but(
    head=Normalized(), drift=Scaffold("momentum"), about="SCAFFOLD with features of length one (spec 3.11)."
)
fedexp_fn = fedexp.but(head=Normalized(), about="FedEXP with features of length one (spec 3.11).")
fedprox_fn = fedprox.but(head=Normalized(), about="FedProx with features of length one (spec 3.11).")
feddyn_fn = feddyn.but(head=Normalized(), about="FedDyn with features of length one (spec 3.11).")
fedadam_fn = fedadam.but(head=Normalized(), about="FedAdam with features of length one (spec 3.11).")
fedfr = method(objective=FeatureNorm(), about="FedAvg with a penalty on the length of features (spec 8.2).")
spherefed_ce = fedbabu.but(head=Sphere(), about="A frozen orthonormal head, cosines, cross-entropy (spec 8.3).")
spherefed_mse = spherefed_ce.but(
    objective=SquaredError(), about="A frozen orthonormal head, cosines, squares (spec 8.3)."
)
fedavg_brm = method(objective=BalancedSoftmax(), about="FedAvg with the balanced soft-max (spec 6.6).")
fedrod_linear = method(
    head=Dual(),
    objective=BalancedSoftmax(),
    share="body+head",
    about="A generic and a personal head (Fed-RoD, spec 6.2).",
)
fedrod_hyper = fedrod_linear.but(
    head=Dual("hyper"), share=Share("all"), about="A personal head made from class proportions (Fed-RoD, spec 6.3)."
)
fedrod_hyper_feddyn = fedrod_hyper.but(
    drift=Dynamic(), about="Fed-RoD (hyper) with FedDyn on the generic branch (spec 6.4)."
)
fedrod_hyper_fedprox = fedrod_hyper.but(
    drift=Proximal(0.01), about="Fed-RoD (hyper) with FedProx on the generic branch (spec 6.4)."
)
fedrod_hyper_scaffold = fedrod_hyper.but(
    drift=Scaffold(), about="Fed-RoD (hyper) with SCAFFOLD on the generic branch (spec 6.4)."
)
lp = method(train="head", share="head", about="Linear probing: only the head learns and travels (spec 7.2).")
mlp_head = lp.but(head=MlpHead(), about="Probing with a head of three layers (spec 7.5).")
ft = fedavg.but(about="The whole network from a body trained elsewhere: set model.weights (spec 7.3).")
lp_ft = method(
    start=Finished("lp", first=10, rounds=1.0, lr=0.0, schedule=""), about="Ten rounds of probing, then FT (spec 7.4)."
)
fedncm = method(start=ClassMeans(), about="The head is made of class means, in one exchange and no round (spec 7.1).")
fedncm_ft = method(start=ClassMeans(rounds=1.0), about="FT from FedNCM's head (spec 7.4).")
partial_update = fedavg.but(
    train=(Phase("blocks:1"),), about="Only the first block learns and travels; set method.train=blocks:J (spec 3.4)."
)
fedavg_data_sharing = fedavg.but(
    server_data="all", about="FedAvg, then an epoch of the whole network on server data (spec 3.3)."
)
fedavg_data_sharing_body = fedavg.but(
    server_data="body", about="FedAvg, then an epoch of the body on server data (spec 3.3)."
)
fedbabu_data_sharing = fedbabu.but(
    server_data="body", about="FedBABU, then an epoch of the body on server data (spec 3.3)."
)


class _Methods(Registry[Method]):
    """The registry of methods; its decorator goes on a function that returns one."""

    def register(self, name: str) -> Callable[[Callable[[], Method]], Callable[[], Method]]:  # type: ignore[override]
        def keep(make: Callable[[], Method]) -> Callable[[], Method]:
            made = make()
            about = " ".join((make.__doc__ or made.about).split())
            super(_Methods, self).register(name)(replace(made, name=name, about=about))
            return make

        return keep


methods = _Methods("method.name")
for _name, _method in list(vars().items()):
    if isinstance(_method, Method):
        _preset = _name.replace("_", "-")
        methods[_preset] = globals()[_name] = replace(_method, name=_preset)
