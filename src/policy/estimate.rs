//! What is learned of replicas and models from requests that ended: rates, pure.
//!
//! Rates are learned from what every answer shows anyway, so no calibration is needed: how long the engine took from
//! beginning a prompt to its first token, and how its tokens followed. Start values are the middle of what large models
//! on current accelerators do. Every observation is cut before it counts: an outlier (a swapped page, a cold compile) is
//! an annoyance, a changed machine is followed within a few dozen requests.
//!
//! Prefill is learned as a ratio of sums, time over tokens. Engines read several prompts in one batch, whose first tokens
//! come together: the first then seems to have taken all of the time and the others none, and only the sums are right.

use crate::pack::record;

/// What a replica is believed to need, in milliseconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rates {
    /// To read one prompt token after nothing.
    pub prefill_token: f64,
    /// For one decode step of one sequence.
    pub step: f64,
    /// For each further sequence in a step.
    pub step_growth: f64,
    /// Recent tokens (weighted by their place) behind `prefill_token`, those of the start value among them.
    seen_tokens: f64,
    /// The same without the start value's.
    own_tokens: f64,
    /// Answers behind `step`.
    answers: f64,
}

record!(Rates { prefill_token, step, step_growth, seen_tokens, own_tokens, answers });

/// What replicas are believed to need that have shown little of it yet: what their peers need. An unknown one would
/// otherwise draw, or lose, everything by a start value that fits none of them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Prior {
    prefill_token: f64,
    step: f64,
}

/// Context tokens at which attention has doubled the cost of reading a token. Between dense models (below) and those
/// with sparse or compressed attention (far above).
const DOUBLING_CONTEXT: f64 = 250_000.0;

/// Start values: 8,000 prompt tokens and about 80 generated tokens a second.
pub const START: Rates = Rates {
    prefill_token: 0.125,
    step: 12.0,
    step_growth: 0.15,
    seen_tokens: MEMORY / 4.0,
    own_tokens: 0.0,
    answers: 0.0,
};

/// So many tokens, and answers, of its own count for a replica as much as what is known of its peers.
const PRIOR: (f64, f64) = (MEMORY / 4.0, 10.0);

/// Tokens over which prefill is averaged.
const MEMORY: f64 = 100_000.0;
/// A prompt that took more than so many times what was expected counts as this many: a batch of as many, at most.
const PREFILL_CUT: f64 = 8.0;
/// The most that another observation may differ from what is believed, as a factor, before it is cut.
const CUT: f64 = 2.0;
/// How much of a (cut) difference is believed at once.
const STEP_GAIN: f64 = 0.1;
/// By how much one prompt may change what is believed, as a factor: after a cold start one may take a minute.
const MOST_CHANGE: f64 = 1.5;
/// No engine reads a token faster than this, in milliseconds.
const LEAST_PREFILL: f64 = 1e-4;
/// Prompts with fewer new tokens tell more of overheads than of prefill.
const LEAST_TOKENS: f64 = 256.0;

impl Rates {
    /// Time to read `new` tokens after `cached` ones. Each token attends to all before it, so the cost of a token
    /// grows linearly with its place: `Σ 1 + place / DOUBLING_CONTEXT`.
    #[inline]
    pub fn prefill_ms(&self, new: f64, cached: f64) -> f64 {
        self.prefill_token * weighted(new, cached)
    }

    /// Time of one step with `running` sequences.
    #[inline]
    pub fn step_ms(&self, running: f64) -> f64 {
        self.step + self.step_growth * (running - 1.0).max(0.0)
    }

    /// A prompt of `new` tokens after `cached` ones took `ms` from its beginning to its first token.
    pub fn observe_prefill(&mut self, new: f64, cached: f64, ms: f64) {
        if new < LEAST_TOKENS || ms < 0.0 {
            return;
        }
        let tokens = weighted(new, cached);
        let ms = ms.min(PREFILL_CUT * self.prefill_token * tokens);
        let kept = self.seen_tokens * (-tokens / MEMORY).exp();
        let seen = (self.prefill_token * kept + ms) / (kept + tokens);
        // however long it was, one prompt is one
        self.prefill_token =
            seen.clamp(self.prefill_token / MOST_CHANGE, self.prefill_token * MOST_CHANGE).max(LEAST_PREFILL);
        self.seen_tokens = kept + tokens;
        self.own_tokens = (self.own_tokens + tokens).min(self.seen_tokens);
    }

