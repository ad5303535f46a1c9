"""Events as AWS sends them, one file each in events/, and the messages that each of them names."""

from __future__ import annotations

from pathlib import Path

EVENTS = Path(__file__).parent / "events"

NAMED = {
    "put": ["messages/welcome.json"],
    "post": ["messages/form-upload"],
    "copy": ["messages/p200/replayed.json"],
    "multipart": ["messages/in-parts.json"],
    "encoded_keys": ["messages/für Ada ✉.json", "messages/1+1=2%.json", "messages/a/b&c?d#e"],
    "several_records": ["messages/first.json", "messages/second.json", "messages/third.json"],
    "duplicate_records": ["messages/twice.json"],
    "other_prefix": ["messages/ours.json"],
    "other_bucket": [],
    "folder": [],
    "empty_message": ["messages/empty"],
    "deleted": [],
    "delete_marker": [],
    "malformed_record": ["messages/good.json"],
    "test_event": [],
    "eventbridge": ["messages/für Ada + Bob.json"],
    "dispatch": ["messages/p255/urgent.json", "delayed/20261116T101500Z/later.json", "messages/für Ada.json"],
    # Meant for the sweeper; a worker that gets it says so.
    "emr_failed": [],
}
