//! Which part of which kind of request keeps prompts from being found in caches: a clock at the head, a nonce, tools or
//! keys in another order.
//!
//! A prompt is looked at only when something is odd: when nobody holds a tenth of it or more, or when the last ones of its
//! kind of client were read again although they were believed to be held. It is then outlined (see [`crate::api::outline`]) by one
//! thread off the path of requests, which takes at most a tenth of a processor, and compared with some outlines of prompts
//! of the same kind. What does not fit into its short queue is passed over. So the counts are of the prompts that were
//! looked at, and the tokens are those that could have come from a cache but for the change, as estimated.
//!
//! **Invariant:** a prompt's text is gone when the thread is done with it. Outlines hold keyed hashes and lengths; what is
//! shown are fields from a closed list, offsets and counts.

use super::metrics::Metrics;
use crate::api::endpoint::Endpoint;
use crate::api::family::Family;
use crate::api::outline::{Break, Change, Outline, Part, compare};
use crate::api::request;
use bytes::Bytes;
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant, SystemTime};

/// Prompts that wait to be looked at.
const WAITING: usize = 8;
/// A longer body is not looked at.
const LONGEST: usize = 1 << 20;
/// The least part of a prompt that is worth it, in tokens, and as one of so many parts.
const LEAST: (f64, f64) = (256.0, 10.0);
/// Kinds of requests whose outlines are kept, and how many of each.
const KEPT: (usize, usize) = (16, 4);
/// What all of them may take, in bytes; those of the kind that was used last are kept in any case: a third of it at most.
const KEPT_BYTES: usize = 4 << 20;
/// Findings that are kept: those that cost most.
const FINDINGS: usize = 64;
/// The part of a processor that is taken: one in so many.
const PART_OF_TIME: u32 = 10;
/// Prompts that are looked at after one that was read again.
const AFTER: u8 = 2;

/// The linter of this process.
pub struct Linter {
    key: u64,
    jobs: OnceLock<SyncSender<Job>>,
    state: Arc<Mutex<State>>,
    passed_over: AtomicU64,
    /// By family: how many of the next prompts are looked at whatever is held of them.
    armed: [AtomicU8; Family::ALL.len()],
}

/// A prompt to look at.
pub struct Job {
    /// Who sent it.
    pub client: Family,
    /// To what.
    pub endpoint: Endpoint,
    /// The hash of its model.
    pub model: u64,
    /// Its body.
    pub body: Bytes,
    /// Tokens of a byte of it.
    pub density: f64,
}

/// One way in which a kind of client breaks its prefixes.
#[derive(Clone, Debug, PartialEq)]
pub struct Finding {
    /// Who.
    pub client: Family,
    /// In requests to what.
    pub endpoint: Endpoint,
    /// In which field.
    pub field: Box<str>,
    /// Of which part of the prompt.
    pub part: Part,
    /// What changes.
    pub change: Change,
    /// The lowest byte of the field's text from which on it did, and the last one.
    pub offsets: Option<(usize, usize)>,
    /// Bytes of the field's text.
    pub length: usize,
    /// How often, of the prompts that were looked at.
    pub requests: u64,
    /// Tokens that could have come from a cache.
    pub tokens: f64,
    /// When last, in seconds since 1970.
    pub last: f64,
}

/// What the linter has seen.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Report {
    /// Prompts that were looked at.
    pub looked_at: u64,
    /// Prompts for which there was no time.
    pub passed_over: u64,
    /// What was found, that which costs most first.
    pub findings: Vec<Finding>,
}

/// Held by the thread for one comparison.
#[derive(Default)]
struct State {
    looked_at: u64,
    /// The kinds of requests, the one used last at the end, each with its outlines, the newest at the end.
    kinds: Vec<((Family, Endpoint, u64), VecDeque<Outline>)>,
    findings: Vec<Finding>,
}

impl Default for Linter {
    /// Nothing was looked at.
    fn default() -> Self {
        Linter {
            // from the seed that the standard library draws for its maps
            key: RandomState::new().hash_one(KEPT),
            jobs: OnceLock::new(),
            state: Arc::default(),
            passed_over: AtomicU64::new(0),
            armed: [const { AtomicU8::new(0) }; Family::ALL.len()],
        }
    }
}

impl Linter {
    /// Whether a prompt of so many tokens is to be looked at, `found` being the most that any replica holds of it.
    pub fn suspects(&self, client: impl FnOnce() -> Family, found: f64, prompt: f64) -> Option<Family> {
        if prompt < LEAST.0 {
            return None;
        }
        let unheld = prompt - found;
        if unheld >= LEAST.0 && unheld * LEAST.1 > prompt {
            return Some(client());
        }
        // relaxed, here and below: counts that nothing hangs on
        if self.armed.iter().all(|armed| armed.load(Relaxed) == 0) {
            return None;
        }
        let client = client();
        let armed = &self.armed[client as usize];
        armed.fetch_update(Relaxed, Relaxed, |n| n.checked_sub(1)).is_ok().then_some(client)
    }

