//! Steps as lines.

use super::hashes::Hashes;
use crate::fleet::steps::{Change, Choice, Ending, Hold, Ruled, Share, Stage, Told};
use crate::policy::hint::Source;
use crate::prefix::fingerprint::Place;
use crate::types::ReplicaId;
use std::collections::HashMap;
use std::fmt::{Display, Write as _};

/// What stands first in every file.
pub(super) const VERSION: u64 = 1;
/// Names of models come from clients: beyond this many, all others have one number.
const MOST_MODELS: usize = 4096;
/// No served model has a longer name; one of such a name is learned as one without.
const LONGEST_NAME: usize = 256;

/// Writes lines.
pub(super) struct Scribe {
    /// What is written and not taken.
    pub(super) out: Vec<u8>,
    lines: u64,
    hashes: Hashes,
    models: HashMap<String, usize>,
    /// How many files there were before this one.
    part: u64,
}

/// A line in the making.
struct Row(String);

impl Scribe {
    pub(super) fn new(key: [u8; 16]) -> Self {
        Scribe { out: Vec::new(), lines: 0, hashes: Hashes::new(key), models: HashMap::new(), part: 0 }
    }

    /// How many lines there are since this was asked last.
    pub(super) fn take_lines(&mut self) -> u64 {
        std::mem::take(&mut self.lines)
    }

    /// The first line of a file.
    pub(super) fn head(&mut self, unix: f64) {
        let mut row = Row(format!("{{\"journal\":{VERSION}"));
        row.plain("part", self.part);
        // the hash of no fingerprint: which process it is, and nothing else
        row.plain("run", Hex(self.hashes.hash(0)));
        row.plain("unix", unix);
        row.text("version", env!("CARGO_PKG_VERSION"));
        self.put(row);
    }

    /// Another file follows.
    pub(super) fn turn_the_page(&mut self) {
        self.part += 1;
        self.forget();
    }

    /// Nothing that was written can be gone on from: all chains are written in full again.
    pub(super) fn forget(&mut self) {
        self.hashes.forget();
    }

    /// So many steps are missing here.
    pub(super) fn lost(&mut self, steps: u64) {
        let mut row = Row("{\"do\":\"lost\"".to_owned());
        row.plain("steps", steps);
        self.put(row);
        // it is no step, and does not count as one that is lost in turn
        self.lines -= 1;
    }

    /// Nothing more comes from this process.
    pub(super) fn over(&mut self) {
        self.put(Row("{\"do\":\"over\"".to_owned()));
    }

    /// One step.
    pub(super) fn stage(&mut self, stage: &Stage) {
        for change in &stage.changes {
            let mut row = Row(String::with_capacity(96));
            // writing to a String cannot fail
            let _infallible = write!(row.0, "{{\"t\":{}", stage.at);
            self.change(&mut row, change);
            self.put(row);
        }
    }

    fn put(&mut self, row: Row) {
        self.out.extend_from_slice(row.0.as_bytes());
        self.out.extend_from_slice(b"}\n");
        self.lines += 1;
    }

    fn change(&mut self, row: &mut Row, change: &Change) {
        match change {
            Change::Ruled(ruled) => rules(row, ruled),
            Change::Allowed(bytes) => row.does("index").plain("bytes", bytes),
            Change::Seated(id, seat) => row.does("seat").slot(*id).plain("lane", seat.in_lane),
            Change::Reseated(id, seat) => row.does("reseat").slot(*id).plain("lane", seat.in_lane),
            Change::Vacated(id) => {
                row.does("vacate").slot(*id);
            }
            Change::Capacity(id, tokens) => row.does("capacity").slot(*id).plain("tokens", tokens),
            Change::Forgot(id) => {
                row.does("forget").slot(*id);
            }
            Change::Restarted(id) => {
                row.does("restart").slot(*id);
            }
            Change::Inherited => {
                row.does("inherited");
            }
            Change::Heard => {
                row.does("heard");
            }
            Change::Model(model, bytes, prompt, output) => {
                let model = self.model(model.as_deref());
                row.does("model").plain("model", OrNull(model));
                row.plain("bytes", bytes);
                row.plain("prompt", prompt);
                row.plain("output", OrNull(*output));
            }
            Change::Placed(choice) => self.choice(row, choice),
            Change::Taken(request, id) => {
                row.does("take").request(*request).slot(*id);
            }
            Change::Claimed(request, id) => {
                row.does("claim").request(*request).slot(*id);
            }
            Change::Reserved(request, what) => {
                row.does(share(*what)).request(*request);
            }
            Change::Claim(request, what) => hold(row, *request, what),
            Change::Rates(id, seen) => {
                let prefill = seen.prefill.map(|(new, cached, ms)| format!("[{new},{cached},{ms}]"));
                row.does("rates").slot(*id).plain("prefill", OrNull(prefill));
                row.plain("step", OrNull(seen.step.map(|(running, ms)| format!("[{running},{ms}]"))));
            }
            Change::Ended(request, ending) => ended(row.does("end").request(*request), ending),
        }
    }

