//! One request off a raw connection, however its body is framed.

use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;

/// The head as text and the body, decoded; `None` when the peer has closed.
pub(crate) async fn read_request(stream: &mut TcpStream, buffer: &mut Vec<u8>) -> Option<(String, Vec<u8>)> {
    let end = loop {
        if let Some(at) = memchr::memmem::find(buffer, b"\r\n\r\n") {
            break at + 4;
        }
        if stream.read_buf(buffer).await.ok()? == 0 {
            return None;
        }
    };
    let head = String::from_utf8(buffer[..end].to_vec()).unwrap();
    let lower = head.to_ascii_lowercase();
    buffer.drain(..end);
    if lower.lines().any(|line| line == "transfer-encoding: chunked") {
        return Some((head, read_chunked(stream, buffer).await?));
    }
    let length = lower.lines().find_map(|line| line.strip_prefix("content-length:"));
    let length = length.map_or(0, |value| value.trim().parse().unwrap());
    fill(stream, buffer, length).await?;
    Some((head, buffer.drain(..length).collect()))
}

async fn fill(stream: &mut TcpStream, buffer: &mut Vec<u8>, length: usize) -> Option<()> {
    while buffer.len() < length {
        if stream.read_buf(buffer).await.ok()? == 0 {
            return None;
        }
    }
    Some(())
}

async fn read_chunked(stream: &mut TcpStream, buffer: &mut Vec<u8>) -> Option<Vec<u8>> {
    let mut body = Vec::new();
    loop {
        let end = loop {
            if let Some(at) = memchr::memmem::find(buffer, b"\r\n") {
                break at;
            }
            fill(stream, buffer, buffer.len() + 1).await?;
        };
        let size = usize::from_str_radix(std::str::from_utf8(&buffer[..end]).unwrap(), 16).unwrap();
        fill(stream, buffer, end + 2 + size + 2).await?;
        body.extend_from_slice(&buffer[end + 2..end + 2 + size]);
        buffer.drain(..end + 2 + size + 2);
        if size == 0 {
            return Some(body);
        }
    }
}
