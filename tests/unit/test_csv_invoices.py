from __future__ import annotations

import codecs
import csv
import gzip
import io
import os
import re
import threading
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from decimal import Decimal
from itertools import groupby
from pathlib import Path
from random import Random
from typing import Protocol, TypeAlias

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from taskbridge.cli.csv_invoices import JSON, Invoice, InvoiceFile, read_invoices
from taskbridge.errors import InvalidInput

REAL_DAY = Path(__file__).parents[2] / "examples" / "online_retail_2011-12-01.csv"
COLUMNS = ["InvoiceNo", "StockCode", "Description", "Quantity", "InvoiceDate", "UnitPrice", "CustomerID", "Country"]
HEADER = ",".join(COLUMNS)
A1 = "1001,85123A,HEART,2,2011-12-01T08:00:00,2.55,17850,France"
A2 = "1001,71053,LANTERN,1,2011-12-01T08:00:00,3.39,17850,France"
B1 = "1002,22633,HAND WARMER,6,2011-12-01T08:05:00,1.85,17851,Germany"
C1 = "1003,84879,BIRD,4,2011-12-01T08:09:00,1.69,13047,Norway"
D1 = "1004,22745,BLOCKS,3,2011-12-01T08:12:00,2.10,13048,Spain"
FILE = [A1, A2, B1, C1, D1]


class Read(Protocol):
    def __call__(self, *lines: str, header: str = HEADER, tenant_column: str = "Country") -> InvoiceFile: ...


@pytest.fixture
def read(tmp_path: Path) -> Read:
    def read_lines(*lines: str, header: str = HEADER, tenant_column: str = "Country") -> InvoiceFile:
        content = "\n".join([header, *lines]).encode("utf-8", "surrogateescape")
        return read_bytes(tmp_path, content, tenant_column)

    return read_lines


def read_bytes(folder: Path, content: bytes, tenant_column: str = "Country") -> InvoiceFile:
    path = folder / "invoices.csv"
    path.write_bytes(content)
    return read_invoices(path, tenant_column)


def numbers(file: InvoiceFile) -> list[str]:
    return [invoice.number for invoice in file.invoices]


def held_and_passed(file: InvoiceFile) -> tuple[list[str], list[str]]:
    return file.held_back, numbers(file)


def csv_line(row: list[str]) -> str:
    output = io.StringIO(newline="")
    csv.writer(output).writerow(row)
    return output.getvalue()


def with_value(line: str, column: str, value: str) -> str:
    row = line.split(",")
    row[COLUMNS.index(column)] = value
    return csv_line(row).removesuffix("\r\n")


# The real file


def real_rows() -> list[dict[str, str]]:
    with REAL_DAY.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def test_the_real_day_comes_out_whole() -> None:
    file = read_invoices(REAL_DAY)

    rows = real_rows()
    assert (len(file.invoices), len({invoice.tenant for invoice in file.invoices}), file.lines) == (169, 6, 2901)
    assert (file.problems, file.held_back) == ([], [])
    assert numbers(file) == list(dict.fromkeys(row["InvoiceNo"] for row in rows))
    total = sum(Decimal(str(invoice.document["total"])) for invoice in file.invoices)
    assert total == sum(Decimal(row["UnitPrice"]) * int(row["Quantity"]) for row in rows)


def test_the_real_credit_notes_and_missing_customers_are_told_from_the_rest() -> None:
    file = read_invoices(REAL_DAY)

    rows = real_rows()
    credit_notes = {i.number for i in file.invoices if i.document["kind"] == "credit_note"}
    anonymous = {i.number for i in file.invoices if i.document["customer"] is None}
    assert credit_notes == {row["InvoiceNo"] for row in rows if row["InvoiceNo"].startswith("C")} != set()
    assert anonymous == {row["InvoiceNo"] for row in rows if not row["CustomerID"]} != set()


# What an invoice becomes


