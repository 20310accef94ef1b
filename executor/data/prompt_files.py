"""Files of prompts (JSON lines, parquet, data sets of Hugging Face `datasets`), and mistakes in their rows."""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from rlplan.errors import FileError, UserError, nearest_name
from rlplan.files.decoding import check_regular, read_text

# Where a row comes from ("prompts.jsonl: line 7"), for messages; beside the file's own keys.
ORIGIN = "_origin"
# The messages of a prompt that is a chat, beside the text that the tokenizer's template makes of them.
MESSAGES = "_messages"

Row = dict[str, Any]

# What is done with a mistake in one row: to raise it, or to keep it and to go on with the next row.
Refuse = Callable[[FileError], None]

# What `datasets` writes into the folder of a data set, and into that of several splits.
_DATASET_STATE, _SPLITS = "state.json", "dataset_dict.json"
# Words in a file's name by which `datasets` tells splits (`SPLIT_KEYWORDS` of its `data_files.py`).
_SPLIT_WORDS = {
    "train": {"train", "training"},
    "validation": {"validation", "valid", "dev", "val"},
    "test": {"test", "testing", "eval", "evaluation"},
}
# Where a folder has its files: the first of these that are there. Of data sets that are published they often lie in `data`.
_DATA_FILES = ("*.parquet", "*.jsonl", "data/*.parquet", "data/*.jsonl")
# What a data set's files are called where it has several, often with a hash behind (`SPLIT_PATTERN_SHARDED` of that file).
_SHARD = re.compile(r"(\w+(?:\.\w+)*)-\d{5}-of-\d{5}.*")


def at_once(error: FileError) -> None:
    """Raise a mistake: the usual `Refuse`."""
    raise error


def read_rows(path: Path, split: str = "train", refuse: Refuse = at_once) -> list[Row]:
    """Return the rows of a file or folder as dicts, each with where it comes from.

    Args:
        path: A `.jsonl` file, a `.parquet` file, a folder of such files, or a folder that
            `save_to_disk` of Hugging Face `datasets` wrote.
        split: Which one, where the folder has several.
        refuse: Given each line that holds no row; it is left out where this returns.

    Raises:
        FileError: It is missing, empty or broken, or the folder holds nothing of that kind.
    """
    if path.is_dir():
        rows = list(_rows_of_folder(path, split, refuse))
    elif path.suffix == ".parquet":
        rows = list(_rows_of_parquet(path))
    else:
        rows, lines = _rows_of_lines(path, refuse)
        if lines:
            return rows
    if not rows:
        raise FileError(str(path), "holds no prompts")
    return rows


def _rows_of_lines(path: Path, refuse: Refuse) -> tuple[list[Row], int]:
    """Return the rows of a file's lines, and how many lines there are that hold something."""
    rows, lines = [], 0
    # Not splitlines(): a prompt may hold a U+2028, which JSON leaves unescaped.
    for number, line in enumerate(read_text(path, most_bytes=None).split("\n"), 1):
        if line.strip():
            origin = f"{path}: line {number}"
            lines += 1
            try:
                rows.append({**json_object(line, origin), ORIGIN: origin})
            except FileError as error:
                refuse(error)
    return rows, lines


def json_object(line: str, origin: str) -> Row:
    """Return the object that a line of JSON holds.

    Args:
        origin: Where the line is from, for messages.

    Raises:
        FileError: The line is no JSON, or holds something else.
    """
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        allowed = "a JSON object on each line"
        raise FileError(origin, f"is not JSON: {error}", allowed=allowed) from None
    if not isinstance(row, dict):
        raise FileError(origin, "is not an object", value=type(row).__name__, allowed="{...}")
    return row


def _rows_of_folder(folder: Path, split: str, refuse: Refuse) -> Iterator[Row]:
    if (folder / _SPLITS).is_file():
        splits = _listed(folder / _SPLITS, "splits")
        if split not in splits:
            _refuse_split(folder, split, splits)
        folder = folder / split
    if (folder / _DATASET_STATE).is_file():
        yield from _rows_of_dataset(folder)
        return
    found = (sorted(folder.glob(pattern)) for pattern in _DATA_FILES)
    files = next(filter(None, found), [])
    if not files:
        raise FileError(
            str(folder),
            "is a folder without a data set",
            allowed="parquet or JSONL files, there or in its folder data, or what `save_to_disk` of Hugging Face datasets writes",
        )
    for file in _of_split(files, split, folder):
        is_table = file.suffix == ".parquet"
        yield from _rows_of_parquet(file) if is_table else _rows_of_lines(file, refuse)[0]


def _of_split(files: Sequence[Path], split: str, folder: Path) -> Sequence[Path]:
    """Return the files of one split, where names of files say that they are of several: else held-out prompts would be learnt from.

    Raises:
        FileError: There are several, and not this one.
    """
    split_of = {file: name for file in files if (name := _split_in(file.stem)) is not None}
    splits = sorted(set(split_of.values()))
    if len(splits) <= 1:
        return files
    of_word = (name for name, said in _SPLIT_WORDS.items() if split in said)
    asked = split if split in splits else next(of_word, split)
    if asked not in splits:
        _refuse_split(folder, split, splits, "; or one of its files, by its name")
    return [file for file, name in split_of.items() if name == asked]


