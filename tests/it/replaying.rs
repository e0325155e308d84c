//! Replays of journals in which more happens than requests: not all may run, members come and go, and processes follow one
//! another. All choices come out the same, or it is said which cannot be judged and why.

use crate::journal::{after, all_written, count, file, replay, work};
use crate::support::engine::Engine;
use crate::support::ramjet::{Ramjet, Start};
use crate::support::unit::Unit;
use crate::support::until;
use std::net::SocketAddr;
use tokio::task::JoinSet;

fn all_work(api: SocketAddr, workers: usize, turns: usize) -> JoinSet<()> {
    let mut all = JoinSet::new();
    (0..workers).for_each(|worker| drop(all.spawn(work(api, worker, turns))));
    all
}

/// What a report says of a journal under the settings that were in force: all choices, and that all are the same.
fn assert_same(name: &str, page: &str, placed: usize) {
    assert_eq!((after(page, "choices:"), after(page, "moved:")), (placed, 0), "{name}: {page}");
    assert!(after(page, "alike:") == placed && !page.contains("note:") && !page.contains("judged:"), "{name}: {page}");
}

#[tokio::test(flavor = "multi_thread")]
async fn choices_of_requests_that_had_to_wait_come_out_the_same() {
    for (name, routing) in
        [("cost", "{ policy: cost }"), ("affinity", "{ policy: affinity }"), ("load", "{ policy: load }")]
    {
        let engines = [Engine::start().await, Engine::start().await, Engine::start().await];
        let path = file(&format!("gate-{name}"));
        let config = format!(
            "routing: {routing}\nlog: {{ access: off, journal: {} }}\n\
             limits: {{ inflight: 5, inflight_per_replica: 2, queue: {{ size: 64, wait: 60s }} }}\n",
            path.display()
        );
        let upstreams = engines.each_ref().map(|engine| engine.addr);
        let ramjet = Ramjet::start_with(Start { upstreams: &upstreams, config: &config, ..Start::default() }).await;
        all_work(ramjet.api, 12, 12).join_all().await;
        let placed = all_written(&ramjet, &path).await;
        assert!(ramjet.metric("ramjet_queue_wait_seconds_count").await > 5.0, "some had to wait");
        let (code, page, errors) = replay(&[&path], &[]);
        assert_eq!((code, errors.as_str()), (0, ""), "{name}");
        assert_same(name, &page, placed);
        std::fs::remove_file(path).unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn choices_among_members_that_come_and_go_come_out_the_same() {
    for (name, routing) in [("cost", "{ policy: cost }"), ("affinity", "{ policy: affinity }")] {
        let engines = [Engine::start().await, Engine::start().await, Engine::start().await, Engine::start().await];
        let [a, b, c, d] = engines.each_ref().map(|engine| engine.addr);
        let path = file(&format!("members-{name}"));
        let config = format!("routing: {routing}\nlog: {{ access: off, journal: {} }}\n", path.display());
        let among = |members: &[SocketAddr], lane: bool| {
            let lane = if lane { ", lane: long" } else { "" };
            members.iter().map(|addr| format!("{{ url: \"http://{addr}\"{lane} }}")).collect::<Vec<_>>()
        };
        let first = among(&[a, b, c], false);
        let start = Start { replicas: &first, config: &config, ..Start::default() };
        let ramjet = Ramjet::start_with(start).await;
        let mut all = all_work(ramjet.api, 8, 24);
        let mut ended = 0.0;
        for (members, lane) in
            [(&[a, c, d][..], false), (&[d, a], false), (&[b, a, d, c], false), (&[c, b], true), (&[a, b, c], false)]
        {
            ended += 25.0;
            until("some have ended", || async { ramjet.metric("ramjet_requests_total").await > ended }).await;
            let members = among(members, lane);
            ramjet.rewrite(&Start { replicas: &members, ..start });
            assert_eq!(ramjet.reload().await.status, 200);
        }
        while all.join_next().await.is_some() {}
        // while requests are there a place is kept for who comes back
        let rest = among(&[a], false);
        ramjet.rewrite(&Start { replicas: &rest, ..start });
        until("places are given up", || async {
            ramjet.reload().await.status == 200 && count(&path, r#""do":"vacate""#) >= 2
        })
        .await;
        ramjet.rewrite(&Start { replicas: &first, ..start });
        assert_eq!(ramjet.reload().await.status, 200);
        all_work(ramjet.api, 4, 6).join_all().await;
        let placed = all_written(&ramjet, &path).await;
        assert!(count(&path, r#""do":"seat""#) >= 5);
        let (code, page, errors) = replay(&[&path], &[]);
        assert_eq!((code, errors.as_str()), (0, ""), "{name}");
        assert_same(name, &page, placed);
        std::fs::remove_file(path).unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn after_an_upgrade_it_is_said_which_choices_cannot_be_judged() {
    let (a, b) = (Engine::start().await, Engine::start().await);
    let path = file("followed");
    let replicas = [a.addr, b.addr].map(|addr| format!("{{ url: \"http://{addr}\" }}"));
    let more = format!("log: {{ access: off, journal: {} }}\n", path.display());
    let unit = Unit::start(&replicas, "", &more).await;
    all_work(unit.api, 4, 9).join_all().await;
    let placed = || count(&path, r#""do":"place""#);
    until("all is written", || async { placed() >= 4 * 9 }).await;
    unit.upgrade(&[]).await;
    until("who went has said so", || async { count(&path, r#""do":"over""#) == 1 }).await;
    let before = placed();
    all_work(unit.api, 4, 9).join_all().await;
    until("all is written", || async { placed() >= before + 4 * 9 }).await;
    let (code, page, errors) = replay(&[&path], &[]);
    assert_eq!((code, errors.as_str()), (0, ""));
    assert_eq!((after(&page, "choices:"), after(&page, "judged:")), (placed(), before), "{page}");
    assert!(page.contains(" 0 of them moved"), "{page}");
    let said = format!("note: {} choices cannot be judged: their process had taken over", placed() - before);
    assert!(page.contains(&said), "{page}");
    std::fs::remove_file(path).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn after_a_gap_it_is_said_which_choices_cannot_be_judged() {
    let (a, b) = (Engine::start().await, Engine::start().await);
    let path = file("gap");
    let config = format!("log: {{ access: off, journal: {} }}\n", path.display());
    let upstreams = [a.addr, b.addr];
    let ramjet = Ramjet::start_with(Start { upstreams: &upstreams, config: &config, ..Start::default() }).await;
    all_work(ramjet.api, 4, 9).join_all().await;
    let placed = all_written(&ramjet, &path).await;
    let text = std::fs::read_to_string(&path).unwrap();
    let mut lines: Vec<&str> = text.lines().collect();
    // as the writer says it
    let place = lines.iter().enumerate().filter(|(_, line)| line.contains(r#""do":"place""#)).nth(10).unwrap().0;
    lines.insert(place, r#"{"do":"lost","steps":3}"#);
    std::fs::write(&path, lines.join("\n") + "\n").unwrap();
    let (code, page, _) = replay(&[&path], &[]);
    assert_eq!((code, after(&page, "choices:"), after(&page, "judged:")), (0, placed, 10), "{page}");
    assert!(page.contains(&format!("note: {} choices cannot be judged: 3 steps before them", placed - 10)), "{page}");
    // what other routers have told
    lines[place] = r#"{"t":0,"do":"heard"}"#;
    std::fs::write(&path, lines.join("\n") + "\n").unwrap();
    let (code, page, _) = replay(&[&path], &[]);
    assert_eq!((code, after(&page, "choices:"), after(&page, "judged:")), (0, placed, 10), "{page}");
    assert!(page.contains(&format!("note: {} choices cannot be judged: their process went by", placed - 10)), "{page}");
    // a beginning that is missing: all
    std::fs::write(&path, text.replacen(r#""part":0"#, r#""part":1"#, 1)).unwrap();
    let (code, page, _) = replay(&[&path], &[]);
    assert_eq!((code, after(&page, "judged:")), (0, 0), "{page}");
    assert!(
        page.contains(&format!("note: {placed} choices cannot be judged: a file before theirs is not there")),
        "{page}"
    );
    std::fs::remove_file(path).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn of_several_journals_the_time_adds_up_and_other_rules_are_told() {
    let engine = Engine::start().await;
    let mut paths = Vec::new();
    for policy in ["cost", "affinity"] {
        let path = file(&format!("rules-{policy}"));
        let config = format!("routing: {{ policy: {policy} }}\nlog: {{ access: off, journal: {} }}\n", path.display());
        let start = Start { upstreams: &[engine.addr], config: &config, ..Start::default() };
        let ramjet = Ramjet::start_with(start).await;
        all_work(ramjet.api, 2, 9).join_all().await;
        all_written(&ramjet, &path).await;
        paths.push(path);
    }
    let seconds = |page: &str| {
        let line = page.lines().find(|line| line.starts_with("choices:")).unwrap();
        line.split_whitespace().nth(3).unwrap().parse::<f64>().unwrap()
    };
    let alone = |path| seconds(&replay(&[path], &[]).1);
    let (code, page, _) = replay(&[&paths[0], &paths[1]], &[]);
    assert!(code == 0 && page.contains("note: rules were changed once: those above are the last ones"), "{page}");
    // to the digit that is shown
    assert!((alone(&paths[0]) + alone(&paths[1]) - seconds(&page)).abs() < 0.2, "{page}");
    assert!(!replay(&[&paths[0]], &[]).1.contains("rules were changed"));
    paths.iter().for_each(|path| std::fs::remove_file(path).unwrap());
}
