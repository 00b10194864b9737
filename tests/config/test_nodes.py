import re
import sys

import pytest

from rlvr.config import nodes
from tests.support.composed import check

pytestmark = pytest.mark.usefixtures("composing")

VLLM = f"rollout=vllm rollout.engine.python={sys.executable}"
RAY = f"rollout=ray rollout.engine.python={sys.executable}"
TWO = "cluster=slurm cluster.nodes=2 cluster.ranks=2 cluster.gpus=1"


def test_nodes_and_ranks_by_hand() -> None:
    for cluster, training, ranks in (
        ({"ranks": 8, "nodes": 3, "sampling_nodes": 1}, 2, 4),
        ({"ranks": 8, "nodes": 2, "sampling_nodes": 0}, 2, 4),
    ):
        assert (nodes.training_nodes(cluster), nodes.ranks_of_node(cluster)) == (training, ranks)


def test_what_cannot_run_is_refused() -> None:
    for words, message in (
        (f"{RAY} {TWO} cluster.sampling_nodes=2", "leave none to train on. Pass cluster.nodes=3 or more"),
        (f"{VLLM} {TWO} cluster.ranks=3", "do not divide over cluster.nodes=2 nodes. Pass cluster.ranks=2"),
        (f"{VLLM} {TWO} cluster.ranks=4", "each with a GPU of its own, and cluster.gpus=1 on each node"),
        (f"{VLLM} {TWO} cluster.pack=2", "cluster.pack puts several runs on one node"),
        (f"{VLLM} {TWO} cluster.shard_over=rack", "cluster.shard_over=rack: job or node is expected."),
        (
            f"{RAY} {TWO} cluster.sampling_nodes=1 cluster.shard_over=node",
            "cluster.shard_over=node has no effect: this run trains on one node. Drop it.",
        ),
    ):
        with pytest.raises(ValueError, match=re.escape(message)):
            check(*words.split())
    check(*f"{VLLM} {TWO} cluster.shard_over=node".split())


def test_what_a_file_of_the_cluster_says_of_copies_is_no_error_on_one_node() -> None:
    cluster = {"ranks": 1, "nodes": 1, "sampling_nodes": 0, "pack": 1, "gpus": 1, "shard_over": "node"}
    for trains in (True, False):
        nodes.check(cluster, trains=trains, usual={"cluster.shard_over": "node"}.get)
        with pytest.raises(ValueError, match="has no effect"):
            nodes.check(cluster, trains=trains, usual={"cluster.shard_over": "job"}.get)
