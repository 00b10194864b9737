"""Nodes and ranks of a run: counted by hand, and combinations that are refused before launch."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from rlvr.config import nodes
from tests.support.composed import check

pytestmark = pytest.mark.usefixtures("composing")

VLLM = ("rollout=vllm", f"rollout.engine.python={sys.executable}")
RAY = ("rollout=ray", f"rollout.engine.python={sys.executable}")
TWO = ("cluster=slurm", "cluster.nodes=2", "cluster.ranks=2", "cluster.gpus=1")


@pytest.mark.parametrize(
    ("cluster", "sampling", "training", "ranks"),
    [
        ({"ranks": 8, "nodes": 3, "sampling_nodes": 1}, 1, 2, 4),
        ({"ranks": 8, "nodes": 2, "sampling_nodes": 0}, 0, 2, 4),
        ({"ranks": 6, "nodes": 2}, 0, 2, 3),  # of an older version
    ],
)
def test_nodes_and_ranks_by_hand(cluster: dict[str, Any], sampling: int, training: int, ranks: int) -> None:
    assert (nodes.sampling_nodes(cluster), nodes.training_nodes(cluster)) == (sampling, training)
    assert nodes.ranks_of_node(cluster) == ranks


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ((*RAY, *TWO, "cluster.sampling_nodes=2"), "leave none to train on. Pass cluster.nodes=3 or more"),
        ((*VLLM, *TWO, "cluster.ranks=3"), "do not divide over cluster.nodes=2 nodes. Pass cluster.ranks=2"),
        ((*VLLM, *TWO, "cluster.ranks=4"), "each with a GPU of its own, and cluster.gpus=1 on each node"),
        ((*VLLM, *TWO, "cluster.pack=2"), "cluster.pack puts several runs on one node"),
        ((*VLLM, *TWO, "cluster.shard_over=rack"), "cluster.shard_over=rack is not understood. Pass job or node."),
        (
            (*RAY, *TWO, "cluster.sampling_nodes=1", "cluster.shard_over=node"),
            "cluster.shard_over=node has no effect: this run trains on one node. Drop it.",
        ),
    ],
)
def test_what_cannot_run_is_refused(overrides: tuple[str, ...], message: str) -> None:
    with pytest.raises(ValueError, match="cluster") as error:
        check(*overrides)
    assert message in str(error.value)


def test_a_copy_of_the_weights_on_each_node_needs_nodes() -> None:
    check(*VLLM, *TWO, "cluster.shard_over=node")


def test_what_a_file_of_the_cluster_says_of_copies_is_no_error_on_one_node() -> None:
    cluster = {"ranks": 1, "nodes": 1, "sampling_nodes": 0, "pack": 1, "gpus": 1, "shard_over": "node"}
    for trains in (True, False):
        nodes.check(cluster, trains=trains, usual={"cluster.shard_over": "node"}.get)
        with pytest.raises(ValueError, match="has no effect"):
            nodes.check(cluster, trains=trains, usual={"cluster.shard_over": "job"}.get)
