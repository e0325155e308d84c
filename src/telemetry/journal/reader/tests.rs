//! What is written is read as it was, and nothing else is.

use super::super::lines::Scribe;
use super::*;
use proptest::prelude::*;

fn id() -> impl Strategy<Value = ReplicaId> {
    (0u16..40).prop_map(ReplicaId)
}

fn place() -> impl Strategy<Value = Option<Place>> {
    prop::option::of((any::<u64>(), 0u32..2000).prop_map(|(print, blocks)| Place { print, blocks }))
}

fn pools() -> impl Strategy<Value = Vec<Told>> {
    let held = (any::<u32>(), any::<bool>()).prop_map(|(tokens, is_whole)| Held { tokens, is_whole });
    let told = (any::<bool>(), prop::option::of(0.01f64..1.0), prop::option::of(held));
    prop::collection::btree_map(0u16..60, told, 0..30).prop_map(|all| {
        let told = |(id, told): (u16, (bool, Option<f64>, Option<Held>))| Told {
            id: ReplicaId(id),
            healthy: told.0,
            share: told.1.unwrap_or(1.0),
            stores: told.2,
            presumed: false,
        };
        let mut all: Vec<_> = all.into_iter().map(told).collect();
        if let Some(told) = all.iter_mut().find(|told| told.id.0 % 3 == 0) {
            told.presumed = true;
        }
        all
    })
}

fn choices() -> impl Strategy<Value = Choice> {
    let prompt = (any::<u64>(), prop::collection::vec(0u64..5, 0..9), place(), place(), any::<u32>(), any::<u32>());
    let request =
        (prop::option::of(0u32..3), any::<[bool; 4]>(), prop::option::of(any::<u64>()), prop::option::of(id()));
    let passed = (prop::option::of(id()), prop::option::of(id()), prop::collection::vec(id(), 0..3));
    let full = (prop::collection::vec(id(), 0..3), passed);
    let told = (any::<u64>(), pools(), full, id(), 0usize..Reason::ALL.len());
    let seen = (prop::collection::vec((id(), any::<u32>(), any::<u32>()), 0..5), 0.0f64..1e6, 0.0f64..1e6, 0.0f64..1e7);
    (prompt, request, told, seen).prop_map(|(prompt, request, told, seen)| Choice {
        request: prompt.0,
        // chained, as fingerprints are
        chain: prompt
            .1
            .iter()
            .scan(7u64, |last, n| {
                Some({
                    *last = *last * 31 + n;
                    *last
                })
            })
            .collect(),
        ends: Ends { previous: prompt.2, own: prompt.3 },
        body_bytes: prompt.4.into(),
        prompt_bytes: prompt.5.into(),
        model: request.0.map(|n| format!("secret-{n}")),
        streams: request.1[0],
        session: request.2.map(|key| Hint { key, source: if request.1[1] { Source::Named } else { Source::Derived } }),
        pinned: request.3,
        salt: told.0,
        pool: told.1,
        spared: Spared { picked: told.2.1.0, failed: told.2.1.1, refusing: told.2.1.2.into() },
        full: told.2.0,
        is_new_session: request.1[2],
        waits: request.1[3],
        first: told.3,
        reason: Reason::ALL[told.4],
        seen: seen.0,
        held: (seen.1, seen.2),
        ttft_ms: seen.3,
    })
}

/// What a choice is after it was written and read: hashed.
fn hashed(mut choice: Choice, models: &mut Vec<String>) -> Choice {
    let hashes = super::super::hashes::Hashes::new([9; 16]);
    let place = |place: Place| Place { print: hashes.hash(place.print), ..place };
    choice.chain = choice.chain.iter().map(|print| hashes.hash(*print)).collect();
    choice.ends = Ends { previous: choice.ends.previous.map(place), own: choice.ends.own.map(place) };
    choice.session = choice.session.map(|s| Hint { key: hashes.hash(s.key), ..s });
    choice.model = choice.model.map(|name| {
        let known = models.iter().position(|known| *known == name);
        let number = known.unwrap_or_else(|| {
            models.push(name);
            models.len() - 1
        });
        format!("m{number}")
    });
    choice
}

fn written(scribe: &mut Scribe, change: Change) -> String {
    scribe.out.clear();
    scribe.stage(&Stage { at: 0.1 + 0.2, changes: vec![change] });
    String::from_utf8(scribe.out.clone()).unwrap()
}

proptest! {
    #[test]
    fn choices_are_read_as_they_were_written(choices in prop::collection::vec(choices(), 1..12)) {
        let (mut scribe, mut reader, mut models) = (Scribe::new([9; 16]), Reader::default(), Vec::new());
        for choice in choices {
            let line = written(&mut scribe, Change::Placed(Box::new(choice.clone())));
            let strict: serde_json::Value = serde_json::from_str(&line).unwrap();
            prop_assert_eq!(strict["blocks"].as_u64(), Some(choice.chain.len() as u64));
            prop_assert!(!line.contains("secret"));
            let want = Change::Placed(Box::new(hashed(choice, &mut models)));
            prop_assert_eq!(reader.line(line.trim_end()), Ok(Line::Step(Stage { at: 0.1 + 0.2, changes: vec![want] })));
        }
    }

    #[test]
    fn no_line_makes_it_stumble(text in "\\PC*", cut in 0usize..900, choice in choices()) {
        let mut reader = Reader::default();
        let _any = reader.line(&text);
        let line = written(&mut Scribe::new([9; 16]), Change::Placed(Box::new(choice)));
        let cut = &line.trim_end()[..cut.min(line.len() - 2)];
        prop_assert!(reader.line(cut).is_err());
    }
}

