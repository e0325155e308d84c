//! The composition root: from a configuration to running services. Everything is built here, nothing is decided.

mod addresses;
mod descriptors;
mod group;
mod handover;
mod health;
mod journal;
mod lifecycle;
mod meaning;
mod members;
mod owner;
mod reload;
mod renew;
mod tls;

pub use handover::{NotUpgraded, upgrade};
pub use lifecycle::hold_hangups;

use crate::admin::{Access, Admin, Setting, Settings};
use crate::cli::Cli;
use crate::cluster::Cluster;
use crate::cluster::keys::Keys;
use crate::config::{self, Config, ListenAddr, Loaded};
use crate::engine::admission::AdmissionWatch;
use crate::engine::discovery::Configured;
use crate::engine::events::KvEvents;
use crate::engine::generation::GenerationProbe;
use crate::engine::membership::{Membership, Source};
use crate::engine::probe::ReadinessProbe;
use crate::engine::speculation::SpeculationGuard;
use crate::engine::watchdog::Watchdog;
use crate::fleet::Fleet;
use crate::fleet::clock::Clock;
use crate::fleet::router::Router;
use crate::fleet::selection::CacheAware;
use crate::proxy::{Front, Proxy};
use crate::telemetry::decisions::Decisions;
use crate::telemetry::journal::Journal;
use crate::telemetry::metrics::Metrics;
use crate::telemetry::outlet;
use crate::telemetry::recorder::{Recorder, Seen};
use arc_swap::ArcSwap;
use handover::{Early, Handover, Inheritance, Known, Snapshot, Succession};
use lifecycle::Going;
use meaning::{admin_token, limits, params, replica, rules, terms};
use pingora_core::listeners::ListenerConfig;
use pingora_core::protocols::l4::stream::L4BufferSettings;
use pingora_core::server::configuration::Opt;
use pingora_core::server::{RunArgs, Server};
use pingora_core::services::Service as _;
use pingora_core::services::background::{GenBackgroundService, background_service};
use pingora_core::services::listening::Service;
use pingora_load_balancing::{Backends, LoadBalancer};
use reload::{Live, Reload};
use renew::{Checks, Exchangeable, News, Renewed};
use std::hash::{BuildHasher, RandomState};
use std::io::ErrorKind;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize};
use thiserror::Error;
use tls::Certificates;
use tokio::sync::watch;

/// What is read ahead of a client's connection: its beginning, which is looked at first. A head and a short body fit, and all
/// else is read to where it belongs. An open stream keeps no more.
const READ_BUFFER: usize = 2 << 10;
/// The same under TLS, which asks for little at a time.
const TLS_READ_BUFFER: usize = 8 << 10;

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
    /// The journal cannot be opened.
    #[error("cannot write the journal {path}: {cause}")]
    Journal {
        /// `log.journal`.
        path: String,
        /// What the system said.
        cause: std::io::Error,
    },
    /// A metric was declared twice.
    #[error("cannot declare the metrics: {0}")]
    Metrics(#[from] prometheus::Error),
}

/// The fleet with its members, and those who bring them.
struct Founded {
    known: Known,
    told: watch::Sender<Arc<Loaded>>,
    news: News,
    readiness: Arc<ArcSwap<ReadinessProbe>>,
    balancer: Arc<LoadBalancer<CacheAware>>,
    membership: Arc<Membership>,
    journal: Option<Arc<Journal>>,
    cluster: Option<Arc<Cluster>>,
}

