//! Sockets of a simulated engine: a listener that can be closed and come back, connections that can end in a reset.

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;

use super::fault::Fault;
use super::http;
use super::sim::Shared;

const BIND_AGAIN: Duration = Duration::from_millis(20);
/// uvicorn closes idle connections after 5 s; a router must live with that.
const KEEP_ALIVE: Duration = Duration::from_secs(5);

/// Serves one engine until the process ends.
pub(crate) async fn serve(shared: Arc<Shared>, listener: TcpListener, address: SocketAddr) {
    let mut fault = shared.fault.subscribe();
    let mut listener = Some(listener);
    loop {
        if refused(&mut fault).await.is_err() {
            return;
        }
        let open = match listener.take() {
            Some(listener) => listener,
            None => match TcpListener::bind(address).await {
                Ok(listener) => listener,
                Err(error) => {
                    log::warn!("{}: cannot bind {address} again: {error}", shared.name);
                    tokio::time::sleep(BIND_AGAIN).await;
                    continue;
                }
            },
        };
        accept(&shared, open, &mut fault).await;
    }
}

/// Returns when connections may be taken.
async fn refused(fault: &mut watch::Receiver<Fault>) -> Result<(), watch::error::RecvError> {
    fault.wait_for(|now| *now != Fault::Refuse).await.map(|_| ())
}

/// Returns when connections are to be refused.
async fn refuses(fault: &mut watch::Receiver<Fault>) {
    let _ = fault.wait_for(|now| *now == Fault::Refuse).await;
}

/// Accepts until the fault says to refuse; then the listener and all connections are gone.
async fn accept(shared: &Arc<Shared>, listener: TcpListener, fault: &mut watch::Receiver<Fault>) {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => { connections.spawn(connection(Arc::clone(shared), stream)); }
                Err(error) => {
                    log::warn!("{}: accept: {error}", shared.name);
                    tokio::time::sleep(BIND_AGAIN).await;
                }
            },
            Some(_) = connections.join_next() => {}
            () = refuses(fault) => return,
        }
    }
}

async fn connection(shared: Arc<Shared>, stream: TcpStream) {
    let _ = stream.set_nodelay(true);
    let reset = Arc::new(AtomicBool::new(false));
    let io = TokioIo::new(Socket { stream, reset: Arc::clone(&reset) });
    let service = service_fn(move |request| http::answer(Arc::clone(&shared), Arc::clone(&reset), request));
    let mut builder = http1::Builder::new();
    builder.timer(hyper_util::rt::TokioTimer::new()).header_read_timeout(KEEP_ALIVE);
    // a connection that breaks is the client's business or a fault we were asked for
    let _: Result<(), hyper::Error> = builder.serve_connection(io, service).await;
}

/// Serves the control listener: `/NAME/fault`, `/NAME/flush`, `/NAME/stats`, also while an engine refuses connections.
pub(crate) async fn control(engines: Vec<Arc<Shared>>, listener: TcpListener) {
    let engines: Arc<[Arc<Shared>]> = engines.into();
    loop {
        let Ok((stream, _)) = listener.accept().await else {
            tokio::time::sleep(BIND_AGAIN).await;
            continue;
        };
        let engines = Arc::clone(&engines);
        tokio::spawn(async move {
            let service = service_fn(move |request| control_one(Arc::clone(&engines), request));
            let _: Result<(), hyper::Error> =
                http1::Builder::new().serve_connection(TokioIo::new(stream), service).await;
        });
    }
}

async fn control_one(
    engines: Arc<[Arc<Shared>]>,
    request: hyper::Request<hyper::body::Incoming>,
) -> Result<hyper::Response<http::Body>, Infallible> {
    use http_body_util::BodyExt;
    let path = request.uri().path().trim_start_matches('/').to_owned();
    let (name, rest) = path.split_once('/').unwrap_or((path.as_str(), ""));
    let Some(shared) = engines.iter().find(|engine| engine.name == name) else {
        return Ok(http::problem(hyper::StatusCode::NOT_FOUND, "no engine of this name"));
    };
    let route = format!("/{rest}");
    if request.method() != hyper::Method::POST {
        return Ok(http::get(shared, &route));
    }
    Ok(match request.into_body().collect().await {
        Ok(body) if matches!(rest, "fault" | "flush") => http::control(shared, &route, &body.to_bytes()),
        Ok(_) => http::problem(hyper::StatusCode::NOT_FOUND, "no such route"),
        Err(error) => http::problem(hyper::StatusCode::BAD_REQUEST, &error.to_string()),
    })
}

/// A TCP stream that, once told so, ends without the courtesies.
struct Socket {
    stream: TcpStream,
    reset: Arc<AtomicBool>,
}

impl Socket {
    fn resets(&self) -> bool {
        // ordering: set and read by the same task
        self.reset.load(Ordering::Relaxed)
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        if self.resets() {
            let _ = self.stream.set_zero_linger();
        }
    }
}

impl AsyncRead for Socket {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl AsyncWrite for Socket {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.resets() { Poll::Ready(Ok(())) } else { Pin::new(&mut self.stream).poll_shutdown(cx) }
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}
