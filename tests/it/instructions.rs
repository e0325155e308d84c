//! Whoever makes the request path slower is told: a count of instructions that has grown is a failure.

use std::path::PathBuf;
use std::process::{Command, Output};

fn count(words: &[&str]) -> Option<Output> {
    let bench = option_env!("CARGO_BIN_EXE_ramjet-bench")?;
    Some(Command::new(bench).args(["instructions", "--only", "scan_event"]).args(words).output().unwrap())
}

#[test]
fn a_planted_slow_down_fails_and_the_same_code_does_not() {
    if Command::new("valgrind").arg("--version").output().is_err() {
        return;
    }
    let file = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("instructions-{}.json", std::process::id()));
    let name = file.to_str().unwrap();
    let Some(written) = count(&["--file", name, "--write"]) else { return };
    assert!(written.status.success(), "{written:?}");
    let same = count(&["--file", name]).unwrap();
    assert!(same.status.success(), "{same:?}");
    let slower = count(&["--file", name, "--planted", "5"]).unwrap();
    assert!(!slower.status.success());
    let said = String::from_utf8_lossy(&slower.stderr);
    assert!(said.contains("more instructions than allowed: scan_event +"), "{said}");
    std::fs::remove_file(file).unwrap();
}
