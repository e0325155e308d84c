//! Several routers before the same engines share what they learn through a real Valkey or Redis; and whatever that does, no
//! request fails for it.

use crate::support::client::{self, get};
use crate::support::engine::Engine;
use crate::support::ramjet::{Ramjet, Start, tempdir};
use crate::support::store::{Slow, Store};
use crate::support::{chat_body, there, until};
use ramjet::cluster::keys::VERSION;
use std::net::SocketAddr;
use std::process::Command;
use std::sync::atomic::Ordering::Relaxed;

const SECRET: &[(&str, &str)] = &[("GROUP_SECRET", "4f1c9a"), ("STORE_PASSWORD", "hunter2")];
/// Size of a prompt whose place is worth something.
const LONG: usize = 60_000;

async fn member(upstreams: &[SocketAddr], url: &str) -> Ramjet {
    member_with(upstreams, url, "", SECRET).await
}

async fn member_with(upstreams: &[SocketAddr], url: &str, more: &str, env: &[(&str, &str)]) -> Ramjet {
    let config = format!("cluster: {{ url: \"{url}\", secret_env: GROUP_SECRET{more} }}");
    Ramjet::start_with(Start { upstreams, config: &config, env, ..Start::default() }).await
}

async fn together(routers: &[&Ramjet]) {
    for router in routers {
        let others = routers.len() as f64 - 1.0;
        until("the group is whole", || async { router.metric("ramjet_cluster_peers").await == others }).await;
    }
}

/// A prompt that nobody else asks about.
fn about(what: usize) -> Vec<u8> {
    let text = String::from_utf8(chat_body(LONG, "")).unwrap();
    text.replacen("user\",\"content\":\"", &format!("user\",\"content\":\"{what} of many "), 1).into_bytes()
}

/// Asks, and says which replica answered and why it was chosen.
async fn ask(router: &Ramjet, what: usize) -> (String, String) {
    let mut h1 = client::H1::connect(router.api).await.unwrap();
    let body = about(what);
    let head = client::chat_head(&format!("x-ramjet-explain: 1\r\ncontent-length: {}\r\n", body.len()));
    h1.send(&[head.as_bytes(), &body].concat()).await;
    let answer = h1.answer().await.unwrap();
    assert_eq!(answer.status, 200, "{}", answer.head);
    let header = |name: &str| answer.header(name).unwrap().to_owned();
    (header("x-ramjet-upstream"), header("x-ramjet-decision"))
}

/// Whether a router believes that a prompt is held where it was read.
async fn knows(router: &Ramjet, what: usize, replica: &str) -> bool {
    let (at, why) = ask(router, what).await;
    at == replica && why.contains("affinity")
}

async fn blocks(router: &Ramjet) -> f64 {
    router.metric("ramjet_prefix_index_blocks").await
}

/// Whether a router knows all that another one does, and that nothing runs any more.
async fn is_told(router: &Ramjet, by: &Ramjet) -> bool {
    blocks(router).await >= blocks(by).await && router.metric("ramjet_upstream_load_units").await == 0.0
}

async fn rejected(router: &Ramjet, reason: &str) -> f64 {
    let series = router.series("ramjet_cluster_rejected_total").await;
    series.into_iter().find(|(labels, _)| labels.contains(reason)).unwrap().1
}

