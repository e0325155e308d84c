//! The command line.

mod explain;
mod replay;

pub use explain::{Explain, Unexplained};
pub use replay::{Replay, Unplayed};

use clap::{Parser, Subcommand};
use std::path::PathBuf;

/// A reverse proxy that sends each inference request to the replica that can answer it with the least repeated work.
#[derive(Debug, Parser)]
#[command(name = "ramjet", version)]
pub struct Cli {
    /// What to do instead of serving.
    #[command(subcommand)]
    pub command: Option<Command>,
    /// The configuration file.
    #[arg(short, long, value_name = "FILE", global = true)]
    pub config: Option<PathBuf>,
    /// Check the configuration, print every problem, and exit with 0 or 64.
    #[arg(short, long)]
    pub test: bool,
    /// Run in the background.
    #[arg(short, long, global = true)]
    pub daemon: bool,
    /// Take over from the running process, its listeners and what it knows. `ramjet upgrade` does it and reports.
    #[arg(short, long)]
    pub upgrade: bool,
    /// With -u: starts afresh where no process runs, as one that is started again after a crash must.
    #[arg(long, requires = "upgrade")]
    pub or_start: bool,
    /// Replicas, separated by commas; enough to start without a file.
    #[arg(long, value_name = "URL,URL…", global = true)]
    pub upstream: Option<String>,
    /// Where clients connect.
    #[arg(long, value_name = "ADDR", global = true)]
    pub listen: Option<String>,
    /// Where the dashboard, metrics and the admin API are, or whom `explain` asks.
    #[arg(long, value_name = "ADDR", global = true)]
    pub admin: Option<String>,
}

/// What ramjet does besides serving.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Start this binary in place of the running one, without a lost request: waits until it serves, and reports.
    Upgrade,
    /// Print the commented reference configuration.
    Reference,
    /// Tell why a request went where it went, and what came of it.
    Explain(Explain),
    /// Make the choices of a journal again, under other settings if asked: what would have gone elsewhere?
    Replay(Replay),
}

impl Cli {
    /// What the process was called with.
    ///
    /// # Errors
    /// A page that was asked for, or what is wrong: see [`in_one_line`].
    pub fn of_process() -> Result<Cli, clap::Error> {
        Cli::try_parse()
    }
}

/// What is wrong with a command line, as one line.
pub fn in_one_line(error: &clap::Error) -> String {
    let page = error.to_string();
    let said = page.split("\nUsage:").next().unwrap_or_default();
    let said = said.strip_prefix("error: ").unwrap_or(said);
    let paragraphs = said.split("\n\n").map(|lines| lines.split_whitespace().collect::<Vec<_>>().join(" "));
    let said: Vec<String> = paragraphs.filter(|said| !said.is_empty() && !said.starts_with("For more")).collect();
    format!("{} (`ramjet --help` says what is possible)", said.join("; "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_wrong_is_said_in_one_line() {
        for (line, wanted) in [
            (&["--bogus"][..], "unexpected argument '--bogus' found ("),
            (
                &["--upstrem", "http://a:1"],
                "unexpected argument '--upstrem' found; tip: a similar argument exists: '--upstream' (",
            ),
            (&["frobnicate"], "unrecognized subcommand 'frobnicate' ("),
            (&["explain"], "the following required arguments were not provided: <ID> ("),
            (&["--upstream"], "a value is required for '--upstream <URL,URL…>' but none was supplied ("),
            (&["--or-start"], "the following required arguments were not provided: --upgrade ("),
            (
                &["replay", "x", "--list", "many"],
                "invalid value 'many' for '--list <COUNT>': invalid digit found in string (",
            ),
        ] {
            let error = Cli::try_parse_from([&["ramjet"], line].concat()).unwrap_err();
            let said = in_one_line(&error);
            assert!(said.starts_with(wanted) && said.lines().count() == 1, "{said}");
        }
    }

    #[test]
    fn an_upgrade_takes_what_a_start_takes() {
        let given = ["--upstream", "http://a:1", "--listen", "[::]:1", "--admin", "[::1]:2", "-d"];
        let cli = Cli::try_parse_from([&["ramjet", "upgrade"][..], &given].concat()).unwrap();
        assert_eq!((cli.admin.as_deref(), cli.listen.as_deref(), cli.daemon), (Some("[::1]:2"), Some("[::]:1"), true));
        let cli = Cli::try_parse_from(["ramjet", "explain", "1", "--admin", "[::1]:2"]).unwrap();
        assert_eq!(cli.admin.as_deref(), Some("[::1]:2"));
    }
}
