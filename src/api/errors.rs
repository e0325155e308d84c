//! The errors that ramjet itself answers with: a closed set, in the caller's dialect.
//!
//! The text is for the client: it names what was wrong and what is allowed, never a replica, a host or a key. What
//! the operator needs stands in the log line of the request.

use super::model::escaped;

/// The methods that are forwarded, but for those that nobody knows.
pub const METHODS: &str = "GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS";

/// Why ramjet answers in place of an engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorKind {
    /// The body is larger than `limits.body`.
    BodyTooLarge,
    /// The body did not arrive in `timeouts.client_body`.
    BodyTimeout,
    /// The head did not arrive in `timeouts.client_header`.
    HeadTimeout,
    /// The head is larger than what is read of one.
    HeadTooLarge,
    /// The request could not be read.
    BadRequest,
    /// The method asks for a tunnel, or for the request as the engine sees it.
    MethodNotAllowed,
    /// The client has no key, or a wrong one.
    Unauthorized,
    /// No replica serves the model that was asked for.
    ModelNotFound,
    /// There is no replica to try.
    NoReplica,
    /// More is asked than may run, and too many wait already or this one has waited too long.
    Overloaded,
    /// No attempt reached an engine.
    ConnectFailed,
    /// An engine took the request and did not answer in time.
    UpstreamTimeout,
    /// An engine dropped the connection before it answered.
    UpstreamLost,
    /// An engine answered with something that is not HTTP.
    UpstreamUnreadable,
    /// A fault of ramjet's own.
    Internal,
}

/// Whose shape of errors the caller reads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Dialect {
    /// `{"error":{"message","type","code","param"}}`
    #[default]
    OpenAi,
    /// `{"type":"error","error":{"type","message"}}`, on `/v1/messages`
    Anthropic,
}

impl Dialect {
    /// The dialect of a path's callers.
    pub fn of(path: &str) -> Self {
        match path {
            "/v1/messages" => Dialect::Anthropic,
            _ if path.starts_with("/v1/messages/") => Dialect::Anthropic,
            _ => Dialect::OpenAi,
        }
    }
}

impl ErrorKind {
    /// The HTTP status.
    pub fn status(self) -> u16 {
        match self {
            ErrorKind::BodyTooLarge => 413,
            ErrorKind::BodyTimeout | ErrorKind::HeadTimeout => 408,
            ErrorKind::HeadTooLarge => 431,
            ErrorKind::BadRequest => 400,
            ErrorKind::MethodNotAllowed => 405,
            ErrorKind::Unauthorized => 401,
            ErrorKind::ModelNotFound => 404,
            ErrorKind::NoReplica | ErrorKind::Overloaded => 503,
            ErrorKind::ConnectFailed | ErrorKind::UpstreamLost | ErrorKind::UpstreamUnreadable => 502,
            ErrorKind::UpstreamTimeout => 504,
            ErrorKind::Internal => 500,
        }
    }

