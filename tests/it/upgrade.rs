//! One ramjet follows another: nothing is lost under load, what was learned goes along, nothing is done twice, and what
//! goes wrong leaves the running process as it was.

use crate::support::client::{self, H1, get};
use crate::support::engine::Engine;
use crate::support::load::{Ask, Tally, over_h1, over_h2};
use crate::support::unit::{Unit, Upgraded};
use crate::support::{chat_body, until};
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

/// Half of them over HTTP/1.1, each on a kept connection, half over HTTP/2, ten on each connection.
const STREAMS: usize = 200;
/// A stream's tokens, 100 ms apart.
const TOKENS: usize = 40;
const QUICK: &str = "health: { readiness: { interval: 200ms, timeout: 5s } }";

fn plain(engine: &Engine, name: &str) -> String {
    format!("{{ name: {name}, url: \"http://{}\" }}", engine.addr)
}

/// The sum over the series of a metric.
async fn metric(unit: &Unit, name: &str) -> f64 {
    series(unit, name, "").await
}

/// The sum over those series of a metric that have a label like this.
async fn series(unit: &Unit, name: &str, label: &str) -> f64 {
    let page = String::from_utf8(get(unit.admin, "/metrics").await.unwrap().body).unwrap();
    let of = |line: &str| {
        let (series, value) = line.rsplit_once(' ')?;
        let labels = series.strip_prefix(name)?;
        let is_one = labels.is_empty() || labels.starts_with('{');
        (is_one && labels.contains(label)).then(|| value.parse::<f64>().unwrap())
    };
    page.lines().filter_map(of).sum()
}

/// Scrapes all the while: no scrape fails, and no counter goes backwards.
async fn scrape(admin: SocketAddr, tally: Arc<Tally>) {
    let mut before = 0;
    while tally.goes_on() {
        let answer = get(admin, "/metrics").await;
        match answer.as_ref().map(|answer| (answer.status, String::from_utf8_lossy(&answer.body))) {
            Ok((200, page)) => {
                let lines = page.lines().filter(|line| line.starts_with("ramjet_requests_total{"));
                let now: u64 = lines.filter_map(|line| line.rsplit_once(' ')?.1.parse::<u64>().ok()).sum();
                if now < before {
                    tally.fail(format!("a counter went from {before} to {now}"));
                }
                before = now;
            }
            other => tally.fail(format!("a scrape: {other:?}")),
        }
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    }
}

/// Where a prompt of about ten blocks goes, and how much of it is believed to be there.
async fn routed(api: SocketAddr, of: char) -> (String, String) {
    let body = format!(
        "{{\"model\":\"m\",\"messages\":[{{\"role\":\"user\",\"content\":\"{}\"}}]}}",
        of.to_string().repeat(20_000)
    );
    let mut h1 = H1::connect(api).await.unwrap();
    let head = client::chat_head(&format!("x-ramjet-explain: 1\r\ncontent-length: {}\r\n", body.len()));
    h1.send(&[head.as_bytes(), body.as_bytes()].concat()).await;
    let answer = h1.answer().await.unwrap();
    let decision = answer.header("x-ramjet-decision").unwrap();
    let overlap = decision.split("; ").find(|part| part.starts_with("overlap=")).unwrap();
    (answer.header("x-ramjet-upstream").unwrap().to_owned(), overlap.to_owned())
}

fn expect_success(upgraded: &Upgraded) {
    assert!(upgraded.status.success() && upgraded.process().is_some(), "{}{}", upgraded.out, upgraded.errors);
}

