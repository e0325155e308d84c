//! What the tests stand on: a ramjet process, scripted engines, raw clients, and waiting for conditions.

pub(crate) mod caching;
pub(crate) mod client;
pub(crate) mod dns;
pub(crate) mod engine;
pub(crate) mod hex;
pub(crate) mod load;
pub(crate) mod publisher;
pub(crate) mod ramjet;
pub(crate) mod unit;
pub(crate) mod wire;

use std::future::Future;
use std::time::{Duration, Instant};

/// How long a condition may take on a slow machine before the test fails.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// Waits until `condition` holds; fails with `what` after [`PATIENCE`].
pub(crate) async fn until<F: Future<Output = bool>>(what: &str, mut condition: impl FnMut() -> F) {
    there(what, || {
        let holds = condition();
        async { holds.await.then_some(()) }
    })
    .await;
}

/// Waits until `find` finds something; fails with `what` after [`PATIENCE`].
pub(crate) async fn there<T, F: Future<Output = Option<T>>>(what: &str, mut find: impl FnMut() -> F) -> T {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(found) = find().await {
            return found;
        }
        assert!(Instant::now() < deadline, "waited in vain: {what}");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

/// A chat body of exactly `size` bytes (at least about 70), with the extra members `members` (each ended by a comma).
pub(crate) fn chat_body(size: usize, members: &str) -> Vec<u8> {
    let head = format!(r#"{{{members}"model":"m","messages":[{{"role":"user","content":""#);
    let tail = r#""}]}"#;
    let filling = size.saturating_sub(head.len() + tail.len());
    let text = (0..filling).map(|n| char::from(b'a' + u8::try_from(n * 7 % 26).unwrap_or(0)));
    format!("{head}{}{tail}", text.collect::<String>()).into_bytes()
}

/// A body of any size: JSON where it fits, else raw letters that no engine would understand.
pub(crate) fn body_of(size: usize) -> Vec<u8> {
    let body = chat_body(size, "");
    if body.len() == size { body } else { vec![b'x'; size] }
}
