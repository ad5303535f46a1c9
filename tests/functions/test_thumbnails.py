"""The thumbnails queue: real images, on moto."""

from __future__ import annotations

import io
import struct
import zlib
from typing import Any

import pytest
from PIL import Image

from handlers import worker
from queues import thumbnails
from s3queue import Reject
from support.installation import Installation, LambdaContext


@pytest.fixture
def installation(installation: Installation) -> Installation:
    installation.configure(queue="thumbnails", workers={"thumbnails": "s3queue-thumbnails"})
    return installation


def encoded(image: Image.Image, kind: str = "PNG", **options: Any) -> bytes:
    body = io.BytesIO()
    image.save(body, kind, **options)
    return body.getvalue()


def run(installation: Installation, name: str, body: bytes) -> dict[str, int]:
    key = installation.put(f"thumbnails/messages/{name}", body)
    return worker.handle(installation.created(key, size=len(body)), LambdaContext())


def result(installation: Installation, key: str) -> Image.Image:
    found = installation.s3.get_object(Bucket=installation.bucket, Key=key)
    image = Image.open(io.BytesIO(found["Body"].read()))
    assert image.format
    assert found["ContentType"] == f"image/{image.format.lower()}"
    return image


def test_an_image_in_is_a_small_image_out(installation: Installation) -> None:
    photo = encoded(Image.new("RGB", (1200, 800), "navy"), "JPEG")
    assert run(installation, "holiday/photo.jpg", photo) == {"completed": 1}
    small = result(installation, "thumbnails/results/holiday/photo.jpg.jpg")
    assert (small.size, small.format) == ((256, 171), "JPEG")
    record = installation.queue("thumbnails").status("messages/holiday/photo.jpg").record
    assert record
    assert record.result["key"] == "thumbnails/results/holiday/photo.jpg.jpg"
    # Nothing was written where it would wake the worker again.
    assert installation.keys("thumbnails/messages/") == []


def test_transparency_stays(installation: Installation) -> None:
    logo = encoded(Image.new("RGBA", (600, 600), (255, 0, 0, 128)))
    assert run(installation, "logo.png", logo) == {"completed": 1}
    small = result(installation, "thumbnails/results/logo.png.png")
    assert small.format == "PNG"
    assert small.getpixel((10, 10)) == (255, 0, 0, 128)


def test_a_second_run_writes_the_same_bytes(installation: Installation) -> None:
    photo = encoded(Image.effect_noise((900, 700), 40).convert("RGB"), "JPEG")
    etags = []
    for _ in range(2):
        run(installation, "again.jpg", photo)
        head = installation.s3.head_object(Bucket=installation.bucket, Key="thumbnails/results/again.jpg.jpg")
        etags.append(head["ETag"])
    assert etags[0] == etags[1]


def test_what_is_no_image_is_dead_and_the_next_one_is_made(installation: Installation) -> None:
    bodies = {"text.jpg": b"not an image", "good.png": encoded(Image.new("L", (300, 300)))}
    keys = [installation.put(f"thumbnails/messages/{name}", body) for name, body in bodies.items()]
    assert worker.handle(installation.created(*keys), LambdaContext()) == {"dead": 1, "completed": 1}
    assert installation.keys("thumbnails/results/") == ["thumbnails/results/good.png.jpg"]


def test_a_picture_taken_sideways_is_turned_upright() -> None:
    exif = Image.Exif()
    exif[0x0112] = 6  # rotate by 90 degrees to show it
    photo = encoded(Image.new("RGB", (800, 400), "green"), "JPEG", exif=exif)
    small, kind = thumbnails.thumbnail(photo)
    assert (small.size, kind) == ((128, 256), "jpg")


@pytest.mark.parametrize(
    ("mode", "kind"), [("1", "PNG"), ("L", "PNG"), ("P", "GIF"), ("CMYK", "JPEG"), ("LA", "PNG"), ("I;16", "PNG")]
)
def test_every_mode_becomes_a_thumbnail(mode: str, kind: str) -> None:
    small, _ = thumbnails.thumbnail(encoded(Image.new(mode, (400, 200)), kind))
    assert small.size == (256, 128)


def test_a_small_image_is_not_blown_up() -> None:
    assert thumbnails.thumbnail(encoded(Image.new("RGB", (10, 20))))[0].size == (10, 20)


def bomb(width: int, height: int) -> bytes:
    """A PNG that claims to be this large, in a few bytes."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"\0" * 99)) + chunk(b"IEND", b"")
    )


@pytest.mark.parametrize(("width", "height"), [(8000, 8000), (10_000, 10_000), (60_000, 60_000)])
def test_an_image_too_large_to_unpack_is_refused(width: int, height: int) -> None:
    with pytest.raises(Reject, match="pixels"):
        thumbnails.thumbnail(bomb(width, height))


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"GIF89a",
        b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 1 1\n",
        encoded(Image.effect_noise((300, 300), 40), "PNG")[:500],
        encoded(Image.effect_noise((300, 300), 40), "JPEG")[:500],
        bomb(100, 100),
    ],
)
def test_a_broken_image_is_refused(body: bytes) -> None:
    with pytest.raises(Reject, match="the image cannot be decoded"):
        thumbnails.thumbnail(body)
