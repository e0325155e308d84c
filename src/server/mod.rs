//! The composition root: from a configuration to running services. Everything is built here, nothing is decided.

mod handover;
mod health;
mod lifecycle;
mod tls;

pub use handover::{NotUpgraded, upgrade};

use crate::admin::{Access, Admin};
use crate::api::compat::Compat;
use crate::api::model::Aliases;
use crate::api::sha256::{Digest, sha256};
use crate::cli::Cli;
use crate::config::{self, AccessLog, Config, ListenAddr, Loaded};
use crate::engine::discovery::Configured;
use crate::engine::generation::GenerationProbe;
use crate::engine::probe::ReadinessProbe;
use crate::engine::search::ModelSearch;
use crate::engine::watchdog::Watchdog;
use crate::fleet::gate;
use crate::fleet::replica::{ReplicaSpec, Role};
use crate::fleet::router::Router;
use crate::fleet::selection::CacheAware;
use crate::fleet::transport::UpstreamTls;
use crate::fleet::{Fleet, Rules};
use crate::policy::flight::FlightParams;
use crate::policy::lane::Lane;
use crate::policy::retry::Limits;
use crate::policy::score::{AffinityParams, LoadParams};
use crate::policy::select::Params;
use crate::proxy::keepalive;
use crate::proxy::{ClientKeys, ClientRules, Cors, Front, Phases, PriorityRules, PromptShape, Proxy, Settings};
use crate::telemetry::decisions::Decisions;
use crate::telemetry::metrics::Metrics;
use handover::{Early, Handover, Inheritance, Known, Snapshot, Succession};
use http::HeaderValue;
use lifecycle::Going;
use pingora_core::listeners::{ListenerConfig, TcpSocketOptions};
use pingora_core::server::configuration::Opt;
use pingora_core::server::{RunArgs, Server};
use pingora_core::services::Service as _;
use pingora_core::services::background::background_service;
use pingora_core::services::listening::Service;
use pingora_load_balancing::{Backends, LoadBalancer};
use std::hash::{BuildHasher, RandomState};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize};
use std::time::Duration;
use thiserror::Error;
use tls::Certificates;

/// How often host names are resolved again.
const RESOLVE_EVERY: Duration = Duration::from_secs(30);

