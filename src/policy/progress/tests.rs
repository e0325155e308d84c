//! What is frozen, and what only takes its time.

use super::super::backlog::Backlog;
use super::*;
use proptest::prelude::*;

const L: Limits = Limits { silence_ms: 1000.0, factor: 3.0 };
const STREAM: Expected = Expected { prefill_ms: 20.0, whole_ms: 20.0, decode_ms: 2000.0, streams: true };

/// A watch with one request begun at 0.
fn one(expected: Expected) -> (Watch, Ticket) {
    let mut watch = Watch::default();
    let ticket = Backlog::default().begin(0.0, expected.prefill_ms, expected.streams);
    watch.begin(ticket, 0.0, expected);
    (watch, ticket)
}

/// When it is fenced, if every question is open for 1500 ms or until there can be a verdict, and brings `reply`.
fn frozen_at(watch: &mut Watch, reply: Reply, until: f64) -> Option<f64> {
    let (mut asked, mut now) = (Asked::default(), 0.0);
    while now < until {
        now += 250.0;
        let signs = watch.signs(now).unwrap();
        if !asked.is_due(signs, L, false) {
            continue;
        }
        now += if reply == Reply::Silent { signs.left_ms(L, false).clamp(1500.0, 12_000.0) } else { 10.0 };
        if asked.on(reply, watch.signs(now).unwrap(), L, false) {
            return Some(now);
        }
        if reply == Reply::Alive {
            watch.hear(now);
        }
    }
    None
}

#[test]
fn a_frozen_engine_is_known_within_three_seconds() {
    let (mut watch, _) = one(STREAM);
    assert_eq!(frozen_at(&mut watch, Reply::Silent, 60_000.0), Some(2500.0));
}

#[test]
fn under_load_a_freeze_is_known_within_three_seconds_of_the_last_token_whenever_it_comes() {
    // what a busy engine shows: streams, a token every 40 ms, now and then nothing for as long as a prompt takes
    for (pauses_ms, freezes_at) in (0..40).map(|n| (f64::from(n) * 25.0, f64::from(n) * 137.0 + 5000.0)) {
        let (mut watch, mut backlog, mut now, mut last) = (Watch::default(), Backlog::default(), 0.0, 0.0);
        let mut begin = |watch: &mut Watch, now: f64| {
            let ticket = backlog.begin(now, 20.0, true);
            watch.begin(ticket, now, STREAM);
            ticket
        };
        for _ in 0..8 {
            let ticket = begin(&mut watch, now);
            watch.first_token(ticket, now, 20.0);
        }
        while now < freezes_at {
            now += if now % 2000.0 < 1900.0 { 40.0 } else { pauses_ms.max(40.0) };
            watch.hear_after(last, now);
            last = now;
        }
        // the next requests pile up before it
        (0..4).for_each(|n| _ = begin(&mut watch, last + f64::from(n) * 30.0));
        // the watchdog looks every 200 ms at the latest, and the question it puts is open for 1500 ms
        let (mut asked, mut now) = (Asked::default(), last);
        let noticed = loop {
            now += 200.0;
            let signs = watch.signs(now).unwrap();
            if asked.is_due(signs, L, false) {
                now += signs.left_ms(L, false).clamp(1500.0, 12_000.0);
                if asked.on(Reply::Silent, watch.signs(now).unwrap(), L, false) {
                    break now;
                }
            }
        };
        assert!(noticed - last <= 3000.0, "{pauses_ms} {freezes_at} {}", noticed - last);
    }
}

#[test]
fn clients_that_give_up_do_not_hide_it() {
    let mut backlog = Backlog::default();
    let mut watch = Watch::default();
    for n in 0..5 {
        let now = f64::from(n) * 400.0;
        let ticket = backlog.begin(now, 20.0, true);
        watch.begin(ticket, now, STREAM);
        watch.end(ticket, now + 300.0);
    }
    let ticket = backlog.begin(2000.0, 20.0, true);
    watch.begin(ticket, 2000.0, STREAM);
    // the time without requests does not count
    assert_eq!(watch.signs(2000.0).unwrap().silence_ms, 1500.0);
}

#[test]
fn a_prompt_that_takes_minutes_is_waited_for() {
    let (mut watch, ticket) = one(Expected { prefill_ms: 300_000.0, ..STREAM });
    // an engine that reads one prompt after another: the question waits behind it
    assert_eq!(frozen_at(&mut watch, Reply::Silent, 1_200_000.0), None);
    watch.first_token(ticket, 1_200_000.0, 1_200_000.0);
    assert!(watch.signs(1_200_001.0).unwrap().silence_ms < 2.0);
}

