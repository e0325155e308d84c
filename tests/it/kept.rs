//! Files and batches exist on one replica: whoever names one is sent there.

use crate::support::client::{Answer, H1, post};
use crate::support::engine::Engine;
use crate::support::ramjet::Ramjet;
use crate::support::unit::Unit;
use std::net::SocketAddr;

async fn ask(api: SocketAddr, method: &str, path: &str, play: &str) -> Answer {
    let mut h1 = H1::connect(api).await.unwrap();
    h1.send(format!("{method} {path} HTTP/1.1\r\nhost: x\r\nx-play: {play}\r\n\r\n").as_bytes()).await;
    h1.answer().await.unwrap()
}

fn home(answer: &Answer) -> String {
    assert_eq!(answer.status, 200);
    answer.header("x-ramjet-upstream").unwrap().to_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn what_names_a_file_or_a_batch_goes_where_that_is() {
    let (a, b, c) = (Engine::start().await, Engine::start().await, Engine::start().await);
    let ramjet = Ramjet::start(&[a.addr, b.addr, c.addr]).await;
    let api = ramjet.api;
    let mut homes = std::collections::HashSet::new();
    for n in 0..6 {
        // the id of another thing, nested, is not its id
        let file = format!("json={{\"object\":\"file\",\"x\":{{\"id\":\"other\"}},\"id\":\"file-{n}\"}}");
        let at = home(&post(api, "/v1/files?x=1", &file, "--x\r\n\r\n--x--").await.unwrap());
        for (method, path) in [("GET", ""), ("GET", "/content"), ("DELETE", ""), ("GET", "?x=1")] {
            assert_eq!(home(&ask(api, method, &format!("/v1/files/file-{n}{path}"), "").await), at, "{method} {path}");
        }
        let batch = format!("json={{\"id\":\"batch-{n}\",\"input_file_id\":\"file-{n}\",\"output_file_id\":null}}");
        let body = format!(r#"{{"endpoint":"/v1/chat/completions","input_file_id":"file-{n}"}}"#);
        assert_eq!(home(&post(api, "/v1/batches", &batch, &body).await.unwrap()), at);
        assert_eq!(home(&post(api, &format!("/v1/batches/batch-{n}/cancel"), "", "").await.unwrap()), at);
        let done =
            format!("json={{\"id\":\"batch-{n}\",\"output_file_id\":\"out-{n}\",\"error_file_id\":\"err-{n}\"}}");
        assert_eq!(home(&ask(api, "GET", &format!("/v1/batches/batch-{n}"), &done).await), at);
        // what stands in a file is not what it is called
        let content = format!("/v1/files/out-{n}/content");
        assert_eq!(home(&ask(api, "GET", &content, &format!("json={{\"id\":\"inner-{n}\"}}")).await), at);
        assert_eq!(home(&ask(api, "GET", &format!("/v1/files/err-{n}/content"), "").await), at);
        homes.insert(at);
    }
    assert!(homes.len() > 1, "uploads take turns");
    let pinned: f64 = ramjet.metric("ramjet_route_pinned_total").await;
    assert_eq!(pinned, 6.0 * 9.0);
    assert_eq!(ramjet.metric(r#"ramjet_route_decisions_total{outcome="pinned"}"#).await, pinned);
    ask(api, "GET", "/v1/files/inner-0", "").await;
    ask(api, "GET", "/v1/files/other", "").await;
    assert_eq!(ramjet.metric("ramjet_route_pinned_total").await, pinned);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_process_that_joins_a_group_still_knows_where_things_are() {
    let engines = [Engine::start().await, Engine::start().await, Engine::start().await];
    let replicas: Vec<_> = engines.iter().map(|engine| format!("{{ url: \"http://{}\" }}", engine.addr)).collect();
    let unit =
        Unit::new().with_env("ONE", "4f1c9a").with_env("OTHER", "77e0b2").started(&replicas, "grace: 1s", "").await;
    let upload = |n: usize| async move {
        let file = format!("json={{\"object\":\"file\",\"id\":\"file-{n}\"}}");
        home(&post(unit.api, "/v1/files", &file, "--x\r\n\r\n--x--").await.unwrap())
    };
    let mut homes = Vec::new();
    for n in 0..5 {
        homes.push(upload(n).await);
    }
    // nobody answers there, which is no matter
    for secret in ["ONE", "OTHER"] {
        let group = format!("cluster: {{ url: \"redis://127.0.0.1:9\", secret_env: {secret} }}");
        unit.write(&replicas, "grace: 1s", &group);
        let upgraded = unit.upgrade(&[]).await;
        assert!(upgraded.status.success(), "{}", upgraded.errors);
        for (n, at) in homes.iter().enumerate() {
            assert_eq!(home(&ask(unit.api, "GET", &format!("/v1/files/file-{n}"), "").await), *at, "{secret}");
        }
        homes.push(upload(homes.len()).await);
    }
}
