//! Whether a client is still there while its request waits, is sent or is being answered: nothing else looks at its
//! connection then.
//!
//! Where all of the request has been read, the end of the connection is what comes next, and is waited for. An HTTP/2
//! stream is reset whatever was read of it. A body of HTTP/1 that is to stream through is still on its way, and reading
//! it is up to the attempt that it waits for; so the kernel is asked, which knows of an end behind bytes that nobody has
//! read. What it cannot know is the end behind bytes that its buffer does not take any more.

use pingora_error::{Error, ErrorType, Result};
use pingora_proxy::Session;
use std::time::Duration;

/// How often the kernel is asked.
const LOOK_AGAIN: Duration = Duration::from_millis(50);
/// The states of a connection that its other end has reset or closed (Linux, `include/net/tcp_states.h`).
const GONE: [u8; 2] = [7, 8];

/// Fails when the client has left.
pub(super) async fn still_there(session: &mut Session) -> Result<()> {
    if is_unread(session) {
        return if has_hung_up(session) { Err(hung_up()) } else { Ok(()) };
    }
    let idle = session.downstream_session.read_body_or_idle(true);
    match tokio::time::timeout(Duration::ZERO, idle).await {
        Ok(Err(e)) => Err(e.into_down()),
        _ => Ok(()),
    }
}

/// Ends when the client has left.
pub(super) async fn leaves(session: &mut Session) -> Box<Error> {
    if is_unread(session) {
        while !has_hung_up(session) {
            tokio::time::sleep(LOOK_AGAIN).await;
        }
        return hung_up();
    }
    if let Err(e) = session.downstream_session.read_body_or_idle(true).await {
        return e.into_down();
    }
    std::future::pending().await
}

/// Whether what would be read is the body, which the attempt needs.
fn is_unread(session: &mut Session) -> bool {
    !session.downstream_session.is_http2() && !session.downstream_session.is_body_done()
}

fn has_hung_up(session: &Session) -> bool {
    let socket = session.downstream_session.digest().and_then(|digest| digest.socket_digest.as_ref());
    socket.and_then(|socket| socket.tcp_info()).is_some_and(|info| GONE.contains(&info.tcpi_state))
}

fn hung_up() -> Box<Error> {
    Error::explain(ErrorType::ConnectionClosed, "while its request waited").into_down()
}
