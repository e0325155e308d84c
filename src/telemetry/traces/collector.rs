//! Where traces go: a queue of bounded length, and a service that sends what is in it to a collector over HTTP.
//!
//! A request never waits for it: what does not fit is dropped and counted, and so is what the collector does not take. It is
//! tried once; who wants more puts a collector beside the router.

use super::{Parent, Span, Trace, otlp};
use crate::fleet::transport::{UpstreamTls, transport};
use crate::telemetry::checks::TraceEnd;
use crate::telemetry::metrics::Metrics;
use async_trait::async_trait;
use http::HeaderMap;
use pingora_core::connectors::TransportConnector;
use pingora_core::server::ShutdownWatch;
use pingora_core::services::background::BackgroundService;
use std::io::{Error, ErrorKind, Result};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant, SystemTime};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpStream, lookup_host};
use tokio::sync::{Mutex, mpsc};
use xxhash_rust::xxh3::{xxh3_64_with_seed, xxh3_128_with_seed};

/// Traces that may wait: a few megabytes.
const WAITING: usize = 2048;
/// Traces that are sent at once, and how long they are gathered.
const BATCH: usize = 256;
const GATHER: Duration = Duration::from_secs(1);
/// How long sending may take.
const PATIENCE: Duration = Duration::from_secs(10);
/// The most that is read of an answer.
const ANSWER: u64 = 4096;

/// Where the collector is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Collector {
    /// Host and port, as the request names them.
    pub authority: String,
    /// The same with the port in any case.
    pub address: String,
    /// How it is known to be itself; `None` without TLS.
    pub tls: Option<UpstreamTls>,
    /// The path of the request.
    pub path: String,
    /// The name under which the service is known there.
    pub service: String,
}

/// Begins and ends traces; off without a collector.
pub struct Tracer {
    queue: Option<mpsc::Sender<Box<Trace>>>,
    metrics: Arc<Metrics>,
    /// The share of requests that are traced unless their client says so itself.
    sample: f64,
    seed: u64,
    next: AtomicU64,
}

/// Sends.
pub struct Exporter {
    collector: Collector,
    metrics: Arc<Metrics>,
    queue: Mutex<mpsc::Receiver<Box<Trace>>>,
    transport: TransportConnector,
}

impl Collector {
    /// From a URL: `http://HOST:PORT` or `https://HOST`, with a path or without.
    pub fn at(url: &str, service: &str, tls: Option<UpstreamTls>) -> Collector {
        let place = url.split_once("://").map_or(url, |(_, place)| place);
        let (authority, path) = place.split_once('/').unwrap_or((place, ""));
        let path = if path.is_empty() { "v1/traces" } else { path };
        let has_port = authority.rsplit_once(':').is_some_and(|(_, port)| !port.ends_with(']'));
        let address = if has_port { authority.to_owned() } else { format!("{authority}:443") };
        Collector {
            authority: authority.to_owned(),
            address,
            tls,
            path: format!("/{path}"),
            service: service.to_owned(),
        }
    }

    /// Connects and sends; the status of the answer.
    async fn post(&self, transport: &TransportConnector, body: &str) -> Result<u16> {
        let Some(tls) = &self.tls else {
            return exchange(TcpStream::connect(&self.address).await?, self, body).await;
        };
        let host = self.address.rsplit_once(':').map_or("", |(host, _)| host);
        let mut last = Error::from(ErrorKind::NotFound);
        for address in lookup_host(&self.address).await? {
            match transport.new_stream(&tls.peer(address, host)).await {
                Ok(stream) => return exchange(stream, self, body).await,
                Err(e) => last = Error::other(e),
            }
        }
        Err(last)
    }
}

impl Tracer {
    /// Nothing is traced.
    pub fn off(metrics: Arc<Metrics>) -> Self {
        Tracer { queue: None, metrics, sample: 0.0, seed: 0, next: AtomicU64::new(0) }
    }

