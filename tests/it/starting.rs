//! Starting: a wrong configuration says everything that is wrong and binds nothing; a good one serves and stops well.

use crate::support::client;
use crate::support::engine::Engine;
use crate::support::ramjet::{Ramjet, Start, command, lease};
use crate::support::{chat_body, until};
use std::process::Output;
use std::time::{Duration, Instant};

fn run(args: &[&str], env: &[(&str, &str)]) -> (i32, String, String) {
    let Output { status, stdout, stderr } = command().args(args).envs(env.iter().copied()).output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (status.code().unwrap(), text(stdout), text(stderr))
}

#[test]
fn every_stale_or_unknown_name_is_listed_and_the_exit_code_is_64() {
    let env = [("RJ_ROUTE_ALPHA", "x"), ("RJ_NO_SUCH", "1"), ("MD_UPSTREAM", "1"), ("DS4_X", "")];
    for test in [&["-t", "--upstream", "http://a:1"][..], &["--upstream", "http://a:1"]] {
        let (code, stdout, stderr) = run(test, &env);
        assert_eq!((code, stdout.as_str()), (64, ""), "{stderr}");
        assert_eq!(stderr.trim_end().lines().count(), 4, "{stderr}");
        assert!(env.iter().all(|(name, _)| stderr.contains(name)), "{stderr}");
    }
}

#[test]
fn a_good_configuration_is_said_to_be_good() {
    let (code, stdout, stderr) = run(&["-t", "--upstream", "http://a:1,http://b:2/v1"], &[]);
    assert_eq!((code, stderr.as_str()), (0, ""), "{stdout}");
}

#[test]
fn a_missing_file_and_no_replicas_are_clear() {
    let (code, _, stderr) = run(&["-t", "-c", "/no/such/file.yaml"], &[]);
    assert_eq!(code, 64);
    assert!(stderr.contains("/no/such/file.yaml"), "{stderr}");
    let (code, _, stderr) = run(&[], &[]);
    assert_eq!(code, 64);
    assert!(stderr.contains("--upstream"), "{stderr}");
}

#[test]
fn a_wrong_command_line_is_said_in_one_line_with_the_exit_code_64() {
    for (line, word) in [
        (&["--bogus"][..], "--bogus"),
        (&["-t", "--upstrem", "http://a:1"], "--upstream"),
        (&["frobnicate"], "frobnicate"),
        (&["explain"], "<ID>"),
        (&["replay", "journal", "--list", "many"], "many"),
    ] {
        let (code, stdout, stderr) = run(line, &[]);
        assert_eq!((code, stdout.as_str(), stderr.lines().count()), (64, "", 1), "{stderr}");
        assert!(stderr.starts_with("ramjet: ") && stderr.contains(word), "{stderr}");
    }
    for line in [&["--help"][..], &["explain", "--help"], &["--version"]] {
        let (code, stdout, stderr) = run(line, &[]);
        assert_eq!((code, stderr.as_str()), (0, ""), "{line:?}");
        assert!(stdout.contains("ramjet"), "{stdout}");
    }
}

#[test]
fn a_busy_address_ends_the_start_with_its_name() {
    let busy = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = busy.local_addr().unwrap().to_string();
    let (code, _, stderr) =
        run(&["--upstream", "http://127.0.0.1:1", "--listen", &addr, "--admin", &lease().to_string()], &[]);
    assert_eq!(code, 1);
    assert!(stderr.contains(&addr) && stderr.lines().count() == 1, "{stderr}");
}