def test_the_document_is_exact_and_complete(read: Read) -> None:
    file = read(
        "C7,  A ,GIFT ,-3, 2011-12-01T08:00:00 , 0.10 , 5 , France ", "C7,B,,10,2011-12-01T08:00:00,0.0,5,France"
    )

    lines: list[JSON] = [
        {"stock_code": "A", "description": "GIFT ", "quantity": -3, "unit_price": "0.10", "total": "-0.30"},
        {"stock_code": "B", "description": None, "quantity": 10, "unit_price": "0.0", "total": "0.0"},
    ]
    document: dict[str, JSON] = {
        "number": "C7",
        "kind": "credit_note",
        "date": "2011-12-01T08:00:00",
        "customer": "5",
        "lines": lines,
        "total": "-0.30",
    }
    assert file == InvoiceFile([Invoice("France", "C7", document)], [], [], 2)


@pytest.mark.parametrize(
    ("quantity", "price", "total"),
    [
        ("-1", "0.0", "0.0"),
        ("3", "0.1", "0.3"),
        ("+1", ".5", "0.5"),
        ("1", "1e-05", "0.00001"),
        ("999999999999999999", "99999999999999999999.99", "99999999999999999899990000000000000000.01"),
    ],
)
def test_totals_are_never_rounded(read: Read, quantity: str, price: str, total: str) -> None:
    file = read(f"1,A,,{quantity},2011-12-01,{price},,France")

    assert file.invoices[0].document["total"] == total


def test_lines_of_one_invoice_are_grouped_wherever_they_stand(read: Read) -> None:
    together = read(A1, A2, B1, C1)

    apart = read(A1, B1, C1, A2)

    assert apart == together


@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("mark", [b"", codecs.BOM_UTF8])
@pytest.mark.parametrize("pack", [bytes, gzip.compress])
@pytest.mark.parametrize("last_end", [True, False])
def test_line_ends_byte_order_mark_and_gzip_change_nothing(
    tmp_path: Path, end: str, mark: bytes, pack: Callable[[bytes], bytes], last_end: bool
) -> None:
    text = end.join([HEADER, *FILE]) + (end if last_end else "")

    file = read_bytes(tmp_path, pack(mark + text.encode()))

    assert (file.problems, numbers(file)) == ([], ["1001", "1002", "1003", "1004"])


def test_blank_lines_and_rows_of_commas_are_no_lines(read: Read) -> None:
    file = read("", A1, "  ", A2, ",,,,,,,", B1, "")

    assert (file.problems, numbers(file), file.lines) == ([], ["1001", "1002"], 3)


def test_columns_may_stand_in_any_order_beside_others(read: Read) -> None:
    file = read(
        "x,Acme,France,5,1.5,2011-12-01,2,GIFT,A,7,y",
        header="Note,Shop,Country,CustomerID,UnitPrice,InvoiceDate,Quantity,Description,StockCode,InvoiceNo,Other",
        tenant_column="Shop",
    )

    assert [(i.tenant, i.number, i.document["total"]) for i in file.invoices] == [("Acme", "7", "3.0")]


@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_progress_ends_at_the_size_of_the_file_whether_packed_or_not(
    tmp_path: Path, pack: Callable[[bytes], bytes]
) -> None:
    path = tmp_path / "invoices"
    path.write_bytes(pack(REAL_DAY.read_bytes()))
    seen: list[int] = []

    read_invoices(path, progress=seen.append)

    assert seen == sorted(seen)
    assert (len(seen) > 3, seen[-1]) == (True, path.stat().st_size)


def test_a_pipe_is_read_although_it_has_no_position(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = threading.Thread(target=pipe.write_bytes, args=("\n".join([HEADER, *FILE]).encode(),), daemon=True)
    writer.start()
    seen: list[int] = []

    file = read_invoices(pipe, progress=seen.append)

    assert (len(file.invoices), seen) == (4, [])


def test_an_error_of_the_progress_bar_is_not_taken_for_one_of_the_file() -> None:
    def broken(_: int) -> None:
        raise BrokenPipeError

    with pytest.raises(BrokenPipeError):
        read_invoices(REAL_DAY, progress=broken)


# A bad line holds back its invoice, whole


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("Quantity", "1.5"),
        ("Quantity", "two"),
        ("Quantity", ""),
        ("Quantity", "1_0"),
        ("Quantity", "\u0663"),
        ("Quantity", "9" * 5000),
        ("UnitPrice", "NaN"),
        ("UnitPrice", "-Infinity"),
        ("UnitPrice", "1e999999"),
        ("UnitPrice", "1e-999999"),
        ("UnitPrice", "1e10"),
        ("UnitPrice", "1,50"),
        ("UnitPrice", "1_0"),
        ("UnitPrice", "\u0663"),
        ("UnitPrice", "."),
        ("UnitPrice", ""),
        ("InvoiceDate", "01/12/2011"),
        ("InvoiceDate", "2011-13-01"),
        ("InvoiceDate", "2011-12-01\x0108:00"),
        ("InvoiceDate", ""),
        ("StockCode", " "),
        ("Country", ""),
        ("Country", "a\x07b"),
        ("Country", "x" * 201),
    ],
)
def test_a_bad_value_never_leaves_a_partial_invoice(read: Read, column: str, value: str) -> None:
    file = read(D1, A1, with_value(A2, column, value), B1)

    assert held_and_passed(file) == (["1001"], ["1004", "1002"])
    [problem] = file.problems
    assert (problem.line, problem.last_line, problem.invoice) == (4, 4, "1001")
    assert column in problem.text
    assert repr(value.strip()[:15])[1:-1] in problem.text
    assert "differs" not in problem.text
    assert len(problem.text) < 250


