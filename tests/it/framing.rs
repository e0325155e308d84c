//! Where an answer ends is said so that its client cannot misread it, whatever its engine says.

use crate::support::chat_body;
use crate::support::client::{self, H1, chat_head};
use crate::support::engine::Engine;
use crate::support::ramjet::Ramjet;

/// The heads of two answers on one connection, the first of them played, with its body.
async fn pair(ramjet: &Ramjet, play: &str) -> (client::Answer, client::Answer) {
    let mut h1 = H1::connect(ramjet.api).await.unwrap();
    let body = chat_body(500, "");
    for play in [play, "json={\"next\":1}"] {
        let head = chat_head(&format!("x-play: {play}\r\ncontent-length: {}\r\n", body.len()));
        h1.send(&[head.as_bytes(), &body].concat()).await;
    }
    (h1.answer().await.unwrap(), h1.answer().await.unwrap())
}

#[tokio::test(flavor = "multi_thread")]
async fn what_an_engine_says_of_a_body_is_said_once_and_nothing_of_one_that_is_not_there() {
    let engine = Engine::start().await;
    let ramjet = Ramjet::start(&[engine.addr]).await;
    for (play, body, length) in [
        ("raw=HTTP/1.1 204 X\\r\\ncontent-length: 3\\r\\n\\r\\n", "", None),
        ("raw=HTTP/1.1 204 X\\r\\ntransfer-encoding: chunked\\r\\n\\r\\n3\\r\\nabc\\r\\n0\\r\\n\\r\\n", "", None),
        ("raw=HTTP/1.1 200 X\\r\\ncontent-length: 3\\r\\ncontent-length: 3\\r\\n\\r\\nabc", "abc", Some("3")),
        ("raw=HTTP/1.1 200 X\\r\\ncontent-length: 3, 3\\r\\n\\r\\nabc", "abc", Some("3")),
        // the end of the connection ends it
        ("raw-reset=HTTP/1.1 200 X\\r\\ntransfer-encoding: identity\\r\\n\\r\\nabc", "abc", None),
        ("raw-reset=HTTP/1.0 200 X\\r\\n\\r\\nabc", "abc", None),
        ("raw=HTTP/1.0 200 X\\r\\nconnection: keep-alive\\r\\ncontent-length: 3\\r\\n\\r\\nabc", "abc", Some("3")),
    ] {
        let (first, next) = pair(&ramjet, play).await;
        assert!(first.head.starts_with("HTTP/1.1 "), "{play}: {}", first.head);
        assert_eq!(String::from_utf8(first.body.clone()).unwrap(), body, "{play}");
        let lengths =
            first.head.lines().filter(|line| line.to_ascii_lowercase().starts_with("content-length:")).count();
        assert_eq!((first.header("content-length"), lengths), (length, length.iter().count()), "{play}");
        let is_chunked = first.header("transfer-encoding") == Some("chunked");
        assert_eq!(is_chunked, length.is_none() && !body.is_empty(), "{play}: {}", first.head);
        assert_eq!(next.json()["next"], 1, "{play}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_in_a_coding_that_nobody_asked_for_is_none() {
    let engine = Engine::start().await;
    let ramjet = Ramjet::start(&[engine.addr]).await;
    let play = "raw=HTTP/1.1 200 X\\r\\ntransfer-encoding: gzip, chunked\\r\\n\\r\\n3\\r\\nabc\\r\\n0\\r\\n\\r\\n";
    let answer = client::chat(ramjet.api, play, &chat_body(500, "")).await.unwrap();
    assert_eq!((answer.status, answer.header("x-ramjet-error")), (502, Some("upstream_unreadable")));
    assert_eq!(engine.seen().len(), 1, "the engine was at work on it: nobody else is asked");
    ramjet.settled().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_switch_that_nobody_asked_for_is_no_answer() {
    let engine = Engine::start().await;
    let ramjet = Ramjet::start(&[engine.addr]).await;
    let play = "raw=HTTP/1.1 101 X\\r\\nupgrade: h2c\\r\\nconnection: upgrade\\r\\n\\r\\nhello";
    let answer = client::chat(ramjet.api, play, &chat_body(500, "")).await.unwrap();
    assert_eq!((answer.status, answer.header("x-ramjet-error")), (502, Some("upstream_unreadable")));
    assert_eq!(engine.seen().len(), 1);
    ramjet.settled().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_line_without_a_size_does_not_end_an_answer_in_chunks() {
    let engine = Engine::start().await;
    let ramjet = Ramjet::start(&[engine.addr]).await;
    let chunks = "raw=HTTP/1.1 200 X\\r\\ntransfer-encoding: chunked\\r\\n\\r\\n3\\r\\nabc\\r\\n";
    let whole = client::chat(ramjet.api, &format!("{chunks}0\\r\\n\\r\\n"), &chat_body(500, "")).await.unwrap();
    assert_eq!(whole.body, b"abc");
    let cut = client::chat(ramjet.api, &format!("{chunks}\\r\\n\\r\\n"), &chat_body(500, "")).await;
    assert!(cut.is_err(), "{:?}", cut.map(|answer| answer.body));
    ramjet.settled().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_that_says_twice_where_its_body_ends_goes_nowhere() {
    let engine = Engine::start().await;
    let ramjet = Ramjet::start(&[engine.addr]).await;
    for (path, fields) in [
        ("/v1/chat/completions", "content-length: 3, 3"),
        ("/v1/other", "content-length: 3, 3"),
        ("/v1/chat/completions", "transfer-encoding: gzip, chunked"),
        ("/v1/other", "transfer-encoding: gzip, chunked"),
    ] {
        let mut h1 = H1::connect(ramjet.api).await.unwrap();
        h1.send(chat_head(&format!("{fields}\r\n")).replace("/v1/chat/completions", path).as_bytes()).await;
        let answer = h1.answer().await.unwrap();
        assert_eq!((answer.status, answer.header("x-ramjet-error")), (400, Some("bad_request")), "{path} {fields}");
    }
    assert!(engine.seen().is_empty());
    ramjet.settled().await;
}
