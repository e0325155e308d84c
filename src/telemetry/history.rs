//! The last day in memory of a fixed size: an hour in steps of ten seconds, a day in steps of two minutes, and a day of each
//! replica in steps of five minutes.
//!
//! Whoever samples says what the counters show and what the gauges are; a point adds up what has been counted since the
//! sample before and the gauges of each sample, so that points of any length can be added to make longer ones. Times are
//! seconds since 1970, which mean the same to the next process.
//!
//! **Bounded:** [`FIXED_BYTES`] for the fleet and [`REPLICA_BYTES`] for each of at most [`MOST_REPLICAS`] names, of which
//! those that nobody has borne for a day are forgotten.

use crate::pack::record;
use parking_lot::Mutex;
use std::collections::{BTreeMap, HashMap, VecDeque};

/// Bounds of the histogram of times to the first token, and the bucket beyond the last.
pub const TTFT_BUCKETS: usize = 16;
/// Bytes that points of the whole fleet take at most.
pub const FIXED_BYTES: usize = (HOUR.keeps + DAY.keeps) * size_of::<Point<Sums>>();
/// Bytes that points of one replica take at most.
pub const REPLICA_BYTES: usize = REPLICA.keeps * size_of::<Point<AtReplica>>();
/// Replicas that are remembered.
pub const MOST_REPLICAS: usize = 512;
/// Seconds that "now" covers.
const NOW: u64 = 60;

const HOUR: Scale = Scale { step: 10, keeps: 360 };
const DAY: Scale = Scale { step: 120, keeps: 720 };
const REPLICA: Scale = Scale { step: 300, keeps: 288 };

/// Seconds of a point, and how many points are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Scale {
    step: u64,
    keeps: usize,
}

/// How far back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Span {
    /// An hour, in steps of ten seconds.
    Hour,
    /// A day, in steps of two minutes.
    Day,
}

/// What can be added up.
trait Sum: Copy + Default {
    fn add(&mut self, other: &Self);
}

macro_rules! sums {
    ($(#[$doc:meta])* $name:ident { $($(#[$about:meta])* $field:ident),+ $(,)? }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq)]
        pub struct $name {
            $($(#[$about])* pub $field: f64,)+
        }
        record!($name { $($field),+ });

        impl $name {
            fn zip(&mut self, other: &Self, change: impl Fn(&mut f64, f64)) {
                $(change(&mut self.$field, other.$field);)+
            }
        }

        impl Sum for $name {
            fn add(&mut self, other: &Self) {
                self.zip(other, |own, other| *own += other);
            }
        }
    };
}

sums! {
    /// Counters of requests and tokens.
    Counts {
        /// Requests ended.
        requests,
        /// Of these, those with a status from 500 on.
        errors,
        /// Of these, those whose client left.
        left,
        /// Requests turned away.
        shed,
        /// Prompt tokens, as reported.
        prompt_tokens,
        /// Of these, those from a cache.
        cached_tokens,
        /// Those that were expected to be.
        predicted_tokens,
        /// Prompt tokens that were read, where it is known how many were cached.
        uncached_tokens,
        /// Generated tokens.
        output_tokens,
    }
}

sums! {
    /// What the fleet is at a moment, or the sum of several.
    Gauges {
        /// Requests being served.
        in_flight,
        /// Requests that wait for room.
        waiting,
        /// Replicas that take requests.
        healthy,
        /// Replicas.
        replicas,
    }
}

sums! {
    /// What one replica is at a moment, or the sum of several.
    AtReplica {
        /// Whether it takes requests.
        healthy,
        /// Requests there.
        in_flight,
        /// Prompt tokens of answers that said how many were cached.
        prompt_tokens,
        /// Those that were.
        cached_tokens,
    }
}

/// What is added up for the fleet.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Sums {
    /// What was counted.
    pub counts: Counts,
    /// Times to the first token, by bucket.
    pub ttft: [f64; TTFT_BUCKETS],
    /// Sums of gauges, one for each sample.
    pub gauges: Gauges,
}
record!(Sums { counts, ttft, gauges });

impl Sum for Sums {
    fn add(&mut self, other: &Self) {
        self.counts.add(&other.counts);
        self.ttft.iter_mut().zip(other.ttft).for_each(|(own, other)| *own += other);
        self.gauges.add(&other.gauges);
    }
}

/// What happened from one time to another.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Point<T> {
    /// When it begins, in seconds since 1970.
    pub at: u64,
    /// Seconds of it that somebody watched.
    pub seconds: f64,
    /// How often gauges were looked at.
    pub samples: f64,
    /// What was seen.
    pub sums: T,
}
record!(Point<Sums> { at, seconds, samples, sums });
record!(Point<AtReplica> { at, seconds, samples, sums });

/// What the counters show and the gauges are.
#[derive(Clone, Debug, Default)]
pub struct Sample {
    /// The fleet: totals of counters, and gauges.
    pub fleet: Sums,
    /// Each replica by name: totals of counters, and gauges.
    pub replicas: Vec<(String, AtReplica)>,
}

#[derive(Clone, Debug)]
struct Ring<T> {
    scale: Scale,
    points: VecDeque<Point<T>>,
}

#[derive(Clone, Debug)]
struct Past {
    hour: Ring<Sums>,
    day: Ring<Sums>,
    replicas: BTreeMap<String, Ring<AtReplica>>,
    /// When the last sample was taken, and what it showed.
    last: Option<(f64, Sample)>,
}

/// The last day.
#[derive(Debug)]
pub struct History {
    past: Mutex<Past>,
    bounds: Vec<f64>,
}

/// What is handed to the next process.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct HistoryState {
    hour: Vec<Point<Sums>>,
    day: Vec<Point<Sums>>,
    replicas: Vec<(String, Vec<Point<AtReplica>>)>,
}
record!(HistoryState { hour, day, replicas });