def test_each_bad_line_is_reported_with_all_its_faults(read: Read) -> None:
    file = read("1,,,x,2011-12-01,y,,France", A1, "1,A,,z,2011-12-01,1,,France")

    assert [(p.line, p.invoice) for p in file.problems] == [(2, "1"), (4, "1")]
    assert re.search("StockCode.*Quantity 'x'.*UnitPrice 'y'", file.problems[0].text)
    assert held_and_passed(file) == (["1"], ["1001"])


@pytest.mark.parametrize(
    ("column", "value", "first"),
    [
        ("Country", "Spain", "France"),
        ("InvoiceDate", "2011-12-02", "2011-12-01T08:00:00"),
        ("CustomerID", "9", "17850"),
        ("CustomerID", "", "17850"),
    ],
)
def test_an_invoice_never_mixes_tenants_dates_or_customers(read: Read, column: str, value: str, first: str) -> None:
    file = read(A1, B1, with_value(A2, column, value))

    assert held_and_passed(file) == (["1001"], ["1002"])
    [problem] = file.problems
    assert (problem.line, problem.invoice) == (4, "1001")
    assert f"{column} {value!r} differs from {first!r} in line 2" in problem.text


@pytest.mark.parametrize(("byte", "remedy"), [("\udce9", "iconv"), ("\0", "NUL")])
def test_undecodable_text_beside_a_sound_number_holds_back_that_invoice(read: Read, byte: str, remedy: str) -> None:
    file = read(A1, with_value(B1, "Description", f"H{byte}ND"), C1)

    assert held_and_passed(file) == (["1002"], ["1001", "1003"])
    assert [(p.line, p.invoice, remedy in p.text) for p in file.problems] == [(3, "1002", True)]


# A line whose number cannot be trusted may belong to any invoice


@pytest.mark.parametrize(
    "line",
    [
        ",22633,WARMER,6,2011-12-01T08:05:00,1.85,17851,Germany",
        "9\x019,22633,WARMER,6,2011-12-01T08:05:00,1.85,17851,Germany",
        "9\xa09,22633,WARMER,6,2011-12-01T08:05:00,1.85,17851,Germany",
        "\ufeff9,22633,WARMER,6,2011-12-01T08:05:00,1.85,17851,Germany",
        "9\udce99,22633,WARMER,6,2011-12-01T08:05:00,1.85,17851,Germany",
        "9\x009,22633,WARMER,6,2011-12-01T08:05:00,1.85,17851,Germany",
        "9" * 201 + ",22633,WARMER,6,2011-12-01T08:05:00,1.85,17851,Germany",
        "22633,WARMER,6,2011-12-01T08:05:00,1.85,17851,Germany",
        "99,22633,WARM,ER,6,2011-12-01T08:05:00,1.85,17851,Germany",
    ],
    ids=lambda line: ascii(line[:25]),
)
def test_a_line_of_nobody_holds_back_all_invoices(read: Read, line: str) -> None:
    file = read(A1, A2, B1, line, C1, D1)

    assert held_and_passed(file) == (["1001", "1002", "1003", "1004"], [])
    [problem] = file.problems
    assert (problem.line, problem.last_line, problem.invoice) == (5, 5, None)
    assert "cannot be trusted, so all invoices are held back" in problem.text


