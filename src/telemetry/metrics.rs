//! Every metric, declared once, with the reason for its buckets.
//!
//! What requests count is counted as it happens; what the fleet is at the moment (up, in flight, load, index size) is
//! read from the fleet when somebody scrapes, so the hot path pays nothing for it.

pub use super::guards::{InflightGuard, QueueGuard};
use super::prompts::{REPORTS, ROTATION, SAVED, TOKENS};
use super::ready::Ready;
use super::registry::{Result, metrics};
use super::status::{code, codes};
use crate::api::answer::Usage;
use crate::api::endpoint::Endpoint;
use crate::policy::flight::Flight;
use crate::policy::queue::Shed;
use crate::policy::retry::Failure;
use crate::types::Priority;
use prometheus::IntCounterVec;
use std::time::{Duration, SystemTime};

/// Why an attempt failed that was answered with 500, 502 or 504: the answer is the engine's own, and passes.
const ERROR_STATUS: &str = "status";
/// From a warm prefix on an idle replica to a long prompt behind a queue: factors of about two.
pub(super) const TTFT: &[f64] = &[0.01, 0.025, 0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 12.8, 25.6, 60.0, 180.0, 600.0];
/// From a short answer to an agent turn that thinks for an hour.
const DURATION: &[f64] = &[0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 180.0, 600.0, 1800.0, 3600.0];
/// A token takes between 2 ms (small model, one user) and a second (a large batch behind prefills).
const PER_TOKEN: &[f64] = &[0.002, 0.005, 0.01, 0.015, 0.02, 0.03, 0.05, 0.075, 0.1, 0.2, 0.5, 1.0];
/// Powers of two up to the largest prefix that is fingerprinted by default (2 MiB in blocks of 2 KiB).
const BLOCKS: &[f64] = &[0.0, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0];
/// From room that comes at once to the longest wait that is of any use to a client.
const QUEUE_WAIT: &[f64] = &[0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0];
/// From one round of commands nearby to a store that is about to be given up.
const LAG: &[f64] = &[0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.0, 5.0];
/// Around the budget of a decision, 100 µs.
const DECISION: &[f64] = &[1e-6, 2e-6, 5e-6, 1e-5, 2e-5, 5e-5, 1e-4, 2e-4, 5e-4, 1e-3, 5e-3];

/// A name that more than one place says.
pub(super) const TTFT_NAME: &str = "ramjet_ttft_seconds";
pub(super) const PROMPT_TOKENS: &str = "ramjet_upstream_prompt_tokens_total";
pub(super) const CACHED_TOKENS: &str = "ramjet_upstream_cached_prompt_tokens_total";

