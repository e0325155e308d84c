//! Replicas that are found while ramjet runs: in a file, in DNS, in several places at once. What fails empties nothing.

use crate::support::dns::Dns;
use crate::support::engine::Engine;
use crate::support::ramjet::{Ramjet, Start, tempdir};
use crate::support::{chat_body, client, until};
use std::path::PathBuf;

async fn names_become(ramjet: &Ramjet, wanted: &[String]) {
    let mut wanted = wanted.to_vec();
    wanted.sort();
    let are = || async {
        let mut names = ramjet.names().await;
        names.sort();
        names == wanted
    };
    until(&format!("the replicas are {wanted:?}"), are).await;
}

async fn answers(ramjet: &Ramjet) {
    for n in 0..8 {
        assert_eq!(client::chat(ramjet.api, "", &chat_body(500 + n, "")).await.unwrap().status, 200);
    }
}

/// Waits until the source has been asked a few times more.
async fn asked_again(ramjet: &Ramjet) {
    let failures = || ramjet.metric("ramjet_discovery_failures_total");
    let before = failures().await;
    until("it is asked again, in vain", || async { failures().await >= before + 3.0 }).await;
}

fn list_file() -> PathBuf {
    tempdir().join(format!("{}.list.yaml", crate::support::ramjet::lease().port()))
}