def test_problems_are_told_in_the_order_of_the_file(read: Read) -> None:
    file = read(D1, "x", A1, with_value(B1, "Quantity", "x"), "x", "\udce9" + C1)

    assert [p.line for p in file.problems] == [3, 5, 6, 7]
    assert "iconv" in file.problems[3].text


def test_two_lines_that_ran_together_leave_no_partial_invoice(read: Read) -> None:
    # given the line end between B1 and C1 is lost
    file = read(B1, A1, B1 + C1, A1, C1, D1)

    assert held_and_passed(file) == (["1002", "1001", "1003", "1004"], [])


# Broken quoting: nobody can tell which lines a stray quote swallowed


@pytest.mark.parametrize(
    "lines",
    [
        [A1, '99,22633,"WARM"ER,6,2011-12-01T08:05:00,1.85,17851,Germany', C1],
        [A1, '99,22633,WARM"ER,6,2011-12-01T08:05:00,1.85,17851,Germany', C1],
        [A1, "99,22633,WARM\rER,6,2011-12-01T08:05:00,1.85,17851,Germany", C1],
        [A1, "99,22633," + "W" * 140_000 + ",6,2011-12-01T08:05:00,1.85,17851,Germany", C1],
        [A1, B1.replace("HAND", '"HAND'), A2],
        [A1, B1.replace("HAND", '"HAND'), *([A2] * 4000)],
        [D1, A1.replace("HEART", '"HEART'), B1, A2.replace("LANTERN", 'LANTERN"'), B1, C1],
        [A1, B1.replace("HAND", '"HAND'), *(["W" * 1000] * 2000)],
    ],
    ids=lambda lines: ascii(lines[1][:40]) + str(len(lines)),
)
def test_a_file_with_broken_quoting_is_refused_with_the_line_and_what_to_do(read: Read, lines: list[str]) -> None:
    with pytest.raises(InvalidInput, match=r"invoices.csv: line 3 cannot be read: .*correct its quotes") as refused:
        read(*lines)

    assert len(str(refused.value)) < 500


# Memory


@contextmanager
def at_most_megabytes(most: int) -> Iterator[None]:
    tracemalloc.start()
    try:
        yield
        assert tracemalloc.get_traced_memory()[1] < most * 1_000_000
    finally:
        tracemalloc.stop()


def test_many_lengths_of_numbers_and_a_long_broken_line_cost_little_memory(read: Read) -> None:
    lines = [with_value(A1, "InvoiceNo", "7" * length) for length in range(1, 200)]
    with at_most_megabytes(20):
        file = read(*lines, "x" * 50_000)
    assert (len(file.held_back), file.invoices) == (199, [])


@pytest.mark.parametrize(
    "text", ["7" * 64_000_000, f"{HEADER}\n" + "7" * 64_000_000, f'{HEADER}\n"' + "7\n" * 9_000_000]
)
def test_a_small_packed_file_of_one_endless_line_costs_little_memory(tmp_path: Path, text: str) -> None:
    packed = gzip.compress(text.encode())
    with pytest.raises(InvalidInput, match=r"longer than 1,048,576 bytes|cannot be read"), at_most_megabytes(20):
        read_bytes(tmp_path, packed)


def test_a_file_of_nothing_but_bad_lines_is_given_up(tmp_path: Path) -> None:
    packed = gzip.compress(f"{HEADER}\n".encode() + b"x\n" * 30_000)
    with pytest.raises(InvalidInput, match=r"10,000 lines up to line 10002 are bad"):
        read_bytes(tmp_path, packed)


def test_line_numbers_count_the_lines_inside_quoted_fields(read: Read) -> None:
    file = read(with_value(A1, "Description", "HE\r\nA\n\nRT"), with_value(B1, "Quantity", "x"), C1)

    assert [(p.line, p.last_line) for p in file.problems] == [(6, 6)]
    assert (numbers(file), file.lines) == (["1001", "1003"], 3)
    assert r"'HE\r\nA\n\nRT'" in repr(file.invoices[0].document["lines"])


