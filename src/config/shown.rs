//! The configuration in force, key by key, for operators. What is secret says that it is there and no more.

use super::page::Page;
use super::schema::Section;
use super::table::Config;
use super::values::Replica;

/// One setting.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shown {
    /// Its place, such as `routing.policy`.
    pub path: String,
    /// Its value, as YAML.
    pub value: String,
    /// What it is unless somebody says otherwise; empty for what has no default.
    pub default: String,
}

/// All settings in the order of the reference, the replicas one by one.
pub fn shown(config: &Config) -> Vec<Shown> {
    let defaults = flat(&Config::default());
    let mut all = Vec::new();
    for ((path, value), (_, default)) in flat(config).into_iter().zip(defaults) {
        if path == "fleet.replicas" {
            let replicas = config.fleet.replicas.iter().enumerate();
            all.extend(replicas.map(|(n, replica)| of_replica(n, replica)));
        } else {
            all.push(Shown { path, value, default });
        }
    }
    all
}

/// Paths and values.
fn flat(config: &Config) -> Vec<(String, String)> {
    let mut page = Page::bare();
    config.document(&mut page);
    let mut above: Vec<String> = Vec::new();
    let mut all = Vec::new();
    for line in page.into_text().lines() {
        let key = line.trim_start();
        above.truncate((line.len() - key.len()) / 2);
        match key.split_once(": ") {
            Some((key, value)) => {
                let path = above.iter().map(String::as_str).chain([key]).collect::<Vec<_>>().join(".");
                all.push((path, value.to_owned()));
            }
            None => above.push(key.trim_end_matches(':').to_owned()),
        }
    }
    all
}

fn of_replica(n: usize, r: &Replica) -> Shown {
    let scheme = if r.tls.is_some() { "https" } else { "http" };
    let mut parts = vec![format!("name: {}", r.name), format!("url: {scheme}://{}:{}{}", r.host, r.port, r.prefix)];
    if !r.models.is_empty() {
        parts.push(format!("models: [{}]", r.models.join(", ")));
    }
    parts.push(format!("node: {}", r.node));
    let rank = r.rank.map(|rank| format!("rank: {rank}"));
    let lane = r.lane.map(|lane| format!("lane: {}", lane.name()));
    let capacity = r.kv_capacity_tokens.map(|tokens| format!("kv_capacity_tokens: {tokens}"));
    let key = r.api_key.as_ref().map(|_| "api_key: set, not shown".to_owned());
    parts.extend([rank, lane, capacity, key].into_iter().flatten());
    let value = format!("{{ {} }}", parts.join(", "));
    Shown { path: format!("fleet.replicas[{n}]"), value, default: String::new() }
}

#[cfg(test)]
mod tests {
    use super::super::{Sources, load};
    use super::*;

    fn loaded(text: &str, env: &[(&str, &str)]) -> Vec<Shown> {
        let file = std::env::temp_dir().join(format!("ramjet-shown-{}-{}.yaml", std::process::id(), text.len()));
        std::fs::write(&file, text).unwrap();
        let env: Vec<_> = env.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
        let config = load(&Sources { file: Some(&file), env: &env, ..Sources::default() }).unwrap().config;
        std::fs::remove_file(&file).unwrap();
        shown(&config)
    }

    #[test]
    fn every_setting_has_its_place_and_what_differs_is_seen() {
        let all = loaded(
            "fleet: { replicas: [{ url: 'http://a:1' }] }\nrouting: { policy: load, affinity: { alpha: 2 } }",
            &[("RJ_ROUTE_CHUNK_BYTES", "4096")],
        );
        let differs: Vec<_> =
            all.iter().filter(|s| s.value != s.default).map(|s| (s.path.as_str(), s.value.as_str())).collect();
        assert_eq!(
            differs,
            [
                ("fleet.replicas[0]", "{ name: a:1, url: http://a:1, node: a }"),
                ("routing.policy", "load"),
                ("routing.block_bytes", "4KiB"),
                ("routing.affinity.alpha", "2"),
            ]
        );
        let paths: std::collections::HashSet<_> = all.iter().map(|s| &s.path).collect();
        assert_eq!(paths.len(), all.len());
        assert!(all.iter().any(|s| s.path == "health.generation.mode" && s.default == "all"));
    }

    #[test]
    fn no_secret_is_shown() {
        let text = "fleet: { replicas: [{ url: 'https://a:1', api_key_env: K }] }\nadmin: { token_env: T }\nauth: { keys_env: C }\n";
        let keys = format!("team: {}", "ab".repeat(32));
        let all = loaded(text, &[("K", "engine-s3cret"), ("T", "admin-s3cret"), ("C", &keys)]);
        let text = format!("{all:?}");
        assert!(text.contains("api_key: set, not shown") && text.contains("https://a:1"), "{text}");
        assert!(["s3cret", "abab", "team"].iter().all(|secret| !text.contains(secret)), "{text}");
    }
}
