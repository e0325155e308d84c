//! One question to an engine on a connection of its own, answered in full.

use crate::fleet::replica::Replica;
use bytes::Bytes;
use http::Method;
use pingora_core::connectors::http::Connector;
use pingora_error::{Error, ErrorType, Result};
use pingora_http::RequestHeader;

/// The most of an answer's body that is read: the metrics of an engine with many data-parallel ranks are the longest.
const MAX_BODY: usize = 4 << 20;
/// The type of the error that says so.
pub(super) const TOO_LARGE: &str = "an answer that is too large";
/// By this engines' logs tell probes from clients.
const AGENT: &str = "ramjet-probe";

/// A question.
pub(super) struct Question<'a> {
    pub(super) method: Method,
    /// Without the replica's own prefix.
    pub(super) path: &'a str,
    /// JSON, or empty.
    pub(super) body: String,
}

/// The status and the body of the answer.
///
/// # Errors
/// The connection was not made or broke, or the answer was no HTTP or too large. Dropping the future closes the connection.
pub(super) async fn exchange(
    connector: &Connector,
    replica: &Replica,
    question: Question<'_>,
) -> Result<(u16, Vec<u8>)> {
    let Some(address) = replica.address() else {
        return Error::e_explain(ErrorType::ConnectError, "a replica without an address");
    };
    let peer = replica.peer(address);
    let (mut session, _) = connector.get_http_session(&peer).await?;
    session.write_request_header(Box::new(head(replica, &question)?)).await?;
    if !question.body.is_empty() {
        session.write_request_body(Bytes::from(question.body), true).await?;
    }
    session.finish_request_body().await?;
    session.read_response_header().await?;
    let status = session.response_header().map_or(0, |r| r.status.as_u16());
    let mut body = Vec::new();
    while let Some(piece) = session.read_response_body().await? {
        body.extend_from_slice(&piece);
        if body.len() > MAX_BODY {
            return Error::e_explain(ErrorType::Custom(TOO_LARGE), "of a probe");
        }
    }
    Ok((status, body))
}

fn head(replica: &Replica, question: &Question<'_>) -> Result<RequestHeader> {
    let path = format!("{}{}", replica.spec.prefix, question.path);
    let mut request = RequestHeader::build(question.method.clone(), path.as_bytes(), Some(8))?;
    request.insert_header("host", &replica.spec.authority)?;
    request.insert_header("user-agent", AGENT)?;
    request.insert_header("accept", "*/*")?;
    request.insert_header("connection", "close")?;
    if let Some(key) = &replica.spec.authorization {
        request.insert_header("authorization", key)?;
    }
    if !question.body.is_empty() {
        request.insert_header("content-type", "application/json")?;
        request.insert_header("content-length", question.body.len())?;
        if let Some(rank) = replica.spec.role.rank {
            // vLLM's name for it; SGLang's stands in the body
            request.insert_header("X-data-parallel-rank", rank.to_string())?;
        }
    }
    Ok(request)
}
