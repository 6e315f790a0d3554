"""Numba kernels of the reordering: a co-occurrence graph from batches of ids, and its communities.

All are single-threaded, and what they return depends on nothing but what they are given: ties go to what comes first.
"""

from __future__ import annotations

import numpy as np
from numba import uint64

from nestlab.jit import inlined, jit
from nestlab.splitmix import mix


@jit
def distinct(nodes, ends, stamps, stamp, unique, unique_ends):
    """The distinct nodes of each batch, in order of first appearance; negative ones are passed by.

    Args:
        nodes, ends: [m] and [batches] int64, the nodes batch by batch, and where each batch ends.
        stamps: [n] int64, written: the last batch that showed the node, counted from `stamp` of the first batch here.
        unique, unique_ends: [m] and [batches] int64, the results.
    """
    count, begin = 0, 0
    for b in range(ends.size):
        for i in range(begin, ends[b]):
            node = nodes[i]
            if node >= 0 and stamps[node] != stamp + b:
                stamps[node] = stamp + b
                unique[count] = node
                count += 1
        begin = ends[b]
        unique_ends[b] = count


@inlined
def _shuffle(nodes, state):
    """In place, by a generator of its own (Fisher and Yates; SplitMix64 gives the numbers)."""
    for i in range(nodes.size - 1, 0, -1):
        state += uint64(0x9E3779B97F4A7C15)
        j = np.int64(((mix(state) >> uint64(32)) * uint64(i + 1)) >> uint64(32))
        nodes[i], nodes[j] = nodes[j], nodes[i]


