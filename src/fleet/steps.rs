//! What changes the state that choices go by, step by step, for whoever writes it down: with the same steps in the same
//! order another fleet comes to the same choices (see [`super::replay`]).
//!
//! While nobody writes, a step is nothing. Otherwise it takes one lock, so that steps have an order, and holds the fleet's
//! clock, so that all that is done in it happens at one moment, which is told with it. A choice is a step, with its
//! reservation and its claim; so is every change to what is held, promised or learned. What a choice is *told* (who is
//! healthy, who has come back lately, who is full, whose turn it is) is no state here: it goes along with the choice.
//!
//! **Lock order:** a step is taken before every other lock of the fleet, except *changing*. A step within a step is part
//! of it.

use super::Fleet;
use super::clock::{self, Clock};
use super::router::Prompt;
use super::setbacks::Spared;
use crate::policy::estimate::Rates;
use crate::policy::hint::Hint;
use crate::policy::lane::Lane;
use crate::policy::select::{Decision, Params, Reason};
use crate::prefix::fingerprint::Ends;
use crate::prefix::residency::Served;
use crate::prefix::stored::Held;
use crate::types::ReplicaId;
use parking_lot::{Mutex, MutexGuard};
use smallvec::SmallVec;
use std::borrow::Cow;
use std::cell::RefCell;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::SyncSender;
use std::sync::{Arc, OnceLock};

/// One step: when, in milliseconds on the fleet's clock, and what changed, in order.
#[derive(Clone, Debug, PartialEq)]
pub struct Stage {
    /// When.
    pub at: f64,
    /// What.
    pub changes: Vec<Change>,
}

/// What changed.
#[derive(Clone, Debug, PartialEq)]
pub enum Change {
    /// Choices go by these rules from now on.
    Ruled(Box<Ruled>),
    /// The prefix index may use so many bytes.
    Allowed(u64),
    /// A replica nobody knows anything of has this slot.
    Seated(ReplicaId, Seat),
    /// The replica there is configured otherwise.
    Reseated(ReplicaId, Seat),
    /// Nobody has it any more.
    Vacated(ReplicaId),
    /// Its cache holds so many tokens.
    Capacity(ReplicaId, u32),
    /// Its cache is empty.
    Forgot(ReplicaId),
    /// Its engine is another one: how fast it is has to be seen again.
    Restarted(ReplicaId),
    /// What a process before this one knew is known here.
    Inherited,
    /// From now on it is known here, too, what other processes do.
    Heard,
    /// A request of this model, of so many canonical bytes, had so many prompt and output tokens.
    Model(Option<String>, u64, u64, Option<u64>),
    /// A request got its place.
    Placed(Box<Choice>),
    /// It was sent to another one.
    Taken(u64, ReplicaId),
    /// It claims its prompt there.
    Claimed(u64, ReplicaId),
    /// Something about what is reserved for it.
    Reserved(u64, Share),
    /// Something about what it claims.
    Claim(u64, Hold),
    /// This was seen of a replica's speed.
    Rates(ReplicaId, Seen),
    /// A request is over.
    Ended(u64, Ending),
}

/// What came of a request, for who reads it: no choice depends on it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Ending {
    /// How it ended in one word.
    pub word: Cow<'static, str>,
    /// The status that the client got; 0 when it got none.
    pub status: u16,
    /// Attempts made.
    pub attempts: u32,
    /// Tokens of its prompt, those that came from the cache, and those that were generated, as reported.
    pub usage: [Option<u64>; 3],
    /// Time to its first token, in milliseconds.
    pub ttft_ms: Option<f64>,
    /// Time to its end, likewise.
    pub ms: f64,
}

/// Who sits in a slot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Seat {
    /// Whether it belongs to the lane for long prompts.
    pub in_lane: bool,
}

/// The rules in force.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Ruled {
    /// The policy and its parameters.
    pub params: Params,
    /// The lane for long prompts.
    pub lane: Option<Lane>,
}

/// What became of a reservation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Share {
    /// The first token has come.
    Read,
    /// All is generated.
    Done,
    /// Its first token cannot be seen.
    Silent,
    /// One unit is left.
    Shrunk,
    /// It was given back.
    Freed,
}

