//! A configuration: any text is taken, or refused with the lines at fault; it takes no time to speak of.
//!
//! Input: YAML. A line `#env NAME=VALUE` is a comment there and a setting of the environment here.

use ramjet::config::{Origin, Sources, load, reference};
use std::path::PathBuf;
use std::sync::LazyLock;
use std::time::{Duration, Instant};

/// Far more than any text of these sizes needs on the slowest machine.
const PATIENCE: Duration = Duration::from_secs(10);

/// A file of this process, in memory where there is such a place.
static FILE: LazyLock<PathBuf> = LazyLock::new(|| {
    let memory = PathBuf::from("/dev/shm");
    let folder = if memory.is_dir() { memory } else { std::env::temp_dir() };
    folder.join(format!("ramjet-fuzz-{}.yaml", std::process::id()))
});

pub(crate) fn check(data: &[u8]) {
    static REFERENCE: LazyLock<bool> = LazyLock::new(|| is_taken(reference().as_bytes(), Some("http://a:1")));
    assert!(*REFERENCE, "the reference is refused");
    is_taken(data, None);
}

fn is_taken(data: &[u8], upstream: Option<&str>) -> bool {
    std::fs::write(&*FILE, data).unwrap();
    let text = std::str::from_utf8(data).ok();
    let env: Vec<(String, String)> = text.unwrap_or_default().lines().filter_map(setting).collect();
    let started = Instant::now();
    let loaded = load(&Sources { file: Some(&FILE), env: &env, upstream, ..Sources::default() });
    assert!(started.elapsed() < PATIENCE, "{:?}", started.elapsed());
    std::fs::remove_file(&*FILE).unwrap();
    let problems = match loaded {
        Ok(loaded) => {
            assert!(text.is_some(), "what is no text is taken");
            assert!(loaded.warnings.iter().all(|warning| !warning.contains('\n')));
            return true;
        }
        Err(problems) => problems,
    };
    // YAML 1.2, section 5.4: a line ends in LF, CR or both
    let lines = text.map_or(0, |text| text.replace("\r\n", "\n").split(['\n', '\r']).count());
    for problem in problems.iter() {
        assert!(!problem.found.is_empty() && !problem.allowed.is_empty(), "{problem:?}");
        assert!(!problem.to_string().contains('\n'), "{problem:?}");
        if let (Origin::File { line, .. }, Some(_)) = (&problem.origin, text) {
            let line = line.unwrap_or_else(|| panic!("no line: {problem}"));
            // a directive without an end counts as a line that has one
            assert!((1..=lines + 1).contains(&line), "line {line} of {lines}: {problem}");
        }
    }
    assert!(problems.iter().next().is_some());
    false
}

fn setting(line: &str) -> Option<(String, String)> {
    let (name, value) = line.strip_prefix("#env ")?.split_once('=')?;
    Some((name.to_owned(), value.to_owned()))
}
