import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ds_dip.models import kinds
from ds_dip.models.build import layer_factories
from ds_dip.models.config import parse_model
from ds_dip.models.context import Context
from ds_dip.models.loss import token_cross_entropy
from ds_dip.models.spec import Sizes

QUICKSTART = Path(__file__).parent.parent / "model_configs" / "quickstart.json"
WIDTH = kinds.Width(hidden=12, heads=4, kv_heads=2, head_dim=4, ffn=20, gated=True)


def build(layer, dtype=torch.float64):
    from ds_dip.models.layers import BUILDERS

    torch.manual_seed(0)
    return BUILDERS[layer.kind](layer).to(dtype)


def context(sizes, merge=1, **fields):
    return Context(Sizes(tuple(sizes), tuple(size // merge for size in sizes)), fields)


def small_model(**changes):
    document = json.loads(QUICKSTART.read_text())
    for module in document["modules"]:
        module |= {"layers": 2, "hidden": 16, "ffn": 24, "heads": 2, "kv_heads": 1}
    document["modules"][0] |= {"image": 12, "merge": 4} | changes
    return parse_model(document)


def forward(layers, x, context):
    for layer in layers:
        x = layer(x, context)
    return x


@pytest.mark.parametrize("kind", ["encoder_block", "decoder_block"])
@settings(deadline=None, max_examples=30)
@given(sizes=st.lists(st.integers(1, 9), min_size=1, max_size=8), seed=st.integers(0, 99))
def test_packed_blocks_equal_every_instance_alone(kind, sizes, seed):
    layer = build(kinds.encoder_block(WIDTH, 2) if kind == "encoder_block" else kinds.decoder_block(WIDTH, 2, 100))
    torch.manual_seed(seed)
    x = torch.randn(sum(sizes), 12, dtype=torch.float64)
    packed = layer(x, context(sizes))
    alone = torch.cat([layer(part, context([len(part)])) for part in x.split(sizes)])
    torch.testing.assert_close(packed, alone, rtol=1e-12, atol=1e-12)


def reference_attention(block, x, causal):
    """One instance by the textbook: softmax of scaled products, heads one by one."""
    o = block.attention
    rows = len(x)
    projected = o.project(block.attention_norm(x))
    query, key, value = (
        part.view(rows, -1, o.head_dim)
        for part in projected.split([o.heads * o.head_dim, o.groups * o.head_dim, o.groups * o.head_dim], dim=1)
    )
    outputs = []
    for head in range(o.heads):
        group = head // (o.heads // o.groups)
        q, k = query[:, head], key[:, group]
        if causal:
            q, k = (
                torch.view_as_real(
                    torch.complex(part[:, : o.head_dim // 2], part[:, o.head_dim // 2 :])
                    * torch.polar(
                        torch.ones(rows, o.head_dim // 2, dtype=x.dtype),
                        torch.arange(rows)[:, None]
                        * o.theta ** -(torch.arange(0, o.head_dim, 2, dtype=x.dtype) / o.head_dim),
                    )
                )
                .transpose(1, 2)
                .flatten(1)
                for part in (q, k)
            )
        scores = q @ k.T / o.head_dim**0.5
        if causal:
            scores = scores.masked_fill(torch.ones(rows, rows).triu(1).bool(), -torch.inf)
        outputs.append(scores.softmax(-1) @ value[:, group])
    return o.output(torch.cat(outputs, dim=1))


@pytest.mark.parametrize("causal", [False, True])
def test_attention_is_the_textbooks(causal):
    block = build(kinds.decoder_block(WIDTH, 2, 100) if causal else kinds.encoder_block(WIDTH, 2))
    x = torch.randn(7, 12, dtype=torch.float64)
    expected = x + reference_attention(block, x, causal)
    expected = expected + block.feed_forward(expected, block.feed_forward_norm, context([7]))
    torch.testing.assert_close(block(x, context([7])), expected, rtol=1e-12, atol=1e-12)


def test_a_decoder_sees_no_later_token_and_an_encoder_sees_all():
    x = torch.randn(6, 12, dtype=torch.float64)
    changed = x.clone()
    changed[-1] = torch.randn(12, dtype=torch.float64)
    decoder, encoder = build(kinds.decoder_block(WIDTH, 2, 100)), build(kinds.encoder_block(WIDTH, 2))
    assert torch.equal(decoder(x, context([6]))[:-1], decoder(changed, context([6]))[:-1])
    assert not torch.equal(encoder(x, context([6]))[0], encoder(changed, context([6]))[0])


@settings(deadline=None, max_examples=20)
@given(sides=st.lists(st.sampled_from([2, 4, 6]), min_size=1, max_size=6))
def test_packed_encoders_of_mixed_image_sizes_equal_every_image_alone(sides):
    model = small_model()
    layers = [factory().double() for factory in layer_factories(model)["vision"]]
    sizes = [side * side for side in sides]
    pixels = torch.randn(sum(sizes), 4, dtype=torch.float64)
    packed = forward(layers, {}, context(sizes, 4, pixels=pixels))
    alone = torch.cat([forward(layers, {}, context([len(part)], 4, pixels=part)) for part in pixels.split(sizes)])
    torch.testing.assert_close(packed, alone, rtol=1e-12, atol=1e-12)


def test_the_merger_takes_squares_of_neighbours():
    layer = build(kinds.merger(hidden=3, merge=4, output=5))
    x = torch.randn(16, 3, dtype=torch.float64)
    rows = [[0, 1, 4, 5], [2, 3, 6, 7], [8, 9, 12, 13], [10, 11, 14, 15]]
    squares = torch.stack([layer.norm(x)[row].flatten() for row in rows])
    expected = layer.output(torch.tanh(layer.inner(squares / 4)))
    torch.testing.assert_close(layer(x, context([16], 4)), expected)


def test_image_outputs_stand_where_their_placeholders_stand():
    layer = build(kinds.token_embedding(5, 10, {"vision": 4, "sound": 6}))
    tokens = torch.tensor([4, 1, 6, 4, 2, 4])
    images, sounds = torch.randn(3, 5, dtype=torch.float64), torch.randn(1, 5, dtype=torch.float64)
    embedded = layer({"vision": images, "sound": (sounds,)}, context([4, 2], tokens=tokens))
    assert torch.equal(embedded[[0, 3, 5]], images)
    assert torch.equal(embedded[[2]], sounds)
    assert torch.equal(embedded[[1, 4]], layer.weight[[1, 2]])


def test_a_wrong_number_of_image_rows_is_refused():
    layer = build(kinds.token_embedding(5, 10, {"vision": 4}))
    with pytest.raises(ValueError, match="'vision' gave 2 rows for 1 placeholder tokens 4; make the dataset's"):
        layer({"vision": torch.zeros(2, 5)}, context([2], tokens=torch.tensor([4, 1])))


@pytest.mark.parametrize(
    ("size", "words"), [(5, "no square number"), (9, "squares of 4"), (64, "64 patches, more than the 6 x 6")]
)
def test_images_that_do_not_fit_the_model_are_refused(size, words):
    layers = [factory() for factory in layer_factories(small_model())["vision"]]
    with pytest.raises(ValueError, match=words):
        forward(layers, {}, context([size], 4, pixels=torch.randn(size, 4)))


def whole(model, layers, images, lengths, dtype):
    torch.manual_seed(1)
    pixels = torch.randn(16 * images, 4, dtype=dtype)
    tokens = torch.randint(32, 127, (sum(lengths),))
    tokens[: 4 * images] = 4
    labels = torch.randint(32, 127, (sum(lengths),))
    labels[::2] = -100
    language = context(lengths, tokens=tokens, labels=labels)
    vision = forward(layers["vision"], {}, context([16] * images, 4, pixels=pixels))
    return token_cross_entropy(forward(layers["language"], {"vision": vision}, language), language), vision


def test_gradients_flow_to_every_parameter():
    model = small_model()
    layers = {name: [factory() for factory in factories] for name, factories in layer_factories(model).items()}
    loss, _ = whole(model, layers, 3, [12, 9, 4], torch.float32)
    loss.backward()
    for module in layers.values():
        for layer in module:
            for name, parameter in layer.named_parameters():
                # Positions beyond the images' sides and tokens that do not occur get zeros.
                assert parameter.grad is not None, name
                assert parameter.grad.abs().max() > 0, name


def test_without_images_vision_gives_no_rows_and_language_learns_alone():
    model = small_model()
    layers = {name: [factory() for factory in factories] for name, factories in layer_factories(model).items()}
    loss, vision = whole(model, layers, 0, [5, 3], torch.float32)
    assert vision.shape == (0, 16)
    loss.backward()
    assert all(parameter.grad is not None for layer in layers["language"] for parameter in layer.parameters())


def test_bf16_stays_close_to_fp32():
    model = small_model()
    losses = []
    for dtype in (torch.float32, torch.bfloat16):
        layers = {name: [f().to(dtype) for f in factories] for name, factories in layer_factories(model).items()}
        loss, _ = whole(model, layers, 3, [60, 40], dtype)
        assert loss.dtype == torch.float32
        losses.append(loss.item())
    assert losses[1] == pytest.approx(losses[0], rel=0.02)


def test_rotary_angles_are_not_rounded_with_the_weights():
    from ds_dip.models.packing import rotary

    block = build(kinds.decoder_block(WIDTH, 2, 100), torch.bfloat16)
    assert not list(block.buffers())
    table = rotary((300,), 4, 100, torch.bfloat16, torch.device("cpu"))
    exact = rotary((300,), 4, 100, torch.float64, torch.device("cpu"))
    torch.testing.assert_close(table.double(), exact, rtol=0, atol=2**-8)


def test_layers_run_in_inference_and_train_afterwards():
    layer = build(kinds.decoder_block(WIDTH, 2, 55))
    x = torch.randn(17, 12, dtype=torch.float64)
    with torch.inference_mode():
        layer(x, context([8, 3, 6]))
    layer(x, context([8, 3, 6])).sum().backward()
    assert layer.attention.project.weight.grad is not None


@given(st.lists(st.booleans(), min_size=1, max_size=20))
@settings(deadline=None, max_examples=30)
def test_the_loss_is_the_sum_over_supervised_tokens(supervised):
    logits = torch.randn(len(supervised), 11, dtype=torch.float64, requires_grad=True)
    labels = torch.randint(0, 11, (len(supervised),))
    labels[~torch.tensor(supervised)] = -100
    loss = token_cross_entropy(logits, context([len(supervised)], labels=labels))
    expected = -sum(logits.log_softmax(-1)[row, label] for row, label in enumerate(labels) if label != -100)
    assert loss.dtype == torch.float64
    assert loss.item() == pytest.approx(float(torch.as_tensor(expected).detach()))
    loss.backward()
    assert logits.grad is not None
    assert torch.equal(logits.grad.abs().sum(1) > 0, torch.tensor(supervised))


@settings(deadline=None, max_examples=20)
@given(sizes=st.lists(st.integers(1, 4), min_size=0, max_size=4), frozen=st.booleans(), moving=st.booleans())
@pytest.mark.parametrize("kind", ["gated", "plain", "encoder", "merger", "head"])
def test_a_selective_layer_gives_the_same_output_and_gradients_and_keeps_less(kind, sizes, frozen, moving):
    plain = kinds.Width(hidden=12, heads=4, kv_heads=2, head_dim=4, ffn=20, gated=False)
    layer = build(
        {
            "gated": kinds.decoder_block(WIDTH, 2, 100),
            "plain": kinds.encoder_block(plain, 2),
            "encoder": kinds.encoder_block(WIDTH, 2),
            "merger": kinds.merger(12, 4, 6),
            "head": kinds.head(12, 9),
        }[kind]
    ).requires_grad_(not frozen)
    # Square images whose sides divide into squares of four patches.
    merge = 4 if kind == "merger" else 1
    tokens = [(2 * size) ** 2 if merge > 1 else size for size in sizes]
    given_x = torch.randn(sum(tokens), 12, dtype=torch.float64)
    found = []
    for selective in (False, True):
        x = given_x.clone().requires_grad_(moving)
        layer.zero_grad()
        output = layer(x, replace(context(tokens, merge), selective=selective))
        assert output.requires_grad == (moving or not frozen)
        if output.requires_grad:
            output.sin().sum().backward()
        found.append((output.detach(), x.grad, [p.grad for p in layer.parameters()]))
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)


@given(st.lists(st.integers(1, 30), min_size=1, max_size=4), st.integers(1, 12))
@settings(max_examples=20, deadline=None)
def test_windows_attend_to_themselves(sizes, window):
    block = build(kinds.encoder_block(WIDTH, 2, window))
    whole = build(kinds.encoder_block(WIDTH, 2))
    x = torch.randn(sum(sizes), 12, dtype=torch.float64)
    pieces = kinds.windows(tuple(sizes), window)
    assert sum(pieces) == sum(sizes)
    assert max(pieces) <= window
    torch.testing.assert_close(block(x, context(sizes)), whole(x, context(pieces)), rtol=1e-12, atol=1e-12)
