"""What a tiered collection returns is what torchrec's returns for equal weights; what is not supported is refused."""

from __future__ import annotations

import functools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from peers import IDS, TIERS, bag_collections, bags, kjt, pairs, sequence_collections, sequences

from nestlab.embedding import SGD, Tiers
from nestlab.errors import UserError


@pytest.mark.parametrize("tiers", TIERS)
@pytest.mark.parametrize(("pooling", "weighted"), [("SUM", False), ("MEAN", False), ("SUM", True)])
def test_bags_are_torchrecs(tiers, pooling, weighted):
    """Bit-equal: the same sums in the same order. Broken once: the rows of two features swapped in `_joined`."""
    ours, theirs = bag_collections(pairs()["sgd"], tiers, weighted, pooling)
    for seed in range(6):
        mine, other = ours(kjt(seed, weighted)), theirs(kjt(seed, weighted))
        assert mine.keys() == other.keys() == ["user@user", "seen", "bought", "tag", "user@tag"]
        assert mine.offset_per_key() == other.offset_per_key() and mine.length_per_key() == other.length_per_key()
        assert mine.values().shape == other.values().shape and torch.equal(mine.values(), other.values())
        assert torch.equal(mine["bought"], other["bought"])


@pytest.mark.parametrize("tiers", TIERS)
def test_sequences_are_torchrecs(tiers):
    ours, theirs = sequence_collections(pairs()["sgd"], tiers)
    assert ours.embedding_names_by_table() == theirs.embedding_names_by_table()
    assert ours.embedding_dim() == theirs.embedding_dim() and ours.need_indices()
    for seed in range(6):
        mine, other = ours(kjt(seed)), theirs(kjt(seed))
        assert list(mine) == list(other)
        for name, jagged in other.items():
            assert torch.equal(mine[name].values(), jagged.values())
            assert torch.equal(mine[name].lengths(), jagged.lengths())
            assert torch.equal(mine[name].offsets(), jagged.offsets())
            assert torch.equal(mine[name].weights(), jagged.weights())


@functools.cache
def cached_bags():
    ours, theirs = bag_collections(pairs()["sgd"])
    return ours.eval(), theirs


@given(
    lengths=st.integers(1, 5).flatmap(lambda size: st.lists(st.integers(0, 3), min_size=5 * size, max_size=5 * size)),
    order=st.permutations(["seen", "user", "bought", "tag", "extra"]),
    ids=st.randoms(use_true_random=False),
)
@settings(max_examples=40, deadline=None)
def test_any_lengths_and_any_order_of_keys(lengths, order, ids):
    """Also bags that are all empty, and a key that no table asks for."""
    from torchrec import KeyedJaggedTensor

    chosen = [ids.randrange(IDS) for _ in range(sum(lengths))]
    batch = KeyedJaggedTensor(
        keys=order, values=torch.tensor(chosen, dtype=torch.int64), lengths=torch.tensor(lengths, dtype=torch.int64)
    )
    ours, theirs = cached_bags()
    mine, other = ours(batch), theirs(batch)
    assert mine.values().shape == other.values().shape and torch.equal(mine.values(), other.values())


def test_a_batch_of_no_sample():
    """torchrec's own module fails on it."""
    from torchrec import KeyedJaggedTensor

    empty = KeyedJaggedTensor(
        keys=["seen", "user", "bought", "tag"],
        values=torch.empty(0, dtype=torch.int64),
        lengths=torch.empty(0, dtype=torch.int64),
        stride=0,
    )
    bag, _ = bag_collections(pairs()["sgd"])
    assert bag(empty).values().shape == (0, 32)
    bag(empty).values().sum().backward()
    assert sequence_collections(pairs()["sgd"])[0](empty)["seen"].values().shape == (0, 8)


def test_offsets_and_narrow_ids_are_taken():
    from torchrec import KeyedJaggedTensor

    ours, theirs = cached_bags()
    full = kjt(4)
    narrow = KeyedJaggedTensor(full.keys(), full.values().to(torch.int32), offsets=full.offsets().to(torch.int32))
    assert torch.equal(ours(narrow).values(), theirs(narrow).values())
    wide = sequence_collections(pairs()["sgd"])[0](narrow)
    assert wide["seen"].lengths().dtype == torch.int32


def test_weights_of_ids_get_their_gradient():
    ours, theirs = bag_collections(pairs()["sgd"], weighted=True)
    grads = []
    for module in (ours, theirs):
        batch = kjt(1, weighted=True)
        batch.weights().requires_grad_()
        module(batch).values().square().sum().backward()
        grads.append(batch.weights().grad)
    torch.testing.assert_close(*grads)


