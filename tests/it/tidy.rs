//! The house rules that no compiler checks: who may know whom, headers that say why, and files of a readable size.

use std::path::{Path, PathBuf};

/// Modules from the bottom up; each may use those of the lines above it and itself. A line holds siblings, which never
/// use each other except where `ALLOWED` says so.
const LAYERS: [&[&str]; 8] = [
    &["pack"],
    &["types"],
    &["api", "prefix", "policy", "config"],
    &["fleet"],
    &["engine", "telemetry"],
    &["cluster"],
    &["proxy", "admin"],
    &["server", "cli", "lib", "main"],
];

/// Uses between siblings: a canonical prompt is pushed straight into a chain of fingerprints.
const ALLOWED: [(&str, &str); 1] = [("api", "prefix")];

fn sources(dir: &Path) -> Vec<PathBuf> {
    files(dir, "rs")
}

fn files(dir: &Path, extension: &str) -> Vec<PathBuf> {
    let mut out = Vec::new();
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        match path.is_dir() {
            true => out.extend(files(&path, extension)),
            false if path.extension().is_some_and(|e| e == extension) => out.push(path),
            false => {}
        }
    }
    out
}

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

fn module_of(path: &Path) -> String {
    let inner = path.strip_prefix(root().join("src")).unwrap();
    inner.iter().next().unwrap().to_str().unwrap().trim_end_matches(".rs").to_owned()
}

fn layer(module: &str) -> usize {
    LAYERS.iter().position(|l| l.contains(&module)).unwrap_or_else(|| panic!("{module} has no layer"))
}

#[test]
fn nobody_reaches_up_or_aside() {
    for path in sources(&root().join("src")) {
        let module = module_of(&path);
        let text = std::fs::read_to_string(&path).unwrap();
        assert!(!text.contains("use crate::{"), "{}: one module a line, so that this test sees it", path.display());
        for used in text.split("crate::").skip(1).map(|rest| rest.split(|c: char| !c.is_alphanumeric()).next().unwrap())
        {
            if !LAYERS.iter().any(|l| l.contains(&used))
                || used == module
                || ["lib", "server"].contains(&module.as_str())
            {
                continue;
            }
            let fine = layer(used) < layer(&module) && used != "config" || ALLOWED.contains(&(&module, used));
            assert!(fine, "{}: {module} uses {used}", path.display());
        }
    }
}

#[test]
fn only_the_proxy_and_the_root_name_pingora_proxy() {
    for path in sources(&root().join("src")) {
        let named = std::fs::read_to_string(&path).unwrap().contains("use pingora_proxy");
        assert!(!named || ["proxy", "server"].contains(&module_of(&path).as_str()), "{}", path.display());
    }
}

#[test]
fn every_file_says_why_it_exists_and_stays_readable() {
    for dir in ["src", "bench", "tests"] {
        for path in sources(&root().join(dir)) {
            let text = std::fs::read_to_string(&path).unwrap();
            assert!(text.starts_with("//! "), "{} has no header", path.display());
            assert!(text.lines().count() <= 420, "{} is too long", path.display());
        }
    }
    for path in files(&root().join("tests"), "py") {
        let text = std::fs::read_to_string(&path).unwrap();
        let body = if text.starts_with("#!") { text.split_once('\n').unwrap().1 } else { &text };
        assert!(body.starts_with("\"\"\""), "{} has no header", path.display());
        assert!(text.lines().count() <= 420, "{} is too long", path.display());
    }
}

#[test]
fn the_top_level_holds_what_it_should() {
    let mut found: Vec<String> = std::fs::read_dir(root())
        .unwrap()
        .map(|e| e.unwrap().file_name().into_string().unwrap())
        .filter(|name| !name.starts_with('.') && name != "target")
        .collect();
    found.sort();
    let wanted =
        ["Cargo.lock", "Cargo.toml", "LICENSE", "README.md", "bench", "conf", "deny.toml", "deploy", "src", "tests"];
    assert_eq!(found, wanted);
}
