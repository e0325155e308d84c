//! Which paths are understood, and the closed label set that metrics use for them.

/// The kind of request, from its method and path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Endpoint {
    /// `POST /v1/chat/completions`
    Chat,
    /// `POST /v1/completions`
    Completions,
    /// `GET /v1/models`
    Models,
    /// `GET /health`: answered by ramjet.
    Health,
    /// Everything else: routed by load, streamed through unread.
    Other,
}

impl Endpoint {
    /// Every kind, in the order of the metrics' label values.
    pub const ALL: [Endpoint; 5] =
        [Endpoint::Chat, Endpoint::Completions, Endpoint::Models, Endpoint::Health, Endpoint::Other];

    /// Recognises a request; the query string plays no part.
    pub fn of(method: &str, path: &str) -> Self {
        match (method, path) {
            ("POST", "/v1/chat/completions") => Endpoint::Chat,
            ("POST", "/v1/completions") => Endpoint::Completions,
            ("GET", "/v1/models") => Endpoint::Models,
            ("GET" | "HEAD", "/health") => Endpoint::Health,
            _ => Endpoint::Other,
        }
    }

    /// The label value.
    pub fn label(self) -> &'static str {
        match self {
            Endpoint::Chat => "chat_completions",
            Endpoint::Completions => "completions",
            Endpoint::Models => "models",
            Endpoint::Health => "health",
            Endpoint::Other => "other",
        }
    }

    /// Whether the body is read and fingerprinted before a replica is chosen.
    pub fn is_inference(self) -> bool {
        matches!(self, Endpoint::Chat | Endpoint::Completions)
    }

    /// Whether a second engine may be given the request although the first may have begun it: nothing is stored,
    /// so all that a repetition can cost is work.
    pub fn is_repeatable(self) -> bool {
        self.is_inference() || self == Endpoint::Models
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_exact_method_and_path_is_understood() {
        assert_eq!(Endpoint::of("POST", "/v1/chat/completions"), Endpoint::Chat);
        assert_eq!(Endpoint::of("POST", "/v1/completions"), Endpoint::Completions);
        assert_eq!(Endpoint::of("GET", "/v1/chat/completions"), Endpoint::Other);
        assert_eq!(Endpoint::of("POST", "/v1/chat/completions/"), Endpoint::Other);
        assert_eq!(Endpoint::of("POST", "/v1/files"), Endpoint::Other);
    }
}
