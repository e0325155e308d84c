//! What became of prompt tokens, model by model: a bounded number of models, all of them names that replicas list.

use super::metrics::Metrics;
use super::registry::Result;
use crate::api::family::Family;
use crate::api::outline::{Change, Part};
use crate::fleet::Fleet;
use crate::policy::accounts::Accounts;
use prometheus::{IntCounter, IntCounterVec};
use std::collections::BTreeMap;

/// Models with series of their own; the others share one.
const MOST: usize = 64;
/// The label of those that share one.
const OTHER: &str = "other";

pub(super) const TOKENS: &str = "ramjet_model_prompt_tokens_total";
pub(super) const ROTATION: &str = "ramjet_model_round_robin_cached_prompt_tokens_estimate_total";
pub(super) const SAVED: &str = "ramjet_model_saved_prompt_tokens_estimate_total";
pub(super) const REPORTS: &str = "ramjet_model_cached_tokens_reported_total";

/// What became of the prompts of a model, of answers that told how many tokens were cached.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Sums {
    /// Answers.
    pub requests: f64,
    /// Prompt tokens by account, the cached ones among them.
    pub accounts: BTreeMap<String, f64>,
    /// Cached tokens that replicas taking turns would have had, an estimate.
    pub rotation: f64,
    /// Those beyond them, of requests that had more; an estimate.
    pub saved: f64,
}

/// What is counted of the prompts of one model.
pub(super) struct Series {
    /// In the order of the accounts.
    tokens: [IntCounter; 5],
    rotation: IntCounter,
    saved: IntCounter,
    reports: IntCounter,
}

impl Metrics {
    /// What has a closed set of labels, at zero.
    pub(super) fn show_prompts_from_the_start(&self) {
        for client in Family::ALL {
            for part in Part::ALL {
                for change in Change::ALL {
                    let labels = [client.label(), part.label(), change.label()];
                    self.breaks.with_label_values(&labels);
                    self.break_tokens.with_label_values(&labels);
                }
            }
        }
        self.with_series(OTHER, |_| ());
    }

    /// The models that replicas list, at zero; as long as there are few.
    pub(super) fn show_models(&self, listed: impl IntoIterator<Item = String>) {
        for name in listed {
            self.with_series(&name, |_| ());
        }
    }

    fn show_model(&self, label: &str) -> Series {
        let by_model = |counters: &IntCounterVec| counters.with_label_values(&[label]);
        let account = |(account, _)| self.model_tokens.with_label_values(&[label, account]);
        Series {
            tokens: Accounts::default().whole().map(account),
            rotation: by_model(&self.model_rotation),
            saved: by_model(&self.model_saved),
            reports: by_model(&self.model_reports),
        }
    }

    /// An answer of `model` (one that a replica lists) told how many tokens of its prompt were cached; replicas that take
    /// turns would have had `rotation` of them.
    pub fn accounted(&self, model: Option<&str>, accounts: Accounts, rotation: u64) {
        self.ready.account(accounts);
        let saved = accounts.cached.saturating_sub(rotation);
        self.saved_tokens.inc_by(saved);
        self.with_series(model.unwrap_or(OTHER), |series| {
            for (counter, (_, tokens)) in series.tokens.iter().zip(accounts.whole()) {
                counter.inc_by(tokens);
            }
            series.rotation.inc_by(rotation);
            series.saved.inc_by(saved);
            series.reports.inc();
        });
    }

