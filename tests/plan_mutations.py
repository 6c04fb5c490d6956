"""Ways to change a plan: its instructions, messages, batch and numbers, or any value of its record."""

from __future__ import annotations

import hashlib
import json
import random
from dataclasses import replace

import msgpack

from ds_dip.planner import StepPlan
from ds_dip.programs.program import Backward, Forward, Message, PostReceive, PostSend, WaitReceive, WaitSend


def of_instructions(plan: StepPlan, rng: random.Random) -> StepPlan:
    """One rank's instructions swapped, dropped, doubled or moved, or one given to another rank."""
    programs = list(plan.programs)
    rank = rng.randrange(len(programs))
    body = list(programs[rank].instructions)
    place, other = rng.randrange(len(body)), rng.randrange(len(body))
    match rng.randrange(6):
        case 0:
            body[place], body[other] = body[other], body[place]
        case 1:
            del body[place]
        case 2:
            body.insert(other, body[place])
        case 3:
            body.insert(other, body.pop(place))
        case 4:  # a small step: of these many are as good as before
            body.insert(max(0, place - rng.randint(1, 3)), body.pop(place))
        case _:
            peer = rng.randrange(len(programs))
            theirs = list(programs[peer].instructions)
            theirs.insert(rng.randrange(len(theirs) + 1), body[place])
            programs[peer] = replace(programs[peer], instructions=tuple(theirs))
            body = [i for i in body if i != body[place]] if peer != rank else theirs
    programs[rank] = replace(programs[rank], instructions=tuple(body))
    return timed(replace(plan, programs=tuple(programs)))


def of_messages(plan: StepPlan, rng: random.Random) -> StepPlan:
    """A message changed, or dropped with its posts and waits, or two of a link exchanged at both ends."""
    messages = {message.id: message for program in plan.programs for message in program.messages}
    one = messages[rng.choice(sorted(messages))]
    stages = sorted({message.source for message in messages.values()} | {m.target for m in messages.values()})
    ranks = range(len(plan.programs))
    match rng.randrange(7):
        case 0:
            changed = replace(one, tensors=tuple(_other_tensor(tensor, rng) for tensor in one.tensors))
        case 1:
            changed = replace(one, tensors=one.tensors[1:] or one.tensors * 2)
        case 2:
            changed = replace(one, sender=rng.choice(ranks), receiver=rng.choice(ranks))
        case 3:
            changed = replace(one, order=max(0, one.order + rng.choice((-1, 1))))
        case 4:
            changed = replace(one, **{rng.choice(("source", "target")): rng.choice(stages)})
        case 5:
            return timed(renamed(plan, {one.id: None}, {}))
        case _:
            others = [m for m in messages.values() if (m.sender, m.receiver) == (one.sender, one.receiver)]
            two = rng.choice(others)
            exchanged = {one.id: replace(one, order=two.order), two.id: replace(two, order=one.order)}
            return timed(renamed(plan, {one.id: two.id, two.id: one.id}, exchanged))
    return timed(renamed(plan, {}, {one.id: changed}))


def _other_tensor(tensor: tuple[tuple[int, ...], str], rng: random.Random) -> tuple[tuple[int, ...], str]:
    shape, dtype = tensor
    if rng.random() < 0.5:
        return shape, rng.choice(("compute", "int64", "float32"))
    return tuple(max(0, size + rng.choice((-1, 0, 1))) for size in shape), dtype


def renamed(plan: StepPlan, names: dict[int, int | None], messages: dict[int, Message]) -> StepPlan:
    """Posts name another message (None: are dropped), and messages are replaced by others."""
    programs = []
    for program in plan.programs:
        body = []
        for i in program.instructions:
            number = getattr(i, "message", None)
            dropped = number in names and names[number] is None
            if isinstance(i, PostSend | PostReceive) and number in names and not dropped:
                body.append(type(i)(names[number]))  # type: ignore[arg-type]  # it is not None here
            elif not (isinstance(i, PostSend | PostReceive | WaitReceive | WaitSend) and dropped):
                body.append(i)
        kept = [m for m in program.messages if names.get(m.id, m.id) is not None]
        own = tuple(messages.get(m.id, m) for m in kept)
        programs.append(replace(program, instructions=tuple(body), messages=own))
    return replace(plan, programs=tuple(programs))