    /// Traces a share of the requests; `seed` makes its ids differ from those of other processes.
    pub fn on(collector: Collector, metrics: Arc<Metrics>, sample: f64, seed: u64) -> (Self, Exporter) {
        let (sender, receiver) = mpsc::channel(WAITING);
        let exporter =
            Exporter { collector, metrics: metrics.clone(), queue: Mutex::new(receiver), transport: transport() };
        (Tracer { queue: Some(sender), metrics, sample, seed, next: AtomicU64::new(1) }, exporter)
    }

    /// Whether anything is traced.
    pub fn is_on(&self) -> bool {
        self.queue.is_some()
    }

    /// The trace of a request that began at `began`, if it is one to be traced.
    pub fn begin(&self, name: &'static str, headers: &HeaderMap, began: Instant) -> Option<Box<Trace>> {
        self.queue.as_ref()?;
        let parent = Parent::of(headers).ok().flatten();
        let number = self.next.fetch_add(1, Relaxed).to_le_bytes();
        let id = xxh3_128_with_seed(&number, self.seed).max(1);
        // an id is as good as a random number
        #[expect(clippy::cast_precision_loss, clippy::cast_possible_truncation, reason = "a share of all numbers")]
        let drawn = (id as u64 as f64) / (u64::MAX as f64);
        if !parent.map_or(drawn < self.sample, |parent| parent.sampled) {
            return None;
        }
        let root = Span::new(super::root_id(xxh3_64_with_seed(&number, !self.seed)), name);
        let at = SystemTime::now().checked_sub(began.elapsed()).unwrap_or(SystemTime::UNIX_EPOCH);
        let (id, parent) = (parent.map_or(id, |parent| parent.trace), parent.map(|parent| parent.span));
        Some(Box::new(Trace { id, parent, at, root, spans: Vec::new() }))
    }

    /// It has ended.
    pub fn end(&self, trace: Box<Trace>) {
        if self.queue.as_ref().is_some_and(|queue| queue.try_send(trace).is_err()) {
            self.metrics.traced(TraceEnd::Dropped, 1);
        }
    }
}

impl Exporter {
    async fn send(&self, traces: &mut Vec<Trace>) {
        let body = otlp::batch(&self.collector.service, traces);
        let sent = tokio::time::timeout(PATIENCE, self.collector.post(&self.transport, &body)).await;
        let end = match sent {
            Ok(Ok(200..=299)) => TraceEnd::Sent,
            other => {
                log::debug!("{} traces were not taken: {other:?}", traces.len());
                TraceEnd::Failed
            }
        };
        self.metrics.traced(end, traces.len());
        traces.clear();
    }
}

#[async_trait]
impl BackgroundService for Exporter {
    /// Sends until nothing is served any more.
    async fn start(&self, shutdown: ShutdownWatch) {
        let mut queue = self.queue.lock().await;
        let mut traces = Vec::with_capacity(BATCH);
        let mut ticks = tokio::time::interval(GATHER);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            let is_due = tokio::select! {
                trace = queue.recv() => match trace {
                    Some(trace) => {
                        traces.push(*trace);
                        traces.len() >= BATCH
                    }
                    None => return self.send(&mut traces).await,
                },
                _ = ticks.tick() => true,
            };
            if is_due && !traces.is_empty() {
                self.send(&mut traces).await;
            } else if is_due && *shutdown.borrow() && self.metrics.inflight() == 0 && queue.is_empty() {
                return;
            }
        }
    }
}