metrics! {
    /// All metrics of the process.
    pub struct Metrics {
        requests: counters("ramjet_requests_total",
            "Requests ended, by endpoint, status and whether the answer was streamed.", &["endpoint", "code", "stream"]);
        key_requests: counters("ramjet_client_key_requests_total",
            "Requests ended, by the name of the client's key and status.", &["key", "code"]);
        inflight: gauge("ramjet_requests_inflight", "Requests being served.");
        queue_length: gauges("ramjet_queue_length", "Requests that wait for room, by priority.", &["priority"]);
        queue_wait: histogram("ramjet_queue_wait_seconds",
            "Time that requests waited for room, whether they got it, left or were turned away.", QUEUE_WAIT);
        shed: counters("ramjet_shed_total",
            "Requests turned away because more was asked than may run, by reason.", &["reason"]);
        ttft: histogram(TTFT_NAME, "Time to the first generated token of streamed answers.", TTFT);
        duration: histograms("ramjet_request_duration_seconds",
            "Time from the request to the end of its answer.", DURATION, &["endpoint"]);
        per_token: histogram("ramjet_time_per_output_token_seconds",
            "Time per generated token after the first, of streamed answers that reported usage.", PER_TOKEN);
        prompt_tokens: counter("ramjet_prompt_tokens_total", "Prompt tokens, as engines reported them.");
        cached_tokens: counter("ramjet_cached_prompt_tokens_total",
            "Prompt tokens that engines reported as served from their prefix cache.");
        predicted_cached: counter("ramjet_predicted_cached_prompt_tokens_total",
            "Prompt tokens that were expected to be cached, of answers that reported how many were.");
        completion_tokens: counter("ramjet_completion_tokens_total", "Generated tokens, as engines reported them.");
        uncached_tokens: counters("ramjet_uncached_prompt_tokens_total",
            "Prompt tokens that engines read, of answers that reported how many were cached, by why: never seen (new), \
             held by another replica (routing), no longer held (evicted), or of a session whose text changes near its \
             head (volatile). What was held is believed, not known.", &["account"]);
        saved_tokens: counter("ramjet_saved_prompt_tokens_estimate_total",
            "An estimate: cached prompt tokens beyond those that replicas taking turns would have found of the same prompts, \
             if nothing were ever evicted there; of requests that had more.");
        model_tokens: counters(TOKENS, "Prompt tokens by model and by what became of them, of answers that reported how \
             many were cached: those (cached), and the others as ramjet_uncached_prompt_tokens_total has them.",
            &["model", "account"]);
        model_rotation: counters(ROTATION,
            "An estimate: cached prompt tokens that replicas taking turns would have found of the same prompts, if nothing \
             were ever evicted there, by model.", &["model"]);
        model_saved: counters(SAVED, "ramjet_saved_prompt_tokens_estimate_total by model.", &["model"]);
        model_reports: counters(REPORTS, "Answers that reported how many prompt tokens were cached, by model.", &["model"]);
        breaks: counters("ramjet_prompt_breaks_total", "Prompts, of those that were looked at, that part from one before them and \
             go on alike, by kind of client, part of the prompt and what is different.", &["client", "part", "change"]);
        break_tokens: counters("ramjet_prompt_break_tokens_total",
            "Prompt tokens after such a place that are the same, and could have come from a cache; an estimate.",
            &["client", "part", "change"]);
        unreported: counter("ramjet_cached_tokens_unreported_total",
            "Good inference answers that did not say how many prompt tokens were cached.");
        usage_asked: counters("ramjet_usage_asked_total", "Streams asked how many tokens they took though the client had not \
             asked, by outcome: what the engine said was taken out (hidden), it said nothing (unanswered), or it took the \
             request only without the question (refused).", &["outcome"]);
        disconnects: counter("ramjet_client_disconnects_total", "Requests whose client left before the end.");
        upstream_errors: counters("ramjet_upstream_errors_total",
            "Attempts that failed at a replica, by endpoint and reason.", &["endpoint", "reason"]);
        failovers: counters("ramjet_upstream_failovers_total",
            "Attempts repeated, by the replica that failed, the next one, and the reason.", &["from", "to", "reason"]);
        decisions: counters("ramjet_route_decisions_total", "Choices, by what decided.", &["outcome"]);
        lane: counters("ramjet_route_lane_total",
            "Choices, by what the lane for long prompts had to do with them.", &["gate"]);
        pinned: counter("ramjet_route_pinned_total",
            "Requests that named something known to be kept by one replica, which goes first while it takes requests.");
        decision_time: histogram("ramjet_route_decision_seconds", "Time of one choice, lock included.", DECISION);
        single_flight: counters("ramjet_single_flight_total",
            "Requests that read, or share, a prefix which nobody has read yet, by what was done about it.", &["outcome"]);
        overlap: histogram("ramjet_route_overlap_blocks", "Blocks of the prompt that the chosen replica held.", BLOCKS);
        upstream_up: gauges("ramjet_upstream_up", "Whether new requests may go to the replica.", &["upstream"]);
        upstream_inflight: gauges("ramjet_upstream_inflight", "Requests at the replica.", &["upstream"]);
        upstream_load: gauges("ramjet_upstream_load_units", "Load units reserved at the replica.", &["upstream"]);
        probe_failures: counters("ramjet_upstream_probe_failures_total",
            "Failed probes, by replica and reason.", &["upstream", "reason"]);
        suppressed: counters("ramjet_upstream_probe_suppressed_total",
            "Probes that timed out and did not count: requests were completed lately, or long prompts explain it.",
            &["upstream"]);
        fenced: gauges("ramjet_upstream_fenced", "1 for the reason that keeps new requests away.", &["upstream", "reason"]);
        transitions: counters("ramjet_upstream_transitions_total",
            "How often a replica came into a state, and why, if it was fenced.", &["upstream", "state", "reason"]);
        fail_open: gauge("ramjet_route_fail_open", "1 while some requests find no healthy replica and all are tried.");
        index_bytes: gauge("ramjet_prefix_index_bytes", "Heap bytes of the prefix index.");
        index_blocks: gauge("ramjet_prefix_index_blocks", "Blocks in the prefix index.");
        reservations: gauge("ramjet_reservations",
            "Reservations held at replicas, by the replicas' own count. It stays at ramjet_requests_placed.");
        upstream_prompt_tokens: counters(PROMPT_TOKENS,
            "Prompt tokens by replica, of answers that reported how many were cached.", &["upstream"]);
        upstream_cached_tokens: counters(CACHED_TOKENS,
            "Those of them that the replica reported as served from its prefix cache.", &["upstream"]);
        kv_blocks: gauges("ramjet_upstream_kv_blocks", "Blocks that the replica's engine stores by its KV events.", &["upstream"]);
        kv_prompts: gauges("ramjet_upstream_kv_prompts",
            "Prompts of which these events tell what is stored.", &["upstream"]);
        kv_events: counters("ramjet_upstream_kv_events_total",
            "What KV events told of: blocks stored and removed, caches cleared, and other events.", &["upstream", "kind"]);
        kv_losses: counters("ramjet_upstream_kv_losses_total",
            "How often everything that KV events had told was dropped: batches are missing (gap) or cannot be read \
             (unreadable), tell what cannot be true or more than is followed (contradiction), the engine began anew (anew), \
             the connection ended (ended), or several engines tell of one replica at once (contested).", &["upstream", "reason"]);
        placed: gauge("ramjet_requests_placed",
            "Requests with a replica, by the requests' own count. It stays at ramjet_reservations.");
        checks: counters("ramjet_self_check_failures_total",
            "How often what must always hold did not for half a minute: every request that has a replica has a reservation \
             (reservations), and the prefix index keeps to its budget (index_bytes).", &["check"]);
        table_bytes: gauges("ramjet_table_bytes",
            "Bytes of what is remembered of requests besides the prefix index, table by table, as far as it was ever written; \
             each table ends at a size of its own.", &["table"]);
        history_bytes: gauge("ramjet_history_bytes", "Heap bytes of the history that the dashboard shows.");
        traces: counters("ramjet_traces_total",
            "Traced requests, by what became of the trace: sent to the collector, dropped because too many waited, or \
             failed because the collector did not take it.", &["outcome"]);
        reloads: counters("ramjet_reloads_total", "Reloads of the configuration, by outcome.", &["outcome"]);
        reloaded: float_gauge("ramjet_reload_success_timestamp_seconds",
            "When the configuration in force was read, in seconds since 1970.");
        generation: gauge("ramjet_config_generation", "How many configurations were in force, the first included.");
        listed: gauges("ramjet_discovery_replicas", "Replicas that a source lists, or listed last.", &["source"]);
        unlisted: counters("ramjet_discovery_failures_total", "How often a source could not tell.", &["source"]);
        stale: gauges("ramjet_discovery_stale", "1 while what a source lists is what it said before it failed.", &["source"]);
        cluster_connected: gauge("ramjet_cluster_connected", "Whether the store that routers share answers; 0 without one.");
        cluster_peers: gauge("ramjet_cluster_peers", "Other routers of the group that are there.");
        cluster_published: counter("ramjet_cluster_published_total", "Things learned here that the group was told.");
        cluster_received: counter("ramjet_cluster_received_total", "Things that other routers told and that concern replicas here.");
        cluster_dropped: counters("ramjet_cluster_dropped_total",
            "Things learned here that the group was not told: more came than the next round takes (queue), or the store did \
             not take them (store).", &["reason"]);
        cluster_rejected: counters("ramjet_cluster_rejected_total",
            "What was found in the store and not believed: it cannot be read (malformed), is of another version of ramjet \
             (version), was written by nobody who knows the secret of the group (unproved) or with another block size (shape), or was \
             read before (repeated).", &["reason"]);
        cluster_lag: histogram("ramjet_cluster_lag_seconds",
            "Time from what happened here to its place in the store, as seen by reading it back; the longest it may have been.", LAG);
        journal_lines: counter("ramjet_journal_lines_total", "Lines written to the journal.");
        journal_lost: counter("ramjet_journal_lost_total",
            "Steps that are missing in the journal: they came faster than the disk took them, or it refused them.");
        log_lost: counter("ramjet_log_lines_lost_total",
            "Log and access lines that were given up because stderr did not take them fast enough.");
        build: gauges("ramjet_build_info", "1; what runs here.", &["version"]);
        started: float_gauge("process_start_time_seconds", "When the process began, in seconds since 1970.");
        cpu: float_counter("process_cpu_seconds_total", "Processor time of the process, user and system.");
        resident: gauge("process_resident_memory_bytes", "Resident memory of the process.");
        virtual_memory: gauge("process_virtual_memory_bytes", "Memory that the process has mapped, used or not.");
        threads: gauge("process_threads", "Threads of the process.");
        open_fds: gauge("process_open_fds", "Open file descriptors of the process.");
        max_fds: gauge("process_max_fds", "The most file descriptors that the process may have open.");
    }
}