    fn choice(&mut self, row: &mut Row, c: &Choice) {
        row.does("place").request(c.request).plain("to", c.first);
        row.text("reason", c.reason.label());
        row.plain("body", c.body_bytes);
        row.plain("prompt", c.prompt_bytes);
        let model = self.model(c.model.as_deref());
        row.plain("model", OrNull(model));
        row.plain("streams", c.streams);
        row.plain("turn", c.salt);
        let known = self.hashes.known(&c.chain);
        row.plain("blocks", c.chain.len());
        row.plain("known", known);
        let after = known.checked_sub(1).and_then(|at| c.chain.get(at)).map(|print| self.hashes.hash(*print));
        row.plain("after", OrNull(after.map(Hex)));
        let new: String = c.chain[known..].iter().map(|print| format!("{:016x}", self.hashes.hash(*print))).collect();
        row.text("new", &new);
        row.plain("before", OrNull(c.ends.previous.map(|place| self.place(place))));
        row.plain("end", OrNull(c.ends.own.map(|place| self.place(place))));
        row.plain("session", OrNull(c.session.map(|s| Hex(self.hashes.hash(s.key)))));
        row.plain("named", c.session.is_some_and(|s| s.source == Source::Named));
        row.plain("is_new", c.is_new_session);
        row.plain("pinned", OrNull(c.pinned));
        row.text("pool", &ranges(&c.pool));
        row.list("down", c.pool.iter().filter(|told| !told.healthy).map(|told| told.id));
        let back = c.pool.iter().filter(|told| told.share < 1.0);
        row.list("back", back.map(|told| format!("[{},{}]", told.id, told.share)));
        let stores = c.pool.iter().filter_map(|told| Some((told.id, told.stores?)));
        row.list("stores", stores.clone().map(|(id, held)| format!("[{id},{}]", held.tokens)));
        row.list("whole", stores.filter(|(_, held)| held.is_whole).map(|(id, _)| id));
        row.plain("presumed", OrNull(c.pool.iter().find(|told| told.presumed).map(|told| told.id)));
        row.plain("picked", OrNull(c.spared.picked));
        row.plain("failed", OrNull(c.spared.failed));
        row.list("refusing", c.spared.refusing.iter());
        row.list("full", c.full.iter());
        row.list("seen", c.seen.iter().map(|(id, overlap, load)| format!("[{id},{overlap},{load}]")));
        row.plain("held", c.held.0);
        row.plain("tokens", c.held.1);
        row.plain("ttft", c.ttft_ms);
        row.plain("waits", c.waits);
    }

    fn place(&self, place: Place) -> String {
        format!("[{},{}]", Hex(self.hashes.hash(place.print)), place.blocks)
    }

    /// The number of a model.
    fn model(&mut self, name: Option<&str>) -> Option<usize> {
        let name = name.filter(|name| name.len() <= LONGEST_NAME)?;
        if let Some(number) = self.models.get(name) {
            return Some(*number);
        }
        let number = self.models.len();
        if number < MOST_MODELS {
            self.models.insert(name.to_owned(), number);
        }
        Some(number)
    }
}

