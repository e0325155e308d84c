//! What is known of prompts against an engine that evicts, and what is never guessed.

use super::*;
use proptest::prelude::*;
use std::collections::HashSet;

const BLOCK: u32 = 4;

/// An engine's cache: blocks by name, the least recently used one first, of one prompt its end before its beginning.
#[derive(Default)]
struct Engine {
    order: Vec<u64>,
    cached: HashSet<u64>,
    capacity: usize,
}

/// What an engine does to a prompt: its cached tokens, and the events.
struct Read {
    cached: u32,
    stored: Vec<(Vec<u64>, Option<u64>)>,
    removed: Vec<u64>,
}

fn names(tokens: &[u64]) -> Vec<u64> {
    let mut last = 7;
    let name = |block: &[u64]| {
        last = block.iter().fold(last, |all, t| xxhash_rust::xxh3::xxh3_64_with_seed(&t.to_le_bytes(), all));
        last
    };
    tokens.chunks_exact(BLOCK as usize).map(name).collect()
}

impl Engine {
    /// What is cached of a sequence of tokens, the last of which is always read.
    fn cached(&self, tokens: &[u64]) -> u32 {
        let whole = names(&tokens[..tokens.len() - 1]);
        BLOCK * u32::try_from(whole.iter().take_while(|name| self.cached.contains(name)).count()).unwrap()
    }

    /// Reads a prompt and generates an answer, `chunk` blocks at a time.
    fn read(&mut self, tokens: &[u64], output: &[u64], chunk: usize) -> Read {
        let cached = self.cached(tokens);
        let all = names(&[tokens, &output[..output.len() - 1]].concat());
        let held = (cached / BLOCK) as usize;
        let (mut stored, mut after) = (Vec::new(), held.checked_sub(1).map(|at| all[at]));
        for new in all[held..].chunks(chunk) {
            let fresh = new.iter().copied().filter(|name| !self.cached.contains(name)).collect::<Vec<_>>();
            if fresh.len() == new.len() {
                stored.push((new.to_vec(), after));
            }
            after = new.last().copied();
        }
        self.order.retain(|name| !all.contains(name));
        self.order.extend(all.iter().rev());
        self.cached.extend(&all);
        let gone = self.order.len().saturating_sub(self.capacity);
        let removed: Vec<_> = self.order.drain(..gone).collect();
        removed.iter().for_each(|name| assert!(self.cached.remove(name)));
        Read { cached, stored, removed }
    }
}

#[derive(Default)]
struct Session {
    tokens: Vec<u64>,
    previous: Option<u64>,
}

fn count(tokens: &[u64]) -> u32 {
    u32::try_from(tokens.len()).unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// Sessions that take turns on a cache that is too small for them: what is known of a prompt is what the engine has of
    /// it, and nearly everything is known.
    #[test]
    fn what_is_known_of_a_prompt_is_what_the_engine_has(
        turns in prop::collection::vec((0usize..6, 1u64..30, 1u64..12, any::<bool>(), 1usize..5), 20..120),
    ) {
        let mut engine = Engine { capacity: 60, ..Engine::default() };
        let mut stored = Stored::default();
        let mut sessions: Vec<Session> = Vec::new();
        sessions.resize_with(6, Session::default);
        let (mut next, mut print, mut known, mut asked) = (0u64, 0u64, 0, 0);
        for (id, new, output, is_late, chunk) in turns {
            let session = &mut sessions[id];
            if session.tokens.len() > 120 {
                *session = Session::default();
            }
            let mut fresh = |n: u64| { next += n; (next - n..next).collect::<Vec<_>>() };
            let sent = fresh(new);
            session.tokens.extend(&sent);
            let since = stored.batches();
            if let Some(held) = session.previous.and_then(|print| stored.held(print)) {
                let told = held.min((count(&session.tokens) - 1) / BLOCK * BLOCK);
                prop_assert_eq!(told, engine.cached(&session.tokens));
                known += 1;
            }
            asked += u32::from(session.previous.is_some());
            let output = fresh(output);
            let read = engine.read(&session.tokens, &output, chunk);
            print += 1;
            let tokens = (count(&session.tokens), read.cached, count(&output));
            let told = Answer { print, previous: session.previous, tokens, since };
            session.tokens.extend(&output);
            session.previous = Some(print);
            let apply = |stored: &mut Stored, read: &Read| {
                let batches = read.stored.len().max(1);
                for at in 0..batches {
                    stored.begin_batch();
                    if at == 0 {
                        stored.remove(&read.removed);
                    }
                    if let Some((blocks, after)) = read.stored.get(at) {
                        stored.store(blocks, *after, BLOCK).unwrap();
                    }
                    stored.end_batch();
                }
            };
            // the events of an answer may come after it
            if is_late {
                stored.answered(told);
            }
            apply(&mut stored, &read);
            if !is_late {
                stored.answered(told);
            }
        }
        prop_assert!(asked < 10 || known * 10 >= asked * 8, "{} of {}", known, asked);
        prop_assert!(stored.blocks() == engine.cached.len());
        let runs = stored.runs.values().filter(|run| run.uses == 0).count();
        prop_assert_eq!(runs, 0);
    }
}

