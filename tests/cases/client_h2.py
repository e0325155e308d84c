"""The client over cleartext HTTP/2."""

import asyncio

from client import Reply
from engine import MARK
from wire import Gone, connect, now


async def send_h2(req, body, addr, n, timeout=15):
    """n parallel streams on one cleartext HTTP/2 connection."""
    import h2.config
    import h2.connection
    import h2.events
    import h2.exceptions

    replies = {}
    out = []
    for _ in range(n):
        r = Reply(req, body)
        r.t_start, r.error = now(), "no answer"
        out.append(r)
    try:
        wire = await connect(*addr)
        c = h2.connection.H2Connection(h2.config.H2Configuration(client_side=True, header_encoding="utf-8"))
        c.initiate_connection()
        for r in out:
            sid = c.get_next_available_stream_id()
            replies[sid] = r
            headers = [
                (":method", req["method"]),
                (":path", req["path"]),
                (":scheme", "http"),
                (":authority", f"{addr[0]}:{addr[1]}"),
            ]
            headers += [(k, x) for k, v in req["headers"].items() for x in (v if isinstance(v, list) else [v])] + [
                (MARK, r.mark)
            ]
            c.send_headers(sid, headers)
            c.send_data(sid, body, end_stream=True)
        await wire.send(c.data_to_send())
        end, left = now() + timeout, set(replies)
        while left and now() < end:
            for ev in c.receive_data(await wire.take(None, max(0.01, end - now()))):
                r = replies.get(getattr(ev, "stream_id", None))
                if isinstance(ev, h2.events.ResponseReceived):
                    r.headers, r.t_head = [(k, v) for k, v in ev.headers if k[0] != ":"], now()
                    r.status = int(dict(ev.headers)[":status"])
                elif isinstance(ev, h2.events.DataReceived):
                    r.add(ev.data)
                    c.acknowledge_received_data(ev.flow_controlled_length, ev.stream_id)
                elif isinstance(ev, h2.events.StreamEnded):
                    r.clean, r.error, r.t_end = True, "", now()
                    left.discard(ev.stream_id)
                elif isinstance(ev, h2.events.StreamReset):
                    r.error, r.t_end = f"RST_STREAM {ev.error_code}", now()
                    left.discard(ev.stream_id)
                elif isinstance(ev, h2.events.ConnectionTerminated):
                    raise Gone
            await wire.send(c.data_to_send())
    except (Gone, OSError, asyncio.TimeoutError, h2.exceptions.ProtocolError) as e:
        for r in out:
            r.error = r.error and f"h2c refused ({type(e).__name__})"
    for r in out:
        r.t_end = r.t_end or now()
    return out
