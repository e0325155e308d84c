//! The keys of clients: a list of names and digests that stands in a file or in an environment variable of its own.

use std::collections::HashSet;
use std::fs;
use std::path::Path;

use super::clients::Auth;
use super::kind::{NAME, Scalar};
use super::reader::Reader;

/// What a list of keys may hold.
const ALLOWED: &str = "lines of `NAME: SHA-256 of the key in 64 hexadecimal digits`, each name once";

/// A key that clients may use, by its digest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientKey {
    /// Its name in the access log and in metrics.
    pub name: String,
    /// The SHA-256 digest of the key.
    pub sha256: [u8; 32],
}

/// The keys that `auth` points to; `None` when clients need no key.
pub(super) fn client_keys(auth: &Auth, env: &[(String, String)], reader: &mut Reader) -> Option<Vec<ClientKey>> {
    let (path, text) = match (&auth.keys_env, &auth.keys_file) {
        (None, None) => return None,
        (Some(_), Some(_)) => {
            reader.report_setting("auth.keys_file", "keys_env beside it", "one of keys_env and keys_file");
            return None;
        }
        (Some(name), None) => ("auth.keys_env", from_env(name, env)),
        (None, Some(file)) => ("auth.keys_file", from_file(file)),
    };
    let keys = text.and_then(|text| parse(&text));
    keys.map_err(|found| reader.report_setting(path, found, ALLOWED)).ok()
}

fn from_env(name: &str, env: &[(String, String)]) -> Result<String, String> {
    let value = env.iter().find(|(other, _)| other == name);
    value.map(|(_, value)| value.clone()).ok_or_else(|| format!("{name}, which is not set"))
}

fn from_file(file: &Path) -> Result<String, String> {
    fs::read_to_string(file).map_err(|error| format!("a file that cannot be read ({error})"))
}

/// The keys in `text`, or what is wrong with it. A line may hold a key in clear by mistake: none is ever shown.
fn parse(text: &str) -> Result<Vec<ClientKey>, String> {
    let mut names = HashSet::new();
    let mut keys = Vec::new();
    for (number, line) in (1..).zip(text.lines()) {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let key = line.rsplit_once(':').and_then(|(name, digest)| {
            Some(ClientKey { name: NAME.parse(name.trim())?, sha256: digest_of(digest.trim())? })
        });
        let key = key.ok_or_else(|| format!("line {number}, which is not shown"))?;
        if !names.insert(key.name.clone()) {
            return Err(format!("line {number}, whose name was there before"));
        }
        keys.push(key);
    }
    if keys.is_empty() { Err("no key".to_owned()) } else { Ok(keys) }
}

fn digest_of(hex: &str) -> Option<[u8; 32]> {
    let mut digest = [0; 32];
    let digits = hex.as_bytes();
    if digits.len() != 64 || !digits.iter().all(u8::is_ascii_hexdigit) {
        return None;
    }
    for (byte, pair) in digest.iter_mut().zip(digits.chunks_exact(2)) {
        *byte = u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok()?;
    }
    Some(digest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_become_keys_and_what_is_wrong_is_never_shown() {
        let digest = "00ff".repeat(16);
        let keys = parse(&format!("# team keys\n\nalice: {digest}\n b:c :{}\n", digest.to_uppercase())).unwrap();
        assert_eq!(keys.iter().map(|k| k.name.as_str()).collect::<Vec<_>>(), ["alice", "b:c"]);
        assert_eq!(keys[0].sha256, keys[1].sha256);
        assert_eq!(keys[0].sha256[..2], [0, 255]);
        for (text, found) in [
            (String::new(), "no key"),
            ("alice: sk-secret".to_owned(), "line 1, which is not shown"),
            (format!("a: {digest}\nsk-secret"), "line 2, which is not shown"),
            (format!("a: {}g", &digest[1..]), "line 1, which is not shown"),
            (format!("a b: {digest}"), "line 1, which is not shown"),
            (format!("a: {digest}\na: {digest}"), "line 2, whose name was there before"),
        ] {
            assert_eq!(parse(&text).unwrap_err(), found);
        }
    }
}
