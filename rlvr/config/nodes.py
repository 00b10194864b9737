"""Nodes and ranks of a run, counted from the group `cluster` of its config."""

from collections.abc import Callable, Mapping
from typing import Any


def training_nodes(cluster: Mapping[Any, Any]) -> int:
    """How many of a run's nodes, the first ones, have ranks: at least one, since `check` raises an error for none."""
    return max(1, cluster["nodes"] - cluster["sampling_nodes"])


def ranks_of_node(cluster: Mapping[Any, Any]) -> int:
    """Number of ranks on each node that has any."""
    return cluster["ranks"] // training_nodes(cluster)


def check(cluster: Mapping[Any, Any], *, trains: bool, usual: Callable[[str], object]) -> None:
    """Raises ValueError unless ranks divide over the nodes and, if there are GPUs, each rank has one of its own, or if
    `cluster.shard_over` has no effect but differs from its usual value.

    trains: false for an evaluation. usual: the value of a knob in the chosen file.
    """
    num_nodes, ranks, pack, gpus = (cluster[key] for key in ("nodes", "ranks", "pack", "gpus"))
    num_sampling, num_training = cluster["sampling_nodes"], training_nodes(cluster)
    if num_sampling >= num_nodes:
        raise ValueError(
            f"cluster.sampling_nodes={num_sampling} of cluster.nodes={num_nodes} leave none to train on. "
            f"Pass cluster.nodes={num_sampling + 1} or more: nodes counts both."
        )
    if ranks % num_training:
        less = f" less cluster.sampling_nodes={num_sampling}" if num_sampling else ""
        raise ValueError(
            f"cluster.ranks={ranks} processes do not divide over cluster.nodes={num_nodes}{less} nodes. "
            f"Pass cluster.ranks={num_training * max(1, ranks // num_training)}: ranks counts those of all nodes."
        )
    has_no_effect = cluster["shard_over"] == "node" and (num_training == 1 or not trains)
    if has_no_effect and usual("cluster.shard_over") != "node":
        reason = "this run trains on one node" if trains else "an evaluation trains nothing"
        raise ValueError(f"cluster.shard_over=node has no effect: {reason}. Drop it.")
    if num_nodes > 1 and pack > 1:
        raise ValueError("cluster.pack puts several runs on one node, cluster.nodes one run on several: pass one.")
    needed = ranks_of_node(cluster) * pack
    if ranks > 1 and 0 < gpus < needed:
        packed = f" of cluster.pack={pack} runs" if pack > 1 else ""
        where = " on each node" if num_nodes > 1 else ""
        raise ValueError(
            f"cluster.ranks={ranks} processes{packed}, each with a GPU of its own, and cluster.gpus="
            f"{gpus}{where}. Pass cluster.gpus={needed}, or fewer ranks."
        )