    /// Tokens followed each other after `ms` on average, with `running` sequences in the batch.
    pub fn observe_step(&mut self, running: f64, ms: f64) {
        if ms > 0.0 {
            // growth is a property of the model's shape: the two move together
            let factor = moved(1.0, ms / self.step_ms(running), STEP_GAIN);
            self.step *= factor;
            self.step_growth *= factor;
            self.answers += 1.0;
        }
    }

    /// As a row of numbers; see [`Self::from_row`].
    pub fn row(&self) -> [f64; 6] {
        [self.prefill_token, self.step, self.step_growth, self.seen_tokens, self.own_tokens, self.answers]
    }

    /// What [`Self::row`] was made of.
    #[inline]
    pub fn from_row([prefill_token, step, step_growth, seen_tokens, own_tokens, answers]: [f64; 6]) -> Self {
        Rates { prefill_token, step, step_growth, seen_tokens, own_tokens, answers }
    }

    /// Whether next to nothing was seen of it.
    pub fn is_unknown(&self) -> bool {
        self.own_tokens < PRIOR.0 / 4.0 && self.answers < PRIOR.1 / 4.0
    }

    /// Whether it can be one's rates, wherever it comes from.
    pub fn is_sound(&self) -> bool {
        let [prefill, step, growth, counts @ ..] = self.row();
        let is_time = |ms: f64| ms > 0.0 && ms < 1e6;
        is_time(prefill)
            && is_time(step)
            && (0.0..1e6).contains(&growth)
            && counts.iter().all(|n| (0.0..1e15).contains(n))
    }

    /// The machine may be another one: what its peers show counts again.
    pub fn doubt(&mut self) {
        self.own_tokens = self.own_tokens.min(PRIOR.0 / 4.0);
        self.answers = self.answers.min(PRIOR.1 / 4.0);
    }

    /// These rates as far as they are known, and for the rest those of the peers.
    #[must_use]
    #[inline]
    pub fn with(mut self, prior: Prior) -> Self {
        let of = |own: f64, other: f64, seen: f64, weight: f64| (own * seen + other * weight) / (seen + weight);
        self.prefill_token = of(self.prefill_token, prior.prefill_token, self.own_tokens, PRIOR.0);
        let step = of(self.step, prior.step, self.answers, PRIOR.1);
        self.step_growth *= step / self.step;
        self.step = step;
        self
    }
}

impl Prior {
    /// What these replicas need on the whole; the start values where none has shown anything.
    #[inline]
    pub fn of(all: impl Iterator<Item = Rates>) -> Self {
        let sum = |(ms, tokens, steps, answers): (f64, f64, f64, f64), r: Rates| {
            let count = r.answers.min(PRIOR.1);
            let steps = steps + r.step * count;
            (ms + r.prefill_token * r.own_tokens, tokens + r.own_tokens, steps, answers + count)
        };
        let (ms, tokens, steps, answers) = all.fold((0.0, 0.0, 0.0, 0.0), sum);
        Prior {
            prefill_token: if tokens > 0.0 { ms / tokens } else { START.prefill_token },
            step: if answers > 0.0 { steps / answers } else { START.step },
        }
    }
}

#[inline]
fn weighted(new: f64, cached: f64) -> f64 {
    new * (1.0 + (cached + new / 2.0) / DOUBLING_CONTEXT)
}

/// `old` moved towards `seen` by a share of their difference on a logarithmic scale, the difference cut first.
fn moved(old: f64, seen: f64, gain: f64) -> f64 {
    let difference = (seen / old).ln().clamp(-CUT.ln(), CUT.ln());
    old * (gain * difference).exp()
}

/// What a model's requests look like.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ModelRates {
    /// Tokens per canonical byte.
    pub tokens_per_byte: f64,
    /// Tokens of an answer.
    pub output: f64,
}

record!(ModelRates { tokens_per_byte, output });

/// Start values: four bytes a token, a paragraph an answer.
pub const MODEL_START: ModelRates = ModelRates { tokens_per_byte: 0.25, output: 200.0 };

impl ModelRates {
    /// Whether it can be a model's, wherever it comes from.
    pub fn is_sound(&self) -> bool {
        (1e-4..1e2).contains(&self.tokens_per_byte) && (1.0..1e9).contains(&self.output)
    }

    /// A prompt of `bytes` canonical bytes was `tokens` long.
    pub fn observe_prompt(&mut self, bytes: f64, tokens: f64) {
        if bytes >= 1024.0 && tokens > 0.0 {
            self.tokens_per_byte = moved(self.tokens_per_byte, tokens / bytes, 0.1);
        }
    }

