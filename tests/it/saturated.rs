//! A fleet that gets twice as much as it can run at once is busy and not broken: every replica keeps its traffic.

use crate::support::ramjet::command;
use std::process::Command;

#[test]
fn a_saturated_fleet_keeps_every_replica() {
    let Some(bench) = option_env!("CARGO_BIN_EXE_ramjet-bench") else { return };
    let mut run = Command::new(bench);
    run.args(["faults", "--long", "saturated", "--minutes", "0.3", "--ramjet"]).arg(command().get_program());
    let ended = run.output().unwrap();
    let said = String::from_utf8_lossy(&ended.stdout);
    assert!(ended.status.success(), "{said}{}", String::from_utf8_lossy(&ended.stderr));
    assert!(said.contains(" 0 fences"), "{said}");
}