/// Why ramjet could not start.
#[derive(Debug, Error)]
pub enum StartError {
    /// An address cannot be bound.
    #[error("cannot listen on {address}: {cause}")]
    Listen {
        /// The address as configured.
        address: String,
        /// What the system said.
        cause: std::io::Error,
    },
    /// The first discovery could not run.
    #[error("cannot discover the replicas: {0}")]
    Discovery(String),
    /// A value that cannot be a header.
    #[error("replica {0}: its host or key cannot be sent in a header")]
    Header(String),
    /// The running process gives nothing away.
    #[error("cannot take over from the ramjet that waits at {socket}: {cause}")]
    Upgrade {
        /// `server.upgrade_sock`.
        socket: String,
        /// What the system or the other process said.
        cause: std::io::Error,
    },
    /// A metric was declared twice.
    #[error("cannot declare the metrics: {0}")]
    Metrics(#[from] prometheus::Error),
}

/// Builds everything and serves until the process ends.
///
/// # Errors
/// [`StartError`]; nothing has been served then.
pub fn run(loaded: &Loaded, cli: &Cli) -> Result<std::convert::Infallible, StartError> {
    let config = &loaded.config;
    let mut inheritance = cli.upgrade.then(|| inherit(config)).transpose()?;
    check_addresses(config, inheritance.as_ref())?;
    let snapshot = inheritance.as_mut().and_then(|given| given.snapshot.take());
    let Known { fleet, metrics, secret } = known(config, snapshot)?;
    let seen = (metrics.clone(), Arc::new(Decisions::default()));
    let balancer = balancer(config, &fleet);
    discover_once(&balancer)?;

    let opt = Opt { daemon: cli.daemon, ..Opt::default() };
    let pid_files = pid_files(config, cli);
    let mut conf = config::pingora::server_conf(config, cli.daemon);
    if let Some([next, _]) = &pid_files {
        conf.pid_file = next.to_string_lossy().into_owned();
    }
    let mut server = Server::new_with_opt_and_conf(opt, conf);
    server.bootstrap();
    let background = background_service("replicas", balancer);
    let router = Arc::new(Router::new(fleet.clone(), background.task()).limited(limits(config)));
    let draining = Arc::new(AtomicBool::new(false));
    let settings = settings(config, secret);
    let proxy = Proxy::new(router, seen.clone(), settings, client_rules(loaded, &fleet), draining.clone(), random());
    let open_http2 = Arc::new(AtomicUsize::new(0));
    let going = Going { metrics: metrics.clone(), draining: draining.clone(), open_http2: open_http2.clone() };
    let own = Known { fleet: fleet.clone(), metrics, secret };
    let succession = Succession::new(config.server.upgrade_sock.clone(), own, draining.clone(), random());
    let certificates = loaded.tls.clone().map(|tls| Certificates::new(config.listen.tls.clone(), tls));
    let api = api_service(&server, config, &proxy, (open_http2, certificates.as_ref()), &succession);
    let admin = admin_service(loaded, &fleet, seen, draining, &succession);

    let of = |addresses: Option<Vec<String>>| addresses.into_iter().flatten().collect();
    let wanted = [of(api.listen_addresses()), of(admin.listen_addresses())];
    let handover = server.add_service(Handover { succession: succession.clone(), inheritance, wanted, pid_files });
    server.add_service(api).add_dependency(&handover);
    server.add_service(admin).add_dependency(&handover);
    server.add_service(background);
    add_background(&mut server, config, fleet, certificates);
    serve(server, config, going, &succession)
}

/// Takes the listeners and the knowledge of the process that runs.
fn inherit(config: &Config) -> Result<Inheritance, StartError> {
    let socket = &config.server.upgrade_sock;
    let refused = |cause| StartError::Upgrade { socket: socket.display().to_string(), cause };
    handover::take(socket).map_err(refused)
}

/// What is known at the start: nothing, or what a process before this one knew.
fn known(config: &Config, snapshot: Option<Snapshot>) -> Result<Known, StartError> {
    let metrics = Arc::new(Metrics::new()?);
    let fleet = Fleet::new(replicas(config)?, params(config), config.routing.index_memory);
    let mut fleet = fleet.under(rules(config));
    let mut secret = random();
    if let Some(snapshot) = snapshot {
        secret = snapshot.secret;
        fleet.inherit(snapshot.fleet);
        metrics.inherit(&snapshot.counts);
    }
    Ok(Known { fleet: Arc::new(fleet), metrics, secret })
}

/// Of a daemon that takes over: where its process id stands until it serves, and then. A successor that fails must not
/// have taken the place of the one that serves.
fn pid_files(config: &Config, cli: &Cli) -> Option<[PathBuf; 2]> {
    let file = &config.server.pid_file;
    (cli.daemon && cli.upgrade).then(|| [file.with_extension("next"), file.clone()])
}

/// What watches the fleet and the files.
fn add_background(server: &mut Server, config: &Config, fleet: Arc<Fleet>, certificates: Option<Arc<Certificates>>) {
    server
        .add_service(background_service("generation", GenerationProbe::new(fleet.clone(), health::generation(config))));
    server.add_service(background_service("watchdog", Watchdog::new(fleet, health::watchdog(config))));
    server.add_service(background_service("hangup", lifecycle::Hangup { certificates: certificates.clone() }));
    if let Some(certificates) = certificates {
        server.add_service(background_service("certificates", tls::Renewal(certificates)));
    }
}

/// Serves until the process ends.
fn serve(
    mut server: Server,
    config: &Config,
    going: Going,
    succession: &Arc<Succession>,
) -> Result<std::convert::Infallible, StartError> {
    let phases = parking_lot::Mutex::new(Some(server.watch_execution_phase()));
    let draining = going.draining.clone();
    let signals = lifecycle::Signals { grace: config.server.grace, draining, over: succession.over() };
    let drain = lifecycle::Drain { going, phases, succession: succession.clone() };
    server.add_service(background_service("drain", drain));
    server.run(RunArgs { shutdown_signal: Box::new(signals) });
    succession.farewell();
    std::process::exit(0)
}

/// Fails early and clearly: Pingora tries a busy address for half a minute and then lives on without the listener.
fn check_addresses(config: &Config, inheritance: Option<&Inheritance>) -> Result<(), StartError> {
    let api = config.listen.api.iter().filter_map(|a| match a {
        ListenAddr::Tcp(address) => Some(*address),
        ListenAddr::Unix(_) => None,
    });
    let is_given = |address: &SocketAddr| inheritance.is_some_and(|given| given.has(&address.to_string()));
    for address in api.chain([config.listen.admin]).filter(|address| !is_given(address)) {
        let bound = std::net::TcpListener::bind(address);
        bound.map_err(|cause| StartError::Listen { address: address.to_string(), cause })?;
    }
    Ok(())
}

fn replicas(config: &Config) -> Result<Vec<ReplicaSpec>, StartError> {
    config.fleet.replicas.iter().map(replica).collect()
}

fn replica(r: &config::Replica) -> Result<ReplicaSpec, StartError> {
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
        tls: r.tls.as_ref().map(|tls| UpstreamTls::new(tls.verify, &tls.issuers)),
        role: Role { rank: r.rank, in_lane: r.lane.is_some(), node: r.node.clone(), kv_capacity: r.kv_capacity_tokens },
    })
}

