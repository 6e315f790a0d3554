"""What a step does beside the happy path: clock, missing gradients, evaluation mode, interruption, look-ahead."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from tiny import DIM, FEATURES, make_batches, make_model, make_pipeline, train, weights_of
from torch import nn

from nestlab.embedding import EmbeddingStore, TableConfig, Tiers, optimizer
from nestlab.errors import UserError
from nestlab.exchange import LocalTransport
from nestlab.models import DLRM, DenseOutput, RecModel
from nestlab.pipeline import Inline, InvalidSchedule, Lanes, Pipeline, Shape, Shuffled, Stage, build, builders
from nestlab.pipeline.accesses import direct_accesses
from nestlab.pipeline.derivation import required_edges
from nestlab.pipeline.validator import validate
from nestlab.techniques import Techniques

pytestmark = pytest.mark.core


class Odd(nn.Module):
    """Looks at one feature only, has a dropout, a parameter nobody uses and a frozen one."""

    def __init__(self) -> None:
        super().__init__()
        self.used = nn.Parameter(torch.full((DIM,), 0.5))
        self.unused = nn.Parameter(torch.ones(3))
        self.frozen = nn.Parameter(torch.ones(DIM), requires_grad=False)
        self.dropout = nn.Dropout(0.5)

    def forward(self, batch, embedded) -> DenseOutput:
        vectors = self.dropout(embedded.pooled("item"))
        logits = vectors @ (self.used * self.frozen)
        losses = nn.functional.binary_cross_entropy_with_logits(logits, batch.labels, reduction="none")
        return DenseOutput(losses, torch.sigmoid(logits.detach()))


def odd_model() -> RecModel:
    return RecModel(EmbeddingStore([TableConfig(f, DIM) for f in FEATURES], optimizer("sgd", lr=0.1)), Odd())


def test_lazy_adam_equals_torch_over_two_pipelines():
    """float64, bias correction by the number of the step, which a second pipeline continues and does not restart."""
    batches = make_batches(10)
    ids = torch.unique(torch.cat([batch.ids for batch in batches]))
    one, two = make_model("lazy_adam", torch.float64), make_model("lazy_adam", torch.float64)
    start = one.embedding.full_weight("people", ids).clone()
    list(make_pipeline(one).run(batches))
    adam = torch.optim.Adam(two.dense.parameters(), lr=0.01)
    list(Pipeline(two, adam).run(batches[:5]))
    list(Pipeline(two, adam).run(batches[5:]))
    assert weights_of(one) == weights_of(two)
    assert one.embedding.last_step == 10

    reference = nn.EmbeddingBag.from_pretrained(start, freeze=False, mode="sum", sparse=True)
    sparse_adam = torch.optim.SparseAdam(reference.parameters(), lr=0.1)
    third = make_model("lazy_adam", torch.float64)
    pipeline = make_pipeline(third)
    for batch in batches:
        gradient = _gradient_of_people(third, batch)
        places = torch.searchsorted(ids, gradient[0])[None]
        reference.weight.grad = torch.sparse_coo_tensor(places, gradient[1], start.shape, check_invariants=True)
        sparse_adam.step()
        pipeline.progress(iter([batch]))
    torch.testing.assert_close(
        third.embedding.full_weight("people", ids), reference.weight.detach(), rtol=0, atol=1e-12
    )


@pytest.mark.parametrize("flags", ["", "device_tier=slot_cache,cache_slots=60,cache_policy=oracle,look_ahead=3"])
@pytest.mark.parametrize("executor", [Inline(), Lanes(), Shuffled(2)])
def test_pipelines_that_take_turns_are_one(flags, executor):
    """Both made first, then one after the other and back: step numbers count on. A drain elsewhere disturbs nobody.

    With the oracle the first holds keys of batches to come while the second trains. Seen to fail with a step number
    that is counted from the making of the pipeline, and where what is known is not told again.
    """
    techniques, batches = Techniques.parse(flags), make_batches(16)
    one, two = (make_model("lazy_adam", torch.float64, Tiers.of(techniques, torch.device("cpu"))) for _ in range(2))
    order = [*batches[:3], *batches[8:12], *batches[3:8], *batches[12:]]
    expected = list(make_pipeline(one, techniques=techniques).run(order))
    adam = torch.optim.Adam(two.dense.parameters(), lr=0.01)
    first, second = (Pipeline(two, adam, techniques, executor=executor) for _ in range(2))
    source = iter(batches[:8])
    if isinstance(executor, Shuffled):  # which plans several steps at a time
        outputs = list(first.run(batches[:3])) + list(second.run(batches[8:12])) + list(first.run(batches[3:8]))
    else:
        outputs = [first.progress(source) for _ in range(3)]
        other = iter(batches[8:12])
        for _ in range(4):
            outputs.append(second.progress(other))
            assert first.drain() == []
        outputs += first.run(source)
    outputs += second.run(batches[12:])
    assert [float(output.loss) for output in outputs] == [float(output.loss) for output in expected]
    assert weights_of(one) == weights_of(two) and two.embedding.last_step == 16


def test_steps_count_on_from_a_checkpoint_loaded_later():
    model = make_model("lazy_adam", torch.float64)
    pipeline = make_pipeline(model)
    model.embedding.last_step = 40  # as loading one sets it
    list(pipeline.run(make_batches(2)))
    assert model.embedding.last_step == 42


def test_a_pipeline_with_batches_in_flight_ends_where_another_goes_on():
    model = make_model()
    first, second = (make_pipeline(model, techniques=Techniques.parse("pipeline_depth=3")) for _ in range(2))
    source = iter(make_batches(6))
    first.progress(source)
    next(second.run(make_batches(2)))
    with pytest.raises(RuntimeError, match="another pipeline took over its tables"):
        first.progress(source)


def _gradient_of_people(model: RecModel, batch):
    """Ids and row gradients of one batch for the table `people`, by autograd through the store's own oracle."""
    bag, size = batch.feature_lengths()[0], batch.size
    user_ids = batch.ids[: int(bag.sum())]
    unique, places = torch.unique(user_ids, return_inverse=True)
    rows = model.embedding.full_weight("people", unique).requires_grad_()
    offsets = torch.cat([torch.zeros(1, dtype=torch.int64), bag.cumsum(0)[:-1]])
    user = nn.functional.embedding_bag(places, rows, offsets, mode="sum")
    others = {f: _mean_bag(model, batch, i) for i, f in enumerate(FEATURES[1:], start=1)}

    class Stacked:
        def stack(self, features):
            return torch.stack([user if f == "user" else others[f] for f in features], dim=1)

    losses = model.dense(batch, Stacked()).losses
    (gradient,) = torch.autograd.grad((losses * batch.weights).sum() / batch.weights.double().sum(), rows)
    assert gradient.shape == (len(unique), DIM) and size == losses.numel()
    return unique, gradient


