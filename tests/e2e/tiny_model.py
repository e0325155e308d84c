"""A small llama-architecture model with random weights, as a GGUF file: real arithmetic, meaningless text.

Every byte is one token, so the prompt's length is known beforehand and an answer sent back in the next turn
is read as the very tokens it was generated as. The output head votes for printable ASCII only, so answers
are clean text and never hit the end-of-turn token. Written with the standard library alone: the format is a
header, key-value pairs, a table of tensors and their data, all little endian.
"""

import array
import random
import struct

HIDDEN, LAYERS, HEADS, KV_HEADS, FEED_FORWARD = 256, 4, 4, 2, 1024
HEAD_SIZE = HIDDEN // HEADS
CONTEXT = 65536
SPECIAL = ["<|pad|>", "<|im_start|>", "<|im_end|>"]
CHAT_TEMPLATE = (
    "{% if tools %}<|im_start|>system\n{{ tools | tojson }}<|im_end|>\n{% endif %}"
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] or '' }}"
    "{% if m['tool_calls'] %}{{ m['tool_calls'] | tojson }}{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)

U32, I32, F32, BOOL, STRING, ARRAY = 4, 5, 6, 7, 8, 9  # GGUF's value types
ALIGNMENT = 32
CONTROL, NORMAL = 3, 1  # token types


def vocabulary():
    """The special tokens, then GPT-2's printable stand-in for every byte, then one merge that text never has."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    stand_in = {byte: chr(byte) for byte in printable}
    others = (byte for byte in range(256) if byte not in stand_in)
    stand_in |= {byte: chr(256 + i) for i, byte in enumerate(list(others))}
    return SPECIAL + [stand_in[byte] for byte in range(256)] + [stand_in[0] * 2], f"{stand_in[0]} {stand_in[0]}"


def string(text):
    data = text.encode()
    return struct.pack("<Q", len(data)) + data


def value(kind, data):
    if kind == STRING:
        return string(data)
    if kind == ARRAY:
        item, items = data
        return struct.pack("<IQ", item, len(items)) + b"".join(value(item, i) for i in items)
    return struct.pack({U32: "<I", I32: "<i", F32: "<f", BOOL: "<?"}[kind], data)


def metadata():
    tokens, merge = vocabulary()
    kinds = [CONTROL] * len(SPECIAL) + [NORMAL] * (len(tokens) - len(SPECIAL))
    return [
        ("general.architecture", STRING, "llama"),
        ("general.name", STRING, "tiny-random"),
        ("general.file_type", U32, 0),
        ("llama.context_length", U32, CONTEXT),
        ("llama.embedding_length", U32, HIDDEN),
        ("llama.block_count", U32, LAYERS),
        ("llama.feed_forward_length", U32, FEED_FORWARD),
        ("llama.attention.head_count", U32, HEADS),
        ("llama.attention.head_count_kv", U32, KV_HEADS),
        ("llama.attention.layer_norm_rms_epsilon", F32, 1e-5),
        ("llama.rope.dimension_count", U32, HEAD_SIZE),
        ("llama.rope.freq_base", F32, 500000.0),
        ("llama.vocab_size", U32, len(tokens)),
        ("tokenizer.ggml.model", STRING, "gpt2"),
        ("tokenizer.ggml.pre", STRING, "gpt-2"),
        ("tokenizer.ggml.tokens", ARRAY, (STRING, tokens)),
        ("tokenizer.ggml.token_type", ARRAY, (I32, kinds)),
        ("tokenizer.ggml.merges", ARRAY, (STRING, [merge])),
        ("tokenizer.ggml.eos_token_id", U32, SPECIAL.index("<|im_end|>")),
        ("tokenizer.ggml.padding_token_id", U32, SPECIAL.index("<|pad|>")),
        ("tokenizer.ggml.add_bos_token", BOOL, False),
        ("tokenizer.chat_template", STRING, CHAT_TEMPLATE),
    ]


def tensors():
    """(name, (rows, columns), data); scales that keep activations, and the gaps between logits, near 1."""
    rng = random.Random(0)
    unit = HIDDEN**-0.5
    kv = KV_HEADS * HEAD_SIZE
    words = len(vocabulary()[0])

    def noise(name, rows, columns, deviation):
        gauss = rng.gauss
        return name, (rows, columns), array.array("f", [gauss(0, deviation) for _ in range(rows * columns)])

    def ones(name):
        return name, (HIDDEN,), array.array("f", [1.0]) * HIDDEN

    yield noise("token_embd.weight", words, HIDDEN, 1.0)
    for layer in range(LAYERS):
        block = f"blk.{layer}."
        yield ones(block + "attn_norm.weight")
        yield noise(block + "attn_q.weight", HIDDEN, HIDDEN, 1.5 * unit)
        yield noise(block + "attn_k.weight", kv, HIDDEN, 1.5 * unit)
        yield noise(block + "attn_v.weight", kv, HIDDEN, unit)
        yield noise(block + "attn_output.weight", HIDDEN, HIDDEN, unit)
        yield ones(block + "ffn_norm.weight")
        yield noise(block + "ffn_gate.weight", FEED_FORWARD, HIDDEN, unit)
        yield noise(block + "ffn_up.weight", FEED_FORWARD, HIDDEN, unit)
        yield noise(block + "ffn_down.weight", HIDDEN, FEED_FORWARD, 0.6 * unit)
    yield ones("output_norm.weight")
    name, shape, head = noise("output.weight", words, HIDDEN, 4.0 * unit)
    for row in range(words):
        if not 32 <= row - len(SPECIAL) < 127:
            head[row * HIDDEN : (row + 1) * HIDDEN] = array.array("f", bytes(4 * HIDDEN))
    yield name, shape, head


def write(path):
    pairs, table, offset, blobs = metadata(), [], 0, []
    for name, shape, data in tensors():
        sizes = shape[::-1]  # GGUF names the fastest dimension first
        table.append(string(name) + struct.pack(f"<I{len(sizes)}QIQ", len(sizes), *sizes, 0, offset))
        blobs.append(data.tobytes())  # whole rows of 1 KiB: aligned without padding
        offset += len(blobs[-1])
    head = b"GGUF" + struct.pack("<IQQ", 3, len(table), len(pairs))
    head += b"".join(string(key) + struct.pack("<I", kind) + value(kind, data) for key, kind, data in pairs)
    head += b"".join(table)
    with open(path, "wb") as out:
        out.write(head + bytes(-len(head) % ALIGNMENT))
        out.writelines(blobs)
