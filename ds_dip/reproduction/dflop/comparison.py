"""What DFLOP's paper leaves open, or what is simulated otherwise than there: the sentence that tells it, by name."""

from __future__ import annotations

from collections.abc import Mapping

ASSUMPTIONS: Mapping[str, str] = {
    "baselines": "The paper does not say how its baselines were tuned. Here each has the best of 48 layouts of a grid "
    "by simulated batches, computes again where that lets it fit, and pays nothing that a roofline does not know.",
    "objective": "DFLOP's objective sees neither the reduction of gradients and the optimizer's step, nor that samples "
    "of a microbatch differ, nor what 1F1B waits for. Changed: the layout, balance and order that ours chooses.",
    "ranges": "The paper gives ranges over its cases, and not which models, data and baselines are at their ends, nor "
    "which of the two reductions of idle time is over which baseline.",
    "data": "The mix of images, several images and videos follows the published counts; lengths of texts, videos and "
    "sounds are assumptions, and nothing is packed or truncated.",
    "network": "Where there is more than one node all messages but those of tensor parallelism go over the network, "
    "replicas inside of a node included.",
    "exchanges": "Longest first is what DFLOP falls back to; its first choice, an exact solver, gets about a second. "
    "Changed: with the exchanges that ds_dip makes behind it.",
    "clock": "The paper does not say what its time includes; here all layouts are in arrays already, and curves of "
    "costs are profiled. Changed: with listing the layouts.",
}
