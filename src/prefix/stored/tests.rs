//! What is known of prompts against an engine that evicts, and what is never guessed.

use super::*;
use proptest::prelude::*;
use std::collections::HashSet;

const BLOCK: u32 = 4;

/// An engine's cache: blocks by name, those that nobody uses in the order in which they go, of one prompt its end before its
/// beginning.
#[derive(Default)]
struct Engine {
    free: Vec<u64>,
    cached: HashSet<u64>,
    capacity: usize,
}

/// A request while an engine reads and answers it.
struct Job {
    blocks: Vec<u64>,
    /// Blocks that are there.
    done: usize,
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
        BLOCK * u32::try_from(whole.iter().take_while(|name| self.cached.contains(name)).count()).unwrap()
    }

    /// Takes the cached beginning of what a job is to read out of what may go.
    fn begin(&mut self, tokens: &[u64], output: &[u64], (print, chunk, since): (u64, usize, u64)) -> Job {
        let cached = self.cached(tokens);
        let blocks = names(&[tokens, &output[..output.len() - 1]].concat());
        let done = (cached / BLOCK) as usize;
        self.free.retain(|name| !blocks[..done].contains(name));
        let tokens = (count(tokens), cached, count(output));
        Job { blocks, done, chunk, answer: Answer { print, previous: None, tokens, since } }
    }

    /// Reads or generates some blocks of a job, and tells of that; whether any were left.
    fn step(&mut self, job: &mut Job, stored: &mut Stored) -> bool {
        let new = &job.blocks[job.done..(job.done + job.chunk).min(job.blocks.len())];
        if new.is_empty() {
            return false;
        }
        let after = job.done.checked_sub(1).map(|at| job.blocks[at]);
        let over = (self.cached.len() + new.len()).saturating_sub(self.capacity).min(self.free.len());
        let gone: Vec<_> = self.free.drain(..over).collect();
        gone.iter().for_each(|name| assert!(self.cached.remove(name)));
        self.cached.extend(new);
        job.done += new.len();
        stored.begin_batch();
        stored.remove(&gone);
        stored.store(new, after, BLOCK).unwrap();
        stored.end_batch();
        true
    }

    fn end(&mut self, job: &Job) {
        self.free.extend(job.blocks.iter().rev());
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
        if self.sessions[id].tokens.len() > 120 {
            self.sessions[id] = Session::default();
        }
        let (sent, output) = (self.fresh(new), self.fresh(output));
        self.sessions[id].tokens.extend(sent);
        let (tokens, previous) = (self.sessions[id].tokens.clone(), self.sessions[id].previous);
        if let Some(held) = previous.and_then(|print| self.stored.held(print)) {
            prop_assert_eq!(held.min((count(&tokens) - 1) / BLOCK * BLOCK), self.engine.cached(&tokens));
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

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// Sessions that take turns, one or two at a time, on a cache that is too small for them: what is known of a prompt is
    /// what the engine has of it, and nearly everything is known.
    #[test]
    fn what_is_known_of_a_prompt_is_what_the_engine_has(
        turns in prop::collection::vec((0usize..6, (1u64..30, 1u64..12, any::<bool>(), 1usize..5), any::<bool>()), 20..120),
    ) {
        let engine = Engine { capacity: 90, ..Engine::default() };
        let sessions = (0..6).map(|_| Session::default()).collect();
        let mut world = World { engine, stored: Stored::default(), sessions, next: 0, print: 0, known: 0, asked: 0 };
        for (id, turn, with_another) in turns {
            let mut jobs = vec![(world.send(id, turn)?, turn.2)];
            if with_another {
                // of another length: of two that are alike in all nothing is known
                jobs.push((world.send((id + 1) % 6, (turn.0 + 13, turn.1, false, turn.3))?, !turn.2));
            }
            while !jobs.is_empty() {
                jobs.retain_mut(|(job, is_early)| {
                    let goes_on = world.engine.step(job, &mut world.stored);
                    let has_read = job.done * BLOCK as usize >= job.answer.tokens.0 as usize;
                    if !goes_on || *is_early && has_read {
                        // the rest of the events comes after the answer
                        world.stored.answered(job.answer);
                        while world.engine.step(job, &mut world.stored) {}
                        world.engine.end(job);
                        return false;
                    }
                    true
                });
            }
        }
        let World { engine, stored, known, asked, .. } = world;
        prop_assert!(asked < 10 || known * 10 >= asked * 6, "{} of {}", known, asked);
        prop_assert!(stored.blocks() == engine.cached.len());
        prop_assert!(stored.runs.values().all(|run| run.uses > 0));
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
