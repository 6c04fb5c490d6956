"""Media lie under the root, or are refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from ds_dip.data.conversations.conversation import Media, RecordError
from ds_dip.data.conversations.places import Places, open_media, size_of


def test_a_path_is_under_the_root_and_a_prefix_is_replaced(tmp_path: Path) -> None:
    places = Places(tmp_path, {"s3://bucket/": "local/", "data/": ""})
    for source, path in (("a/b.png", "a/b.png"), ("data/c.png", "c.png"), ("s3://bucket/d.png", "local/d.png")):
        assert places.of(Media("image", source)).path == str(tmp_path / path)
    assert places.of(Media("image", str(tmp_path / "e.png"))).path == str(tmp_path / "e.png")


@pytest.mark.parametrize("source", ["../a.png", "/etc/passwd", "b/../../a.png", "link/a.png"])
def test_what_lies_outside_is_refused_unless_allowed(tmp_path: Path, source: str) -> None:
    root = tmp_path / "root"
    root.mkdir()
    (root / "link").symlink_to(tmp_path)
    with pytest.raises(RecordError, match=r"lies outside .*set root, or outside"):
        Places(root).of(Media("image", source))
    assert Places(root, outside=True).of(Media("image", source)).path is not None


def test_bytes_of_a_file_of_a_span_and_of_a_record(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"0123456789")
    for media, content in (
        (Media("image", "a", str(tmp_path / "a")), b"0123456789"),
        (Media("image", "a", str(tmp_path / "a"), (2, 3)), b"234"),
        (Media("image", "a", content=b"xyz"), b"xyz"),
    ):
        with open_media(media) as stream:
            assert stream.read() == content
        assert size_of(media) == len(content)
