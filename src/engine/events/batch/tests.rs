//! Batches as engines send them, and everything that is none.

use super::*;
use proptest::prelude::*;

fn bytes(hex: &str) -> Vec<u8> {
    let digit = |at: usize| u8::from_str_radix(&hex[at..at + 2], 16).unwrap();
    (0..hex.len()).step_by(2).map(digit).collect()
}

/// As vLLM 0.32 publishes: a removal, two stored blocks with 64 tokens, and a clearing, of rank 0.
const MAPS: &str = "93cb3ff80000000000009384a474797065ac426c6f636b52656d6f766564ac626c6f636b5f68617368657391cf37586c3f8aaad2daa66d656469\
756da3475055a967726f75705f696478008ba474797065ab426c6f636b53746f726564ac626c6f636b5f6861736865739201cf8000000000000005b1706172656e74\
5f626c6f636b5f68617368c0a9746f6b656e5f696473dc0040000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f202122232425262728\
292a2b2c2d2e2f303132333435363738393a3b3c3d3e3faa626c6f636b5f73697a6520a76c6f72615f6964c0a66d656469756da3475055a96c6f72615f6e616d65c0\
aa65787472615f6b65797392c0c0a967726f75705f69647800b26b765f63616368655f737065635f6b696e64ae66756c6c5f617474656e74696f6e81a474797065b0\
416c6c426c6f636b73436c656172656400";

/// As older versions and SGLang publish: lists, signed names, a name in bytes, and a kind that nobody knows.
const LISTS: &str = "92cb3ff80000000000009496ab426c6f636b53746f72656491f9f792010210c092ac426c6f636b52656d6f76656491c4200101010101010101010101010101\
01010101010101010101010101010101010191b0416c6c426c6f636b73436c656172656493a34e65770181a1619101";

#[test]
fn a_batch_of_maps_is_what_it_says() {
    let stored = Event::Stored { blocks: vec![1, (1 << 63) + 5], after: None, tokens: 32 };
    let events = vec![Event::Removed(vec![3_988_056_490_201_764_570]), stored, Event::Cleared];
    assert_eq!(read(&bytes(MAPS)), Ok(Batch { events, rank: Some(0) }));
}

#[test]
fn a_batch_of_lists_is_too() {
    let stored =
        Event::Stored { blocks: vec![(-7i64).cast_unsigned()], after: Some((-9i64).cast_unsigned()), tokens: 16 };
    let events = vec![stored, Event::Removed(vec![xxh3_64(&[1; 32])]), Event::Cleared, Event::Other];
    assert_eq!(read(&bytes(LISTS)), Ok(Batch { events, rank: None }));
}

#[test]
fn what_is_said_of_other_memory_or_other_layers_is_left_out() {
    let gpu = bytes(MAPS);
    let at = gpu.windows(3).position(|w| w == b"GPU").unwrap();
    let mut cpu = gpu.clone();
    cpu[at..at + 3].copy_from_slice(b"CPU");
    assert_eq!(read(&cpu).unwrap().events[0], Event::Other);
    let group = gpu.windows(10).position(|w| w == b"\xa9group_idx").unwrap() + 10;
    let mut other = gpu;
    other[group] = 1;
    assert_eq!(read(&other).unwrap().events[0], Event::Other);
}

#[test]
fn a_batch_that_breaks_off_anywhere_is_none_and_neither_are_lengths_without_an_end() {
    for whole in [MAPS, LISTS].map(bytes) {
        for cut in 0..whole.len() {
            assert_eq!(read(&whole[..cut]), Err(Malformed), "{cut}");
        }
    }
    let endless: [&[u8]; 4] = [
        b"\x93\x01\xdd\xff\xff\xff\xff",
        b"\x93\x01\x91\x92\xacBlockRemoved\xdd\xff\xff\xff\xff\x01",
        b"\x93\xdd\xff\xff\xff\xff",
        b"\x93\xdf\xff\xff\xff\xff",
    ];
    for bytes in endless {
        assert_eq!(read(bytes), Err(Malformed));
    }
    let deep = [&b"\x93"[..], &vec![0x91; 1 << 20], &[0x90, 0x90, 0x00]].concat();
    assert_eq!(read(&deep).unwrap(), Batch { events: Vec::new(), rank: Some(0) });
}

proptest! {
    #[test]
    fn whatever_comes_is_a_batch_or_none(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let _read = read(&bytes);
    }

    #[test]
    fn no_changed_byte_makes_more_of_it_than_is_there(at in 0usize..330, byte in any::<u8>()) {
        let mut changed = bytes(MAPS);
        let at = at % changed.len();
        changed[at] = byte;
        if let Ok(batch) = read(&changed) {
            prop_assert!(batch.events.len() <= changed.len());
        }
    }
}

#[test]
fn a_list_of_nothing_is_no_event_and_does_not_take_what_comes_after_it_for_its_kind() {
    let empty = [&b"\x92\xc0\x91\x90\xb0"[..], b"AllBlocksCleared"].concat();
    assert_eq!(read(&empty), Err(Malformed));
}

#[test]
fn a_batch_of_more_events_than_an_engine_ever_sends_is_none() {
    let events = |many: u32| {
        let event = b"\x91\xa1?".repeat(many as usize);
        [&b"\x92\xc0\xdd"[..], &many.to_be_bytes(), &event].concat()
    };
    assert_eq!(read(&events(MOST_EVENTS)).unwrap().events.len(), MOST_EVENTS as usize);
    assert_eq!(read(&events(MOST_EVENTS + 1)), Err(Malformed));
}