def test_it_stands_where_torchrecs_module_stands():
    from torchrec.modules.embedding_modules import EmbeddingBagCollectionInterface
    from torchrec.optim.fused import FusedOptimizerModule
    from torchrec.optim.keyed import KeyedOptimizer

    ours, theirs = bag_collections(pairs()["sgd"])
    assert isinstance(ours, EmbeddingBagCollectionInterface) and isinstance(ours, FusedOptimizerModule)
    assert isinstance(ours.fused_optimizer, KeyedOptimizer)
    assert [c.name for c in ours.embedding_bag_configs()] == [c.name for c in theirs.embedding_bag_configs()]
    assert ours.is_weighted() is False and ours.device == theirs.device
    assert list(ours.parameters()) == [] and ours.store.groups[0].dim == 8
    assert "sgd" in repr(ours.fused_optimizer).lower()


def test_float64_on_request():
    from nestlab.interop.torchrec import TieredEmbeddingBagCollection

    module = TieredEmbeddingBagCollection(bags(), SGD(0.1), dtype=torch.float64)
    assert module(kjt(1)).values().dtype == torch.float64


def test_initial_weights_lie_within_torchrecs_bounds():
    from nestlab.interop.torchrec import TieredEmbeddingBagCollection

    first, second = (TieredEmbeddingBagCollection(bags(), SGD(0.1), seed=seed) for seed in (0, 1))
    weight = first.store.full_weight("user", torch.arange(1000))
    bound = IDS**-0.5
    assert weight.abs().max() <= bound and weight.abs().max() > 0.99 * bound and weight.std() > 0.5 * bound
    assert not torch.equal(weight, second.store.full_weight("user", torch.arange(1000)))


def custom(**options) -> list:
    from torchrec import EmbeddingBagConfig

    return [EmbeddingBagConfig(name="t", embedding_dim=4, num_embeddings=9, feature_names=["user"], **options)]


def refused_configs():
    from torchrec import PoolingType
    from torchrec.types import DataType

    return [
        (custom(data_type=DataType.FP16), {}, "data_type is FP16"),
        (custom(init_fn=torch.nn.init.zeros_), {}, "init_fn cannot fill"),
        (custom(weight_init_min=0.0, weight_init_max=1.0), {}, "from 0.0 to 1.0"),
        (custom(pooling=PoolingType.NONE), {}, "use TieredEmbeddingCollection"),
        (custom(pooling=PoolingType.MEAN), {"is_weighted": True}, "no weighted mean"),
        (custom() + custom(), {}, "'t' appears twice"),
        ([], {}, "no tables"),
        (custom(), {"tiers": Tiers("slot_cache", "oracle", 10)}, "oracle policy looks ahead"),
    ]


@pytest.mark.parametrize("number", range(8))
def test_tables_that_are_refused(number):
    from nestlab.interop.torchrec import TieredEmbeddingBagCollection

    tables, options, message = refused_configs()[number]
    with pytest.raises(UserError, match=message) as caught:
        TieredEmbeddingBagCollection(tables, SGD(0.1), **options)
    assert "\n" not in str(caught.value)


def test_optimizers_of_torch_are_refused():
    from nestlab.interop.torchrec import TieredEmbeddingBagCollection

    for wrong in (torch.optim.SGD, torch.optim.SGD([torch.zeros(1)], lr=0.1), None):
        with pytest.raises(UserError, match="SGD, Adagrad, RowWiseAdagrad or LazyAdam"):
            TieredEmbeddingBagCollection(bags(), wrong)


def test_sequences_of_two_dims_are_refused():
    from torchrec import EmbeddingConfig

    from nestlab.interop.torchrec import TieredEmbeddingCollection

    other = EmbeddingConfig(name="wide", embedding_dim=16, num_embeddings=5, feature_names=["w"])
    with pytest.raises(UserError, match="one embedding_dim"):
        TieredEmbeddingCollection([*sequences(), other], SGD(0.1))


def test_batches_that_are_refused():
    from torchrec import KeyedJaggedTensor

    ours, _ = bag_collections(pairs()["sgd"], weighted=True)
    with pytest.raises(UserError, match=r"lacks tag \(table tag\); it has seen, user, bought"):
        ours(kjt(1, weighted=True, keys=("seen", "user", "bought")))
    with pytest.raises(UserError, match="is_weighted=True, but"):
        ours(kjt(1))
    varying = KeyedJaggedTensor(
        keys=["user", "seen", "bought", "tag"],
        values=torch.arange(5),
        lengths=torch.ones(5, dtype=torch.int64),
        weights=torch.ones(5),
        stride_per_key_per_rank=[[1], [1], [1], [2]],
    )
    with pytest.raises(UserError, match="batch size varies by feature"):
        ours(varying)
    assert ours.store.counters.batches == 0 and len(ours.store.export("user")["ids"]) == IDS