/// What became of a claim.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Hold {
    /// The prompt is held.
    Held,
    /// Tokens of prompt and answer.
    Answered(f64, f64),
    /// What came from the cache.
    Served(Served),
    /// It ended.
    Left,
}

/// What was seen of a replica's speed: new and cached tokens of a prompt and the milliseconds it took, sequences in a
/// batch and the milliseconds of a step.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Seen {
    /// Of reading.
    pub prefill: Option<(f64, f64, f64)>,
    /// Of generating.
    pub step: Option<(f64, f64)>,
}

impl Seen {
    /// Teaches it.
    pub(super) fn teach(self, rates: &mut Rates) {
        if let Some((new, cached, ms)) = self.prefill {
            rates.observe_prefill(new, cached, ms);
        }
        if let Some((running, ms)) = self.step {
            rates.observe_step(running, ms);
        }
    }
}

/// A candidate as the choice was told of it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Told {
    /// Which one.
    pub id: ReplicaId,
    /// Whether it took requests.
    pub healthy: bool,
    /// Its share, if it has come back lately; see [`crate::policy::slow_start`].
    pub share: f64,
    /// What it stores of the turn before, if its engine tells.
    pub stores: Option<Held>,
    /// Whether its session is presumed to be there; see [`crate::policy::presumption`].
    pub presumed: bool,
}

/// A request that got its place: what was to be placed, what was told, and where it went.
#[derive(Clone, Debug, PartialEq)]
pub struct Choice {
    /// The request.
    pub request: u64,
    /// Its fingerprints.
    pub chain: Arc<[u64]>,
    /// Where its turns end.
    pub ends: Ends,
    /// Size of its body.
    pub body_bytes: u64,
    /// Canonical bytes of its prompt.
    pub prompt_bytes: u64,
    /// The model asked for.
    pub model: Option<String>,
    /// Whether its answer is streamed.
    pub streams: bool,
    /// Its session.
    pub session: Option<Hint>,
    /// The replica that alone could answer.
    pub pinned: Option<ReplicaId>,
    /// Whose turn it was among equals.
    pub salt: u64,
    /// The candidates.
    pub pool: Vec<Told>,
    /// Those that were passed over, and why.
    pub spared: Spared,
    /// Those that came before the first and had no room.
    pub full: Vec<ReplicaId>,
    /// Whether its session had no home, so that its name could pick one.
    pub is_new_session: bool,
    /// Whether it waits for another one that reads its prompt.
    pub waits: bool,
    /// Where it went.
    pub first: ReplicaId,
    /// Why.
    pub reason: Reason,
    /// What each candidate held of it in blocks, and was loaded with in units; nothing where both are 0.
    pub seen: Vec<(ReplicaId, u32, u32)>,
    /// What the first was expected to hold of it, and the whole, in tokens.
    pub held: (f64, f64),
    /// The expected time to the first token, in milliseconds.
    pub ttft_ms: f64,
}

/// Where steps go, if anywhere; copies share it.
#[derive(Clone, Debug, Default)]
pub struct Steps(Arc<OnceLock<Journal>>);

/// Who is told, and how much did not arrive.
#[derive(Debug)]
struct Journal {
    /// Held during a step.
    order: Mutex<()>,
    out: SyncSender<Stage>,
    lost: Arc<AtomicU64>,
    /// Whether it was told that other processes are heard.
    hears: AtomicBool,
}

/// A step that is being made.
#[must_use = "a step ends when this goes"]
#[derive(Debug)]
pub struct Step<'a>(Option<Open<'a>>);

#[derive(Debug)]
struct Open<'a> {
    journal: &'a Journal,
    at: f64,
    _order: MutexGuard<'a, ()>,
}

/// What a step on this thread has done so far, and what its choice was told.
#[derive(Default)]
struct Notes {
    changes: Vec<Change>,
    pool: Vec<Told>,
}

thread_local! {
    /// There while a step is being made on this thread.
    static NOTES: RefCell<Option<Notes>> = const { RefCell::new(None) };
}

