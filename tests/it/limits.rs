//! What happens where the process may have no more files and sockets open: who cannot be served is told, or waits; no
//! replica is blamed; and once there is room all is as before.

use crate::support::client::{H1, chat_head, get};
use crate::support::engine::Engine;
use crate::support::ramjet::Ramjet;
use crate::support::{body_of, until};

const CLIENTS: usize = 24;

async fn ask(h1: &mut H1, body: &[u8]) {
    let head = chat_head(&format!("content-length: {}\r\n", body.len()));
    h1.send(&[head.as_bytes(), body].concat()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn where_no_more_files_may_be_open_clients_are_told_or_wait_and_no_replica_is_fenced() {
    let engine = Engine::start().await;
    let ramjet = Ramjet::start(&[engine.addr]).await;
    let body = body_of(200);
    // room for a few clients, and not for their connections to the engine
    ramjet.allow_files(ramjet.open_files() + 6);
    let mut clients = Vec::new();
    for _ in 0..CLIENTS {
        let mut h1 = H1::connect(ramjet.api).await.unwrap();
        ask(&mut h1, &body).await;
        clients.push(h1);
    }
    let (mut answers, mut refused) = (0, 0);
    let mut h1 = clients.remove(0);
    // one after the other: who is answered makes room for the next
    loop {
        let answer = h1.answer().await.unwrap();
        answers += 1;
        match (answer.status, answer.header("x-ramjet-error")) {
            (200, None) => {}
            (503, Some("overloaded")) => {
                assert!(answer.header("retry-after").is_some());
                refused += 1;
            }
            other => panic!("{other:?}"),
        }
        drop(h1);
        match clients.pop() {
            None => break,
            Some(next) => h1 = next,
        }
    }
    assert_eq!(answers, CLIENTS);
    assert!(refused > 0, "there was room for all");
    ramjet.allow_files(1000);
    until("a request is served again", || async {
        let mut h1 = H1::connect(ramjet.api).await.unwrap();
        ask(&mut h1, &body).await;
        h1.answer().await.unwrap().status == 200
    })
    .await;
    let health = get(ramjet.api, "/health").await.unwrap();
    assert_eq!(health.json()["status"], "ok");
    ramjet.settled().await;
}
