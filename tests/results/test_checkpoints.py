"""Checkpoints cost what has changed, keep what they need and no more, and older ones are read."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Iterable
from dataclasses import asdict, replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.runs.samples import StopAfter, bits, digits, last_tensors, result_of, same_tensors, tiny

from torso import RequestError, run
from torso.nets import Tensors
from torso.personal.fomo import AFFINITY
from torso.personal.state import State
from torso.personal.store import KINDS, ClientState
from torso.results.checkpoint import Checkpoints, load_newest
from torso.results.same_run import fingerprint
from torso.runs.run import Stopped

MODEL = {"body.weight": torch.zeros(3), "head.weight": torch.zeros(5)}
SERVER = 4 * (3 + 5)  # bytes of the model
HEAD = 4 * 5  # bytes of what a client keeps


def begin(clients: int, numbers: int = 5) -> State:
    """Clients that each keep a head of so many numbers."""
    return State.begin(MODEL, {k: head(k, numbers) for k in range(clients)}, round=1)


def head(value: float, numbers: int = 5) -> ClientState:
    return ClientState(kept={"head.weight": torch.full((numbers,), float(value))})


def after(state: State, clients: Iterable[int], numbers: int = 5) -> State:
    """The state of the next round, in which these clients took part."""
    server = replace(state.server, round=state.round + 1)
    changed = {k: head(100 * server.round + k, numbers) for k in clients}
    return State(server, state.clients.updated(changed))


def names(folder: Path, pattern: str = "clients-*") -> list[str]:
    return sorted(path.name for path in folder.glob(pattern))


# incremental


def test_only_clients_that_have_changed_are_written(tmp_path: Path) -> None:
    checkpoints, state = Checkpoints(tmp_path, "mine"), begin(clients=4)
    checkpoints.save(state)
    assert checkpoints.written == SERVER + 4 * HEAD
    state = after(state, [1, 3])
    checkpoints.save(state)
    assert checkpoints.written == 2 * SERVER + 6 * HEAD
    assert set(load_file(tmp_path / "clients-000002.safetensors")) == {f"client {k}/kept/head.weight" for k in (1, 3)}
    checkpoints.save(after(state, []))
    assert checkpoints.written == 3 * SERVER + 6 * HEAD
    assert names(tmp_path) == ["clients-000001.safetensors", "clients-000002.safetensors"]
    found = load_newest(tmp_path, MODEL, "mine")
    assert found is not None
    assert {k: own["head.weight"][0].item() for k, own in found.state.clients.of_kind("kept").items()} == {
        **{0: 0.0, 1: 201.0, 2: 2.0, 3: 203.0}
    }


def test_files_of_the_last_two_checkpoints_are_kept_and_others_go(tmp_path: Path) -> None:
    """Client 0 lies in the file of round 1 as long as it does not come again, and one checkpoint longer."""
    checkpoints, state, found = Checkpoints(tmp_path, "mine"), begin(clients=2), list[list[int]]()
    checkpoints.save(state)
    for participants in ([1], [1], [0], [1], [0]):
        state = after(state, participants)
        checkpoints.save(state)
        assert len(names(tmp_path, "round-*")) == 4  # two checkpoints of two files
        found.append([int(name[8:14]) for name in names(tmp_path)])
    assert found == [[1, 2], [1, 2, 3], [1, 3, 4], [3, 4, 5], [4, 5, 6]]


def test_a_stage_that_begins_at_the_model_alone_leaves_clients_behind(tmp_path: Path) -> None:
    checkpoints, state = Checkpoints(tmp_path, "mine"), begin(clients=2)
    checkpoints.save(state)
    state = after(state.at_new_stage(), [1])
    checkpoints.save(state)
    found = load_newest(tmp_path, MODEL, "mine")
    assert found is not None
    assert bits(found.state) == bits(state)
    assert list(found.state.clients) == [1]


def test_files_that_are_mostly_out_of_date_become_one(tmp_path: Path) -> None:
    """Heads of 1 MB, in MB: 4 + 3 + 2 + 1 = 10 are more than 2 · 4 + 1, of which 4 are somebody's newest."""
    million = {**MODEL, "head.weight": torch.zeros(1 << 18)}
    checkpoints, state = Checkpoints(tmp_path, "mine"), State.begin(million, begin(4, 1 << 18).clients, round=1)
    for participants in ([], [0, 1, 2], [0, 1], [0]):
        state = after(state, participants, 1 << 18) if participants else state
        checkpoints.save(state)
    (newest,) = json.loads((tmp_path / "round-000004.json").read_text())["clients"].items()
    assert newest[1]["of"] == [0, 1, 2, 3]
    checkpoints.save(after(state, []))
    assert names(tmp_path) == [newest[0]]  # the others went with the checkpoint that had needed them
    found = load_newest(tmp_path, million, "mine")
    assert found is not None
    assert bits(replace(found.state, server=state.server)) == bits(state)


def test_what_a_resumed_run_has_read_is_not_written_again(tmp_path: Path) -> None:
    first, state = Checkpoints(tmp_path, "mine"), begin(clients=4)
    first.save(state)
    state = after(state, [1])
    first.save(state)
    found, second = load_newest(tmp_path, MODEL, "mine"), Checkpoints(tmp_path, "mine")
    assert found is not None
    assert bits(found.state) == bits(state)
    second.resumed(found)
    state = after(found.state, [2])
    second.save(state)
    assert second.written == SERVER + HEAD
    assert names(tmp_path) == [f"clients-00000{r}.safetensors" for r in (1, 2, 3)]
    found = load_newest(tmp_path, MODEL, "mine")
    assert found is not None
    assert bits(found.state) == bits(state)


