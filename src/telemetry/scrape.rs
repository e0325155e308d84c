//! What is read when somebody scrapes: the fleet as it is at the moment, and the process.

use super::inherited::Counts;
use super::metrics::Metrics;
use super::outlet;
use super::process;
use super::registry::{Result, keep};
use crate::fleet::Fleet;
use crate::fleet::members::Members;
use crate::fleet::replica::Replica;
use crate::policy::health::FenceReason;
use crate::policy::retry::Failure;
use prometheus::proto::{LabelPair, MetricFamily};
use prometheus::{Encoder, TextEncoder};
use std::collections::HashSet;

/// Up to so many replicas each pair of them has its series from the start: some thousand lines. Of more, those that are needed.
const MOST_PAIRED: usize = 16;

impl Metrics {
    /// The Prometheus text format, with the fleet as it is now.
    ///
    /// # Errors
    /// A metric that cannot be encoded.
    pub fn render(&self, fleet: &Fleet) -> Result<Vec<u8>> {
        let mut out = Vec::with_capacity(16 << 10);
        TextEncoder::new().encode(&self.gather(fleet), &mut out)?;
        Ok(out)
    }

    /// What was counted so far, here and in processes before this one.
    pub fn counts(&self, fleet: &Fleet) -> Counts {
        Counts::of(&self.gather(fleet))
    }

    /// Takes in what another process counted.
    pub fn inherit(&self, counts: &Counts) {
        self.inherited.lock().add(counts);
    }

    pub(super) fn gather(&self, fleet: &Fleet) -> Vec<MetricFamily> {
        let _one_at_a_time = self.rendering.lock();
        let members = fleet.members();
        self.drop_strangers(&members);
        for replica in members.present() {
            let name = &[replica.name()];
            self.upstream_up.with_label_values(name).set(replica.is_healthy().into());
            self.upstream_inflight.with_label_values(name).set(replica.inflight().into());
            self.upstream_load.with_label_values(name).set(replica.load().into());
            self.upstream_prompt_tokens.with_label_values(name);
            self.upstream_cached_tokens.with_label_values(name);
            for (reason, count) in replica.probe_failures() {
                let shown = self.probe_failures.with_label_values(&[replica.name(), reason.label()]);
                shown.inc_by(count.saturating_sub(shown.get()));
            }
            self.show_health(replica);
            self.show_kv_events(replica);
        }
        self.show_pairs(&members);
        self.show_sources(fleet);
        self.show_models(fleet.model_names());
        self.fail_open.set(fleet.fails_open().into());
        let (bytes, blocks) = fleet.index_size();
        self.index_bytes.set(i64::try_from(bytes).unwrap_or(i64::MAX));
        self.index_blocks.set(i64::try_from(blocks).unwrap_or(i64::MAX));
        self.reservations.set(members.present().map(|r| i64::from(r.inflight())).sum());
        self.log_lost.inc_by(outlet::lost().saturating_sub(self.log_lost.get()));
        self.show_cluster(fleet);
        self.show_process();
        let mut families = self.registry.gather();
        self.inherited.lock().add_to(&mut families);
        families
    }

    /// Takes out the series of replicas, and of keys, that are gone.
    fn drop_strangers(&self, members: &Members) {
        let names: HashSet<&str> = members.present().map(|r| r.name()).collect();
        let keys = self.keys.lock();
        let may_stay = |name: &str, value: &str| match name {
            "upstream" | "from" | "to" => names.contains(value),
            "key" => keys.contains(value),
            _ => true,
        };
        self.inherited.lock().keep(may_stay);
        let stays = |label: &LabelPair| may_stay(label.name(), label.value());
        let gauges = [
            &self.upstream_up,
            &self.upstream_inflight,
            &self.upstream_load,
            &self.fenced,
            &self.kv_blocks,
            &self.kv_prompts,
        ];
        gauges.into_iter().for_each(|gauges| keep(gauges, stays));
        let tokens = [&self.upstream_prompt_tokens, &self.upstream_cached_tokens];
        let health = [&self.probe_failures, &self.suppressed, &self.transitions, &self.kv_events, &self.kv_losses];
        tokens
            .into_iter()
            .chain(health)
            .chain([&self.failovers, &self.key_requests])
            .for_each(|counters| keep(counters, stays));
    }

