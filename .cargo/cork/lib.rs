//! Holds back what is written to a TCP connection until all of it is there, where nothing but the number of the connection
//! is at hand. A crate of its own, since such a number stands for no borrow: using it is the one unsafe step.

use std::os::fd::{BorrowedFd, RawFd};

/// Lets the connection `fd` keep partial segments back (`TCP_CORK` of Linux, for 200 ms at most), or send them. On another
/// system, or where `fd` is closed or no TCP connection, nothing happens; what is written is the same whatever is set.
/// Whether it is set now.
pub fn cork(fd: RawFd, holds: bool) -> bool {
    if fd < 0 {
        return false;
    }
    // SAFETY: the borrow ends with this call, and nothing is done with it but to set an option, which neither reads nor
    // writes memory of ours. Were it closed, or another connection by now, the kernel says so or sends that one's segments
    // sooner.
    let socket = unsafe { BorrowedFd::borrow_raw(fd) };
    set(&socket, holds)
}

#[cfg(target_os = "linux")]
fn set(socket: &BorrowedFd<'_>, holds: bool) -> bool {
    socket2::SockRef::from(socket).set_tcp_cork(holds).is_ok()
}

#[cfg(not(target_os = "linux"))]
fn set(_: &BorrowedFd<'_>, _: bool) -> bool {
    false
}