impl<T: Sum> Ring<T> {
    fn new(scale: Scale) -> Self {
        Ring { scale, points: VecDeque::new() }
    }

    /// Adds what was seen in the `seconds` before `now`. A clock that went back adds to the last point.
    fn add(&mut self, now: u64, seconds: f64, sums: &T) {
        let at = now - now % self.scale.step;
        if self.points.back().is_none_or(|last| last.at < at) {
            self.drop_old(at);
            if self.points.len() == self.points.capacity() {
                // by little, and never beyond what is kept
                let more = (self.scale.keeps / 8).min(self.scale.keeps - self.points.len());
                self.points.reserve_exact(more.max(1));
            }
            self.points.push_back(Point { at, ..Point::default() });
        }
        if let Some(last) = self.points.back_mut() {
            last.seconds += seconds;
            last.samples += 1.0;
            last.sums.add(sums);
        }
    }

    fn drop_old(&mut self, at: u64) {
        let oldest = at.saturating_sub(self.scale.step * (self.scale.keeps as u64 - 1));
        while self.points.front().is_some_and(|p| p.at < oldest) || self.points.len() >= self.scale.keeps {
            self.points.pop_front();
        }
    }

    fn restored(scale: Scale, points: Vec<Point<T>>) -> Self {
        let skipped = points.len().saturating_sub(scale.keeps);
        let mut points: VecDeque<_> = points.into_iter().skip(skipped).collect();
        points.shrink_to_fit();
        Ring { scale, points }
    }
}

impl Past {
    fn replica(&mut self, name: &str) -> Option<&mut Ring<AtReplica>> {
        if !self.replicas.contains_key(name) && self.replicas.len() < MOST_REPLICAS {
            self.replicas.insert(name.to_owned(), Ring::new(REPLICA));
        }
        self.replicas.get_mut(name)
    }

    fn forget_old(&mut self, now: u64) {
        let is_recent = |ring: &Ring<AtReplica>| {
            ring.points.back().is_some_and(|p| p.at + REPLICA.keeps as u64 * REPLICA.step > now)
        };
        self.replicas.retain(|_, ring| is_recent(ring));
    }
}

/// What has been counted between two totals: nothing where one is less, which is another process's.
fn since(now: &Sums, before: &Sums) -> Sums {
    let less = |now: &mut f64, before: f64| *now = (*now - before).max(0.0);
    let mut out = *now;
    out.counts.zip(&before.counts, less);
    out.ttft.iter_mut().zip(before.ttft).for_each(|(now, before)| less(now, before));
    out
}

impl History {
    /// Nothing has happened yet; `bounds` are those of the histogram of times to the first token, in seconds.
    pub fn new(bounds: &[f64]) -> Self {
        let (hour, day) = (Ring::new(HOUR), Ring::new(DAY));
        let past = Past { hour, day, replicas: BTreeMap::new(), last: None };
        History { past: Mutex::new(past), bounds: bounds.to_vec() }
    }

