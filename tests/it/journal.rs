//! The journal of a run, and the same choices made again from it: all of them, whatever happened in between.

use crate::support::client::{H1, chat_head};
use crate::support::engine::Engine;
use crate::support::ramjet::{Ramjet, Start, command, tempdir};
use crate::support::until;
use std::path::{Path, PathBuf};

/// Words that stand in requests and must not stand in the journal.
const SECRETS: [&str; 6] = ["modelsecret", "textsecret", "sessionsecret", "keysecret", "127.0.0.1", "tenantsecret"];

/// One turn of a conversation: a system prompt that its group shares, and all turns before.
fn body(group: usize, session: usize, turns: usize, streams: bool) -> Vec<u8> {
    let trunk = format!("textsecret {group} ").repeat(1500 / (1 + group));
    let mut messages = format!(r#"{{"role":"system","content":"{trunk}"}}"#);
    for turn in 0..=turns {
        let said = format!("question {session} {turn} ").repeat(200);
        messages += &format!(r#",{{"role":"user","content":"{said}"}}"#);
        if turn < turns {
            messages += &format!(r#",{{"role":"assistant","content":"answer {session} {turn}"}}"#);
        }
    }
    let model = group % 2;
    format!(r#"{{"model":"modelsecret{model}","stream":{streams},"messages":[{messages}]}}"#).into_bytes()
}

fn usage(prompt: usize, cached: usize) -> String {
    format!(
        r#""usage":{{"prompt_tokens":{prompt},"completion_tokens":20,"prompt_tokens_details":{{"cached_tokens":{cached}}}}}"#
    )
}

/// What the engine does with a request, a different thing each time.
fn play(n: usize, size: usize) -> String {
    let token = r#"data: {"choices":[{"delta":{"content":"x"}}]}\n\n"#;
    let prompt = size / 4;
    match n % 11 {
        0 => "drop".to_owned(),
        1 => "status=400".to_owned(),
        2 => "status=503".to_owned(),
        3 => format!("json={{{}}}", usage(prompt, prompt / 2)),
        4 => "paced=2".to_owned(),
        5 => "cut".to_owned(),
        // it has lost what it held, or never tells
        6 => format!(r#"sse={token}|data: {{"choices":[],{}}}\n\n|data: [DONE]\n\n"#, usage(prompt, 0)),
        7 => format!(r"sse={token}|{token}|data: [DONE]\n\n"),
        _ => format!(
            r#"sse={token}|{token}|data: {{"choices":[],{}}}\n\n|data: [DONE]\n\n"#,
            usage(prompt, prompt * 9 / 10)
        ),
    }
}

/// A developer with some sessions, who sends one turn after the other and sometimes leaves.
pub(crate) async fn work(api: std::net::SocketAddr, worker: usize, turns: usize) {
    for n in 0..turns {
        let (group, session) = (worker % 4, worker * 10 + n % 3);
        let body = body(group, session, n / 3, n % 5 != 3);
        let play = if n % 7 == 5 { "decode".to_owned() } else { play(worker * 5 + n, body.len()) };
        let named =
            if worker.is_multiple_of(2) { format!("x-session-id: sessionsecret{session}\r\n") } else { String::new() };
        let fields = format!(
            "x-play: {play}\r\nauthorization: Bearer keysecret\r\nx-tenant: tenantsecret\r\n{named}content-length: {}\r\n",
            body.len()
        );
        let mut h1 = H1::connect(api).await.unwrap();
        h1.send(chat_head(&fields).as_bytes()).await;
        h1.send(&body).await;
        if n % 7 == 5 {
            h1.head().await.unwrap();
            continue;
        }
        // some are cut on purpose
        let _answer = h1.answer().await;
    }
}

pub(crate) fn file(name: &str) -> PathBuf {
    let path = tempdir().join(format!("{name}.jsonl"));
    let _old = std::fs::remove_file(&path);
    path
}

pub(crate) fn replay(journals: &[&Path], settings: &[&str]) -> (i32, String, String) {
    let out = command().arg("replay").args(journals).args(settings).output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (out.status.code().unwrap(), text(out.stdout), text(out.stderr))
}

/// A count that stands after a word at the beginning of a line.
pub(crate) fn after(page: &str, word: &str) -> usize {
    let line = page.lines().find_map(|line| line.strip_prefix(word)).unwrap_or_else(|| panic!("{word}: {page}"));
    line.split_whitespace().next().unwrap().parse().unwrap()
}

/// Choices so far.
pub(crate) async fn decisions(ramjet: &Ramjet) -> usize {
    let series = ramjet.series("ramjet_route_decisions_total").await;
    series.iter().map(|(_, n)| format!("{n}").parse::<usize>().unwrap()).sum()
}

pub(crate) fn count(path: &Path, what: &str) -> usize {
    std::fs::read_to_string(path).unwrap_or_default().lines().filter(|line| line.contains(what)).count()
}

async fn run(name: &str, routing: &str, lane: bool) -> (PathBuf, usize) {
    let engines = [Engine::start().await, Engine::start().await, Engine::start().await];
    let path = file(name);
    let journal = path.display();
    let config = format!("routing: {routing}\nlog: {{ access: off, journal: {journal} }}\nretry: {{ attempts: 2 }}\n");
    let addr = |n: usize| engines[n].addr;
    let last = format!(
        "{{ url: \"http://{}\", kv_capacity_tokens: 60000{} }}",
        addr(2),
        if lane { ", lane: long" } else { "" }
    );
    let upstreams = [addr(0), addr(1)];
    let start = Start { upstreams: &upstreams, replicas: &[last], config: &config, ..Start::default() };
    let ramjet = Ramjet::start_with(start).await;
    let workers: Vec<_> = (0..8).map(|worker| tokio::spawn(work(ramjet.api, worker, 15))).collect();
    // meanwhile one of them is emptied, and comes back
    let drained = format!("/api/replicas/{}", addr(1));
    ramjet.order(&format!("{drained}/drain")).await;
    until("some have ended", || async { ramjet.metric("ramjet_requests_total").await > 30.0 }).await;
    ramjet.order(&format!("{drained}/undrain")).await;
    for worker in workers {
        worker.await.unwrap();
    }
    let placed = all_written(&ramjet, &path).await;
    (path, placed)
}

/// Waits until nothing happens any more and all of it is in the journal; how many choices that are.
pub(crate) async fn all_written(ramjet: &Ramjet, path: &Path) -> usize {
    ramjet.settled().await;
    let placed = decisions(ramjet).await;
    until("all is written", || async { count(path, r#""do":"place""#) >= placed }).await;
    until("and the ends of all", || async {
        count(path, r#""do":"freed""#) == count(path, r#""do":"place""#) + count(path, r#""do":"take""#)
    })
    .await;
    assert_eq!(ramjet.metric("ramjet_journal_lost_total").await, 0.0);
    assert!(ramjet.metric("ramjet_journal_lines_total").await > 0.0);
    placed
}

#[tokio::test(flavor = "multi_thread")]
async fn a_journal_under_the_same_settings_gives_the_same_choices_all_of_them() {
    for (name, routing, lane) in [
        ("cost", "{ policy: cost }", false),
        ("affinity", "{ policy: affinity, affinity: { alpha: 1 } }", false),
        ("lane", "{ policy: cost, long_prompt: { over: 30000, short: avoid } }", true),
        ("hold", "{ policy: cost, single_flight: { mode: hold, min_blocks: 2 } }", false),
        ("load", "{ policy: load }", false),
    ] {
        let (path, placed) = run(&format!("same-{name}"), routing, lane).await;
        let (code, page, errors) = replay(&[&path], &[]);
        assert_eq!((code, errors.as_str()), (0, ""), "{name}");
        assert!(placed >= 100, "{name}: {placed}");
        assert_eq!((after(&page, "choices:"), after(&page, "moved:")), (placed, 0), "{name}: {page}");
        assert_eq!(after(&page, "alike:"), placed, "{name}: {page}");
        assert!(!page.contains("note:"), "{name}: {page}");
        // other settings, other choices
        let other = if name == "load" { "cost" } else { "round_robin" };
        let (code, page, _) = replay(&[&path], &["--set", &format!("routing.policy={other}")]);
        assert!(code == 0 && after(&page, "moved:") > 0, "{name}: {page}");
        // what is not written down is missed
        let text = std::fs::read_to_string(&path).unwrap();
        let poor = file(&format!("poor-{name}"));
        let kept: Vec<&str> = text.lines().filter(|line| !line.contains(r#""do":"freed""#)).collect();
        std::fs::write(&poor, kept.join("\n") + "\n").unwrap();
        assert!((after(&replay(&[&poor], &[]).1, "alike:")) < placed, "{name}");
        std::fs::remove_file(poor).unwrap();
        for secret in SECRETS {
            assert!(!text.contains(secret), "{name}: {secret} is in the journal");
        }
        std::fs::remove_file(path).unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_journal_that_was_moved_away_goes_on_in_a_new_file() {
    let (a, b) = (Engine::start().await, Engine::start().await);
    let (path, moved) = (file("rotated"), file("rotated-1"));
    let env = [("RJ_ROUTE_JOURNAL", path.to_str().unwrap())];
    let upstreams = [a.addr, b.addr];
    let ramjet = Ramjet::start_with(Start { upstreams: &upstreams, env: &env, ..Start::default() }).await;
    work(ramjet.api, 8, 12).await;
    let placed = decisions(&ramjet).await;
    ramjet.settled().await;
    until("the first part is written", || async { count(&path, r#""do":"freed""#) >= placed }).await;
    let mode = std::os::unix::fs::PermissionsExt::mode(&std::fs::metadata(&path).unwrap().permissions());
    assert_eq!(mode & 0o777, 0o600, "nobody else may read it");
    std::fs::rename(&path, &moved).unwrap();
    ramjet.signal("HUP");
    until("there is a new file", || async { count(&path, r#""journal":1"#) == 1 }).await;
    work(ramjet.api, 8, 12).await;
    ramjet.settled().await;
    let all = decisions(&ramjet).await;
    let written = || count(&path, r#""do":"place""#) + count(&moved, r#""do":"place""#);
    until("the second part is written", || async { written() >= all }).await;
    let (code, page, errors) = replay(&[&moved, &path], &[]);
    assert_eq!((code, errors.as_str()), (0, ""));
    assert_eq!((after(&page, "choices:"), after(&page, "moved:")), (all, 0), "{page}");
    assert!(after(&page, "alike:") == all && !page.contains("note:"), "{page}");
    // the second part alone can be read, and says what it lacks
    let (code, page, _) = replay(&[&path], &[]);
    assert!(code == 0 && page.contains("a file before theirs is not there"), "{page}");
    // and so it does after another file than the one that it goes on from
    let other = file("rotated-other");
    let text = std::fs::read_to_string(&moved).unwrap();
    let at = text.find(r#""run":""#).unwrap() + 7;
    std::fs::write(&other, format!("{}0123456789abcdef{}", &text[..at], &text[at + 16..])).unwrap();
    let (code, page, _) = replay(&[&other, &path], &[]);
    let said = format!("note: {} choices cannot be judged: a file before theirs", all - placed);
    assert!(code == 0 && page.contains(&said), "{page}");
    std::fs::remove_file(other).unwrap();
    for path in [path, moved] {
        std::fs::remove_file(path).unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_no_journal_is_said_in_one_line_and_a_disk_that_refuses_stops_nothing() {
    let engine = Engine::start().await;
    for (text, settings, code, said) in [
        ("", &[][..], 65, "no choice in it"),
        ("{\"journal\":1,\"part\":0}\nhello\n", &[], 65, ":2: it cannot be read at byte"),
        ("{\"journal\":2}\n", &[], 65, "another version"),
        ("{\"journal\":1,\"part\":0}\n", &["--policy", "best"], 64, "cost, affinity, load, round_robin"),
    ] {
        let path = file(&format!("none-{code}-{}", text.len()));
        std::fs::write(&path, text).unwrap();
        let (found, page, errors) = replay(&[&path], settings);
        assert_eq!((found, page.as_str(), errors.trim_end().lines().count()), (code, "", 1), "{text}: {errors}");
        assert!(errors.contains(said), "{errors}");
        std::fs::remove_file(path).unwrap();
    }
    assert_eq!(replay(&[Path::new("/nowhere/journal")], &[]).0, 66);
    let upstreams = [engine.addr];
    let config = "log: { journal: /dev/full }";
    let ramjet = Ramjet::start_with(Start { upstreams: &upstreams, config, ..Start::default() }).await;
    work(ramjet.api, 8, 5).await;
    ramjet.settled().await;
    until("it is counted", || async { ramjet.metric("ramjet_journal_lost_total").await > 0.0 }).await;
    assert_eq!(ramjet.metric("ramjet_journal_lines_total").await, 0.0);
}
