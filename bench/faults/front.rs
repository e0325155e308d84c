//! What stands before a simulated engine and fails as hosts, proxies and wrong deployments do, which an engine itself
//! cannot: nobody listens, nothing comes back, 500 at once, still loading, another model.

use std::convert::Infallible;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full};
use hyper::body::{Body, Frame, Incoming};
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::Sleep;

/// How often a stalled answer looks whether it may go on.
const LOOK: Duration = Duration::from_millis(50);
const OTHER_MODEL: &str = r#"{"object":"list","data":[{"id":"another","object":"model","owned_by":"vllm"}]}"#;

/// How the front behaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mode {
    /// Everything passes.
    Open,
    /// Nobody listens, and what was open is gone.
    Closed,
    /// Connections are made, and nothing ever comes back.
    BlackHole,
    /// Every POST is answered 500 at once; everything else passes.
    Broken,
    /// Everything is answered 503: not yet.
    Loading,
    /// The engine of another model: it lists that and refuses this one.
    OtherModel,
}

type Answer = Response<UnsyncBoxBody<Bytes, io::Error>>;

/// A front; it ends when this is dropped.
#[derive(Debug)]
pub(crate) struct Front {
    pub(crate) address: SocketAddr,
    mode: watch::Sender<Mode>,
    _tasks: JoinSet<()>,
}

impl Front {
    /// A front before `engine`.
    pub(crate) async fn start(engine: SocketAddr) -> Result<Self, String> {
        let failed = |error: io::Error| format!("a front: {error}");
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        let (mode, seen) = watch::channel(Mode::Open);
        let mut tasks = JoinSet::new();
        tasks.spawn(serve(listener, address, engine, seen));
        Ok(Self { address, mode, _tasks: tasks })
    }

    /// Behaves like this from now on.
    pub(crate) fn set(&self, mode: Mode) {
        self.mode.send_replace(mode);
    }
}

async fn serve(listener: TcpListener, address: SocketAddr, engine: SocketAddr, mut mode: watch::Receiver<Mode>) {
    let mut listener = Some(listener);
    loop {
        if mode.wait_for(|now| *now != Mode::Closed).await.is_err() {
            return;
        }
        let open = match listener.take() {
            Some(open) => open,
            None => match TcpListener::bind(address).await {
                Ok(open) => open,
                Err(_) => {
                    tokio::time::sleep(LOOK).await;
                    continue;
                }
            },
        };
        let mut connections = JoinSet::new();
        while *mode.borrow_and_update() != Mode::Closed {
            tokio::select! {
                Ok((stream, _)) = open.accept() => {
                    connections.spawn(connection(stream, engine, mode.clone()));
                }
                Some(_) = connections.join_next() => {}
                _ = mode.changed() => {}
            }
        }
    }
}

async fn connection(stream: TcpStream, engine: SocketAddr, mode: watch::Receiver<Mode>) {
    let _ = stream.set_nodelay(true);
    let service = service_fn(move |request| answer(request, engine, mode.clone()));
    // a connection that breaks is the client's business
    let _: Result<(), hyper::Error> =
        hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service).await;
}

async fn answer(
    request: Request<Incoming>,
    engine: SocketAddr,
    mut mode: watch::Receiver<Mode>,
) -> Result<Answer, Infallible> {
    let is_post = request.method() == hyper::Method::POST;
    let now = *mode.borrow_and_update();
    Ok(match now {
        Mode::BlackHole => {
            // what came in the meantime is forgotten
            let _ = mode.wait_for(|now| *now != Mode::BlackHole).await;
            canned(StatusCode::BAD_GATEWAY, "gone")
        }
        Mode::Broken if is_post => canned(StatusCode::INTERNAL_SERVER_ERROR, r#"{"error":{"message":"CUDA error"}}"#),
        Mode::Loading => canned(StatusCode::SERVICE_UNAVAILABLE, r#"{"error":{"message":"loading model"}}"#),
        Mode::OtherModel if is_post => canned(StatusCode::NOT_FOUND, r#"{"error":{"message":"no such model"}}"#),
        Mode::OtherModel if request.uri().path() == "/v1/models" => canned(StatusCode::OK, OTHER_MODEL),
        _ => match pass(request, engine, mode).await {
            Ok(answer) => answer,
            Err(error) => canned(StatusCode::BAD_GATEWAY, &error),
        },
    })
}

fn canned(status: StatusCode, text: &str) -> Answer {
    let body = Full::new(Bytes::copy_from_slice(text.as_bytes())).map_err(|never: Infallible| match never {});
    let mut response = Response::new(body.boxed_unsync());
    *response.status_mut() = status;
    response
}

async fn pass(request: Request<Incoming>, engine: SocketAddr, mode: watch::Receiver<Mode>) -> Result<Answer, String> {
    let stream = TcpStream::connect(engine).await.map_err(|error| error.to_string())?;
    let _ = stream.set_nodelay(true);
    let shaken = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await;
    let (mut sender, connection) = shaken.map_err(|error| error.to_string())?;
    let mut held = JoinSet::new();
    held.spawn(async move {
        let _: Result<(), hyper::Error> = connection.await;
    });
    let response = sender.send_request(request).await.map_err(|error| error.to_string())?;
    Ok(response.map(|body| Relayed { body, mode, stalled: None, _held: Arc::new(held) }.boxed_unsync()))
}

/// An answer on its way, which stalls in a black hole. The connection that it comes from ends with it.
struct Relayed {
    body: Incoming,
    mode: watch::Receiver<Mode>,
    stalled: Option<Pin<Box<Sleep>>>,
    _held: Arc<JoinSet<()>>,
}

impl Body for Relayed {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, io::Error>>> {
        while *self.mode.borrow() == Mode::BlackHole {
            let stalled = self.stalled.get_or_insert_with(|| Box::pin(tokio::time::sleep(LOOK)));
            if stalled.as_mut().poll(cx).is_pending() {
                return Poll::Pending;
            }
            self.stalled = None;
        }
        Pin::new(&mut self.body).poll_frame(cx).map_err(io::Error::other)
    }
}
