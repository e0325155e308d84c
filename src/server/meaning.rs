//! What the settings mean to those who work by them. (Those of `health` are in `health`.)

use super::{StartError, health};
use crate::api::compat::Compat;
use crate::api::model::Aliases;
use crate::api::sha256::{Digest, sha256};
use crate::config::{self, AccessLog, Config, Loaded, ReplicaKvEvents};
use crate::engine::search::ModelSearch;
use crate::fleet::gate;
use crate::fleet::replica::{ReplicaSpec, Role};
use crate::fleet::spec::Events;
use crate::fleet::transport::UpstreamTls;
use crate::fleet::{Fleet, Rules};
use crate::policy::flight::FlightParams;
use crate::policy::lane::Lane;
use crate::policy::retry::Limits;
use crate::policy::score::{AffinityParams, LoadParams};
use crate::policy::select::Params;
use crate::proxy::{ClientKeys, ClientRules, Cors, Phases, PriorityRules, PromptShape, Settings, Terms};
use crate::telemetry::metrics::Metrics;
use crate::telemetry::traces::collector::{Collector, Exporter, Tracer};
use crate::types::UsageMode;
use http::HeaderValue;
use std::sync::Arc;

pub(super) fn replica(r: &config::Replica) -> Result<ReplicaSpec, StartError> {
    let unfit = |_| StartError::Header(r.name.clone());
    let authority = match (r.port, r.tls.is_some()) {
        (80, false) | (443, true) => r.host.clone(),
        (port, _) => format!("{}:{port}", r.host),
    };
    let bearer = |key: &config::Secret| {
        let mut value = HeaderValue::try_from(format!("Bearer {}", key.expose()))?;
        value.set_sensitive(true);
        Ok(value)
    };
    Ok(ReplicaSpec {
        name: r.name.clone(),
        host: r.host.clone(),
        port: r.port,
        prefix: r.prefix.clone(),
        authority: HeaderValue::try_from(authority).map_err(unfit)?,
        models: r.models.clone(),
        authorization: r.api_key.as_ref().map(bearer).transpose().map_err(unfit)?,
        tls: r.tls.as_ref().map(|tls| UpstreamTls::new(tls.verify, tls.issuers.clone())),
        role: Role {
            rank: r.rank,
            in_lane: r.lane.is_some(),
            node: r.node.clone(),
            kv_capacity: r.kv_capacity_tokens,
            identity: health::identity(&r.identity),
            events: events(&r.kv_events),
        },
    })
}

fn events(written: &ReplicaKvEvents) -> Option<Arc<Events>> {
    let port = |port: Option<u32>| port.and_then(|port| u16::try_from(port).ok());
    let (port, replay_port) = (port(written.port), port(written.replay_port));
    let events = Events { port, replay_port, topic: written.topic.clone() };
    (events.port.is_some() || events.topic.is_some()).then(|| Arc::new(events))
}

pub(super) fn admin_token(loaded: &Loaded) -> Option<Digest> {
    loaded.admin_token.as_ref().map(|token| sha256(token.expose().as_bytes()))
}

pub(super) fn rules(config: &Config) -> Rules {
    let long_prompt = &config.routing.long_prompt;
    let lane = long_prompt.over.map(|over| Lane { over: over as u64, short: long_prompt.short });
    Rules { lane, slow_start: config.health.slow_start.window, errors: health::error_rule(config) }
}

pub(super) fn limits(config: &Config) -> gate::Limits {
    let limits = &config.limits;
    let (inflight, per_replica) = (limits.inflight, limits.inflight_per_replica);
    gate::Limits { inflight, per_replica, queue: limits.queue.size as usize }
}

