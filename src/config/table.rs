//! Every setting, once: type, default, what is allowed, and why it exists.
//!
//! The structs below are the checked configuration. Adding a key is adding one entry here; its reader, its error
//! texts and its place in the reference follow. Only rules that span several settings live elsewhere (`rules`).

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use super::clients::{Auth, Cors};
use super::cluster::Cluster;
use super::events::KvEvents;
use super::found::Discovery;
use super::guards::{Identity, Speculation};
use super::kind::{
    AnyAddr, ENV_NAME, FilePath, HEADER_NAME, LINE, ListOf, OrNull, REQUEST_PATH, Switch, TcpAddr, bytes, choice,
    count, nested, number, span,
};
use super::map::Names;
use super::node::Node;
use super::page::Page;
use super::reader::Reader;
use super::replicas::Replicas;
use super::schema::{Kind, Section, settings};
use super::traces::Traces;
use super::values::{AccessLog, ListenAddr, Replica};
use crate::types::{Basis, FlightMode, PolicyKind, Priority, ProbeMode, ShortPrompts, UsageMode, WatchMode};

const KIB: usize = 1 << 10;
const MIB: usize = 1 << 20;
const GIB: usize = 1 << 30;

const fn ms(count: u64) -> Duration {
    Duration::from_millis(count)
}

const fn secs(count: u64) -> Duration {
    Duration::from_secs(count)
}

const fn mins(count: u64) -> Duration {
    Duration::from_secs(count * 60)
}

const fn hours(count: u64) -> Duration {
    Duration::from_secs(count * 3_600)
}

fn local(ip: Ipv4Addr, port: u16) -> SocketAddr {
    SocketAddr::from((ip, port))
}