fn rules(row: &mut Row, ruled: &Ruled) {
    let params = &ruled.params;
    row.does("rules").text("policy", params.policy.name());
    row.text("basis", params.affinity.basis.name());
    row.plain("cap", params.affinity.cap_blocks);
    row.plain("alpha", params.affinity.alpha);
    row.plain("unit", params.load.unit_bytes);
    row.plain("most", params.load.max_units);
    row.plain("block", params.load.block_bytes);
    row.text("flight", params.flight.mode.name());
    row.plain("least", params.flight.min_blocks);
    row.plain("hold", params.flight.max_hold_ms);
    row.plain("long", OrNull(ruled.lane.map(|lane| lane.over)));
    if let Some(lane) = ruled.lane {
        row.text("short", lane.short.name());
    }
}

/// The word for what became of a reservation.
pub(super) fn share(what: Share) -> &'static str {
    match what {
        Share::Read => "read",
        Share::Done => "done",
        Share::Silent => "silent",
        Share::Shrunk => "shrunk",
        Share::Freed => "freed",
    }
}

fn hold(row: &mut Row, request: u64, what: &Hold) {
    match what {
        Hold::Held => {
            row.does("held").request(request);
        }
        Hold::Left => {
            row.does("left").request(request);
        }
        Hold::Answered(prompt, output) => {
            row.does("answered").request(request).plain("prompt", prompt);
            row.plain("output", output);
        }
        Hold::Served(served) => {
            row.does("served").request(request).plain("prompt", served.prompt);
            row.plain("cached", served.cached);
            row.plain("output", served.output);
        }
    }
}

fn ended(row: &mut Row, ending: &Ending) {
    row.text("word", &ending.word);
    row.plain("status", ending.status);
    row.plain("attempts", ending.attempts);
    for (name, tokens) in ["prompt", "cached", "output"].into_iter().zip(ending.usage) {
        row.plain(name, OrNull(tokens));
    }
    row.plain("ttft", OrNull(ending.ttft_ms));
    row.plain("ms", ending.ms);
}

/// The slots of a pool, neighbours as a range: `0-3,5`.
fn ranges(pool: &[Told]) -> String {
    let mut out = String::new();
    let mut all = pool.iter().map(|told| told.id.0).peekable();
    while let Some(from) = all.next() {
        let mut to = from;
        while let Some(next) = all.next_if(|next| to.checked_add(1) == Some(*next)) {
            to = next;
        }
        let comma = if out.is_empty() { "" } else { "," };
        let _infallible = match from == to {
            true => write!(out, "{comma}{from}"),
            false => write!(out, "{comma}{from}-{to}"),
        };
    }
    out
}

/// A number as a text of sixteen digits.
#[derive(Clone, Copy)]
struct Hex(u64);

impl Display for Hex {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "\"{:016x}\"", self.0)
    }
}

struct OrNull<T>(Option<T>);

impl<T: Display> Display for OrNull<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.0 {
            Some(value) => value.fmt(f),
            None => f.write_str("null"),
        }
    }
}

impl Row {
    fn plain(&mut self, name: &str, value: impl Display) {
        // writing to a String cannot fail
        let _infallible = write!(self.0, ",\"{name}\":{value}");
    }

    /// A word that needs no escapes.
    fn text(&mut self, name: &str, value: &str) {
        let _infallible = write!(self.0, ",\"{name}\":\"{value}\"");
    }

    fn list<T: Display>(&mut self, name: &str, items: impl Iterator<Item = T>) {
        let items: Vec<String> = items.map(|item| item.to_string()).collect();
        // most are empty
        if !items.is_empty() {
            self.plain(name, format_args!("[{}]", items.join(",")));
        }
    }

    fn does(&mut self, what: &str) -> &mut Self {
        self.text("do", what);
        self
    }

    fn request(&mut self, request: u64) -> &mut Self {
        self.plain("r", Hex(request));
        self
    }

    fn slot(&mut self, id: ReplicaId) -> &mut Self {
        self.plain("id", id);
        self
    }
}
