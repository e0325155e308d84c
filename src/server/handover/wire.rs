//! Words between a process and its successor, over a socket in the file system: a kind, a length and that many bytes.
//! Listeners go along as file descriptors. Who is at the other end is told by the kernel, not by what it says.

use nix::sys::socket::sockopt::PeerCredentials;
use nix::sys::socket::{ControlMessage, ControlMessageOwned, MsgFlags, getsockopt, recvmsg, sendmsg};
use std::io::{Error, ErrorKind, IoSlice, IoSliceMut, Read, Result, Write};
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::net::UnixStream;

/// What a frame is. Asked: who is there, the listeners, and to take note that the successor serves or that something
/// was still counted, or what still runs elsewhere. Answered: who is there, a refusal in words, what is known, names of listeners, and yes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Kind {
    Who = b'?',
    Take = b'T',
    Serving = b'S',
    Counted = b'C',
    Running = b'R',
    Me = b'M',
    Refused = b'N',
    Known = b'K',
    Listeners = b'L',
    Done = b'D',
}

impl Kind {
    const ALL: [Kind; 10] = [
        Kind::Who,
        Kind::Take,
        Kind::Serving,
        Kind::Counted,
        Kind::Running,
        Kind::Me,
        Kind::Refused,
        Kind::Known,
        Kind::Listeners,
        Kind::Done,
    ];
}

/// No frame is longer: 256 MiB.
const LONGEST: u64 = 256 << 20;
/// More listeners fit into no message (`SCM_MAX_FD` is 253).
const MOST_LISTENERS: usize = 250;

pub(super) fn write(stream: &mut UnixStream, kind: Kind, body: &[u8]) -> Result<()> {
    let mut head = vec![kind as u8];
    head.extend_from_slice(&(body.len() as u64).to_le_bytes());
    stream.write_all(&head)?;
    stream.write_all(body)?;
    stream.flush()
}

pub(super) fn read(stream: &mut UnixStream) -> Result<(Kind, Vec<u8>)> {
    let (mut kind, mut length) = ([0], [0; 8]);
    stream.read_exact(&mut kind)?;
    stream.read_exact(&mut length)?;
    let kind = Kind::ALL.into_iter().find(|known| *known as u8 == kind[0]);
    let length = u64::from_le_bytes(length);
    let kind = kind.filter(|_| length <= LONGEST).ok_or(ErrorKind::InvalidData)?;
    // grows as bytes come: nothing is allocated for a length that is only said
    let mut body = Vec::new();
    stream.take(length).read_to_end(&mut body)?;
    if body.len() as u64 == length { Ok((kind, body)) } else { Err(ErrorKind::UnexpectedEof.into()) }
}

/// The body of a frame of the wanted kind; a refusal becomes an error of that text.
pub(super) fn expect(stream: &mut UnixStream, wanted: Kind) -> Result<Vec<u8>> {
    match read(stream)? {
        (kind, body) if kind == wanted => Ok(body),
        (Kind::Refused, why) => Err(Error::other(String::from_utf8_lossy(&why).into_owned())),
        _ => Err(ErrorKind::InvalidData.into()),
    }
}

/// Sends descriptors beside one byte.
pub(super) fn send_descriptors(stream: &UnixStream, fds: &[RawFd]) -> Result<()> {
    if fds.len() > MOST_LISTENERS {
        return Err(Error::other("too many listeners to hand over"));
    }
    let (byte, rights) = ([IoSlice::new(b"!")], [ControlMessage::ScmRights(fds)]);
    match sendmsg::<()>(stream.as_raw_fd(), &byte, &rights, MsgFlags::empty(), None)? {
        1 => Ok(()),
        _ => Err(ErrorKind::WriteZero.into()),
    }
}

/// Takes the descriptors that come beside one byte. They are closed where another program is executed.
pub(super) fn receive_descriptors(stream: &UnixStream) -> Result<Vec<RawFd>> {
    let mut byte = [0];
    let mut slices = [IoSliceMut::new(&mut byte)];
    let mut room = nix::cmsg_space!([RawFd; MOST_LISTENERS]);
    let message = recvmsg::<()>(stream.as_raw_fd(), &mut slices, Some(&mut room), MsgFlags::MSG_CMSG_CLOEXEC)?;
    let mut fds = Vec::new();
    for part in message.cmsgs()? {
        if let ControlMessageOwned::ScmRights(more) = part {
            fds.extend(more);
        }
    }
    Ok(fds)
}

/// The user at the other end.
pub(super) fn peer_user(stream: &UnixStream) -> Result<u32> {
    Ok(getsockopt(stream, PeerCredentials)?.uid())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{TcpListener, TcpStream};

    #[test]
    fn frames_and_descriptors_pass_in_order() {
        let (mut a, mut b) = UnixStream::pair().unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let addr = listener.local_addr().unwrap();
        write(&mut a, Kind::Known, b"state").unwrap();
        write(&mut a, Kind::Listeners, b"").unwrap();
        send_descriptors(&a, &[listener.as_raw_fd()]).unwrap();
        write(&mut a, Kind::Refused, b"no").unwrap();
        assert_eq!(expect(&mut b, Kind::Known).unwrap(), b"state");
        assert_eq!(expect(&mut b, Kind::Listeners).unwrap(), b"");
        let fds = receive_descriptors(&b).unwrap();
        assert_eq!(expect(&mut b, Kind::Done).unwrap_err().to_string(), "no");
        drop(listener);
        assert_eq!(fds.len(), 1);
        TcpStream::connect(addr).unwrap();
        assert_eq!(peer_user(&b).unwrap(), nix::unistd::geteuid().as_raw());
    }

    #[test]
    fn what_is_no_frame_is_an_error_and_no_memory() {
        for bytes in
            [&b"X\x00\x00\x00\x00\x00\x00\x00\x00"[..], b"K\xff\xff\xff\xff\xff\xff\xff\xff", b"K\x09\0\0\0\0\0\0\0x"]
        {
            let (mut a, mut b) = UnixStream::pair().unwrap();
            a.write_all(bytes).unwrap();
            drop(a);
            assert!(read(&mut b).is_err());
        }
    }
}