impl Steps {
    /// Tells `out` of every step from now on; those that do not fit are counted in `lost`. Whether nobody was told before.
    pub fn tell(&self, out: SyncSender<Stage>, lost: Arc<AtomicU64>) -> bool {
        self.0.set(Journal { order: Mutex::new(()), out, lost, hears: AtomicBool::new(false) }).is_ok()
    }

    /// A step begins on this thread, and ends when what this returns goes. Not to be held across an await.
    pub fn begin(&self, clock: &Clock) -> Step<'_> {
        let Some(journal) = self.0.get() else { return Step(None) };
        if is_noting() {
            return Step(None);
        }
        let order = journal.order.lock();
        let at = clock.now();
        clock::hold(Some(at));
        NOTES.set(Some(Notes::default()));
        Step(Some(Open { journal, at, _order: order }))
    }
}

impl Fleet {
    /// Something that another process does or has learned is taken in. Choices that go by it cannot be made again: what it
    /// was is not written down, only that it was.
    pub(super) fn note_heard(&self) {
        let Some(journal) = self.steps.0.get() else { return };
        let _step = self.step();
        if !journal.hears.swap(true, Relaxed) {
            note(|| Change::Heard);
        }
    }
}

impl Drop for Step<'_> {
    fn drop(&mut self) {
        let Some(open) = &self.0 else { return };
        clock::hold(None);
        let changes = NOTES.take().map(|notes| notes.changes).unwrap_or_default();
        if !changes.is_empty() && open.journal.out.try_send(Stage { at: open.at, changes }).is_err() {
            // relaxed: a count
            open.journal.lost.fetch_add(1, Relaxed);
        }
    }
}

/// Whether a step is being made on this thread that somebody is told of.
pub(super) fn is_noting() -> bool {
    NOTES.with_borrow(Option::is_some)
}

/// This has changed.
pub(super) fn note(change: impl FnOnce() -> Change) {
    NOTES.with_borrow_mut(|notes| {
        if let Some(notes) = notes {
            notes.changes.push(change());
        }
    });
}

/// A choice is being told of these.
pub(super) fn note_pool(pool: impl Iterator<Item = Told>) {
    NOTES.with_borrow_mut(|notes| {
        if let Some(notes) = notes {
            notes.pool = pool.collect();
        }
    });
}

/// It presumes its session to be at one of these.
pub(super) fn note_presumed(replica: ReplicaId) {
    NOTES.with_borrow_mut(|notes| {
        let told = notes.iter_mut().flat_map(|notes| &mut notes.pool).find(|told| told.id == replica);
        if let Some(told) = told {
            told.presumed = true;
        }
    });
}

/// A choice was made: `salt` said whose turn it was, it went by `spared`, and `full` of the decision's order had no room.
pub(super) fn note_choice(
    prompt: Prompt<'_>,
    decision: &Decision,
    (salt, tokens): (u64, f64),
    (spared, full, waits): (Spared, &[ReplicaId], bool),
) {
    let Some(first) = decision.ranked.first().filter(|_| is_noting()) else { return };
    let pool = NOTES.with_borrow_mut(|notes| notes.as_mut().map(|notes| std::mem::take(&mut notes.pool)));
    let seen = decision.ranked.unordered().iter().filter(|r| r.overlap > 0 || r.load > 0);
    let choice = Choice {
        request: prompt.request,
        chain: prompt.chain.clone(),
        ends: prompt.ends,
        body_bytes: prompt.body_bytes,
        prompt_bytes: prompt.prompt_bytes,
        model: prompt.model.map(str::to_owned),
        streams: prompt.streams,
        session: prompt.session,
        pinned: prompt.pinned,
        salt,
        pool: pool.unwrap_or_default(),
        spared,
        full: full.to_vec(),
        is_new_session: decision.hint.is_some_and(|hint| hint.home.is_none()),
        waits,
        first: first.id,
        reason: decision.reason,
        seen: seen.map(|r| (r.id, r.overlap, r.load)).collect(),
        held: (first.held, tokens),
        ttft_ms: first.price.queue + first.price.prefill,
    };
    note(|| Change::Placed(Box::new(choice)));
}

/// Those that were passed over.
pub(super) type Full = SmallVec<[ReplicaId; 8]>;
