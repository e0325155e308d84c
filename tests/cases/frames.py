"""WebSocket frames, for both ends."""


def ws_frame(op, data, mask=None):
    n, m = len(data), 0x80 if mask else 0
    head = (
        bytes([0x80 | op, m | n])
        if n < 126
        else bytes([0x80 | op, m | 126]) + n.to_bytes(2, "big")
        if n < 65536
        else bytes([0x80 | op, m | 127]) + n.to_bytes(8, "big")
    )
    if mask:
        key = (mask * (n // 4 + 1))[:n]
        data = mask + (int.from_bytes(data, "big") ^ int.from_bytes(key, "big")).to_bytes(n, "big")
    return head + data


async def ws_read(wire, timeout=None):
    data, first = b"", 0
    while True:
        a, b = await wire.exactly(2, timeout)
        n = b & 127
        if n > 125:
            n = int.from_bytes(await wire.exactly(2 if n == 126 else 8, timeout), "big")
        mask = await wire.exactly(4, timeout) if b & 128 else None
        part = await wire.exactly(n, timeout) if n else b""
        if mask and n:
            key = (mask * (n // 4 + 1))[:n]
            part = (int.from_bytes(part, "big") ^ int.from_bytes(key, "big")).to_bytes(n, "big")
        first = a & 15 or first
        data += part
        if a & 0x80:
            return first, data
