"""Folders of images: users, classes, files."""

import numpy as np
import pytest
from PIL import Image

from deltafl.fl.data.image_folder import MAX_IMAGE_BYTES, read_image_folder
from deltafl.fl.data.load import DatasetSpec, load_dataset
from deltafl.fl.errors import DataError


def pixels(*shape, seed=0):
    return np.random.default_rng(seed).integers(0, 256, shape, np.uint8)


@pytest.fixture
def photos(tmp_path):
    def save(name, array):
        path = tmp_path / "photos" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(array).save(path)
        return path

    save("bob/cat/1.png", pixels(4, 5, seed=1))
    save("ann/dog/2.png", pixels(4, 5, seed=2))
    save("ann/cat/3.PNG", pixels(4, 5, seed=3))
    (tmp_path / "photos" / ".hidden").mkdir()
    (tmp_path / "photos" / "ann" / "cat" / ".DS_Store").write_bytes(b"x")
    save.folder = tmp_path / "photos"
    return save


def test_a_folder_is_a_user_and_a_folder_in_it_a_class(photos):
    devices, classes = read_image_folder(photos.folder)
    assert classes == ("cat", "dog")
    ann, bob = devices
    assert (ann.id, ann.y.tolist(), bob.id, bob.y.tolist()) == ("ann", [0, 1], "bob", [0])
    assert np.array_equal(ann.x, [[pixels(4, 5, seed=3)], [pixels(4, 5, seed=2)]])
    assert bob.x.dtype == np.uint8


def test_images_in_colour_keep_it_and_can_be_brought_to_one_size(photos):
    for name in ("bob/cat/1.png", "ann/dog/2.png"):
        photos(name, pixels(7, 6, 3))
    photos("ann/cat/3.PNG", pixels(9, 9, 3))
    with pytest.raises(DataError, match=r"an image of shape \(3, 7, 6\), and .* has \(3, 9, 9\)"):
        read_image_folder(photos.folder)
    devices, _ = read_image_folder(photos.folder, size=(4, 8))
    assert devices[0].x.shape == (2, 3, 4, 8)


def test_the_channels_of_a_pixel_come_first(photos):
    """As torch's convolutions take them."""
    coloured = pixels(4, 5, 3, seed=7)
    for path in ("bob/cat/1.png", "ann/dog/2.png", "ann/cat/3.PNG"):
        photos(path, coloured)
    devices, _ = read_image_folder(photos.folder)
    assert np.array_equal(devices[0].x[0], [coloured[..., channel] for channel in range(3)])


@pytest.mark.parametrize("suffix", ["webp", "bmp", "tif"])
def test_other_kinds_of_images_are_read(photos, suffix):
    for path in ("bob/cat/1.png", "ann/dog/2.png", "ann/cat/3.PNG"):
        photos(path, pixels(4, 5, 3))  # WebP has colours only
    wanted = pixels(4, 5, 3, seed=9)
    Image.fromarray(wanted).save(photos.folder / "bob" / "cat" / f"4.{suffix}", lossless=True)
    (photos.folder / "bob" / "cat" / "Thumbs.db").write_bytes(b"left by a system")
    _, bob = read_image_folder(photos.folder)[0]
    assert np.array_equal(bob.x[1], np.moveaxis(wanted, 2, 0))


def test_grey_among_coloured_is_told(photos):
    photos("bob/cat/1.png", pixels(4, 5, 3))
    with pytest.raises(DataError, match="all to grey or to colour"):
        read_image_folder(photos.folder)


def test_what_is_no_image_is_refused_with_its_name(photos, tmp_path):
    note = photos.folder / "bob" / "cat" / "note.txt"
    note.write_text("x")
    with pytest.raises(DataError, match=r"note\.txt: no image that is read"):
        read_image_folder(photos.folder)
    note.unlink()
    broken = photos.folder / "bob" / "cat" / "b.png"
    broken.write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(40))
    with pytest.raises(DataError, match=r"b\.png: not a readable image .*PNG, JPEG,"):
        read_image_folder(photos.folder)
    with broken.open("wb") as file:
        file.truncate(MAX_IMAGE_BYTES + 1)
    with pytest.raises(DataError, match=r"b\.png: .*more than the 16,777,216 "):
        read_image_folder(photos.folder)
    for wrong in (tmp_path / "absent", note.parent):
        with pytest.raises(DataError, match=r"not a folder|in no folder of a class"):
            read_image_folder(wrong)


def test_the_settings_read_it_too(photos):
    data = load_dataset(DatasetSpec(str(photos.folder), format="images"))
    assert (data.input_shape, data.num_classes, data.name) == ((1, 4, 5), 2, "photos")


def test_images_that_would_change_on_the_way_are_refused(photos):
    deep = np.arange(20, dtype=np.uint16).reshape(4, 5) * 3000
    path = photos("bob/cat/1.png", deep)
    with pytest.raises(DataError, match=r"1\.png: .*an image of more than 8 bits for each pixel"):
        read_image_folder(photos.folder)
    frame = Image.fromarray(pixels(4, 5))
    frame.save(path, save_all=True, append_images=[Image.fromarray(pixels(4, 5, seed=4))])
    with pytest.raises(DataError, match=r"1\.png: .*an image of 2 frames, and one is wanted"):
        read_image_folder(photos.folder)
    photos("bob/cat/1.png", (deep // 3000).astype(np.uint8))
    assert read_image_folder(photos.folder)[0][1].x[0, 0, 3, 4] == 19


def test_photos_are_turned_the_way_up_that_the_camera_says(photos):
    path = photos("bob/cat/1.png", pixels(5, 4, seed=1))
    with Image.open(path) as image:
        exif = image.getexif()
        exif[0x112] = 6  # turned by 90 degrees
        image.save(path, exif=exif)
    devices, _ = read_image_folder(photos.folder)
    assert np.array_equal(devices[1].x[0, 0], np.rot90(pixels(5, 4, seed=1), -1))


def test_colours_of_a_palette_may_be_transparent(photos):
    for path in sorted(photos.folder.rglob("*.[pP]*")):
        if path.is_file():
            image = Image.fromarray(pixels(4, 5, 3)).convert("P")
            image.save(path, transparency=b"\x00\x01")
    assert read_image_folder(photos.folder)[0][0].x.shape == (2, 3, 4, 5)


@pytest.mark.parametrize("name", ["ann/4.png", "4.jpg"])
def test_an_image_beside_the_folders_of_classes_is_not_passed_over(photos, name):
    photos(name, pixels(4, 5))
    with pytest.raises(DataError, match=rf"{name}: an image that is in no folder of a class"):
        read_image_folder(photos.folder)
    (photos.folder / name).unlink()
    (photos.folder / "ann" / "notes.txt").write_text("x")
    assert len(read_image_folder(photos.folder)[0]) == 2


def test_classes_in_two_encodings_are_told(photos):
    photos("ann/\u00e9/1.png", pixels(4, 5))
    photos("bob/e\u0301/1.png", pixels(4, 5))
    with pytest.raises(DataError, match=r"classes .* are one, written in two ways"):
        read_image_folder(photos.folder)


@pytest.mark.parametrize("size", [3, (0, 3), (2.5, 3), (3,), (1 << 11, 1 << 10)])
def test_a_size_that_is_none_or_too_large_is_refused_before_any_image(photos, size):
    with pytest.raises(ValueError, match="size="):
        read_image_folder(photos.folder, size)