def test_a_run_goes_on_from_several_files_to_the_bit(tmp_path: Path) -> None:
    """SCAFFOLD with private heads: what is kept and what is remembered, of clients that came in different rounds."""
    config = tiny("scaffold", "method.share=body")
    run(config, tmp_path / "whole", federation=digits())
    listener = StopAfter(3)
    with pytest.raises(Stopped):
        run(config, tmp_path / "run", listener=listener, stop=listener.stop, federation=digits())
    assert len(json.loads((tmp_path / "run/checkpoints/round-000003.json").read_text())["clients"]) > 1
    run(config, tmp_path / "run", resume=True, federation=digits())
    last = last_tensors(tmp_path / "run")
    assert {name.split("/")[1] for name in last if name.startswith("client ")} == {"kept", "memory"}
    assert same_tensors(last, last_tensors(tmp_path / "whole"))
    assert result_of(tmp_path / "run") == result_of(tmp_path / "whole")


def test_a_damaged_file_that_both_checkpoints_need_is_refused_by_name(tmp_path: Path) -> None:
    checkpoints, state = Checkpoints(tmp_path, "mine"), begin(clients=2)
    checkpoints.save(state)
    checkpoints.save(after(state, [1]))
    path = tmp_path / "clients-000001.safetensors"
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    reason = r"round-000002\.json is damaged \(the checksum of clients-000001\.safetensors does not match\)"
    with pytest.raises(RequestError, match=f"no whole checkpoint in .*{reason}; round-000001"):
        load_newest(tmp_path, MODEL, "mine")


def test_a_note_names_no_file_outside_its_folder(tmp_path: Path) -> None:
    """Checkpoints may come from others: a name with a path in it is not followed."""
    checkpoints = Checkpoints(tmp_path / "in", "mine")
    checkpoints.folder.mkdir()
    note = json.loads(checkpoints.save(begin(clients=1)).read_text())
    shutil.move(tmp_path / "in" / "clients-000001.safetensors", tmp_path / "clients-000001.safetensors")
    del note["sha256"]
    note["clients"] = {"../clients-000001.safetensors": note["clients"]["clients-000001.safetensors"]}
    (tmp_path / "in" / "round-000001.json").write_text(json.dumps({**note, "sha256": sealed(note)}))
    with pytest.raises(RequestError, match="No such file or directory"):
        load_newest(tmp_path / "in", MODEL, "mine")


# older


def sealed(note: dict[str, object]) -> str:
    return hashlib.sha256(json.dumps(note, sort_keys=True).encode()).hexdigest()


def as_before(state: State, config: str, folder: Path) -> None:
    """A checkpoint as versions before wrote it: one file of tensors, and affinities among the clients' notes."""
    old_names = {"kept": "private", **{kind: kind for kind in KINDS if kind != "kept"}}
    server = ("model", "shown", "rule", "drift", "origin")
    flat: Tensors = {f"{kind}/{n}": t for kind in server for n, t in getattr(state.server, kind).items()}
    for kind, old in old_names.items():
        flat |= {f"{old}/{k}/{n}": t for k, held in state.clients.of_kind(kind).items() for n, t in held.items()}
    flat |= {f"notes/{k}/{AFFINITY}": known[AFFINITY] for k, known in state.server.of_clients.items()}
    shutil.rmtree(folder)
    folder.mkdir()
    path = folder / f"round-{state.round:06d}.safetensors"
    save_file({name: tensor.clone() for name, tensor in flat.items()}, path)
    note = {
        "format": 1,
        "round": state.round,
        "config": config,
        "tensors_sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
        "met": sorted(state.server.met),
        "cost": asdict(state.cost),
    }
    path.with_suffix(".json").write_text(json.dumps({**note, "sha256": sealed(note)}))


@pytest.mark.parametrize("method", ["fedper", "fedfomo", "mtl", "scaffold", "ditto"])
def test_a_checkpoint_of_format_1_is_gone_on_from_to_the_bit(method: str, tmp_path: Path) -> None:
    """FedFomo's and MTL's server had the clients' uploads among their private tensors, FedFomo's clients the server's
    affinities among their notes."""
    config, folder = tiny(method), tmp_path / "run"
    whole = run(config, tmp_path / "whole", federation=digits())
    listener = StopAfter(3)
    with pytest.raises(Stopped):
        run(config, folder, listener=listener, stop=listener.stop, federation=digits())
    assert whole.initial is not None
    model = whole.initial.state_dict()
    stopped = load_newest(folder / "checkpoints", model, fingerprint(config))
    assert stopped is not None
    as_before(stopped.state, fingerprint(config), folder / "checkpoints")
    found = run(config, folder, resume=True, federation=digits())
    assert found.state is not None
    assert whole.state is not None
    assert bits(found.state) == bits(whole.state)
    assert found.accuracy == whole.accuracy
    assert same_tensors(last_tensors(folder), last_tensors(tmp_path / "whole"))


def test_a_format_that_is_not_known_is_refused_by_its_number(tmp_path: Path) -> None:
    path = Checkpoints(tmp_path, "mine").save(begin(clients=1))
    note = json.loads(path.read_text())
    del note["sha256"]
    note["format"] = 3
    path.write_text(json.dumps({**note, "sha256": sealed(note)}))
    with pytest.raises(RequestError, match=r"round-000001\.json is damaged \(format 3, this version reads 1 and 2\)"):
        load_newest(tmp_path, MODEL, "mine")