def _mean_bag(model: RecModel, batch, feature: int) -> torch.Tensor:
    lengths = batch.feature_lengths()
    begin = int(lengths[:feature].sum())
    ids = batch.ids[begin : begin + int(lengths[feature].sum())]
    offsets = torch.cat([torch.zeros(1, dtype=torch.int64), lengths[feature].cumsum(0)[:-1]])
    rows = model.embedding.full_weight("things", ids)
    return nn.functional.embedding_bag(torch.arange(len(ids)), rows, offsets, mode="mean")


def test_what_the_loss_does_not_reach_stays_as_it_is():
    model = odd_model()
    pipeline = Pipeline(model, torch.optim.AdamW(model.dense.parameters(), lr=0.1, weight_decay=0.5))
    list(pipeline.run(make_batches(4)))
    assert torch.equal(model.dense.unused, torch.ones(3)) and torch.equal(model.dense.frozen, torch.ones(DIM))
    assert not torch.equal(model.dense.used, torch.full((DIM,), 0.5))
    for feature in ("user", "tag"):  # tables that the dense part never looked at
        exported = model.embedding.export(feature)
        fresh = odd_model().embedding.full_weight(feature, exported["ids"])
        assert torch.equal(torch.as_tensor(exported["weight"]), fresh)


@pytest.mark.parametrize("mode", [True, False], ids=["training", "evaluating"])
def test_evaluation_runs_without_dropout_and_gives_the_mode_back(mode):
    model = odd_model()
    model.dense.train(mode)
    pipeline, batches = Pipeline(model, torch.optim.SGD(model.dense.parameters(), lr=0.1)), make_batches(3)
    first, second = pipeline.evaluate(batches)[1], pipeline.evaluate(batches)[1]
    assert (first == second).all()
    assert model.dense.training is mode


def test_predictions_are_those_before_the_update():
    pipeline, batch = make_pipeline(), make_batches(1)[0]
    labels, expected = pipeline.evaluate([batch])
    output = pipeline.progress(iter([batch]))
    torch.testing.assert_close(output.predictions, torch.from_numpy(expected), rtol=0, atol=1e-7)
    assert output.labels.tolist() == labels.tolist()


