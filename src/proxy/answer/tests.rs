//! Answers in whatever pieces they come, and what is none.

use super::*;
use pingora_error::ErrorType;
use proptest::prelude::*;
use std::collections::VecDeque;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use tokio::io::ReadBuf;

/// An engine that says these pieces, and closes the connection.
#[derive(Debug)]
struct Says(VecDeque<Vec<u8>>);

impl AsyncRead for Says {
    fn poll_read(mut self: Pin<&mut Self>, _: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if let Some(mut piece) = self.0.pop_front() {
            let rest = piece.split_off(piece.len().min(buf.remaining()));
            buf.put_slice(&piece);
            if !rest.is_empty() {
                self.0.push_front(rest);
            }
        }
        Poll::Ready(Ok(()))
    }
}

/// What an answer comes to: statuses, the body, and whether the connection stays.
#[derive(Debug, PartialEq, Clone)]
struct Read {
    statuses: Vec<u16>,
    body: Vec<u8>,
    stays: bool,
}

fn read(text: &[u8], step: usize) -> std::result::Result<Read, ErrorType> {
    let pieces = text.chunks(step.max(1)).map(<[u8]>::to_vec).collect();
    let mut answer = Answer::on(Says(pieces), Duration::from_secs(60));
    let mut read = Read { statuses: vec![], body: vec![], stays: false };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    runtime.block_on(async {
        loop {
            // as it comes, and what is there at once first
            let said = if step.is_multiple_of(2) { answer.soon() } else { None };
            let said = match said {
                Some(said) => said,
                None => answer.next().await,
            };
            let task = said.map_err(|e| e.etype().clone())?;
            let is_end = task.is_end();
            match task {
                HttpTask::Header(head, _) => read.statuses.push(head.status.as_u16()),
                HttpTask::Body(piece, _) => read.body.extend_from_slice(&piece.unwrap_or_default()),
                other => panic!("{other:?}"),
            }
            if is_end {
                read.stays = answer.into_line().is_some();
                return Ok(read);
            }
        }
    })
}

fn good(text: &str, statuses: &[u16], body: &str, stays: bool) {
    let wanted = Read { statuses: statuses.to_vec(), body: body.as_bytes().to_vec(), stays };
    for step in [1, 2, 3, 7, text.len()] {
        assert_eq!(read(text.as_bytes(), step).as_ref(), Ok(&wanted), "{text:?} by {step}");
    }
}

#[test]
fn a_body_ends_where_its_head_says() {
    good("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello", &[200], "hello", true);
    good("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", &[200], "", true);
    good("HTTP/1.1 200\r\nContent-Length: 5, 5\r\nContent-Length: 5\r\n\r\nhello", &[200], "hello", true);
    good("HTTP/1.1 204 No Content\r\nContent-Length: 5\r\n\r\n", &[204], "", false);
    good("HTTP/1.1 204 No Content\r\n\r\n", &[204], "", true);
    good("HTTP/1.1 304 Not Modified\r\nContent-Length: 5\r\n\r\n", &[304], "", true);
    good("HTTP/1.1 200 OK\r\n\r\nhello", &[200], "hello", false);
    good("HTTP/1.1 200 OK\r\nTransfer-Encoding: identity\r\n\r\nhello", &[200], "hello", false);
    let chunked = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\n";
    good(&format!("{chunked}5\r\nhello\r\n6;a=b\r\n world\r\n0\r\n\r\n"), &[200], "hello world", true);
    good(&format!("{chunked}0\r\nx-a: 1\r\n\r\n"), &[200], "", true);
}

#[test]
fn interim_answers_come_before_it() {
    let interim = "HTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\nHTTP/1.1 100 Continue\r\n\r\n";
    good(&format!("{interim}HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"), &[103, 100, 200], "ok", true);
}

#[test]
fn a_connection_stays_unless_somebody_says_otherwise() {
    for (version, fields, stays) in [
        ("1.1", "", true),
        ("1.1", "Connection: Close\r\n", false),
        ("1.1", "Connection: x\r\nconnection: y, close\r\n", false),
        ("1.0", "", false),
        ("1.0", "Connection: Keep-Alive\r\n", true),
    ] {
        good(&format!("HTTP/{version} 200 OK\r\n{fields}Content-Length: 2\r\n\r\nok"), &[200], "ok", stays);
    }
    // more than was asked for
    let text = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nokHTTP/1.1 200 OK\r\n";
    assert_eq!(read(text.as_bytes(), text.len()).map(|read| read.stays), Ok(false));
}

#[test]
fn what_is_no_answer_is_an_error_and_what_is_cut_off_another() {
    let unreadable = ErrorType::InvalidHTTPHeader;
    for (text, error) in [
        ("", ErrorType::ConnectionClosed),
        ("HTTP/1.1 200 OK\r\nContent-Le", ErrorType::ConnectionClosed),
        ("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhell", ErrorType::ConnectionClosed),
        ("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello", ErrorType::ConnectionClosed),
        ("SSH-2.0-OpenSSH_9.2\r\n\r\n", unreadable.clone()),
        ("HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nhello", unreadable.clone()),
        ("HTTP/1.1 200 OK\r\nContent-Length: +5\r\n\r\nhello", unreadable.clone()),
        ("HTTP/1.1 200 OK\r\nContent-Length: 99999999999999999999\r\n\r\n", unreadable),
    ] {
        for step in [1, 1000] {
            assert_eq!(read(text.as_bytes(), step).as_ref().err(), Some(&error), "{text:?}");
        }
    }
}

#[test]
fn a_head_of_many_fields_is_read_and_one_without_end_is_not() {
    let fields: String = (0..200).map(|n| format!("x-{n}: {n}\r\n")).collect();
    good(&format!("HTTP/1.1 200 OK\r\n{fields}Content-Length: 2\r\n\r\nok"), &[200], "ok", true);
    let endless = [b"HTTP/1.1 200 OK\r\nx: ".to_vec(), vec![b'y'; LONGEST]].concat();
    assert_eq!(read(&endless, 1 << 16), Err(ErrorType::InvalidHTTPHeader));
}

proptest! {
    #[test]
    fn pieces_make_no_difference(bodies in prop::collection::vec("[a-z\r\n]{1,40}", 0..8), step in 1usize..60) {
        let body = bodies.concat();
        let chunks: String = bodies.iter().map(|body| format!("{:x}\r\n{body}\r\n", body.len())).collect();
        let head = "HTTP/1.1 200 OK\r\n";
        let whole = Read { statuses: vec![200], body: body.into_bytes(), stays: true };
        let text = format!("{head}Transfer-Encoding: chunked\r\n\r\n{chunks}0\r\n\r\n");
        prop_assert_eq!(read(text.as_bytes(), step), Ok(whole.clone()));
        let body = String::from_utf8_lossy(&whole.body);
        let text = format!("{head}Content-Length: {}\r\n\r\n{body}", body.len());
        prop_assert_eq!(read(text.as_bytes(), step), Ok(whole));
    }

    #[test]
    fn no_bytes_do_harm(bytes in prop::collection::vec(any::<u8>(), 0..200), step in 1usize..60) {
        for head in ["", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", "HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n"] {
            let text = [head.as_bytes(), &bytes].concat();
            prop_assert_eq!(read(&text, step).map(|read| read.body), read(&text, text.len()).map(|read| read.body));
        }
    }
}
