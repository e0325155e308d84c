//! What a replay has found, in words and in two columns: then and now.

use crate::fleet::replay::{Again, Replay};
use crate::fleet::steps::{Change, Stage};
use crate::policy::select::Params;
use crate::telemetry::journal::Part;
use crate::types::{PolicyKind, ReplicaId};
use std::collections::BTreeMap;
use std::fmt::Write;

/// What was found so far.
#[derive(Default)]
pub(super) struct Report {
    /// The fleet that lives through the steps, from the first line on.
    pub(super) replay: Option<Replay>,
    /// The last file that was begun.
    part: Option<Part>,
    runs: u64,
    /// What is missing of the process that is read.
    missing: Option<Missing>,
    /// Choices that come after something that is missing, by what.
    unjudged: [u64; 4],
    /// Those of the others that went elsewhere.
    judged_moved: u64,
    lost: u64,
    /// Milliseconds that processes before this one were watched for; when this one was first and last.
    before_ms: f64,
    from: Option<f64>,
    to: f64,
    rules: Option<(Params, Params)>,
    /// How often they became others.
    ruled: u64,
    choices: u64,
    moved: Vec<Again>,
    nowhere: u64,
    unlike: u64,
    tokens: f64,
    sides: [Side; 2],
    /// Prompt tokens and those from the cache, as engines reported them.
    reported: (u64, u64),
}

/// Why a choice cannot be judged: what it went by is not all written down.
#[derive(Clone, Copy)]
enum Missing {
    /// The file is not the first one of its journal.
    Beginning,
    /// The process had taken over what another one knew.
    Inheritance,
    /// Steps that the disk was too slow for.
    Steps,
    /// Other processes have told of what they do and know.
    Others,
}

/// One column.
#[derive(Default)]
struct Side {
    held: f64,
    waited_ms: f64,
    /// By replica: choices, and tokens to read.
    at: BTreeMap<ReplicaId, (u64, f64)>,
}

impl Side {
    /// The largest share of what is to be read over the mean one, among so many replicas.
    fn imbalance(&self, replicas: usize) -> f64 {
        let most = self.at.values().map(|(_, tokens)| *tokens).fold(0.0, f64::max);
        let sum: f64 = self.at.values().map(|(_, tokens)| tokens).sum();
        if sum > 0.0 { most * count(replicas) / sum } else { 1.0 }
    }
}

#[expect(clippy::cast_precision_loss, reason = "few enough to be told to a few digits")]
fn count(n: usize) -> f64 {
    n as f64
}

#[expect(clippy::cast_precision_loss, reason = "told to a few digits")]
fn share(part: u64, of: u64) -> f64 {
    if of == 0 { 0.0 } else { 100.0 * part as f64 / of as f64 }
}

impl Report {
    /// A file begins: whether it goes on where the one before it has ended.
    pub(super) fn goes_on(&mut self, part: Part) -> bool {
        let last = self.part.replace(part);
        self.replay.is_some() && last.is_some_and(|last| part.follows(last))
    }

    /// A process begins, with a fleet of its own: with its first file, or in the midst.
    pub(super) fn begin(&mut self, replay: Replay, part: Part) {
        self.replay = Some(replay);
        // each has a clock of its own
        self.before_ms = self.watched_ms();
        self.from = None;
        self.runs += 1;
        self.missing = (part.number > 0).then_some(Missing::Beginning);
    }

    pub(super) fn lost(&mut self, steps: u64) {
        self.lost += steps;
        self.missing.get_or_insert(Missing::Steps);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.choices == 0
    }

    pub(super) fn step(&mut self, stage: Stage) {
        let Some(mut replay) = self.replay.take() else { return };
        self.to = stage.at;
        self.from.get_or_insert(stage.at);
        for change in &stage.changes {
            match change {
                Change::Ended(_, ending) => {
                    if let [Some(prompt), Some(cached), _] = ending.usage {
                        self.reported = (self.reported.0 + prompt, self.reported.1 + cached);
                    }
                }
                Change::Inherited => {
                    self.missing.get_or_insert(Missing::Inheritance);
                }
                Change::Heard => {
                    self.missing.get_or_insert(Missing::Others);
                }
                Change::Ruled(ruled) => {
                    self.ruled += u64::from(self.rules.is_some_and(|(before, _)| before != ruled.params));
                    self.rules = Some((ruled.params, replay.other(ruled.params)));
                }
                _ => {}
            }
        }
        replay.step(stage, |again| self.choice(again));
        self.replay = Some(replay);
    }

    /// For how long all of them were watched.
    fn watched_ms(&self) -> f64 {
        self.before_ms + self.from.map_or(0.0, |from| self.to - from)
    }

    fn choice(&mut self, again: Again) {
        self.choices += 1;
        self.tokens += again.prompt;
        self.unlike += u64::from(!again.saw_the_same);
        let is_elsewhere = again.now.is_none_or(|now| now.to != again.then.to);
        match self.missing {
            Some(missing) => self.unjudged[missing as usize] += 1,
            None => self.judged_moved += u64::from(is_elsewhere),
        }
        let Some(now) = again.now else {
            self.nowhere += 1;
            return;
        };
        if now.to != again.then.to {
            self.moved.push(again);
        }
        for (side, went) in self.sides.iter_mut().zip([again.then, now]) {
            side.held += went.held;
            side.waited_ms += went.ttft_ms;
            let at = side.at.entry(went.to).or_default();
            *at = (at.0 + 1, at.1 + (again.prompt - went.held).max(0.0));
        }
    }

