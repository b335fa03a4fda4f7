"""TFRecord files of ``tf.train.Example``, read without TensorFlow: one record a row, one feature a column.

Such a file has no index, so it is read once to learn where its records are. A feature that has one value in the first
record is a column of values, any other one a column of lists.
"""

from __future__ import annotations

import functools
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from airflow_raytpu.model.errors import PathError
from airflow_raytpu.runtime.columns import is_list
from airflow_raytpu.runtime.listing import Kind, opened
from airflow_raytpu.runtime.spans import Grouped, groups_of

_HEADER, _FOOTER = struct.Struct("<QI"), struct.Struct("<I")
_GROUP_ROWS, _GROUP_BYTES, _BUFFER = 1_024, 16_000_000, 8_000_000
_KINDS = {"bytes_list": pa.binary(), "float_list": pa.float32(), "int64_list": pa.int64()}
Features = dict[str, tuple[str, Any]]

_NO_RECORDS = "Give uncompressed TFRecord files that were written to their end."
_KIND = Kind("a TFRecord file", _NO_RECORDS)


@dataclass(frozen=True, slots=True)
class TfRecordFile(Grouped):
    """See :class:`airflow_raytpu.runtime.spans.File`. A group is a run of records.

    :param starts: where each group begins, in bytes, and where the last one ends.
    """

    starts: tuple[int, ...]

    def read(self, start: int, stop: int, columns: Sequence[str] | None = None) -> pa.Table:
        """See :class:`airflow_raytpu.runtime.spans.File`."""
        wanted, skipped = groups_of(self.groups, start, stop)
        first, last = self.starts[wanted[0]], self.starts[wanted[-1] + 1]
        with opened(self.root, self.name, _KIND) as file:
            file.seek(first)
            data = file.read(last - first)
        where, number = f"{self.root}/{self.name}", sum(self.groups[: wanted[0]])
        if len(data) < last - first:
            raise PathError(f"{where} is shorter than when its records were counted.", "See who writes there.")
        rows = []
        for index, record in enumerate(_records(data, where)):
            if skipped <= index < skipped + stop - start:
                rows.append(_features(record, f"record {number + index} of {where}"))
        names = self.schema.names if columns is None else columns
        return pa.table({name: _column(name, self.schema.field(name).type, rows, where, start) for name in names})


def index(root: str, name: str) -> TfRecordFile:
    """The file, with its records counted.

    :raises PathError: it is something else, or cut off.
    :raises SilentError: its bucket did not answer in time.
    """
    groups, starts, where = [0], [0], f"{root}/{name}"
    first: bytes | None = None
    at = 0
    with opened(root, name, _KIND) as file:
        stream = pa.BufferedInputStream(file, _BUFFER)
        while header := stream.read(_HEADER.size):
            rest = _length(header, where, at) + _FOOTER.size
            data = stream.read(rest)
            if len(data) < rest:
                raise _cut_off(where, at)
            if first is None:
                first = data[: -_FOOTER.size]
            at += len(header) + rest
            groups[-1] += 1
            if groups[-1] == _GROUP_ROWS or at - starts[-1] >= _GROUP_BYTES:
                groups.append(0)
                starts.append(at)
    if groups[-1]:
        starts.append(at)
    else:
        groups.pop()
    schema = pa.schema({}) if first is None else _schema(_features(first, f"record 0 of {where}"))
    return TfRecordFile(root, name, tuple(groups), starts[-1], schema, tuple(starts))


def _records(data: bytes, where: str) -> Iterator[bytes]:
    """The records in *data*, each proven by its checksum."""
    at = 0
    while at < len(data):
        length = _length(data[at : at + _HEADER.size], where, at)
        at += _HEADER.size
        record = data[at : at + length]
        (due,) = _FOOTER.unpack_from(data, at + length)
        if _checksum(record) != due:
            raise PathError(f"A record of {where} does not fit its checksum.", "Write the file anew.")
        yield record
        at += length + _FOOTER.size


def _length(header: bytes, where: str, at: int) -> int:
    """Of the record that *header* begins.

    :raises PathError: it begins none.
    """
    if len(header) < _HEADER.size:
        raise _cut_off(where, at)
    length, due = _HEADER.unpack(header)
    if _checksum(header[:8]) != due:
        raise PathError(f"{where} is no TFRecord file: no record begins at byte {at:,}.", _NO_RECORDS)
    return int(length)


