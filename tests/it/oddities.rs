//! Odd but honest clients and engines: nothing of theirs is lost, doubled or misread.

use crate::support::client::{self, H1, chat_head, h2_connect, h2_send_body};
use crate::support::engine::Engine;
use crate::support::ramjet::{Ramjet, Start};
use crate::support::{body_of, chat_body, until};
use bytes::Bytes;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use xxhash_rust::xxh3::xxh3_64;

#[tokio::test(flavor = "multi_thread")]
async fn an_http2_body_without_length_ends_once_on_a_streamed_path() {
    let engine = Engine::start().await;
    let ramjet = Ramjet::start(&[engine.addr]).await;
    for method in ["POST", "GET", "DELETE"] {
        for _ in 0..5 {
            let mut sender = h2_connect(ramjet.api).await;
            let request =
                http::Request::builder().method(method).uri("http://ramjet.test/v1/embeddings").body(()).unwrap();
            let (response, mut stream) = sender.send_request(request, false).unwrap();
            if method == "POST" {
                h2_send_body(&mut stream, Bytes::from_static(b"hello")).await;
            } else {
                stream.send_data(Bytes::new(), true).unwrap();
            }
            assert_eq!(response.await.unwrap().status(), 200);
        }
    }
    // a stray end would stand before the next request on the same connection
    for seen in engine.seen() {
        assert!(seen.head.contains(" /v1/embeddings HTTP/1.1"), "{:?}", seen.head);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_http_1_0_client_gets_a_body_without_chunks() {
    let engine = Engine::start().await;
    let ramjet = Ramjet::start(&[engine.addr]).await;
    let body = chat_body(500, "");
    let head = chat_head(&format!("x-play: sse=data: [DONE]\\n\\n\r\ncontent-length: {}\r\n", body.len()));
    let mut h1 = H1::connect(ramjet.api).await.unwrap();
    h1.send(head.replace("HTTP/1.1", "HTTP/1.0").as_bytes()).await;
    h1.send(&body).await;
    let mut whole = Vec::new();
    h1.stream.read_to_end(&mut whole).await.unwrap();
    let text = String::from_utf8(whole).unwrap();
    let (head, body) = text.split_once("\r\n\r\n").unwrap();
    assert!(!head.to_ascii_lowercase().contains("transfer-encoding"), "{head}");
    assert_eq!(body, "data: [DONE]\n\n");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_shorter_than_an_http2_preface_is_answered() {
    let engine = Engine::start().await;
    let ramjet = Ramjet::start(&[engine.addr]).await;
    let mut h1 = H1::connect(ramjet.api).await.unwrap();
    h1.send(b"GET / HTTP/1.0\r\n\r\n").await;
    assert_eq!(h1.answer().await.unwrap().status, 200);
    let mut h1 = H1::connect(ramjet.api).await.unwrap();
    for byte in b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n" {
        h1.send(&[*byte]).await;
    }
    assert_eq!(h1.answer().await.unwrap().status, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_sent_in_one_go_are_answered_in_order() {
    let engine = Engine::start().await;
    let ramjet = Ramjet::start(&[engine.addr]).await;
    for size in [1000, 200_000] {
        let body = body_of(size);
        let mut all = chat_head("transfer-encoding: chunked\r\n").into_bytes();
        all.extend(format!("{size:x}\r\n").bytes());
        all.extend(&body);
        all.extend(b"\r\n0\r\n\r\nGET /second HTTP/1.1\r\nhost: x\r\n\r\n");
        all.extend(b"GET /third HTTP/1.1\r\nhost: x\r\n\r\n");
        let mut h1 = H1::connect(ramjet.api).await.unwrap();
        h1.send(&all).await;
        for _ in 0..3 {
            assert_eq!(h1.answer().await.unwrap().status, 200, "{size}");
        }
        let seen = engine.seen();
        let [first, second, third] = seen.last_chunk().unwrap();
        assert_eq!(first.hash, xxh3_64(&body));
        assert!(second.head.starts_with("GET /second ") && third.head.starts_with("GET /third "), "{size}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stray_line_end_after_a_body_does_not_end_the_answer() {
    let engine = Engine::start().await;
    let ramjet = Ramjet::start(&[engine.addr]).await;
    let body = chat_body(500, "");
    let mut h1 = client::begin_chat(ramjet.api, "decode", &body).await.unwrap();
    until("the engine has it", || async { !engine.seen().is_empty() }).await;
    h1.send(b"\r\n").await;
    h1.head().await.unwrap();
    let mut piece = [0; 64];
    for _ in 0..20 {
        h1.stream.read_exact(&mut piece).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_switched_protocol_is_not_asked_for_again_when_its_connection_breaks() {
    let (a, b) = (Engine::start().await, Engine::start().await);
    let ramjet = Ramjet::start(&[a.addr, b.addr]).await;
    let play = "raw-reset=HTTP/1.1 101 X\\r\\nupgrade: websocket\\r\\nconnection: upgrade\\r\\n\\r\\nFRAME";
    let mut h1 = H1::connect(ramjet.api).await.unwrap();
    let head = format!(
        "GET /v1/realtime HTTP/1.1\r\nhost: x\r\nconnection: upgrade\r\nupgrade: websocket\r\n\
         sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\nsec-websocket-version: 13\r\nx-play: {play}\r\n\r\n"
    );
    h1.send(head.as_bytes()).await;
    let mut whole = Vec::new();
    let _reset = h1.stream.read_to_end(&mut whole).await;
    let text = String::from_utf8(whole).unwrap();
    assert!(text.starts_with("HTTP/1.1 101") && text.ends_with("\r\n\r\nFRAME"), "{text}");
    assert_eq!(a.seen().len() + b.seen().len(), 1);
    ramjet.settled().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_engines_redirect_is_passed_on_and_not_followed() {
    let (engine, other) = (Engine::start().await, Engine::start().await);
    let ramjet = Ramjet::start(&[engine.addr]).await;
    let play =
        format!("raw=HTTP/1.1 307 X\\r\\nlocation: http://{}/v1/x\\r\\ncontent-length: 0\\r\\n\\r\\n", other.addr);
    let answer = client::chat(ramjet.api, &play, &chat_body(500, "")).await.unwrap();
    assert_eq!((answer.status, answer.header("location")), (307, Some(&*format!("http://{}/v1/x", other.addr))));
    assert!(other.seen().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_redirect_to_the_engine_itself_does_not_show_its_address() {
    let engine = Engine::start().await;
    let replicas = &[format!("{{ url: \"http://{}/pre\" }}", engine.addr)];
    let ramjet = Ramjet::start_with(Start { replicas, probe_path: "/slow", ..Start::default() }).await;
    for path in ["/pre/v1/x", "/pre//evil.test/x"] {
        let play = format!(
            "raw=HTTP/1.1 307 X\\r\\nlocation: http://{}{path}\\r\\ncontent-length: 0\\r\\n\\r\\n",
            engine.addr
        );
        let answer = client::chat(ramjet.api, &play, &chat_body(500, "")).await.unwrap();
        let shown = if path.contains("evil") { "/.//evil.test/x" } else { "/v1/x" };
        assert_eq!((answer.status, answer.header("location")), (307, Some(shown)));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn fields_of_the_engines_connection_do_not_reach_the_client() {
    let engine = Engine::start().await;
    let ramjet = Ramjet::start(&[engine.addr]).await;
    let play = "raw=HTTP/1.1 200 X\\r\\nconnection: keep-alive, x-mine\\r\\nx-mine: 1\\r\\nkeep-alive: timeout=5\\r\\n\
                x-kept: 1\\r\\ncontent-length: 2\\r\\n\\r\\n{}";
    let answer = client::chat(ramjet.api, play, &chat_body(500, "")).await.unwrap();
    assert_eq!(
        (answer.header("x-mine"), answer.header("keep-alive"), answer.header("x-kept")),
        (None, None, Some("1"))
    );
    assert_eq!(answer.header("connection"), Some("keep-alive"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_malformed_chunk_is_the_clients_mistake_and_said_so() {
    let engine = Engine::start().await;
    let ramjet = Ramjet::start(&[engine.addr]).await;
    let mut h1 = H1::connect(ramjet.api).await.unwrap();
    h1.send(chat_head("transfer-encoding: chunked\r\n").as_bytes()).await;
    h1.send(b"zz\r\nhello\r\n0\r\n\r\n").await;
    let answer = h1.answer().await.unwrap();
    assert_eq!((answer.status, answer.header("x-ramjet-error")), (400, Some("bad_request")));
    assert_eq!(ramjet.metric("ramjet_client_disconnects_total").await, 0.0);
    assert!(engine.seen().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_is_still_sending_too_much_sees_the_refusal() {
    let engine = Engine::start().await;
    let start = Start { upstreams: &[engine.addr], config: "limits: { body: 64KiB }", ..Start::default() };
    let ramjet = Ramjet::start_with(start).await;
    for path in ["/v1/chat/completions", "/v1/embeddings"] {
        let mut h1 = H1::connect(ramjet.api).await.unwrap();
        h1.send(chat_head("content-length: 8000000\r\n").replace("/v1/chat/completions", path).as_bytes()).await;
        h1.stream.write_all(&vec![b'x'; 8_000_000]).await.unwrap();
        assert_eq!(h1.answer().await.unwrap().status, 413, "{path}");
    }
    assert!(engine.seen().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn errors_come_in_the_callers_dialect() {
    let ramjet = Ramjet::start(&[crate::support::ramjet::lease()]).await;
    for (path, is_anthropic) in [("/v1/chat/completions", false), ("/v1/messages", true), ("/v1/embeddings", false)] {
        let mut h1 = H1::connect(ramjet.api).await.unwrap();
        h1.send(chat_head("content-length: 2\r\n").replace("/v1/chat/completions", path).as_bytes()).await;
        h1.send(b"{}").await;
        let answer = h1.answer().await.unwrap();
        let json = answer.json();
        assert_eq!((answer.status, answer.header("x-ramjet-error")), (502, Some("connect_failed")), "{path}");
        assert_eq!(json["type"] == "error", is_anthropic, "{json}");
        assert!(json["error"]["message"].is_string() && json["error"]["type"].is_string(), "{json}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn hostile_nesting_does_not_end_the_process() {
    let engine = Engine::start().await;
    let ramjet = Ramjet::start(&[engine.addr]).await;
    let nest = "[".repeat(500_000) + &"]".repeat(500_000);
    for body in [
        format!(r#"{{"model":"m","messages":[{{"role":"user","content":{nest}}}]}}"#),
        format!(r#"{{"model":"m","messages":[],"tools":{nest}}}"#),
    ] {
        assert_eq!(client::chat(ramjet.api, "", body.as_bytes()).await.unwrap().status, 200);
    }
    assert_eq!(engine.seen().len(), 2);
}
