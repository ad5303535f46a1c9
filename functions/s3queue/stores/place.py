"""Place: where a bucket's requests go: host, region and the path before each key. It never changes: a store moves."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from .connections import Answer

#: How S3 answers for a bucket of another region, which the answer names.
_ELSEWHERE = (301, 307, 400)
_REGION = re.compile(r"[a-z]{2,6}(-[a-z]{2,12}){1,3}-[0-9]{1,2}")


@dataclass(frozen=True, slots=True)
class Place:
    """A bucket at an address of S3. A request takes all of it from one place: another thread may move the store."""

    bucket: str
    address: str
    region: str
    #: Where connections go, and what comes before a key there.
    host: str = field(init=False)
    root: str = field(init=False)

    def __post_init__(self) -> None:
        found = urlsplit(self.address)
        plain = self.bucket.replace("-", "")
        # Only names that can be part of a host name: old buckets have dots, underscores or capital letters.
        is_label = plain.isalnum() and self.bucket == self.bucket.lower() and len(self.bucket) <= 63
        host, root = self.address, f"{found.path.rstrip('/')}/{self.bucket}/"
        if (found.hostname or "").startswith("s3.") and ".amazonaws." in self.address and is_label:
            host, root = f"{found.scheme}://{self.bucket}.{found.netloc}", "/"
        object.__setattr__(self, "host", host)
        object.__setattr__(self, "root", root)

    def named_by(self, answer: Answer) -> Place | None:
        """Where the bucket is if S3 says that it is in another region; S3 carried nothing out then.

        Only AWS is believed: an address that someone gave us is the one that was meant.
        """
        region = answer.headers.get("x-amz-bucket-region", "")
        if answer.status not in _ELSEWHERE or not _REGION.fullmatch(region) or region == self.region:
            return None
        host = urlsplit(self.address).hostname or ""
        if not (host.startswith("s3") and ".amazonaws.com" in host):
            return None
        address = f"https://s3.{region}.amazonaws.com"
        if f".{self.region}." in self.address:  # FIPS, dual-stack and other partitions keep their form
            address = self.address.replace(f".{self.region}.", f".{region}.")
        return Place(self.bucket, address, region)