#[test]
fn a_unix_socket_takes_the_place_of_nobody_else_and_of_no_file() {
    let folder = std::env::temp_dir().join(format!("ramjet-it-unix-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let path = folder.join("api.sock");
    let start = |path: &std::path::Path| {
        let file = folder.join("c.yaml");
        let text = format!(
            "listen: {{ api: [\"unix:{}\"], admin: \"{}\" }}\nfleet: {{ replicas: [{{ url: \"http://127.0.0.1:1\" }}] }}\n",
            path.display(),
            lease()
        );
        std::fs::write(&file, text).unwrap();
        let (code, _, stderr) = run(&["-c", file.to_str().unwrap()], &[]);
        assert_eq!((code, stderr.lines().count()), (1, 1), "{stderr}");
        assert!(stderr.contains(&path.display().to_string()), "{stderr}");
    };
    let live = std::os::unix::net::UnixListener::bind(&path).unwrap();
    start(&path);
    std::os::unix::net::UnixStream::connect(&path).unwrap();
    drop(live);
    std::fs::remove_file(&path).unwrap();
    std::fs::write(&path, "mine").unwrap();
    start(&path);
    assert_eq!(std::fs::read(&path).unwrap(), b"mine");
    start(&folder.join("none/api.sock"));
    std::fs::remove_dir_all(folder).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn whoever_has_an_answer_of_the_api_finds_the_admin_listener_there() {
    let engine = Engine::start().await;
    for start in 0..12 {
        let ramjet = Ramjet::spawn(&Start { upstreams: &[engine.addr], ..Start::default() });
        let until = Instant::now() + Duration::from_secs(60);
        // without a pause: what is looked for is over in a moment
        while std::net::TcpStream::connect(ramjet.api).is_err() {
            assert!(Instant::now() < until, "start {start}: nobody listens");
            std::thread::yield_now();
        }
        std::net::TcpStream::connect(ramjet.admin).unwrap_or_else(|e| panic!("start {start}: {e}"));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn it_serves_on_a_unix_socket_too() {
    let engine = Engine::start().await;
    let path = std::env::temp_dir().join(format!("ramjet-it-{}.sock", std::process::id()));
    let shown = path.to_str().unwrap();
    let second = lease();
    let listen = format!("{second},unix:{shown}");
    let start =
        Start { upstreams: &[engine.addr], env: &[("RJ_API_ADDR", &listen)], api: Some(second), ..Start::default() };
    let ramjet = Ramjet::start_with(start).await;
    let stream = tokio::net::UnixStream::connect(&path).await.unwrap();
    let (mut read, mut write) = stream.into_split();
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    write.write_all(b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
    let mut answer = [0; 15];
    read.read_exact(&mut answer).await.unwrap();
    assert_eq!(&answer, b"HTTP/1.1 200 OK");
    drop(ramjet);
    std::fs::remove_file(path).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn all_addresses_of_both_families_are_listened_to_side_by_side() {
    let port = lease().port();
    if std::net::TcpListener::bind("[::1]:0").is_err() {
        return; // a machine without IPv6
    }
    let both = format!("[::]:{port},0.0.0.0:{port}");
    let api = Some(std::net::SocketAddr::from(([127, 0, 0, 1], port)));
    let upstreams = &[Engine::start().await.addr];
    let ramjet = Ramjet::start_with(Start { upstreams, env: &[("RJ_API_ADDR", &both)], api, ..Start::default() }).await;
    for address in [ramjet.api, std::net::SocketAddr::from((std::net::Ipv6Addr::LOCALHOST, port))] {
        client::get(address, "/health").await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn on_sigterm_a_running_stream_finishes_and_the_exit_code_is_0() {
    let engine = Engine::start().await;
    let start = Start { upstreams: &[engine.addr], config: "server: { grace: 50ms }", ..Start::default() };
    let mut ramjet = Ramjet::start_with(start).await;
    let body = chat_body(500, "");
    let mut h1 = client::begin_chat(ramjet.api, "decode", &body).await.unwrap();
    h1.head().await.unwrap();
    ramjet.signal("TERM");
    let api = ramjet.api;
    until("new connections are refused", || async { client::get(api, "/health").await.is_err() }).await;
    assert_eq!(ramjet.ended(), None, "a stream is still running");
    drop(h1);
    assert_eq!(exit_code(&mut ramjet).await, 0);
}

async fn exit_code(ramjet: &mut Ramjet) -> i32 {
    until("the process ends", || std::future::ready(ramjet.ended().is_some())).await;
    ramjet.ended().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn during_the_grace_health_says_draining_and_requests_are_served_until_a_second_sigterm() {
    let engine = Engine::start().await;
    let start = Start { upstreams: &[engine.addr], config: "server: { grace: 1h }", ..Start::default() };
    let mut ramjet = Ramjet::start_with(start).await;
    let mut stream = client::begin_chat(ramjet.api, "decode", &chat_body(500, "")).await.unwrap();
    stream.head().await.unwrap();
    ramjet.signal("TERM");
    let health = || async { client::get(ramjet.api, "/health").await.unwrap() };
    until("health says draining", || async { health().await.json()["status"] == "draining" }).await;
    assert_eq!(health().await.status, 503);
    assert_eq!(client::get(ramjet.admin, "/readyz").await.unwrap().status, 503);
    let answer = client::chat(ramjet.api, "", &chat_body(500, "")).await.unwrap();
    assert_eq!((answer.status, answer.header("connection")), (200, Some("close")));
    assert_eq!(ramjet.ended(), None);
    ramjet.signal("TERM");
    assert_eq!(exit_code(&mut ramjet).await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_sigterm_ends_what_still_runs_after_the_grace() {
    let engine = Engine::start().await;
    let start = Start { upstreams: &[engine.addr], config: "server: { grace: 0ms }", ..Start::default() };
    let mut ramjet = Ramjet::start_with(start).await;
    let mut stream = client::begin_chat(ramjet.api, "decode", &chat_body(500, "")).await.unwrap();
    stream.head().await.unwrap();
    let api = ramjet.api;
    ramjet.signal("TERM");
    until("new connections are refused", || async { client::get(api, "/health").await.is_err() }).await;
    assert_eq!(ramjet.ended(), None, "a stream is still running");
    ramjet.signal("TERM");
    assert_eq!(exit_code(&mut ramjet).await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hangup_does_not_end_a_single_stream() {
    let engine = Engine::start().await;
    let mut ramjet = Ramjet::start(&[engine.addr]).await;
    let body = chat_body(500, "");
    let mut h1 = client::begin_chat(ramjet.api, "decode", &body).await.unwrap();
    h1.head().await.unwrap();
    for _ in 0..20 {
        ramjet.signal("HUP");
        assert_eq!(client::get(ramjet.api, "/health").await.unwrap().status, 200);
    }
    assert_eq!(ramjet.ended(), None);
    assert_eq!(engine.seen()[0].closed, None);
}
