//! Processes that this one starts: engines and a bare proxy, in the program that runs. They end when this is dropped.

use std::io::{BufRead, BufReader};
use std::process::{Child as Process, ChildStdout, Command, Stdio};

/// A child process.
#[derive(Debug)]
pub(crate) struct Child(Process);

impl Drop for Child {
    fn drop(&mut self) {
        // it may have ended by itself; either way nothing is left behind
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Child {
    /// This program with other words, and the `count` addresses that it says it listens on.
    pub(crate) fn start(words: &[String], count: usize) -> Result<(Self, Vec<String>), String> {
        let program = std::env::current_exe().map_err(|error| error.to_string())?;
        let process = Command::new(program).args(words).stdin(Stdio::null()).stdout(Stdio::piped()).spawn();
        let mut child = Self(process.map_err(|error| format!("{words:?}: {error}"))?);
        let out = child.0.stdout.take().ok_or("no standard output")?;
        let urls = addresses(out, count)?;
        Ok((child, urls))
    }

    pub(crate) fn process(&self) -> u32 {
        self.0.id()
    }
}

fn addresses(out: ChildStdout, count: usize) -> Result<Vec<String>, String> {
    let lines = BufReader::new(out).lines().map_while(Result::ok);
    let urls: Vec<String> =
        lines.filter_map(|line| Some(line.strip_prefix("listening ")?.to_owned())).take(count).collect();
    if urls.len() == count { Ok(urls) } else { Err("a process ended at its start".to_owned()) }
}
