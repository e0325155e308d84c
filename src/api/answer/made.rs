//! Whether a whole answer under a success status shows that anything was generated: some say there that they failed.

use super::super::json::{Cursor, Kind, Malformed};
use memchr::memmem::Finder;
use std::sync::LazyLock;

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

/// How the member begins that tells of an error.
static ERROR: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new("\"error\""));

/// What the body of an answer shows.
pub fn made(body: &[u8]) -> Made {
    let (mut shown, mut failed) = (Made::Untold, false);
    // mostly nothing is said of an error, and what comes behind the choices need not be read
    let may_fail = ERROR.find(body).is_some();
    // an answer that is no JSON is no completion; it may be one of a server that knows no such thing
    let _unreadable = Cursor::new(body).object(|key, value| {
        match key.raw {
            b"choices" => {
                shown = if is_empty(value.clone())? { Made::Nothing } else { Made::Something };
                if !may_fail {
                    return Err(Malformed { at: value.offset_after() });
                }
                value.skip()?;
            }
            b"error" => failed |= value.skip()? != b"null",
            _ => drop(value.skip()?),
        }
        Ok(())
    });
    if failed { Made::Nothing } else { shown }
}

/// Whether a list has nothing in it, or is none at all.
fn is_empty(mut list: Cursor<'_>) -> Result<bool, Malformed> {
    if list.kind()? != Kind::Array {
        return Ok(list.skip()? == b"null");
    }
    let mut is_empty = true;
    // the first item is enough
    let _stopped = list.array(|item| {
        is_empty = false;
        Err(Malformed { at: item.offset_after() })
    });
    Ok(is_empty)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_success_without_anything_generated_is_none() {
        for (body, wanted) in [
            (r#"{"id":"x","choices":[{"text":"1"}],"usage":{}}"#, Made::Something),
            (r#"{"choices":[{"message":{"content":""}}],"error":null}"#, Made::Something),
            (r#"{"choices":[{"text":"x"}],"error":{"message":"died"}}"#, Made::Nothing),
            (r#"{"choices":[{"text":"\"error\""}],"usage":{"error":1}}"#, Made::Something),
            (r#"{"error":null,"choices":[]}"#, Made::Nothing),
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
