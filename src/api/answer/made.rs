//! Whether a whole answer under a success status shows that anything was generated: some say there that they failed.

use super::super::json::Cursor;

/// What an answer shows of a completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Made {
    /// Choices.
    Something,
    /// An error, or a list of choices without any.
    Nothing,
    /// It is no completion of this kind, or cannot be read.
    Untold,
}

/// What the body of an answer shows.
pub fn made(body: &[u8]) -> Made {
    let (mut choices, mut failed) = (None, false);
    // an answer that is no JSON is no completion; it may be one of a server that knows no such thing
    let _unreadable = Cursor::new(body).object(|key, value| {
        match key.raw {
            b"choices" => choices = Some(value.skip()?),
            b"error" => failed |= value.skip()? != b"null",
            _ => drop(value.skip()?),
        }
        Ok(())
    });
    let is_empty = |list: &[u8]| list == b"null" || list.iter().all(|c| c.is_ascii_whitespace() || b"[]".contains(c));
    match choices {
        _ if failed => Made::Nothing,
        Some(list) if is_empty(list) => Made::Nothing,
        Some(_) => Made::Something,
        None => Made::Untold,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_success_without_anything_generated_is_none() {
        for (body, wanted) in [
            (r#"{"id":"x","choices":[{"text":"1"}],"usage":{}}"#, Made::Something),
            (r#"{"choices":[{"message":{"content":""}}],"error":null}"#, Made::Something),
            (r#"{"choices":[]}"#, Made::Nothing),
            (r#"{"choices":[ ]}"#, Made::Nothing),
            (r#"{"choices":null}"#, Made::Nothing),
            (r#"{"error":{"message":"died"}}"#, Made::Nothing),
            ("{}", Made::Untold),
            ("<html>welcome</html>", Made::Untold),
            ("", Made::Untold),
        ] {
            assert_eq!(made(body.as_bytes()), wanted, "{body}");
        }
    }
}