def _split_in(words: str) -> str | None:
    """Return the split that a file's name says, as `train-00000-of-00002` and `gsm8k_test` do; None where it says none."""
    if shard := _SHARD.fullmatch(words):
        return shard[1]
    parts = set(re.split(r"[^a-z]+", words.lower()))
    return next((name for name, said in _SPLIT_WORDS.items() if parts & said), None)


def _refuse_split(folder: Path, split: str, splits: Sequence[str], instead: str = "") -> NoReturn:
    raise FileError(
        str(folder),
        "has no such split",
        field="prompt_data.split",
        value=split,
        allowed=", ".join(splits) + instead,
        nearest=nearest_name(split, splits),
    )


def _listed(path: Path, key: str) -> list[Any]:
    try:
        listed = json.loads(path.read_text(encoding="utf-8"))[key]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise FileError(str(path), f"cannot be read: {error}") from None
    if not isinstance(listed, list):
        raise FileError(str(path), "is not a list", field=key, value=listed)
    return listed


def _rows_of_dataset(folder: Path) -> Iterator[Row]:
    import pyarrow as pa  # noqa: PLC0415  # takes a second

    files = _listed(folder / _DATASET_STATE, "_data_files")
    if (folder / "indices.arrow").exists() or any("filename" not in file for file in files):
        raise FileError(str(folder), "is no data set that was saved whole", allowed="save_to_disk")
    for file in files:
        path = folder / str(file["filename"])
        try:
            with pa.memory_map(str(path)) as source:
                table = pa.ipc.open_stream(source).read_all()
        except (OSError, pa.ArrowException) as error:
            raise FileError(str(path), f"cannot be read: {error}") from None
        yield from _numbered(table.to_pylist(), path)


def _rows_of_parquet(path: Path) -> Iterator[Row]:
    import pyarrow as pa  # noqa: PLC0415  # takes a second
    from pyarrow import parquet  # noqa: PLC0415

    check_regular(path, None)
    try:
        table = parquet.read_table(path)
    except (OSError, pa.ArrowException) as error:
        raise FileError(str(path), f"cannot be read: {error}") from None
    yield from _numbered(table.to_pylist(), path)


def _numbered(rows: Iterable[Row], path: Path) -> Iterator[Row]:
    for number, row in enumerate(rows, 1):
        yield {**row, ORIGIN: f"{path}: row {number}"}


# A mistake's figures (tokens, columns of a line) differ from row to row; the mistake is the same.
_FIGURES = re.compile(r"\d+")


# Raises a FileError for a row in which rules cannot use what they need.
RowCheck = Callable[[Row], object]


class NeededColumns(NamedTuple):
    """Name the columns that every row must have beside its prompt: of those learnt from, and of those held out.

    Attributes:
        check_prompts: Refuses what these columns hold in a row that is learnt from; None: it does not matter.
        check_held_out: The same of rows that are held out.
    """

    prompts: tuple[str, ...] = ()
    held_out: tuple[str, ...] = ()
    check_prompts: RowCheck | None = None
    check_held_out: RowCheck | None = None


NO_COLUMNS = NeededColumns()


def missing_columns(
    rows: Sequence[Row], columns: Sequence[str], check: RowCheck | None = None
) -> Iterator[FileError]:
    """Yield a mistake for each row without one of the columns, or with nothing in it that can be used."""
    for row in rows:
        if check is not None and all(row.get(column) is not None for column in columns):
            try:
                check(row)
            except FileError as error:
                yield error
        for column in columns:
            if row.get(column) is None:
                known = [key for key in row if key not in {ORIGIN, column}]
                problem = "is missing (the job's rule compares with it)"
                nearest = nearest_name(column, known)
                yield FileError(str(row[ORIGIN]), problem, field=column, nearest=nearest)


def one_of_each_kind(mistakes: Sequence[UserError]) -> list[UserError]:
    """Return the first mistake of each kind, which says how many there are of it.

    Mistakes of rows are alike where they are of one field and differ in figures only.
    """
    kinds: dict[tuple[str, str], list[UserError]] = {}
    for mistake in mistakes:
        kinds.setdefault(_kind(mistake), []).append(mistake)
    return [_of_all(alike) for alike in kinds.values()]


def _kind(mistake: UserError) -> tuple[str, str]:
    if not isinstance(mistake, FileError):
        return ("", str(mistake))
    return (mistake.field or "", _FIGURES.sub("0", mistake.problem))


def _of_all(alike: Sequence[UserError]) -> UserError:
    """Return the first of some mistakes, saying of how many rows it is one."""
    first = alike[0]
    if len(alike) == 1 or not isinstance(first, FileError):
        return first
    more = f"and {len(alike) - 1} more like it"
    return FileError(
        first.file,
        f"{first.problem} ({more})",
        field=first.field,
        value=first.value,
        allowed=first.allowed,
        nearest=first.nearest,
    )
