"""Weights and optimizer states go to torchrec and back bit by bit, and training goes on as if it had stayed."""

from __future__ import annotations

import pytest
import torch
from peers import (
    COVER,
    IDS,
    RTOL,
    TIERS,
    assert_close,
    assert_same,
    bag_collections,
    bags,
    kjt,
    pairs,
    sequences,
    step,
    tables_of,
)

from nestlab.embedding import SGD, LazyAdam, Tiers, checkpoint
from nestlab.embedding.features import FeatureRules
from nestlab.errors import UserError
from nestlab.interop import tiered_records
from nestlab.interop import torchrec as interop


def tiered(pair, tiers=None, kind: str = "bags", **options):
    if kind == "bags":
        return interop.TieredEmbeddingBagCollection(bags(), pair.ours, tiers, seed=7, **options)
    return interop.TieredEmbeddingCollection(sequences(), pair.ours, tiers, seed=7, **options)


def states_of(module) -> dict[str, torch.Tensor]:
    """Every row's state, whatever it is called."""
    state = interop.export_state(module).optimizer["state"]
    return {f"{table}/{name}": part for table, parts in state.items() for name, part in parts.items()}


def go_on(ours, theirs, optimizer) -> None:
    """Ten steps on both sides, whose losses agree."""
    for seed in range(20, 30):
        assert step(ours, kjt(seed)) == pytest.approx(step(theirs, kjt(seed), optimizer), rel=RTOL, abs=1e-4)
    assert_close(tables_of(ours), tables_of(theirs))


@pytest.mark.parametrize(("name", "tiers"), COVER)
def test_from_torch_to_the_tiers(name, tiers):
    """Broken once: the two parts of Adam swapped; the step number left out; slots that kept their old records."""
    pair = pairs()[name]
    _, theirs = bag_collections(pair)
    optimizer = pair.theirs(theirs.parameters())
    for seed in range(10):
        step(theirs, kjt(seed), optimizer)
    ours = tiered(pair, tiers)
    step(ours, kjt(77))  # rows that are there already, in the device tier too
    interop.import_state(ours, theirs.state_dict(), optimizer.state_dict())
    assert_same(tables_of(ours), tables_of(theirs))
    assert ours.store.last_step == (10 if name != "sgd" else 1)
    go_on(ours, theirs, optimizer)


@pytest.mark.parametrize(("name", "tiers"), COVER)
def test_from_the_tiers_to_torch(name, tiers):
    pair = pairs()[name]
    ours, theirs = bag_collections(pair, tiers)
    for seed in range(10):
        step(ours, kjt(seed))
    exported = interop.export_state(ours, "torch")
    theirs.load_state_dict(exported.weights)
    optimizer = pair.theirs(theirs.parameters())
    optimizer.load_state_dict(exported.optimizer)
    assert_same(tables_of(ours), tables_of(theirs))
    go_on(ours, theirs, optimizer)


@pytest.mark.parametrize("kind", ["bags", "sequences"])
@pytest.mark.parametrize(("name", "tiers"), COVER)
def test_there_and_back_bit_by_bit(name, tiers, kind):
    pair = pairs()[name]
    first = tiered(pair, kind=kind)
    for seed in range(10):
        step(first, kjt(seed))
    second = tiered(pair, tiers, kind=kind)
    step(second, kjt(50))
    for style in ("torch", "fused"):
        exported = interop.export_state(first, style)
        interop.import_state(second, exported.weights, exported.optimizer)
        assert_same(tables_of(first), tables_of(second))
        assert_same(states_of(first), states_of(second))
    assert second.store.last_step == (10 if name != "sgd" else second.store.last_step)
    for seed in range(30, 40):
        assert step(first, kjt(seed)) == step(second, kjt(seed))
    assert_same(tables_of(first), tables_of(second))


@pytest.mark.parametrize("name", ["sgd", "adagrad", "rowwise_adagrad"])
def test_with_torchrecs_fused_module(name):
    """Its own state dict, as it is on CPU, goes both ways; ours has its keys and shapes."""
    from torchrec.modules.fused_embedding_modules import FusedEmbeddingBagCollection

    pair = pairs()[name]
    theirs = FusedEmbeddingBagCollection(bags(), *pair.fused)
    for seed in range(10):
        step(theirs, kjt(seed))
    ours = tiered(pair)
    interop.import_state(ours, theirs.state_dict(), theirs.fused_optimizer().state_dict())
    assert_same(tables_of(ours), tables_of(theirs))
    exported, expected = interop.export_state(ours), theirs.fused_optimizer().state_dict()
    assert exported.optimizer["state"].keys() == expected["state"].keys()
    for table, parts in expected["state"].items():
        assert_same(exported.optimizer["state"][table], parts)
    back = FusedEmbeddingBagCollection(bags(), *pair.fused)
    back.load_state_dict(exported.weights)
    back.fused_optimizer().load_state_dict(exported.optimizer)
    for seed in range(20, 30):
        losses = [step(module, kjt(seed)) for module in (theirs, back, ours)]
        assert losses[0] == losses[1] == pytest.approx(losses[2], rel=RTOL, abs=1e-4)


