import json
import shutil

import numpy as np
import pytest
from devices_read import by_id, same
from PIL import Image

from deltafl.fl.data.federated import Split, draw_rows
from deltafl.fl.data.femnist import load_femnist
from deltafl.fl.errors import DataError

# writer → the characters of its images, in the order of the files
WRITERS = {
    "f0001_05": ["7", "A"],
    "f0000_14": ["0", "9", "Z", "a", "z"],
    "f0002_10": ["b", "b", "b"],
}
LABELS = {"0": 0, "7": 7, "9": 9, "A": 10, "Z": 35, "a": 36, "b": 37, "z": 61}


def drawing(seed, size=128):
    """White paper with some ink, and noise so that no two images are alike."""
    pixels = np.full((size, size), 255, np.uint8)
    pixels[40:90, 60:70] = 0
    pixels[:8, :8] = np.random.default_rng(seed).integers(0, 256, (8, 8))
    return Image.fromarray(pixels).convert("RGB")


def save(image, *places):
    for place in places:
        place.parent.mkdir(parents=True, exist_ok=True)
        image.save(place)


@pytest.fixture
def nist(tmp_path):
    """by_write and by_class as they come out of NIST's archives."""
    seed = 0
    for part, (writer, characters) in enumerate(WRITERS.items()):
        for number, character in enumerate(characters):
            folder = tmp_path / "by_class" / f"{ord(character):x}"
            name = f"{writer}_{number:05}.png"
            save(
                drawing(seed),
                tmp_path / "by_write" / f"hsf_{part}" / writer / f"c{writer[1:]}" / name,
                folder / f"hsf_{part}" / f"hsf_{part}_{number + 7 * part:05}.png",
                folder / f"train_{ord(character):x}" / name,
            )
            (folder / f"hsf_{part}.mit").write_text("labels, no images")
            seed += 1
    return tmp_path


def test_writers_and_classes_are_joined_by_the_images(nist):
    data = load_femnist(nist, Split())
    assert {writer: device.y.tolist() for writer, device in by_id(data).items()} == {
        writer: [LABELS[character] for character in characters]
        for writer, characters in WRITERS.items()
    }
    assert (data.num_classes, data.input_shape) == (62, (28, 28))
    assert data.rule == "keep devices with more than 0 samples"


def test_paper_is_white_and_ink_is_black(nist):
    x = by_id(load_femnist(nist, Split()))["f0001_05"].x
    assert (x.dtype, x.shape) == (np.uint8, (2, 28, 28))
    assert (x[:, 10:18, 14] < 10).all()
    assert (x[:, :, -1] == 255).all()
    assert (np.abs(x[:, 10:18, 16].astype(int) - 255) < 40).all()


def test_the_folder_of_the_raw_data_will_do(nist, tmp_path):
    (tmp_path / "data").mkdir()
    for name in ("by_class", "by_write"):
        shutil.move(nist / name, tmp_path / "data" / "raw_data" / name)
    assert len(by_id(load_femnist(tmp_path / "data", Split()))) == 3


def test_the_rule_is_applied_before_anything_is_decoded(nist):
    image = next((nist / "by_write" / "hsf_0").rglob("*.png"))
    copy = next(
        path
        for path in (nist / "by_class").rglob("hsf_*/*.png")
        if path.read_bytes() == image.read_bytes()
    )
    for path in (image, copy):
        path.write_bytes(b"\x89PNG no more")
    data = load_femnist(nist, Split(more_than=2))
    assert sorted(by_id(data)) == ["f0000_14", "f0002_10"]
    assert data.dropped == 1
    with pytest.raises(DataError, match="no readable image") as caught:
        load_femnist(nist, Split())
    assert str(image) in str(caught.value)


def test_an_image_without_a_class_is_left_out_and_counted(nist):
    (nist / "by_class" / "62" / "hsf_2" / "hsf_2_00014.png").unlink()
    data = load_femnist(nist, Split())
    assert by_id(data)["f0002_10"].num_samples == 2
    assert data.rule.endswith("; 1 images without a class left out")