#[test]
fn a_long_prompt_whose_cache_was_emptied_is_waited_for_and_one_that_is_read_is_not() {
    let (mut watch, ticket) = one(Expected { whole_ms: 300_000.0, ..STREAM });
    assert_eq!(frozen_at(&mut watch.clone(), Reply::Silent, 60_000.0), Some(2500.0), "it was there");
    let mut is_read = watch.clone();
    is_read.first_token(ticket, 10.0, 10.0);
    for watch in [&mut watch, &mut is_read] {
        watch.emptied();
    }
    assert_eq!(frozen_at(&mut watch, Reply::Silent, 1_200_000.0), None);
    assert!(frozen_at(&mut is_read, Reply::Silent, 60_000.0).is_some());
    // whole is never less than what was expected
    let (mut watch, _) = one(Expected { prefill_ms: 300_000.0, ..STREAM });
    watch.emptied();
    assert_eq!(frozen_at(&mut watch, Reply::Silent, 1_200_000.0), None);
}

#[test]
fn an_answer_that_shows_nothing_is_being_generated_when_all_prompts_have_had_their_time() {
    let (mut watch, mut backlog) = (Watch::default(), Backlog::default());
    let mut begin = |now: f64, prefill_ms: f64, streams: bool| {
        let ticket = backlog.begin(now, prefill_ms, streams);
        watch.begin(ticket, now, Expected { prefill_ms, streams, ..STREAM });
        ticket
    };
    let [first, stream, second] = [begin(0.0, 100.0, false), begin(10.0, 50.0, true), begin(20.0, 300.0, false)];
    let may = |watch: &Watch, ticket| [100.0, 201.0, 449.0, 751.0].map(|now| watch.may_generate(ticket, now));
    assert_eq!(may(&watch, first), [false, true, true, true]);
    assert_eq!((may(&watch, stream), may(&watch, second)), ([false; 4], [false, false, false, true]));
    // what is known to be read takes nobody's time
    watch.first_token(stream, 150.0, 50.0);
    assert!(watch.may_generate(second, 701.0) && !watch.may_generate(second, 699.0));
    watch.emptied();
    watch.end(second, 900.0);
    assert!(!watch.may_generate(second, 1e9));
}

#[test]
fn who_answers_is_not_frozen_and_asked_less_and_less() {
    let (watch, _) = one(STREAM);
    assert_eq!(frozen_at(&mut watch.clone(), Reply::Alive, 3_600_000.0), None);
    let mut asked = Asked::default();
    let signs = |silence_ms| Signs { silence_ms, ..watch.signs(0.0).unwrap() };
    assert!(asked.is_due(signs(1000.0), L, false));
    asked.on(Reply::Alive, signs(1000.0), L, false);
    assert!(!asked.is_due(signs(1999.0), L, false) && asked.is_due(signs(2000.0), L, false));
}

#[test]
fn a_long_answer_that_is_not_streamed_is_no_silence_of_the_engine() {
    let whole = Expected { streams: false, ..STREAM };
    let (mut watch, _) = one(whole);
    // it may be busy with just that
    assert!(frozen_at(&mut watch, Reply::Silent, 600_000.0).unwrap() > 40_000.0);
    // one that serves several at once would have answered
    let mut backlog = Backlog::default();
    let mut watch = Watch::default();
    for _ in 0..2 {
        let ticket = backlog.begin(0.0, 20.0, true);
        watch.begin(ticket, 0.0, STREAM);
        watch.first_token(ticket, 0.0, 20.0);
    }
    watch.open.clear();
    watch.begin(backlog.begin(0.0, 20.0, false), 0.0, whole);
    assert_eq!(frozen_at(&mut watch, Reply::Silent, 600_000.0), Some(2500.0));
}

#[test]
fn a_question_that_waits_for_its_turn_says_nothing() {
    let (mut watch, ticket) = one(Expected { prefill_ms: 1000.0, ..STREAM });
    let explains = |watch: &Watch, now| watch.signs(now).unwrap().explain(2000.0, L);
    // a prompt of a second, up to four times as late as expected, and three times that
    assert!(explains(&watch, 11_999.0) && !explains(&watch, 12_000.0));
    watch.heard_by(12_000.0);
    watch.first_token(ticket, 12_000.0, 100.0);
    // it generates, and was never seen to do two things at once
    assert!(explains(&watch, 13_999.0) && !explains(&watch, 14_000.0));
    watch.together = 2;
    assert!(!explains(&watch, 13_000.0));
}

