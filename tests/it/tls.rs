//! TLS for clients and towards engines, as openssl and curl see it: versions by ALPN, client certificates, renewal under a
//! running request, and engines that are not who they should be.

use crate::support::client::get;
use crate::support::engine::Engine;
use crate::support::ramjet::{Ramjet, Start, command};
use crate::support::unit::Unit;
use crate::support::{chat_body, until};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// A folder of certificates that goes away with the test. Both tools must be there: a skipped test proves nothing.
struct Certs(PathBuf);

impl Certs {
    fn new() -> Certs {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let path =
            std::env::temp_dir().join(format!("ramjet-it-tls-{}-{}", std::process::id(), COUNT.fetch_add(1, Relaxed)));
        std::fs::create_dir_all(&path).unwrap();
        let certs = Certs(path);
        certs.issuer("ca");
        certs
    }

    fn path(&self, name: &str) -> String {
        self.0.join(name).to_str().unwrap().to_owned()
    }

    fn openssl(&self, arguments: &str) {
        let done = Command::new("openssl").args(arguments.split_whitespace()).current_dir(&self.0).output();
        let done = done.expect("these tests need the program openssl");
        assert!(done.status.success(), "openssl {arguments}: {}", String::from_utf8_lossy(&done.stderr));
    }

    fn key(&self, name: &str) {
        self.openssl(&format!("ecparam -genkey -name prime256v1 -noout -out {name}.key"));
    }

    fn issuer(&self, name: &str) {
        self.key(name);
        self.openssl(&format!("req -x509 -new -key {name}.key -days 2 -subj /CN={name} -out {name}.crt"));
    }

    /// A certificate and its key, for `alternatives`, by the issuer `ca`.
    fn issue(&self, name: &str, alternatives: &str) {
        self.key(name);
        std::fs::write(self.0.join("ext"), format!("subjectAltName={alternatives}\n")).unwrap();
        self.openssl(&format!("req -new -key {name}.key -subj /CN={name} -out {name}.csr"));
        self.openssl(&format!(
            "x509 -req -in {name}.csr -CA ca.crt -CAkey ca.key -CAcreateserial -days 2 -extfile ext -out {name}.crt"
        ));
    }

    /// The `tls` of a configuration with these.
    fn listen(&self, name: &str, more: &str) -> String {
        format!(
            "tls: {{ cert: {}, key: {}{more} }}",
            self.path(&format!("{name}.crt")),
            self.path(&format!("{name}.key"))
        )
    }

    /// Puts a certificate and its key in the place of others.
    fn replace(&self, old: &str, new: &str) {
        for kind in ["key", "crt"] {
            std::fs::copy(self.path(&format!("{new}.{kind}")), self.path(&format!("{old}.{kind}"))).unwrap();
        }
    }
}

impl Drop for Certs {
    fn drop(&mut self) {
        let _gone = std::fs::remove_dir_all(&self.0);
    }
}

const LOCAL: &str = "IP:127.0.0.1,DNS:localhost";

fn curl(certs: &Certs, arguments: &[&str]) -> Command {
    let mut curl = Command::new("curl");
    curl.args(["-sS", "--max-time", "30", "--cacert", &certs.path("ca.crt")]).args(arguments);
    curl
}