fn told(print: u64, previous: Option<u64>, tokens: (u32, u32, u32), since: u64) -> Answer {
    Answer { print, previous, tokens, since }
}

fn stored(blocks: &[u64], after: Option<u64>) -> Stored {
    let mut stored = Stored::default();
    stored.begin_batch();
    stored.store(blocks, after, BLOCK).unwrap();
    stored
}

#[test]
fn a_prompt_is_known_to_the_block_and_so_is_what_is_evicted_of_it() {
    let mut cache = stored(&[1, 2, 3, 4], None);
    assert!(cache.answered(told(70, None, (14, 0, 3), 0)));
    assert_eq!((cache.held(70), cache.held(71)), (Some(16), None));
    cache.remove(&[4, 3]);
    assert_eq!(cache.held(70), Some(8));
    // and stored again for somebody else, who branches off
    cache.begin_batch();
    cache.store(&[5, 6], Some(2), BLOCK).unwrap();
    assert!(cache.answered(told(71, None, (17, 8, 1), 1)));
    assert_eq!((cache.held(70), cache.held(71)), (Some(8), Some(16)));
    cache.remove(&[2]);
    assert_eq!((cache.held(70), cache.held(71)), (Some(4), Some(4)));
}

#[test]
fn where_two_would_fit_or_nothing_was_read_since_nothing_is_known() {
    let mut cache = stored(&[1, 2], None);
    cache.store(&[3, 4], None, BLOCK).unwrap();
    assert!(!cache.answered(told(70, None, (9, 0, 1), 0)));
    let mut cache = stored(&[1, 2], None);
    assert!(!cache.answered(told(70, None, (9, 0, 1), 1)), "it was there before");
    // another length
    assert!(!cache.answered(told(71, None, (13, 0, 1), 0)));
    assert_eq!((cache.held(70), cache.held(71)), (None, None));
}

#[test]
fn copies_of_a_block_are_gone_with_the_last_one() {
    let mut cache = stored(&[1, 2], None);
    cache.store(&[1, 2], None, BLOCK).unwrap();
    assert!(cache.answered(told(70, None, (9, 0, 1), 0)));
    cache.remove(&[2]);
    assert_eq!(cache.held(70), Some(8));
    cache.remove(&[2]);
    assert_eq!(cache.held(70), Some(4));
}

#[test]
fn what_cannot_be_true_or_is_too_much_takes_all_knowledge() {
    let mut cache = stored(&[1, 2], None);
    assert!(cache.answered(told(70, None, (9, 0, 1), 0)));
    // the same block at another depth
    assert_eq!(cache.store(&[2], None, BLOCK), Err(Lost));
    assert_eq!((cache.blocks(), cache.held(70)), (0, None));
    let mut cache = stored(&[1], None);
    assert_eq!(cache.store(&[2], Some(1), BLOCK + 1), Err(Lost));
    let mut cache = Stored::default();
    let many: Vec<u64> = (0..=MOST_BLOCKS as u64).collect();
    assert_eq!(cache.store(&many, None, BLOCK), Err(Lost));
    assert!(cache.blocks() == 0 && cache.runs.is_empty());
}

#[test]
fn prompts_and_runs_are_bounded_and_go_with_what_they_are_of() {
    let mut cache = Stored::default();
    for n in 0..3 * MOST_PROMPTS as u64 {
        let since = cache.batches();
        cache.begin_batch();
        cache.store(&[2 * n, 2 * n + 1], None, BLOCK).unwrap();
        assert!(cache.answered(told(n, None, (8, 0, 1), since)));
        cache.remove(&[2 * n + 1, 2 * n]);
    }
    assert_eq!((cache.blocks(), cache.prompts(), cache.runs.len()), (0, MOST_PROMPTS, MOST_PROMPTS));
    assert!(cache.fresh.len() <= LATELY && cache.waiting.is_empty());
    cache.clear();
    assert_eq!((cache.prompts(), cache.held(1)), (0, None));
}