fn admin_token(loaded: &Loaded) -> Option<Digest> {
    loaded.admin_token.as_ref().map(|token| sha256(token.expose().as_bytes()))
}

fn rules(config: &Config) -> Rules {
    let long_prompt = &config.routing.long_prompt;
    let lane = long_prompt.over.map(|over| Lane { over: over as u64, short: long_prompt.short });
    Rules { lane, slow_start: config.health.slow_start.window, errors: health::error_rule(config) }
}

fn limits(config: &Config) -> gate::Limits {
    let limits = &config.limits;
    let (inflight, per_replica) = (limits.inflight, limits.inflight_per_replica);
    gate::Limits { inflight, per_replica, queue: limits.queue.size as usize }
}

fn params(config: &Config) -> Params {
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
        search: Some(ModelSearch::new(fleet.clone(), health::readiness(&loaded.config))),
        context_margin: loaded.config.compat.context_margin.into(),
    }
}

fn priority(config: &Config) -> PriorityRules {
    let rules = &config.limits.priority;
    PriorityRules { header: rules.header.parse().ok(), allow: rules.allow.as_slice().into() }
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
        queue_wait: config.limits.queue.wait,
        priority: priority(config),
        compat: Compat {
            strip_max_tokens_over: config.compat.strip_max_tokens_over.map(u64::from),
            flatten_text_parts: config.compat.flatten_text_parts,
            drop_unknown_reasoning_effort: config.compat.drop_unknown_reasoning_effort,
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

fn balancer(config: &Config, fleet: &Arc<Fleet>) -> LoadBalancer<CacheAware> {
    let spec = health::readiness(config);
    let mut backends = Backends::new(Box::new(Configured::new(fleet.clone(), spec.thresholds)));
    backends.set_health_check(Box::new(ReadinessProbe::new(fleet.clone(), spec)));
    let mut balancer = LoadBalancer::from_backends_with_config(backends, Some(fleet.clone()));
    balancer.update_frequency = Some(RESOLVE_EVERY);
    balancer.health_check_frequency = Some(config.health.readiness.interval);
    balancer.parallel_health_check = true;
    balancer
}

/// The members must be known before the first request, and no thread may be left running: a daemon forks later.
fn discover_once(balancer: &LoadBalancer<CacheAware>) -> Result<(), StartError> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|e| StartError::Discovery(e.to_string()))?;
    runtime.block_on(balancer.update()).map_err(|e| StartError::Discovery(e.to_string()))
}

fn api_service(
    server: &Server,
    config: &Config,
    proxy: &Proxy,
    (open_http2, certificates): (Arc<AtomicUsize>, Option<&Arc<Certificates>>),
    succession: &Succession,
) -> Early<Front> {
    let shutdown = Arc::default();
    let front = Front::new(proxy, &server.configuration, open_http2, Arc::clone(&shutdown));
    let mut service = Service::new("api".to_owned(), front);
    service.threads = Some(server.configuration.threads);
    for address in &config.listen.api {
        match address {
            ListenAddr::Tcp(address) => {
                let mut listener = ListenerConfig::tcp(address.to_string()).tcp_socket_options(socket_options(config));
                if let Some(certificates) = certificates {
                    listener = listener.tls(tls::settings(certificates));
                }
                service.add_listener(listener);
            }
            ListenAddr::Unix(path) => service.add_uds(&path.to_string_lossy(), None),
        }
    }
    Early { service, opens: None, over: succession.over(), shutdown }
}

fn admin_service(
    loaded: &Loaded,
    fleet: &Arc<Fleet>,
    seen: (Arc<Metrics>, Arc<Decisions>),
    draining: Arc<AtomicBool>,
    succession: &Succession,
) -> Early<Admin> {
    let address = loaded.config.listen.admin;
    let access = Access { is_local: address.ip().is_loopback(), token: admin_token(loaded) };
    let mut service = Service::new("admin".to_owned(), Admin::new(fleet.clone(), seen, draining, access));
    service.add_tcp(&address.to_string());
    service.threads = Some(1);
    // what is counted must not be shown by two processes at a time
    Early { service, opens: Some(succession.serves()), over: succession.over(), shutdown: Arc::default() }
}

/// A client that has vanished without a word is noticed by keepalive probes.
fn socket_options(config: &Config) -> TcpSocketOptions {
    let mut options = TcpSocketOptions::default();
    options.tcp_keepalive = Some(keepalive(config.timeouts.tcp_keepalive));
    options
}

/// A number that differs from process to process, from the seed that the standard library draws for its maps.
fn random() -> u64 {
    RandomState::new().hash_one(std::process::id())
}
