//! What kind of client asks, by its `User-Agent`: a closed set.

/// A family of clients. The names are metric labels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Family {
    /// OpenAI's library for Python.
    OpenaiPython,
    /// Its library for JavaScript.
    OpenaiNode,
    /// Anthropic's libraries and its command line.
    Anthropic,
    /// LangChain.
    Langchain,
    /// Vercel's AI SDK.
    VercelAi,
    /// LiteLLM.
    Litellm,
    /// curl.
    Curl,
    /// Go's own client.
    Go,
    /// Clients on the Java machine.
    Java,
    /// A browser.
    Browser,
    /// Anything else, or nothing.
    Other,
}

/// What tells each family, in lower case; the first one counts.
const MARKS: [(&str, Family); 16] = [
    ("langchain", Family::Langchain),
    ("litellm", Family::Litellm),
    ("ai-sdk", Family::VercelAi),
    ("vercel", Family::VercelAi),
    ("openai/python", Family::OpenaiPython),
    ("openai/js", Family::OpenaiNode),
    ("openai-node", Family::OpenaiNode),
    ("anthropic", Family::Anthropic),
    ("claude-cli", Family::Anthropic),
    ("curl/", Family::Curl),
    ("go-http-client", Family::Go),
    ("okhttp", Family::Java),
    ("java", Family::Java),
    ("reactornetty", Family::Java),
    ("mozilla/", Family::Browser),
    ("openai-python", Family::OpenaiPython),
];

/// No mark stands after so many bytes.
const LOOKED_AT: usize = 256;

impl Family {
    /// Every family, in the order of the metrics' label values.
    pub const ALL: [Family; 11] = [
        Family::OpenaiPython,
        Family::OpenaiNode,
        Family::Anthropic,
        Family::Langchain,
        Family::VercelAi,
        Family::Litellm,
        Family::Curl,
        Family::Go,
        Family::Java,
        Family::Browser,
        Family::Other,
    ];

    /// The family that a `User-Agent` tells.
    pub fn of(agent: &[u8]) -> Self {
        let agent = agent[..agent.len().min(LOOKED_AT)].to_ascii_lowercase();
        let has = |mark: &str| memchr::memmem::find(&agent, mark.as_bytes()).is_some();
        MARKS.into_iter().find(|(mark, _)| has(mark)).map_or(Family::Other, |(_, family)| family)
    }

    /// The label value.
    pub fn label(self) -> &'static str {
        match self {
            Family::OpenaiPython => "openai-python",
            Family::OpenaiNode => "openai-node",
            Family::Anthropic => "anthropic",
            Family::Langchain => "langchain",
            Family::VercelAi => "vercel-ai",
            Family::Litellm => "litellm",
            Family::Curl => "curl",
            Family::Go => "go",
            Family::Java => "java",
            Family::Browser => "browser",
            Family::Other => "other",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_are_known_by_their_families() {
        for (agent, family) in [
            ("OpenAI/Python 1.99.1", Family::OpenaiPython),
            ("AsyncOpenAI/Python 1.99.1", Family::OpenaiPython),
            ("OpenAI/JS 5.1.0", Family::OpenaiNode),
            ("Anthropic/Python 0.40", Family::Anthropic),
            ("claude-cli/2.0 (external)", Family::Anthropic),
            ("langchain-openai/0.3 OpenAI/Python", Family::Langchain),
            ("ai/5.0 ai-sdk/openai-compatible", Family::VercelAi),
            ("litellm/1.70", Family::Litellm),
            ("curl/8.5.0", Family::Curl),
            ("Go-http-client/2.0", Family::Go),
            ("Java/21", Family::Java),
            ("Mozilla/5.0 (X11)", Family::Browser),
            ("", Family::Other),
            ("my secret tool", Family::Other),
        ] {
            assert_eq!(Family::of(agent.as_bytes()), family, "{agent}");
        }
        let labels: std::collections::HashSet<_> = Family::ALL.map(Family::label).into();
        assert_eq!(labels.len(), Family::ALL.len());
        assert_eq!(Family::ALL.map(|f| f as usize), std::array::from_fn(|n| n));
    }
}