    /// An answer was `tokens` long. The mean matters, not the median: long answers are where the work is.
    pub fn observe_output(&mut self, tokens: f64) {
        self.output += 0.02 * (tokens.min(20.0 * self.output) - self.output);
        self.output = self.output.max(1.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_long_context_makes_a_token_dearer() {
        let at = |cached| START.prefill_ms(1000.0, cached);
        assert!(at(100_000.0) > 1.3 * at(0.0) && at(100_000.0) < 1.5 * at(0.0));
        assert!(START.prefill_ms(100_000.0, 0.0) > 100.0 * START.prefill_ms(1000.0, 0.0));
    }

    #[test]
    fn rates_find_a_machine_that_is_four_times_slower_and_shrug_off_outliers() {
        let mut rates = START;
        for n in 0..60 {
            let new = 1000.0 + f64::from(n) * 100.0;
            // one observation in twenty is wild
            let factor = if n % 20 == 3 { 50.0 } else { 4.0 };
            rates.observe_prefill(new, 5000.0, factor * START.prefill_ms(new, 5000.0));
            rates.observe_step(8.0, factor * START.step_ms(8.0));
        }
        assert!((3.2..6.0).contains(&(rates.prefill_token / START.prefill_token)), "{rates:?}");
        assert!((rates.step / START.step - 4.0).abs() < 0.8, "{rates:?}");
    }

    #[test]
    fn prompts_that_are_read_in_batches_do_not_make_the_engine_seem_infinitely_fast() {
        let mut rates = START;
        for _ in 0..60 {
            for took in [500.0, 0.2, 0.2, 0.2] {
                rates.observe_prefill(1000.0, 0.0, took);
            }
        }
        assert!((0.5..2.0).contains(&(rates.prefill_token / START.prefill_token)), "{rates:?}");
    }

    #[test]
    fn an_unknown_replica_is_taken_for_one_of_its_peers_and_a_known_one_for_itself() {
        let mut slow = START;
        for _ in 0..200 {
            slow.observe_prefill(4000.0, 0.0, 10.0 * START.prefill_ms(4000.0, 0.0));
            slow.observe_step(8.0, 10.0 * START.step_ms(8.0));
        }
        let prior = Prior::of([slow, START].into_iter());
        let (known, unknown) = (slow.with(prior), START.with(prior));
        assert!((known.prefill_token / unknown.prefill_token - 1.0).abs() < 0.01, "{known:?} {unknown:?}");
        assert!((known.step_ms(20.0) / unknown.step_ms(20.0) - 1.0).abs() < 0.01, "{known:?} {unknown:?}");
        let mut fast = START;
        for _ in 0..200 {
            fast.observe_prefill(4000.0, 0.0, START.prefill_ms(4000.0, 0.0));
        }
        let prior = Prior::of([slow, fast].into_iter());
        assert!(slow.with(prior).prefill_token > 3.0 * fast.with(prior).prefill_token);
        assert_eq!(START.with(Prior::of([START; 3].into_iter())), START);
    }

    #[test]
    fn one_prompt_that_took_for_ever_does_not_condemn_a_replica() {
        let mut rates = START;
        rates.observe_prefill(60_000.0, 0.0, 100.0 * START.prefill_ms(60_000.0, 0.0));
        assert!(rates.prefill_token <= 1.5 * START.prefill_token);
    }

    #[test]
    fn a_model_is_learned_from_its_usage() {
        let mut model = MODEL_START;
        for n in 0..300 {
            model.observe_prompt(40_000.0, 13_000.0);
            model.observe_output(if n % 10 == 0 { 2000.0 } else { 100.0 });
        }
        assert!((model.tokens_per_byte - 0.325).abs() < 0.01, "{model:?}");
        assert!((model.output - 290.0).abs() < 100.0, "{model:?}");
    }

    proptest! {
        #[test]
        fn estimates_stay_finite_and_positive(seen in prop::collection::vec((0.0f64..1e9, 0.0f64..1e9, 0.0f64..1e12), 0..200)) {
            let (mut rates, mut model) = (START, MODEL_START);
            for (a, b, c) in seen {
                rates.observe_prefill(a, b, c);
                rates.observe_step(a, c);
                model.observe_prompt(a, b);
                model.observe_output(b);
            }
            for value in [rates.prefill_token, rates.step, rates.step_growth, model.tokens_per_byte, model.output] {
                prop_assert!(value.is_finite() && value > 0.0);
            }
        }
    }
}