settings! {
    /// The checked configuration.
    pub struct Config {
        /// Where ramjet listens.
        listen: Listen = Listen::default(), nested();
        /// The engines behind it.
        fleet: Fleet = Fleet::default(), nested();
        /// How a request finds its replica.
        routing: Routing = Routing::default(), nested();
        /// How a replica is known to work.
        health: Health = Health::default(), nested();
        /// What happens when an attempt fails before anything reached the client.
        retry: Retry = Retry::default(), nested();
        /// How long each phase of a request may take. There is no limit for the whole.
        timeouts: Timeouts = Timeouts::default(), nested();
        /// What is refused for its size, how much runs at once, and what becomes of the rest.
        limits: Limits = Limits::default(), nested();
        /// What is changed in a request on its way, where engines stumble over it.
        compat: Compat = Compat::default(), nested();
        /// Which clients may ask: those with a key, sent as a bearer token, in x-api-key or in api-key and never forwarded.
        /// Each key is a line `NAME: DIGEST`, the digest made by `printf %s KEY | sha256sum`. Without keys: all.
        auth: Auth = Auth::default(), nested();
        /// Which pages of other origins may ask from a browser.
        cors: Cors = Cors::default(), nested();
        /// The process.
        server: Server = Server::default(), nested();
        /// Who may use the admin API where it is not on loopback; without a token, nobody.
        admin: AdminAccess = AdminAccess::default(), nested();
        /// Whether streams of chat and completions are asked how many tokens they took where the client did not ask; the
        /// event in which the engine says so is taken out again, unless it compresses its answer although it is asked not
        /// to. What is refused (400, 422) is sent once more as it came. Without that word, nothing is learned from such streams.
        usage: UsageMode = UsageMode::AsAsked, choice();
        /// Other routers before the same engines.
        cluster: Cluster = Cluster::default(), nested();
        /// What is written to the log.
        log: Log = Log::default(), nested();
        /// OpenTelemetry traces, sent to a collector over OTLP/HTTP in JSON.
        traces: Traces = Traces::default(), nested();
    }

    /// The token of the admin API, sent as a bearer token.
    pub struct AdminAccess {
        /// The environment variable that holds it.
        token_env: Option<String> = None, OrNull(ENV_NAME);
        /// The file that holds it.
        token_file: Option<PathBuf> = None, OrNull(FilePath);
    }

    /// Where ramjet listens.
    pub struct Listen {
        /// For clients.
        api: Vec<ListenAddr> = vec![ListenAddr::Tcp(local(Ipv4Addr::UNSPECIFIED, 8000))],
            ListOf { min: 1, item: AnyAddr };
        /// For operators: metrics and the admin API. Keep it off public networks.
        admin: SocketAddr = local(Ipv4Addr::LOCALHOST, 9090), TcpAddr;
        /// TLS for clients, on all TCP addresses of api: HTTP/2 and HTTP/1.1, TLS 1.2 and 1.3. Off without cert and key.
        tls: Tls = Tls::default(), nested();
    }

    /// TLS for clients. The files are read again when one of them has changed, and at SIGHUP.
    pub struct Tls {
        /// The certificate, followed by those of its issuers, as PEM.
        cert: Option<PathBuf> = None, OrNull(FilePath);
        /// Its private key, as PEM.
        key: Option<PathBuf> = None, OrNull(FilePath);
        /// The issuers of client certificates, as PEM. With it, a client without such a certificate is refused.
        client_ca: Option<PathBuf> = None, OrNull(FilePath);
    }

    /// The engines.
    pub struct Fleet {
        /// The engine instances to choose from; at least one, unless RJ_UPSTREAM or --upstream names them or they are
        /// discovered.
        replicas: Vec<Replica> = Vec::new(), Replicas;
        /// What its engines tell of their caches.
        kv_events: KvEvents = KvEvents::default(), nested();
        /// What the engine of every replica must be, where its own identity does not say.
        identity: Identity = Identity::default(), nested();
        /// Where more of them are found, and looked for again while ramjet runs. Where a source fails or is empty, those
        /// that it named last stay. Of two replicas with one name the first stays: replicas, then file, then dns.
        discovery: Discovery = Discovery::default(), nested();
    }

    /// How a request finds its replica.
    pub struct Routing {
        /// cost: predicted milliseconds; affinity: credit for cached blocks minus load; load: fewest reserved units; round_robin: rotation.
        policy: PolicyKind = PolicyKind::Cost, choice();
        /// The size of the blocks in which prompts are compared.
        block_bytes: usize = 2 * KIB, bytes(256..=64 * KIB);
        /// How much of a prompt is compared at most.
        max_prefix_bytes: usize = 2 * MIB, bytes(256..=64 * MIB);
        /// The most memory that the prefix index takes.
        index_memory: usize = 256 * MIB, bytes(MIB..=64 * GIB);
        /// Parameters of the affinity policy.
        affinity: Affinity = Affinity::default(), nested();
        /// Requests that share a prefix which is being read for the first time.
        single_flight: SingleFlight = SingleFlight::default(), nested();
        /// Headers that name a session, the first one that a request has counts; prompt_cache_key in the body counts
        /// after them. The same name, the same replica, while that is neither overloaded nor gone.
        session_headers: Vec<String> = vec!["x-session-id".to_owned(), "x-session-affinity".to_owned()],
            ListOf { min: 0, item: HEADER_NAME };
        /// The lane for long prompts: the replicas with lane: long, if there are any.
        long_prompt: LongPrompt = LongPrompt::default(), nested();
    }

    /// The lane for long prompts.
    pub struct LongPrompt {
        /// The size of a body beyond which it goes to the lane, as long as a replica of the lane is healthy. Null: the
        /// lane is off.
        over: Option<usize> = Some(1_000_000), OrNull(bytes(KIB..=GIB));
        /// Where the others go. shared: anywhere; exclusive: not to the lane while another replica is healthy; avoid:
        /// to the lane only if they are cached there or the others are busier by more than the move costs.
        short: ShortPrompts = ShortPrompts::Shared, choice();
    }

    /// Parameters of the affinity policy.
    pub struct Affinity {
        /// What an overlap is compared with: nothing, the least overlap of a peer, or the best overlap of a peer.
        basis: Basis = Basis::Relative, choice();
        /// The overlap, in blocks, beyond which credit no longer grows.
        cap_blocks: u32 = 32, count(1..=65_536);
        /// What one unit of load costs, in blocks of overlap.
        alpha: f64 = 4.0, number(0.0..=1000.0);
        /// The uncached bytes of a body that make one unit of load.
        load_unit: usize = 32 * KIB, bytes(KIB..=64 * MIB);
        /// The most units that one request can weigh.
        max_load_units: u32 = 8, count(1..=1024);
        /// Whether a request weighs one unit only once its first token has come.
        phase_aware: bool = true, Switch;
    }

    /// Requests that share a prefix which is being read for the first time.
    pub struct SingleFlight {
        /// off: only what has been read counts; shadow: the same, and what colocate would change is counted; colocate:
        /// they meet at the replica that reads it; hold: they meet there and wait here until it is read.
        mode: FlightMode = FlightMode::Colocate, choice();
        /// A shorter new prefix is not worth meeting for.
        min_blocks: u32 = 8, count(1..=65_536);
        /// The longest that hold keeps a request back.
        max_hold: Duration = secs(2), span(ms(1)..=mins(5));
    }

    /// How a replica is known to work.
    pub struct Health {
        /// A cheap question asked again and again.
        readiness: Readiness = Readiness::default(), nested();
        /// A completion of one token, for engines that answer everything else and generate nothing.
        generation: Generation = Generation::default(), nested();
        /// What running requests show of an engine that has stopped generating.
        progress: Progress = Progress::default(), nested();
        /// What failed requests show: connections, errors of the engine, streams that break.
        errors: Errors = Errors::default(), nested();
        /// What engines count of speculative decoding.
        speculation: Speculation = Speculation::default(), nested();
        /// How a replica that has come back gets its share again.
        slow_start: SlowStart = SlowStart::default(), nested();
    }

    /// The share of a replica that has come back.
    pub struct SlowStart {
        /// For how long it counts as busier than it is: at first by far, at the end no longer. 0ms: not at all.
        window: Duration = secs(30), span(ms(0)..=hours(1));
    }

    /// The readiness probe.
    pub struct Readiness {
        /// The time between two probes of a replica.
        interval: Duration = secs(5), span(ms(100)..=hours(1));
        /// How long an answer may take.
        timeout: Duration = secs(5), span(ms(10)..=mins(5));
        /// What is asked for.
        path: String = "/v1/models".to_owned(), REQUEST_PATH;
        /// Failures in a row that fence a replica.
        failures: u32 = 2, count(1..=100);
        /// Successes in a row that bring it back.
        successes: u32 = 2, count(1..=100);
    }

    /// The generation probe.
    pub struct Generation {
        /// all: every replica is probed; ranks: those with several dp_ranks; off: none, except where the watchdog fenced.
        mode: ProbeMode = ProbeMode::All, choice();
        /// The time between two probes of a replica; a quarter of it while it is fenced for generating nothing.
        interval: Duration = secs(15), span(ms(100)..=hours(1));
        /// How long the token may take.
        timeout: Duration = secs(20), span(ms(10)..=mins(10));
        /// After a request was completed with what it generated, a probe that times out does not count for so long; nor
        /// does a readiness probe.
        suppress_after_success: Duration = secs(30), span(ms(0)..=hours(1));
        /// Failures in a row that fence a replica.
        failures: u32 = 1, count(1..=100);
        /// Successes in a row that bring it back.
        successes: u32 = 2, count(1..=100);
    }

    /// The watchdog over requests that wait for a token.
    pub struct Progress {
        /// fence: a replica is fenced when nothing is generated there for much longer than usual and a question about it
        /// goes unanswered; observe: the log says so; off: nobody looks.
        mode: WatchMode = WatchMode::Fence, choice();
        /// The least silence of a replica with work after which it is asked for a token.
        silence: Duration = secs(1), span(ms(50)..=mins(10));
        /// How long it has for that.
        timeout: Duration = ms(1500), span(ms(10)..=mins(1));
        /// How many times longer than its prompts should take a silence must be to count.
        patience: f64 = 3.0, number(1.0..=100.0);
    }

    /// The breaker for failed requests.
    pub struct Errors {
        /// fence: a replica is fenced when different requests fail there, unless it is the last healthy one of a model;
        /// observe: the log says so; off: nobody counts.
        mode: WatchMode = WatchMode::Fence, choice();
        /// How far back failures count.
        window: Duration = secs(30), span(secs(1)..=hours(1));
        /// The failed requests that fence, if no more than as many went well. A request sent again counts once.
        failures: u32 = 5, count(2..=100);
        /// After so long it gets a few requests. Twice as long each time one of them fails.
        pause: Duration = secs(10), span(ms(50)..=hours(1));
        /// Requests of those that must end well.
        successes: u32 = 3, count(1..=100);
    }

    /// What happens when an attempt fails before anything reached the client.
    pub struct Retry {
        /// The most replicas that see one request, the first included.
        attempts: u32 = 2, count(1..=16);
        /// Whether a request without side effects is sent again when its connection is lost before the first byte.
        replay_lost: bool = true, Switch;
    }

    /// How long each phase of a request may take.
    pub struct Timeouts {
        /// To open a connection to a replica.
        connect: Duration = secs(2), span(ms(1)..=mins(10));
        /// From the request to the first byte of the response: queueing and prefill, and for an answer that is not streamed
        /// all of the generation. Where it is streamed, an engine may be silent for this or for idle_read, whichever is
        /// longer. Also the longest that the sending of a body to it may take, or of a piece of one that streams through.
        first_byte: Duration = mins(15), span(ms(1)..=hours(24));
        /// Silence between two bytes of a response; see first_byte.
        idle_read: Duration = mins(10), span(ms(1)..=hours(24));
        /// From the opening of a client's connection to the end of its first request's head; on HTTP/2 also from the
        /// first byte of any other head to its last.
        client_header: Duration = secs(30), span(ms(1)..=hours(1));
        /// Silence between two pieces of a request's body. Where ramjet reads the body, also the time after which it must
        /// have come at 500 bytes a second on average.
        client_body: Duration = secs(60), span(ms(1)..=hours(1));
        /// How long a client may leave its answer unread when the buffers between are full, for each 64 KiB of it. Then
        /// the connection is closed and the engine free.
        client_write: Duration = mins(5), span(ms(1)..=hours(24));
        /// How long an idle connection is kept. Stay below what the engines keep (uvicorn: 5s).
        pool_idle: Duration = secs(4), span(ms(1)..=hours(1));
        /// The idle time before TCP keepalive probes a connection to a replica.
        tcp_keepalive: Duration = secs(30), span(secs(1)..=hours(2));
    }

    /// What is refused for its size, how much runs at once, and what becomes of the rest.
    pub struct Limits {
        /// The largest body of a request, as it comes and, if that is compressed, as it is.
        body: usize = 64 * MIB, bytes(KIB..=GIB);
        /// The memory that the bodies of all requests together may take while they are held, until an answer begins. A body
        /// for which there is no room is turned away with 503 and Retry-After, unless it is the only one.
        body_memory: usize = 2 * GIB, bytes(MIB..=1024 * GIB);
        /// The most requests in flight at all replicas together. Null: no limit.
        inflight: Option<u32> = None, OrNull(count(1..=1_000_000));
        /// The most requests in flight at one replica; best what its engine runs at once, or a little more. A replica that
        /// is full is passed over; when all are, requests wait here, where the next free one takes them. Null: no limit.
        inflight_per_replica: Option<u32> = None, OrNull(count(1..=1_000_000));
        /// Where requests wait for room. Sessions (or, without, keys or connections) take turns.
        queue: Queue = Queue::default(), nested();
        /// Which requests go first when not all can.
        priority: PriorityRules = PriorityRules::default(), nested();
    }

    /// Where requests wait for room.
    pub struct Queue {
        /// The most that wait. One more is turned away with 503 and Retry-After.
        size: u32 = 1024, count(0..=65_536);
        /// The longest that one waits before it is turned away in the same way.
        wait: Duration = secs(30), span(ms(0)..=hours(1));
    }

    /// Which requests go first when not all can.
    pub struct PriorityRules {
        /// The header in which a request names its priority. It is not forwarded.
        header: String = "x-ramjet-priority".to_owned(), HEADER_NAME;
        /// What clients may name. interactive goes before batch, but of nine that go while both wait one is batch.
        /// A request that names nothing, or anything else, has the first of these.
        allow: Vec<Priority> = vec![Priority::Interactive, Priority::Batch], ListOf { min: 1, item: choice() };
    }

    /// What is changed in a request on its way, as edits of single spans of its text.
    pub struct Compat {
        /// A max_tokens or max_completion_tokens above this is removed: it means no limit. Null: nothing is removed.
        strip_max_tokens_over: Option<u32> = Some(100_000), OrNull(count(1..=u32::MAX));
        /// Whether the content of a chat message that is a list of one text part, with nothing else in it, is sent as
        /// that text.
        flatten_text_parts: bool = true, Switch;
        /// Whether a reasoning_effort other than none, minimal, low, medium, high, xhigh and max is removed.
        drop_unknown_reasoning_effort: bool = true, Switch;
        /// Other names under which clients ask for models: `{alias: model}`. The engine gets the model's own name.
        model_aliases: BTreeMap<String, String> = BTreeMap::new(), Names;
        /// Tokens by which /v1/models shows context lengths shorter than they are, where they are longer than this.
        context_margin: u32 = 16_384, count(0..=u32::MAX);
    }

    /// The process.
    pub struct Server {
        /// Threads for requests. Null: one for each core.
        threads: Option<u32> = None, OrNull(count(1..=1024));
        /// Where a daemon writes its process id.
        pid_file: PathBuf = PathBuf::from("/run/ramjet.pid"), FilePath;
        /// The socket at which a process waits for its successor (`ramjet upgrade`). Best in a folder that is its user's
        /// alone. Where it cannot be made, ramjet serves and cannot be upgraded.
        upgrade_sock: PathBuf = PathBuf::from("/run/ramjet.upgrade.sock"), FilePath;
        /// After SIGTERM, how long requests are still taken while health says draining, so that balancers look
        /// elsewhere. A second SIGTERM ends ramjet at once. After a hand-over, how long clients keep their idle
        /// connections to the process that goes.
        grace: Duration = secs(5), span(ms(0)..=hours(1));
        /// After that, how long running requests may take to finish.
        drain_limit: Duration = mins(30), span(ms(0)..=hours(24));
        /// The user that a daemon (`-d`) becomes.
        user: Option<String> = None, OrNull(LINE);
        /// The group that a daemon becomes. Null: its user's own.
        group: Option<String> = None, OrNull(LINE);
    }

    /// What is written to the log.
    pub struct Log {
        /// One line of JSON for each request but those for `/health`.
        access: AccessLog = AccessLog::Json, choice();
        /// The file that gets a line for each step of a choice, to make them again with `ramjet replay`; null: none. No text.
        journal: Option<PathBuf> = None, OrNull(FilePath);
    }
}