    /// The value of `X-Ramjet-Error` and of `error.code`.
    pub fn code(self) -> &'static str {
        match self {
            ErrorKind::BodyTooLarge => "body_too_large",
            ErrorKind::BodyTimeout => "body_timeout",
            ErrorKind::HeadTimeout => "head_timeout",
            ErrorKind::HeadTooLarge => "head_too_large",
            ErrorKind::BadRequest => "bad_request",
            ErrorKind::MethodNotAllowed => "method_not_allowed",
            ErrorKind::Unauthorized => "invalid_api_key",
            ErrorKind::ModelNotFound => "model_not_found",
            ErrorKind::NoReplica => "no_replica",
            ErrorKind::Overloaded => "overloaded",
            ErrorKind::ConnectFailed => "connect_failed",
            ErrorKind::UpstreamTimeout => "upstream_timeout",
            ErrorKind::UpstreamLost => "upstream_lost",
            ErrorKind::UpstreamUnreadable => "upstream_unreadable",
            ErrorKind::Internal => "internal",
        }
    }

    /// OpenAI's class of the error.
    fn class(self) -> &'static str {
        if self.status() < 500 { "invalid_request_error" } else { "server_error" }
    }

    fn message(self) -> &'static str {
        match self {
            ErrorKind::BodyTooLarge => "The request body is larger than this server accepts.",
            ErrorKind::BodyTimeout => "The request body did not arrive in time.",
            ErrorKind::HeadTimeout => "The head of the request did not arrive in time.",
            ErrorKind::HeadTooLarge => "The head of the request is larger than this server accepts.",
            ErrorKind::BadRequest => "The request could not be read.",
            ErrorKind::MethodNotAllowed => "This method is not served here.",
            ErrorKind::Unauthorized => "A key that is valid here is needed: as a bearer token or in x-api-key.",
            ErrorKind::ModelNotFound => "No replica serves the requested model.",
            ErrorKind::NoReplica => "No replica is available for this request.",
            ErrorKind::Overloaded => {
                "There are more requests than can be served. Come again after Retry-After seconds."
            }
            ErrorKind::ConnectFailed => "No engine could be reached for this request.",
            ErrorKind::UpstreamTimeout => "The engine did not answer in time.",
            ErrorKind::UpstreamLost => "The engine closed the connection before it answered.",
            ErrorKind::UpstreamUnreadable => "The engine's answer could not be read.",
            ErrorKind::Internal => "The request could not be routed.",
        }
    }

    /// Anthropic's class of the error.
    fn anthropic_class(self) -> &'static str {
        match self.status() {
            401 => "authentication_error",
            404 => "not_found_error",
            413 => "request_too_large",
            400..=499 => "invalid_request_error",
            503 => "overloaded_error",
            504 => "timeout_error",
            _ => "api_error",
        }
    }

    /// The body.
    pub fn body(self, dialect: Dialect) -> String {
        self.body_with(dialect, "")
    }

    /// The body with more to say.
    pub fn body_with(self, dialect: Dialect, hint: &str) -> String {
        let space = if hint.is_empty() { "" } else { " " };
        let (message, code) = (format!("{}{space}{}", self.message(), escaped(hint)), self.code());
        match dialect {
            Dialect::OpenAi => {
                let (class, param) =
                    (self.class(), if self == ErrorKind::ModelNotFound { "\"model\"" } else { "null" });
                format!(r#"{{"error":{{"message":"{message}","type":"{class}","code":"{code}","param":{param}}}}}"#)
            }
            Dialect::Anthropic => {
                format!(r#"{{"type":"error","error":{{"type":"{}","message":"{message}"}}}}"#, self.anthropic_class())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_error_is_json_in_the_callers_shape() {
        let all = [
            (ErrorKind::BodyTooLarge, 413, "invalid_request_error"),
            (ErrorKind::BodyTimeout, 408, "invalid_request_error"),
            (ErrorKind::HeadTimeout, 408, "invalid_request_error"),
            (ErrorKind::HeadTooLarge, 431, "invalid_request_error"),
            (ErrorKind::BadRequest, 400, "invalid_request_error"),
            (ErrorKind::MethodNotAllowed, 405, "invalid_request_error"),
            (ErrorKind::Unauthorized, 401, "invalid_request_error"),
            (ErrorKind::ModelNotFound, 404, "invalid_request_error"),
            (ErrorKind::NoReplica, 503, "server_error"),
            (ErrorKind::Overloaded, 503, "server_error"),
            (ErrorKind::ConnectFailed, 502, "server_error"),
            (ErrorKind::UpstreamTimeout, 504, "server_error"),
            (ErrorKind::UpstreamLost, 502, "server_error"),
            (ErrorKind::UpstreamUnreadable, 502, "server_error"),
            (ErrorKind::Internal, 500, "server_error"),
        ];
        for (kind, status, class) in all {
            let body: serde_json::Value = serde_json::from_str(&kind.body(Dialect::OpenAi)).unwrap();
            assert_eq!(kind.status(), status);
            assert_eq!(body["error"]["type"], class);
            assert_eq!(body["error"]["code"], kind.code());
            assert!(body["error"]["message"].as_str().unwrap().ends_with('.'));
            assert!(body["error"].as_object().unwrap().contains_key("param"));
            let body: serde_json::Value = serde_json::from_str(&kind.body(Dialect::Anthropic)).unwrap();
            assert_eq!(body["type"], "error");
            let body: serde_json::Value = serde_json::from_str(&kind.body_with(Dialect::OpenAi, "a \"b\"")).unwrap();
            assert!(body["error"]["message"].as_str().unwrap().ends_with(". a \"b\""));
            let body: serde_json::Value = serde_json::from_str(&kind.body(Dialect::Anthropic)).unwrap();
            assert!(body["error"]["type"].is_string() && body["error"]["message"].is_string());
        }
    }
}
