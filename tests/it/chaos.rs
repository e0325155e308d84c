//! Ten thousand requests whose clients leave at random moments: nothing stays in flight, nothing stays reserved.

use crate::support::chat_body;
use crate::support::client::{H1, chat_head};
use crate::support::engine::Engine;
use crate::support::ramjet::Ramjet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

const REQUESTS: u64 = 10_000;
const AT_ONCE: usize = 48;

/// A number that looks random and depends on `n` alone.
fn scatter(n: u64) -> u64 {
    xxhash_rust::xxh3::xxh3_64(&n.to_le_bytes())
}

async fn one(ramjet: &Ramjet, n: u64) {
    let dice = scatter(n);
    let play = ["prefill", "decode", "", "cut", "drop", "status=503", "busy", "decode"][(dice % 8) as usize];
    let body = chat_body(100 + (dice >> 8) as usize % 40_000, "\"stream\":true,");
    let Ok(mut h1) = H1::connect(ramjet.api).await else { return };
    h1.send(chat_head(&format!("x-play: {play}\r\ncontent-length: {}\r\n", body.len())).as_bytes()).await;
    // some leave in the middle of their body, some stay to the end of an answer that has one, however slow the machine is,
    // the others leave at a random moment
    let (breaks_off, stays) = (dice >> 24 & 7 == 0, dice >> 24 & 7 == 1 && (2..6).contains(&(dice % 8)));
    let sent = if breaks_off { body.len() / 2 } else { body.len() };
    h1.send(&body[..sent]).await;
    let patience = if stays { Duration::from_secs(60) } else { Duration::from_micros((dice >> 32) % 100_000) };
    let _left_or_done = tokio::time::timeout(patience, h1.answer()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn ten_thousand_clients_that_leave_at_random_moments_leave_nothing_behind() {
    let (a, b) = (Engine::start().await, Engine::start().await);
    let ramjet = Arc::new(Ramjet::start(&[a.addr, b.addr]).await);
    let next = Arc::new(AtomicU64::new(0));
    let workers: Vec<_> = (0..AT_ONCE)
        .map(|_| {
            let (ramjet, next) = (ramjet.clone(), next.clone());
            tokio::spawn(async move {
                loop {
                    match next.fetch_add(1, Relaxed) {
                        n if n >= REQUESTS => return,
                        n => one(&ramjet, n).await,
                    }
                }
            })
        })
        .collect();
    for worker in workers {
        worker.await.unwrap();
    }
    ramjet.settled().await;
    // the test means something as long as many got far enough to be missed
    let reached = a.seen().len() + b.seen().len();
    let left = ramjet.metric("ramjet_client_disconnects_total").await;
    assert!(reached > 500 && left > 500.0, "{reached} requests reached an engine, {left} clients left");
}
