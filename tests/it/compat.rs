//! What is changed in a request where engines stumble over it, and that nothing else is.

use crate::support::client;
use crate::support::engine::Engine;
use crate::support::ramjet::{Ramjet, Start};
use xxhash_rust::xxh3::xxh3_64;

const BODY: &str = concat!(
    r#"{ "max_tokens" : 999999, "temperature":1.50,"reasoning_effort":"auto","#,
    r#""messages":[{"role":"user","content":[{"type":"text","text":"a\u00e9\/"}]},"#,
    r#"{"role":"tool","content":[{"type":"text","text":"a"},{"type":"text","text":"b"}]}],"n":1.0,"n":1 }"#
);

#[tokio::test(flavor = "multi_thread")]
async fn the_rules_edit_their_spans_and_keep_every_other_byte() {
    let engine = Engine::start().await;
    let ramjet = Ramjet::start(&[engine.addr]).await;
    assert_eq!(client::chat(ramjet.api, "", BODY.as_bytes()).await.unwrap().status, 200);
    let want = concat!(
        r#"{  "temperature":1.50,"messages":[{"role":"user","content":"a\u00e9\/"},"#,
        r#"{"role":"tool","content":[{"type":"text","text":"a"},{"type":"text","text":"b"}]}],"n":1.0,"n":1 }"#
    );
    let seen = &engine.seen()[0];
    assert_eq!((seen.length, seen.hash), (want.len(), xxh3_64(want.as_bytes())));
    assert_eq!(seen.header("content-length"), Some(&*want.len().to_string()));
}

#[tokio::test(flavor = "multi_thread")]
async fn without_rules_and_elsewhere_bodies_stay_as_they_came() {
    let engine = Engine::start().await;
    let off =
        "compat: { strip_max_tokens_over: null, flatten_text_parts: false, drop_unknown_reasoning_effort: false }";
    for (config, path) in [(off, "/v1/chat/completions"), ("", "/v1/messages"), ("", "/v1/responses")] {
        let ramjet = Ramjet::start_with(Start { upstreams: &[engine.addr], config, ..Start::default() }).await;
        assert_eq!(client::post(ramjet.api, path, "", BODY).await.unwrap().status, 200);
        assert_eq!(engine.seen().last().unwrap().hash, xxh3_64(BODY.as_bytes()), "{path}");
    }
}
