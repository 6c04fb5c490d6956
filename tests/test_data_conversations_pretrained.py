"""Fields for models of transformers: what is counted from sizes alone is what the library's processors make."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ds_dip.data import collate
from ds_dip.data.conversations import Conversations
from ds_dip.data.conversations.conversation import Media
from ds_dip.data.conversations.decode import audio as audio_of
from ds_dip.data.conversations.decode import image, samples_at
from ds_dip.data.conversations.headers import Facts, facts_of
from ds_dip.data.conversations.llava_onevision import LlavaOnevision
from ds_dip.data.conversations.pretrained import PretrainedProcessor
from ds_dip.data.conversations.processor import Frames
from ds_dip.data.conversations.qwen_vl import QwenVL
from ds_dip.data.conversations.settings import FrameSettings
from tests.media_cases import DEMO, Image, asked, film, lines, picture, sound
from tests.pretrained_cases import (
    AUDIO,
    IMAGE,
    VIDEO,
    audio_folder,
    internvl_folder,
    llava_folder,
    qwen_folder,
    text_folder,
)

FOLDERS = {"qwen2_5_vl": qwen_folder, "llava_onevision": llava_folder, "internvl": internvl_folder}
FIELDS = {"qwen2_5_vl": ["pixels", "places"], "llava_onevision": ["pixels", "layout"], "internvl": ["pixels"]}
SIDES = st.integers(1, 90)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return {name: make(tmp_path_factory.mktemp(name)) for name, make in FOLDERS.items()}


@pytest.fixture(scope="module")
def families(folders: dict[str, str]) -> dict[str, Any]:
    return {name: PretrainedProcessor(folder)._family for name, folder in folders.items()}


def opened(folder: Path, path: str, pretrained: str, **options: Any) -> Conversations:
    processor = {"pretrained": pretrained, "frames": {"rate": 0.5}}
    return Conversations(files=path, index=str(folder / "index"), processor=processor, **options)


def agree(dataset: Conversations, fields: list[str]) -> None:
    language = [name for name in dataset.processor.fields if name not in fields]
    for index in range(len(dataset)):
        metadata = dataset.metadata(index)
        if metadata.modules["vision"]:
            collate(dataset, [metadata], "vision", fields, 0, len(metadata.modules["vision"]))
        arrays = collate(dataset, [metadata], "language", language, 0, 1)
        assert int((arrays["labels"] >= 0).sum()) == metadata.loss_tokens > 0
        assert int(np.isin(arrays["tokens"], (IMAGE, VIDEO)).sum()) == sum(metadata.merged["vision"])


@pytest.mark.parametrize("family", FOLDERS)
@pytest.mark.parametrize("name", ["mllm_demo", "mllm_video_demo"])
def test_real_conversations(tmp_path: Path, folders: dict[str, str], family: str, name: str) -> None:
    dataset = opened(tmp_path, str(DEMO / f"{name}.json"), folders[family])
    assert len(dataset) == (6 if name == "mllm_demo" else 3)
    agree(dataset, FIELDS[family])


@given(SIDES, SIDES)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=40, deadline=None)
def test_qwens_grid_is_the_librarys(families: dict[str, Any], width: int, height: int) -> None:
    family: QwenVL = families["qwen2_5_vl"]
    made = family._image([Image.new("RGB", (width, height))], return_tensors="np")
    place = family.place(Facts("image", width, height), several=False)
    assert place.grid == tuple(made["image_grid_thw"][0].tolist())
    assert place.patches == (len(made["pixel_values"]),)
    assert sum(place.merged) == len(made["pixel_values"]) // 4 == place.text.count("<|image_pad|>")


@given(SIDES, SIDES, st.booleans())
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=40, deadline=None)
def test_llavas_tiles_are_the_librarys(families: dict[str, Any], width: int, height: int, several: bool) -> None:
    import torch
    from transformers import LlavaOnevisionModel

    family: LlavaOnevision = families["llava_onevision"]
    given = [Image.new("RGB", (width, height))] * (2 if several else 1)
    tiles = family._tiles(given)[0]
    place = family.place(Facts("image", width, height), several=several)
    assert place.patches == (16 * len(tiles),)
    config = type("Config", (), {"vision_config": type("Vision", (), {"image_size": 28, "patch_size": 7}),
                                 "image_grid_pinpoints": family._image.image_grid_pinpoints})  # fmt: skip
    library = type("Library", (), {"config": config})
    (rows,), _ = LlavaOnevisionModel.pack_image_features(
        library, [torch.zeros(len(tiles), 16, 2)], [(height, width)], torch.zeros(2), "anyres_max_9"
    )
    assert place.merged == (len(rows),)


@given(SIDES, SIDES)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=20, deadline=None)
def test_internvls_tiles_are_the_librarys(families: dict[str, Any], width: int, height: int) -> None:
    from transformers import InternVLProcessor

    family = families["internvl"]
    made = family._image([Image.new("RGB", (width, height))], crop_to_patches=True)
    place = family.place(Facts("image", width, height), several=False)
    assert place.patches == (17 * made["num_patches"][0],)
    named = {"start_image_token": "<|vision_start|>", "end_image_token": "<|vision_end|>",
             "image_token": "<|image_pad|>", "image_seq_length": 4}  # fmt: skip
    assert place.text == InternVLProcessor.replace_image_token(type("Library", (), named), made, 0)


def test_pixels_of_an_image_are_the_librarys(tmp_path: Path, folders: dict[str, str], families: dict[str, Any]) -> None:
    path = picture(tmp_path / "a.png", 50, 34)
    given = Image.fromarray(image(Media("image", "a", str(path)), Facts("image", 50, 34)))
    records = [asked(images=["a.png"]), asked("<image> and <image>", images=["a.png", "a.png"])]
    file = str(lines(tmp_path / "a.jsonl", records))
    dataset = opened(tmp_path, file, folders["qwen2_5_vl"])
    (own,) = dataset.load("a-0", ["pixels"])["pixels"]
    assert (own == families["qwen2_5_vl"]._image([given], return_tensors="np")["pixel_values"]).all()
    dataset = opened(tmp_path, file, folders["llava_onevision"])
    (own,) = dataset.load("a-0", ["pixels"])["pixels"]
    tiles = own.reshape(-1, 4, 4, 3, 7, 7).transpose(0, 3, 1, 4, 2, 5).reshape(-1, 3, 28, 28)
    assert (tiles == families["llava_onevision"]._image([[given]])["pixel_values"][0]).all()
    assert [len(own) for own in dataset.load("a-1", ["pixels"])["pixels"]] == [16, 16]


def test_places_and_positions_are_the_librarys(tmp_path: Path, folders: dict[str, str]) -> None:
    import torch
    from transformers.vision_utils import get_vision_position_ids

    picture(tmp_path / "a.png", 50, 34)
    film(tmp_path / "b.mp4", range(0, 600, 10))
    record = asked("see <image> then <video> go", images=["a.png"], videos=["b.mp4"])
    dataset = opened(tmp_path, str(lines(tmp_path / "a.jsonl", [record])), folders["qwen2_5_vl"])
    agree(dataset, FIELDS["qwen2_5_vl"])
    loaded = dataset.load("a-0", ["places", "positions", "tokens", "pixels"])
    sides = [place.max(axis=0) + 1 for place in loaded["places"]]
    for place, (rows, columns) in zip(loaded["places"], sides, strict=True):
        assert (place == get_vision_position_ids(torch.tensor([(1, rows, columns)]), 2).numpy()).all()
    positions, tokens = loaded["positions"][0], loaded["tokens"][0]
    text = positions[~np.isin(tokens, (IMAGE, VIDEO))]
    assert (text == text[:, :1]).all()
    assert (np.diff(text[:, 0]) > 0).all()
    own = positions[tokens == IMAGE]
    assert len(set(own[:, 0].tolist())) == 1
    assert tuple(own.max(axis=0)[1:] - own.min(axis=0)[1:] + 1) == tuple(sides[0] // 2)


def test_steps_of_a_video_see_its_frames_in_pairs(tmp_path: Path, folders: dict[str, str]) -> None:
    film(tmp_path / "a.mp4", range(0, 800, 10), width=16, height=16)
    file = str(lines(tmp_path / "a.jsonl", [asked("<video>?", videos=["a.mp4"])]))
    dataset = opened(tmp_path, file, folders["qwen2_5_vl"])
    steps = dataset.load("a-0", ["pixels"])["pixels"]
    assert len(steps) == 2
    # Channels, then the pair of frames, then the patch: brighter and brighter.
    levels = [step.reshape(-1, 3, 2, 16)[:, 0].mean(axis=(0, 2)) for step in steps]
    assert (np.diff(np.concatenate(levels)) > 0).all()


#: What Qwen2VLVideoProcessor of transformers 5.24 makes of (frames, a second, height, width), without the cap and with.
GRIDS = [
    ((49, 25.0, 40, 60), (2, 10, 16), (2, 10, 16)),
    ((300, 30.0, 200, 100), (10, 22, 10), (10, 18, 8)),
    ((3, 30.0, 64, 64), (1, 16, 16), (1, 16, 16)),
    ((7200, 24.0, 120, 90), (32, 18, 12), (32, 8, 6)),
]


def qwen_video_folder(folder: Path, **settings: Any) -> str:
    path = qwen_folder(folder)
    settings = {"size": {"shortest_edge": 256, "longest_edge": 4096}, "max_video_tokens": 500} | settings
    (folder / "video_preprocessor_config.json").write_text(json.dumps(settings))
    return path


@pytest.mark.parametrize(("video", "free", "capped"), GRIDS)
def test_a_videos_grid_is_that_of_qwens_processor(
    tmp_path: Path, video: tuple[int, float, int, int], free: tuple[int, ...], capped: tuple[int, ...]
) -> None:
    frames, rate, height, width = video
    facts = Facts("video", width, height, frames, frames / rate, rate)
    for cap, grid in ((False, free), (True, capped)):
        folder = qwen_video_folder(tmp_path / str(cap), cap_pixels_per_frame=cap)
        assert PretrainedProcessor(folder)._family.place(facts, several=False).grid == grid


@given(st.integers(2, 4000), st.sampled_from([1.0, 12.5, 24.0, 29.97, 60.0]), st.integers(8, 300), st.integers(8, 300))
@settings(max_examples=60)
def test_a_video_costs_what_the_librarys_processor_makes_of_it(
    capped: tuple[Any, Any], frames: int, rate: float, height: int, width: int
) -> None:
    import torch
    from transformers.models.qwen2_vl.video_processing_qwen2_vl import smart_resize
    from transformers.video_utils import VideoMetadata

    family, library = capped
    facts = Facts("video", width, height, frames, frames / rate, rate)
    metadata = VideoMetadata(total_num_frames=frames, fps=rate)
    own, found = family.frames.of(facts), library.sample_frames(metadata, fps=2.0, max_frames=64).tolist()
    assert list(own[: len(found)]) == [min(index, frames - 1) for index in found]
    assert len(own) == len(found) + len(found) % 2
    try:
        made = library([torch.zeros(len(found), 3, height, width)], return_tensors="pt", do_sample_frames=False)
    except ValueError:
        with pytest.raises(ValueError, match="aspect ratio"):
            smart_resize(height, width)
        return
    assert family.place(facts, several=False).grid == tuple(made["video_grid_thw"][0].tolist())


@pytest.fixture(scope="module")
def capped(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Any]:
    """A family that caps a video's pixels, and the library's processor of the same folder."""
    pytest.importorskip("torchvision", reason="the library's video processor needs it")
    from transformers import Qwen2VLVideoProcessor

    folder = qwen_video_folder(tmp_path_factory.mktemp("capped"), cap_pixels_per_frame=True, patch_size=4)
    return PretrainedProcessor(folder)._family, Qwen2VLVideoProcessor.from_pretrained(folder)


def test_a_process_that_finds_an_index_needs_no_processor(tmp_path: Path, folders: dict[str, str]) -> None:
    picture(tmp_path / "a.png")
    file = str(lines(tmp_path / "a.jsonl", [asked(images=["a.png"])]))
    made = opened(tmp_path, file, folders["qwen2_5_vl"])
    options = {"files": file, "index": str(tmp_path / "index"),
               "processor": {"pretrained": folders["qwen2_5_vl"], "frames": {"rate": 0.5}}}  # fmt: skip
    code = (
        "import json, sys; from ds_dip.data.conversations import Conversations; "
        "d = Conversations(**json.loads(sys.argv[1])); print(d.metadata(0).modules['vision'], d.digest); "
        "assert not {'transformers', 'torch', 'PIL'} & set(sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, json.dumps(options)], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [*str(made.metadata(0).modules["vision"]).split(), made.digest]


def test_frames_that_are_set_come_before_the_folders(tmp_path: Path) -> None:
    folder = qwen_video_folder(tmp_path, fps=1.0, max_frames=8)
    facts = Facts("video", 40, 40, 900, 30.0, 30.0)
    assert len(PretrainedProcessor(folder)._family.frames.of(facts)) == 8
    asked = Frames.by(FrameSettings(most=12))
    assert len(PretrainedProcessor(folder, asked)._family.frames.of(facts)) == 12


def test_what_a_model_does_not_take_is_a_problem(tmp_path: Path, folders: dict[str, str]) -> None:
    picture(tmp_path / "a.png", 900, 4)
    sound(tmp_path / "b.wav")
    records = [asked("q"), asked(images=["a.png"]), asked("<audio>", audios=["b.wav"])]
    dataset = opened(tmp_path, str(lines(tmp_path / "a.jsonl", records)), folders["qwen2_5_vl"], problems="skip")
    assert [problem.sentence[:66] for problem in dataset.problems()] == [
        "the model's processor refuses its media (absolute aspect ratio mus",
        "has a medium of kind audio, which the model does not take; leave i",
    ]


@given(st.integers(2000, 96000), st.sampled_from([8000, 16000, 44100]))
@settings(max_examples=15, deadline=None)
def test_a_sounds_rows_are_the_librarys(audio: Any, frames: int, rate: int) -> None:
    from transformers import Qwen2AudioProcessor

    facts = Facts("audio", frames=frames, seconds=frames / rate, rate=float(rate), channels=1)
    samples = samples_at(facts, 16000)
    if samples > 96000:
        with pytest.raises(ValueError, match="the encoder hears 6"):
            audio.place(facts, several=False)
        return
    library = type("Library", (), {"feature_extractor": audio._extractor, "audio_token": "<|AUDIO|>"})()
    library.replace_audio_token = lambda *given, **named: Qwen2AudioProcessor.replace_audio_token(
        library, *given, **named
    )
    library.feature_extractor.fetch_audio = lambda own: own
    inputs, (text,) = Qwen2AudioProcessor._process_audio(library, [np.zeros(samples, np.float32)], sampling_rate=16000)
    place = audio.place(facts, several=False)
    assert place.text == text
    assert place.patches == ((int(np.sum(inputs["feature_attention_mask"])) - 1) // 2 + 1,)


@pytest.fixture(scope="module")
def audio(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return PretrainedProcessor(audio_folder(tmp_path_factory.mktemp("audio")))._family


def test_real_sounds(tmp_path: Path, audio: Any) -> None:
    dataset = opened(tmp_path, str(DEMO / "mllm_audio_demo.json"), audio_folder(tmp_path / "audio"))
    assert len(dataset) == 3
    for index in range(3):
        metadata = dataset.metadata(index)
        assert set(metadata.modules) == {"audio", "language"}
        mel = collate(dataset, [metadata], "audio", ["mel"], 0, 1)["mel"]
        tokens = collate(dataset, [metadata], "language", ["tokens", "labels"], 0, 1)["tokens"]
        assert mel.shape[1] == 24
        assert int((tokens == AUDIO).sum()) == metadata.merged["audio"][0]
        # Of every row its two frames, and the first one of the next row.
        assert (mel[:-1, 16:] == mel[1:, :8]).all()
        made = audio._extractor(decoded(index), sampling_rate=16000, return_tensors="np")
        frames = made["input_features"][0].T
        assert (mel[:, :16].reshape(-1, 8) == frames[: 2 * len(mel)]).all()


def decoded(index: int) -> np.ndarray:
    media = Media("audio", "", str(DEMO / "mllm_demo_data" / ("1.mp3", "2.wav", "3.flac")[index]))
    return audio_of(media, 16000, facts_of(media))


def test_text_alone(tmp_path: Path) -> None:
    folder = text_folder(tmp_path / "text")
    picture(tmp_path / "a.png")
    file = str(lines(tmp_path / "a.jsonl", [asked("q", "yes"), asked(images=["a.png"])]))
    dataset = opened(tmp_path, file, folder, problems="skip")
    metadata = dataset.metadata(0)
    assert (set(metadata.modules), metadata.loss_tokens, dataset.skipped) == ({"language"}, 4, 1)


def test_two_encoders_see_the_same(tmp_path: Path, folders: dict[str, str]) -> None:
    picture(tmp_path / "a.png")
    options = {"pretrained": folders["llava_onevision"], "encoders": ["vision", "projector"]}
    file = str(lines(tmp_path / "a.jsonl", [asked(images=["a.png"])]))
    metadata = Conversations(files=file, index=str(tmp_path / "index"), processor=options).metadata(0)
    assert metadata.modules["vision"] == metadata.modules["projector"]
    assert metadata.merged["vision"] == metadata.merged["projector"]


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"config.json": None}, "config.json"),
        ({"config.json": json.dumps({"model_type": "smell", "vision_config": {}})}, "of type 'smell' are not known"),
        ({"tokenizer.json": "{}"}, "tokenizer cannot be read"),
        ({"preprocessor_config.json": None}, "image processor cannot be read"),
        ({"chat_template.jinja": None}, "has no chat template"),
    ],
)
def test_folders_that_cannot_be_used(tmp_path: Path, change: dict[str, str | None], sentence: str) -> None:
    folder = qwen_folder(tmp_path / "qwen")
    for name, content in change.items():
        path = Path(folder, name)
        path.unlink() if content is None else path.write_text(content)
    with pytest.raises(ValueError, match=sentence):
        PretrainedProcessor(folder)


def test_another_folder_makes_the_index_anew(tmp_path: Path) -> None:
    folder = text_folder(tmp_path / "text")
    file = str(lines(tmp_path / "a.jsonl", [asked("q", "yes")]))
    before = opened(tmp_path, file, folder).metadata(0)
    template = Path(folder, "chat_template.jinja")
    template.write_text(template.read_text().replace("<|im_end|>\n", "<|im_end|>\n\n"))
    assert opened(tmp_path, file, folder).metadata(0).modules["language"][0] == before.modules["language"][0] + 2
