//! Requests as bytes, made before anything is measured.
//!
//! A body is a coding agent's: a system prompt that all share, then turns of prose and escaped source code. Which
//! conversation it is stands behind the system prompt, so routers that know prefixes find some of it everywhere.

const HEAD: &str = r#"{"model":"m","max_tokens":"#;
const SYSTEM: &str = r#","messages":[{"role":"system","content":"You edit code."},{"role":"user","content":""#;
const BETWEEN: &str = r#""},{"role":"assistant","content":"I have read it."},{"role":"user","content":""#;
const END: &str = r#""}]}"#;
const CODE: &str = "    if let Some(value) = map.get(\\\"key\\\") {\\n        total += value.len();\\n    }\\n";
/// Bytes of a turn.
const TURN: usize = 4096;

/// What is asked for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Asked {
    /// bytes of the body; what the fields need is the least
    pub(crate) bytes: usize,
    pub(crate) conversation: usize,
    pub(crate) max_tokens: usize,
    pub(crate) stream: bool,
}

/// A POST of a chat completion, head and body.
pub(crate) fn request(asked: Asked) -> Vec<u8> {
    let body = body(asked);
    let mut out = format!(
        "POST /v1/chat/completions HTTP/1.1\r\nhost: bench\r\nuser-agent: ramjet-bench\r\naccept: */*\r\n\
         content-type: application/json\r\ncontent-length: {}\r\n\r\n",
        body.len()
    )
    .into_bytes();
    out.extend_from_slice(body.as_bytes());
    out
}

fn body(asked: Asked) -> String {
    let stream = if asked.stream { r#","stream":true"# } else { "" };
    let mut body = format!("{HEAD}{}{stream}{SYSTEM}conversation {} ", asked.max_tokens, asked.conversation);
    while body.len() + TURN + BETWEEN.len() + END.len() < asked.bytes {
        let end = body.len() + TURN;
        while body.len() + CODE.len() <= end {
            body.push_str(CODE);
        }
        body.push_str(BETWEEN);
    }
    while body.len() + CODE.len() + END.len() < asked.bytes {
        body.push_str(CODE);
    }
    while body.len() + END.len() < asked.bytes {
        body.push('x');
    }
    body + END
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::Value;

    #[test]
    fn a_body_has_the_size_that_was_asked_for_and_is_a_chat() {
        for bytes in [1 << 10, 64 << 10, 512 << 10, (1 << 20) + 7] {
            for stream in [false, true] {
                let text = body(Asked { bytes, conversation: 3, max_tokens: 16, stream });
                assert_eq!(text.len(), bytes);
                let value: Value = serde_json::from_str(&text).unwrap();
                assert_eq!(value["max_tokens"], 16);
                assert_eq!(value["stream"] == true, stream);
                assert!(value["messages"].as_array().unwrap().iter().all(|m| m["content"].is_string()));
            }
        }
    }

    #[test]
    fn conversations_differ() {
        let of = |conversation| request(Asked { bytes: 1 << 10, conversation, max_tokens: 1, stream: false });
        assert_eq!(of(1), of(1));
        assert_ne!(of(1), of(2));
    }
}
