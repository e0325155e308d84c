//! Who may use the admin API: everybody who reaches it on loopback, elsewhere whoever has the token.

use crate::api::sha256::{Digest, is_same, sha256};
use http::HeaderMap;
use http::header::AUTHORIZATION;

/// No token is longer.
const LONGEST: usize = 1024;

/// The admin API's door.
pub struct Guard {
    on_loopback: bool,
    /// Of the token. Digests are compared, all bytes of them, so that the time tells nothing of it.
    token: Option<Digest>,
}

/// Why somebody may not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// There is no token to have.
    NoToken,
    /// The token is missing or wrong.
    WrongToken,
}

impl Guard {
    /// The door of a listener that is bound to loopback, or not.
    pub fn new(on_loopback: bool, token: Option<&str>) -> Self {
        Guard { on_loopback, token: token.map(|t| sha256(t.as_bytes())) }
    }

    /// Whether a request with these headers may pass.
    ///
    /// # Errors
    /// Why it may not.
    pub fn admit(&self, headers: &HeaderMap) -> Result<(), Refusal> {
        if self.on_loopback {
            return Ok(());
        }
        let token = self.token.as_ref().ok_or(Refusal::NoToken)?;
        let said = headers.get(AUTHORIZATION).and_then(|value| bearer(value.as_bytes())).unwrap_or_default();
        let is_right = said.len() <= LONGEST && is_same(token, &sha256(said));
        if is_right { Ok(()) } else { Err(Refusal::WrongToken) }
    }
}

fn bearer(value: &[u8]) -> Option<&[u8]> {
    let (scheme, token) = value.split_first_chunk::<7>()?;
    scheme.eq_ignore_ascii_case(b"bearer ").then(|| token.trim_ascii())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_is_open_and_elsewhere_only_the_token_passes() {
        let with = |value: Option<&str>| value.map(|v| (AUTHORIZATION, v.parse().unwrap())).into_iter().collect();
        let admits = |guard: &Guard, value| guard.admit(&with(value));
        assert_eq!(admits(&Guard::new(true, Some("t0ken")), None), Ok(()));
        assert_eq!(admits(&Guard::new(false, None), Some("Bearer ")), Err(Refusal::NoToken));
        let guard = Guard::new(false, Some("t0ken"));
        for right in ["Bearer t0ken", "bearer  t0ken "] {
            assert_eq!(admits(&guard, Some(right)), Ok(()), "{right}");
        }
        for wrong in [None, Some(""), Some("t0ken"), Some("Basic t0ken"), Some("Bearer"), Some("Bearer t0kem")] {
            assert_eq!(admits(&guard, wrong), Err(Refusal::WrongToken), "{wrong:?}");
        }
    }
}