@jit
def pair_up(unique, ends, numbers, seed, quota, n, keys, weights):
    """Pairs of the distinct nodes of each batch: all of them, or about `quota` where that is fewer.

    A batch of u nodes with more pairs than `quota` is laid out as a ring in random order, and each node is paired with
    the next k = max(1, quota // u): every node keeps 2k of its u − 1 neighbours, so a pair weighs (u − 1) / 2k, and the
    expected weight of any pair is 1.

    Args:
        unique, ends: from `distinct`; the order within a batch may change.
        numbers: [batches] int64, which batch of the data each is: the ring depends on it and on `seed` uint64.
        keys, weights: int64 and float64 of the size that `pairs_in` says: smaller node · n + larger node.
    """
    count, begin = 0, 0
    for b in range(ends.size):
        nodes, begin = unique[begin : ends[b]], ends[b]
        u = nodes.size
        ring = u * (u - 1) // 2 > quota
        reach = max(1, quota // u) if ring else u - 1
        if ring:
            _shuffle(nodes, mix(seed + uint64(numbers[b])))
        weight = (u - 1) / (2 * reach) if ring else 1.0
        for i in range(u):
            for k in range(1, (reach if ring else u - 1 - i) + 1):
                one, two = nodes[i], nodes[(i + k) % u]
                keys[count] = min(one, two) * n + max(one, two)
                weights[count] = weight
                count += 1


@jit
def neighbours(keys, weights, starts, ends, others, shares):
    """The graph as lists of neighbours, both ways; n = starts.size − 1.

    Args:
        keys, weights: [E] int64 and float64, each pair once: smaller node · n + larger node.
        starts, ends: [n+1] and [n] int64, written: where the list of each node begins and ends.
        others, shares: [2E] int32 and float32, written: the lists.
    """
    n = ends.size
    starts[:] = 0
    for key in keys:
        starts[key // n + 1] += 1
        starts[key % n + 1] += 1
    for node in range(n):
        starts[node + 1] += starts[node]
        ends[node] = starts[node]
    for e in range(keys.size):
        one, two = keys[e] // n, keys[e] % n
        others[ends[one]], shares[ends[one]] = two, weights[e]
        others[ends[two]], shares[ends[two]] = one, weights[e]
        ends[one] += 1
        ends[two] += 1


@inlined
def _root(roots, node):
    while roots[node] != node:
        roots[node] = roots[roots[node]]  # path halving
        node = roots[node]
    return node


@inlined
def _gather(others, shares, begin, end, roots, self, sums, touched, count):
    """Adds a list of neighbours to `sums` by the communities they are in now; notes new ones in `touched`."""
    for e in range(begin, end):
        root = _root(roots, others[e])
        if root != self:
            if sums[root] == 0.0:
                touched[count] = root
                count += 1
            sums[root] += shares[e]
    return count


@inlined
def _best(sums, touched, count, strengths, own, total):
    """The neighbour whose community gains most in modularity by a merger, or −1 where none gains."""
    best, most = -1, 0.0
    for i in range(count):
        gain = sums[touched[i]] - own * strengths[touched[i]] / total
        if gain > most:
            best, most = touched[i], gain
    return best


@jit
def aggregate(order, starts, others, shares, strengths, parents, first_child, sibling):
    """Communities by incremental aggregation, as Rabbit order finds them (Arai et al., IPDPS 2016), on one thread.

    Nodes come in `order` (ascending strength). Each takes the lists of neighbours of those that joined it, sums them by
    community, and joins the neighbour with the largest gain in modularity, if there is a gain; else it stays on top. A
    list is read once for every level of the tree: near-linear in the number of pairs.

    Args:
        order: [n] int64.
        starts, others, shares: [n+1] int64, [2E] int32, [2E] float32, from `neighbours`.
        strengths: [n] float64, the weight of each node's pairs; grows by what joins.
        parents: [n] int32, written: whom each node joined, −1 for those on top.
        first_child, sibling: [n] int32, written: the same trees as lists; −1 ends a list.
    """
    n = order.size
    total = strengths.sum()  # twice the weight of all pairs
    roots, done = np.arange(n).astype(np.int32), np.zeros(n, np.bool_)
    sums, touched = np.zeros(n), np.empty(n, np.int32)
    list_start, list_end = np.zeros(n, np.int64), np.zeros(n, np.int64)
    pool_others, pool_shares = np.empty(others.size, np.int32), np.empty(others.size, np.float32)
    stored, used, lists = np.empty(n, np.int32), 0, 0
    parents[:] = -1
    first_child[:] = -1
    sibling[:] = -1
    for node in order:
        count = _gather(others, shares, starts[node], starts[node + 1], roots, node, sums, touched, 0)
        child = first_child[node]
        while child >= 0:
            begin, end = list_start[child], list_end[child]
            count = _gather(pool_others, pool_shares, begin, end, roots, node, sums, touched, count)
            list_end[child] = begin  # never read again
            child = sibling[child]
        best = _best(sums, touched, count, strengths, strengths[node], total)
        if best >= 0:
            parents[node] = roots[node] = best
            strengths[best] += strengths[node]
            sibling[node], first_child[best] = first_child[best], node
            if not done[best]:  # who is done reads no more lists
                if used + count > pool_others.size:
                    # What is still to be read is never more than there are pairs, both ways: it fits.
                    lists, used = _compact(stored, lists, list_start, list_end, pool_others, pool_shares)
                list_start[node] = used
                for i in range(count):
                    if touched[i] != best:
                        pool_others[used], pool_shares[used] = touched[i], sums[touched[i]]
                        used += 1
                list_end[node] = used
                stored[lists] = node
                lists += 1
        for i in range(count):
            sums[touched[i]] = 0.0
        done[node] = True


@inlined
def _compact(stored, lists, list_start, list_end, pool_others, pool_shares):
    """Moves the lists that are still to be read to the front of the pool; how many, and where they end."""
    kept, used = 0, 0
    for i in range(lists):
        node = stored[i]
        begin, end = list_start[node], list_end[node]
        if end > begin:
            list_start[node] = used
            for e in range(begin, end):
                pool_others[used], pool_shares[used] = pool_others[e], pool_shares[e]
                used += 1
            list_end[node] = used
            stored[kept] = node
            kept += 1
    return kept, used


@jit
def hot_first(order, parents, counts, first_child, sibling, means):
    """Puts the children of every node in descending order of `means`; equal ones by number.

    Args:
        order: [n] int64, every node before the trees below it, from `walk`.
        counts: [n] int64, how often each node occurs; means [n] float64, written: on average in the tree from it on.
    """
    sums, sizes = counts.astype(np.float64), np.ones(order.size)
    for i in range(order.size - 1, -1, -1):
        node = order[i]
        means[node] = sums[node] / sizes[node]
        if parents[node] >= 0:
            sums[parents[node]] += sums[node]
            sizes[parents[node]] += sizes[node]
    first_child[:] = -1
    for node in np.argsort(-means, kind="mergesort"):
        if parents[node] >= 0:  # put in front of the hotter ones: `walk` begins with the last of a list
            sibling[node], first_child[parents[node]] = first_child[parents[node]], node


@jit
def walk(tops, first_child, sibling, out, sizes):
    """Writes to out [n] int64 the trees from `tops` [t] int64 on, one after another: a node, then the trees below it.

    sizes [t] int64: how many nodes each tree has. Neighbours in a tree are neighbours in `out`, at every level.
    """
    stack, count = np.empty(out.size + 1, np.int64), 0
    for t in range(tops.size):
        before = count
        stack[0], depth = tops[t], 1
        while depth > 0:
            depth -= 1
            node = stack[depth]
            out[count] = node
            count += 1
            child = first_child[node]
            while child >= 0:
                stack[depth] = child
                depth += 1
                child = sibling[child]
        sizes[t] = count - before