    /// A prompt of this kind of client was read again, though it was believed to be held.
    pub fn arm(&self, client: Family) {
        self.armed[client as usize].store(AFTER, Relaxed);
    }

    /// Looks at a prompt soon, if there is time.
    pub fn look(&self, job: Job, metrics: &Arc<Metrics>) {
        if job.body.len() > LONGEST {
            return;
        }
        let jobs = self.jobs.get_or_init(|| {
            let (jobs, wait) = sync_channel(WAITING);
            let (state, metrics, key) = (self.state.clone(), metrics.clone(), self.key);
            let run = move || run(&wait, &state, &metrics, key);
            if let Err(e) = std::thread::Builder::new().name("linter".to_owned()).spawn(run) {
                log::error!("prompts are not looked at: {e}");
            }
            jobs
        });
        if jobs.try_send(job).is_err() {
            self.passed_over.fetch_add(1, Relaxed);
        }
    }

    /// Bytes of the outlines that are kept.
    pub fn bytes(&self) -> usize {
        self.state.lock().kinds.iter().flat_map(|(_, kept)| kept).map(Outline::bytes).sum()
    }

    /// What was seen so far.
    pub fn report(&self) -> Report {
        let state = self.state.lock();
        let mut findings = state.findings.clone();
        findings.sort_by(|a, b| b.tokens.total_cmp(&a.tokens));
        Report { looked_at: state.looked_at, passed_over: self.passed_over.load(Relaxed), findings }
    }
}

fn run(jobs: &Receiver<Job>, state: &Mutex<State>, metrics: &Metrics, key: u64) {
    while let Ok(job) = jobs.recv() {
        let began = Instant::now();
        look(&job, state, metrics, key);
        drop(job);
        std::thread::sleep((began.elapsed() * (PART_OF_TIME - 1)).min(Duration::from_secs(1)));
    }
}

fn look(job: &Job, state: &Mutex<State>, metrics: &Metrics, key: u64) {
    let Ok(request) = request::read(&job.body) else { return };
    let Some(outline) = Outline::of(job.endpoint, &request, key) else { return };
    let mut state = state.lock();
    state.looked_at += 1;
    let kept = state.kind((job.client, job.endpoint, job.model));
    let found = kept.iter().filter_map(|old| compare(old, &outline)).max_by_key(|found| found.alike);
    kept.push_back(outline);
    if kept.len() > KEPT.1 {
        kept.pop_front();
    }
    state.forget_beyond(KEPT_BYTES);
    if let Some(found) = found {
        let change = Outline::change(&request, &found);
        let tokens = state.count(job, &found, change);
        metrics.prompt_broke(job.client, found.part, change, tokens);
    }
}

impl State {
    /// The outlines of a kind of requests.
    fn kind(&mut self, kind: (Family, Endpoint, u64)) -> &mut VecDeque<Outline> {
        let known = self.kinds.iter().position(|(other, _)| *other == kind);
        let entry = match known {
            Some(at) => self.kinds.remove(at),
            None => (kind, VecDeque::new()),
        };
        if self.kinds.len() >= KEPT.0 {
            self.kinds.remove(0);
        }
        self.kinds.push(entry);
        let last = self.kinds.len() - 1;
        &mut self.kinds[last].1
    }

    /// Forgets the kinds that were not used for longest, until the others take no more than so many bytes.
    fn forget_beyond(&mut self, most: usize) {
        let of = |kept: &VecDeque<Outline>| kept.iter().map(Outline::bytes).sum::<usize>();
        let mut bytes: usize = self.kinds.iter().map(|(_, kept)| of(kept)).sum();
        while bytes > most && self.kinds.len() > 1 {
            bytes -= of(&self.kinds.remove(0).1);
        }
    }

