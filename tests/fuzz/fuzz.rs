//! The fuzz targets under libFuzzer: `RAMJET_FUZZ` names one of them, the arguments are libFuzzer's. `tests/fuzz/run`
//! builds and runs all of them.

#![no_main]
#![expect(clippy::panic, reason = "without a target there is nothing to do")]

mod oracles;

use libfuzzer_sys::fuzz_target;
use std::sync::LazyLock;

static ORACLE: LazyLock<oracles::Oracle> = LazyLock::new(|| {
    let name = std::env::var("RAMJET_FUZZ").unwrap_or_default();
    let found = oracles::ALL.into_iter().find(|(known, _)| *known == name);
    found.unwrap_or_else(|| panic!("RAMJET_FUZZ must name a target, not {name:?}")).1
});

fuzz_target!(|data: &[u8]| ORACLE(data));
