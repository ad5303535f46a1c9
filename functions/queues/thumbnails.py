"""thumbnails: an image in, a small image out.

The payload is the image itself: `aws s3 cp photo.jpg s3://bucket/thumbnails/messages/`. The thumbnail of
`messages/{name}` is written to `thumbnails/results/{name}.jpg` (`.png` if it is transparent). Objects with this prefix
notify no function, and the worker's role may write there. A second run writes the same bytes to the same key.
"""

from __future__ import annotations

import io
import os
import warnings
from functools import cache
from typing import TYPE_CHECKING

from s3queue.connect import open_store
from s3queue.errors import Reject
from s3queue.keys import Keys, name_of
from s3queue.settings import Deployment
from s3queue.store import ObjectStore
from s3queue.worker.context import Context
from s3queue.worker.definition import define

if TYPE_CHECKING:
    from PIL import Image

#: The longer side of a thumbnail, in pixels.
SIDE = 256
#: A file of a kilobyte can claim to have a gigapixel: a larger image is refused before it is unpacked.
MAX_PIXELS = 50_000_000
#: The formats of photos and screenshots; without Pillow's other decoders the attack surface is smaller.
FORMATS = ("BMP", "GIF", "JPEG", "PNG", "TIFF", "WEBP")

queue = define(
    "thumbnails",
    visibility_timeout=90,
    handler_timeout=40,
    max_attempts=3,
    concurrency=3,
    # 50 megapixels with transparency are 200 MB, and a smaller copy is made from them.
    memory_mib=1024,
    max_message_size="32 MiB",
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
    return {"key": key, "width": small.width, "height": small.height, "bytes": body.tell()}


def thumbnail(image: bytes) -> tuple[Image.Image, str]:
    """The image, upright and at most SIDE pixels wide and high, and its file extension.

    Raises:
        Reject: it is not an image, or it is broken or too large to unpack.
    """
    # Imported here: infra and the sweeper import every queue, and do not need Pillow.
    from PIL import Image, ImageOps

    # Pillow warns of a large image first and refuses a huge one; MAX_PIXELS is below both.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", Image.DecompressionBombWarning)
        try:
            with Image.open(io.BytesIO(image), formats=FORMATS) as found:
                if found.width * found.height > MAX_PIXELS:
                    raise Reject(f"the image has {found.width} x {found.height} pixels; the limit is {MAX_PIXELS:,}")
                found.draft("RGB", (SIDE * 2, SIDE * 2))  # a JPEG is then unpacked at a fraction of its size
                upright = ImageOps.exif_transpose(found)
                is_transparent = upright.has_transparency_data
                small = upright.convert("RGBA" if is_transparent else "RGB")
                small.thumbnail((SIDE, SIDE))
                return small, "png" if is_transparent else "jpg"
        except Image.DecompressionBombError:
            raise Reject(f"the image has far more than {MAX_PIXELS:,} pixels") from None
        except (OSError, SyntaxError, ValueError, EOFError) as error:
            raise Reject(f"the image cannot be decoded: {type(error).__name__}") from None


@cache
def bucket() -> ObjectStore:
    """The bucket that thumbnails are written to; opened by the first one."""
    return open_store(f"s3://{Deployment.from_env(os.environ).bucket}")[0]