pub(super) fn params(config: &Config) -> Params {
    let (affinity, flight) = (&config.routing.affinity, &config.routing.single_flight);
    Params {
        policy: config.routing.policy,
        affinity: AffinityParams { basis: affinity.basis, cap_blocks: affinity.cap_blocks, alpha: affinity.alpha },
        load: LoadParams {
            unit_bytes: affinity.load_unit as u64,
            max_units: affinity.max_load_units,
            block_bytes: config.routing.block_bytes as u64,
        },
        flight: FlightParams {
            mode: flight.mode,
            min_blocks: flight.min_blocks,
            max_hold_ms: flight.max_hold.as_secs_f64() * 1000.0,
        },
    }
}

fn client_rules(loaded: &Loaded, fleet: &Arc<Fleet>) -> ClientRules {
    let keys = loaded.client_keys.as_ref();
    ClientRules {
        keys: keys.map(|keys| ClientKeys::new(keys.iter().map(|key| (key.name.clone(), key.sha256)))),
        cors: Cors::new(&loaded.config.cors.origins),
        aliases: Aliases::new(loaded.config.compat.model_aliases.clone()),
        search: Some(Arc::new(ModelSearch::new(fleet.clone(), health::readiness(&loaded.config)))),
        context_margin: loaded.config.compat.context_margin.into(),
    }
}

/// The names of the clients' keys.
pub(super) fn key_names(loaded: &Loaded) -> impl Iterator<Item = &str> {
    loaded.client_keys.iter().flatten().map(|key| key.name.as_str())
}

fn priority(config: &Config) -> PriorityRules {
    let rules = &config.limits.priority;
    PriorityRules { header: rules.header.parse().ok(), allow: rules.allow.as_slice().into() }
}

/// Who traces requests, and who sends the traces.
pub(super) fn tracer(loaded: &Loaded, metrics: Arc<Metrics>, seed: u64) -> (Tracer, Option<Exporter>) {
    let traces = &loaded.config.traces;
    match traces.endpoint.as_deref() {
        None => (Tracer::off(metrics), None),
        Some(endpoint) => {
            let tls = loaded.traces_tls.as_ref().map(|tls| UpstreamTls::new(tls.verify, tls.issuers.clone()));
            let collector = Collector::at(endpoint, &traces.service, tls);
            let (tracer, exporter) = Tracer::on(collector, metrics, traces.sample, seed);
            (tracer, Some(exporter))
        }
    }
}

/// What requests go by.
pub(super) fn terms(loaded: &Loaded, fleet: &Arc<Fleet>, secret: u64) -> Terms {
    Terms { settings: settings(&loaded.config, secret), rules: client_rules(loaded, fleet) }
}

fn settings(config: &Config, secret: u64) -> Settings {
    let timeouts = &config.timeouts;
    Settings {
        shape: PromptShape {
            secret,
            block_bytes: config.routing.block_bytes,
            max_prefix_bytes: config.routing.max_prefix_bytes,
        },
        session_headers: config.routing.session_headers.iter().filter_map(|name| name.parse().ok()).collect(),
        max_body: config.limits.body,
        body_memory: config.limits.body_memory,
        queue_wait: config.limits.queue.wait,
        priority: priority(config),
        compat: Compat {
            strip_max_tokens_over: config.compat.strip_max_tokens_over.map(u64::from),
            flatten_text_parts: config.compat.flatten_text_parts,
            drop_unknown_reasoning_effort: config.compat.drop_unknown_reasoning_effort,
            ask_usage: config.usage == UsageMode::AskAndHide,
        },
        phase_aware: config.routing.affinity.phase_aware,
        retry: Limits { attempts: config.retry.attempts, replay_lost: config.retry.replay_lost },
        phases: Phases {
            connect: timeouts.connect,
            silence: timeouts.first_byte.max(timeouts.idle_read),
            first_byte: timeouts.first_byte,
            client_header: timeouts.client_header,
            client_body: timeouts.client_body,
            client_write: timeouts.client_write,
            pool_idle: timeouts.pool_idle,
            tcp_keepalive: timeouts.tcp_keepalive,
        },
        access_log: config.log.access == AccessLog::Json,
    }
}