    /// A prompt parted from one before it, and so many tokens after that are the same.
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "tokens are few and not negative")]
    pub fn prompt_broke(&self, client: Family, part: Part, change: Change, tokens: f64) {
        let labels = [client.label(), part.label(), change.label()];
        self.breaks.with_label_values(&labels).inc();
        self.break_tokens.with_label_values(&labels).inc_by(tokens as u64);
    }

    /// Counts in the series of a model: its own, as long as there are few.
    fn with_series(&self, name: &str, count: impl FnOnce(&Series)) {
        let mut known = self.models.lock();
        let find = |known: &[(String, Series)], name: &str| known.iter().position(|(other, _)| other == name);
        let place = find(&known, name).unwrap_or_else(|| {
            let label = if known.len() <= MOST { name } else { OTHER };
            find(&known, label).unwrap_or_else(|| {
                known.push((label.to_owned(), self.show_model(label)));
                known.len() - 1
            })
        });
        count(&known[place].1);
    }

    /// The sums by model, those of processes before this one among them; of models of which an answer has told.
    ///
    /// # Errors
    /// A metric that cannot be read.
    pub fn prompts(&self, fleet: &Fleet) -> Result<BTreeMap<String, Sums>> {
        let mut models: BTreeMap<String, Sums> = BTreeMap::new();
        for family in self.gather(fleet) {
            for metric in family.get_metric() {
                let label =
                    |name: &str| metric.get_label().iter().find(|l| l.name() == name).map(|l| l.value().to_owned());
                let is_one = matches!(family.name(), TOKENS | ROTATION | SAVED | REPORTS);
                let Some(model) = label("model").filter(|_| is_one) else { continue };
                let (sums, value) = (models.entry(model).or_default(), metric.get_counter().get_value());
                match family.name() {
                    TOKENS => *sums.accounts.entry(label("account").unwrap_or_default()).or_default() += value,
                    ROTATION => sums.rotation += value,
                    SAVED => sums.saved += value,
                    _ => sums.requests += value,
                }
            }
        }
        models.retain(|_, sums| sums.requests > 0.0);
        Ok(models)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::accounts::{Facts, account};
    use crate::policy::testing::params;
    use crate::types::PolicyKind;
    use proptest::prelude::*;

    #[test]
    fn models_beyond_many_share_one_series() {
        let (metrics, fleet) = (Metrics::new().unwrap(), Fleet::new(vec![], params(PolicyKind::Cost), 1 << 20));
        for n in 0..1000 {
            metrics.accounted(Some(&format!("m{n}")), Accounts { cached: 1, new: 2, ..Accounts::default() }, 0);
        }
        let models = metrics.prompts(&fleet).unwrap();
        assert_eq!(
            (models.len(), models[OTHER].requests, models["m0"].requests),
            (MOST + 1, 1000.0 - MOST as f64, 1.0)
        );
        assert_eq!(
            (models[OTHER].accounts["new"], models["m0"].accounts["cached"]),
            (2.0 * (1000.0 - MOST as f64), 1.0)
        );
    }

    proptest! {
        #[test]
        fn the_accounts_of_a_model_add_up_to_its_prompts(
            all in prop::collection::vec((0usize..3, 0u64..9000, 0u64..9000, 0.0f64..9e3, 0.0f64..9e3, 0u64..9000), 1..40),
        ) {
            let (metrics, fleet) = (Metrics::new().unwrap(), Fleet::new(vec![], params(PolicyKind::Cost), 1 << 20));
            let (mut prompts, mut cached_of) = ([0; 3], [0; 3]);
            for (model, prompt, cached, held, elsewhere, rotation) in all {
                let facts = Facts { prompt, cached, block: 10.0, held, known: held, elsewhere, before: Some(900.0) };
                metrics.accounted(Some(["a", "b", "c"][model]), account(&facts), rotation);
                prompts[model] += prompt;
                cached_of[model] += prompt.min(cached);
            }
            for (model, sums) in metrics.prompts(&fleet).unwrap() {
                let at = ["a", "b", "c"].iter().position(|name| *name == model).unwrap();
                prop_assert_eq!(sums.accounts.values().sum::<f64>(), prompts[at] as f64);
                prop_assert_eq!(sums.accounts["cached"], cached_of[at] as f64);
                prop_assert!(sums.saved <= sums.accounts["cached"] && sums.saved >= sums.accounts["cached"] - sums.rotation);
            }
        }
    }
}
