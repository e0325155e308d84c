//! Which paths are understood, and the closed label set that metrics use for them.

/// The kind of request, from its method and path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Endpoint {
    /// `POST /v1/chat/completions`
    Chat,
    /// `POST /v1/completions`
    Completions,
    /// `POST /v1/responses`
    Responses,
    /// `POST /v1/messages`
    Messages,
    /// `POST /generate`, SGLang's own.
    Generate,
    /// `POST /v1/embeddings`
    Embeddings,
    /// `POST /v1/rerank`, also without `/v1`.
    Rerank,
    /// `POST /v1/score`, also without `/v1`.
    Score,
    /// `POST /tokenize`, `/detokenize` and `/v1/messages/count_tokens`.
    Tokenize,
    /// `POST /v1/audio/…`: multipart, streamed through unread.
    Audio,
    /// A response that an engine keeps: `GET` and `DELETE` under `/v1/responses/ID`, `POST /v1/responses/ID/cancel`.
    StoredResponse,
    /// `/v1/files` and below: an upload is multipart and streamed through unread.
    Files,
    /// `/v1/batches` and below.
    Batches,
    /// `GET /v1/models`, and `HEAD`
    Models,
    /// `GET /health`: answered by ramjet.
    Health,
    /// Everything else: routed by load, streamed through unread.
    Other,
}

/// What stands before the id of something that an engine keeps in a path.
const RESPONSES: &str = "/v1/responses/";
const FILES: &str = "/v1/files";
const BATCHES: &str = "/v1/batches";

impl Endpoint {
    /// Every kind, in the order of the metrics' label values.
    pub const ALL: [Endpoint; 16] = [
        Endpoint::Chat,
        Endpoint::Completions,
        Endpoint::Responses,
        Endpoint::Messages,
        Endpoint::Generate,
        Endpoint::Embeddings,
        Endpoint::Rerank,
        Endpoint::Score,
        Endpoint::Tokenize,
        Endpoint::Audio,
        Endpoint::StoredResponse,
        Endpoint::Files,
        Endpoint::Batches,
        Endpoint::Models,
        Endpoint::Health,
        Endpoint::Other,
    ];

    /// Recognises a request; the query string plays no part.
    pub fn of(method: &str, path: &str) -> Self {
        match (method, path) {
            ("POST", "/v1/chat/completions") => Endpoint::Chat,
            ("POST", "/v1/completions") => Endpoint::Completions,
            ("POST", "/v1/responses") => Endpoint::Responses,
            ("POST", "/v1/messages") => Endpoint::Messages,
            ("POST", "/generate") => Endpoint::Generate,
            ("POST", "/v1/embeddings") => Endpoint::Embeddings,
            ("POST", "/v1/rerank" | "/rerank") => Endpoint::Rerank,
            ("POST", "/v1/score" | "/score") => Endpoint::Score,
            ("POST", "/tokenize" | "/detokenize" | "/v1/messages/count_tokens") => Endpoint::Tokenize,
            ("POST", path) if path.starts_with("/v1/audio/") => Endpoint::Audio,
            ("GET" | "HEAD", "/v1/models") => Endpoint::Models,
            ("GET" | "HEAD", "/health") => Endpoint::Health,
            _ if stored_response(method, path).is_some() => Endpoint::StoredResponse,
            (_, path) if below(path, FILES).is_some() => Endpoint::Files,
            (_, path) if below(path, BATCHES).is_some() => Endpoint::Batches,
            _ => Endpoint::Other,
        }
    }

    /// The label value.
    pub fn label(self) -> &'static str {
        match self {
            Endpoint::Chat => "chat_completions",
            Endpoint::Completions => "completions",
            Endpoint::Responses => "responses",
            Endpoint::Messages => "messages",
            Endpoint::Generate => "generate",
            Endpoint::Embeddings => "embeddings",
            Endpoint::Rerank => "rerank",
            Endpoint::Score => "score",
            Endpoint::Tokenize => "tokenize",
            Endpoint::Audio => "audio",
            Endpoint::StoredResponse => "stored_response",
            Endpoint::Files => "files",
            Endpoint::Batches => "batches",
            Endpoint::Models => "models",
            Endpoint::Health => "health",
            Endpoint::Other => "other",
        }
    }

    /// Whether the answer is generated: the body is read and fingerprinted before a replica is chosen, and the answer
    /// is read for tokens and usage.
    pub fn is_inference(self) -> bool {
        matches!(
            self,
            Endpoint::Chat | Endpoint::Completions | Endpoint::Responses | Endpoint::Messages | Endpoint::Generate
        )
    }

    /// Whether the body is read before a replica is chosen, if only for the model or the file that it names.
    pub fn is_read(self) -> bool {
        self.is_inference() || self.computes() || self == Endpoint::Batches
    }

    /// Whether the answer tells ids of what an engine keeps.
    pub fn names_kept(self) -> bool {
        matches!(self, Endpoint::Files | Endpoint::Batches)
    }

    /// Whether a second engine may be given the request although the first may have begun it: nothing is stored,
    /// so all that a repetition can cost is work. Of [`Endpoint::Responses`] only the body tells: engines keep an
    /// answer unless told otherwise.
    pub fn is_repeatable(self) -> bool {
        self.is_inference() && self != Endpoint::Responses || self.computes() || self == Endpoint::Models
    }

    /// Whether something is computed from the body without generating or keeping anything.
    pub fn computes(self) -> bool {
        matches!(self, Endpoint::Embeddings | Endpoint::Rerank | Endpoint::Score | Endpoint::Tokenize)
    }
}

