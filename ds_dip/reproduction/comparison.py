"""What the paper leaves open, or what is simulated otherwise than there: the sentence that tells it, by name."""

from __future__ import annotations

from collections.abc import Mapping

ASSUMPTIONS: Mapping[str, str] = {
    "memory": "The paper does not say what its systems compute again in backwards. Here each keeps, module by module, "
    "as much as a device's memory lets it, and whole microbatches of up to 48 images let baselines keep less than cut "
    "ones do. Changed: devices without a memory limit, so that nothing is computed again.",
    "data": "The paper's mix of data, which decides how uneven microbatches are, is not public; the figures of public "
    "data sets stand for it. Changed: only sequences of which the heaviest takes 4.15 times as long as the lightest, "
    "as the paper says of its own.",
    "batch": "The paper does not say its microbatches a batch; the fewer there are, the more of an iteration is the "
    "pipeline's filling and draining. Changed: half as many microbatches.",
    "fsdp": "FSDP is an analytic cost and an optimistic one: gathering hides behind computing without loss. Changed: "
    "nothing of its gathering and scattering is hidden.",
    "collectives": "Collectives of the pipelines' tensor parallelism hide behind nothing, and FSDP has none. Changed: "
    "they take no time.",
    "ranges": "The paper gives ranges, and not which models and baselines are at their ends.",
    "static": "The paper leaves open how a static order treats sub-microbatches; here those of a microbatch share its "
    "place in interleaved 1F1B.",
    "steps": "Memory strategies are the best by module in every step but the last, which adds only what single stages "
    "can do beyond that.",
    "h20": "The paper's H20, with 6.7 times less arithmetic than its H800, takes 1.5 times as long for VLM-S: the two "
    "cannot have had the same batch, and neither batch is given. Seconds on H20 are not comparable; ratios are.",
    "load": "The paper's course of images over its iterations is not public. Here packed documents are drawn with more "
    "and less weight on images, up to the peak and back. Changed: the iteration with the mean number of images.",
    "spread": "The paper does not say among which schedules it takes the best and the worst, nor whether its 15.4 and "
    "5.1 % are of whole and cut microbatches, as is taken here, or of 12 and 4 images. Here they are random orders of "
    "segments, each interleaved by the dual queue. Changed: random orders of whole microbatches only.",
    "kernels": "Small sub-microbatches cost what starting operators costs; that kernels themselves are less efficient "
    "on small inputs is not in a roofline.",
    "fluctuation": "The paper does not say how it measures that memory comes and goes: here by how far apart the most "
    "and the least of the middle half of an iteration are, the mean over ranks. Changed: the standard deviation there.",
    "solver": "OR-tools' CP-SAT with a time limit far below the paper's 30 minutes, started from a schedule that was "
    "found, on one core.",
}