    /// Counts a finding; the tokens that it cost.
    fn count(&mut self, job: &Job, found: &Break, change: Change) -> f64 {
        #[expect(clippy::cast_precision_loss, reason = "bytes of a prompt fit a float")]
        let tokens = found.alike as f64 * job.density;
        let last = SystemTime::UNIX_EPOCH.elapsed().map_or(0.0, |since| since.as_secs_f64());
        let is_same = |f: &&mut Finding| {
            (f.client, f.endpoint, &*f.field, f.change) == (job.client, job.endpoint, &*found.path, change)
        };
        if let Some(known) = self.findings.iter_mut().find(is_same) {
            let both = known.offsets.zip(found.offset);
            known.offsets = both.map(|((low, _), now)| (low.min(now), now));
            (known.length, known.last) = (found.length, last);
            known.requests += 1;
            known.tokens += tokens;
            return tokens;
        }
        if self.findings.len() >= FINDINGS {
            let least =
                (0..self.findings.len()).min_by(|a, b| self.findings[*a].tokens.total_cmp(&self.findings[*b].tokens));
            self.findings.swap_remove(least.unwrap_or(0));
        }
        self.findings.push(Finding {
            client: job.client,
            endpoint: job.endpoint,
            field: found.path.clone(),
            part: found.part,
            change,
            offsets: found.offset.map(|at| (at, at)),
            length: found.length,
            requests: 1,
            tokens,
            last,
        });
        tokens
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job(client: Family, system: &str) -> Job {
        let rules = "A rule that stays the same for ever and is read again and again. ".repeat(40);
        let body = format!(r#"{{"messages":[{{"role":"system","content":"{system} {rules}"}}]}}"#);
        Job { client, endpoint: Endpoint::Chat, model: 1, body: body.into(), density: 0.25 }
    }

    #[test]
    fn what_breaks_again_and_again_is_counted_once_with_what_it_costs() {
        let (linter, metrics) = (Linter::default(), Metrics::new().unwrap());
        for n in 10..40 {
            look(&job(Family::Curl, &format!("It is 12:{n}:00.")), &linter.state, &metrics, 5);
        }
        look(&job(Family::Go, "It is 12:10:00."), &linter.state, &metrics, 5);
        let report = linter.report();
        assert_eq!((report.looked_at, report.findings.len()), (31, 1));
        let found = &report.findings[0];
        assert_eq!(
            (found.client, &*found.field, found.part, found.change),
            (Family::Curl, "messages[0].content", Part::System, Change::Clock)
        );
        assert_eq!((found.requests, found.offsets.map(|o| o.0)), (29, Some(9)));
        // 2,600 bytes each time, at four a token
        assert!((12_000.0..19_500.0).contains(&found.tokens), "{}", found.tokens);
        assert!(!format!("{report:?}").contains("rule"));
    }

    #[test]
    fn memory_is_bounded() {
        let (linter, metrics) = (Linter::default(), Metrics::new().unwrap());
        for n in 0..400u64 {
            let mut job = job(Family::Other, &format!("{n:08}-{n:04}"));
            job.model = n / 8;
            look(&job, &linter.state, &metrics, 5);
        }
        let state = linter.state.lock();
        assert!(state.kinds.len() <= KEPT.0 && state.kinds.iter().all(|(_, kept)| kept.len() <= KEPT.1));
        assert!(state.findings.len() <= FINDINGS);
    }

    #[test]
    fn large_prompts_of_many_kinds_take_no_more_than_may_be() {
        let (linter, metrics) = (Linter::default(), Metrics::new().unwrap());
        let bytes = || {
            let state = linter.state.lock();
            let all = state.kinds.iter().flat_map(|(_, kept)| kept.iter().map(Outline::bytes));
            (all.sum::<usize>(), state.kinds.len())
        };
        for n in 0..60u64 {
            let messages: Vec<String> = (0..2000u64)
                .map(|at| format!(r#"{{"role":"user","content":"{}"}}"#, format!("{:x} ", at * 7919 + n).repeat(60)))
                .collect();
            let body = format!(r#"{{"messages":[{}]}}"#, messages.join(","));
            let model = n / 4;
            look(&Job { body: body.into(), model, ..job(Family::Curl, "") }, &linter.state, &metrics, 5);
            let (bytes, kinds) = bytes();
            assert!(bytes <= KEPT_BYTES && kinds >= 1, "{bytes} of {kinds}");
        }
        let (most, kinds) = bytes();
        assert!(most > KEPT_BYTES / 2 && kinds < KEPT.0, "{most} of {kinds}");
        assert!(most / kinds < KEPT_BYTES / 3, "one kind alone: {most} of {kinds}");
    }

    #[test]
    fn a_flood_waits_for_nobody_and_is_passed_over() {
        const SENT: u64 = 3000;
        let (linter, metrics) = (Linter::default(), Arc::new(Metrics::new().unwrap()));
        for n in 0..SENT {
            linter.look(job(Family::Curl, &format!("It is 12:{}:00.", 10 + n % 50)), &metrics);
        }
        // one that is too long takes no turn
        linter.look(Job { body: vec![b'x'; LONGEST + 1].into(), ..job(Family::Curl, "") }, &metrics);
        let told = linter.report();
        let (waiting, passed_over) = (WAITING as u64 + 1, told.passed_over);
        assert!(passed_over > 0 && passed_over + told.looked_at + waiting >= SENT, "{told:?}");
        assert!(passed_over + told.looked_at <= SENT);
    }

    #[test]
    fn only_what_is_odd_is_looked_at() {
        let linter = Linter::default();
        let curl = || Family::Curl;
        assert_eq!(linter.suspects(curl, 0.0, 100.0), None, "too short");
        assert_eq!(linter.suspects(curl, 900.0, 1000.0), None, "it is held");
        assert_eq!(linter.suspects(curl, 58_000.0, 60_000.0), None, "a turn more");
        assert_eq!(linter.suspects(curl, 50_000.0, 60_000.0), Some(Family::Curl));
        assert_eq!(linter.suspects(curl, 400.0, 1000.0), Some(Family::Curl));
        linter.arm(Family::Curl);
        assert_eq!(linter.suspects(|| Family::Go, 900.0, 1000.0), None);
        let held = || linter.suspects(curl, 900.0, 1000.0).is_some();
        assert_eq!([held(), held(), held()], [true, true, false]);
    }
}