async fn state(router: &Ramjet, replica: usize) -> String {
    let json = get(router.api, "/health").await.unwrap().json();
    json["replicas"][replica]["state"].as_str().unwrap().to_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn what_one_learns_the_others_know_and_one_that_starts_again_is_warm() {
    let Some(store) = Store::start(&[]).await else { return };
    let (a, b) = (Engine::start().await, Engine::start().await);
    let upstreams = [a.addr, b.addr];
    let url = store.url();
    let (first, second, third) =
        (member(&upstreams, &url).await, member(&upstreams, &url).await, member(&upstreams, &url).await);
    together(&[&first, &second, &third]).await;
    for what in 0..4 {
        let (home, why) = ask(&first, what).await;
        assert!(!why.contains("affinity"), "{why}");
        for other in [&second, &third] {
            until("it is told", || is_told(other, &first)).await;
            assert!(knows(other, what, &home).await);
        }
    }
    // nothing of names and prompts is in the store
    let dump = store.say(&[b"XRANGE", b"ramjet:{ramjet}:stream", b"-", b"+"]).await;
    assert!(dump.len() > 1000 && !dump.contains("127.0.0.1") && !dump.contains("of many"));
    let (home, _) = ask(&second, 9).await;
    until("it is told", || is_told(&first, &second)).await;
    drop(first);
    let again = member(&upstreams, &url).await;
    assert!(knows(&again, 9, &home).await, "it begins to serve when it knows what the others know");
    // one that does not know the secret learns nothing and teaches nothing
    let stranger = member_with(&upstreams, &url, "", &[("GROUP_SECRET", "another")]).await;
    until("it has looked", || async { rejected(&stranger, "unproved").await > 0.0 }).await;
    ask(&stranger, 20).await;
    until("it is not believed", || async { rejected(&second, "unproved").await > 0.0 }).await;
    assert_eq!(blocks(&stranger).await, 29.0);
}

#[tokio::test(flavor = "multi_thread")]
async fn load_is_shared_until_its_router_dies() {
    let Some(store) = Store::start(&[]).await else { return };
    let a = Engine::start().await;
    let (first, second) = (member(&[a.addr], &store.url()).await, member(&[a.addr], &store.url()).await);
    together(&[&first, &second]).await;
    let mut open = client::begin_chat(first.api, "on-call", &chat_body(LONG, "\"stream\":true,")).await.unwrap();
    let load = || async { second.metric("ramjet_upstream_load_units").await };
    until("its load counts elsewhere", || async { load().await >= 1.0 }).await;
    assert_eq!(second.metric("ramjet_upstream_inflight").await, 0.0);
    a.call();
    assert!(open.head().await.unwrap().contains("200"));
    drop(open);
    until("it is given back", || async { load().await == 0.0 }).await;
    let _open = client::begin_chat(first.api, "on-call", &chat_body(LONG, "\"stream\":true,")).await.unwrap();
    until("there", || async { load().await >= 1.0 }).await;
    // killed, without a word
    drop(first);
    until("it is gone", || async { load().await == 0.0 && second.metric("ramjet_cluster_peers").await == 0.0 }).await;
    second.settled().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_drain_by_way_of_one_is_a_drain_everywhere() {
    let Some(store) = Store::start(&[]).await else { return };
    let (a, b) = (Engine::start().await, Engine::start().await);
    let upstreams = [a.addr, b.addr];
    let (first, second) = (member(&upstreams, &store.url()).await, member(&upstreams, &store.url()).await);
    together(&[&first, &second]).await;
    let drain = format!("/api/replicas/{}/drain", a.addr);
    assert_eq!(first.order(&drain).await.status, 200);
    until("drained there, too", || async { state(&second, 0).await == "draining" }).await;
    let late = member(&upstreams, &store.url()).await;
    until("drained at once", || async { state(&late, 0).await == "draining" }).await;
    assert_eq!(second.order(&drain.replace("drain", "undrain")).await.status, 200);
    for router in [&first, &late] {
        until("undrained everywhere", || async { state(router, 0).await == "healthy" }).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fence_has_the_others_probe_before_their_time() {
    let Some(store) = Store::start(&[]).await else { return };
    let (a, b) = (Engine::start().await, Engine::start().await);
    let upstreams = [a.addr, b.addr];
    let first = member(&upstreams, &store.url()).await;
    let config = format!("cluster: {{ url: \"{}\", secret_env: GROUP_SECRET }}", store.url());
    // by itself it would ask in an hour
    let lazy = Start {
        upstreams: &upstreams,
        config: &config,
        env: SECRET,
        probe_every: "1h, failures: 1",
        ..Start::default()
    };
    let second = Ramjet::start_with(lazy).await;
    together(&[&first, &second]).await;
    until("it was probed", || async { a.probes() > 0 && state(&second, 0).await == "healthy" }).await;
    a.stop().await;
    until("fenced where it is probed", || async { state(&first, 0).await == "fenced" }).await;
    until("and elsewhere", || async { state(&second, 0).await == "fenced" }).await;
    assert_eq!(state(&second, 1).await, "healthy");
}

/// Asks both again and again while `change` happens and until it is over.
async fn none_fails(routers: &[&Ramjet], change: impl Future<Output = ()>) {
    let asked = std::cell::Cell::new(0);
    let asking = async {
        loop {
            for router in routers {
                asked.set(asked.get() + 1);
                let answer = client::chat(router.api, "", &about(1000 + asked.get() % 7)).await.unwrap();
                assert_eq!(answer.status, 200);
            }
        }
    };
    tokio::select! {
        () = asking => {}
        () = change => {}
    }
    assert!(asked.get() > 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_store_that_dies_costs_no_request_and_all_is_learned_again_when_it_is_back() {
    let Some(store) = Store::start(&[]).await else { return };
    let (a, b) = (Engine::start().await, Engine::start().await);
    let upstreams = [a.addr, b.addr];
    let (first, second) = (member(&upstreams, &store.url()).await, member(&upstreams, &store.url()).await);
    together(&[&first, &second]).await;
    let addr = store.addr;
    let connected = |wanted: f64| {
        let routers = [&first, &second];
        async move {
            for router in routers {
                until("as it is", || async { router.metric("ramjet_cluster_connected").await == wanted }).await;
            }
        }
    };
    let mut again = None;
    none_fails(&[&first, &second], async {
        connected(1.0).await;
        drop(store);
        connected(0.0).await;
        again = Store::start_at(addr, &[]).await;
        connected(1.0).await;
        together(&[&first, &second]).await;
    })
    .await;
    let (home, _) = ask(&first, 5).await;
    until("it is told", || is_told(&second, &first)).await;
    assert!(knows(&second, 5, &home).await);
    drop(again);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_store_that_is_full_slow_or_silent_costs_no_request() {
    let Some(full) = Store::start(&["--maxmemory", "1mb", "--maxmemory-policy", "noeviction"]).await else { return };
    let (a, b) = (Engine::start().await, Engine::start().await);
    let upstreams = [a.addr, b.addr];
    let first = member(&upstreams, &full.url()).await;
    let refused = || async {
        let series = first.series("ramjet_cluster_dropped_total").await;
        series.into_iter().find(|(labels, _)| labels.contains("store")).unwrap().1
    };
    none_fails(&[&first], until("the store is full", || async { refused().await > 0.0 })).await;
    let Some(store) = Store::start(&[]).await else { return };
    let slow = Slow::before(store.addr, 300).await;
    let url = format!("redis://{}", slow.addr);
    let (second, third) = (member(&upstreams, &url).await, member(&upstreams, &store.url()).await);
    none_fails(&[&second, &third], together(&[&second, &third])).await;
    let (home, _) = ask(&third, 5).await;
    until("it is told", || is_told(&second, &third)).await;
    assert!(knows(&second, 5, &home).await);
    slow.delay.store(Slow::NEVER, Relaxed);
    let alone = until("it goes on alone", || async { second.metric("ramjet_cluster_connected").await == 0.0 });
    none_fails(&[&second, &third], alone).await;
    slow.delay.store(0, Relaxed);
    none_fails(&[&second, &third], together(&[&second, &third])).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_store_that_takes_nothing_is_of_no_use_and_that_is_seen() {
    let Some(store) = Store::start(&[]).await else { return };
    let a = Engine::start().await;
    let first = member(&[a.addr], &store.url()).await;
    let connected = || async { first.metric("ramjet_cluster_connected").await };
    until("it is of use", || async { connected().await == 1.0 }).await;
    ask(&first, 7).await;
    let there = blocks(&first).await;
    let told = || async { store.say(&[b"XLEN", b"ramjet:{ramjet}:stream"]).await };
    until("it is told", || async { told().await != ":0\r\n" }).await;
    // what a router has, and that it is there
    store.say(&[b"ACL", b"SETUSER", b"default", b"-set", b"-zadd"]).await;
    none_fails(&[&first], until("it is of none", || async { connected().await == 0.0 })).await;
    // what it has can be read all the same by one that starts
    let second = member(&[a.addr], &store.url()).await;
    until("it knows what is there", || async { blocks(&second).await >= there }).await;
    store.say(&[b"ACL", b"SETUSER", b"default", b"+set", b"+zadd"]).await;
    until("it is again", || async { connected().await == 1.0 }).await;
    let of_second = || async { second.metric("ramjet_cluster_connected").await };
    until("for all", || async { of_second().await == 1.0 }).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn lies_in_the_store_change_nothing() {
    let Some(store) = Store::start(&[]).await else { return };
    let a = Engine::start().await;
    let (first, second) = (member(&[a.addr], &store.url()).await, member(&[a.addr], &store.url()).await);
    together(&[&first, &second]).await;
    ask(&first, 1).await;
    until("it is told", || is_told(&second, &first)).await;
    let stream = b"ramjet:{ramjet}:stream";
    for lie in [&b"garbage"[..], &[0; 4000], &[VERSION; 300_000]] {
        store.say(&[b"XADD", stream, b"*", b"b", lie]).await;
    }
    store.say(&[b"XADD", stream, b"*", b"x", b"y", b"z", b"w"]).await;
    store.say(&[b"HSET", b"ramjet:{ramjet}:orders", b"drain", b"everything"]).await;
    store.say(&[b"ZADD", b"ramjet:{ramjet}:routers", b"99999999999999", b"not a router"]).await;
    until("they are seen", || async {
        rejected(&second, "malformed").await > 0.0 && rejected(&second, "unproved").await > 0.0
    })
    .await;
    assert_eq!((state(&second, 0).await, blocks(&second).await), ("healthy".to_owned(), blocks(&first).await));
    // something else in the place of all keys: no round can succeed
    none_fails(&[&first, &second], async {
        for key in ["stream", "orders", "routers"] {
            let key = format!("ramjet:{{ramjet}}:{key}");
            store.say(&[b"SET", key.as_bytes(), b"nothing that belongs here"]).await;
        }
        until("it is of no use", || async { second.metric("ramjet_cluster_connected").await == 0.0 }).await;
        store.say(&[b"FLUSHALL"]).await;
        together(&[&first, &second]).await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_store_is_reached_by_tls_and_with_a_password() {
    let folder = tempdir().join("store-tls");
    std::fs::create_dir_all(&folder).unwrap();
    let openssl = |arguments: &str| {
        let done = Command::new("openssl").args(arguments.split_whitespace()).current_dir(&folder).output().unwrap();
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    };
    for name in ["ca", "own"] {
        openssl(&format!("ecparam -genkey -name prime256v1 -noout -out {name}.key"));
    }
    openssl("req -x509 -new -key ca.key -days 2 -subj /CN=ca -out ca.crt");
    openssl("req -new -key own.key -subj /CN=store -out own.csr");
    std::fs::write(folder.join("own.ext"), "subjectAltName=IP:127.0.0.1").unwrap();
    openssl("x509 -req -in own.csr -CA ca.crt -CAkey ca.key -CAcreateserial -days 2 -extfile own.ext -out own.crt");
    let path = |name: &str| folder.join(name).to_string_lossy().into_owned();
    let (cert, key, ca) = (path("own.crt"), path("own.key"), path("ca.crt"));
    let tls =
        ["--tls-cert-file", &cert, "--tls-key-file", &key, "--tls-auth-clients", "no", "--requirepass", "hunter2"];
    let Some(store) = Store::start(&tls).await else { return };
    let a = Engine::start().await;
    let url = format!("rediss://{}", store.addr);
    let more = format!(", ca_file: \"{ca}\", password_env: STORE_PASSWORD");
    let first = member_with(&[a.addr], &url, &more, SECRET).await;
    let second = member_with(&[a.addr], &url, &more, SECRET).await;
    together(&[&first, &second]).await;
    let settings = String::from_utf8(get(first.admin, "/api/config").await.unwrap().body).unwrap();
    assert!(settings.contains("rediss://") && !settings.contains("hunter2") && !settings.contains("4f1c9a"));
    // a wrong password, and an issuer that is not trusted: alone, and serving
    let wrong = [("GROUP_SECRET", "4f1c9a"), ("STORE_PASSWORD", "hunter3")];
    let (third, fourth) = (
        member_with(&[a.addr], &url, &more, &wrong).await,
        member_with(&[a.addr], &url, &more.replace(&ca, &cert), SECRET).await,
    );
    for router in [&third, &fourth] {
        ask(router, 1).await;
        assert_eq!(router.metric("ramjet_cluster_connected").await, 0.0);
    }
    let alone = there("it says so", || async { get(third.admin, "/api/fleet").await.ok() }).await.json();
    assert_eq!(alone["cluster"]["connected"], false);
    let json = get(first.admin, "/api/fleet").await.unwrap().json();
    assert_eq!((&json["cluster"]["connected"], &json["cluster"]["peers"]), (&true.into(), &1.into()));
}
