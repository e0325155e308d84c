//! What is asked of clients: keys that go no further than ramjet, and pages of other origins.

use crate::support::chat_body;
use crate::support::client::{Answer, H1, h2_connect, h2_request};
use crate::support::engine::Engine;
use crate::support::ramjet::{Ramjet, Start, command};

/// SHA-256 of `client-key`.
const DIGEST: &str = "8eb943e7040b69a94bf39562088223755bff4c2e7c5fc257f1e08f870fe01d35";

async fn ask(ramjet: &Ramjet, method: &str, path: &str, fields: &str, body: &[u8]) -> Answer {
    let mut h1 = H1::connect(ramjet.api).await.unwrap();
    let length = body.len();
    h1.send(format!("{method} {path} HTTP/1.1\r\nhost: r\r\ncontent-length: {length}\r\n{fields}\r\n").as_bytes())
        .await;
    h1.send(body).await;
    h1.answer().await.unwrap()
}

async fn keyed(engine: &Engine, config: &str) -> Ramjet {
    let lines = format!("# teams\nteam-a: {DIGEST}\n");
    let replicas = [format!("{{ url: \"http://{}\", api_key_env: ENGINE_KEY }}", engine.addr)];
    let env = [("CLIENT_KEYS", lines.as_str()), ("ENGINE_KEY", "engine-key")];
    let config = format!("auth: {{ keys_env: CLIENT_KEYS }}\n{config}");
    Ramjet::start_with(Start { replicas: &replicas, config: &config, env: &env, ..Start::default() }).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_missing_or_wrong_key_is_refused_in_the_callers_dialect_and_nothing_reaches_an_engine() {
    let engine = Engine::start().await;
    let ramjet = keyed(&engine, "").await;
    let body = chat_body(200_000, "");
    for (path, fields) in [
        ("/v1/chat/completions", ""),
        ("/v1/chat/completions", "authorization: Bearer wrong\r\n"),
        ("/v1/files", "x-api-key: wrong\r\n"),
        ("/v1/models/x", "authorization: Bearer engine-key\r\n"),
    ] {
        let answer = ask(&ramjet, "POST", path, fields, &body).await;
        assert_eq!((answer.status, answer.header("x-ramjet-error")), (401, Some("invalid_api_key")), "{path} {fields}");
        assert!(answer.header("www-authenticate").unwrap().starts_with("Bearer"));
        assert_eq!(answer.json()["error"]["code"], "invalid_api_key");
    }
    let answer = ask(&ramjet, "POST", "/v1/messages", "", &body).await;
    assert_eq!(answer.json()["error"]["type"], "authentication_error");
    assert_eq!(answer.json()["type"], "error");
    assert_eq!(ask(&ramjet, "GET", "/health", "", b"").await.status, 200);
    assert!(engine.seen().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_opens_wherever_it_stands_is_counted_by_name_and_goes_no_further() {
    let engine = Engine::start().await;
    let ramjet = keyed(&engine, "").await;
    let all = "authorization: Bearer client-key\r\nX-Api-Key: client-key\r\nAPI-KEY: client-key\r\n";
    for fields in ["Authorization: Bearer client-key\r\n", "x-api-key: client-key\r\n", "api-key: client-key\r\n", all]
    {
        for path in ["/v1/chat/completions", "/v1/messages", "/v1/files"] {
            let answer = ask(&ramjet, "POST", path, fields, &chat_body(500, "")).await;
            assert_eq!(answer.status, 200, "{path} {fields}");
        }
    }
    let mut sender = h2_connect(ramjet.api).await;
    let mut request = h2_request("", None);
    request.headers_mut().insert("x-api-key", "client-key".parse().unwrap());
    let (response, mut stream) = sender.send_request(request, false).unwrap();
    stream.send_data(chat_body(500, "").into(), true).unwrap();
    assert_eq!(response.await.unwrap().status(), 200);
    let seen = engine.seen();
    assert_eq!(seen.len(), 13);
    for request in seen {
        assert!(!request.head.contains("client-key"), "{}", request.head);
        assert_eq!(request.header("authorization"), Some("Bearer engine-key"));
    }
    ramjet.settled().await;
    let mut counted = ramjet.series("ramjet_client_key_requests_total").await;
    counted.retain(|(_, count)| *count != 0.0);
    assert_eq!(counted, [("{code=\"200\",key=\"team-a\"}".to_owned(), 13.0)]);
}

#[test]
fn a_key_that_stands_there_in_clear_is_not_shown_when_it_is_refused() {
    let env = [("CLIENT_KEYS", "team-a: sk-in-clear"), ("RJ_UPSTREAM", "http://127.0.0.1:1")];
    let file = std::env::temp_dir().join(format!("ramjet-it-keys-{}.yaml", std::process::id()));
    std::fs::write(&file, "auth: { keys_env: CLIENT_KEYS }").unwrap();
    let output = command().arg("-t").arg("-c").arg(&file).envs(env).output().unwrap();
    std::fs::remove_file(file).unwrap();
    let text = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(64));
    assert!(text.contains("auth.keys_env") && text.contains("line 1") && !text.contains("sk-in-clear"), "{text}");
}

const PREFLIGHT: &str = "access-control-request-method: POST\r\naccess-control-request-headers: authorization,x-a\r\n";

#[tokio::test(flavor = "multi_thread")]
async fn pages_of_named_origins_are_answered_without_a_key_and_read_errors_too() {
    let engine = Engine::start().await;
    let ramjet = keyed(&engine, "cors: { origins: [\"https://app.test\"] }").await;
    let asked = format!("origin: https://app.test\r\n{PREFLIGHT}");
    let answer = ask(&ramjet, "OPTIONS", "/v1/chat/completions", &asked, b"").await;
    assert_eq!((answer.status, answer.header("transfer-encoding")), (204, None));
    assert_eq!(answer.header("access-control-allow-origin"), Some("https://app.test"));
    assert_eq!(answer.header("access-control-allow-headers"), Some("authorization,x-a"));
    assert!(answer.header("access-control-allow-methods").unwrap().contains("POST"));
    assert!(answer.header("vary").unwrap().contains("Origin"));
    let asked = format!("origin: https://evil.test\r\n{PREFLIGHT}");
    let answer = ask(&ramjet, "OPTIONS", "/v1/chat/completions", &asked, b"").await;
    assert_eq!((answer.status, answer.header("access-control-allow-origin")), (204, None));
    let (page, key) = ("origin: https://app.test\r\n", "x-api-key: client-key\r\n");
    let own = "x-play: raw=HTTP/1.1 200 OK\\r\\naccess-control-allow-origin: *\\r\\ncontent-length: 0\\r\\n\\r\\n\r\n";
    for (fields, status) in [
        (page.to_owned(), 401),
        (format!("{page}{key}"), 200),
        (format!("{page}{key}{own}"), 200),
        (format!("{page}{key}x-play: status=400\r\n"), 400),
        (format!("{page}{key}x-play: drop\r\n"), 502),
    ] {
        let answer = ask(&ramjet, "POST", "/v1/files", &fields, &chat_body(500, "")).await;
        assert_eq!(answer.status, status, "{fields}");
        let lines: Vec<_> = answer.head.lines().filter(|l| l.to_lowercase().contains("allow-origin")).collect();
        assert_eq!(lines.len(), 1, "{fields}: {lines:?}");
        assert_eq!(answer.header("access-control-allow-origin"), Some("https://app.test"));
        assert!(answer.head.to_lowercase().contains("vary: origin"));
    }
    assert_eq!(engine.seen().len(), 4);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_page_may_ask_the_engine_whether_it_may_ask_and_nothing_else_without_a_key() {
    let engine = Engine::start().await;
    let ramjet = keyed(&engine, "").await;
    let asked = format!("origin: https://app.test\r\n{PREFLIGHT}");
    let own = "x-play: raw=HTTP/1.1 200 OK\\r\\naccess-control-allow-origin: *\\r\\ncontent-length: 0\\r\\n\\r\\n\r\n";
    let with_key = format!("{asked}{own}authorization: Bearer client-key\r\n");
    for fields in [format!("{asked}{own}"), with_key] {
        let answer = ask(&ramjet, "OPTIONS", "/v1/chat/completions", &fields, b"").await;
        assert_eq!((answer.status, answer.header("access-control-allow-origin")), (200, Some("*")));
    }
    assert!(engine.seen().iter().all(|seen| !seen.head.contains("client-key")));
    assert_eq!(ask(&ramjet, "OPTIONS", "/v1/chat/completions", &asked, b"a body").await.status, 401);
    assert_eq!(ask(&ramjet, "OPTIONS", "/v1/chat/completions", "origin: https://app.test\r\n", b"").await.status, 401);
    assert_eq!(ask(&ramjet, "POST", "/v1/chat/completions", &asked, b"{}").await.status, 401);
}

#[tokio::test(flavor = "multi_thread")]
async fn without_origins_everything_passes() {
    let engine = Engine::start().await;
    let ramjet = Ramjet::start(&[engine.addr]).await;
    let own = "x-play: raw=HTTP/1.1 200 OK\\r\\naccess-control-allow-origin: *\\r\\ncontent-length: 0\\r\\n\\r\\n\r\n";
    let answer =
        ask(&ramjet, "OPTIONS", "/v1/models", &format!("origin: https://a.test\r\n{PREFLIGHT}{own}"), b"").await;
    assert_eq!((answer.status, answer.header("access-control-allow-origin")), (200, Some("*")));
    assert_eq!(answer.header("vary"), None);
    assert!(engine.seen()[0].head.starts_with("OPTIONS /v1/models "));
}