    /// Takes a sample at `now`, in seconds since 1970. The first one says where counting begins.
    pub fn sample(&self, now: f64, sample: Sample) {
        let past = &mut *self.past.lock();
        if let Some((before, last)) = past.last.take() {
            let (seconds, at) = ((now - before).clamp(0.0, 3600.0), whole(now));
            let seen = since(&sample.fleet, &last.fleet);
            past.hour.add(at, seconds, &seen);
            past.day.add(at, seconds, &seen);
            past.forget_old(at);
            let known: HashMap<&str, &AtReplica> = last.replicas.iter().map(|(n, r)| (n.as_str(), r)).collect();
            for (name, shown) in &sample.replicas {
                let before = known.get(name.as_str()).copied().unwrap_or(shown);
                let mut seen = *shown;
                seen.prompt_tokens = (shown.prompt_tokens - before.prompt_tokens).max(0.0);
                seen.cached_tokens = (shown.cached_tokens - before.cached_tokens).max(0.0);
                if let Some(ring) = past.replica(name) {
                    ring.add(at, seconds, &seen);
                }
            }
        }
        past.last = Some((now, sample));
    }

    /// The points of a span, oldest first, and the seconds of each.
    pub fn series(&self, span: Span) -> (u64, Vec<Point<Sums>>) {
        let past = self.past.lock();
        let ring = match span {
            Span::Hour => &past.hour,
            Span::Day => &past.day,
        };
        (ring.scale.step, ring.points.iter().copied().collect())
    }

    /// The points of a replica, oldest first, and the seconds of each.
    pub fn of_replica(&self, name: &str) -> Option<(u64, Vec<Point<AtReplica>>)> {
        let past = self.past.lock();
        let ring = past.replicas.get(name)?;
        Some((ring.scale.step, ring.points.iter().copied().collect()))
    }

    /// The last minute before `now` as one point.
    pub fn now(&self, now: f64) -> Point<Sums> {
        let from = whole(now).saturating_sub(NOW);
        let past = self.past.lock();
        let mut sum = Point::<Sums> { at: from, ..Point::default() };
        for point in past.hour.points.iter().rev().take_while(|p| p.at >= from) {
            sum.seconds += point.seconds;
            sum.samples += point.samples;
            sum.sums.add(&point.sums);
        }
        sum
    }

    /// The time to the first token, in seconds, that a share `q` of requests did not exceed: as Prometheus estimates it,
    /// evenly spread within a bucket. `None` where nothing was measured.
    pub fn quantile(&self, q: f64, buckets: &[f64; TTFT_BUCKETS]) -> Option<f64> {
        let all: f64 = buckets.iter().sum();
        let (mut below, mut left) = (0.0, q * all);
        for (n, count) in buckets.iter().enumerate() {
            let Some(bound) = self.bounds.get(n) else { break };
            if *count > 0.0 && left <= *count {
                return Some(below + (bound - below) * left / count);
            }
            (left, below) = (left - count, *bound);
        }
        // beyond the last bound nothing is known but that
        (all > 0.0).then_some(below)
    }

    /// Heap bytes in use, about.
    pub fn bytes(&self) -> usize {
        let past = self.past.lock();
        let of = |ring: &Ring<Sums>| ring.points.capacity() * size_of::<Point<Sums>>();
        let replicas = past
            .replicas
            .iter()
            .map(|(name, ring)| name.len() + ring.points.capacity() * size_of::<Point<AtReplica>>());
        of(&past.hour) + of(&past.day) + replicas.sum::<usize>()
    }

    /// What is handed over.
    pub fn state(&self) -> HistoryState {
        let past = self.past.lock();
        let points = |ring: &Ring<AtReplica>| ring.points.iter().copied().collect();
        HistoryState {
            hour: past.hour.points.iter().copied().collect(),
            day: past.day.points.iter().copied().collect(),
            replicas: past.replicas.iter().map(|(name, ring)| (name.clone(), points(ring))).collect(),
        }
    }

    /// Takes in the past of the process before this one.
    pub fn restore(&self, state: HistoryState) {
        let past = &mut *self.past.lock();
        past.hour = Ring::restored(HOUR, state.hour);
        past.day = Ring::restored(DAY, state.day);
        let replicas = state.replicas.into_iter().take(MOST_REPLICAS);
        past.replicas = replicas.map(|(name, points)| (name, Ring::restored(REPLICA, points))).collect();
    }
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "clamped to what fits")]
fn whole(seconds: f64) -> u64 {
    seconds.clamp(0.0, 1e15) as u64
}

#[cfg(test)]
mod tests;
