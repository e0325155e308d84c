//! A few seconds of `ramjet-bench chaos`: mixed traffic on engines that go wrong in every way, every byte checked by a judge
//! that shares no code with the router.

use std::process::Command;

#[test]
fn engines_that_go_wrong_corrupt_nothing_and_leave_nothing_behind() {
    let run = Command::new(env!("CARGO_BIN_EXE_ramjet-bench"))
        .args(["chaos", "--duration", "12", "--ramjet", env!("CARGO_BIN_EXE_ramjet")])
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&run.stdout);
    assert!(run.status.success(), "{said}\n{}", String::from_utf8_lossy(&run.stderr));
    // the run means something as long as whole answers and cut ones were seen
    assert!(said.contains("violations: 0"), "{said}");
}