    /// The report; so many of the choices that went elsewhere are listed.
    pub(super) fn page(&self, list: usize) -> String {
        let mut out = String::new();
        let seconds = self.watched_ms() / 1000.0;
        // writing to a String cannot fail, here and below
        let _infallible = writeln!(out, "choices:  {} in {seconds:.1} s", self.choices);
        if let Some((then, now)) = &self.rules {
            let _infallible = writeln!(out, "then:     {}\nnow:      {}", rule(then), rule(now));
        }
        let moved = self.moved.len() as u64;
        let _infallible = writeln!(out, "moved:    {moved} ({:.2} %)", share(moved, self.choices));
        let judged = self.choices - self.unjudged.iter().sum::<u64>();
        if judged < self.choices {
            let (part, moved) = (share(judged, self.choices), self.judged_moved);
            let _infallible = writeln!(out, "judged:   {judged} ({part:.2} %), {moved} of them moved");
        }
        if self.nowhere > 0 {
            let _infallible = writeln!(out, "nowhere:  {} found no candidate again", self.nowhere);
        }
        let alike = self.choices - self.unlike;
        let _infallible = writeln!(
            out,
            "alike:    {alike} ({:.2} %) saw the same overlaps and loads as then",
            share(alike, self.choices)
        );
        self.columns(&mut out);
        self.doubts(&mut out);
        self.list(&mut out, list);
        out
    }

    fn columns(&self, out: &mut String) {
        let [then, now] = &self.sides;
        let mut row = |name: &str, then: String, now: String| {
            let _infallible = writeln!(out, "{name:<28} {then:>12} {now:>12}");
        };
        row("", "then".to_owned(), "now".to_owned());
        let reuse = |side: &Side| format!("{:.2} %", 100.0 * side.held / self.tokens.max(1.0));
        row("predicted reuse", reuse(then), reuse(now));
        let placed = self.choices - self.nowhere;
        #[expect(clippy::cast_precision_loss, reason = "told to a few digits")]
        let ttft = |side: &Side| format!("{:.1} ms", side.waited_ms / placed.max(1) as f64);
        row("predicted first token, mean", ttft(then), ttft(now));
        let mut replicas: Vec<ReplicaId> = then.at.keys().chain(now.at.keys()).copied().collect();
        replicas.sort_unstable();
        replicas.dedup();
        let balance = |side: &Side| format!("{:.3}", side.imbalance(replicas.len()));
        row("to read, most over mean", balance(then), balance(now));
        for id in replicas {
            let at = |side: &Side| side.at.get(&id).copied().unwrap_or_default();
            row(&format!("choices at replica {id}"), at(then).0.to_string(), at(now).0.to_string());
            let read = |side| format!("{:.0}", at(side).1);
            row(&format!("tokens to read at replica {id}"), read(then), read(now));
        }
        let (prompt, cached) = self.reported;
        if prompt > 0 {
            let reported = format!("{:.2} %", share(cached, prompt));
            row("reported reuse", reported, "-".to_owned());
        }
    }

    /// Why it may not be exact.
    fn doubts(&self, out: &mut String) {
        let mut doubt = |text: &str| {
            let _infallible = writeln!(out, "note: {text}");
        };
        if self.runs > 1 {
            doubt(&format!("{} processes wrote it: each begins with nothing known", self.runs));
        }
        if self.ruled > 0 {
            let times = if self.ruled == 1 { "once".to_owned() } else { format!("{} times", self.ruled) };
            doubt(&format!("rules were changed {times}: those above are the last ones"));
        }
        let lost = format!("{} steps before them are missing: the disk was too slow", self.lost);
        let whys = [
            "a file before theirs is not there: what was known before them is not",
            "their process had taken over what another one knew, which is not written down",
            &lost,
            "their process went by what other routers had told it, which is not written down",
        ];
        for (count, why) in self.unjudged.iter().zip(whys).filter(|(count, _)| **count > 0) {
            doubt(&format!("{count} choices cannot be judged: {why}"));
        }
        if self.lost > 0 && self.unjudged[Missing::Steps as usize] == 0 {
            doubt(&format!("{} steps are missing: the disk was too slow for them", self.lost));
        }
        if !self.moved.is_empty() {
            doubt(
                "what went elsewhere is taken to have lasted as long as it did, and its cache to hold what is believed",
            );
        }
    }

    fn list(&self, out: &mut String, most: usize) {
        for again in self.moved.iter().take(most) {
            let Some(now) = again.now else { continue };
            let _infallible = writeln!(
                out,
                "{:016x}: replica {} ({:.0} of {:.0} tokens held) -> {} ({:.0} held)",
                again.request, again.then.to, again.then.held, again.prompt, now.to, now.held
            );
        }
        if self.moved.len() > most && most > 0 {
            let _infallible = writeln!(out, "and {} more", self.moved.len() - most);
        }
    }
}

fn rule(params: &Params) -> String {
    match params.policy {
        PolicyKind::Affinity => {
            let affinity = &params.affinity;
            format!("affinity, {}, cap {}, alpha {}", affinity.basis.name(), affinity.cap_blocks, affinity.alpha)
        }
        other => other.name().to_owned(),
    }
}