/// How a request ended, for the counters.
#[derive(Clone, Copy, Debug)]
pub struct Outcome {
    /// What was asked.
    pub endpoint: Endpoint,
    /// The status that the client got; 0 when it got none.
    pub status: u16,
    /// Whether the answer was streamed.
    pub stream: bool,
    /// From the first byte of the request's body or head to the last of the answer.
    pub duration: Duration,
    /// From the same start to the first generated token.
    pub ttft: Option<Duration>,
    /// Tokens, as reported.
    pub usage: Usage,
    /// Whether the engine answered well, so that usage could be expected.
    pub answered: bool,
}

impl Metrics {
    /// All metrics at zero; those with a small closed label set are there from the start.
    ///
    /// # Errors
    /// A name declared twice.
    pub fn new() -> Result<Self> {
        let mut metrics = Self::declare()?;
        metrics.ready = Ready::of(&metrics);
        metrics.show_from_the_start();
        Ok(metrics)
    }

    fn show_from_the_start(&self) {
        self.build.with_label_values(&[env!("CARGO_PKG_VERSION")]).set(1);
        self.started.set(SystemTime::UNIX_EPOCH.elapsed().map_or(0.0, |since| since.as_secs_f64()));
        self.show_own_from_the_start();
        self.show_prompts_from_the_start();
        for flight in Flight::ALL {
            self.single_flight.with_label_values(&[flight.label()]);
        }
        for priority in Priority::ALL {
            self.queue_length.with_label_values(&[priority.name()]);
        }
        for outcome in ["applied", "refused"] {
            self.reloads.with_label_values(&[outcome]);
        }
        for shed in Shed::ALL {
            self.shed.with_label_values(&[shed.label()]);
        }
        for endpoint in Endpoint::ALL {
            for reason in Failure::ALL.map(Failure::label).into_iter().chain([ERROR_STATUS]) {
                self.upstream_errors.with_label_values(&[endpoint.label(), reason]);
            }
        }
    }

