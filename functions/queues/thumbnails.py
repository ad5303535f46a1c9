"""thumbnails: an image in, a small image out.

The payload is the image itself: `aws s3 cp photo.jpg s3://bucket/thumbnails/messages/`. The thumbnail of
`messages/{name}` is written to `thumbnails/results/{name}.jpg` (`.png` if it is transparent). Objects with this prefix
notify no function, and the worker's role may write there. A second run writes the same bytes to the same key.
An address in the image's metadata (`--metadata notify=ada@example.com`) is sent an email through the queue `emails`.
"""

from __future__ import annotations

import io
import math
import os
import struct
import warnings
from functools import cache
from typing import TYPE_CHECKING

from s3queue.connect import open_store
from s3queue.deployment import Deployment
from s3queue.errors import Reject
from s3queue.keys import Keys
from s3queue.paths import name_of
from s3queue.store import ObjectStore
from s3queue.worker.context import Context
from s3queue.worker.definition import define

if TYPE_CHECKING:
    from PIL import Image
    from PIL.ImageFile import ImageFile

#: The longer side of a thumbnail, in pixels.
SIDE = 256
#: A kilobyte can claim to be a gigapixel: beyond so many pixels an image is refused before it is unpacked. By format,
#: because unpacking takes from 1 to 20 bytes a pixel; with these, the worst of each stays below 512 MiB (measured).
#: Only what people take pictures in: Pillow's decoders for everything else are so much less attack surface.
MAX_PIXELS = {
    "BMP": 50_000_000,
    "GIF": 50_000_000,
    "JPEG": 50_000_000,
    "PNG": 50_000_000,
    "TIFF": 35_000_000,
    "WEBP": 16_000_000,
}
#: Also the most that a JPEG can be: a strip of the image is bounded, too.
MAX_SIDE = 65_535
#: About so many pixels at a time are converted and shrunk.
STRIP_PIXELS = 1_000_000

queue = define(
    "thumbnails",
    visibility_timeout=90,
    handler_timeout=40,
    max_attempts=3,
    concurrency=3,
    # Twice what the worst image takes: see MAX_PIXELS.
    memory_mib=1024,
    max_message_size="32 MiB",
    sends_to=["emails"],
)


@queue.handler
def shrink(image: bytes, context: Context) -> dict[str, str | int]:
    """Make one thumbnail."""
    small, kind = thumbnail(image)
    key = f"{Keys(context.queue).prefix('results')}{name_of(context.path)}.{kind}"
    body = io.BytesIO()
    small.save(body, "JPEG" if kind == "jpg" else "PNG", optimize=True)
    content_type = "image/jpeg" if kind == "jpg" else "image/png"
    bucket().put(key, body.getvalue(), content_type=content_type)
    if address := context.metadata.get("notify"):
        context.send("emails", {"to": address, "subject": "Your thumbnail is ready", "body": key})
    return {"key": key, "width": small.width, "height": small.height, "bytes": body.tell()}


def thumbnail(image: bytes) -> tuple[Image.Image, str]:
    """The image, upright and at most SIDE pixels wide and high, and its file extension.

    Raises:
        Reject: it is not an image, or it is broken or too large to unpack.
    """
    # Here, not above: infra and the sweeper import every queue, and none of them looks at pictures.
    from PIL import ExifTags, Image

    # Pillow warns of a large image first and refuses a huge one, before it allocates; MAX_PIXELS is below both.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", Image.DecompressionBombWarning)
        try:
            with Image.open(io.BytesIO(image), formats=list(MAX_PIXELS)) as found:
                _check_size(found)
                found.draft("RGB", (SIDE * 2, SIDE * 2))  # a JPEG is then unpacked at a fraction of its size
                found.load()  # the first frame of several, and no other
                is_transparent = found.has_transparency_data
                small = _shrunk(found, "RGBA" if is_transparent else "RGB")
                turned = _turns(Image.Transpose).get(found.getexif().get(ExifTags.Base.Orientation))
            if turned is not None:
                small = small.transpose(turned)
            return small, "png" if is_transparent else "jpg"
        except Image.DecompressionBombError:
            raise Reject(f"the image has far more than {max(MAX_PIXELS.values()):,} pixels") from None
        except (OSError, SyntaxError, ValueError, EOFError, struct.error) as error:
            raise Reject(f"the image cannot be decoded: {type(error).__name__}") from None


def _check_size(found: ImageFile) -> None:
    """Before a pixel is unpacked: so far only the header was read."""
    from PIL.TiffImagePlugin import TILELENGTH, TILEWIDTH, TiffImageFile

    width, height = found.size
    most = MAX_PIXELS[found.format or ""]
    if width * height > most or max(width, height) > MAX_SIDE:
        raise Reject(
            f"{width} x {height} pixels; at most {most:,} of a {found.format} are unpacked, {MAX_SIDE:,} a side"
        )
    if isinstance(found, TiffImageFile):
        # A tile is unpacked whole, and may be far larger than the picture.
        tile = [found.tag_v2.get(tag, 1) for tag in (TILEWIDTH, TILELENGTH)]
        if not all(isinstance(side, int) for side in tile) or math.prod(tile) > most:
            raise Reject(f"tiles of {tile[0]} x {tile[1]} pixels; at most {most:,} are unpacked")


def _shrunk(found: Image.Image, mode: str) -> Image.Image:
    """No larger than SIDE, in this mode: strip by strip, because a converted copy is up to four times the original."""
    from PIL import Image

    width, height = found.size
    # To twice the size that is wanted; the rest is done with more care.
    factor = max(1, max(width, height) // (SIDE * 2))
    rows = max(1, STRIP_PIXELS // (width * factor)) * factor
    reduced = Image.new(mode, (-(-width // factor), -(-height // factor)))
    for top in range(0, height, rows):
        strip = found.crop((0, top, width, min(top + rows, height))).convert(mode)
        reduced.paste(strip.reduce(factor), (0, top // factor))
    scale = min(1.0, SIDE / max(width, height))
    size = (max(1, round(width * scale)), max(1, round(height * scale)))
    # Without what the last row and column hold beyond the edge.
    return reduced.resize(size, Image.Resampling.BICUBIC, box=(0, 0, width / factor, height / factor))


def _turns(transpose: type[Image.Transpose]) -> dict[int | None, Image.Transpose]:
    """How a picture is made upright, by what its camera noted."""
    return {
        2: transpose.FLIP_LEFT_RIGHT,
        3: transpose.ROTATE_180,
        4: transpose.FLIP_TOP_BOTTOM,
        5: transpose.TRANSPOSE,
        6: transpose.ROTATE_270,
        7: transpose.TRANSVERSE,
        8: transpose.ROTATE_90,
    }


@cache
def bucket() -> ObjectStore:
    """The bucket that thumbnails are written to; opened by the first one."""
    return open_store(f"s3://{Deployment.from_env(os.environ).bucket}")[0]
