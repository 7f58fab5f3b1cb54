"""Writes a changed copy of a GGUF file. Shared by `requantize` and `pad_model`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import gguf
import numpy as np
import numpy.typing as npt

Weights = npt.NDArray[np.float32]
# Name and weights, shape (rows, columns), to other weights of that tensor.
Change = Callable[[str, Weights], Weights]

_OWN_FIELDS = ("GGUF.", "general.architecture", "general.file_type")


def copy_gguf(
    source: Path,
    target: Path,
    *,
    change: Change = lambda _, weights: weights,
    quantization: str | None = None,
    metadata: Mapping[str, int] | None = None,
) -> None:
    """Copy a model, changing matrices and numbers of its metadata on the way.

    Args:
        change: applied to every matrix, dequantized to float32.
        quantization: name of a ggml type for all matrices; None keeps each one's own.
        metadata: uint32 values to replace, by key.
    """
    reader = gguf.GGUFReader(source)
    architecture = reader.fields["general.architecture"].contents()
    writer = gguf.GGUFWriter(str(target), architecture)
    replaced = metadata or {}
    for key, field in reader.fields.items():
        if key.startswith(_OWN_FIELDS):
            continue
        sub_type = field.types[-1] if field.types[0] == gguf.GGUFValueType.ARRAY else None
        value = replaced.get(key, field.contents())
        writer.add_key_value(key, value, field.types[0], sub_type=sub_type)
    for tensor in reader.tensors:
        _add_tensor(writer, tensor, change, quantization)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _add_tensor(
    writer: gguf.GGUFWriter,
    tensor: gguf.ReaderTensor,
    change: Change,
    quantization: str | None,
) -> None:
    if len(tensor.shape) < 2:
        writer.add_tensor(tensor.name, np.array(tensor.data))
        return
    weights = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
    wanted = gguf.GGMLQuantizationType[quantization] if quantization else tensor.tensor_type
    data = gguf.quants.quantize(change(tensor.name, weights), wanted)
    writer.add_tensor(tensor.name, data, raw_dtype=wanted)
