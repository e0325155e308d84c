//! Bytes that no header could carry, as parts in hexadecimal that an engine sends one by one.

use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::sync::Notify;

/// The parts as text.
pub(crate) fn encode(parts: &[Vec<u8>]) -> String {
    let hex = |part: &Vec<u8>| part.iter().map(|b| format!("{b:02x}")).collect::<String>();
    parts.iter().map(hex).collect::<Vec<_>>().join(",")
}

/// Sends them, each but the first when it is called for.
pub(crate) async fn send(stream: &mut TcpStream, text: &str, calls: &Notify) -> std::io::Result<()> {
    for (n, part) in text.split(',').enumerate() {
        let called = calls.notified();
        if n > 0 {
            called.await;
        }
        let digits: Vec<u8> = part.chars().map(|c| u8::try_from(c.to_digit(16).unwrap()).unwrap()).collect();
        stream.write_all(&digits.chunks(2).map(|d| d[0] * 16 + d[1]).collect::<Vec<_>>()).await?;
    }
    Ok(())
}