#[test]
fn where_everybody_waits_long_it_takes_longer_and_that_is_forgotten() {
    let waits = |waits: &[f64]| {
        let (mut watch, mut backlog) = (Watch::default(), Backlog::default());
        let mut now = -1e9;
        for wait in waits {
            let ticket = backlog.begin(now, 20.0, true);
            watch.begin(ticket, now, STREAM);
            now += *wait;
            watch.first_token(ticket, now, *wait);
            watch.end(ticket, now);
        }
        watch.begin(backlog.begin(0.0, 20.0, true), 0.0, STREAM);
        frozen_at(&mut watch, Reply::Silent, 60_000.0).unwrap()
    };
    assert!(waits(&[300.0; 5]) <= 3000.0);
    assert!(waits(&[300.0, 4000.0, 300.0]) > 9000.0);
    assert!(waits(&[&[4000.0][..], &[300.0; 60]].concat()) <= 3000.0);
}

#[test]
fn what_piles_up_before_a_frozen_engine_makes_nobody_more_patient() {
    let frozen = |late: &[f64]| {
        let (mut watch, mut backlog) = (Watch::default(), Backlog::default());
        let mut begin = |now, prefill_ms| {
            let ticket = backlog.begin(now, prefill_ms, true);
            watch.begin(ticket, now, Expected { prefill_ms, ..STREAM });
        };
        let early = [(0.0, 100.0), (100.0, 100.0)];
        early.into_iter().chain(late.iter().map(|prefill| (500.0, *prefill))).for_each(|(now, ms)| begin(now, ms));
        frozen_at(&mut watch, Reply::Silent, 1e7).unwrap()
    };
    // three prompts of a tenth of a second, up to four times as late, and three times that
    assert_eq!(frozen(&[100.0]), 3600.0);
    assert_eq!(frozen(&[100.0; 30]), 3600.0);
    // a long one may have been begun with
    assert!(frozen(&[100.0, 60_000.0]) > 720_000.0);
}

#[test]
fn a_long_wait_while_others_generate_makes_nobody_more_patient() {
    let usual = |others: bool| {
        let (mut watch, mut backlog) = (Watch::default(), Backlog::default());
        let [other, late] = [0.0, 0.0].map(|now| backlog.begin(now, 20.0, true));
        watch.begin(other, 0.0, STREAM);
        watch.first_token(other, 20.0, 20.0);
        watch.begin(late, 30.0, STREAM);
        let mut now = 30.0;
        while others && now < 8000.0 {
            now += 100.0;
            watch.hear_after(now - 100.0, now);
        }
        watch.first_token(late, 8000.0, 7970.0);
        watch.signs(8000.0).unwrap().usual_ms
    };
    assert!(usual(true) < 200.0 && usual(false) > 7900.0);
}

#[test]
fn what_was_generated_between_two_looks_was_no_silence() {
    let (mut watch, _) = one(STREAM);
    watch.hear_after(400.0, 500.0);
    // a look at half past five, and a stroke of work after it
    watch.heard_by(5500.0);
    watch.hear_after(9000.0, 9060.0);
    assert_eq!(watch.signs(9060.0).unwrap().usual_ms, 100.0);
    // idle time is none
    let mut watch = Watch::default();
    let ticket = Backlog::default().begin(50_000.0, 20.0, true);
    watch.begin(ticket, 50_000.0, STREAM);
    watch.hear_after(10.0, 50_070.0);
    assert_eq!(watch.signs(50_070.0).unwrap().usual_ms, 70.0);
}

#[test]
fn where_others_are_silent_too_it_takes_longer() {
    let (watch, _) = one(STREAM);
    let mut asked = Asked::default();
    assert!(!asked.on(Reply::Silent, watch.signs(1900.0).unwrap(), L, true));
    assert!(asked.on(Reply::Silent, watch.signs(2500.0).unwrap(), L, true));
}

#[test]
fn an_engine_that_refuses_the_question_is_never_frozen_and_asked_less_and_less() {
    // a tool call that is kept back until it is whole, or a client that reads no further, and a key that ramjet lacks
    for expected in [STREAM, Expected { streams: false, ..STREAM }] {
        let (watch, _) = one(expected);
        let (mut asked, mut times) = (Asked::default(), 0);
        for look in 1..100_000 {
            let signs = watch.signs(f64::from(look) * 200.0).unwrap();
            if asked.is_due(signs, L, false) {
                times += 1;
                assert!(!asked.on(Reply::Unknown, signs, L, false), "{expected:?}");
            }
        }
        assert!((10..20).contains(&times), "{times}");
    }
}

