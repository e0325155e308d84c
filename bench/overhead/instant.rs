//! `ramjet-bench instant`: engines that answer at once, so that what is measured is the hop before them.
//!
//! It reads a request to its end and writes an answer that is ready but for a few digits. One thread, raw sockets: a few
//! microseconds a request. A streamed answer has `max_tokens` events, one every `--gap`, and each says when it was
//! written, so that whoever reads it knows how long it was on its way.

use std::io::Write;
use std::net::SocketAddr;
use std::time::{Duration, SystemTime};

use clap::Args;
use memchr::memmem;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::{Instant, sleep_until};

use super::wire::{Framing, framing, head_length};

/// What is read of a connection at first: many idle ones must fit.
const SMALL: usize = 4 << 10;
/// What is read at one time of a long body.
const LARGE: usize = 256 << 10;
/// Bodies above this size are not kept, and ask for no stream.
const READ: usize = 256 << 10;
/// So many bytes at either end of a body are looked at.
const END: usize = 512;
/// What is answered to whoever asks who is there, in the words of all engines that a router may take it for.
const MODELS: &str = concat!(
    r#"{"object":"list","data":[{"id":"m","object":"model","created":0,"owned_by":"x","max_model_len":10000000}],"#,
    r#""model_path":"m","served_model_name":"m","is_generation":true,"status":"ok"}"#
);
/// Where an event says when it was written: nanoseconds since 1970, in so many digits.
pub(crate) const STAMP: &[u8] = b"at:";
pub(crate) const STAMP_DIGITS: usize = 19;

/// Engines that answer at once.
#[derive(Args, Debug)]
pub(crate) struct InstantArgs {
    /// address of the first engine; the others take the ports that follow, or any with port 0
    #[arg(long, default_value = "127.0.0.1:0")]
    listen: SocketAddr,
    /// how many engines
    #[arg(long, default_value_t = 1)]
    count: u16,
    /// milliseconds between the events of a stream
    #[arg(long, default_value_t = 0.0)]
    gap: f64,
    /// connections that may wait to be accepted
    #[arg(long, default_value_t = 4096)]
    backlog: u32,
}

/// Runs until it is ended. One thread, whatever there are.
pub(crate) fn run(args: &InstantArgs) -> Result<(), String> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(|e| e.to_string())?;
    runtime.block_on(async {
        let gap = Duration::from_secs_f64(args.gap.max(0.0) / 1e3);
        for index in 0..args.count {
            let mut address = args.listen;
            if address.port() != 0 {
                address.set_port(address.port().checked_add(index).ok_or("the ports do not fit below 65536")?);
            }
            let listener = listen(address, args.backlog).map_err(|error| format!("{address}: {error}"))?;
            let address = listener.local_addr().map_err(|error| error.to_string())?;
            let mut out = std::io::stdout().lock();
            writeln!(out, "listening http://{address}").and_then(|()| out.flush()).map_err(|e| e.to_string())?;
            tokio::spawn(accept(listener, gap));
        }
        std::future::pending().await
    })
}

fn listen(address: SocketAddr, backlog: u32) -> std::io::Result<TcpListener> {
    let socket = if address.is_ipv4() { tokio::net::TcpSocket::new_v4() } else { tokio::net::TcpSocket::new_v6() }?;
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(backlog)
}

async fn accept(listener: TcpListener, gap: Duration) {
    let mut next = 0u32;
    loop {
        match listener.accept().await {
            Ok((stream, _)) => {
                next = next.wrapping_add(1);
                let phase = gap.mul_f64(f64::from(next.wrapping_mul(0x9e37_79b9)) / f64::from(u32::MAX));
                tokio::spawn(async move {
                    // who leaves has been answered, or did not want to be
                    let _left = serve(stream, gap, phase).await;
                });
            }
            // out of descriptors, most likely: they come back
            Err(_) => tokio::time::sleep(Duration::from_millis(5)).await,
        }
    }
}

/// What a request asks for.
struct Ask {
    length: usize,
    is_post: bool,
    /// events, if it is a stream
    events: Option<usize>,
}

async fn serve(mut stream: TcpStream, gap: Duration, phase: Duration) -> std::io::Result<()> {
    stream.set_nodelay(true)?;
    let (mut buffer, mut filled) = (vec![0; SMALL], 0);
    loop {
        let head = loop {
            if let Some(head) = head_length(&buffer[..filled]) {
                break head;
            }
            if filled == buffer.len() {
                buffer.resize(2 * filled, 0);
            }
            match stream.read(&mut buffer[filled..]).await? {
                0 => return Ok(()),
                n => filled += n,
            }
        };
        let Some((ask, rest)) = read_body(&mut stream, &mut buffer, head, filled).await? else { return Ok(()) };
        filled = rest;
        match ask.events {
            Some(events) => write_stream(&mut stream, events, gap, phase).await?,
            None if ask.is_post => stream.write_all(completion(ask.length).as_bytes()).await?,
            None => stream.write_all(whole(MODELS).as_bytes()).await?,
        }
    }
}