/// Builds everything and serves until the process ends.
///
/// # Errors
/// [`StartError`]; nothing has been served then.
pub fn run(loaded: &Loaded, cli: &Cli) -> Result<std::convert::Infallible, StartError> {
    let config = &loaded.config;
    owner::warn(config, cli);
    descriptors::raise();
    let mut inheritance = if cli.upgrade { inherit(config, cli.or_start)? } else { None };
    addresses::check(config, &inheritance.as_ref().map(Inheritance::names).unwrap_or_default())?;
    let snapshot = inheritance.as_mut().and_then(|given| given.snapshot.take());
    let founded = found(loaded, (snapshot, inheritance.is_some()), config::pingora::user(config, cli.daemon))?;
    let Known { fleet, metrics, secret, seen: past, guard, .. } = founded.known.clone();
    let seen = (metrics.clone(), Arc::new(Decisions::default()));

    let pid_files = pid_files(config, cli);
    let mut server = pingora(config, cli, pid_files.as_ref());
    let router = Arc::new(Router::new(fleet.clone(), founded.balancer.clone()).limited(limits(config)));
    let draining = Arc::new(AtomicBool::new(false));
    let terms = Arc::new(ArcSwap::from_pointee(terms(loaded, &fleet, secret)));
    let proxy = Proxy::new(router.clone(), seen.clone(), terms.clone(), draining.clone(), random());
    let (tracer, exporter) = meaning::tracer(loaded, metrics.clone(), random());
    let proxy = proxy.watched(past.trunks.clone(), Arc::new(tracer));
    let open_http2 = Arc::new(AtomicUsize::new(0));
    let going = Going { metrics: metrics.clone(), draining: draining.clone(), open_http2: open_http2.clone() };
    let own = founded.known.clone();
    let run = handover::given_run().unwrap_or_else(random);
    let succession = Succession::new(config.server.upgrade_sock.clone(), own, draining.clone(), run);
    let certificates = loaded.tls.clone().map(|tls| Certificates::new(config.listen.tls.clone(), tls));
    let api = api_service(&server, config, &proxy, (open_http2, certificates.as_ref()), &succession);
    let api = group::opening(api, founded.cluster.as_ref());
    let access = Access { is_local: config.listen.admin.ip().is_loopback(), token: admin_token(loaded) };
    let access = Arc::new(ArcSwap::from_pointee(access));
    let (told, readiness) = (founded.told, founded.readiness);
    let live = Live { fleet: fleet.clone(), router, terms, secret, access: access.clone(), readiness, told };
    metrics.know_keys(meaning::key_names(loaded));
    let mut parts = reload::parts(&live);
    parts.push(reload::keys(&metrics));
    let recorder = Recorder::new(fleet.clone(), metrics.clone(), past.clone());
    let around = (metrics, succession.clone(), certificates.clone());
    let reload = Arc::new(Reload::new(cli, founded.news.clone(), parts, founded.membership.clone(), around));
    let admin = Admin::new(fleet.clone(), seen, draining, access).guarded(guard.clone());
    let admin = admin.showing(past, settings(&founded.news));
    let admin = admin_service(config, admin.reloading(reload.clone()), &succession);
    let (api, admin) = in_order(api, admin, inheritance.is_some().then(|| succession.serves()));

    let of = |addresses: Option<Vec<String>>| addresses.into_iter().flatten().collect();
    let wanted = [of(api.listen_addresses()), of(admin.listen_addresses())];
    let handover = Handover { succession: succession.clone(), inheritance, wanted, bound: api.bound(), pid_files };
    let handover = server.add_service(handover);
    server.add_service(api).add_dependency(&handover);
    server.add_service(admin).add_dependency(&handover);
    server.add_service(GenBackgroundService::new("replicas".to_owned(), founded.membership));
    server.add_service(background_service("speculation", guard));
    server.add_service(background_service("recorder", recorder));
    group::add(&mut server, founded.cluster);
    if let Some(exporter) = exporter {
        server.add_service(background_service("traces", exporter));
    }
    add_health(&mut server, &fleet, founded.balancer, &founded.news);
    add_journal(&mut server, founded.journal.as_ref(), &fleet);
    add_files(&mut server, (reload, founded.journal.clone()), certificates);
    serve(server, config, going, &succession);
    if let Some(journal) = &founded.journal {
        journal.close();
    }
    outlet::exit(0)
}

/// Pingora's server, without services.
fn pingora(config: &Config, cli: &Cli, pid_files: Option<&[PathBuf; 2]>) -> Server {
    let opt = Opt { daemon: cli.daemon, ..Opt::default() };
    let mut conf = config::pingora::server_conf(config, cli.daemon);
    if let Some([next, _]) = pid_files {
        conf.pid_file = next.to_string_lossy().into_owned();
    }
    let mut server = Server::new_with_opt_and_conf(opt, conf);
    server.bootstrap();
    server
}

/// The settings in force, as they may be shown.
fn settings(news: &News) -> Settings {
    let news = news.clone();
    Box::new(move || {
        let config = &news.borrow().config;
        let shown = config::shown(config).into_iter();
        shown.map(|s| Setting { path: s.path, value: s.value, default: s.default }).collect()
    })
}