def test_names_of_sharded_modules_and_of_whole_models():
    """The keys of a DLRM under DistributedModelParallel: a path before the table, `momentum1` behind it."""
    pair = pairs()["rowwise_adagrad"]
    ours = tiered(pair)
    path = "sparse_arch.embedding_bag_collection.embedding_bags"
    weights = {f"{path}.{c.name}.weight": torch.rand(IDS, c.embedding_dim) for c in bags()}
    weights["dense_arch.user.weight"] = torch.rand(3)
    states = {f"{path}.{c.name}.weight": {f"{c.name}.momentum1": torch.rand(IDS)} for c in bags()}
    interop.import_state(ours, weights, {"state": states})
    assert_same(tables_of(ours), {k.split(".", 2)[2]: v for k, v in weights.items() if k.startswith(path)})
    assert torch.equal(
        states_of(ours)["item.weight/item.weight.momentum_1"], states[f"{path}.item.weight"]["item.momentum1"]
    )


def test_an_optimizer_over_a_whole_model():
    """torch.optim numbers its parameters: their names are asked for, or taken from the optimizer that has them."""
    pair = pairs()["adagrad"]
    _, tables = bag_collections(pair)
    model = torch.nn.ModuleDict({"over": torch.nn.Linear(32, 1), "ebc": tables})
    for named in (False, True):
        optimizer = pair.theirs(model.named_parameters() if named else model.parameters())
        optimizer.param_groups[0]["lr"] = 0.0625
        optimizer.zero_grad()
        model["over"](tables(kjt(1)).values()).sum().backward()
        optimizer.step()
        ours = tiered(pair)
        names = None if named else [name for name, _ in model.named_parameters()]
        interop.import_state(ours, model.state_dict(), optimizer.state_dict(), parameters=names)
        expected = optimizer.state[tables.embedding_bags["item"].weight]["sum"]
        assert torch.equal(states_of(ours)["item.weight/item.weight.momentum_1"], expected)
        assert ours.fused_optimizer.lr == 0.0625 and ours.store.last_step == 1
    with pytest.raises(UserError, match="5 numbered parameters, and 3 names"):
        interop.import_state(ours, model.state_dict(), pair.theirs(model.parameters()).state_dict())


@pytest.mark.parametrize("tiers", TIERS)
def test_state_dicts_as_any_module_has_them(tiers, tmp_path):
    """A training saved with torch.save and loaded goes on bit by bit; the learning rate comes along."""
    pair = pairs()["lazy_adam"]

    def model():
        torch.manual_seed(1)
        return torch.nn.ModuleDict({"ebc": tiered(pair, tiers), "over": torch.nn.Linear(32, 1)})

    first, second = model(), model()
    for seed in range(5):
        step(first["ebc"], kjt(seed))
    first["ebc"].fused_optimizer.param_groups[0]["lr"] = 0.02
    saved = {"model": first.state_dict(), "tables": first["ebc"].fused_optimizer.state_dict()}
    torch.save(saved, tmp_path / "model.pt")
    saved = torch.load(tmp_path / "model.pt", weights_only=True)
    assert second.load_state_dict(saved["model"]).missing_keys == []
    second["ebc"].fused_optimizer.load_state_dict(saved["tables"])
    assert second["ebc"].fused_optimizer.lr == 0.02
    for seed in range(5, 10):
        assert step(first["ebc"], kjt(seed)) == step(second["ebc"], kjt(seed))
    assert_same(tables_of(first), tables_of(second))


def test_missing_and_misshapen_tables():
    _, theirs = bag_collections(pairs()["sgd"])
    ours, state = tiered(pairs()["sgd"]), dict(theirs.state_dict())
    before, weight = tables_of(ours), state.pop("embedding_bags.tag.weight")
    with pytest.raises(RuntimeError, match=r"Missing key.*embedding_bags\.tag\.weight"):
        ours.load_state_dict(state)
    ours.load_state_dict(before)
    with pytest.raises(UserError, match=r"0 keys end in embedding_bags\.tag\.weight"):
        interop.import_state(ours, state)
    with pytest.raises(UserError, match=r"weight is \[99, 4\]; its configuration says \[100, 4\]"):
        interop.import_state(ours, {**state, "embedding_bags.tag.weight": weight[1:]})
    twice = {**theirs.state_dict(), **{f"copy.{key}": value for key, value in theirs.state_dict().items()}}
    with pytest.raises(UserError, match="2 keys end in"):
        interop.import_state(ours, twice)
    assert_same(tables_of(ours), before)