    /// The first failover between two replicas is to be a rise.
    fn show_pairs(&self, members: &Members) {
        if members.present().count() > MOST_PAIRED {
            return;
        }
        for (from, to) in members.present().flat_map(|from| members.present().map(move |to| (from.name(), to.name()))) {
            for failure in Failure::ALL.into_iter().filter(|failure| from != to && failure.may_move()) {
                self.failovers.with_label_values(&[from, to, failure.label()]);
            }
        }
    }

    /// What a replica's engine told of its cache, where it is listened to.
    fn show_kv_events(&self, replica: &Replica) {
        if replica.spec.role.events.is_none() {
            return;
        }
        let name = replica.name();
        let (blocks, prompts) = replica.account();
        let gauge = |count: usize| i64::try_from(count).unwrap_or(i64::MAX);
        self.kv_blocks.with_label_values(&[name]).set(gauge(blocks));
        self.kv_prompts.with_label_values(&[name]).set(gauge(prompts));
        let (heard, losses) = replica.told();
        let heard = heard.map(|(what, count)| (self.kv_events.with_label_values(&[name, what.label()]), count));
        let losses = losses.map(|(why, count)| (self.kv_losses.with_label_values(&[name, why.label()]), count));
        heard.chain(losses).for_each(|(shown, count)| shown.inc_by(count.saturating_sub(shown.get())));
    }

    fn show_sources(&self, fleet: &Fleet) {
        let sources = fleet.sources().all();
        let kinds: HashSet<&str> = sources.iter().map(|(kind, _)| *kind).collect();
        [&self.listed, &self.stale].into_iter().for_each(|gauges| keep(gauges, |l| kinds.contains(l.value())));
        for (kind, state) in sources {
            self.listed.with_label_values(&[kind]).set(i64::try_from(state.replicas).unwrap_or(i64::MAX));
            self.stale.with_label_values(&[kind]).set(state.is_stale.into());
            let shown = self.unlisted.with_label_values(&[kind]);
            shown.inc_by(state.failures.saturating_sub(shown.get()));
        }
    }

    /// The states of a replica, and what probes did not count.
    fn show_health(&self, replica: &Replica) {
        let name = replica.name();
        let shown = self.suppressed.with_label_values(&[name]);
        shown.inc_by(replica.suppressed().saturating_sub(shown.get()));
        let fence = replica.fence();
        for reason in FenceReason::ALL {
            self.fenced.with_label_values(&[name, reason.label()]).set((fence == Some(reason)).into());
        }
        for (state, count) in replica.transitions() {
            let reason = state.fence().map_or("none", FenceReason::label);
            let shown = self.transitions.with_label_values(&[name, state.label(), reason]);
            shown.inc_by(count.saturating_sub(shown.get()));
        }
    }

    fn show_process(&self) {
        let now = process::read();
        self.cpu.inc_by((now.cpu_seconds - self.cpu.get()).max(0.0));
        for (gauge, value) in [
            (&self.resident, now.resident_bytes),
            (&self.virtual_memory, now.virtual_bytes),
            (&self.threads, now.threads),
            (&self.open_fds, now.open_fds),
            (&self.max_fds, now.max_fds),
        ] {
            gauge.set(i64::try_from(value).unwrap_or(i64::MAX));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fleet::testing::spec;
    use crate::policy::testing::params;
    use crate::types::PolicyKind;

    #[test]
    fn all_pairs_of_a_fleet_are_there_at_once_unless_they_are_too_many() {
        let pairs = |replicas: usize| {
            let specs = (0..replicas).map(|n| spec(&format!("r{n}"))).collect();
            let families = Metrics::new().unwrap().gather(&Fleet::new(specs, params(PolicyKind::Cost), 1 << 20));
            families.iter().find(|f| f.name() == "ramjet_upstream_failovers_total").map_or(0, |f| f.get_metric().len())
        };
        assert_eq!([1, 2, MOST_PAIRED, MOST_PAIRED + 1].map(pairs), [0, 2 * 7, 16 * 15 * 7, 0]);
    }
}