/// Takes the listeners and the knowledge of the process that runs; nothing where none does and that is allowed.
fn inherit(config: &Config, may_start: bool) -> Result<Option<Inheritance>, StartError> {
    let socket = &config.server.upgrade_sock;
    match handover::take(socket) {
        Ok(inheritance) => Ok(Some(inheritance)),
        Err(cause) if may_start && matches!(cause.kind(), ErrorKind::NotFound | ErrorKind::ConnectionRefused) => {
            log::warn!("no ramjet waits at {}: this one begins afresh", socket.display());
            Ok(None)
        }
        Err(cause) => Err(StartError::Upgrade { socket: socket.display().to_string(), cause }),
    }
}

/// The fleet and its members, and what is known of them: nothing, or what the process knew that this one `follows`. `user` is
/// whom this process becomes.
fn found(
    loaded: &Loaded,
    (snapshot, follows): (Option<Snapshot>, bool),
    user: Option<u32>,
) -> Result<Founded, StartError> {
    let config = &loaded.config;
    let metrics = Arc::new(Metrics::new()?);
    let clock = snapshot.as_ref().map_or_else(Clock::default, |snapshot| Clock::at(snapshot.fleet.now()));
    let fleet = Fleet::new(Vec::new(), params(config), config.routing.index_memory);
    let fleet = Arc::new(fleet.under(rules(config)).on(clock));
    let journal = journal::open(config, &fleet, &metrics)?;
    let guard = SpeculationGuard::new(fleet.clone(), health::speculation(config, user));
    let (told, news) = watch::channel(Arc::new(loaded.clone()));
    let readiness = ReadinessProbe::new(fleet.clone(), health::readiness(config));
    let readiness = Arc::new(ArcSwap::from_pointee(readiness));
    let balancer = Arc::new(balancer(&fleet, &readiness, news.clone()));
    let membership = Arc::new(Membership::new(fleet.clone(), balancer.clone()));
    discover_once(&membership, members::sources(loaded)?, follows)?;
    metrics.configured();
    let (keys, seen) = (group::keys(loaded), Seen::default());
    let mut secret = keys.as_ref().map_or_else(random, Keys::fingerprints);
    let mut routers = snapshot.as_ref().map(|snapshot| snapshot.routers.clone()).unwrap_or_default();
    let knows = snapshot.as_ref().is_some_and(|snapshot| keys.is_none() || snapshot.secret == secret);
    if let Some(snapshot) = snapshot {
        let goes_on = snapshot.former.into_iter().chain((!knows).then_some(snapshot.secret));
        fleet.pins().was_hashed_with(goes_on.collect());
        secret = if knows { snapshot.secret } else { secret };
        fleet.inherit(if knows { snapshot.fleet } else { snapshot.fleet.without_fingerprints() });
        metrics.inherit(&snapshot.counts);
        seen.history.restore(snapshot.history);
    }
    let cluster = group::cluster(loaded, &fleet, &metrics, (knows, routers.clone()));
    routers.extend(cluster.as_ref().map(|cluster| cluster.me()));
    // more upgrades than that are not under way
    routers.drain(..routers.len().saturating_sub(8));
    let known = Known { fleet, metrics, secret, routers, seen, guard };
    Ok(Founded { known, told, news, readiness, balancer, membership, journal, cluster })
}

/// Of a daemon that takes over: where its process id stands until it serves, and then. A successor that fails must not
/// have taken the place of the one that serves.
fn pid_files(config: &Config, cli: &Cli) -> Option<[PathBuf; 2]> {
    let file = &config.server.pid_file;
    (cli.daemon && cli.upgrade).then(|| [file.with_extension("next"), file.clone()])
}

/// What writes the journal.
fn add_journal(server: &mut Server, journal: Option<&Arc<Journal>>, fleet: &Arc<Fleet>) {
    if let Some(journal) = journal {
        let writing = journal::Writing { journal: journal.clone(), fleet: fleet.clone() };
        server.add_service(background_service("journal", writing));
    }
}

/// What watches the files.
fn add_files(
    server: &mut Server,
    (reload, journal): (Arc<Reload>, Option<Arc<Journal>>),
    certificates: Option<Arc<Certificates>>,
) {
    let hangup = lifecycle::Hangup { reload, certificates: certificates.clone(), journal };
    server.add_service(background_service("hangup", hangup));
    if let Some(certificates) = certificates {
        server.add_service(background_service("certificates", tls::Renewal(certificates)));
    }
}

