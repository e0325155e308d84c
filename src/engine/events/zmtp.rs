//! As much of ZeroMQ's wire protocol (ZMTP 3.0, without security) as a subscriber needs: the greeting, the commands
//! that open a connection, and messages of several parts. `rfc.zeromq.org/spec/23`.
//!
//! A library was considered and refused: the one for this reserves memory for whatever length a peer announces, and
//! what publishes here may be anybody. So lengths are checked before anything is reserved for them.

use std::io::{self, ErrorKind};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

/// The most bytes of a message, all its parts together: a batch tells of what one step of an engine stored, tokens
/// included.
const MOST_BYTES: u64 = 16 << 20;
/// The most parts of a message.
const MOST_PARTS: usize = 8;
/// The most bytes of a command.
const MOST_COMMAND: u64 = 4096;
/// Memory is reserved in steps of so many bytes, as they come.
const STEP: u64 = 64 << 10;

const GREETING: usize = 64;
const MORE: u8 = 1;
const LONG: u8 = 2;
const COMMAND: u8 = 4;

/// What a socket is, in its own words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    /// It listens to publishers.
    Sub,
    /// It asks for what was missed.
    Dealer,
}

impl Role {
    fn name(self) -> &'static str {
        match self {
            Role::Sub => "SUB",
            Role::Dealer => "DEALER",
        }
    }
}

/// Opens a connection as `role`, whoever made it. A subscriber asks for everything.
///
/// # Errors
/// The peer speaks something else, wants security, or ends the connection.
pub(super) async fn open(stream: &mut (impl AsyncRead + AsyncWrite + Unpin), role: Role) -> io::Result<()> {
    let mut ours = [0; GREETING];
    (ours[0], ours[9], ours[10]) = (0xff, 0x7f, 3);
    ours[12..16].copy_from_slice(b"NULL");
    stream.write_all(&ours).await?;
    let mut theirs = [0; GREETING];
    stream.read_exact(&mut theirs).await?;
    if theirs[0] != 0xff || theirs[9] & 1 != 1 || theirs[10] < 3 {
        return Err(not("ZMTP 3"));
    }
    if &theirs[12..32] != b"NULL\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0" {
        return Err(not("a publisher without security"));
    }
    stream.write_all(&ready(role)).await?;
    match read(stream).await? {
        Incoming::Command(text) if text.starts_with(b"\x05READY") => {}
        _ => return Err(not("ready")),
    }
    if role == Role::Sub {
        stream.write_all(&[0, 1, 1]).await?;
    }
    Ok(())
}

fn ready(role: Role) -> Vec<u8> {
    let (key, value) = ("Socket-Type", role.name());
    let text = |text: &str| [&[u8::try_from(text.len()).unwrap_or(0)], text.as_bytes()].concat();
    let body = [text("READY"), text(key), vec![0, 0, 0], text(value)].concat();
    [&[COMMAND, u8::try_from(body.len()).unwrap_or(0)], body.as_slice()].concat()
}

/// A question with one part, as a REQ socket would put it.
pub(super) fn question(part: &[u8; 8]) -> [u8; 12] {
    let mut out = [0; 12];
    (out[0], out[2 + 1]) = (MORE, 8);
    out[4..].copy_from_slice(part);
    out
}

/// What comes over an open connection.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Incoming {
    /// The parts of a message.
    Message(Vec<Vec<u8>>),
    /// A command: its name and what belongs to it.
    Command(Vec<u8>),
}

/// The next message of a publisher; its pings are answered.
///
/// # Errors
/// The connection has ended, or what came is no message or too large a one.
pub(super) async fn next(stream: &mut (impl AsyncRead + AsyncWrite + Unpin)) -> io::Result<Vec<Vec<u8>>> {
    loop {
        match read(stream).await? {
            Incoming::Message(parts) => return Ok(parts),
            Incoming::Command(text) => {
                if let Some(context) = text.strip_prefix(b"\x04PING").and_then(|ping| ping.get(2..18.min(ping.len()))) {
                    let body = [b"\x04PONG", context].concat();
                    let head = [COMMAND, u8::try_from(body.len()).unwrap_or(0)];
                    stream.write_all(&[&head, body.as_slice()].concat()).await?;
                }
            }
        }
    }
}

async fn read(stream: &mut (impl AsyncRead + Unpin)) -> io::Result<Incoming> {
    let (mut parts, mut bytes) = (Vec::new(), 0);
    loop {
        let flags = stream.read_u8().await?;
        if flags & !(MORE | LONG | COMMAND) != 0 || flags & COMMAND != 0 && (flags & MORE != 0 || !parts.is_empty()) {
            return Err(not("a frame"));
        }
        let length = if flags & LONG != 0 { stream.read_u64().await? } else { stream.read_u8().await?.into() };
        if flags & COMMAND != 0 {
            return Ok(Incoming::Command(body(stream, length, MOST_COMMAND).await?));
        }
        parts.push(body(stream, length, MOST_BYTES - bytes).await?);
        bytes += length;
        if flags & MORE == 0 {
            return Ok(Incoming::Message(parts));
        }
        if parts.len() == MOST_PARTS {
            return Err(not("a message of few parts"));
        }
    }
}

