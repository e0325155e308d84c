//! What is learned of each model's requests, for a bounded number of models.

use crate::policy::estimate::{MODEL_START, ModelRates};
use parking_lot::Mutex;
use std::collections::HashMap;

/// Names come from clients: beyond this many, all others are learned as one.
const MOST: usize = 64;
/// No served model has a longer name.
const LONGEST_NAME: usize = 256;

/// Learned rates by model.
#[derive(Debug, Default)]
pub struct Models {
    /// Held for a look-up and a few multiplications.
    rates: Mutex<HashMap<String, ModelRates>>,
}

impl Models {
    /// What is known of `model`.
    pub fn rates(&self, model: Option<&str>) -> ModelRates {
        let rates = self.rates.lock();
        rates.get(model.unwrap_or_default()).or_else(|| rates.get("")).copied().unwrap_or(MODEL_START)
    }

    /// All that is known, by model.
    pub fn all(&self) -> Vec<(String, ModelRates)> {
        self.rates.lock().iter().map(|(name, rates)| (name.clone(), *rates)).collect()
    }

    /// Takes in what another process knew.
    pub fn restore(&self, known: Vec<(String, ModelRates)>) {
        self.rates.lock().extend(known.into_iter().take(MOST));
    }

    /// Learns from a request of `model`: canonical bytes (0 if unknown) and tokens of its prompt, tokens of its answer.
    #[expect(clippy::cast_precision_loss, reason = "token counts and sizes fit a float")]
    pub fn learn(&self, model: Option<&str>, prompt_bytes: u64, prompt: u64, output: Option<u64>) {
        let mut rates = self.rates.lock();
        let fits = |m: &&str| m.len() <= LONGEST_NAME && (rates.len() < MOST || rates.contains_key(*m));
        let name = model.filter(fits).unwrap_or_default();
        if !rates.contains_key(name) {
            rates.insert(name.to_owned(), MODEL_START);
        }
        let Some(known) = rates.get_mut(name) else { return };
        known.observe_prompt(prompt_bytes as f64, prompt as f64);
        if let Some(tokens) = output {
            known.observe_output(tokens as f64);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_cannot_grow_it_and_strangers_share_one_entry() {
        let models = Models::default();
        for n in 0..1000 {
            models.learn(Some(&format!("m{n}")), 4096, 2048, None);
        }
        assert!(models.rates.lock().len() <= MOST + 1);
        assert!(models.rates(Some("m0")).tokens_per_byte > MODEL_START.tokens_per_byte);
        assert!(models.rates(Some("m999")).tokens_per_byte > models.rates(Some("m0")).tokens_per_byte);
    }
}