/// `RAMJET_TEST_UPGRADES` says how many.
#[tokio::test(flavor = "multi_thread")]
async fn upgrades_in_a_row_under_load_cut_and_lose_nothing() {
    let upgrades = std::env::var("RAMJET_TEST_UPGRADES").map_or(20, |n| n.parse().unwrap());
    let (a, b) = (Engine::start().await, Engine::start().await);
    let unit = Unit::start(&[plain(&a, "a"), plain(&b, "b")], "grace: 2s", QUICK).await;
    let warm = routed(unit.api, 'w').await;
    let warm = (warm.0, routed(unit.api, 'w').await.1);
    assert_eq!(warm.1, "overlap=9/9");
    let tally = Arc::new(Tally::default());
    let mut clients = tokio::task::JoinSet::new();
    let stream = Ask::Stream(TOKENS);
    (0..STREAMS / 2).for_each(|_| drop(clients.spawn(over_h1(unit.api, tally.clone(), stream))));
    (0..STREAMS / 20).for_each(|_| drop(clients.spawn(over_h2(unit.api, tally.clone(), stream, 10))));
    (0..4).for_each(|_| drop(clients.spawn(over_h1(unit.api, tally.clone(), Ask::Short))));
    (0..2).for_each(|_| drop(clients.spawn(over_h2(unit.api, tally.clone(), Ask::Short, 1))));
    clients.spawn(scrape(unit.admin, tally.clone()));
    until("all streams run", || async { a.seen().len() + b.seen().len() > STREAMS }).await;
    for _ in 0..upgrades {
        let before = tally.requests.load(Relaxed);
        expect_success(&unit.upgrade(&[]).await);
        until("clients are served by the new process", || async { tally.requests.load(Relaxed) > before + 20 }).await;
    }
    // those that began before the last upgrade end as well
    let before = tally.streams.load(Relaxed);
    until("all streams end", || async { tally.streams.load(Relaxed) >= before + STREAMS as u64 }).await;
    tally.stop.store(true, Relaxed);
    while let Some(ended) = clients.join_next().await {
        ended.unwrap();
    }
    let failures = std::mem::take(&mut *tally.failures.lock().unwrap());
    let (streams, requests) = (tally.streams.load(Relaxed), tally.requests.load(Relaxed));
    let goodbyes = tally.goodbyes.load(Relaxed);
    println!(
        "{upgrades} upgrades, {streams} streams, {requests} requests, {goodbyes} connections ended in good order, {} failures",
        failures.len()
    );
    assert!(failures.is_empty(), "{} failures, such as {:?}", failures.len(), &failures[..failures.len().min(5)]);
    assert_eq!(routed(unit.api, 'w').await, warm, "a prompt known at first is where it was, and known");
    until("the processes before the last one are gone", || async { unit.first_ended() == Some(0) }).await;
    // what each process counted is counted once, the three prompts before and after included
    let all = (streams + requests + 3) as f64;
    let chats = || series(&unit, "ramjet_requests_total", "endpoint=\"chat_completions\"");
    until("all is counted, once", || async { chats().await == all }).await;
    assert_eq!(metric(&unit, "ramjet_requests_inflight").await, 0.0);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_learned_and_said_goes_along_and_nobody_is_probed_twice() {
    let (a, b, c) = (Engine::start().await, Engine::start().await, Engine::start().await);
    let replicas = [plain(&a, "a"), plain(&b, "b"), plain(&c, "c")];
    let health = "health: { readiness: { interval: 1s }, generation: { mode: off } }";
    let unit = Unit::start(&replicas, "grace: 0ms", health).await;
    let prompts = ['p', 'q', 'r', 's'];
    for of in prompts {
        routed(unit.api, of).await;
    }
    let mut known = Vec::new();
    for of in prompts {
        known.push(routed(unit.api, of).await);
    }
    assert!(known.iter().all(|(_, overlap)| overlap == "overlap=9/9"), "{known:?}");
    let drained = known.iter().map(|(at, _)| at.as_str()).fold(["0", "1", "2"].to_vec(), |left, at| {
        if left.len() > 1 { left.into_iter().filter(|other| *other != at).collect() } else { left }
    })[0]
        .to_owned();
    let name = ["a", "b", "c"][drained.parse::<usize>().unwrap()];
    let mut admin = H1::connect(unit.admin).await.unwrap();
    admin
        .send(
            format!("POST /api/replicas/{name}/drain HTTP/1.1\r\nhost: {}\r\ncontent-length: 0\r\n\r\n", unit.admin)
                .as_bytes(),
        )
        .await;
    assert_eq!(admin.answer().await.unwrap().status, 200);
    let (counted, prompts_seen) =
        (metric(&unit, "ramjet_requests_total").await, metric(&unit, "ramjet_route_overlap_blocks_count").await);
    // a stream keeps the first process as long as this takes: it must not probe meanwhile
    let mut held = client::begin_chat(unit.api, "decode", &chat_body(500, "\"stream\":true,")).await.unwrap();
    held.head().await.unwrap();
    let (began, probes) = (Instant::now(), a.probes());
    for _ in 0..3 {
        // other slots, the same names
        let rotated = [replicas[2].clone(), replicas[0].clone(), replicas[1].clone()];
        unit.write(&rotated, "grace: 0ms", health);
        expect_success(&unit.upgrade(&[]).await);
    }
    unit.serves().await;
    let slots = |old: &str| ((old.parse::<usize>().unwrap() + 1) % 3).to_string();
    let health = get(unit.api, "/health").await.unwrap().json();
    assert_eq!(health["replicas"][slots(&drained).parse::<usize>().unwrap()]["state"], "draining");
    for (of, (at, overlap)) in prompts.into_iter().zip(&known) {
        if *at != drained {
            assert_eq!(routed(unit.api, of).await, (slots(at), overlap.clone()), "{of}");
        }
    }
    assert!(metric(&unit, "ramjet_requests_total").await >= counted);
    assert!(metric(&unit, "ramjet_route_overlap_blocks_count").await >= prompts_seen);
    until("some seconds go by", || std::future::ready(began.elapsed().as_secs() >= 6)).await;
    assert_eq!(unit.first_ended(), None);
    // one a second, by whomever; a switch may bring one half an interval early
    let most = began.elapsed().as_secs_f64() + 4.0;
    assert!((a.probes() - probes) as f64 <= most, "{} probes, at most {most}", a.probes() - probes);
    let mode = std::fs::metadata(unit.socket()).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600, "nobody else may connect");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_successor_that_fails_leaves_the_old_one_as_it_was() {
    let engine = Engine::start().await;
    let unit = Unit::start(&[plain(&engine, "a")], "grace: 0ms", QUICK).await;
    let good = std::fs::read_to_string(unit.file()).unwrap();
    let busy = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let busy = busy.local_addr().map(|addr| (busy, addr.to_string())).unwrap();
    for (text, code, said) in [
        (good.replace("grace", "grce"), 64, "server.grce: found an unknown key"),
        (good.replace(&unit.admin.to_string(), &busy.1), 1, "nothing has changed, process"),
        (good.replace(&unit.admin.to_string(), &busy.1), 1, busy.1.as_str()),
    ] {
        std::fs::write(unit.file(), text).unwrap();
        let upgraded = unit.upgrade(&[]).await;
        assert_eq!(upgraded.status.code(), Some(code), "{}", upgraded.errors);
        assert!(upgraded.errors.contains(said) && upgraded.out.is_empty(), "{}", upgraded.errors);
        assert_eq!(unit.first_ended(), None);
        assert_eq!(client::chat(unit.api, "", &chat_body(500, "")).await.unwrap().status, 200);
        assert_eq!(get(unit.api, "/health").await.unwrap().json()["status"], "ok");
        assert_eq!(get(unit.admin, "/readyz").await.unwrap().status, 200);
    }
    std::fs::write(unit.file(), good).unwrap();
    expect_success(&unit.upgrade(&[]).await);
    until("the old one leaves", || async { unit.first_ended() == Some(0) }).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_running_process_there_is_nothing_to_upgrade() {
    let unit = Unit::new();
    unit.write(&["{ url: \"http://127.0.0.1:1\" }".to_owned()], "grace: 0ms", "");
    let upgraded = unit.upgrade(&[]).await;
    assert_eq!(upgraded.status.code(), Some(69));
    assert!(
        upgraded.errors.contains("nothing to upgrade") && upgraded.errors.lines().count() == 1,
        "{}",
        upgraded.errors
    );
    let alone = crate::support::ramjet::command().args(["-u", "-c"]).arg(unit.file()).output().unwrap();
    assert_eq!(alone.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&alone.stderr).contains("cannot take over"));
    // somebody else's file is not replaced
    std::fs::write(unit.socket(), "mine").unwrap();
    assert_eq!(unit.upgrade(&[]).await.status.code(), Some(69));
    assert_eq!(std::fs::read(unit.socket()).unwrap(), b"mine");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_old_process_says_that_it_drains_and_leaves_with_its_last_stream() {
    let engine = Engine::start().await;
    let unit = Unit::start(&[plain(&engine, "a")], "grace: 1h", QUICK).await;
    let mut kept = H1::connect(unit.api).await.unwrap();
    let health = b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n";
    kept.send(health).await;
    assert_eq!(kept.answer().await.unwrap().json()["status"], "ok");
    // Pingora's signal for the same purpose changes nothing
    std::process::Command::new("kill").args(["-s", "QUIT", &unit.last().to_string()]).status().unwrap();
    kept.send(health).await;
    assert_eq!(kept.answer().await.unwrap().json()["status"], "ok");
    expect_success(&unit.upgrade(&[]).await);
    kept.send(health).await;
    let answer = kept.answer().await.unwrap();
    assert_eq!((answer.status, answer.header("connection")), (503, Some("close")));
    assert_eq!(answer.json()["status"], "draining");
    for _ in 0..10 {
        assert_eq!(get(unit.api, "/health").await.unwrap().json()["status"], "ok", "new connections reach the new one");
    }
    assert_eq!(unit.first_ended(), None, "idle connections have an hour");
    // a second instance does not take the place of the one that waits there
    let second = Unit::new();
    second.write(&[plain(&engine, "a")], "grace: 1h", QUICK);
    let text = std::fs::read_to_string(second.file()).unwrap();
    std::fs::write(second.file(), text.replace(&*second.socket().to_string_lossy(), &unit.socket().to_string_lossy()))
        .unwrap();
    let mut child = crate::support::ramjet::command().arg("-c").arg(second.file()).spawn().unwrap();
    until("it serves", || async { get(second.api, "/health").await.is_ok() }).await;
    let upgraded = unit.upgrade(&[]).await;
    assert!(upgraded.out.contains("finishes what it has"), "{}{}", upgraded.out, upgraded.errors);
    assert_eq!(child.try_wait().unwrap(), None);
    child.kill().unwrap();
    child.wait().unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_goes_on_in_the_old_process_and_ends_it() {
    let engine = Engine::start().await;
    let unit = Unit::start(&[plain(&engine, "a")], "grace: 0ms", QUICK).await;
    let mut stream = client::begin_chat(unit.api, "on-call-ok", &chat_body(500, "")).await.unwrap();
    until("it runs", || async { engine.seen().len() == 1 }).await;
    expect_success(&unit.upgrade(&[]).await);
    expect_success(&unit.upgrade(&[]).await);
    // stopping the unit means the process that serves: the first one goes on with what it has
    std::process::Command::new("kill").args(["-s", "TERM", &unit.first().to_string()]).status().unwrap();
    assert_eq!(client::chat(unit.api, "", &chat_body(500, "")).await.unwrap().status, 200);
    assert_eq!(unit.first_ended(), None);
    engine.call();
    assert_eq!(stream.answer().await.unwrap().body, b"{\"ok\":true}");
    until("the old one leaves", || async { unit.first_ended() == Some(0) }).await;
    // what it counted last is counted by the process that serves
    until("its request is counted", || async { metric(&unit, "ramjet_requests_total").await >= 2.0 }).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_daemon_is_followed_by_a_daemon_and_the_pid_file_names_who_serves() {
    let engine = Engine::start().await;
    let unit = Unit::new();
    unit.write(&[plain(&engine, "a")], "grace: 0ms", QUICK);
    let pid = || std::fs::read_to_string(unit.folder.join("pid")).ok()?.trim().parse::<u32>().ok();
    let started = crate::support::ramjet::command().args(["-d", "-c"]).arg(unit.file()).status().unwrap();
    assert!(started.success());
    unit.serves().await;
    let first = pid().unwrap();
    unit.adopt(first);
    let upgraded = unit.upgrade(&["-d"]).await;
    expect_success(&upgraded);
    assert_eq!(upgraded.process(), pid());
    assert_ne!(pid(), Some(first));
    // nobody may have taken note of its end
    let gone = || async { std::fs::read(format!("/proc/{first}/cmdline")).map_or(true, |line| line.is_empty()) };
    until("the first one is gone", gone).await;
    assert_eq!(client::chat(unit.api, "", &chat_body(500, "")).await.unwrap().status, 200);
}
