//! `ramjet explain`: asks the admin listener of a running ramjet, and prints what it says.

use std::io::{ErrorKind, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::path::PathBuf;
use std::time::Duration;
use thiserror::Error;

/// The admin listener unless told otherwise.
const ADMIN: &str = "127.0.0.1:9090";
/// A listener that is there answers at once.
const PATIENCE: Duration = Duration::from_secs(10);
/// No page is longer.
const LONGEST: u64 = 1 << 20;

/// Which request, and whom to ask.
#[derive(Debug, clap::Args)]
pub struct Explain {
    /// The request's id, as its answer's X-Ramjet-Request-Id and the access log tell it.
    pub id: String,
    /// The environment variable that holds the admin token.
    #[arg(long, value_name = "NAME", conflicts_with = "token_file")]
    pub token_env: Option<String>,
    /// The file that holds the admin token.
    #[arg(long, value_name = "FILE")]
    pub token_file: Option<PathBuf>,
}

/// Why there is nothing to print.
#[derive(Debug, Error)]
pub enum Unexplained {
    /// That is no id.
    #[error("{0:?} is no request id: those are 16 hexadecimal digits")]
    NoId(String),
    /// Too old, of another process, or never there.
    #[error("request {id} is not among the last decisions of the ramjet at {admin}")]
    Unknown {
        /// The id.
        id: String,
        /// Who was asked.
        admin: String,
    },
    /// The token is missing, wrong or cannot be read.
    #[error("the admin token {0}")]
    Token(String),
    /// Nobody answers there.
    #[error("cannot ask the admin listener at {admin}: {cause}")]
    Unreachable {
        /// Who was asked.
        admin: String,
        /// What the system said.
        cause: std::io::Error,
    },
    /// Somebody else answers there.
    #[error("{0} does not answer like the admin listener of a ramjet")]
    Stranger(String),
}

impl Unexplained {
    /// The exit code: those of sysexits.h, and 1 for an id that is not known.
    pub fn code(&self) -> u8 {
        match self {
            Unexplained::Unknown { .. } => 1,
            Unexplained::NoId(_) => 64,
            Unexplained::Unreachable { .. } | Unexplained::Stranger(_) => 69,
            Unexplained::Token(_) => 77,
        }
    }
}

impl Explain {
    /// The page to print; `admin` is whom to ask, 127.0.0.1:9090 if nobody says.
    ///
    /// # Errors
    /// [`Unexplained`].
    pub fn page(&self, admin: Option<&str>) -> Result<String, Unexplained> {
        if self.id.len() != 16 || !self.id.bytes().all(|b| b.is_ascii_hexdigit()) {
            return Err(Unexplained::NoId(self.id.clone()));
        }
        let admin = admin.unwrap_or(ADMIN);
        let token = self.token()?.map(|token| format!("authorization: Bearer {token}\r\n")).unwrap_or_default();
        let request = format!(
            "GET /api/explain/{} HTTP/1.1\r\nhost: {admin}\r\naccept: text/plain\r\nconnection: close\r\n{token}\r\n",
            self.id
        );
        let answer = ask(admin, &request)
            .map_err(|cause| Unexplained::Unreachable { admin: admin.to_owned(), cause: told(cause) })?;
        let stranger = || Unexplained::Stranger(admin.to_owned());
        let (head, page) = answer.split_once("\r\n\r\n").ok_or_else(stranger)?;
        let status = head.strip_prefix("HTTP/1.1 ").and_then(|rest| rest.get(..3));
        match status {
            Some("200") if page.starts_with(&format!("request {}", self.id.to_ascii_lowercase())) => Ok(harmless(page)),
            Some("404") if page.contains("last decisions") => {
                Err(Unexplained::Unknown { id: self.id.clone(), admin: admin.to_owned() })
            }
            Some("401") => Err(Unexplained::Token("is missing or wrong".to_owned())),
            Some("403") => Err(Unexplained::Token(format!("is not set at {admin}, which is not on loopback"))),
            _ => Err(stranger()),
        }
    }

    fn token(&self) -> Result<Option<String>, Unexplained> {
        let said = match (&self.token_env, &self.token_file) {
            (Some(name), _) => std::env::var(name).map_err(|_| format!("is not in {name}")),
            (None, Some(file)) => std::fs::read_to_string(file).map_err(|e| format!("cannot be read: {e}")),
            (None, None) => return Ok(None),
        };
        let token = said.map_err(Unexplained::Token)?.trim().to_owned();
        let fits = !token.is_empty() && token.bytes().all(|b| b.is_ascii_graphic());
        if fits { Ok(Some(token)) } else { Err(Unexplained::Token("is not one line of visible characters".to_owned())) }
    }
}

/// A page for a terminal: names come from engines and clients, and none of them may move its cursor.
fn harmless(page: &str) -> String {
    page.chars().map(|c| if c.is_control() && c != '\n' { '\u{fffd}' } else { c }).collect()
}

/// Of a socket that has waited long enough the system says that it is not available for the moment.
fn told(cause: std::io::Error) -> std::io::Error {
    match cause.kind() {
        ErrorKind::WouldBlock | ErrorKind::TimedOut => {
            std::io::Error::new(ErrorKind::TimedOut, format!("no answer within {} s", PATIENCE.as_secs()))
        }
        _ => cause,
    }
}

fn ask(admin: &str, request: &str) -> std::io::Result<String> {
    let mut refused = std::io::Error::new(ErrorKind::NotFound, "no such address");
    for address in admin.to_socket_addrs()? {
        match TcpStream::connect_timeout(&address, PATIENCE) {
            Ok(mut stream) => {
                stream.set_read_timeout(Some(PATIENCE))?;
                stream.write_all(request.as_bytes())?;
                let mut answer = Vec::new();
                stream.take(LONGEST).read_to_end(&mut answer)?;
                return Ok(String::from_utf8_lossy(&answer).into_owned());
            }
            Err(e) => refused = e,
        }
    }
    Err(refused)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn silence_is_told_as_such() {
        assert_eq!(told(ErrorKind::WouldBlock.into()).to_string(), "no answer within 10 s");
        assert_eq!(told(ErrorKind::ConnectionRefused.into()).kind(), ErrorKind::ConnectionRefused);
    }

    #[test]
    fn no_name_moves_the_cursor_of_a_terminal() {
        assert_eq!(harmless("model \u{1b}[2Jm\u{9b}1m\r\nÜ\t"), "model \u{fffd}[2Jm\u{fffd}1m\u{fffd}\nÜ\u{fffd}");
    }
}