/// A watch that has seen so many streams at once, which have ended.
fn seen_together(streams: usize) -> (Watch, Backlog) {
    let (mut watch, mut backlog) = (Watch::default(), Backlog::default());
    let tickets: Vec<_> = (0..streams).map(|_| backlog.begin(0.0, 20.0, true)).collect();
    tickets.iter().for_each(|ticket| watch.begin(*ticket, 0.0, STREAM));
    tickets.iter().for_each(|ticket| watch.first_token(*ticket, 0.0, 20.0));
    tickets.iter().for_each(|ticket| watch.end(*ticket, 0.0));
    (watch, backlog)
}

#[test]
fn a_batch_full_of_answers_that_show_nothing_explains_a_question_that_waits() {
    let whole = Expected { prefill_ms: 60.0, whole_ms: 60.0, decode_ms: 20_000.0, streams: false };
    let with_backlog = |streams, wholes| {
        let (mut watch, mut backlog) = seen_together(streams);
        (0..wholes).for_each(|_| watch.begin(backlog.begin(0.0, 60.0, false), 0.0, whole));
        (watch, backlog)
    };
    let filled = |streams, wholes| with_backlog(streams, wholes).0;
    // a long answer takes 160 s, and three times that
    let until = 450_000.0;
    assert_eq!(frozen_at(&mut filled(8, 300), Reply::Silent, until), None);
    assert!(filled(8, 300).signs(until).unwrap().explain(20_000.0, L));
    // where twice as many ran at once, there was room for a question
    assert!(frozen_at(&mut filled(16, 8), Reply::Silent, until).unwrap() < 10_000.0);
    assert!(!filled(16, 8).signs(60_000.0).unwrap().explain(20_000.0, L));
    // streams that stop in the middle of their answers show it, however full the batch is
    let (mut stopped, mut backlog) = with_backlog(8, 30);
    for _ in 0..2 {
        let ticket = backlog.begin(0.0, 20.0, true);
        stopped.begin(ticket, 0.0, STREAM);
        stopped.first_token(ticket, 0.0, 20.0);
    }
    assert!(frozen_at(&mut stopped, Reply::Silent, until).unwrap() < 30_000.0);
}

#[test]
fn refusals_are_no_silence_of_the_engine() {
    let (mut watch, mut backlog) = (Watch::default(), Backlog::default());
    let mut request = |watch: &mut Watch, from: f64, until: f64, is_answered: bool| {
        let ticket = backlog.begin(from, 20.0, true);
        watch.begin(ticket, from, STREAM);
        if is_answered {
            watch.is_answered(ticket);
        }
        watch.end(ticket, until);
    };
    // an agent at its context limit
    (0..200).for_each(|n| request(&mut watch, f64::from(n) * 200.0, f64::from(n) * 200.0 + 100.0, true));
    let silence = |mut watch: Watch, now: f64| {
        watch.begin(Backlog::default().begin(now, 20.0, true), now, STREAM);
        watch.signs(now).unwrap().silence_ms
    };
    assert_eq!(silence(watch.clone(), 40_000.0), 0.0);
    // clients that leave say something, and a refusal between them does not hide it
    request(&mut watch, 40_000.0, 47_000.0, false);
    request(&mut watch, 47_000.0, 47_100.0, true);
    request(&mut watch, 47_200.0, 50_200.0, false);
    assert_eq!(silence(watch.clone(), 51_000.0), 10_000.0);
    // and so long ago that it says nothing any more
    assert_eq!(silence(watch, 51_000.0 + FORGIVE_MS), 0.0);
}

proptest! {
    #[test]
    fn any_sign_of_progress_ends_the_silence(ops in prop::collection::vec((0u8..4, 0usize..6, 0.0f64..900.0), 1..80)) {
        let (mut backlog, mut watch, mut live, mut now) = (Backlog::default(), Watch::default(), Vec::new(), 0.0);
        for (op, pick, time) in ops {
            now += time;
            match op {
                0 => {
                    let ticket = backlog.begin(now, time, true);
                    watch.begin(ticket, now, Expected { prefill_ms: time, ..STREAM });
                    live.push(ticket);
                }
                1 => if let Some(t) = live.get(pick) { watch.first_token(*t, now, time) },
                2 => watch.hear(now),
                _ => if pick < live.len() { watch.end(live.swap_remove(pick), now) },
            }
            prop_assert_eq!(watch.signs(now).is_some(), !live.is_empty());
            let silence = watch.signs(now).map_or(0.0, |s| s.silence_ms);
            prop_assert!((0.0..=now).contains(&silence));
            prop_assert!(op != 2 || silence == 0.0 || live.is_empty());
            prop_assert!((1.0..=LATEST).contains(&watch.lateness));
        }
    }
}