/// Serves until the process is to end.
fn serve(mut server: Server, config: &Config, going: Going, succession: &Arc<Succession>) {
    let phases = parking_lot::Mutex::new(Some(server.watch_execution_phase()));
    let draining = going.draining.clone();
    let signals = lifecycle::Signals { grace: config.server.grace, draining, succession: succession.clone() };
    let drain = lifecycle::Drain { going, phases, succession: succession.clone() };
    server.add_service(background_service("drain", drain));
    server.run(RunArgs { shutdown_signal: Box::new(signals) });
    succession.farewell();
}

/// The services that know how replicas are.
fn add_health(server: &mut Server, fleet: &Arc<Fleet>, balancer: Arc<LoadBalancer<CacheAware>>, news: &News) {
    let checks = Checks { balancer, fleet: fleet.clone(), news: news.clone() };
    server.add_service(background_service("readiness", checks));
    let own = fleet.clone();
    let make = Box::new(move |config: &Config| GenerationProbe::new(own.clone(), health::generation(config)));
    server.add_service(background_service("generation", Renewed { news: news.clone(), make }));
    let own = fleet.clone();
    let make = Box::new(move |config: &Config| Watchdog::new(own.clone(), health::watchdog(config)));
    server.add_service(background_service("watchdog", Renewed { news: news.clone(), make }));
    let own = fleet.clone();
    let make = Box::new(move |config: &Config| AdmissionWatch::new(own.clone(), health::admission(config)));
    server.add_service(background_service("admission", Renewed { news: news.clone(), make }));
    let own = fleet.clone();
    let make = Box::new(move |config: &Config| KvEvents::new(own.clone(), config.fleet.kv_events.bind));
    server.add_service(background_service("KV events", Renewed { news: news.clone(), make }));
}

fn balancer(fleet: &Arc<Fleet>, readiness: &Arc<ArcSwap<ReadinessProbe>>, news: News) -> LoadBalancer<CacheAware> {
    let thresholds = move || health::readiness(&news.borrow().config).thresholds;
    let mut backends = Backends::new(Box::new(Configured::new(fleet.clone(), thresholds)));
    backends.set_health_check(Box::new(Exchangeable(readiness.clone())));
    LoadBalancer::from_backends_with_config(backends, Some(fleet.clone()))
}

/// The members must be known before the first request, and no thread may be left running: a daemon forks later. Who
/// `follows` another process takes its place only if all sources answer: that one knows what they said before.
fn discover_once(membership: &Membership, sources: Vec<Box<dyn Source>>, follows: bool) -> Result<(), StartError> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|e| StartError::Discovery(e.to_string()))?;
    runtime.block_on(async {
        if follows {
            let exchanged = membership.exchange(sources, || {}).await;
            exchanged.map_err(|why| StartError::Discovery(why.join("; ")))?;
        } else {
            membership.begin(sources).await;
        }
        Ok(())
    })
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
                let ahead = if certificates.is_some() { TLS_READ_BUFFER } else { READ_BUFFER };
                let mut listener = ListenerConfig::tcp(address.to_string())
                    .tcp_socket_options(addresses::options(config, *address))
                    .l4_buffer(L4BufferSettings::default().read(ahead));
                if let Some(certificates) = certificates {
                    listener = listener.tls(tls::settings(certificates));
                }
                service.add_listener(listener);
            }
            ListenAddr::Unix(path) => {
                let listener = ListenerConfig::uds(path.to_string_lossy());
                service.add_listener(listener.l4_buffer(L4BufferSettings::default().read(READ_BUFFER)));
            }
        }
    }
    Early::new(service, succession.over(), shutdown)
}

fn admin_service(config: &Config, admin: Admin, succession: &Succession) -> Early<Admin> {
    let mut service = Service::new("admin".to_owned(), admin);
    service.add_tcp(&config.listen.admin.to_string());
    service.threads = Some(1);
    Early::new(service, succession.over(), Arc::default())
}

/// Both, so that who has an answer of the API finds the admin listener there. Where this process follows another one, whose
/// listener stands meanwhile, admin begins when this one `serves`: what is counted must not be shown by two processes at a time.
fn in_order(
    api: Early<Front>,
    admin: Early<Admin>,
    serves: Option<watch::Receiver<bool>>,
) -> (Early<Front>, Early<Admin>) {
    match serves {
        Some(serves) => (api, admin.opening(serves)),
        None => {
            let stands = admin.bound();
            (api.opening(stands), admin)
        }
    }
}

/// A number that differs from process to process, from the seed that the standard library draws for its maps.
fn random() -> u64 {
    RandomState::new().hash_one(std::process::id())
}