def test_an_image_with_two_classes_gets_the_first(nist):
    source = nist / "by_class" / "7a" / "hsf_1" / "hsf_1_00011.png"
    save(Image.open(source), nist / "by_class" / "30" / "hsf_1" / "again.png")
    assert by_id(load_femnist(nist, Split()))["f0000_14"].y.tolist() == [0, 9, 35, 36, 0]


def test_the_first_image_twice_as_in_leaf(nist):
    once = by_id(load_femnist(nist, Split()))
    twice = by_id(load_femnist(nist, Split(), legacy_duplicates=True))
    assert same(once["f0000_14"], twice["f0000_14"])  # not the first writer's
    for writer in ("f0001_05", "f0002_10"):
        assert np.array_equal(twice[writer].x[1:], once[writer].x)
        assert np.array_equal(twice[writer].x[0], once[writer].x[0])
        assert twice[writer].y[0] == once[writer].y[0]
    # and so a writer passes a rule that would have dropped it
    assert len(by_id(load_femnist(nist, Split(2), legacy_duplicates=True))) == 3


def test_a_subset(nist):
    data = load_femnist(nist, Split(num_users=2, max_samples=2))
    whole = by_id(load_femnist(nist, Split()))
    assert len(by_id(data)) == 2
    for writer, device in by_id(data).items():
        rows = draw_rows(writer, whole[writer].num_samples, 2, 0)
        assert len(rows) == 2
        assert np.array_equal(device.x, whole[writer].x[rows])
        assert np.array_equal(device.y, whole[writer].y[rows])
    assert "2 of the 3 kept; at most 2 samples of each" in data.rule


def test_the_json_of_leaf_becomes_the_same_bytes(nist, tmp_path):
    whole = load_femnist(nist, Split())
    path = tmp_path / "leaf" / "all_data_0.json"
    path.parent.mkdir()
    content = {
        "users": [*by_id(whole)],
        "num_samples": [device.num_samples for device in by_id(whole).values()],
        "user_data": {
            writer: {
                "x": (device.x.reshape(-1, 784) / 255).tolist(),
                "y": device.y.tolist(),
            }
            for writer, device in by_id(whole).items()
        },
    }
    path.write_text(json.dumps(content))
    from_leaf = load_femnist(path.parent, Split())
    assert from_leaf.num_classes == 62
    for writer, device in by_id(from_leaf).items():
        assert device.x.dtype == np.uint8
        assert same(device, by_id(whole)[writer])
    with pytest.raises(DataError, match="has the duplicates"):
        load_femnist(path.parent, Split(), legacy_duplicates=True)
    content["user_data"]["f0001_05"]["x"][0][3] = 0.1
    path.write_text(json.dumps(content))
    with pytest.raises(DataError, match="'f0001_05': inputs are no pixels"):
        load_femnist(path.parent, Split())
    content["user_data"]["f0001_05"]["x"] = [[0.0] * 9, [0.0] * 9]
    path.write_text(json.dumps(content))
    with pytest.raises(DataError, match=r"inputs have the shape \(9,\)"):
        load_femnist(path.parent, Split())


def test_damaged_archives_are_refused_by_file(nist):
    image = nist / "by_class" / "5a" / "hsf_1" / "hsf_1_00009.png"
    copy = nist / "by_write" / "hsf_1" / "f0000_14" / "c0000_14" / "f0000_14_00002.png"
    save(drawing(99, size=64), image, copy)
    with pytest.raises(DataError, match="64×64 pixels instead of 128×128") as caught:
        load_femnist(nist, Split())
    assert str(copy) in str(caught.value)
    copy.write_bytes(b"x" * ((1 << 20) + 1))
    with pytest.raises(DataError, match="more than the 1,048,576"):
        load_femnist(nist, Split())
    copy.unlink()
    (nist / "by_class" / "7f").mkdir()
    with pytest.raises(DataError, match="7f: it is no character's code"):
        load_femnist(nist, Split())


def test_a_folder_that_is_neither_is_refused(tmp_path):
    with pytest.raises(DataError, match="no such folder"):
        load_femnist(tmp_path / "none", Split())
    with pytest.raises(DataError, match=r"no \.json"):
        load_femnist(tmp_path, Split())