    /// Counts a request in; out when the guard goes.
    pub fn enter(&self) -> InflightGuard {
        InflightGuard::new(&self.inflight)
    }

    /// A request begins to wait; it ends when the guard goes.
    pub fn queued(&self, priority: Priority) -> QueueGuard {
        QueueGuard::new(self.queue_length.with_label_values(&[priority.name()]), self.queue_wait.clone())
    }

    /// A request was turned away.
    pub fn shed(&self, why: Shed) {
        self.shed.with_label_values(&[why.label()]).inc();
    }

    /// Counts a request that is about to get a replica; out when the guard goes.
    pub fn placing(&self) -> InflightGuard {
        InflightGuard::new(&self.placed)
    }

    /// A replica reported how many tokens of a prompt were cached.
    pub fn served(&self, upstream: &str, prompt: u64, cached: u64) {
        self.upstream_prompt_tokens.with_label_values(&[upstream]).inc_by(prompt);
        self.upstream_cached_tokens.with_label_values(&[upstream]).inc_by(cached);
    }

    /// The share of a replica's prompt tokens that came from its cache, as reported; `None` before the first report.
    #[expect(clippy::cast_precision_loss, reason = "a share is told to a few digits")]
    pub fn hit_share(&self, upstream: &str) -> Option<f64> {
        let inherited = self.inherited.lock();
        let of = |counter: &IntCounterVec, name: &str| {
            counter.with_label_values(&[upstream]).get() as f64 + inherited.of_upstream(name, upstream)
        };
        let prompt = of(&self.upstream_prompt_tokens, PROMPT_TOKENS);
        (prompt > 0.0).then(|| of(&self.upstream_cached_tokens, CACHED_TOKENS) / prompt)
    }

