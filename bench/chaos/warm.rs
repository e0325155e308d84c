//! Plain requests before the round, as many as fill every table of what the router remembers of such load: what grows after
//! that is a leak, and not a table on its way to its bound. Each is a session of its own, with a name.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tokio::net::TcpStream;
use tokio::task::JoinSet;

use super::wire::Wire;

/// The largest of these tables keep the last 57,344 ends of prompts and 229,376 blocks; a prompt here has five.
const REQUESTS: u64 = 60_000;
const PROMPT: usize = 11_000;
const AT_ONCE: usize = 8;
/// Engines go wrong meanwhile, or take their time to read, and a machine may be busy.
const AT_MOST: Duration = Duration::from_secs(600);

/// Asks until all have been asked; says how long that took.
///
/// # Errors
/// When the router answers too few of them in time.
pub(crate) async fn up(host: &str, model: &str) -> Result<String, String> {
    let (began, answered, next) = (Instant::now(), Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let mut clients = JoinSet::new();
    for _ in 0..AT_ONCE {
        let (host, model, answered, next) =
            (host.to_owned(), model.to_owned(), Arc::clone(&answered), Arc::clone(&next));
        clients.spawn(async move {
            let mut kept = None;
            // ordering: only distinctness matters
            while answered.load(Ordering::Relaxed) < REQUESTS && began.elapsed() < AT_MOST {
                match ask(&mut kept, &host, &model, next.fetch_add(1, Ordering::Relaxed)).await {
                    Ok(is_good) => {
                        answered.fetch_add(is_good.into(), Ordering::Relaxed);
                    }
                    Err(_) => kept = None,
                }
            }
        });
    }
    while clients.join_next().await.is_some() {}
    let (took, answered) = (began.elapsed().as_secs_f64(), answered.load(Ordering::Relaxed));
    let text = format!("warmed up by {answered} plain requests in {took:.0} s");
    if answered < REQUESTS { Err(format!("{text}: too few")) } else { Ok(text) }
}

/// One request that nobody has asked before. Whether it was answered well.
async fn ask(kept: &mut Option<Wire>, host: &str, model: &str, number: u64) -> std::io::Result<bool> {
    if kept.is_none() {
        *kept = Some(Wire::new(TcpStream::connect(host).await?));
    }
    let Some(wire) = kept.as_mut() else { return Ok(false) };
    let prompt = format!("{number:016x} ").repeat(PROMPT / 17);
    let body = format!(r#"{{"model":"{model}","prompt":"{prompt}"}}"#);
    let length = body.len();
    let head = format!(
        "POST /v1/completions HTTP/1.1\r\nHost: {host}\r\nX-Session-Id: warm-{number}\r\nContent-Length: {length}\r\n\r\n"
    );
    wire.write(&[head.as_bytes(), body.as_bytes()].concat()).await?;
    let Some(head) = wire.head().await? else { return Err(std::io::ErrorKind::UnexpectedEof.into()) };
    wire.whole(head.body(true)).await?;
    if head.closes() {
        *kept = None;
    }
    Ok(head.first.split(' ').nth(1) == Some("200"))
}