def test_dropout_draws_the_same_numbers_in_every_order():
    """The random generator is a resource: FORWARD of t+1 never comes before FORWARD of t."""
    learnt = []
    for executor in (Inline(), Shuffled(0), Shuffled(1)):
        torch.manual_seed(11)
        model = odd_model()
        schedule = build(Techniques()).required_only()
        optimizer_ = torch.optim.SGD(model.dense.parameters(), lr=0.1)
        list(Pipeline(model, optimizer_, schedule=schedule, executor=executor).run(make_batches(8)))
        learnt.append(model.dense.used.detach().clone())
    assert torch.equal(learnt[0], learnt[1]) and torch.equal(learnt[0], learnt[2])


def test_an_interrupted_step_leaves_nothing_for_the_next_pipeline():
    """Ctrl-C between BACKWARD and UPDATE: the pipeline stops, and its gradients do not enter another one's step."""

    class Interrupted(LocalTransport):
        def all_reduce(self, channel, flat):
            raise KeyboardInterrupt

    batches = make_batches(4)
    expected, _ = train(batches)
    model = make_model()
    with pytest.raises(KeyboardInterrupt):
        list(make_pipeline(model, transport=Interrupted()).run(batches))
    assert any(p.grad is not None for p in model.dense.parameters())
    broken = make_pipeline(model, transport=Interrupted())
    with pytest.raises(KeyboardInterrupt):
        next(broken.run(batches))
    with pytest.raises(RuntimeError, match="KeyboardInterrupt"):
        next(broken.run(batches))
    list(make_pipeline(model).run(batches))
    assert weights_of(model) == weights_of(expected)


def test_the_update_takes_what_the_transport_gives_back():
    class Doubled(LocalTransport):
        def all_reduce(self, channel, flat):
            return 2 * flat

    moved = []
    for transport in (LocalTransport(), Doubled()):
        model = make_model()
        before = model.dense.bottom[0].weight.detach().clone()
        sgd = torch.optim.SGD(model.dense.parameters(), lr=0.5)
        list(Pipeline(model, sgd, transport=transport).run(make_batches(1)))
        moved.append(model.dense.bottom[0].weight.detach() - before)
    torch.testing.assert_close(moved[1], 2 * moved[0])
    assert moved[0].abs().sum() > 0


def test_a_schedule_that_looks_ahead_equals_plain():
    """LOAD two batches ahead, H2D one: entries with `ahead`, run in list order and shuffled, over two epochs."""
    plain = build(Techniques())
    ahead = {Stage.LOAD: 2, Stage.H2D: 1}
    entries = tuple(replace(entry, ahead=ahead.get(entry.stage, 0)) for entry in plain.entries)
    schedule = replace(plain, name="ahead", entries=entries, edges=required_edges(entries, Shape()))
    validate(schedule, direct_accesses)
    for executor in (Inline(), Shuffled(3)):
        expected, model = make_model(), make_model()
        reference, pipeline = make_pipeline(expected), make_pipeline(model, schedule=schedule, executor=executor)
        for epoch in range(2):
            batches = make_batches(5, seed=epoch)
            assert [o.batch for o in pipeline.run(batches)] == [o.batch for o in reference.run(batches)]
        assert weights_of(model) == weights_of(expected)


def test_a_built_schedule_is_validated(monkeypatch):
    sound = build(Techniques())
    monkeypatch.setattr(builders, "plain", lambda shape: sound.without(*sound.edges))
    with pytest.raises(InvalidSchedule, match="required edge missing"):
        build(Techniques())


def test_none_is_no_end_of_the_data():
    batches = make_batches(3)
    with pytest.raises(AttributeError):
        list(make_pipeline().run([batches[0], None, *batches[1:]]))


def test_a_pass_keeps_to_its_own_loader():
    pipeline = make_pipeline()
    passing = pipeline.run(make_batches(4))
    next(passing)
    pipeline.progress(iter(make_batches(1, seed=5)))
    assert len(list(passing)) == 3


def test_dlrm_needs_every_feature_it_names():
    model = make_model()
    wider = RecModel(model.embedding, DLRM(3, (*FEATURES, "city"), DIM, bottom=(8,), top=(8,)))
    with pytest.raises(UserError, match="'city' is no pooled feature"):
        list(make_pipeline(wider).run(make_batches(1)))
