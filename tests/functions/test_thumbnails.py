"""The thumbnails queue: real images, on moto."""

from __future__ import annotations

import io
import os
import struct
import subprocess
import sys
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from PIL import Image, ImageChops, ImageOps, ImageStat, TiffImagePlugin

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


def tile_bomb(side: int, tile: int) -> bytes:
    """A TIFF of few pixels, in one tile of very many."""
    packer = zlib.compressobj(1)
    data = b"".join(packer.compress(bytes(tile * 3)) for _ in range(tile)) + packer.flush()
    short, long = 3, 4
    after = 8 + 2 + 10 * 12 + 4
    entries = [
        (256, short, 1, side),
        (257, short, 1, side),
        (258, short, 3, after),
        (259, short, 1, 8),
        (262, short, 1, 2),
        (277, short, 1, 3),
        (322, long, 1, tile),
        (323, long, 1, tile),
        (324, long, 1, after + 6),
        (325, long, 1, len(data)),
    ]
    directory = b"".join(struct.pack("<HHII", *entry) for entry in entries)
    return b"II*\0" + struct.pack("<IH", 8, 10) + directory + bytes(4) + struct.pack("<HHH", 8, 8, 8) + data


def turned_tiff(monkeypatch: pytest.MonkeyPatch) -> bytes:
    """In one strip, which is unpacked whole, and noted as taken sideways, for which another copy is made."""
    monkeypatch.setattr(TiffImagePlugin, "STRIP_SIZE", 2**30)
    picture = Image.new("RGBA", (5900, 5900))
    return encoded(picture, "TIFF", compression="tiff_adobe_deflate", tiffinfo={274: 6})


def plain(mode: str, side: int, kind: str, **options: Any) -> Callable[[pytest.MonkeyPatch], bytes]:
    return lambda _: encoded(Image.new(mode, (side, side)), kind, **options)


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="peak memory is read from /proc")
@pytest.mark.parametrize(
    ("make", "said"),
    [
        # 1,156 MiB when it was unpacked: its encoder makes 98 bytes of it at best.
        (plain("RGBA", 7000, "WEBP", lossless=True), "Reject 7000 x 7000 pixels; at most 16,000,000 of a WEBP"),
        (plain("RGBA", 4000, "WEBP", lossless=True), "png (256, 256)"),
        (plain("RGB", 4000, "WEBP", quality=10), "jpg (256, 256)"),
        (plain("RGBA", 7000, "PNG"), "png (256, 256)"),
        (plain("I;16", 7000, "PNG"), "jpg (256, 256)"),
        (plain("P", 7000, "GIF"), "jpg (256, 256)"),
        (plain("CMYK", 7000, "JPEG", progressive=True), "jpg (256, 256)"),
        (turned_tiff, "png (256, 256)"),
        # A tile of 20,000 x 20,000 took 1,180 MiB.
        (lambda _: tile_bomb(100, 16_000), "Reject tiles of 16000 x 16000 pixels"),
        (lambda _: bomb(1, 40_000_000), "Reject 1 x 40000000 pixels"),
    ],
)
def test_no_image_takes_half_of_the_functions_memory(
    make: Callable[[pytest.MonkeyPatch], bytes], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a process of its own, whose peak is measured."""
    code = """if True:
        import re, sys
        from pathlib import Path
        from queues import thumbnails
        from s3queue.errors import Reject
        try:
            small, kind = thumbnails.thumbnail(sys.stdin.buffer.read())
            print(kind, small.size)
        except Reject as refused:
            print("Reject", refused)
        # Not getrusage: it counts what the parent had before this process was another program.
        print(re.search(r"VmHWM:\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1])
    """
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    child = subprocess.run([sys.executable, "-c", code], input=make(monkeypatch), capture_output=True, env=environment)
    assert child.returncode == 0, child.stderr.decode()
    answer, peak = child.stdout.decode().splitlines()
    assert answer.startswith(said)
    mib = int(peak) / 1024
    assert mib < thumbnails.queue.settings.memory_mib / 2, f"{mib:.0f} MiB"


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("kind", ["JPEG", "PNG", "TIFF", "WEBP"])
def test_every_way_to_hold_a_camera_is_turned_upright(orientation: int, kind: str) -> None:
    # Four quarters of one colour each, so that every turn and mirror is told from every other.
    upright = Image.new("RGB", (600, 400))
    for place, colour in zip([(0, 0), (300, 0), (0, 200), (300, 200)], ["red", "green", "blue", "white"], strict=True):
        upright.paste(colour, (*place, place[0] + 300, place[1] + 200))
    exif = Image.Exif()
    exif[0x0112] = orientation
    taken = Image.open(io.BytesIO(encoded(upright, kind, exif=exif)))
    wanted = ImageOps.exif_transpose(taken).convert("RGB").resize((12, 12), Image.Resampling.BOX)
    small, _ = thumbnails.thumbnail(encoded(upright, kind, exif=exif))
    found = small.resize((12, 12), Image.Resampling.BOX)
    assert small.size == ((256, 171) if orientation < 5 else (171, 256))
    for place in ((2, 2), (9, 2), (2, 9), (9, 9)):
        assert all(abs(a - b) < 40 for a, b in zip(found.getpixel(place), wanted.getpixel(place), strict=True))  # type: ignore[arg-type]


@pytest.mark.parametrize("size", [(3001, 17), (17, 3001), (1, 9000), (513, 512), (1537, 1023)])
def test_strips_make_the_same_picture_as_one_step(size: tuple[int, int]) -> None:
    picture = Image.effect_noise(size, 90).convert("RGB")
    small, _ = thumbnails.thumbnail(encoded(picture, "PNG"))
    assert max(small.size) == 256
    expected = picture.resize(small.size, Image.Resampling.BICUBIC, reducing_gap=2.0)
    difference = ImageStat.Stat(ImageChops.difference(small, expected)).mean
    assert max(difference) < 6, difference


def test_whoever_is_named_in_the_metadata_is_sent_one_email_with_the_outcome(installation):
    """[P7] A message of the queue `emails`, as its model wants it."""
    from queues import emails

    body = encoded(Image.new("RGB", (400, 300)), "JPEG")
    key = installation.put("thumbnails/messages/mine.jpg", body, Metadata={"notify": "ada@example.com"})

    assert worker.handle(installation.created(key, size=len(body)), LambdaContext())["completed"] == 1

    (sent,) = installation.keys("emails/")
    assert sent.startswith("emails/messages/sent-")
    stored = installation.queue("emails").store.open(sent)
    mail = emails.queue.parse(stored.read())
    assert (mail.to, mail.body) == ("ada@example.com", "thumbnails/results/mine.jpg.jpg")