def of_the_batch(plan: StepPlan, rng: random.Random) -> StepPlan:
    """Samples exchanged, lost, doubled or with other sizes; another count, other cuts, another step."""
    microbatches = list(plan.batch.microbatches)
    first, second = rng.randrange(len(microbatches)), rng.randrange(len(microbatches))
    one, two = microbatches[first], microbatches[second]
    step, count = plan.step, plan.batch.loss_count
    match rng.randrange(7):
        case 0:
            a, b = list(one.samples), list(two.samples)
            a[0], b[-1] = b[-1], a[0]
            microbatches[first], microbatches[second] = replace(one, samples=tuple(a)), replace(two, samples=tuple(b))
        case 1:
            microbatches[first], microbatches[second] = two, one
        case 2:
            microbatches[first] = two
        case 3:
            del microbatches[first]
        case 4:
            count = max(1, count + rng.choice((-1, 1, 7)))
        case 5:
            step = max(0, step + rng.choice((-1, 1)))
        case _:
            sample = replace(one.samples[0], loss_tokens=one.samples[0].loss_tokens + 1)
            microbatches[first] = replace(one, samples=(sample, *one.samples[1:]))
    batch = replace(plan.batch, step=step, microbatches=tuple(microbatches), loss_count=count)
    return replace(plan, step=step, batch=batch)


def of_the_numbers(plan: StepPlan, rng: random.Random) -> StepPlan:
    """Predicted times and memory."""
    factor = rng.choice((0.0, 0.5, 1.0, 2.0))
    match rng.randrange(3):
        case 0:
            return replace(plan, peak_memory=tuple(peak * factor for peak in plan.peak_memory))
        case 1:
            return replace(plan, makespan=plan.makespan * factor)
        case _:
            times = tuple(tuple(replace(t, start=t.start * factor) for t in rank) for rank in plan.stages)
            return replace(plan, stages=times)


def timed(plan: StepPlan) -> StepPlan:
    """A stage a time, whatever was done to the stages: those there are, in their order."""
    stages = []
    for program, times in zip(plan.programs, plan.stages, strict=True):
        own = [i.stage for i in program.instructions if isinstance(i, Forward | Backward)]
        spans = [(time.start, time.end) for time in times] + [(plan.makespan, plan.makespan)] * len(own)
        stages.append(tuple(replace(times[0], stage=s, start=a, end=b) for s, (a, b) in zip(own, spans, strict=False)))
    return replace(plan, stages=tuple(stages))


def of_the_record(record: bytes, rng: random.Random) -> bytes:
    """A value anywhere in the record's content changed, dropped, doubled or exchanged, under a hash that is right."""
    format_, version, content, _ = msgpack.unpackb(record)
    document = json.loads(content)
    place, key = document, 0
    while isinstance(place[key], list | dict) and place[key] and rng.random() < 0.95:
        place = place[key]
        key = rng.choice(sorted(place)) if isinstance(place, dict) else rng.randrange(len(place))
    match rng.randrange(4):
        case 0 if isinstance(place, list):
            place.insert(rng.randrange(len(place)), place[key])
        case 1 if isinstance(place, list):
            del place[key]
        case 2 if isinstance(place, list):
            other = rng.randrange(len(place))
            place[key], place[other] = place[other], place[key]
        case _:
            value = place[key]
            numbers = (0, 1, -1, 2**40, value + 1, value - 1) if isinstance(value, int | float) else (None, 3, "F", [])
            place[key] = rng.choice(numbers)
    content = json.dumps(document).encode()
    return bytes(msgpack.packb([format_, version, content, hashlib.sha256(content).hexdigest()]))
