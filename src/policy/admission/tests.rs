//! What is let in and what is not.

use super::*;
use proptest::prelude::*;

fn identity() -> Identity {
    Identity {
        model: Some("m1".to_owned()),
        context: Some(4096),
        version: Some("0.32.0".to_owned()),
        document: Some(Document { path: "/id".to_owned(), sha256: [7; 32] }),
    }
}

fn advertised() -> Advertised {
    Advertised {
        models: vec![("other".to_owned(), Some(1)), ("m1".to_owned(), Some(4096))],
        version: Some("0.32.0".to_owned()),
        document: Some([7; 32]),
    }
}

fn part(of: &Advertised) -> Option<Part> {
    identity().judge(of).err().map(|m| m.part)
}

#[test]
fn every_part_counts_and_silence_is_a_difference() {
    assert_eq!(part(&advertised()), None);
    let all = advertised;
    let other = Some("0.32.1".to_owned());
    for (seen, wanted) in [
        (Advertised { models: vec![("m2".to_owned(), Some(4096))], ..all() }, Part::Model),
        (Advertised { models: vec![], ..all() }, Part::Model),
        (Advertised { models: vec![("m1".to_owned(), Some(8192))], ..all() }, Part::Context),
        (Advertised { models: vec![("m1".to_owned(), None)], ..all() }, Part::Context),
        (Advertised { version: other, ..all() }, Part::Version),
        (Advertised { version: None, ..all() }, Part::Version),
        (Advertised { document: Some([8; 32]), ..all() }, Part::Document),
        (Advertised { document: None, ..all() }, Part::Document),
    ] {
        assert_eq!(part(&seen), Some(wanted), "{seen:?}");
    }
}

#[test]
fn without_a_model_every_listed_one_must_have_the_context() {
    let only = Identity { context: Some(4096), ..Identity::default() };
    assert!(!only.is_empty() && Identity::default().is_empty());
    assert_eq!(only.judge(&advertised()).unwrap_err().found, "1");
    assert_eq!(only.judge(&Advertised::default()).unwrap_err().found, "nothing");
    assert_eq!(only.judge(&Advertised { models: vec![("x".to_owned(), Some(4096))], ..Advertised::default() }), Ok(()));
    assert_eq!(Identity::default().judge(&Advertised::default()), Ok(()));
}

#[test]
fn what_an_engine_says_is_repeated_in_short_and_without_line_ends() {
    let loud = Advertised { version: Some("a\nb".repeat(100)), ..advertised() };
    let shown = identity().judge(&loud).unwrap_err().to_string();
    assert!(shown.len() < 200 && !shown.contains('\n'), "{shown}");
    assert!(shown.starts_with("version: \"0.32.0\" is configured"), "{shown}");
}

fn differs() -> Seen {
    Seen::Said(identity().judge(&Advertised::default()))
}

#[test]
fn nobody_is_let_in_unseen_and_a_difference_shuts_out_at_once() {
    let mut a = Admission::new(true);
    assert_eq!(a.fence(), Some(FenceReason::IdentityUnknown));
    a.on(a.ask(), Seen::Late, 2);
    assert_eq!(a.fence(), Some(FenceReason::IdentityUnknown));
    a.on(a.ask(), Seen::Said(Ok(())), 2);
    assert_eq!(a.fence(), None);
    a.on(a.ask(), differs(), 2);
    assert_eq!(a.fence(), Some(FenceReason::IdentityModel));
    assert!(a.mismatch().is_some());
    // late is no reason to believe
    a.on(a.ask(), Seen::Late, 2);
    assert_eq!(a.fence(), Some(FenceReason::IdentityModel));
    a.on(a.ask(), Seen::Said(Ok(())), 2);
    assert_eq!(a.fence(), None);
}

#[test]
fn one_late_answer_is_forgiven_and_a_lost_engine_is_not() {
    let mut a = Admission::new(true);
    a.on(a.ask(), Seen::Said(Ok(())), 2);
    a.on(a.ask(), Seen::Late, 2);
    assert_eq!(a.fence(), None);
    a.on(a.ask(), Seen::Said(Ok(())), 2);
    a.on(a.ask(), Seen::Late, 2);
    assert_eq!(a.fence(), None);
    a.on(a.ask(), Seen::Late, 2);
    assert_eq!(a.fence(), Some(FenceReason::IdentityUnknown));
    a.on(a.ask(), Seen::Said(Ok(())), 2);
    a.on(a.ask(), Seen::Gone, 2);
    assert_eq!(a.fence(), Some(FenceReason::IdentityUnknown));
}

#[test]
fn an_answer_from_before_a_doubt_says_nothing() {
    let mut a = Admission::new(true);
    let before = a.ask();
    assert!(!a.doubt());
    a.on(before, Seen::Said(Ok(())), 2);
    assert_eq!(a.fence(), Some(FenceReason::IdentityUnknown));
    a.on(a.ask(), Seen::Said(Ok(())), 2);
    assert_eq!(a.fence(), None);
    assert!(a.doubt() && !a.doubt());
}

proptest! {
    #[test]
    fn who_is_let_in_has_said_so_since_the_last_doubt(ops in prop::collection::vec(0u8..6, 0..60)) {
        let (mut a, mut free) = (Admission::new(true), Admission::new(false));
        let (mut said, mut late) = (false, 0);
        for op in ops {
            let seen = match op {
                0 => { said = true; late = 0; Seen::Said(Ok(())) }
                1 => { said = false; differs() }
                2 => { late += 1; Seen::Late }
                3 => { said = false; Seen::Gone }
                _ => { said = false; a.doubt(); free.doubt(); continue }
            };
            a.on(a.ask(), seen.clone(), 3);
            free.on(free.ask(), seen, 3);
            said &= late < 3;
            prop_assert_eq!(a.fence().is_none(), said);
            prop_assert_eq!(free.fence(), None);
        }
    }
}
