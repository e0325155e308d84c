//! The configuration is read again while requests run: a good one comes into force as a whole, a bad one not at all.

use crate::support::client::{self, Answer, H1, chat_head};
use crate::support::engine::{Engine, TOKEN};
use crate::support::ramjet::{Ramjet, Start, command, tempdir};
use crate::support::{chat_body, until};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};

/// A chat with more header lines.
async fn chat(ramjet: &Ramjet, headers: &str, body: &[u8]) -> Answer {
    let mut h1 = H1::connect(ramjet.api).await.unwrap();
    h1.send(chat_head(&format!("{headers}content-length: {}\r\n", body.len())).as_bytes()).await;
    h1.send(body).await;
    h1.answer().await.unwrap()
}

fn texts(list: &serde_json::Value) -> Vec<String> {
    list.as_array().unwrap().iter().map(|text| text.as_str().unwrap().to_owned()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn survivors_keep_their_place_their_counters_and_what_they_hold() {
    let (a, b, c) = (Engine::start().await, Engine::start().await, Engine::start().await);
    let ramjet = Ramjet::start(&[a.addr, b.addr]).await;
    let body = chat_body(60_000, "");
    let home = chat(&ramjet, "", &body).await.header("x-ramjet-upstream").unwrap().to_owned();
    ramjet.settled().await;
    let transitions = ramjet.series("ramjet_upstream_transitions_total").await;
    ramjet.rewrite(&Start { upstreams: &[c.addr, b.addr, a.addr], ..Start::default() });
    let report = ramjet.reload().await;
    assert_eq!((report.status, report.json()["outcome"].as_str()), (200, Some("applied")));
    assert_eq!(texts(&report.json()["replicas"]["added"]), [c.addr.to_string()]);
    assert_eq!(ramjet.names().await, [a.addr, b.addr, c.addr].map(|addr| addr.to_string()));
    let again = chat(&ramjet, "x-ramjet-explain: 1\r\n", &body).await;
    let told = again.header("x-ramjet-decision").unwrap();
    assert!(!told.contains("overlap=0/"), "{told}");
    assert_eq!(again.header("x-ramjet-upstream"), Some(&*home));
    let after = ramjet.series("ramjet_upstream_transitions_total").await;
    assert!(transitions.iter().all(|series| after.contains(series)), "{after:?}");
    // the other one goes, and with it its series
    let (stays, goes) = if home == "0" { (a.addr, b.addr) } else { (b.addr, a.addr) };
    ramjet.rewrite(&Start { upstreams: &[c.addr, stays], ..Start::default() });
    assert_eq!(texts(&ramjet.reload().await.json()["replicas"]["removed"]), [goes.to_string()]);
    let page = String::from_utf8(client::get(ramjet.admin, "/metrics").await.unwrap().body).unwrap();
    assert!(!page.contains(&goes.to_string()) && page.contains(&stays.to_string()));
    assert_eq!(chat(&ramjet, "", &body).await.header("x-ramjet-upstream"), Some(&*home));
    assert_eq!(ramjet.metric("ramjet_config_generation").await, 3.0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_of_a_removed_replica_goes_on_and_its_slot_is_free_afterwards() {
    let (a, b, c) = (Engine::start().await, Engine::start().await, Engine::start().await);
    let ramjet = Ramjet::start(&[a.addr]).await;
    let mut stream = client::begin_chat(ramjet.api, "decode", &chat_body(500, "\"stream\":true,")).await.unwrap();
    stream.head().await.unwrap();
    ramjet.rewrite(&Start { upstreams: &[b.addr], ..Start::default() });
    assert_eq!(ramjet.reload().await.status, 200);
    assert_eq!(ramjet.names().await, [b.addr.to_string()]);
    for n in 0..4 {
        assert_eq!(chat(&ramjet, "", &chat_body(500 + n, "")).await.header("x-ramjet-upstream"), Some("1"));
    }
    let mut bytes = vec![0; 4 * TOKEN.len()];
    tokio::io::AsyncReadExt::read_exact(&mut stream.stream, &mut bytes).await.unwrap();
    assert_eq!((a.seen()[0].closed, ramjet.metric("ramjet_reservations").await), (None, 1.0));
    drop(stream);
    ramjet.settled().await;
    let gone = || async { ramjet.series("ramjet_upstream_up").await.len() == 1 };
    until("it is gone from the metrics", gone).await;
    // the first slot is free; how soon depends on when the probes let go of it
    let reused = || async {
        ramjet.rewrite(&Start { upstreams: &[b.addr, c.addr], ..Start::default() });
        ramjet.reload().await;
        let is_first = ramjet.of_replica(&c.addr.to_string(), "ordinal").await.unwrap() == 0;
        if !is_first {
            ramjet.rewrite(&Start { upstreams: &[b.addr], ..Start::default() });
            ramjet.reload().await;
        }
        is_first
    };
    until("its slot is used again", reused).await;
    assert_eq!(chat(&ramjet, "", &chat_body(500, "")).await.status, 200);
}

/// What `ramjet -t` says of a file.
fn tested(file: &std::path::Path) -> Vec<String> {
    let output = command().arg("-t").arg("-c").arg(file).output().unwrap();
    assert_eq!(output.status.code(), Some(64));
    String::from_utf8(output.stderr).unwrap().lines().map(str::to_owned).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bad_file_changes_nothing_and_everything_that_is_wrong_is_said_as_a_test_says_it() {
    let engine = Engine::start().await;
    let ramjet = Ramjet::start(&[engine.addr]).await;
    let one = format!("fleet: {{ replicas: [{{ url: \"http://{}\" }}] }}\n", engine.addr);
    let twice = format!("{{ url: \"http://{}\" }}", engine.addr);
    let bad = [
        "fleet: {".to_owned(),
        "fleet: { replicas: [] }".to_owned(),
        format!("{one}routing: {{ policy: best, block_bytes: 1 }}\nretry: {{ attempts: 99 }}\nnonsense: 1"),
        format!("fleet: {{ replicas: [{twice}, {twice}] }}"),
        format!("{one}auth: {{ keys_file: /no/such/file }}\nadmin: {{ token_env: NO_SUCH_NAME }}"),
        format!("{one}timeouts: {{ connect: 2 }}\ntimeouts: {{ connect: 2s }}"),
    ];
    for (n, text) in bad.iter().enumerate() {
        std::fs::write(&ramjet.file, text).unwrap();
        let report = ramjet.reload().await;
        assert_eq!((report.status, report.json()["outcome"].as_str()), (422, Some("refused")), "{text}");
        assert_eq!(texts(&report.json()["problems"]), tested(&ramjet.file), "{text}");
        let refused = ramjet.series("ramjet_reloads_total").await;
        assert!(refused.contains(&("{outcome=\"refused\"}".to_owned(), (n + 1) as f64)), "{refused:?}");
    }
    std::fs::remove_file(&ramjet.file).unwrap();
    assert_eq!(ramjet.reload().await.status, 422, "there is no file");
    assert_eq!(ramjet.metric("ramjet_config_generation").await, 1.0);
    assert_eq!(ramjet.names().await, [engine.addr.to_string()]);
    assert_eq!(chat(&ramjet, "", &chat_body(500, "")).await.status, 200);
    let get = client::get(ramjet.admin, "/api/reload").await.unwrap();
    assert_eq!(get.status, 405);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_needs_an_upgrade_is_named_and_the_rest_is_in_force() {
    let engine = Engine::start().await;
    let upstreams = &[engine.addr];
    let ramjet = Ramjet::start_with(Start { upstreams, probe_every: "1h", ..Start::default() }).await;
    let probes = engine.probes();
    let keys = tempdir().join(format!("{}.keys", ramjet.admin.port()));
    // the digest of `secret`
    let digest = "2bb80d537b1da3e38bd30361aa855686bde0eacd7162fef6a25fe97bf527a25b";
    std::fs::write(&keys, format!("team: {digest}\n")).unwrap();
    let config = format!(
        "server: {{ threads: 3 }}\nlimits: {{ body: 2KiB, inflight: 1 }}\nrouting: {{ block_bytes: 4KiB, policy: load }}\n\
         compat: {{ model_aliases: {{ short: long }} }}\nauth: {{ keys_file: \"{}\" }}\n\
         cors: {{ origins: [\"https://page.test\"] }}",
        keys.display()
    );
    ramjet.rewrite(&Start { upstreams, config: &config, ..Start::default() });
    let report = ramjet.reload().await;
    assert_eq!(report.status, 200, "{}", String::from_utf8_lossy(&report.body));
    let report = report.json();
    assert_eq!(texts(&report["needs_upgrade"]), ["server.threads", "routing.block_bytes"]);
    let changed = texts(&report["changed"]);
    for section in ["routing", "health", "limits", "compat", "auth", "cors"] {
        assert!(changed.iter().any(|name| name == section), "{section}: {changed:?}");
    }
    let key = "authorization: Bearer secret\r\n";
    let body = br#"{"model":"short","messages":[{"role":"user","content":"x"}]}"#;
    assert_eq!(chat(&ramjet, "", body).await.status, 401);
    let answer = chat(&ramjet, &format!("{key}origin: https://page.test\r\n"), body).await;
    assert_eq!((answer.status, answer.header("access-control-allow-origin")), (200, Some("https://page.test")));
    assert_eq!(engine.seen()[0].length, body.len() - 1, "the alias is replaced");
    assert_eq!(chat(&ramjet, key, &chat_body(3000, "")).await.status, 413);
    assert_eq!(client::get(ramjet.admin, "/api/fleet").await.unwrap().json()["policy"], "load");
    until("it is probed more often", || async { engine.probes() > probes + 3 }).await;
    // what needs an upgrade is said until it is done, and keys that are taken out are good no longer
    std::fs::write(&keys, format!("other: {}\n", "0".repeat(64))).unwrap();
    assert_eq!(texts(&ramjet.reload().await.json()["needs_upgrade"]).len(), 2);
    assert_eq!(chat(&ramjet, key, body).await.status, 401);
    std::fs::remove_file(keys).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hundred_reloads_under_load_fail_no_request() {
    let engines = [Engine::start().await, Engine::start().await, Engine::start().await];
    let [a, b, c] = [0, 1, 2].map(|n: usize| engines[n].addr);
    let ramjet = Arc::new(Ramjet::start(&[a, b]).await);
    let (done, served) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
    let mut clients = tokio::task::JoinSet::new();
    for client in 0..8 {
        let (ramjet, done, served) = (ramjet.clone(), done.clone(), served.clone());
        clients.spawn(async move {
            let mut n = 0;
            while !done.load(Relaxed) {
                n += 1;
                let play = if n % 3 == 0 { "slowly=2" } else { "" };
                let answer = client::chat(ramjet.api, play, &chat_body(3000 + client + n % 7, "")).await.unwrap();
                assert_eq!(answer.status, 200, "client {client}, request {n}: {:?}", answer.header("x-ramjet-error"));
                served.fetch_add(1, Relaxed);
            }
        });
    }
    // every time another one goes and comes; now and then somebody else reloads at the same time
    let fleets = [[a, b], [b, c], [a, c]];
    let mut n = 0;
    while n < 100 || served.load(Relaxed) <= 100 {
        let policy = if n % 2 == 0 { "routing: { policy: affinity }" } else { "limits: { inflight_per_replica: 64 }" };
        ramjet.rewrite(&Start { upstreams: &fleets[n % 3], config: policy, ..Start::default() });
        if n % 10 == 0 {
            ramjet.signal("HUP");
        }
        assert_eq!(ramjet.reload().await.status, 200);
        n += 1;
    }
    done.store(true, Relaxed);
    while let Some(client) = clients.join_next().await {
        client.unwrap();
    }
    assert!(engines.iter().all(|engine| !engine.seen().is_empty()));
    ramjet.settled().await;
    assert_eq!(ramjet.metric("ramjet_requests_placed").await, 0.0);
    assert!(ramjet.metric("ramjet_config_generation").await >= 101.0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hangup_while_it_starts_ends_nothing_and_is_heard_when_it_can_be() {
    let engine = Engine::start().await;
    let mut ramjet = Ramjet::spawn(&Start { upstreams: &[engine.addr], ..Start::default() });
    until("it has begun", || async { ramjet.holds_hangups() }).await;
    ramjet.signal("HUP");
    while !ramjet.answers(true).await {
        assert_eq!(ramjet.ended(), None);
        ramjet.signal("HUP");
    }
    until("it was heard", || async { ramjet.metric("ramjet_config_generation").await >= 2.0 }).await;
    assert_eq!(ramjet.ended(), None);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hangup_reads_the_file_again() {
    let (a, b) = (Engine::start().await, Engine::start().await);
    let ramjet = Ramjet::start(&[a.addr]).await;
    ramjet.rewrite(&Start { upstreams: &[b.addr], ..Start::default() });
    ramjet.signal("HUP");
    // until then requests go where they went
    until("it is in force", || async { ramjet.metric("ramjet_config_generation").await == 2.0 }).await;
    assert_eq!(ramjet.names().await, [b.addr.to_string()]);
    assert_eq!(chat(&ramjet, "", &chat_body(500, "")).await.status, 200);
    assert_eq!((a.seen().len(), b.seen().len()), (0, 1));
}