/// Whether a path is one where audio becomes text or text audio, and nothing is kept of it; voices are kept.
pub fn only_listens_or_speaks(path: &str) -> bool {
    matches!(path, "/v1/audio/transcriptions" | "/v1/audio/translations" | "/v1/audio/speech")
}

/// The id in the path of a request for something that an engine keeps: a response, a file or a batch.
pub fn kept<'a>(method: &str, path: &'a str) -> Option<&'a str> {
    let whole = || below(path, FILES).or(below(path, BATCHES)).filter(|id| !id.is_empty());
    stored_response(method, path).or_else(whole)
}

/// The first segment of `path` below `collection`; empty for the collection itself.
fn below<'a>(path: &'a str, collection: &str) -> Option<&'a str> {
    let rest = path.strip_prefix(collection)?;
    let inner = rest.strip_prefix('/');
    inner.or(rest.is_empty().then_some("")).map(|inner| inner.split('/').next().unwrap_or_default())
}

fn stored_response<'a>(method: &str, path: &'a str) -> Option<&'a str> {
    let rest = path.strip_prefix(RESPONSES)?;
    let (id, below) = rest.split_once('/').map_or((rest, None), |(id, below)| (id, Some(below)));
    let is_known = match method {
        "GET" => true,
        "DELETE" => below.is_none(),
        "POST" => below == Some("cancel"),
        _ => false,
    };
    (is_known && !id.is_empty()).then_some(id)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_exact_method_and_path_is_understood() {
        assert_eq!(Endpoint::of("POST", "/v1/chat/completions"), Endpoint::Chat);
        assert_eq!(Endpoint::of("POST", "/v1/completions"), Endpoint::Completions);
        assert_eq!(Endpoint::of("POST", "/v1/responses"), Endpoint::Responses);
        assert_eq!(Endpoint::of("POST", "/v1/messages"), Endpoint::Messages);
        assert_eq!(Endpoint::of("POST", "/v1/messages/count_tokens"), Endpoint::Tokenize);
        assert_eq!(Endpoint::of("GET", "/v1/chat/completions"), Endpoint::Other);
        assert_eq!(Endpoint::of("POST", "/v1/chat/completions/"), Endpoint::Other);
        assert_eq!(Endpoint::of("GET", "/v1/responses"), Endpoint::Other);
        assert_eq!(Endpoint::of("POST", "/v1/files/"), Endpoint::Files);
        assert_eq!(Endpoint::of("GET", "/v1/batches"), Endpoint::Batches);
        assert_eq!(Endpoint::of("POST", "/v1/filesystem"), Endpoint::Other);
    }

    #[test]
    fn a_kept_response_is_named_by_its_path() {
        for (method, path, id) in [
            ("GET", "/v1/responses/resp_1", Some("resp_1")),
            ("DELETE", "/v1/responses/resp_1", Some("resp_1")),
            ("POST", "/v1/responses/resp_1/cancel", Some("resp_1")),
            ("GET", "/v1/responses/resp_1/input_items", Some("resp_1")),
            ("POST", "/v1/responses/compact", None),
            ("POST", "/v1/responses/resp_1", None),
            ("DELETE", "/v1/responses/resp_1/cancel", None),
            ("GET", "/v1/responses/", None),
            ("GET", "/v1/responses//cancel", None),
        ] {
            assert_eq!(stored_response(method, path), id, "{method} {path}");
            assert_eq!(Endpoint::of(method, path) == Endpoint::StoredResponse, id.is_some(), "{method} {path}");
        }
    }

    #[test]
    fn a_file_and_a_batch_are_named_by_their_paths() {
        for (method, path, id, endpoint) in [
            ("POST", "/v1/files", None, Endpoint::Files),
            ("GET", "/v1/files/", None, Endpoint::Files),
            ("GET", "/v1/files/f-1/content", Some("f-1"), Endpoint::Files),
            ("DELETE", "/v1/files/f-1", Some("f-1"), Endpoint::Files),
            ("POST", "/v1/batches", None, Endpoint::Batches),
            ("POST", "/v1/batches/b-1/cancel", Some("b-1"), Endpoint::Batches),
            ("GET", "/v1/batches/b-1", Some("b-1"), Endpoint::Batches),
            ("GET", "/v1/batchesx", None, Endpoint::Other),
        ] {
            assert_eq!((kept(method, path), Endpoint::of(method, path)), (id, endpoint), "{method} {path}");
        }
    }

    #[test]
    fn labels_are_distinct_and_every_kind_is_listed() {
        let labels: std::collections::BTreeSet<_> = Endpoint::ALL.iter().map(|e| e.label()).collect();
        assert_eq!(labels.len(), Endpoint::ALL.len());
    }

    #[test]
    fn what_engines_keep_or_run_unread_is_not_repeated() {
        let barred: Vec<_> = Endpoint::ALL.into_iter().filter(|e| !e.is_repeatable()).collect();
        assert_eq!(
            barred,
            [
                Endpoint::Responses,
                Endpoint::Audio,
                Endpoint::StoredResponse,
                Endpoint::Files,
                Endpoint::Batches,
                Endpoint::Health,
                Endpoint::Other
            ]
        );
    }
}