def test_states_of_another_optimizer():
    adagrad, adam = pairs()["adagrad"], pairs()["lazy_adam"]
    ours, theirs = bag_collections(adam)
    weights, before = theirs.state_dict(), tables_of(ours)
    other = adagrad.theirs(theirs.parameters())
    with pytest.raises(UserError, match="has 'sum', which lazy_adam has not"):
        interop.import_state(ours, weights, other.state_dict())
    fused = {"state": {f"{c.name}.weight": {"momentum_1": torch.zeros(IDS, c.embedding_dim)} for c in bags()}}
    with pytest.raises(UserError, match="the state of lazy_adam has 2 parts, not 1"):
        interop.import_state(ours, weights, fused)
    for c in bags():
        fused["state"][f"{c.name}.weight"]["momentum_2"] = torch.zeros(IDS, c.embedding_dim)
    with pytest.raises(UserError, match="how many steps"):
        interop.import_state(ours, weights, fused)
    interop.import_state(ours, weights, fused, step=12)
    assert ours.store.last_step == 12
    theirs_of_two_minds = {
        "state": {
            i: {
                "step": i,
                "exp_avg": torch.zeros(IDS, c.embedding_dim),
                "exp_avg_sq": torch.zeros(IDS, c.embedding_dim),
            }
            for i, c in enumerate(bags())
        },
        "param_groups": [{"params": [0, 1, 2], "lr": 0.1}],
    }
    with pytest.raises(UserError, match="give step="):
        interop.import_state(ours, weights, theirs_of_two_minds)
    assert_same(tables_of(ours), before)


def test_rows_that_are_as_they_would_be_anyway_take_no_place():
    first, second = tiered(pairs()["adagrad"]), tiered(pairs()["adagrad"])
    step(first, kjt(1))
    exported = interop.export_state(first)
    interop.import_state(second, exported.weights, exported.optimizer)
    used = [len(second.store.export(c.name)["ids"]) for c in bags()]
    assert used == [len(first.store.export(c.name)["ids"]) for c in bags()] and max(used) < IDS


def test_ids_without_a_place_are_refused_at_export():
    for wrong in (IDS, -2):
        ours = tiered(pairs()["sgd"])
        batch = kjt(1)
        batch.values()[0] = wrong
        step(ours, batch)
        with pytest.raises(UserError, match=rf"trained ids lie outside 0 … 99, {wrong} among them"):
            interop.export_state(ours)
        with pytest.raises(UserError, match="raise num_embeddings"):
            ours.state_dict()


def test_what_does_not_fit_in_memory_is_refused(monkeypatch):
    monkeypatch.setattr(tiered_records, "memory_bytes", lambda: 2 * IDS * 8 * 4 - 1)
    with pytest.raises(UserError, match="state dict has all 100 rows at once, 6,400 bytes"):
        tiered(pairs()["sgd"]).state_dict()


def test_a_batch_that_waits_for_its_backward_does_not_hinder_an_export():
    ours, twin = tiered(pairs()["adagrad"]), tiered(pairs()["adagrad"])
    for module in (ours, twin):
        waiting = module(kjt(1)).values().sum()
        if module is ours:
            interop.import_state(ours, interop.export_state(ours).weights)
        waiting.backward()
    assert_same(tables_of(ours), tables_of(twin))


def test_imported_rows_are_admitted():
    """Rows that come with an import need no admission; what was counted of them before is dropped."""
    rules = Tiers(features=FeatureRules(admit="count", admit_threshold=3))
    module = interop.TieredEmbeddingBagCollection(bags(), SGD(0.1), rules)
    step(module, kjt(1))
    assert len(module.store.export("user")["ids"]) < IDS
    _, theirs = bag_collections(pairs()["sgd"])
    module.load_state_dict(theirs.state_dict())
    assert_same(tables_of(module), tables_of(theirs))
    assert len(module.store.export("user")["ids"]) == IDS
    step(module, kjt(2))
    assert not torch.equal(
        tables_of(module)["embedding_bags.user.weight"], tables_of(theirs)["embedding_bags.user.weight"]
    )


def test_an_increment_holds_what_was_imported(tmp_path):
    """To a checkpoint, imported rows are changed rows. Broken once: their last use was that of the last batch."""
    pair = pairs()["adagrad"]
    first, second = tiered(pair), tiered(pair)
    step(first, kjt(1))
    checkpoint.save(first.store, tmp_path / "tables")
    _, theirs = bag_collections(pair)
    first.load_state_dict(theirs.state_dict())
    checkpoint.save(first.store, tmp_path / "tables", incremental=True)
    checkpoint.load(second.store, tmp_path / "tables")
    assert_same(tables_of(second), tables_of(theirs))
    assert_same(states_of(second), states_of(first))


def test_adams_bias_correction_goes_on():
    """The step number is what an import must not lose: from 1 again, the first steps would be too long."""
    first = interop.TieredEmbeddingBagCollection(bags(), LazyAdam(0.1))
    for seed in range(30):
        step(first, kjt(seed))
    saved = interop.export_state(first)
    moved = []
    for number in (None, 0):
        second = interop.TieredEmbeddingBagCollection(bags(), LazyAdam(0.1))
        interop.import_state(second, saved.weights, saved.optimizer, step=number)
        step(second, kjt(99))
        moved.append(
            (tables_of(second)["embedding_bags.user.weight"] - saved.weights["embedding_bags.user.weight"]).abs().max()
        )
    assert moved[1] > 1.5 * moved[0]
