//! A replica whose drafts are never accepted is quarantined, and no restart of ramjet lets it out; another engine
//! instance does, and an operator.

use crate::support::client::{self, get};
use crate::support::engine::Engine;
use crate::support::ramjet::{Ramjet, Start};
use crate::support::{chat_body, until};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

/// A directory that goes with the test.
struct Place(PathBuf);

impl Place {
    fn new(name: &str) -> Place {
        let path = std::env::temp_dir().join(format!("ramjet-guard-{}-{name}", std::process::id()));
        let _absent = std::fs::remove_dir_all(&path);
        Place(path)
    }

    fn file(&self) -> PathBuf {
        self.0.join("quarantine")
    }

    fn config(&self, mode: &str) -> String {
        format!(
            "  generation: {{ mode: off }}\n  speculation: {{ mode: {mode}, interval: 2s, drafts: 100, windows: 2, \
             state_file: {} }}\nrouting: {{ policy: round_robin }}",
            self.file().display()
        )
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _gone = std::fs::remove_dir_all(&self.0);
    }
}

fn counted(engine: &Engine, started: u32, drafted: u32, accepted: u32) {
    engine.measures(&format!(
        "process_start_time_seconds 17{started}00\n\
         vllm:spec_decode_num_draft_tokens_total{{engine=\"0\"}} {drafted}.0\n\
         vllm:spec_decode_num_accepted_tokens_total{{engine=\"0\"}} {accepted}.0\n"
    ));
}

/// Readings that count no accepted draft, until `done` says so.
async fn drafts_fail(engine: &Engine, mut drafted: u32, done: impl AsyncFn() -> bool) {
    let mut asked = 0;
    until("drafts that fail are noticed", || {
        let now = engine.metrics_asked();
        if now > std::mem::replace(&mut asked, now) {
            drafted += 150;
            counted(engine, 1, drafted, 7);
        }
        done()
    })
    .await;
}

async fn start(engines: &[&Engine], config: &str) -> Ramjet {
    let upstreams: Vec<_> = engines.iter().map(|e| e.addr).collect();
    let ramjet = Ramjet::start_with(Start { upstreams: &upstreams, config, ..Start::default() }).await;
    until("probed", || async { engines.iter().all(|e| e.probes() > 0) }).await;
    ramjet
}

async fn fence(ramjet: &Ramjet, replica: usize) -> Option<String> {
    let json = get(ramjet.api, "/health").await.unwrap().json();
    json["replicas"][replica]["fence"].as_str().map(str::to_owned)
}

async fn is_held(ramjet: &Ramjet) -> bool {
    fence(ramjet, 0).await.as_deref() == Some("speculation")
}

async fn release(ramjet: &Ramjet, engine: &Engine) -> u16 {
    let path = format!("/api/replicas/{}/release", engine.addr);
    client::post(ramjet.admin, &path, "", "").await.unwrap().status
}

#[tokio::test(flavor = "multi_thread")]
async fn quarantine_survives_restarts_of_ramjet_and_ends_with_the_engine_instance() {
    let place = Place::new("sticky");
    let (bad, good) = (Engine::start().await, Engine::start().await);
    counted(&bad, 1, 50, 7);
    counted(&good, 1, 50, 7);
    let config = place.config("quarantine");
    let ramjet = start(&[&bad, &good], &config).await;
    drafts_fail(&bad, 50, async || is_held(&ramjet).await).await;
    // written down before it was published
    let written = std::fs::read_to_string(place.file()).unwrap();
    assert!(written.contains(&format!("{} 17100 ", bad.addr)), "{written}");
    assert_eq!(std::fs::metadata(place.file()).unwrap().permissions().mode() & 0o777, 0o600);
    for n in 0..6 {
        let answer = client::chat(ramjet.api, "", &chat_body(500 + n, "")).await.unwrap();
        assert_eq!((answer.status, answer.header("x-ramjet-upstream")), (200, Some("1")));
    }
    drop(ramjet);

    let ramjet = start(&[&bad, &good], &config).await;
    assert!(is_held(&ramjet).await, "from the first moment");
    let read = bad.metrics_asked();
    until("read again", || async { bad.metrics_asked() >= read + 2 }).await;
    assert!(is_held(&ramjet).await && fence(&ramjet, 1).await.is_none());
    // started anew, without drafts
    bad.measures("process_start_time_seconds 17200\nvllm:num_requests_running 0.0\n");
    until("free", || async { fence(&ramjet, 0).await.is_none() }).await;
    assert!(!std::fs::read_to_string(place.file()).unwrap().contains("17100"));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_operator_ends_it_and_nothing_else_brings_requests_there() {
    let place = Place::new("released");
    let engine = Engine::start().await;
    counted(&engine, 1, 50, 7);
    let config = place.config("quarantine");
    let ramjet = start(&[&engine], &config).await;
    drafts_fail(&engine, 50, async || is_held(&ramjet).await).await;
    // the only replica, and no failing open
    assert_eq!(client::chat(ramjet.api, "", &chat_body(500, "")).await.unwrap().status, 503);
    assert_eq!((engine.seen().len(), release(&ramjet, &engine).await), (0, 200));
    assert_eq!(fence(&ramjet, 0).await, None);
    assert_eq!(client::chat(ramjet.api, "", &chat_body(500, "")).await.unwrap().status, 200);
    drop(ramjet);
    let ramjet = start(&[&engine], &config).await;
    assert_eq!(fence(&ramjet, 0).await, None);
}

#[tokio::test(flavor = "multi_thread")]
async fn observing_keeps_everybody_and_writes_nothing() {
    let place = Place::new("observed");
    let engine = Engine::start().await;
    counted(&engine, 1, 50, 7);
    let ramjet = start(&[&engine], &place.config("observe")).await;
    let read = engine.metrics_asked();
    drafts_fail(&engine, 50, async || engine.metrics_asked() >= read + 4).await;
    assert!(fence(&ramjet, 0).await.is_none() && !place.0.exists());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_broken_record_keeps_all_away_until_each_was_released() {
    let place = Place::new("broken");
    let (a, b) = (Engine::start().await, Engine::start().await);
    std::fs::create_dir(&place.0).unwrap();
    std::fs::set_permissions(&place.0, PermissionsExt::from_mode(0o700)).unwrap();
    std::fs::write(place.file(), "ramjet-quarantine 1\nsome 1 2").unwrap();
    std::fs::set_permissions(place.file(), PermissionsExt::from_mode(0o600)).unwrap();
    let config = place.config("quarantine");
    let ramjet = start(&[&a, &b], &config).await;
    for replica in 0..2 {
        assert_eq!(fence(&ramjet, replica).await.as_deref(), Some("speculation_record"));
    }
    assert_eq!(client::chat(ramjet.api, "", &chat_body(500, "")).await.unwrap().status, 503);
    assert_eq!(release(&ramjet, &a).await, 200);
    assert_eq!(fence(&ramjet, 0).await, None);
    assert_eq!(fence(&ramjet, 1).await.as_deref(), Some("speculation_record"));
    drop(ramjet);
    // whoever was not released is not forgotten
    let ramjet = start(&[&a, &b], &config).await;
    assert_eq!(fence(&ramjet, 0).await, None);
    assert_eq!(fence(&ramjet, 1).await.as_deref(), Some("speculation"));
    assert_eq!(release(&ramjet, &b).await, 200);
    assert_eq!(fence(&ramjet, 1).await, None);
}
