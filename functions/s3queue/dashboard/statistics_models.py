"""The answers of the API about statistics."""

from __future__ import annotations

from pydantic import Field

from .models import Answer, AnyJson


class Prices(Answer):
    put: float = Field(description="Dollars per million writes and LISTs; a DELETE is free.")
    get: float = Field(description="Dollars per million reads.")


class Statistics(Answer):
    available: bool
    modified_at: str | None
    document: AnyJson = Field(description="The content of analytics/latest.json, which the Spark job wrote.")
    prices: Prices = Field(description="What S3's requests cost, for the cost of an hour.")