fn said(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

/// What `openssl s_client` tells of a connection.
fn s_client(addr: SocketAddr, arguments: &[&str]) -> String {
    let mut client = Command::new("openssl");
    client.args(["s_client", "-connect", &addr.to_string()]).args(arguments).stdin(Stdio::null());
    said(&client.output().unwrap())
}

async fn start(engine: &Engine, listen: &str) -> Ramjet {
    Ramjet::start_with(Start { upstreams: &[engine.addr], listen, ..Start::default() }).await
}

#[tokio::test(flavor = "multi_thread")]
async fn both_versions_of_http_are_served_by_what_the_handshake_settled() {
    let (certs, engine) = (Certs::new(), Engine::start().await);
    certs.issue("server", LOCAL);
    let ramjet = start(&engine, &certs.listen("server", "")).await;
    let ca = certs.path("ca.crt");
    for (offered, settled, tls) in [("h2,http/1.1", "h2", "-tls1_3"), ("http/1.1", "http/1.1", "-tls1_2")] {
        let page = s_client(ramjet.api, &["-alpn", offered, "-CAfile", &ca, tls]);
        assert!(
            page.contains(&format!("ALPN protocol: {settled}")) && page.contains("Verify return code: 0"),
            "{page}"
        );
    }
    let body = String::from_utf8(chat_body(70_000, "")).unwrap();
    std::fs::write(certs.path("body"), &body).unwrap();
    let (data, chat) = (format!("@{}", certs.path("body")), format!("https://{}/v1/chat/completions", ramjet.api));
    for (version, number) in [("--http2", "2"), ("--http1.1", "1.1")] {
        let asked =
            curl(&certs, &[version, "--data-binary", &data, "-w", " %{http_version} %{http_code}", &chat]).output();
        assert_eq!(said(&asked.unwrap()), format!("{{\"ok\":true}} {number} 200"));
    }
    assert_eq!(engine.seen().iter().map(|seen| seen.length).collect::<Vec<_>>(), [70_000, 70_000]);
    assert!(get(ramjet.api, "/health").await.is_err(), "in clear text there is no answer");
}

#[tokio::test(flavor = "multi_thread")]
async fn where_client_certificates_are_asked_for_only_those_of_the_issuer_open() {
    let (certs, engine) = (Certs::new(), Engine::start().await);
    ["server", "client"].iter().for_each(|name| certs.issue(name, LOCAL));
    certs.issuer("stranger");
    let ramjet = start(&engine, &certs.listen("server", &format!(", client_ca: {}", certs.path("ca.crt")))).await;
    let url = format!("https://{}/health", ramjet.api);
    let ask = |name: Option<&str>| {
        let own = name.map(|name| [certs.path(&format!("{name}.crt")), certs.path(&format!("{name}.key"))]);
        let own = own.iter().flat_map(|[cert, key]| ["--cert", cert, "--key", key]).collect::<Vec<_>>();
        let asked = curl(&certs, &["-o", "/dev/null", "-w", "%{http_code}", &url]).args(own).output().unwrap();
        (asked.status.success(), String::from_utf8_lossy(&asked.stdout).into_owned())
    };
    assert_eq!(ask(Some("client")), (true, "200".to_owned()));
    assert_eq!(ask(None), (false, "000".to_owned()));
    assert_eq!(ask(Some("stranger")), (false, "000".to_owned()));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_renewed_certificate_is_shown_at_once_and_cuts_nothing() {
    let (certs, engine) = (Certs::new(), Engine::start().await);
    ["server", "renewed", "other"].iter().for_each(|name| certs.issue(name, LOCAL));
    let ramjet = start(&engine, &certs.listen("server", "")).await;
    let shows = |name: &str| s_client(ramjet.api, &[]).contains(&format!("subject=CN = {name}"));
    assert!(shows("server"));
    let chat = format!("https://{}/v1/chat/completions", ramjet.api);
    let running = curl(&certs, &["-H", "x-play: on-call-ok", "-d", "{\"messages\":[]}", &chat])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    until("a request runs", || async { engine.seen().len() == 1 }).await;
    certs.replace("server", "renewed");
    ramjet.signal("HUP");
    until("the new one is shown", || async { shows("renewed") }).await;
    // a key that does not belong to the certificate changes nothing
    std::fs::copy(certs.path("other.key"), certs.path("server.key")).unwrap();
    // there is no configuration file any more, so that each look at it is refused, before one at the certificates
    let refused = || ramjet.metric("ramjet_reloads_total");
    for _ in 0..2 {
        let before = refused().await;
        ramjet.signal("HUP");
        until("the files were looked at", || async { refused().await > before }).await;
    }
    assert!(shows("renewed"));
    engine.call();
    assert_eq!(said(&running.wait_with_output().unwrap()), "{\"ok\":true}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reload_by_the_admin_api_reads_certificates_and_who_may_issue_those_of_clients_again() {
    let (certs, engine) = (Certs::new(), Engine::start().await);
    ["server", "renewed", "client"].iter().for_each(|name| certs.issue(name, LOCAL));
    certs.issuer("stranger");
    let listen = certs.listen("server", &format!(", client_ca: {}", certs.path("issuers.crt")));
    std::fs::copy(certs.path("ca.crt"), certs.path("issuers.crt")).unwrap();
    let start = Start { upstreams: &[engine.addr], listen: &listen, ..Start::default() };
    let ramjet = Ramjet::start_with(start).await;
    let url = format!("https://{}/health", ramjet.api);
    let opens = || {
        let own = ["--cert", &certs.path("client.crt"), "--key", &certs.path("client.key")];
        curl(&certs, &["-o", "/dev/null", "--no-sessionid", &url]).args(own).output().unwrap().status.success()
    };
    let shows = |name: &str| s_client(ramjet.api, &[]).contains(&format!("subject=CN = {name}"));
    assert!(opens() && shows("server"));
    certs.replace("server", "renewed");
    std::fs::copy(certs.path("stranger.crt"), certs.path("issuers.crt")).unwrap();
    ramjet.rewrite(&start);
    assert_eq!(ramjet.reload().await.status, 200);
    assert!(!opens() && shows("renewed"));
    // a certificate without its key refuses the whole
    std::fs::copy(certs.path("client.key"), certs.path("server.key")).unwrap();
    assert_eq!(ramjet.reload().await.status, 422);
    assert!(shows("renewed"));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_upgrade_hands_a_tls_listener_over_with_what_runs_on_it() {
    let (certs, engine) = (Certs::new(), Engine::start().await);
    ["server", "renewed"].iter().for_each(|name| certs.issue(name, LOCAL));
    let unit = Unit::new();
    let (plain, tls) = (format!("listen: {{ api: [\"{}\"]", unit.api), certs.listen("server", ""));
    let unit = unit.altered(move |text| text.replacen(&plain, &format!("{plain}, {tls}"), 1));
    let replica = [format!("{{ name: a, url: \"http://{}\" }}", engine.addr)];
    let unit = unit.started(&replica, "grace: 0ms", "").await;
    let chat = format!("https://{}/v1/chat/completions", unit.api);
    let ask = |version: &str, play: &str| {
        let play = format!("x-play: {play}");
        let mut asked = curl(&certs, &[version, "-H", &play, "-d", "{\"messages\":[]}", &chat]);
        asked.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    };
    let running = [ask("--http2", "on-call-ok"), ask("--http1.1", "on-call-ok")];
    until("both run", || async { engine.seen().len() == 2 }).await;
    // an upgrade reads what is there
    certs.replace("server", "renewed");
    let upgraded = unit.upgrade(&[]).await;
    assert!(upgraded.status.success(), "{}", upgraded.errors);
    for version in ["--http2", "--http1.1"] {
        assert_eq!(said(&ask(version, "").wait_with_output().unwrap()), "{\"ok\":true}", "{version}");
    }
    assert!(s_client(unit.api, &[]).contains("subject=CN = renewed"));
    assert_eq!(unit.first_ended(), None);
    engine.call();
    for asked in running {
        assert_eq!(said(&asked.wait_with_output().unwrap()), "{\"ok\":true}");
    }
    until("the old one leaves", || async { unit.first_ended() == Some(0) }).await;
}

fn check(file: &Path, yaml: &str) -> (Option<i32>, String) {
    std::fs::write(file, format!("fleet: {{ replicas: [{{ url: \"http://a:1\" }}] }}\n{yaml}\n")).unwrap();
    let output = command().arg("-t").arg("-c").arg(file).output().unwrap();
    (output.status.code(), said(&output).replace(&file.parent().unwrap().display().to_string(), ""))
}

#[test]
fn files_that_cannot_serve_are_said_with_the_line_that_names_them() {
    let certs = Certs::new();
    certs.issue("server", LOCAL);
    certs.issue("other", LOCAL);
    std::fs::write(certs.path("empty"), "nothing\n").unwrap();
    let pem = "allowed: a readable PEM file that holds";
    let cases = [
        (
            "server.crt",
            "other.key",
            format!(
                "/c.yaml:4: listen.tls.key: found a key that does not belong to listen.tls.cert; {pem} the private key of listen.tls.cert\n"
            ),
        ),
        (
            "empty",
            "server.key",
            format!("/c.yaml:3: listen.tls.cert: found a file without a certificate; {pem} a certificate\n"),
        ),
        (
            "server.crt",
            "empty",
            format!(
                "/c.yaml:4: listen.tls.key: found a file without a private key that can be read; {pem} the private key of listen.tls.cert\n"
            ),
        ),
        (
            "gone",
            "server.key",
            format!(
                "/c.yaml:3: listen.tls.cert: found a file that cannot be read (No such file or directory (os error 2)); {pem} a certificate\n"
            ),
        ),
    ];
    let file = PathBuf::from(certs.path("c.yaml"));
    for (cert, key, problem) in cases {
        let yaml = format!("listen: {{ tls: {{\n  cert: {},\n  key: {} }} }}", certs.path(cert), certs.path(key));
        assert_eq!(check(&file, &yaml), (Some(64), problem));
    }
    let (code, text) = check(&file, &format!("listen: {{ tls: {{ cert: {} }} }}", certs.path("server.crt")));
    assert_eq!(code, Some(64), "{text}");
    assert!(text.starts_with("/c.yaml:2: listen.tls.key: found no file;"), "{text}");
    let (code, text) = check(&file, &format!("listen: {{ {} }}", certs.listen("server", "")));
    assert_eq!(code, Some(0), "{text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_engine_behind_https_is_verified_unless_that_is_switched_off() {
    let (certs, engine) = (Certs::new(), Engine::start().await);
    certs.issue("engine", "DNS:localhost");
    certs.issuer("stranger");
    let behind = start(&engine, &certs.listen("engine", "")).await;
    let port = behind.api.port();
    for (host, how, serves) in [
        ("localhost", format!("ca_file: {}", certs.path("ca.crt")), true),
        ("127.0.0.1", format!("ca_file: {}", certs.path("ca.crt")), false),
        ("localhost", format!("ca_file: {}", certs.path("stranger.crt")), false),
        ("127.0.0.1", format!("ca_file: {}, tls_verify: false", certs.path("stranger.crt")), true),
    ] {
        let replicas = [format!("{{ url: \"https://{host}:{port}/v1\", {how} }}")];
        let ramjet = Ramjet::start_with(Start { replicas: &replicas, ..Start::default() }).await;
        let health = if serves { "ok" } else { "unhealthy" };
        until(health, || async { get(ramjet.api, "/health").await.unwrap().json()["status"] == health }).await;
        let answer = crate::support::client::chat(ramjet.api, "", &chat_body(500, "")).await.unwrap();
        assert_eq!(answer.status == 200, serves, "{host} {how}: {}", answer.head);
    }
    assert_eq!(engine.seen().len(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn traces_go_to_a_collector_behind_https_and_to_nobody_else() {
    let (certs, engine, collector) = (Certs::new(), Engine::start().await, Engine::start().await);
    certs.issue("collector", "DNS:localhost");
    certs.issuer("stranger");
    let behind = start(&collector, &certs.listen("collector", "")).await;
    let port = behind.api.port();
    let (ca, stranger) = (certs.path("ca.crt"), certs.path("stranger.crt"));
    let file = |name: &str| format!(", ca_file: {name}");
    for (host, issuers, system, outcome) in [
        ("localhost", file(&ca), &stranger, "sent"),
        // those that the system trusts
        ("localhost", String::new(), &ca, "sent"),
        ("localhost", String::new(), &stranger, "failed"),
        ("localhost", file(&stranger), &ca, "failed"),
        ("127.0.0.1", file(&ca), &ca, "failed"),
    ] {
        let config = format!("traces: {{ endpoint: \"https://{host}:{port}\"{issuers} }}");
        let env = [("SSL_CERT_FILE", system.as_str())];
        let upstreams = [engine.addr];
        let ramjet =
            Ramjet::start_with(Start { upstreams: &upstreams, config: &config, env: &env, ..Start::default() });
        let ramjet = ramjet.await;
        assert_eq!(crate::support::client::chat(ramjet.api, "", &chat_body(500, "")).await.unwrap().status, 200);
        let wanted = format!("outcome=\"{outcome}\"");
        until(outcome, || async {
            let all = ramjet.series("ramjet_traces_total").await;
            all.iter().any(|(labels, count)| labels.contains(&wanted) && *count == 1.0)
        })
        .await;
    }
    let taken = collector.seen();
    assert!(taken.len() == 2 && taken.iter().all(|seen| seen.head.starts_with("POST /v1/traces ")), "{taken:?}");
    // a file of issuers without https says nothing
    let file = certs.0.join("c.yaml");
    let text = format!("traces: {{ endpoint: \"http://localhost:{port}\", ca_file: {ca} }}");
    let (code, told) = check(&file, &text);
    assert!(code == Some(64) && told.contains("traces.ca_file"), "{code:?} {told}");
}
