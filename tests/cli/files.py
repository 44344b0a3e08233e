"""Small files of invoices."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

HEADER = "InvoiceNo,StockCode,Description,Quantity,InvoiceDate,UnitPrice,CustomerID,Country"


def line(number: str, tenant: str = "France", quantity: str = "1", price: str = "2.50") -> str:
    return f"{number},S1,THING,{quantity},2011-12-01T08:12:00,{price},17850,{tenant}"


def write(path: Path, lines: Iterable[str], header: str = HEADER) -> Path:
    path.write_text("\n".join((header, *lines)) + "\n", encoding="utf-8")
    return path