def _cut_off(where: str, at: int) -> PathError:
    return PathError(f"{where} is cut off in the record that begins at byte {at:,}.", _NO_RECORDS)


def _checksum(data: bytes) -> int:
    """CRC-32C, turned and shifted as TFRecord has it."""
    try:
        import google_crc32c
    except ImportError as error:
        raise PathError(
            "TFRecord files are proven by google-crc32c, which is not installed here.",
            "Add google-crc32c to the image of the Ray cluster.",
        ) from error
    value = google_crc32c.value(data)
    return int(((value >> 15 | value << 17) + 0xA282EAD8) & 0xFFFFFFFF)


def _features(record: bytes, what: str) -> Features:
    """Kind and values of each feature. One that has no values at all has no kind either and is left out."""
    from google.protobuf.message import DecodeError

    example = _example()()
    try:
        example.ParseFromString(record)
    except DecodeError as error:
        raise PathError(f"{what} is no tf.train.Example.", "Write examples, or use another format.") from error
    found = {}
    for entry in example.features.feature:
        kind = entry.value.WhichOneof("kind")
        if kind is not None:
            found[entry.key] = (kind, getattr(entry.value, kind).value)
    return found


def _schema(features: Features) -> pa.Schema:
    kinds = {name: (_KINDS[kind], len(values)) for name, (kind, values) in sorted(features.items())}
    return pa.schema({name: kind if count == 1 else pa.list_(kind) for name, (kind, count) in kinds.items()})


def _column(name: str, kind: pa.DataType, rows: Sequence[Features], where: str, first: int) -> pa.Array:
    """:raises PathError: a record lacks the feature, or has another kind or number of values than the first record."""
    value = kind.value_type if is_list(kind) else kind
    found = []
    for number, row in enumerate(rows, first):
        told, values = row.get(name, ("", ()))
        if _KINDS.get(told) != value or (value is kind and len(values) != 1):
            has = f"{len(values)} of {told}" if told else "none"
            raise PathError(
                f"Record {number} of {where} has {has} in {name!r}, where the first record of the file has {kind}.",
                "Write equal examples, or leave the column out with columns=[...].",
            )
        found.append(values)
    flat = [each for values in found for each in values] if pa.types.is_binary(value) else _flat(found, value)
    if value is kind:
        return pa.array(flat, kind)
    bounds = np.cumsum([0, *map(len, found)]).astype(np.int32)
    return pa.ListArray.from_arrays(pa.array(bounds), pa.array(flat, value))


def _flat(found: Sequence[Any], kind: pa.DataType) -> np.ndarray:
    dtype = kind.to_pandas_dtype()
    return np.concatenate([np.asarray(values, dtype) for values in found]) if found else np.empty(0, dtype)


@functools.cache
def _example() -> Any:
    """The message ``tf.train.Example``, made here: its home is TensorFlow, which is a gigabyte."""
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    proto = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(name="airflow_raytpu/example.proto", package="airflow_raytpu")

    def message(name: str, **members: tuple[int, Any, bool]) -> Any:
        made = file.message_type.add(name=name)
        for member, (number, kind, repeated) in members.items():
            field = made.field.add(name=member, number=number)
            field.label = proto.LABEL_REPEATED if repeated else proto.LABEL_OPTIONAL
            field.type = proto.TYPE_MESSAGE if isinstance(kind, str) else kind
            if isinstance(kind, str):
                field.type_name = f".airflow_raytpu.{kind}"
        return made

    message("BytesList", value=(1, proto.TYPE_BYTES, True))
    message("FloatList", value=(1, proto.TYPE_FLOAT, True))
    message("Int64List", value=(1, proto.TYPE_INT64, True))
    feature = message(
        "Feature",
        bytes_list=(1, "BytesList", False),
        float_list=(2, "FloatList", False),
        int64_list=(3, "Int64List", False),
    )
    feature.oneof_decl.add(name="kind")
    for field in feature.field:
        field.oneof_index = 0
    # What is a map in the source is this on the wire.
    message("Entry", key=(1, proto.TYPE_STRING, False), value=(2, "Feature", False))
    message("Features", feature=(1, "Entry", True))
    message("Example", features=(1, "Features", False))
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("airflow_raytpu.Example"))
