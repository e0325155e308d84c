//! What is known of prompts against an engine that evicts, and what is never guessed.

use super::*;
use proptest::prelude::*;

const BLOCK: u32 = 4;

/// An engine's cache: blocks, several of which may have the same name, those that nobody uses in the order in which they go,
/// of one prompt its end before its beginning.
#[derive(Default)]
struct Engine {
    /// By number: the name, and how many requests use it.
    blocks: Vec<(u64, u32)>,
    free: Vec<usize>,
    cached: HashMap<u64, Vec<usize>>,
    used: usize,
    capacity: usize,
}

/// A request while an engine reads and answers it.
struct Job {
    blocks: Vec<u64>,
    /// Blocks that are there, by number.
    done: Vec<usize>,
    chunk: usize,
    answer: Answer,
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
        BLOCK * u32::try_from(whole.iter().take_while(|name| self.cached.contains_key(name)).count()).unwrap()
    }

    /// Takes the cached beginning of what a job is to read out of what may go.
    fn begin(&mut self, tokens: &[u64], output: &[u64], (print, chunk, since): (u64, usize, u64)) -> Job {
        let cached = self.cached(tokens);
        let blocks = names(&[tokens, &output[..output.len() - 1]].concat());
        let done: Vec<_> = blocks[..(cached / BLOCK) as usize].iter().map(|name| self.cached[name][0]).collect();
        done.iter().for_each(|number| self.blocks[*number].1 += 1);
        self.free.retain(|number| !done.contains(number));
        let tokens = (count(tokens), cached, count(output));
        Job { blocks, done, chunk, answer: Answer { print, previous: None, tokens, is_repeated: true, since } }
    }

    /// Reads or generates some blocks of a job, and tells of that; whether any were left.
    fn step(&mut self, job: &mut Job, stored: &mut Stored) -> bool {
        let from = job.done.len();
        let new = &job.blocks[from..(from + job.chunk).min(job.blocks.len())];
        if new.is_empty() {
            return false;
        }
        let over = (self.used + new.len()).saturating_sub(self.capacity).min(self.free.len());
        let gone: Vec<_> = self.free.drain(..over).collect();
        let gone: Vec<_> = gone.into_iter().map(|number| (number, self.blocks[number].0)).collect();
        for (number, name) in &gone {
            let copies = self.cached.get_mut(name).unwrap();
            copies.retain(|copy| copy != number);
            if copies.is_empty() {
                self.cached.remove(name);
            }
        }
        for name in new {
            self.cached.entry(*name).or_default().push(self.blocks.len());
            job.done.push(self.blocks.len());
            self.blocks.push((*name, 1));
        }
        self.used = self.used + new.len() - gone.len();
        stored.begin_batch();
        stored.remove(&gone.iter().map(|(_, name)| *name).collect::<Vec<_>>());
        stored.store(new, from.checked_sub(1).map(|at| job.blocks[at]), BLOCK).unwrap();
        stored.end_batch();
        true
    }

    fn end(&mut self, job: &Job) {
        for number in job.done.iter().rev() {
            self.blocks[*number].1 -= 1;
            if self.blocks[*number].1 == 0 {
                self.free.push(*number);
            }
        }
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

/// Sessions at an engine, and what is known of it.
struct World {
    engine: Engine,
    stored: Stored,
    sessions: Vec<Session>,
    next: u64,
    print: u64,
    known: u32,
    asked: u32,
    /// How every session begins.
    shared: Vec<u64>,
}

/// One turn: tokens that are new, those that are generated, whether the answer comes before its last events, and blocks of a
/// step.
type Turn = (u64, u64, bool, usize);

impl World {
    fn fresh(&mut self, n: u64) -> Vec<u64> {
        self.next += n;
        (self.next - n..self.next).collect()
    }

    /// Sends a session's next turn, and holds what is known of its cache against the truth.
    fn send(&mut self, id: usize, (new, output, _, chunk): Turn) -> Result<Job, TestCaseError> {
        if self.sessions[id].tokens.len() > 120 + self.shared.len() {
            self.sessions[id] = Session::default();
        }
        if self.sessions[id].tokens.is_empty() {
            self.sessions[id].tokens.clone_from(&self.shared);
        }
        let (sent, output) = (self.fresh(new), self.fresh(output));
        self.sessions[id].tokens.extend(sent);
        let (tokens, previous) = (self.sessions[id].tokens.clone(), self.sessions[id].previous);
        if let Some(held) = previous.and_then(|print| self.stored.held(print)) {
            prop_assert_eq!(held.tokens.min((count(&tokens) - 1) / BLOCK * BLOCK), self.engine.cached(&tokens));
            prop_assert!(!held.is_whole || held.tokens >= self.engine.cached(&tokens));
            self.known += 1;
        }
        self.asked += u32::from(previous.is_some());
        self.print += 1;
        let mut job = self.engine.begin(&tokens, &output, (self.print, chunk, self.stored.batches()));
        job.answer.previous = previous;
        let session = &mut self.sessions[id];
        session.tokens.extend(output);
        session.previous = Some(self.print);
        Ok(job)
    }
}

/// Turns of sessions, each alone or with that of another one, and whether its answer tells anything.
type Turns = Vec<(usize, Turn, bool, bool)>;

fn turns() -> impl Strategy<Value = Turns> {
    let turn = (1u64..30, 1u64..12, any::<bool>(), 1usize..5);
    prop::collection::vec((0usize..6, turn, any::<bool>(), prop::bool::weighted(0.7)), 20..120)
}

/// Six sessions take these turns on a cache that is too small for them.
fn world(shared: u64, turns: Turns, all_tell: bool) -> Result<World, TestCaseError> {
    let engine = Engine { capacity: 90, ..Engine::default() };
    let sessions = (0..6).map(|_| Session::default()).collect();
    let shared = (1 << 40..(1 << 40) + shared).collect();
    let mut world =
        World { engine, stored: Stored::default(), sessions, next: 0, print: 0, known: 0, asked: 0, shared };
    for (id, turn, with_another, tells) in turns {
        let mut jobs = vec![(world.send(id, turn)?, turn.2, tells || all_tell)];
        if with_another {
            // of another length: of two that are alike in all nothing is known
            jobs.push((world.send((id + 1) % 6, (turn.0 + 13, turn.1, false, turn.3))?, !turn.2, true));
        }
        while !jobs.is_empty() {
            jobs.retain_mut(|(job, is_early, tells)| {
                let goes_on = world.engine.step(job, &mut world.stored);
                let has_read = job.done.len() * BLOCK as usize >= (job.answer.tokens.0 / BLOCK * BLOCK) as usize;
                if !goes_on || *is_early && has_read {
                    // the rest of the events comes after the answer
                    if *tells {
                        world.stored.answered(job.answer);
                    }
                    while world.engine.step(job, &mut world.stored) {}
                    world.engine.end(job);
                    return false;
                }
                true
            });
        }
    }
    prop_assert!(world.stored.blocks() == world.engine.cached.len());
    prop_assert!(world.stored.runs.values().all(|run| run.uses > 0));
    Ok(world)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// Sessions that take turns, one or two at a time, on a cache that is too small for them: what is known of a prompt is
    /// what the engine has of it, and nearly everything is known.
    #[test]
    fn what_is_known_of_a_prompt_is_what_the_engine_has(turns in turns()) {
        let World { known, asked, .. } = world(0, turns, true)?;
        prop_assert!(asked < 10 || known * 10 >= asked * 6, "{} of {}", known, asked);
    }

    /// The same where all begin alike, which several may read at once, and some answers tell nothing.
    #[test]
    fn who_begins_like_others_is_not_taken_for_one_that_tells_nothing(turns in turns(), shared in 1u64..20) {
        world(shared, turns, false)?;
    }
}

fn told(print: u64, previous: Option<u64>, tokens: (u32, u32, u32), since: u64) -> Answer {
    Answer { print, previous, tokens, is_repeated: true, since }
}

/// Tokens that are there of a prompt.
fn there(cache: &Stored, print: u64) -> Option<u32> {
    cache.held(print).map(|held| held.tokens)
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
    assert_eq!((there(&cache, 70), there(&cache, 71)), (Some(16), None));
    cache.remove(&[4, 3]);
    assert_eq!(there(&cache, 70), Some(8));
    // and stored again for somebody else, who branches off
    cache.begin_batch();
    cache.store(&[5, 6], Some(2), BLOCK).unwrap();
    assert!(cache.answered(told(71, None, (17, 8, 1), 1)));
    assert_eq!((there(&cache, 70), there(&cache, 71)), (Some(8), Some(16)));
    cache.remove(&[2]);
    assert_eq!((there(&cache, 70), there(&cache, 71)), (Some(4), Some(4)));
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
    assert_eq!((there(&cache, 70), there(&cache, 71)), (None, None));
}

#[test]
fn copies_of_a_block_are_gone_with_the_last_one() {
    let mut cache = stored(&[1, 2], None);
    cache.store(&[1, 2], None, BLOCK).unwrap();
    assert!(cache.answered(told(70, None, (9, 0, 1), 0)));
    cache.remove(&[2]);
    assert_eq!(there(&cache, 70), Some(8));
    cache.remove(&[2]);
    assert_eq!(there(&cache, 70), Some(4));
}

#[test]
fn what_cannot_be_true_or_is_too_much_takes_all_knowledge() {
    let mut cache = stored(&[1, 2], None);
    assert!(cache.answered(told(70, None, (9, 0, 1), 0)));
    // the same block at another depth
    assert_eq!(cache.store(&[2], None, BLOCK), Err(Lost));
    assert_eq!((cache.blocks(), there(&cache, 70)), (0, None));
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
    assert!(cache.readings.len() <= 1024 && cache.waiting.is_empty());
    cache.clear();
    assert_eq!((cache.prompts(), there(&cache, 1)), (0, None));
}

#[test]
fn an_answer_takes_no_reading_of_somebody_who_tells_nothing() {
    let mut cache = stored(&[1, 2, 3, 4], None);
    assert!(cache.answered(told(70, None, (17, 0, 1), 0)));
    // two are read at once: one begins like the first, of the other nothing is ever told
    cache.begin_batch();
    cache.store(&[1, 2, 5, 6], None, BLOCK).unwrap();
    let mut alone = stored(&[1, 2, 3, 4], None);
    alone.begin_batch();
    alone.store(&[1, 2, 5, 6], None, BLOCK).unwrap();
    cache.store(&[7, 8, 9, 10], None, BLOCK).unwrap();
    assert!(!cache.answered(told(71, None, (17, 0, 1), 1)));
    assert!(alone.answered(told(71, None, (17, 0, 1), 1)), "that it begins like another one does not matter");
    alone.remove(&[6]);
    assert_eq!((there(&alone, 71), there(&cache, 71)), (Some(12), None));
}

#[test]
fn an_answer_waits_for_few_batches() {
    for (batches, is_known) in [(PATIENCE, true), (PATIENCE + 1, false)] {
        let mut cache = stored(&[1], None);
        assert!(!cache.answered(told(70, None, (13, 0, 1), 1)));
        for _ in 1..batches {
            cache.begin_batch();
            cache.end_batch();
        }
        cache.begin_batch();
        cache.store(&[2, 3, 4], None, BLOCK).unwrap();
        cache.end_batch();
        assert_eq!(there(&cache, 70).is_some(), is_known, "{batches}");
    }
}

#[test]
fn the_answer_counts_only_where_the_next_turn_repeats_it() {
    for (is_repeated, held) in [(true, 16), (false, 8)] {
        let mut cache = stored(&[1, 2, 3, 4], None);
        assert!(cache.answered(Answer { is_repeated, ..told(70, None, (9, 0, 8), 0) }));
        assert_eq!(there(&cache, 70), Some(held));
    }
}

#[test]
fn a_block_that_was_put_in_again_under_others_is_a_contradiction() {
    let mut cache = stored(&[1, 2, 3], None);
    cache.remove(&[2]);
    cache.store(&[2], Some(1), BLOCK).unwrap();
    // it was there all the time, though what it continues was not
    assert_eq!(cache.store(&[3], Some(2), BLOCK), Err(Lost));
}

#[test]
fn an_engine_that_stores_too_much_is_not_followed_again_and_again() {
    let mut cache = Stored::default();
    let many: Vec<u64> = (0..=MOST_BLOCKS as u64).collect();
    assert_eq!(cache.store(&many, None, BLOCK), Err(Lost));
    assert!(cache.past().is_some_and(|past| past.blocks() == MOST_BLOCKS) && cache.past().is_none());
    assert_eq!((cache.store(&many, None, BLOCK), cache.blocks()), (Ok(()), 0));
    cache.clear();
    assert_eq!((cache.store(&[1], None, BLOCK), cache.blocks()), (Ok(()), 1));
}