#[test]
fn a_line_takes_no_more_memory_than_a_fleet_may_have_members() {
    let choice = |pool: &str| {
        format!(
            r#"{{"t":1,"do":"place","r":"01","to":0,"reason":"cold","body":1,"prompt":1,"model":null,"streams":false,"turn":0,"blocks":0,"known":0,"after":null,"new":"","before":null,"end":null,"session":null,"named":false,"is_new":false,"pinned":null,"pool":"{pool}","held":0,"tokens":0,"ttft":0,"waits":false}}"#
        )
    };
    let pool = |text: &str| match Reader::default().line(&choice(text)) {
        Ok(Line::Step(stage)) => match &stage.changes[0] {
            Change::Placed(choice) => Ok(choice.pool.len()),
            other => panic!("{other:?}"),
        },
        other => Err(other),
    };
    assert_eq!((pool("0-65535"), pool("3,0-1"), pool("")), (Ok(1 << 16), Ok(3), Ok(0)));
    assert_eq!(pool(&["0-65535"; 4000].join(",")), Err(Err(missing("pool"))));
}

/// One of each kind but choices.
fn changes() -> Vec<Change> {
    let served = Served { prompt: 10.5, cached: 1.0 / 3.0, output: 0.0 };
    let params = Params {
        policy: PolicyKind::Affinity,
        affinity: AffinityParams { basis: Basis::Marginal, cap_blocks: 7, alpha: 0.1 },
        load: LoadParams { unit_bytes: 1, max_units: 2, block_bytes: 3 },
        flight: FlightParams { mode: FlightMode::Hold, min_blocks: 4, max_hold_ms: 5.5 },
    };
    let ending = Ending {
        word: "client_left".into(),
        status: 499,
        attempts: 2,
        usage: [Some(1), None, Some(3)],
        ttft_ms: Some(4.25),
        ms: 1e-3,
    };
    let lane = Lane { over: 9, short: ShortPrompts::Avoid };
    let seat = Seat { in_lane: true };
    let (r, id) = (u64::MAX, ReplicaId(3));
    let shares = [Share::Read, Share::Done, Share::Silent, Share::Shrunk, Share::Freed];
    let changes = [
        Change::Ruled(Box::new(Ruled { params, lane: Some(lane) })),
        Change::Ruled(Box::new(Ruled { params, lane: None })),
        Change::Allowed(1 << 40),
        Change::Seated(id, seat),
        Change::Reseated(id, Seat::default()),
        Change::Vacated(id),
        Change::Capacity(id, 77),
        Change::Forgot(id),
        Change::Restarted(id),
        Change::Inherited,
        Change::Heard,
        Change::Model(Some("a".to_owned()), 1, 2, Some(3)),
        Change::Model(None, 1, 2, None),
        Change::Taken(r, id),
        Change::Claimed(r, id),
        Change::Claim(r, Hold::Held),
        Change::Claim(r, Hold::Answered(0.1, 7.0)),
        Change::Claim(r, Hold::Served(served)),
        Change::Claim(r, Hold::Left),
        Change::Rates(id, Seen { prefill: Some((1.0, 2.5, 1e9)), step: None }),
        Change::Rates(id, Seen { prefill: None, step: Some((3.0, 0.25)) }),
        Change::Ended(r, ending),
        Change::Ended(0, Ending::default()),
    ];
    changes.into_iter().chain(shares.map(|share| Change::Reserved(r, share))).collect()
}

#[test]
fn every_change_is_read_as_it_was_written() {
    let (mut scribe, mut reader) = (Scribe::new([9; 16]), Reader::default());
    for change in changes() {
        let line = written(&mut scribe, change.clone());
        let _strict: serde_json::Value = serde_json::from_str(&line).unwrap();
        let want = match change {
            Change::Model(Some(_), bytes, prompt, output) => {
                Change::Model(Some("m0".to_owned()), bytes, prompt, output)
            }
            other => other,
        };
        let read = reader.line(line.trim_end());
        assert_eq!(read, Ok(Line::Step(Stage { at: 0.1 + 0.2, changes: vec![want] })), "{line}");
    }
    scribe.out.clear();
    scribe.head(1.5);
    scribe.lost(3);
    scribe.over();
    scribe.turn_the_page();
    scribe.head(2.5);
    let lines = String::from_utf8(scribe.out.clone()).unwrap();
    let lines: Vec<_> = lines.lines().map(|line| reader.line(line).unwrap()).collect();
    let [Line::Head(first), Line::Lost(3), Line::Over, Line::Head(second)] = &lines[..] else { panic!("{lines:?}") };
    assert!((first.number, first.run.is_some()) == (0, true) && second.follows(*first) && !first.follows(*second));
    let other = Part { run: Some(7), ..*second };
    assert!(!other.follows(*first));
}