/// One request on a connection of its own; the status of its answer.
async fn exchange(mut stream: impl AsyncRead + AsyncWrite + Unpin, collector: &Collector, body: &str) -> Result<u16> {
    let head = format!(
        "POST {} HTTP/1.1\r\nhost: {}\r\nuser-agent: ramjet\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\
         connection: close\r\n\r\n",
        collector.path,
        collector.authority,
        body.len()
    );
    stream.write_all(head.as_bytes()).await?;
    stream.write_all(body.as_bytes()).await?;
    stream.flush().await?;
    let mut answer = Vec::new();
    // the status line is all that matters
    let mut reader = stream.take(ANSWER);
    while !answer.contains(&b'\n') && reader.read_buf(&mut answer).await? > 0 {}
    let line = String::from_utf8_lossy(&answer);
    let status = line.strip_prefix("HTTP/1.").and_then(|rest| rest.get(2..5)).and_then(|code| code.parse().ok());
    status.ok_or_else(|| Error::from(ErrorKind::InvalidData))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tracer(sample: f64) -> (Tracer, Exporter, Arc<Metrics>) {
        let metrics = Arc::new(Metrics::new().unwrap());
        let (tracer, exporter) = Tracer::on(Collector::at("http://127.0.0.1:1", "r", None), metrics.clone(), sample, 5);
        (tracer, exporter, metrics)
    }

    fn headers(flags: &str) -> HeaderMap {
        let value = format!("00-{}-{}-{flags}", "ab".repeat(16), "cd".repeat(8));
        HeaderMap::from_iter([(http::HeaderName::from_static("traceparent"), value.parse().unwrap())])
    }

    #[test]
    fn collectors_have_a_path() {
        for (url, authority, address, path) in [
            ("http://c:4318", "c:4318", "c:4318", "/v1/traces"),
            ("http://c:4318/", "c:4318", "c:4318", "/v1/traces"),
            ("http://[::1]:1/a/b", "[::1]:1", "[::1]:1", "/a/b"),
            ("https://c", "c", "c:443", "/v1/traces"),
            ("https://[::1]/x", "[::1]", "[::1]:443", "/x"),
            ("https://c:4318", "c:4318", "c:4318", "/v1/traces"),
        ] {
            let collector = Collector::at(url, "s", None);
            let own = (collector.authority.as_str(), collector.address.as_str(), collector.path.as_str());
            assert_eq!(own, (authority, address, path), "{url}");
        }
    }

    #[test]
    fn clients_say_whether_and_else_a_share_is_drawn() {
        let now = Instant::now();
        for (sample, flags, traced) in [(0.0, "01", true), (1.0, "00", false), (1.0, "01", true)] {
            let (tracer, ..) = tracer(sample);
            let trace = tracer.begin("x", &headers(flags), now);
            assert_eq!(trace.is_some(), traced, "{sample} {flags}");
            if let Some(trace) = trace {
                let wanted = (0xabab_abab_abab_abab_abab_abab_abab_abab, Some(0xcdcd_cdcd_cdcd_cdcd));
                assert_eq!((trace.id, trace.parent), wanted);
            }
        }
        let (tracer, ..) = tracer(0.25);
        let of = |_| tracer.begin("x", &HeaderMap::new(), now);
        let all: Vec<_> = (0..4000).filter_map(of).collect();
        assert!((800..1200).contains(&all.len()), "{}", all.len());
        let ids: std::collections::HashSet<_> = all.iter().map(|trace| trace.id).collect();
        assert_eq!(ids.len(), all.len());
        assert!(Tracer::off(Arc::new(Metrics::new().unwrap())).begin("x", &headers("01"), now).is_none());
    }

    #[tokio::test]
    async fn what_the_last_requests_left_is_sent_before_it_ends() {
        for _ in 0..40 {
            let (tracer, exporter, metrics) = tracer(1.0);
            tracer.end(tracer.begin("x", &HeaderMap::new(), Instant::now()).unwrap());
            let (_shut, shutdown) = tokio::sync::watch::channel(true);
            exporter.start(shutdown).await;
            // nobody listens there, but it was tried
            assert_eq!(metrics.traces_ended(TraceEnd::Failed), 1);
        }
    }

    #[test]
    fn what_does_not_fit_is_dropped_and_counted() {
        let (tracer, _exporter, metrics) = tracer(1.0);
        for _ in 0..WAITING + 7 {
            tracer.end(tracer.begin("x", &HeaderMap::new(), Instant::now()).unwrap());
        }
        assert_eq!(metrics.traces_ended(TraceEnd::Dropped), 7);
    }
}
