//! A client with one keep-alive connection to each host it talks to, as an agent process has.

use std::collections::HashMap;
use std::time::Instant;

use http_body_util::BodyExt;
use hyper::body::Incoming;
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper::header::{CONTENT_TYPE, HOST};
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tokio::task::JoinHandle;

use super::body::Pieces;
use super::sse::{Reader, Usage};

/// The authority of an `http://` URL.
pub(crate) fn authority(url: &str) -> Result<&str, String> {
    let rest = url.strip_prefix("http://").ok_or_else(|| format!("{url:?}: only http:// URLs are understood"))?;
    let host = rest.split('/').next().unwrap_or(rest);
    if host.contains(':') { Ok(host) } else { Err(format!("{url:?}: a port is needed")) }
}

/// One turn as the client saw it.
#[derive(Debug)]
pub(crate) struct Reply {
    pub(crate) replica: Option<String>,
    /// real ms to the first word
    pub(crate) ttft_ms: f64,
    /// real ms to the end
    pub(crate) total_ms: f64,
    pub(crate) usage: Option<Usage>,
    /// JSON-escaped
    pub(crate) answer: String,
}

/// See the module header. Dropping it closes the connections.
#[derive(Debug, Default)]
pub(crate) struct Client {
    /// requests sent again because a kept connection turned out dead: normal when idle ones are closed, so it is no
    /// failure, but never hidden
    pub(crate) resent: usize,
    open: HashMap<String, (SendRequest<Pieces>, JoinHandle<()>)>,
}

impl Drop for Client {
    fn drop(&mut self) {
        for (_, connection) in self.open.values() {
            connection.abort();
        }
    }
}

impl Client {
    fn close(&mut self, host: &str) {
        if let Some((_, connection)) = self.open.remove(host) {
            connection.abort();
        }
    }

    /// Sends a chat request and reads the whole stream.
    pub(crate) async fn chat(&mut self, host: &str, body: &Pieces) -> Result<Reply, String> {
        let started = Instant::now();
        let result = self.chat_once(host, body, started).await;
        if result.is_err() {
            self.close(host);
        }
        result
    }

    async fn chat_once(&mut self, host: &str, body: &Pieces, started: Instant) -> Result<Reply, String> {
        let mut response = self.send(host, "POST", "/v1/chat/completions", body).await?;
        let status = response.status();
        if status != StatusCode::OK {
            return Err(format!("status {}", status.as_u16()));
        }
        let header = |name: &str| response.headers().get(name).and_then(|v| v.to_str().ok()).map(str::to_owned);
        let replica = header("x-ramjet-upstream").or_else(|| header("x-engine"));
        let (mut reader, mut ttft_ms) = (Reader::default(), None);
        while let Some(frame) = response.body_mut().frame().await {
            let frame = frame.map_err(|_| "the stream broke off".to_owned())?;
            if let Some(data) = frame.data_ref() {
                reader.feed(data);
            }
            if ttft_ms.is_none() && reader.begun() {
                ttft_ms = Some(crate::num::as_millis(started.elapsed()));
            }
        }
        let total_ms = crate::num::as_millis(started.elapsed());
        match ttft_ms {
            _ if reader.error => Err("an error event in the stream".to_owned()),
            Some(ttft_ms) if reader.done => {
                Ok(Reply { replica, ttft_ms, total_ms, usage: reader.usage, answer: reader.answer })
            }
            _ => Err("the stream ended early".to_owned()),
        }
    }

    /// A GET; the body if the status is 200.
    pub(crate) async fn get(&mut self, host: &str, path: &str) -> Result<Vec<u8>, String> {
        let response = self.send(host, "GET", path, &Pieces::empty()).await?;
        let status = response.status();
        let body = response.into_body().collect().await.map_err(|error| format!("{host}{path}: {error}"))?;
        if status == StatusCode::OK { Ok(body.to_bytes().to_vec()) } else { Err(format!("{host}{path}: {status}")) }
    }

    /// Sends on the open connection; if that one turns out dead before an answer, once more on a new one.
    async fn send(
        &mut self,
        host: &str,
        method: &str,
        path: &str,
        body: &Pieces,
    ) -> Result<Response<Incoming>, String> {
        if self.open.get(host).is_some_and(|(sender, _)| !sender.is_closed()) {
            if let Ok(response) = self.try_send(host, method, path, body).await {
                return Ok(response);
            }
            self.resent += 1;
        }
        self.close(host);
        self.connect(host).await?;
        self.try_send(host, method, path, body).await
    }

    async fn connect(&mut self, host: &str) -> Result<(), String> {
        let failed = |error: &dyn std::fmt::Display| format!("cannot connect to {host}: {error}");
        let stream = TcpStream::connect(host).await.map_err(|error| failed(&error))?;
        stream.set_nodelay(true).map_err(|error| failed(&error))?;
        let (sender, connection) = handshake(TokioIo::new(stream)).await.map_err(|error| failed(&error))?;
        let task = tokio::spawn(async move {
            // the request that is cut off by an error reports it
            let _: Result<(), hyper::Error> = connection.await;
        });
        self.open.insert(host.to_owned(), (sender, task));
        Ok(())
    }

    async fn try_send(
        &mut self,
        host: &str,
        method: &str,
        path: &str,
        body: &Pieces,
    ) -> Result<Response<Incoming>, String> {
        let (sender, _) = self.open.get_mut(host).ok_or("not connected")?;
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header(HOST, host)
            .header(CONTENT_TYPE, "application/json")
            .body(body.clone())
            .map_err(|error| error.to_string())?;
        sender.ready().await.map_err(|error| error.to_string())?;
        sender.send_request(request).await.map_err(|error| format!("no response: {error}"))
    }
}
