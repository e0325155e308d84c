//! What a successor knows of its predecessor, and what becomes of both when something happens at the wrong moment.

use crate::support::caching::Caching;
use crate::support::client::{self, H1, get};
use crate::support::dns::Dns;
use crate::support::engine::Engine;
use crate::support::ramjet::command;
use crate::support::unit::Unit;
use crate::support::{chat_body, until};
use serde_json::Value;
use std::net::SocketAddr;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::process::Command;

const QUICK: &str = "health: { readiness: { interval: 200ms, timeout: 5s }, generation: { mode: off } }";

fn at(name: &str, addr: SocketAddr) -> String {
    format!("{{ name: {name}, url: \"http://{addr}\" }}")
}

async fn fleet(unit: &Unit) -> Vec<Value> {
    let fleet = get(unit.admin, "/api/fleet").await.unwrap().json();
    fleet["replicas"].as_array().unwrap().clone()
}

/// A member of what is told of the replica `name`.
async fn of(unit: &Unit, name: &str, member: &str) -> Value {
    let all = fleet(unit).await;
    all.into_iter().find(|replica| replica["name"] == name).map_or(Value::Null, |replica| replica[member].clone())
}

fn signal(name: &str, process: u32) {
    assert!(Command::new("kill").args(["-s", name, &process.to_string()]).status().unwrap().success());
}

/// The prompt of turn `turn` of a session: a beginning that all share, its own, and what the turns brought.
fn prompt(session: usize, turn: usize) -> String {
    let words = |of: usize, count: usize| -> String {
        (0..count).map(|n| format!("w{} ", (of * 7919 + n * n) % 9973)).collect()
    };
    let mut messages = format!("{{\"role\":\"system\",\"content\":\"{}\"}}", words(1, 700));
    messages += &format!(",{{\"role\":\"user\",\"content\":\"{}\"}}", words(session + 2, 4000));
    for n in 0..turn {
        messages += &format!(
            ",{{\"role\":\"assistant\",\"content\":\"ok\"}},{{\"role\":\"user\",\"content\":\"{}\"}}",
            words(n, 40)
        );
    }
    format!("{{\"model\":\"m\",\"messages\":[{messages}]}}")
}

