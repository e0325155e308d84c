//! What is learned of each model's requests, for a bounded number of models.

use crate::policy::estimate::{MODEL_START, ModelRates};
use parking_lot::Mutex;
use xxhash_rust::xxh3::xxh3_64;

/// Names come from clients: beyond this many, all others are learned as one.
const MOST: usize = 64;
/// No served model has a longer name.
const LONGEST_NAME: usize = 256;

/// Learned rates by model.
#[derive(Debug, Default)]
pub struct Models {
    /// Names, their hashes, and what is known: so few that a look at each takes less time than a map.
    /// Held for a look-up and a few multiplications.
    rates: Mutex<Vec<(u64, String, ModelRates)>>,
}

fn find(known: &[(u64, String, ModelRates)], model: &str) -> Option<usize> {
    let hash = xxh3_64(model.as_bytes());
    known.iter().position(|(other, name, _)| *other == hash && name == model)
}

impl Models {
    /// What is known of `model`.
    pub fn rates(&self, model: Option<&str>) -> ModelRates {
        let known = self.rates.lock();
        let place = model.and_then(|model| find(&known, model)).or_else(|| find(&known, ""));
        place.map_or(MODEL_START, |place| known[place].2)
    }

    /// All that is known, by model.
    pub fn all(&self) -> Vec<(String, ModelRates)> {
        self.rates.lock().iter().map(|(_, name, rates)| (name.clone(), *rates)).collect()
    }

    /// Takes in what another process knew.
    pub fn restore(&self, known: Vec<(String, ModelRates)>) {
        let mut own = self.rates.lock();
        for (name, rates) in known.into_iter().take(MOST) {
            let place = place_of(&mut own, &name);
            own[place].2 = rates;
        }
    }

    /// Learns from a request of `model`: canonical bytes (0 if unknown) and tokens of its prompt, tokens of its answer.
    #[expect(clippy::cast_precision_loss, reason = "token counts and sizes fit a float")]
    pub fn learn(&self, model: Option<&str>, prompt_bytes: u64, prompt: u64, output: Option<u64>) {
        let mut known = self.rates.lock();
        let fits = |m: &&str| m.len() <= LONGEST_NAME && (known.len() < MOST || find(&known, m).is_some());
        let name = model.filter(fits).unwrap_or_default();
        let place = place_of(&mut known, name);
        let known = &mut known[place].2;
        known.observe_prompt(prompt_bytes as f64, prompt as f64);
        if let Some(tokens) = output {
            known.observe_output(tokens as f64);
        }
    }
}

/// The place of a model, a new one if it has none yet.
fn place_of(known: &mut Vec<(u64, String, ModelRates)>, model: &str) -> usize {
    find(known, model).unwrap_or_else(|| {
        known.push((xxh3_64(model.as_bytes()), model.to_owned(), MODEL_START));
        known.len() - 1
    })
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