    /// So many lines were written to the journal.
    pub fn journal_lines(&self, lines: u64) {
        self.journal_lines.inc_by(lines);
    }

    /// So many steps are missing in it.
    pub fn journal_lost(&self, steps: u64) {
        self.journal_lost.inc_by(steps);
    }

    /// Requests being served.
    pub fn inflight(&self) -> i64 {
        self.inflight.get()
    }

    /// How many configurations were in force, the present one included.
    pub fn generation(&self) -> i64 {
        self.generation.get()
    }

    /// Something became of a request that shares a new prefix.
    pub fn flight(&self, what: Flight) {
        self.single_flight.with_label_values(&[what.label()]).inc();
    }

    /// A request named something that one replica holds.
    pub fn pinned(&self) {
        self.pinned.inc();
    }

    /// An attempt failed.
    pub fn attempt_failed(&self, endpoint: Endpoint, failure: Failure) {
        self.upstream_errors.with_label_values(&[endpoint.label(), failure.label()]).inc();
    }

    /// An attempt was answered with an error that is the engine's own fault.
    pub fn answered_badly(&self, endpoint: Endpoint) {
        self.upstream_errors.with_label_values(&[endpoint.label(), ERROR_STATUS]).inc();
    }

    /// It is followed by another one.
    pub fn failed_over(&self, from: &str, to: &str, failure: Failure) {
        self.failovers.with_label_values(&[from, to, failure.label()]).inc();
    }

    /// A configuration is in force, the first one or another.
    pub fn configured(&self) -> i64 {
        self.reloaded.set(SystemTime::UNIX_EPOCH.elapsed().map_or(0.0, |since| since.as_secs_f64()));
        self.generation.inc();
        self.generation.get()
    }

    /// The configuration was read again, well or not.
    pub fn reload(&self, is_good: bool) {
        self.reloads.with_label_values(&[if is_good { "applied" } else { "refused" }]).inc();
    }

    /// The client left.
    pub fn client_left(&self) {
        self.disconnects.inc();
    }

    /// An answer reported its cached tokens; so many had been expected.
    pub fn predicted(&self, tokens: u64) {
        self.predicted_cached.inc_by(tokens);
    }

    /// These are the names of the clients' keys from now on: each has its series, and those of others go.
    pub fn know_keys<'a>(&self, names: impl IntoIterator<Item = &'a str>) {
        *self.keys.lock() = names.into_iter().map(str::to_owned).collect();
        for name in self.keys.lock().iter() {
            codes().for_each(|code| drop(self.key_requests.with_label_values(&[name.as_str(), code])));
        }
    }

    /// A request with a client's key ended.
    pub fn key_used(&self, name: &str, o: &Outcome) {
        self.key_requests.with_label_values(&[name, code(o.status)]).inc();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_cached_tokens_are_counted_as_unknown_not_as_zero() {
        let m = Metrics::new().unwrap();
        let mut outcome = Outcome {
            endpoint: Endpoint::Chat,
            status: 200,
            stream: true,
            duration: Duration::from_secs(3),
            ttft: Some(Duration::from_secs(1)),
            usage: Usage { prompt: Some(10), completion: Some(5), ..Usage::default() },
            answered: true,
        };
        m.ended(&outcome);
        assert_eq!((m.unreported.get(), m.cached_tokens.get(), m.prompt_tokens.get()), (1, 0, 10));
        assert!((m.per_token.get_sample_sum() - 0.5).abs() < 1e-9);
        outcome.usage.cached = Some(4);
        m.ended(&outcome);
        assert_eq!((m.unreported.get(), m.cached_tokens.get()), (1, 4));
    }
}