/// Turns of all sessions at once: the share of their prompts' tokens that was cached.
async fn share(api: SocketAddr, turns: std::ops::Range<usize>) -> f64 {
    let (mut cached, mut all) = (0, 0);
    for turn in turns {
        let mut asked = tokio::task::JoinSet::new();
        for session in 0..24 {
            asked.spawn(async move { client::chat(api, "", prompt(session, turn).as_bytes()).await.unwrap() });
        }
        while let Some(answer) = asked.join_next().await {
            let answer = answer.unwrap();
            assert_eq!(answer.status, 200, "{}", answer.head);
            let usage = &answer.json()["usage"];
            cached += usage["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap();
            all += usage["prompt_tokens"].as_u64().unwrap();
        }
    }
    cached as f64 / all as f64
}

#[tokio::test(flavor = "multi_thread")]
async fn after_a_switch_as_much_is_cached_as_before() {
    let mut engines = Vec::new();
    for _ in 0..4 {
        engines.push(Caching::start().await);
    }
    let replicas: Vec<_> = engines.iter().zip(["a", "b", "c", "d"]).map(|(e, name)| at(name, e.addr)).collect();
    let unit = Unit::start(&replicas, "grace: 1s", QUICK).await;
    share(unit.api, 0..3).await;
    let before = share(unit.api, 3..7).await;
    // some turns fall into the switch
    let (during, upgraded) = tokio::join!(share(unit.api, 7..9), unit.upgrade(&[]));
    assert!(upgraded.status.success(), "{}", upgraded.errors);
    let after = share(unit.api, 9..13).await;
    // one that knows nothing, for comparison
    let strange = Unit::start(&replicas, "grace: 1s", QUICK).await;
    let cold = share(strange.api, 13..14).await;
    println!("cached before {before:.4}, during {during:.4}, after {after:.4}, by one that knows nothing {cold:.4}");
    assert!(before > 0.9 && (after - before).abs() <= 0.01 && (during - before).abs() <= 0.01);
    assert!(cold < before - 0.1, "the comparison shows nothing");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_predecessor_still_runs_is_load_until_it_has_ended_or_is_gone() {
    let (a, b) = (Engine::start().await, Engine::start().await);
    let unit = Unit::start(&[at("a", a.addr), at("b", b.addr)], "grace: 0ms", QUICK).await;
    let mut streams = Vec::new();
    for n in 0..3 {
        let body = chat_body(500 + n, "\"stream\":true,");
        let mut stream = client::begin_chat(unit.api, "decode", &body).await.unwrap();
        stream.head().await.unwrap();
        streams.push(stream);
    }
    let elsewhere = async || {
        let all = fleet(&unit).await;
        let sum = |member: &str| all.iter().map(|replica| replica[member].as_u64().unwrap()).sum::<u64>();
        (sum("in_flight_elsewhere"), sum("in_flight"), sum("load_units"))
    };
    // whoever serves is told, also if it is the second one after
    for _ in 0..2 {
        assert!(unit.upgrade(&[]).await.status.success());
        until("what runs elsewhere is known", || async { elsewhere().await == (3, 0, 3) }).await;
    }
    drop(streams.pop());
    until("one has ended", || async { elsewhere().await == (2, 0, 2) }).await;
    signal("KILL", unit.first());
    until("the process is gone, and its load", || async { elsewhere().await == (0, 0, 0) }).await;
}

/// A replica, and a name in DNS beside it.
fn with_dns(replica: &str, dns: &Dns) -> [String; 1] {
    let found = format!("{{ dns: {{ name: more.test, port: 9, interval: 1h, server: \"{}\" }} }}", dns.addr);
    [format!("{replica}\n  discovery: {found}")]
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_ordered_and_written_while_a_successor_starts_is_not_lost() {
    let (a, dns) = (Engine::start().await, Dns::start().await);
    dns.addresses("more.test", &["127.0.0.7", "127.0.0.8"]);
    let unit = Unit::new();
    let record = unit.folder.join("guard/quarantine");
    let health = format!(
        "health: {{ readiness: {{ interval: 1h, failures: 100 }}, generation: {{ mode: off }}, speculation: {{ mode: quarantine, state_file: {} }} }}",
        record.display()
    );
    std::fs::DirBuilder::new().mode(0o700).create(record.parent().unwrap()).unwrap();
    let unit = unit.started(&with_dns(&at("a", a.addr), &dns), "grace: 0ms", &health).await;
    for (name, undone) in [("127.0.0.8:9", false), ("127.0.0.7:9", true)] {
        if undone {
            assert_eq!(
                client::post(unit.admin, &format!("/api/replicas/{name}/drain"), "", "").await.unwrap().status,
                200
            );
        }
        assert_eq!(of(&unit, name, "draining_for_s").await.is_null(), !undone);
    }
    let asked = dns.asked();
    dns.hold(true);
    let orders = async {
        until("the successor has its snapshot and looks for replicas", || async { dns.asked() > asked }).await;
        for (name, verb) in [("127.0.0.8:9", "drain"), ("127.0.0.7:9", "undrain")] {
            let path = format!("/api/replicas/{name}/{verb}");
            assert_eq!(client::post(unit.admin, &path, "", "").await.unwrap().status, 200);
        }
        let mut file =
            std::fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&record).unwrap();
        std::io::Write::write_all(&mut file, b"ramjet-quarantine 1\na - 0 -\nend 1\n").unwrap();
        // a reload now would be for nobody
        let refused = client::post(unit.admin, "/api/reload", "", "").await.unwrap();
        assert_eq!((refused.status, refused.json()["outcome"].as_str()), (422, Some("refused")));
        dns.hold(false);
    };
    let (upgraded, ()) = tokio::join!(unit.upgrade(&[]), orders);
    assert!(upgraded.status.success(), "{}", upgraded.errors);
    unit.serves().await;
    assert_eq!(of(&unit, "127.0.0.8:9", "state").await, "draining");
    assert_ne!(of(&unit, "127.0.0.7:9", "state").await, "draining");
    assert_eq!(of(&unit, "a", "reason").await, "speculation");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_successor_whose_sources_do_not_answer_leaves_the_old_one_with_its_fleet() {
    let (a, dns) = (Engine::start().await, Dns::start().await);
    dns.addresses("more.test", &["127.0.0.7"]);
    let unit = Unit::start(&with_dns(&at("a", a.addr), &dns), "grace: 0ms", QUICK).await;
    assert_eq!(fleet(&unit).await.len(), 2);
    dns.fails(Some(2));
    let upgraded = unit.upgrade(&[]).await;
    assert_eq!(upgraded.status.code(), Some(1), "{}", upgraded.out);
    assert!(upgraded.errors.contains("discovery by dns: more.test"), "{}", upgraded.errors);
    assert!(upgraded.errors.contains("nothing has changed"), "{}", upgraded.errors);
    assert_eq!((fleet(&unit).await.len(), unit.first_ended()), (2, None));
    dns.fails(None);
    let upgraded = unit.upgrade(&[]).await;
    assert!(upgraded.status.success(), "{}", upgraded.errors);
    unit.serves().await;
    assert_eq!(fleet(&unit).await.len(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_unix_socket_whose_file_is_gone_is_made_anew_by_the_successor() {
    let a = Engine::start().await;
    let unit = Unit::new();
    let socket = unit.folder.join("api.sock");
    let tcp = format!("\"{}\"", unit.api);
    let unit = unit.altered(move |text| text.replacen(&tcp, &format!("{tcp}, \"unix:{}\"", socket.display()), 1));
    let unit = unit.started(&[at("a", a.addr)], "grace: 0ms", QUICK).await;
    let socket = unit.folder.join("api.sock");
    let answers = async || tokio::net::UnixStream::connect(&socket).await.is_ok();
    assert!(answers().await);
    assert!(unit.upgrade(&[]).await.status.success());
    assert!(answers().await, "it is handed over");
    std::fs::remove_file(&socket).unwrap();
    let upgraded = unit.upgrade(&[]).await;
    assert!(upgraded.status.success(), "{}", upgraded.errors);
    until("the old one leaves", || async { unit.first_ended() == Some(0) }).await;
    assert_eq!(client::chat(unit.api, "", &chat_body(500, "")).await.unwrap().status, 200);
    assert!(answers().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn one_that_may_start_afresh_does_where_nobody_runs_and_follows_where_somebody_does() {
    let a = Engine::start().await;
    let unit = Unit::new().started_as(&["-u", "--or-start"], &[at("a", a.addr)], "grace: 0ms", QUICK).await;
    let mut next = command();
    next.args(["-u", "--or-start", "-c"]).arg(unit.file()).stderr(std::process::Stdio::null());
    let mut next = next.spawn().unwrap();
    unit.adopt(next.id());
    until("the first one leaves", || async { unit.first_ended() == Some(0) }).await;
    assert_eq!(client::chat(unit.api, "", &chat_body(500, "")).await.unwrap().status, 200);
    next.kill().unwrap();
    next.wait().unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn who_still_finishes_streams_makes_room_when_the_one_that_served_has_crashed() {
    let a = Engine::start().await;
    let unit = Unit::start(&[at("a", a.addr)], "grace: 0ms", QUICK).await;
    let mut stream = client::begin_chat(unit.api, "decode", &chat_body(500, "\"stream\":true,")).await.unwrap();
    stream.head().await.unwrap();
    assert!(unit.upgrade(&[]).await.status.success());
    signal("KILL", unit.last());
    until("the one that served is gone", || async { H1::connect(unit.admin).await.is_err() }).await;
    assert_eq!(unit.first_ended(), None);
    // what a manager of services does with what is left, before it starts again
    signal("TERM", unit.first());
    until("the first one leaves", || async { unit.first_ended() == Some(0) }).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn of_two_upgrades_at_a_time_the_one_that_fails_says_so_whoever_serves_then() {
    let a = Engine::start().await;
    let unit = Unit::start(&[at("a", a.addr)], "grace: 0ms", QUICK).await;
    let busy = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let text = std::fs::read_to_string(unit.file()).unwrap();
    let other = unit.folder.join("other.yaml");
    std::fs::write(&other, text.replace(&unit.admin.to_string(), &busy.local_addr().unwrap().to_string())).unwrap();
    for _ in 0..3 {
        let mut failing = command();
        failing.args(["upgrade", "-c"]).arg(&other);
        let failing = tokio::task::spawn_blocking(move || failing.output().unwrap());
        let good = unit.upgrade(&[]).await;
        let failed = failing.await.unwrap();
        assert_eq!(failed.status.code(), Some(1), "{}", String::from_utf8_lossy(&failed.stdout));
        assert!(good.status.success() || good.errors.contains("nothing has changed"), "{}{}", good.out, good.errors);
        unit.serves().await;
    }
    assert_eq!(client::chat(unit.api, "", &chat_body(500, "")).await.unwrap().status, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_manager_of_services_is_told_which_process_serves_and_only_then() {
    let a = Engine::start().await;
    let unit = Unit::new();
    let told = unit.folder.join("notify");
    let socket = std::os::unix::net::UnixDatagram::bind(&told).unwrap();
    socket.set_read_timeout(Some(crate::support::PATIENCE)).unwrap();
    let said = || {
        let mut message = [0; 256];
        let length = socket.recv(&mut message).unwrap();
        String::from_utf8(message[..length].to_vec()).unwrap()
    };
    let unit = unit.with_env("NOTIFY_SOCKET", told.to_str().unwrap());
    let unit = unit.started(&[at("a", a.addr)], "grace: 0ms", QUICK).await;
    assert_eq!(said(), format!("MAINPID={}\nREADY=1\nSTATUS=serving", unit.first()));
    // one that fails says nothing
    let good = std::fs::read_to_string(unit.file()).unwrap();
    std::fs::write(unit.file(), good.replace("grace", "grce")).unwrap();
    assert_eq!(unit.upgrade(&[]).await.status.code(), Some(64));
    std::fs::write(unit.file(), good).unwrap();
    let upgraded = unit.upgrade(&[]).await;
    assert!(upgraded.status.success(), "{}", upgraded.errors);
    assert_eq!(said(), format!("MAINPID={}\nREADY=1\nSTATUS=serving", unit.last()));
}