/// Reads a body to its end; how many bytes of a next request are at the beginning of the buffer then.
async fn read_body(
    stream: &mut TcpStream,
    buffer: &mut Vec<u8>,
    head: usize,
    mut filled: usize,
) -> std::io::Result<Option<(Ask, usize)>> {
    let is_post = buffer.starts_with(b"POST");
    let length = match framing(&buffer[..head]) {
        Framing::Length(length) => length,
        Framing::None => 0,
        Framing::Chunked => return Err(std::io::ErrorKind::Unsupported.into()),
    };
    let mut ask = Ask { length, is_post, events: None };
    if length <= READ {
        buffer.resize(buffer.len().max(head + length), 0);
        while filled < head + length {
            match stream.read(&mut buffer[filled..]).await? {
                0 => return Ok(None),
                n => filled += n,
            }
        }
        ask.events = events(&buffer[head..head + length]);
        buffer.copy_within(head + length..filled, 0);
        return Ok(Some((ask, filled - head - length)));
    }
    buffer.resize(LARGE, 0);
    let mut left = (head + length).saturating_sub(filled);
    while left > 0 {
        let most = left.min(LARGE);
        match stream.read(&mut buffer[..most]).await? {
            0 => return Ok(None),
            n => left -= n,
        }
    }
    Ok(Some((ask, 0)))
}

/// How many events a body asks for, if it asks for a stream; looked for where members stand that are no prompt.
fn events(body: &[u8]) -> Option<usize> {
    let ends = [&body[..body.len().min(END)], &body[body.len().saturating_sub(END)..]];
    let after =
        |key: &str| ends.iter().find_map(|end| memmem::find(end, key.as_bytes()).map(|at| &end[at + key.len()..]));
    after("\"stream\":true")?;
    // a router may write the one for the other
    let digits = after("\"max_tokens\":").or_else(|| after("\"max_completion_tokens\":"))?;
    let end = digits.iter().position(|c| !c.is_ascii_digit()).unwrap_or(digits.len());
    std::str::from_utf8(&digits[..end]).ok()?.parse().ok()
}

fn whole(body: &str) -> String {
    format!("HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}", body.len())
}

/// An answer to a prompt of so many bytes, nine tenths of which were cached.
fn completion(length: usize) -> String {
    let (prompt, cached) = (length / 4, length / 40 * 9);
    whole(&format!(
        concat!(
            r#"{{"id":"chatcmpl-0123456789abcdef","object":"chat.completion","created":1700000000,"model":"m","#,
            r#""choices":[{{"index":0,"message":{{"role":"assistant","content":"The value is returned early."}},"#,
            r#""logprobs":null,"finish_reason":"stop"}}],"usage":{{"prompt_tokens":{prompt},"total_tokens":{total},"#,
            r#""completion_tokens":6,"prompt_tokens_details":{{"cached_tokens":{cached}}}}}}}"#
        ),
        prompt = prompt,
        total = prompt + 6,
        cached = cached,
    ))
}

async fn write_stream(stream: &mut TcpStream, events: usize, gap: Duration, phase: Duration) -> std::io::Result<()> {
    let head =
        "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n";
    stream.write_all(head.as_bytes()).await?;
    // streams that begin together do not speak together
    let mut due = Instant::now() + phase;
    for n in 0..events {
        if !gap.is_zero() {
            sleep_until(due).await;
            due += gap;
        }
        stream.write_all(&event(n + 1 == events)).await?;
    }
    stream.write_all(b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n").await
}

/// One event in a chunk of its own.
fn event(is_last: bool) -> Vec<u8> {
    let now = SystemTime::UNIX_EPOCH.elapsed().map_or(0, |since| since.as_nanos());
    let finish = if is_last { r#""stop""# } else { "null" };
    let text = format!(
        concat!(
            r#"data: {{"id":"chatcmpl-0123456789abcdef","object":"chat.completion.chunk","created":1700000000,"model":"m","#,
            r#""choices":[{{"index":0,"delta":{{"content":" at:{now:019}"}},"logprobs":null,"finish_reason":{finish}}}]}}"#,
            "\n\n"
        ),
        now = now,
        finish = finish,
    );
    format!("{:x}\r\n{text}\r\n", text.len()).into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::Value;

    #[test]
    fn a_stream_is_asked_for_with_its_number_of_events() {
        assert_eq!(events(br#"{"model":"m","max_tokens":37,"stream":true,"messages":[]}"#), Some(37));
        assert_eq!(events(br#"{"model":"m","max_tokens":37,"messages":[]}"#), None);
        assert_eq!(events(br#"{"stream":true}"#), None);
        let long = format!(r#"{{"stream":true,"messages":["{}"],"max_completion_tokens":5}}"#, "x".repeat(9000));
        assert_eq!(events(long.as_bytes()), Some(5));
    }

    #[test]
    fn what_is_answered_is_json_of_the_length_that_it_says() {
        for text in [whole(MODELS), completion(4000)] {
            let (head, body) = text.split_once("\r\n\r\n").unwrap();
            assert_eq!(framing(format!("{head}\r\n").as_bytes()), Framing::Length(body.len()));
            assert!(serde_json::from_str::<Value>(body).is_ok());
        }
        let usage: Value = serde_json::from_str(completion(4000).split_once("\r\n\r\n").unwrap().1).unwrap();
        assert_eq!(
            (&usage["usage"]["prompt_tokens"], &usage["usage"]["prompt_tokens_details"]["cached_tokens"]),
            (&1000.into(), &900.into())
        );
    }

    #[test]
    fn an_event_is_one_chunk_with_a_stamp() {
        let event = event(true);
        let (size, rest) = event.split_at(event.iter().position(|c| *c == b'\r').unwrap());
        let size = usize::from_str_radix(std::str::from_utf8(size).unwrap(), 16).unwrap();
        assert_eq!(rest.len(), size + 4);
        let text = std::str::from_utf8(&rest[2..2 + size]).unwrap();
        let value: Value = serde_json::from_str(text.strip_prefix("data: ").unwrap()).unwrap();
        let said = value["choices"][0]["delta"]["content"].as_str().unwrap();
        assert_eq!(said.strip_prefix(" at:").map(str::len), Some(STAMP_DIGITS));
    }
}
