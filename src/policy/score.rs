//! What a candidate is worth under the affinity rule, exactly as published:
//! `score(r) = A(r) − alpha × load(r)`, with `ov` the overlap in blocks, `C` the cap, and, over the candidates,
//! - absolute: `A = min(ov, C)`
//! - marginal: `A = min(max(0, ov − min ov), C)`
//! - relative: `A = max(0, min(lead, C) − min(lead − ov, C))`, `lead = max ov`
//!
//! A request reserves `clamp(ceil(uncached_body_bytes / load_unit), 1, max_load_units)` units where it goes. Overlap is
//! counted in canonical bytes, which are fewer than a body's where that holds escapes, pictures and key names: the same
//! share of the body is cached as of the canonical prompt.

use crate::types::Basis;

/// The parameters of the affinity rule.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AffinityParams {
    /// What an overlap is compared with.
    pub basis: Basis,
    /// `C`: the most credit, in blocks.
    pub cap_blocks: u32,
    /// Blocks of credit that one reserved unit outweighs.
    pub alpha: f64,
}

/// How much of a replica a request reserves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LoadParams {
    /// Uncached body bytes per unit.
    pub unit_bytes: u64,
    /// The most units for one request.
    pub max_units: u32,
    /// Size of a block of overlap in bytes.
    pub block_bytes: u64,
}

/// The overlaps that the bases compare with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peers {
    /// The largest overlap among the candidates.
    pub lead: u32,
    /// The smallest one.
    pub least: u32,
}

impl AffinityParams {
    /// `A(r)` in blocks.
    pub fn credit(&self, overlap: u32, peers: Peers) -> u32 {
        let cap = self.cap_blocks;
        match self.basis {
            Basis::Absolute => overlap.min(cap),
            Basis::Marginal => overlap.saturating_sub(peers.least).min(cap),
            Basis::Relative => peers.lead.min(cap).saturating_sub((peers.lead - overlap).min(cap)),
        }
    }

    /// `A(r) − alpha × load(r)` in blocks.
    pub fn score(&self, credit: u32, load: u32) -> f64 {
        f64::from(credit) - self.alpha * f64::from(load)
    }
}

impl LoadParams {
    /// The units that a body of `body_bytes` reserves where `overlap` blocks of its `prompt_bytes` canonical bytes are
    /// held.
    #[inline]
    pub fn units(&self, body_bytes: u64, prompt_bytes: u64, overlap: u32) -> u32 {
        let cached = (u64::from(overlap) * self.block_bytes).min(prompt_bytes);
        let fresh = prompt_bytes - cached;
        let uncached = match (prompt_bytes, fresh.checked_mul(body_bytes)) {
            (0, _) => body_bytes,
            (whole, Some(product)) => product.div_ceil(whole),
            (whole, None) => {
                let product = u128::from(fresh) * u128::from(body_bytes);
                u64::try_from(product.div_ceil(u128::from(whole))).unwrap_or(u64::MAX)
            }
        };
        let units = uncached.div_ceil(self.unit_bytes.max(1));
        u32::try_from(units).unwrap_or(u32::MAX).clamp(1, self.max_units.max(1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn params(basis: Basis) -> AffinityParams {
        AffinityParams { basis, cap_blocks: 32, alpha: 4.0 }
    }

    #[test]
    fn credit_follows_the_published_formulas() {
        // (basis, overlap, lead, least, credit), worked out by hand
        let rows = [
            (Basis::Absolute, 0, 100, 0, 0),
            (Basis::Absolute, 31, 100, 0, 31),
            (Basis::Absolute, 100, 100, 40, 32),
            (Basis::Marginal, 40, 100, 40, 0),
            (Basis::Marginal, 60, 100, 40, 20),
            (Basis::Marginal, 100, 100, 40, 32),
            (Basis::Relative, 100, 100, 40, 32),
            (Basis::Relative, 90, 100, 40, 22),
            (Basis::Relative, 40, 100, 40, 0),
            (Basis::Relative, 10, 10, 0, 10),
            (Basis::Relative, 4, 10, 0, 4),
            (Basis::Relative, 0, 10, 0, 0),
        ];
        for (basis, overlap, lead, least, credit) in rows {
            assert_eq!(params(basis).credit(overlap, Peers { lead, least }), credit, "{basis:?} {overlap} of {lead}");
        }
    }

    #[test]
    fn units_follow_the_uncached_bytes() {
        let load = LoadParams { unit_bytes: 32 << 10, max_units: 8, block_bytes: 2048 };
        let kib = 1 << 10;
        // (body, canonical prompt, overlap, units)
        let rows = [
            (0, 0, 0, 1),
            (1, 1, 0, 1),
            (32 * kib, 32 * kib, 0, 1),
            (32 * kib + 1, 32 * kib + 1, 0, 2),
            (1024 * kib, 1024 * kib, 0, 8),
            (1024 * kib, 1024 * kib, 512, 1),
            (1024 * kib, 1024 * kib, 480, 2),
            // a body that could not be read counts as it is
            (100 * kib, 0, 0, 4),
            // three megabytes of picture, read as two blocks, both held
            (3072 * kib, 4 * kib, 2, 1),
            // half of a text that is escaped to twice its size
            (400 * kib, 200 * kib, 50, 7),
        ];
        for (body, prompt, overlap, units) in rows {
            assert_eq!(load.units(body, prompt, overlap), units, "{body} {prompt} {overlap}");
        }
    }
}
