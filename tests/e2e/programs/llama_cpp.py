"""A llama.cpp server (package xllamacpp) with a model that is made here: one layer of random numbers, in 120 KB.

Usage: llama_cpp.py MODEL PORT. The model is written if there is no such file; slots are saved beside it.
"""

from __future__ import annotations

import importlib
import os
import random
import signal
import struct
import sys
from array import array
from pathlib import Path

WIDTH, HEADS, INNER, CONTEXT = 32, 2, 64, 256
BYTES = [f"<0x{number:02X}>".encode() for number in range(256)]
TOKENS = [
    b"<unk>",
    b"<s>",
    b"</s>",
    *BYTES,
    "\u2581".encode(),
    *(bytes([letter]) for letter in b"abcdefghijklmnopqrstuvwxyz"),
]
KINDS = [2, 3, 3, *[6] * 256, *[1] * 27]  # unknown, control, byte, normal

# GGUF, version 3: types of values, of which a tensor has 0 (float32).
UINT32, INT32, FLOAT32, BOOL, STRING, ARRAY = 4, 5, 6, 7, 8, 9
ALIGNED = 32


def text(value: bytes) -> bytes:
    return struct.pack("<Q", len(value)) + value


def number(name: str, value: int) -> bytes:
    return text(name.encode()) + struct.pack("<II", UINT32, value)


def words(name: str, value: bytes) -> bytes:
    return text(name.encode()) + struct.pack("<I", STRING) + text(value)


def listed(name: str, kind: int, values: list[bytes]) -> bytes:
    return text(name.encode()) + struct.pack("<IIQ", ARRAY, kind, len(values)) + b"".join(values)


def model() -> bytes:
    chance = random.Random(1)
    pairs = [
        words("general.architecture", b"llama"),
        number("llama.context_length", CONTEXT),
        number("llama.embedding_length", WIDTH),
        number("llama.block_count", 1),
        number("llama.feed_forward_length", INNER),
        number("llama.attention.head_count", HEADS),
        number("llama.attention.head_count_kv", HEADS),
        number("llama.rope.dimension_count", WIDTH // HEADS),
        text(b"llama.attention.layer_norm_rms_epsilon") + struct.pack("<If", FLOAT32, 1e-5),
        words("tokenizer.ggml.model", b"llama"),
        listed("tokenizer.ggml.tokens", STRING, [text(token) for token in TOKENS]),
        listed("tokenizer.ggml.scores", FLOAT32, [struct.pack("<f", -place) for place in range(len(TOKENS))]),
        listed("tokenizer.ggml.token_type", INT32, [struct.pack("<i", kind) for kind in KINDS]),
        number("tokenizer.ggml.bos_token_id", 1),
        number("tokenizer.ggml.eos_token_id", 2),
        number("tokenizer.ggml.unknown_token_id", 0),
        text(b"tokenizer.ggml.add_bos_token") + struct.pack("<I?", BOOL, True),
        words("tokenizer.chat_template", b"{% for m in messages %}{{ m['content'] }}{% endfor %}"),
    ]
    shapes = {"token_embd": (WIDTH, len(TOKENS)), "output": (WIDTH, len(TOKENS)), "output_norm": (WIDTH,)}
    shapes |= {f"blk.0.{name}_norm": (WIDTH,) for name in ("attn", "ffn")}
    shapes |= {f"blk.0.attn_{name}": (WIDTH, WIDTH) for name in ("q", "k", "v", "output")}
    shapes |= {"blk.0.ffn_gate": (WIDTH, INNER), "blk.0.ffn_up": (WIDTH, INNER), "blk.0.ffn_down": (INNER, WIDTH)}
    described, data = [], b""
    for name, shape in shapes.items():
        sizes = struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, 0, len(data))
        described.append(text(f"{name}.weight".encode()) + sizes)
        count = shape[0] * (shape[1] if len(shape) > 1 else 1)
        values = [1.0] * count if len(shape) == 1 else [chance.gauss(0.0, 0.1) for _ in range(count)]
        data += array("f", values).tobytes()
        data += bytes(-len(data) % ALIGNED)
    head = b"GGUF" + struct.pack("<IQQ", 3, len(shapes), len(pairs)) + b"".join([*pairs, *described])
    return head + bytes(-len(head) % ALIGNED) + data


def main() -> None:
    path, port = Path(sys.argv[1]), int(sys.argv[2])
    if not path.exists():
        unfinished = path.with_suffix(f".{os.getpid()}")
        unfinished.write_bytes(model())
        unfinished.rename(path)
    xllamacpp = importlib.import_module("xllamacpp")  # only the deep profile has it
    params = xllamacpp.CommonParams()
    params.model.path = str(path)
    params.model_alias = {path.stem}
    params.port = port
    params.n_ctx = CONTEXT
    params.n_parallel = 1
    params.slot_save_path = f"{path.parent}/"
    params.warmup = False
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1
    server = xllamacpp.Server(params)
    signal.sigwait({signal.SIGTERM, signal.SIGINT})
    del server
    os._exit(0)


main()