fn list(replicas: &[(&str, &Engine)]) -> String {
    replicas.iter().map(|(name, engine)| format!("- {{ name: {name}, url: \"http://{}\" }}\n", engine.addr)).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_watched_file_is_followed_and_what_is_wrong_with_it_changes_nothing() {
    let (a, b) = (Engine::start().await, Engine::start().await);
    let path = list_file();
    std::fs::write(&path, list(&[("a", &a)])).unwrap();
    let discovery = format!("{{ file: {{ path: \"{}\", interval: 20ms }} }}", path.display());
    let ramjet = Ramjet::start_with(Start { discovery: &discovery, ..Start::default() }).await;
    names_become(&ramjet, &["a".to_owned()]).await;
    answers(&ramjet).await;
    // in its place as a whole, and then in place
    let next = path.with_extension("next");
    std::fs::write(&next, list(&[("a", &a), ("b", &b)])).unwrap();
    std::fs::rename(&next, &path).unwrap();
    names_become(&ramjet, &["a".to_owned(), "b".to_owned()]).await;
    answers(&ramjet).await;
    for wrong in ["- { name: a, url: \"http://", "- { name: a, urk: x }", "[]", "", "a: b"] {
        std::fs::write(&path, wrong).unwrap();
        until(wrong, || async { ramjet.metric("ramjet_discovery_stale").await == 1.0 }).await;
        asked_again(&ramjet).await;
        assert_eq!(ramjet.names().await, ["a", "b"], "{wrong}");
        std::fs::write(&path, list(&[("a", &a), ("b", &b)])).unwrap();
        until("it is good again", || async { ramjet.metric("ramjet_discovery_stale").await == 0.0 }).await;
    }
    std::fs::remove_file(&path).unwrap();
    asked_again(&ramjet).await;
    answers(&ramjet).await;
    std::fs::write(&path, list(&[("b", &b)])).unwrap();
    names_become(&ramjet, &["b".to_owned()]).await;
    answers(&ramjet).await;
    std::fs::remove_file(path).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn addresses_in_dns_are_followed_and_no_answer_empties_nothing() {
    let a = Engine::start_at("127.0.0.1:0".parse().unwrap()).await;
    let port = a.addr.port();
    let _b = Engine::start_at(format!("127.0.0.2:{port}").parse().unwrap()).await;
    let six = std::net::TcpListener::bind("[::1]:0").is_ok();
    let dns = Dns::start().await;
    dns.addresses("engines.test", &["127.0.0.1"]);
    let discovery =
        format!("{{ dns: {{ name: engines.test, port: {port}, interval: 20ms, server: \"{}\" }} }}", dns.addr);
    let ramjet = Ramjet::start_with(Start { discovery: &discovery, ..Start::default() }).await;
    let name = |address: &str| format!("{address}:{port}");
    names_become(&ramjet, &[name("127.0.0.1")]).await;
    answers(&ramjet).await;
    dns.addresses("engines.test", &["127.0.0.2", "127.0.0.1"]);
    names_become(&ramjet, &[name("127.0.0.1"), name("127.0.0.2")]).await;
    answers(&ramjet).await;
    // no such name, an error, an empty answer
    for code in [Some(3), Some(2), None] {
        dns.fails(code);
        if code.is_none() {
            dns.addresses("engines.test", &[]);
        }
        asked_again(&ramjet).await;
        assert_eq!(ramjet.metric("ramjet_discovery_stale").await, 1.0);
        assert_eq!(ramjet.names().await.len(), 2);
        answers(&ramjet).await;
    }
    dns.addresses("engines.test", if six { &["127.0.0.2", "::1"] } else { &["127.0.0.2"] });
    let mut wanted = vec![name("127.0.0.2")];
    wanted.extend(six.then(|| name("[::1]")));
    names_become(&ramjet, &wanted).await;
    assert_eq!(ramjet.metric("ramjet_discovery_stale").await, 0.0);
    let seen = a.seen().len();
    answers(&ramjet).await;
    assert_eq!(a.seen().len(), seen, "it has left");
    assert!(dns.asked() > 10);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_service_that_moves_to_another_address_keeps_its_name_and_its_place() {
    let a = Engine::start_at("127.0.0.1:0".parse().unwrap()).await;
    let port = a.addr.port();
    let b = Engine::start_at(format!("127.0.0.3:{port}").parse().unwrap()).await;
    let dns = Dns::start().await;
    dns.services("_http._tcp.engines.test", &[("one.test", port)]);
    dns.addresses("one.test", &["127.0.0.1"]);
    let discovery = format!(
        "{{ dns: {{ name: _http._tcp.engines.test, interval: 20ms, server: \"{}\", dp_ranks: 2 }} }}",
        dns.addr
    );
    let ramjet = Ramjet::start_with(Start { discovery: &discovery, ..Start::default() }).await;
    let names = [0, 1].map(|rank| format!("one.test:{port}#dp{rank}"));
    names_become(&ramjet, &names).await;
    answers(&ramjet).await;
    let ordinal = ramjet.of_replica(&names[1], "ordinal").await;
    let transitions = ramjet.series("ramjet_upstream_transitions_total").await;
    dns.addresses("one.test", &["127.0.0.3"]);
    let there = || async {
        answers(&ramjet).await;
        !b.seen().is_empty()
    };
    until("requests go to the other address", there).await;
    let seen = a.seen().len();
    answers(&ramjet).await;
    assert_eq!((a.seen().len(), ramjet.of_replica(&names[1], "ordinal").await), (seen, ordinal));
    assert_eq!(ramjet.series("ramjet_upstream_transitions_total").await, transitions, "its counters go on");
    assert!(b.seen()[0].header("host").unwrap().starts_with("one.test:"));
}

#[tokio::test(flavor = "multi_thread")]
async fn of_several_sources_the_first_has_the_name() {
    let (a, b, c) = (Engine::start().await, Engine::start().await, Engine::start().await);
    let path = list_file();
    std::fs::write(&path, list(&[("x", &b), ("y", &c)])).unwrap();
    let discovery = format!("{{ file: {{ path: \"{}\", interval: 20ms }} }}", path.display());
    let replicas = &[format!("{{ name: x, url: \"http://{}\" }}", a.addr)];
    let config = "routing: { policy: round_robin }";
    let ramjet = Ramjet::start_with(Start { replicas, discovery: &discovery, config, ..Start::default() }).await;
    names_become(&ramjet, &["x".to_owned(), "y".to_owned()]).await;
    answers(&ramjet).await;
    assert_eq!((a.seen().len(), b.seen().len(), c.seen().len()), (4, 0, 4));
    assert_eq!(ramjet.metric("ramjet_discovery_replicas").await, 3.0);
    std::fs::remove_file(path).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_source_that_is_new_and_does_not_answer_refuses_the_reload() {
    let (a, dns) = (Engine::start().await, Dns::start().await);
    let start = Start { upstreams: &[a.addr], ..Start::default() };
    let ramjet = Ramjet::start_with(start).await;
    let missing = list_file();
    let generation = ramjet.metric("ramjet_config_generation").await;
    let named = format!("{{ dns: {{ name: nobody.test, port: 80, server: \"{}\" }} }}", dns.addr);
    let path = format!("{{ file: {{ path: \"{}\" }} }}", missing.display());
    for (discovery, said) in [(&named, "discovery by dns: nobody.test"), (&path, "discovery by file: ")] {
        // in the place of those that are there, and beside them
        for upstreams in [&[][..], &[a.addr][..]] {
            ramjet.rewrite(&Start { upstreams, discovery, config: "limits: { body: 1KiB }", ..Start::default() });
            let report = ramjet.reload().await;
            assert_eq!((report.status, report.json()["outcome"].as_str()), (422, Some("refused")));
            let problem = report.json()["problems"][0].as_str().unwrap().to_owned();
            assert!(problem.starts_with(said), "{problem}");
            assert_eq!(ramjet.names().await, [a.addr.to_string()]);
        }
    }
    let big = client::chat(ramjet.api, "", &chat_body(5000, "")).await.unwrap();
    assert_eq!(
        (big.status, ramjet.metric("ramjet_config_generation").await),
        (200, generation),
        "nothing of it counts"
    );
    // one that answers is taken, and may fail from then on
    dns.addresses("nobody.test", &["127.0.0.1"]);
    let named = named.replace("port: 80", &format!("port: {}, interval: 20ms", a.addr.port()));
    ramjet.rewrite(&Start { discovery: &named, ..Start::default() });
    assert_eq!(ramjet.reload().await.status, 200);
    dns.fails(Some(2));
    asked_again(&ramjet).await;
    ramjet.rewrite(&Start { discovery: &named, config: "limits: { body: 1MiB }", ..Start::default() });
    assert_eq!(ramjet.reload().await.status, 200);
    answers(&ramjet).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_name_in_the_hosts_file_is_found_without_a_name_server() {
    let a = Engine::start_at("127.0.0.1:0".parse().unwrap()).await;
    let port = a.addr.port();
    let discovery = format!("{{ dns: {{ name: localhost, port: {port}, interval: 20ms }} }}");
    let ramjet = Ramjet::start_with(Start { discovery: &discovery, ..Start::default() }).await;
    assert!(ramjet.names().await.contains(&format!("127.0.0.1:{port}")), "{:?}", ramjet.names().await);
    until("a request reaches it", || async {
        client::chat(ramjet.api, "", &chat_body(500, "")).await.unwrap();
        !a.seen().is_empty()
    })
    .await;
}