# The file as a whole


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "is empty"),
        (b"\n \n", "is empty"),
        (codecs.BOM_UTF8, "is empty"),
        (gzip.compress(b"", mtime=0), "is empty"),
        (HEADER.encode(), "holds no invoices"),
        (HEADER.encode() + b"\n\n,,,,,,,\n", "holds no invoices"),
        (HEADER.replace("Quantity", "Qty").encode(), "'Quantity'.*'Qty'"),
        (HEADER.replace(",", ";").encode(), "separated by commas"),
        (HEADER.replace("Country", "Shop").encode(), "'Country'.*'Shop'.*--tenant-column"),
        (f"{HEADER},Quantity".encode(), "more than one column 'Quantity'"),
        (f'"{HEADER}'.encode(), "never closed"),
        (HEADER.encode("utf-16"), "iconv"),
        (b"\x7fELF\x02\x01\0\0", "not UTF-8 text"),
        (b"\x1f\x8b but no gzip", "gzip"),
        (gzip.compress(HEADER.encode(), mtime=0)[:5], "gzip"),
        (gzip.compress(HEADER.encode(), mtime=0)[:-4], "gzip"),
        (gzip.compress(HEADER.encode(), mtime=0) + b"more", "gzip"),
        (gzip.compress(HEADER.encode(), mtime=0)[:10] + b"\xff" * 30, "gzip"),
    ],
)
def test_a_file_that_cannot_be_used_is_refused_by_name(tmp_path: Path, content: bytes, says: str) -> None:
    with pytest.raises(InvalidInput, match=says) as caught:
        read_bytes(tmp_path, content)

    assert str(tmp_path / "invoices.csv") in str(caught.value)


def test_a_path_that_cannot_be_read_is_refused_by_name(tmp_path: Path) -> None:
    locked = tmp_path / "locked.csv"
    locked.touch(mode=0)
    paths = [tmp_path / "gone.csv", tmp_path, tmp_path / ("x" * 300), Path("a\0b")]
    if not os.access(locked, os.R_OK):  # root may read it
        paths.append(locked)
    for path in paths:
        with pytest.raises(InvalidInput, match="cannot be read") as caught:
            read_invoices(path)
        assert str(path) in str(caught.value)


def test_an_error_of_the_disk_in_mid_file_is_translated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class FailingDisk(io.BytesIO):
        def peek(self, _: int) -> bytes:
            return b""

        def readline(self, _: int | None = None) -> bytes:
            raise OSError(5, "Input/output error")

    monkeypatch.setattr(Path, "open", lambda *_: FailingDisk())

    with pytest.raises(InvalidInput, match=r"cannot be read \(Input/output error\)"):
        read_invoices(tmp_path / "invoices.csv")


# Properties


PROPERTY = settings(derandomize=True, database=None, deadline=None)
TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=12)
STRAY = st.text('",\r\n a1é', max_size=12)
NAME = st.text(st.characters(categories=["L", "N", "P"]), min_size=1, max_size=6)
Line: TypeAlias = "tuple[str, str, int, int]"
Written: TypeAlias = "tuple[list[list[str]], Invoice]"
LINE = st.tuples(NAME, TEXT | STRAY, st.integers(-1000, 1000), st.integers(0, 10**6))


def money(cents: int) -> str:
    return f"{'-' if cents < 0 else ''}{abs(cents) // 100}.{abs(cents) % 100:02d}"


@st.composite
def written(draw: st.DrawFn, number: str, lines: st.SearchStrategy[list[Line]]) -> Written:
    tenant, customer = draw(NAME), draw(st.just("") | NAME)
    date = draw(st.datetimes()).isoformat()
    drawn = draw(lines)
    document: dict[str, JSON] = {
        "number": number,
        "kind": "credit_note" if number[0] == "C" else "invoice",
        "date": date,
        "customer": customer or None,
        "lines": [
            {
                "stock_code": code,
                "description": text or None,
                "quantity": quantity,
                "unit_price": money(cents),
                "total": money(quantity * cents),
            }
            for code, text, quantity, cents in drawn
        ],
        "total": money(sum(quantity * cents for _, _, quantity, cents in drawn)),
    }
    rows = [[number, code, text, str(n), date, money(cents), customer, tenant] for code, text, n, cents in drawn]
    return rows, Invoice(tenant, number, document)