async fn body(stream: &mut (impl AsyncRead + Unpin), length: u64, most: u64) -> io::Result<Vec<u8>> {
    if length > most {
        return Err(not("a message of a size that is allowed"));
    }
    let mut out = Vec::new();
    let mut stream = stream.take(length);
    loop {
        out.reserve(usize::try_from(stream.limit().min(STEP)).unwrap_or(0));
        if stream.limit() == 0 {
            return Ok(out);
        }
        if stream.read_buf(&mut out).await? == 0 {
            return Err(ErrorKind::UnexpectedEof.into());
        }
    }
}

fn not(wanted: &str) -> io::Error {
    io::Error::new(ErrorKind::InvalidData, format!("this is not {wanted}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use tokio::io::duplex;

    fn now<T>(work: impl Future<Output = T>) -> T {
        tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(work)
    }

    fn read_all(bytes: &[u8]) -> io::Result<Incoming> {
        now(read(&mut &bytes[..]))
    }

    #[test]
    fn a_message_has_its_parts_and_a_command_is_apart() {
        let long = [&[LONG, 0, 0, 0, 0, 0, 0, 1, 0][..], &[7; 256]].concat();
        let message = [&[MORE, 2, b'k', b'v', MORE, 0][..], &long].concat();
        assert_eq!(read_all(&message).unwrap(), Incoming::Message(vec![b"kv".to_vec(), Vec::new(), vec![7; 256]]));
        assert_eq!(read_all(&ready(Role::Sub)).unwrap(), Incoming::Command(ready(Role::Sub)[2..].to_vec()));
        assert_eq!(question(&[9; 8])[..4], [MORE, 0, 0, 8]);
    }

    #[test]
    fn what_is_too_large_or_no_frame_is_refused_before_anything_is_reserved_for_it() {
        let claims = |length: u64| [&[LONG][..], &length.to_be_bytes()].concat();
        let many = [MORE, 0].repeat(MOST_PARTS);
        let command = [&[LONG | COMMAND][..], &(MOST_COMMAND + 1).to_be_bytes()].concat();
        let two = [&[MORE | LONG][..], &MOST_BYTES.to_be_bytes(), &vec![0; 16 << 20], &[0, 1, 0]].concat();
        for bad in [claims(u64::MAX), claims(MOST_BYTES + 1), many, command, two, vec![8, 0], vec![MORE | COMMAND, 0]] {
            assert_eq!(read_all(&bad).unwrap_err().kind(), ErrorKind::InvalidData);
        }
        // announced and never sent
        assert_eq!(read_all(&claims(MOST_BYTES)).unwrap_err().kind(), ErrorKind::UnexpectedEof);
    }

    #[test]
    fn a_publisher_is_subscribed_to_and_its_pings_are_answered() {
        let (mut ours, mut theirs) = duplex(1 << 16);
        let greeting = {
            let mut greeting = [0; GREETING];
            (greeting[0], greeting[9], greeting[10], greeting[11]) = (0xff, 0x7f, 3, 1);
            greeting[12..16].copy_from_slice(b"NULL");
            greeting
        };
        let publisher = async {
            let mut seen = [0; GREETING];
            theirs.read_exact(&mut seen).await.unwrap();
            assert_eq!((seen[0], seen[9], &seen[12..16]), (0xff, 0x7f, &b"NULL"[..]));
            theirs.write_all(&greeting).await.unwrap();
            assert!(matches!(read(&mut theirs).await.unwrap(), Incoming::Command(text) if text.ends_with(b"\x03SUB")));
            theirs.write_all(b"\x04\x19\x05READY\x0bSocket-Type\0\0\0\x03PUB").await.unwrap();
            assert_eq!(read(&mut theirs).await.unwrap(), Incoming::Message(vec![vec![1]]));
            theirs.write_all(b"\x04\x09\x04PING\0\x64ab").await.unwrap();
            assert_eq!(read(&mut theirs).await.unwrap(), Incoming::Command(b"\x04PONGab".to_vec()));
            theirs.write_all(b"\x01\x01t\0\x01x").await.unwrap();
        };
        let subscriber = async {
            open(&mut ours, Role::Sub).await.unwrap();
            next(&mut ours).await.unwrap()
        };
        let (parts, ()) = now(async { tokio::join!(subscriber, publisher) });
        assert_eq!(parts, [b"t".to_vec(), b"x".to_vec()]);
    }

    #[test]
    fn who_speaks_something_else_is_refused() {
        for theirs in [&b"HTTP/1.1 400 Bad Request\r\n\r\n0123456789012345678901234567890123456789"[..], &[0xff; 64]] {
            let (mut ours, mut them) = duplex(1 << 16);
            let (opened, ()) = now(async {
                tokio::join!(open(&mut ours, Role::Sub), async { them.write_all(theirs).await.unwrap() })
            });
            assert_eq!(opened.unwrap_err().kind(), ErrorKind::InvalidData);
        }
    }

    proptest! {
        #[test]
        fn whatever_comes_ends_in_a_message_or_an_error(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            if let Ok(Incoming::Message(parts)) = read_all(&bytes) {
                prop_assert!(parts.iter().map(Vec::len).sum::<usize>() <= bytes.len());
            }
        }
    }
}
