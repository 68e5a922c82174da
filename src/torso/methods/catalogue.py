"""The catalogue of methods: one expression for each.

The assignments are the list: `fedprox_babu` becomes the preset `fedprox-babu`. It is one long file on purpose: methods
are made from each other, and a reader finds a name in one place.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from torso.learn.drift import ClientMomentum, Dynamic, MultiTask, Proximal, Scaffold
from torso.learn.gpfl_loss import Guided
from torso.learn.meta import MetaWeighted
from torso.learn.objectives import (
    BalancedSoftmax,
    Calibrated,
    ClassShares,
    CrossEntropy,
    FeatureNorm,
    Restricted,
    SquaredError,
)
from torso.learn.phases import Phase
from torso.learn.sharpness import SharpnessAware
from torso.learn.steps import Envelope, LookAhead
from torso.learn.teachers import Contrast, MeanRegularised, NotTrue, Prototypical
from torso.methods.method import Method, Share, method
from torso.methods.starts import ClassMeans, Finished
from torso.nets.heads import Dual, Gpfl, MlpHead, Normalized, Shifted, Simplex, SparseSimplex, Sphere
from torso.personal import (
    Aligned,
    Ditto,
    FineTune,
    Fomo,
    GaussianHead,
    Kept,
    LocalAggregation,
    Personal,
    Realigned,
    ScaledHead,
)
from torso.registry import Registry
from torso.server.attention import Attention
from torso.server.centre import Centre
from torso.server.consensus import Consensus
from torso.server.federated_features import FederatedFeatures
from torso.server.fisher import Fisher
from torso.server.gaussians import GaussianClasses
from torso.server.prototypes import MixedHeads, Prototypes
from torso.server.realignment import Realignment
from torso.server.rules import Adaptive, FedExp, Momentum, NoMean, TorchAdam

_FEDBABU, _ROD, _NCM, _FN = "FedBABU (Oh 2022)", "Fed-RoD (Chen 2022)", "FedNCM (Legate 2023)", "FedFN (Kim 2023)"
_ROD_OWN = Kept()  # Fed-RoD measures the local model, before aggregation (spec 9.4)

fedavg = method(about="All clients train and share the whole network (spec 3.1).", paper="FedAvg (McMahan 2017)")
fedavg_ft = fedavg.but(
    personal=FineTune(factor=0.1, rate="first"), about="FedAvg, tuned at a tenth of its rate (spec 8.4)."
)
random = fedavg.but(about="The whole network from random weights, the baseline of FT (spec 7.3).", paper=_NCM)
centralized = method(
    train="none",
    server_data="all",
    about="Centralised: the server trains on all data; set data.server_fraction=1 (spec 4.1).",
    paper=_FEDBABU,
)
centralized_body = centralized.but(
    server_data="body", about="Centralised: the server trains the body alone (spec 4.1)."
)
local_only = method(
    share="none", about="Every client trains alone, from the same initial weights (spec 5.1).", paper="–"
)
fedbabu = method(
    train="body",
    share="body",
    about="Only the body trains and travels; the head keeps its random initial weights (spec 4.1).",
    paper=_FEDBABU,
)
fedbabu_ft = fedbabu.but(
    personal=FineTune(factor=0.01, rate="first"), about="FedBABU, tuned at 0.01 of its rate (spec 8.4)."
)
fedper = method(
    share="body",
    about="The body travels; every client keeps its own head (spec 4.2).",
    paper="FedPer (Arivazhagan 2019)",
)
fedper_reset = fedper.but(
    share=Share("body", rest="reset"),
    about="FedPer as in FedBABU's code: the trained head is thrown away after a visit (spec 4.2).",
)
fedrep = method(
    share="body",
    train=[Phase("head"), Phase("body", epochs=1)],
    personal=FineTune((Phase("head"), Phase("body", epochs=1))),
    about="First the client's own head trains, then the body for one epoch; the body travels (spec 4.4).",
    paper="FedRep (Collins 2021)",
)
lg_fedavg = method(
    share="head",
    start=Finished("fedavg"),
    about="The head travels; every client keeps its own body; begins at FedAvg's model (spec 4.3).",
    paper="LG-FedAvg (Liang 2020)",
)
per_fedavg = method(
    step=LookAhead(),
    about="Trains a model that is good after one more step on a client's data (first-order, spec 5.2).",
    paper="Per-FedAvg (Fallah 2020)",
)
ditto = method(
    personal=Ditto(),
    about="FedAvg, and a second model on every client that is pulled towards FedAvg's (spec 5.3).",
    paper="Ditto (Li 2021)",
)
pfedme = method(
    step=Envelope(),
    personal=Kept(refresh="last-visit"),
    about="Clients step on the Moreau envelope of their loss and keep its minimiser (spec 5.4).",
    paper="pFedMe (T. Dinh 2020)",
)
mtl = method(
    server=NoMean(),
    drift=MultiTask(),
    personal=Personal(),
    about="A model for every client, pulled towards the mean of the participants' models (spec 5.5).",
    paper="MOCHA (Smith 2017)",
)
fedfomo = method(
    server=NoMean(),
    personal=Fomo(),
    about="Every client mixes the models of others that lower its validation loss (spec 5.6).",
    paper="FedFomo (Zhang 2021)",
)
fedprox = fedavg.but(
    drift=Proximal(0.01),
    about="FedAvg with a proximal term towards the received model (spec 3.5).",
    paper="FedProx (Li 2020)",
)
fedprox_babu = fedbabu.but(
    drift=Proximal(0.01), about="FedBABU with a proximal term towards the received body (spec 3.6)."
)
scaffold = method(
    drift=Scaffold(),
    about="FedAvg with control variates; with momentum set method.drift.divisor=momentum (spec 3.7).",
    paper="SCAFFOLD (Karimireddy 2020)",
)
scaffold_babu = fedbabu.but(
    drift=Scaffold("momentum"), about="FedBABU with control variates on the body (spec 3.11).", paper=_FN
)
feddyn = method(
    drift=Dynamic(),
    about="FedAvg with a dynamic regulariser on every client (spec 3.8).",
    paper="FedDyn (Acar 2021)",
)
feddyn_babu = fedbabu.but(
    drift=Dynamic(), about="FedBABU with a dynamic regulariser on the body (spec 3.11).", paper=_FN
)
fedavgm = method(server=Momentum(), about="FedAvg with momentum on the server (spec 3.9).", paper="FedAvgM (Hsu 2019)")
fedadam = method(
    server=Adaptive(),
    about="FedAvg with Adam on the server, as Reddi et al. define it (spec 3.9).",
    paper="FedOpt (Reddi 2021)",
)
fedadam_torch = fedadam.but(
    server=TorchAdam(), about="FedAvg with torch's Adam on the server, as FedNCM's code (spec 3.9).", paper=_NCM
)
fedadam_babu = fedbabu.but(server=Adaptive(), about="FedBABU with Adam on the server (spec 3.11).", paper=_FN)
fedyogi = fedadam.but(server=Adaptive("yogi"), about="FedAvg with Yogi on the server (spec 3.9).")
fedadagrad = fedadam.but(server=Adaptive("adagrad", beta1=0.0), about="FedAvg with Adagrad on the server (spec 3.9).")
fedexp = method(
    server=FedExp(),
    about="FedAvg with a server step that grows when clients disagree (spec 3.10).",
    paper="FedExP (Jhunjhunwala 2023)",
)
fedexp_babu = fedbabu.but(server=FedExp(), about="FedBABU with FedEXP's step on the body (spec 3.11).", paper=_FN)
fedfn = method(head=Normalized(), about="FedAvg with features of length one (spec 8.1).", paper=_FN)
fedfn_ft = fedfn.but(personal=FineTune(factor=0.1, rate="first"), about="FedFN, tuned at 0.1 of its rate (spec 8.4).")
scaffold_fn = fedfn.but(drift=Scaffold("momentum"), about="SCAFFOLD with features of length one (spec 3.11).")
fedexp_fn = fedfn.but(server=FedExp(), about="FedEXP with features of length one (spec 3.11).")
fedprox_fn = fedfn.but(drift=Proximal(0.01), about="FedProx with features of length one (spec 3.11).")
feddyn_fn = fedfn.but(drift=Dynamic(), about="FedDyn with features of length one (spec 3.11).")
fedadam_fn = fedfn.but(server=Adaptive(), about="FedAdam with features of length one (spec 3.11).")
fedfr = method(objective=FeatureNorm(), about="FedAvg with a penalty on the length of features (spec 8.2).", paper=_FN)
spherefed_ce = fedbabu.but(
    head=Sphere(),
    about="A frozen orthonormal head on cosines, trained with cross-entropy (spec 8.3).",
    paper="SphereFed (Dong 2022)",
)
spherefed_mse = spherefed_ce.but(
    objective=SquaredError(), about="A frozen orthonormal head on cosines, trained with squared errors (spec 8.3)."
)
spherefed_ce_ft = spherefed_ce.but(
    personal=FineTune(factor=0.1, rate="first"), about="SphereFed, tuned at 0.1 of its rate (spec 8.4)."
)
spherefed_mse_ft = spherefed_mse.but(
    personal=FineTune(factor=0.01, rate="first"),
    about="SphereFed with squared errors, tuned at 0.01 of its rate (spec 8.4).",
)
fedavg_brm = fedavg.but(
    objective=BalancedSoftmax(), personal=_ROD_OWN, about="FedAvg with the balanced soft-max (spec 6.6).", paper=_ROD
)
fedavg_brm_ft = fedavg_brm.but(
    personal=Kept(phases=(Phase("all"),), rate="last"),
    about="FedAvg with the balanced soft-max, then cross-entropy on the client (spec 6.6).",
)
fedavg_meta = fedavg.but(
    meta_data=True,
    personal=_ROD_OWN,
    about="Clients train on their own data and a few balanced images of the server (spec 5.7).",
    paper="Zhao 2018",
)
fedrod_linear = method(
    head=Dual(),
    objective=BalancedSoftmax(),
    share="body+head",
    personal=_ROD_OWN,
    about="A generic and a personal head (spec 6.2).",
    paper=_ROD,
)
fedrod_hyper = fedrod_linear.but(
    head=Dual("hyper"),
    share=Share("all"),
    about="A generic head, and a personal head generated from class proportions (spec 6.3).",
)
fedrod_hyper_ce = fedrod_hyper.but(objective=CrossEntropy(), about="Fed-RoD (hyper) with cross-entropy (spec 6.1).")
fedrod_hyper_feddyn = fedrod_hyper.but(
    drift=Dynamic(), about="Fed-RoD (hyper) with FedDyn on the generic branch (spec 6.4)."
)
fedrod_hyper_fedprox = fedrod_hyper.but(
    drift=Proximal(0.01), about="Fed-RoD (hyper) with FedProx on the generic branch (spec 6.4)."
)
fedrod_hyper_scaffold = fedrod_hyper.but(
    drift=Scaffold(), about="Fed-RoD (hyper) with SCAFFOLD on the generic branch (spec 6.4)."
)
fedrod_meta_bsm = fedrod_hyper.but(
    step=MetaWeighted(), about="Fed-RoD (hyper) with sample weights from a small net that is trained too (spec 6.5)."
)
lp = method(
    train="head",
    share="head",
    about="Linear probing: only the head trains and travels (spec 7.2).",
    paper=_NCM,
    pretrained=True,
)
mlp_head = lp.but(head=MlpHead(), about="Probing with a head of three layers (spec 7.5).")
ft = random.but(about="The whole network from a pre-trained body: set model.weights (spec 7.3).", pretrained=True)
lp_ft = ft.but(
    start=Finished("lp", first=10, rounds=1.0, lr=0.0, schedule=""), about="Ten rounds of probing, then FT (spec 7.4)."
)
lp5_ft = lp_ft.but(
    start=Finished("lp", first=5, rounds=1.0, lr=0.0, schedule=""), about="Five rounds of probing, then FT (spec 7.4)."
)
fedncm = ft.but(
    start=ClassMeans(), about="The head is computed from class means, in one exchange without rounds (spec 7.1)."
)
fedncm_ft = ft.but(start=ClassMeans(rounds=1.0), about="FT from FedNCM's head (spec 7.4).")
fedit = method(
    train="lora+head",
    share="lora+head",
    about="Adapters on a frozen body: both matrices and the head train and travel (spec 7.7).",
    paper="FedIT (Zhang 2023)",
    pretrained=True,
)
ffa_lora = fedit.but(
    train="lora.b+head",
    share="lora.b+head",
    personal=FineTune((Phase("lora.b+head"),)),
    about="Adapters whose matrix a keeps its initial weights: b and the head train and travel (spec 7.7).",
    paper="FFA-LoRA (Sun 2024)",
)
fedsa_lora = fedit.but(
    share="lora.a",
    about="Adapters whose matrix a travels; every client keeps b and the head (spec 7.7).",
    paper="FedSA-LoRA (Guo 2025)",
)
partial_update = fedavg.but(
    train=(Phase("blocks:1"),),
    about="Only the first block trains and travels; set method.train=blocks:J (spec 3.4).",
    paper=_FEDBABU,
)
fedavg_data_sharing = fedavg.but(
    server_data="all",
    about="FedAvg, then an epoch of the whole network on server data (spec 3.3).",
    paper=_FEDBABU,
)
fedavg_data_sharing_body = fedavg_data_sharing.but(
    server_data="body", about="FedAvg, then an epoch of the body on server data (spec 3.3)."
)
fedbabu_data_sharing = fedbabu.but(
    server_data="body", about="FedBABU, then an epoch of the body on server data (spec 3.3)."
)
fedbn = fedavg.but(
    share=Share("all-norm"),
    about="FedAvg in which every client keeps its normalisation layers (spec 19.1).",
    paper="FedBN (Li 2021)",
)
fedlc = fedavg.but(
    objective=Calibrated(),
    about="FedAvg whose logits have margins that grow as a client's classes get rare (spec 19.2).",
    paper="FedLC (Zhang 2022)",
)
fedrs = fedavg.but(
    objective=Restricted(),
    about="FedAvg that restricts the logits of classes that a client lacks (spec 19.3).",
    paper="FedRS (Li 2021)",
)
fedntd = fedavg.but(
    objective=NotTrue(),
    about="FedAvg that keeps the received model's predictions among the wrong classes (spec 19.4).",
    paper="FedNTD (Lee 2022)",
)
moon = fedavg.but(
    objective=Contrast(),
    about="FedAvg whose features stay near the received model's, away from the client's previous ones (spec 19.5).",
    paper="MOON (Li 2021)",
)
fedsam = fedavg.but(
    step=SharpnessAware(), about="FedAvg with sharpness-aware steps (spec 19.6).", paper="FedSAM (Qu 2022)"
)
mofedsam = fedsam.but(
    drift=ClientMomentum(), about="FedSAM that mixes in the mean gradient of the last round (spec 19.7)."
)
fedala = fedavg.but(
    personal=LocalAggregation(),
    about="FedAvg whose clients begin at a learned mix of the received head and their own (spec 19.8).",
    paper="FedALA (Zhang 2023)",
)
fedetf = method(
    train="all-head.classifier",
    head=Simplex(),
    objective=BalancedSoftmax(),
    personal=FineTune((Phase("all-head.classifier"), *2 * (Phase("head.classifier", 1), Phase("head.projection", 1)))),
    about="Projected features are trained towards the fixed corners of a simplex, with a balanced loss (spec 19.9).",
    paper="FedETF (Li 2023)",
)
fedgela = fedbabu.but(
    head=Simplex(scale=5.0, project=False),
    objective=ClassShares(),
    personal=ScaledHead(),
    about="A fixed simplex as head, each corner scaled by the client's share of its class (spec 19.10).",
    paper="FedGELA (Fan 2023)",
)
fedproto = method(
    share="none",
    objective=Prototypical(),
    statistics=Prototypes(),
    personal=Personal(),
    about="Class means of features travel instead of weights; features are pulled to the global means (spec 19.12).",
    paper="FedProto (Tan 2022)",
)
fedpac = method(
    share="body",
    train=[Phase("head", epochs=1), Phase("body")],
    objective=Prototypical(),
    statistics=MixedHeads(),
    personal=_ROD_OWN,
    about="Features are pulled to global class means; each client gets its own mix of all heads (spec 19.13).",
    paper="FedPAC (Xu 2023)",
)
fedas = method(
    share="body",
    statistics=Fisher(),
    personal=Aligned(),
    about="Clients align the received body with their last one; Fisher information weighs the bodies (spec 19.14).",
    paper="FedAS (Yang 2024)",
)
feddbe = method(
    share="all-head.shift",
    head=Shifted(),
    objective=MeanRegularised(),
    statistics=Consensus(),
    personal=Personal(),
    about="FedAvg in which each client shifts features by its own vector, towards a common mean (spec 19.15).",
    paper="FedDBE (Zhang 2023)",
)
pfedfda = method(
    train="body",
    share="body",
    statistics=GaussianClasses(),
    personal=GaussianHead(),
    about="Heads are computed from Gaussian classes, a mix of the client's own and the global ones (spec 19.16).",
    paper="pFedFDA (McLaughlin 2024)",
)
creff = fedavg.but(
    statistics=FederatedFeatures(),
    about="FedAvg whose head is trained again on features that the server learns from gradients (spec 19.17).",
    paper="CReFF (Shang 2022)",
)
fedamp = method(
    server=NoMean(),
    statistics=Attention(),
    drift=Proximal(0.01),
    personal=Personal(),
    about="A model for every client; a visit begins at a mix of similar clients' models (spec 19.21).",
    paper="FedAMP (Huang 2021)",
)
fedthe = method(
    head=Dual(adds=False),
    objective=BalancedSoftmax(),
    train=[Phase("body+head"), Phase("personal")],
    share="body+head",
    statistics=Centre(),
    personal=_ROD_OWN,
    about="A generic and a personal head, mixed for each test sample without its label (spec 19.22).",
    paper="FedTHE (Jiang 2023)",
)
fedloge = method(
    head=SparseSimplex(),
    train="all-head.classifier",
    share="body+head.auxiliary",
    statistics=Realignment(),
    personal=Realigned(),
    about="A fixed sparse classifier trains the body; the generic and personal heads get new row norms (spec 19.23).",
    paper="FedLoGe (Xiao 2024)",
)
gpfl = method(
    head=Gpfl(),
    objective=Guided(),
    share="body+head",
    personal=Personal(),
    about="Shared class embeddings guide features; a valve changes these for the client's own head (spec 19.24).",
    paper="GPFL (Zhang 2023)",
)


class _Methods(Registry[Method]):
    """The registry of methods. Its decorator is for a function that returns a method."""

    def register(self, name: str) -> Callable[[Callable[[], Method]], Callable[[], Method]]:  # type: ignore[override]
        def keep(make: Callable[[], Method]) -> Callable[[], Method]:
            made = make()
            about = " ".join((make.__doc__ or made.about).split())
            super(_Methods, self).register(name)(replace(made, name=name, about=about))
            return make

        return keep

    def _accepted(self) -> str:
        return f"the {len(self)} methods that `torso methods` lists"  # their names would fill the terminal


methods = _Methods("method.name")
for _name, _method in list(vars().items()):
    if isinstance(_method, Method):
        _preset = _name.replace("_", "-")
        methods[_preset] = globals()[_name] = replace(_method, name=_preset)
methods.own = dict(methods)