def several(names: st.SearchStrategy[str], *, invoices: int = 1, lines: int = 1) -> st.SearchStrategy[list[Written]]:
    drawn_lines = st.lists(LINE, min_size=lines, max_size=4)
    return st.lists(names, min_size=invoices, max_size=5, unique=True).flatmap(
        lambda numbers: st.tuples(*(written(number, drawn_lines) for number in numbers)).map(list)
    )


def interleaved(invoices: list[Written], random: Random) -> list[list[str]]:
    """The rows of all invoices, mixed; those of one invoice keep their order, as its document does."""
    queues = [list(rows) for rows, _ in invoices]
    turns = [queue for queue in queues for _ in queue]
    random.shuffle(turns)
    return [queue.pop(0) for queue in turns]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("property")


@PROPERTY
@given(several(NAME), st.randoms(use_true_random=False), st.booleans())
def test_any_invoices_in_any_order_of_lines_read_back_equal(
    folder: Path, invoices: list[Written], random: Random, packed: bool
) -> None:
    rows = interleaved(invoices, random)
    content = "".join(map(csv_line, [COLUMNS, *rows])).encode()

    file = read_bytes(folder, gzip.compress(content) if packed else content)

    in_order = {row[0]: None for row in rows}
    wanted = {invoice.number: invoice for _, invoice in invoices}
    assert file == InvoiceFile([wanted[number] for number in in_order], [], [], len(rows))


@PROPERTY
@given(
    st.sampled_from([b"", HEADER.encode() + b"\n", f"{HEADER}\n{A1}\n".encode(), b"\x1f\x8b\x08", codecs.BOM_UTF8]),
    st.binary(max_size=200) | st.text('",\n\r1aC.-', max_size=60).map(str.encode),
    st.booleans(),
)
def test_no_bytes_raise_anything_but_invalid_input(folder: Path, start: bytes, rest: bytes, packed: bool) -> None:
    content = gzip.compress(start + rest) if packed else start + rest

    with suppress(InvalidInput):
        file = read_bytes(folder, content)
        assert not set(file.held_back) & set(numbers(file))


def damaged(data: st.DataObject, rows: list[list[str]]) -> tuple[int, bytes]:
    """Damage one row, the header included, and return its index and the file."""
    records = [csv_line(row).encode() for row in rows]
    index = data.draw(st.integers(0, len(rows) - 1), label="row")
    record = records[index]
    position = data.draw(st.integers(0, len(record) - 1), label="position")
    match data.draw(st.sampled_from(["field", "byte", "quote", "line end"]), label="damage"):
        case "field":
            field = position % len(COLUMNS)
            records[index] = csv_line(rows[index][:field] + rows[index][field + 1 :]).encode()
        case "byte":  # one that no text holds: a letter for a letter cannot be seen by any reader
            byte = data.draw(st.sampled_from([b"\xff", b"\xc0", b"\0"]), label="byte")
            records[index] = record[:position] + byte + record[position + 1 :]
        case "quote":
            records[index] = record[:position] + b'"' + record[position:]
        case "line end":
            records[index] = record[:-2]
    return index, b"".join(records)


def assert_nothing_partial(folder: Path, content: bytes, invoices: list[Written]) -> None:
    with suppress(InvalidInput):
        for invoice in read_bytes(folder, content).invoices:
            assert invoice in [whole for _, whole in invoices]


@settings(PROPERTY, max_examples=80)
@given(several(NAME), st.data())
def test_no_damage_to_one_line_ever_leaves_a_partial_invoice(
    folder: Path, invoices: list[Written], data: st.DataObject
) -> None:
    _, content = damaged(data, [COLUMNS, *(row for rows, _ in invoices for row in rows)])

    assert_nothing_partial(folder, content, invoices)


@settings(PROPERTY, max_examples=40)
@given(several(NAME, invoices=2, lines=2), st.randoms(use_true_random=False), st.data())
def test_no_damage_leaves_a_partial_invoice_where_lines_stand_apart(
    folder: Path, invoices: list[Written], random: Random, data: st.DataObject
) -> None:
    rows = interleaved(invoices, random)
    index, content = damaged(data, [COLUMNS, *rows])
    # given the other lines show that they stand apart
    others = [row[0] for at, row in enumerate(rows, start=1) if at != index]
    assume(len(list(groupby(others))) > len(set(others)))

    assert_nothing_partial(folder, content, invoices)
