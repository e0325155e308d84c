//! Whole loads: a file, an environment and flags in, settings or the exact printed problems out.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;
use std::{env, fs, process};

use proptest::prelude::*;

use super::*;
use crate::types::{Basis, FlightMode, PolicyKind, ProbeMode};

mod addresses;
mod environment;
mod roles;

/// A folder that goes away with the test.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Folder {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let name = format!("ramjet-config-{}-{}", process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let path = env::temp_dir().join(name);
        fs::create_dir_all(&path).unwrap();
        Folder(path)
    }

    fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.0.join(name);
        fs::write(&path, text).unwrap();
        path
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn pairs(env: &[(&str, &str)]) -> Vec<(String, String)> {
    env.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
}

/// Loads `text` as `conf.yaml`; problems are printed as if the file lay in the working directory.
fn load_with(text: &str, env: &[(&str, &str)]) -> Result<Loaded, Vec<String>> {
    let folder = Folder::new();
    let file = folder.write("conf.yaml", text);
    let prefix = format!("{}/", folder.0.display());
    let result = load(&Sources { file: Some(&file), env: &pairs(env), ..Sources::default() });
    result.map_err(|problems| problems.to_string().replace(&prefix, "").lines().map(str::to_owned).collect())
}

fn settings(text: &str) -> Config {
    load_with(text, &[]).unwrap().config
}

fn problems(text: &str) -> Vec<String> {
    load_with(text, &[]).unwrap_err()
}

const ONE: &str = "fleet: { replicas: [{ url: 'http://a:8000' }] }\n";

#[test]
fn defaults_are_enough_for_a_first_use() {
    let sources = Sources { upstream: Some("http://a:8000,http://b:8000/v1"), ..Sources::default() };
    let config = load(&sources).unwrap().config;
    let names: Vec<&str> = config.fleet.replicas.iter().map(|replica| replica.name.as_str()).collect();
    assert_eq!(names, ["a:8000", "b:8000"]);
    assert_eq!(config.fleet.replicas[1].prefix, "");
    assert_eq!(config.listen.admin.to_string(), "127.0.0.1:9090");
    assert_eq!(config.routing.policy, PolicyKind::Cost);
    assert_eq!(config.timeouts.first_byte, Duration::from_secs(900));
}

#[test]
fn a_file_sets_every_kind_of_value() {
    let folder = Folder::new();
    let key = folder.write("key", "from-file\n");
    let text = format!(
        r#"
listen: {{ api: ["[::]:8000", "unix:/run/api.sock"], admin: 127.0.0.1:0 }}
fleet:
  replicas:
    - {{ name: gpu-a, url: "http://[::1]:8000/v1/", models: [m1, m2], api_key_env: ENGINE_KEY }}
    - {{ url: http://b, api_key_file: {} }}
routing:
  policy: round_robin
  block_bytes: 4KiB
  affinity: {{ basis: marginal, alpha: 0.5, phase_aware: false, cap_blocks: 64 }}
  single_flight: {{ mode: shadow, min_blocks: 16, max_hold: 500ms }}
  session_headers: [X-Chat_Id]
retry: {{ attempts: 1, replay_lost: false }}
timeouts: {{ connect: 250ms, first_byte: 1h }}
server: {{ threads: 8, user: daemon, group: null }}
health:
log: {{ access: off }}
"#,
        key.display()
    );
    let config = load_with(&text, &[("ENGINE_KEY", "from-env")]).unwrap().config;
    let api: Vec<String> = config.listen.api.iter().map(ToString::to_string).collect();
    assert_eq!(api, ["[::]:8000", "unix:/run/api.sock"]);
    let [a, b] = config.fleet.replicas.as_slice() else { panic!("two replicas") };
    assert_eq!((a.name.as_str(), a.host.as_str(), a.port, a.prefix.as_str()), ("gpu-a", "[::1]", 8000, ""));
    assert_eq!(a.models, ["m1", "m2"]);
    assert_eq!(a.api_key.as_ref().map(Secret::expose), Some("from-env"));
    assert_eq!((b.name.as_str(), b.port), ("b:80", 80));
    assert_eq!(b.api_key.as_ref().map(Secret::expose), Some("from-file"));
    assert!(!format!("{config:?}").contains("from-"), "secrets are not shown");
    assert_eq!(config.routing.policy, PolicyKind::RoundRobin);
    assert_eq!(config.routing.block_bytes, 4096);
    assert_eq!(config.routing.affinity.basis, Basis::Marginal);
    assert_eq!(config.routing.affinity.alpha, 0.5);
    assert!(!config.routing.affinity.phase_aware && !config.retry.replay_lost);
    let flight = SingleFlight { mode: FlightMode::Shadow, min_blocks: 16, max_hold: Duration::from_millis(500) };
    assert_eq!(config.routing.single_flight, flight);
    assert_eq!(config.routing.session_headers, ["X-Chat_Id"]);
    assert_eq!(config.timeouts.connect, Duration::from_millis(250));
    assert_eq!((config.server.threads, config.server.group.as_deref()), (Some(8), Some("daemon")));
    assert_eq!(config.log.access, AccessLog::Off);
}

const EVERYTHING_WRONG: &str = r#"listen:
  api: ["0.0.0.0:8000", "localhost:8000", "0.0.0.0:8000"]
  admin: { port: 9090 }
fleet:
  replicas:
    - { name: gpu-a, url: http://a:8000 }
    - { name: gpu-a, url: "ftp://b:8000" }
    - { name: gpu-a, url: http://a:8000/v1 }
    - { url: "http://user:hunter2@c:8000" }
    - { name: "no url" }
    - { name: gpu-d, url: http://d:8000, api_key_env: UNSET_KEY }
    - { name: gpu-e, url: http://e:8000, api_key_env: hunter2-pasted }
    - { name: gpu-f, url: http://f:8000, api_key_env: BAD_KEY }
    - { name: gpu-g, url: http://g:8000, api_key_env: GOOD_KEY, api_key_file: /x }
    - { name: gpu-h, url: http://h:8000, api_key_file: /nowhere/key }
    - just text
routing:
  polcy: load
  policy: fastest
  block_bytes: 64KiB
  max_prefix_bytes: 1KiB
  affinity:
    alpha: x
    cap_blocks: 32
    cap_blocks: 0
    phase_aware: yes
retry: [1]
timeouts:
  connect: 2
  first_byte: null
limits: { body: 2GiB }
server: &anchor { threads: 0 }
log: *anchor
colour: blue
"#;

const EVERYTHING_SAID: &str = r#"
conf.yaml:2: listen.api[1]: found "localhost:8000"; allowed: "IP:PORT" or "[IPV6]:PORT" or "unix:/PATH"
conf.yaml:2: listen.api[2]: found "0.0.0.0:8000" again; allowed: each once
conf.yaml:3: listen.admin: found a map; allowed: "IP:PORT" or "[IPV6]:PORT"
conf.yaml:7: fleet.replicas[1].url: found "ftp://b:8000" (no http:// or https://); allowed: http[s]://HOST[:PORT][/PREFIX]
conf.yaml:7: fleet.replicas[1].name: found "gpu-a" again; allowed: a name of its own (fleet.replicas[0].name has this one)
conf.yaml:8: fleet.replicas[2].name: found "gpu-a" again; allowed: a name of its own (fleet.replicas[0].name has this one)
conf.yaml:8: fleet.replicas[2].url: found "http://a:8000" again; allowed: a URL of its own (fleet.replicas[0].url has this one)
conf.yaml:9: fleet.replicas[3].url: found "http://…@c:8000" (it has user information); allowed: http[s]://HOST[:PORT][/PREFIX]
conf.yaml:10: fleet.replicas[4].name: found "no url"; allowed: up to 128 letters, digits and . _ - : [ ], or null
conf.yaml:10: fleet.replicas[4]: found no url; allowed: a url: http[s]://HOST[:PORT][/PREFIX]
conf.yaml:11: fleet.replicas[5].api_key_env: found UNSET_KEY, which is not set; allowed: the name of a variable that holds one line of visible ASCII characters
conf.yaml:12: fleet.replicas[6].api_key_env: found text that is not shown; allowed: the name of an environment variable in capitals, digits and _, or null
conf.yaml:13: fleet.replicas[7].api_key_env: found BAD_KEY, whose value is not shown; allowed: the name of a variable that holds one line of visible ASCII characters
conf.yaml:14: fleet.replicas[8].api_key_file: found api_key_env beside it; allowed: one of api_key_env and api_key_file
conf.yaml:15: fleet.replicas[9].api_key_file: found a file that cannot be read (No such file or directory (os error 2)); allowed: a readable file that holds one line of visible ASCII characters
conf.yaml:16: fleet.replicas[10]: found "just text"; allowed: a map with the keys name, url, ca_file, tls_verify, models, api_key_env, api_key_file, dp_ranks, lane, node, kv_capacity_tokens, kv_events, identity
conf.yaml:18: routing.polcy: found an unknown key; allowed: policy, block_bytes, max_prefix_bytes, index_memory, affinity, single_flight, session_headers, long_prompt; did you mean policy?
conf.yaml:19: routing.policy: found "fastest"; allowed: cost, affinity, load or round_robin
conf.yaml:21: routing.max_prefix_bytes: found 1KiB; allowed: at least routing.block_bytes, which is 64KiB
conf.yaml:23: routing.affinity.alpha: found "x"; allowed: a number from 0 to 1000
conf.yaml:25: routing.affinity.cap_blocks: found the key again; allowed: once (first at conf.yaml:24)
conf.yaml:26: routing.affinity.phase_aware: found "yes"; allowed: true or false
conf.yaml:27: retry: found a list; allowed: a map with the keys attempts, replay_lost
conf.yaml:29: timeouts.connect: found "2"; allowed: a duration (250ms, 10s, 15m, 1h) from 1ms to 10m
conf.yaml:30: timeouts.first_byte: found null; allowed: a duration (250ms, 10s, 15m, 1h) from 1ms to 24h
conf.yaml:31: limits.body: found "2GiB"; allowed: a size (64KiB, 2MiB, 1GiB, 1MB, or plain bytes) from 1KiB to 1GiB
conf.yaml:32: found an anchor, an alias or a tag; allowed: the value itself, written out
conf.yaml:33: found an anchor, an alias or a tag; allowed: the value itself, written out
conf.yaml:34: colour: found an unknown key; allowed: listen, fleet, routing, health, retry, timeouts, limits, compat, auth, cors, server, admin, usage, cluster, log, traces
MD_HOST: found a name that nothing reads; allowed: no MD_* and no DS4_* name
RJ_ROUTE_ALPHA: routing.affinity.alpha: found "5000"; allowed: a number from 0 to 1000
"#;

#[test]
fn everything_wrong_is_said_at_once() {
    let env = [("BAD_KEY", "hunter2 hunter2"), ("GOOD_KEY", "x"), ("RJ_ROUTE_ALPHA", "5000"), ("MD_HOST", "hunter2")];
    let said = load_with(EVERYTHING_WRONG, &env).unwrap_err();
    assert_eq!(said.join("\n"), EVERYTHING_SAID.trim());
    assert!(!said.join("\n").contains("hunter2"), "secrets are not shown");
}

#[test]
fn what_names_no_header_and_waits_for_ever_is_refused() {
    let text = "routing: { single_flight: { mode: held, max_hold: 1h }, session_headers: [x id, \"a:b\", \"\"] }\n";
    let said = problems(&format!("{ONE}{text}"));
    assert_eq!(said.len(), 5, "{said:#?}");
    for expected in [
        "routing.single_flight.mode: found \"held\"; allowed: off, shadow, colocate or hold",
        "routing.single_flight.max_hold: found \"1h\"; allowed: a duration",
        "routing.session_headers[0]: found \"x id\"; allowed: up to 128 letters, digits and - _",
        "routing.session_headers[1]: found \"a:b\";",
        "routing.session_headers[2]: found \"\";",
    ] {
        assert!(said.iter().any(|line| line.contains(expected)), "{expected}\n{said:#?}");
    }
}

#[test]
fn a_syntax_error_stands_alone() {
    let said = problems("listen:\n  api: [\n");
    assert_eq!(said.len(), 1, "{said:?}");
    assert!(said[0].starts_with("conf.yaml:3: found a syntax error ("), "{said:?}");
}

#[test]
fn shapes_that_no_setting_has() {
    let nested = format!("{ONE}log: {}{}\n", "[".repeat(40), "]".repeat(40));
    let cases = [
        ("- a\n", "conf.yaml:1: found a list; allowed: a map with the keys listen, fleet, routing, health"),
        ("a: 1\n---\nb: 2\n", "conf.yaml:2: found a second document; allowed: one document"),
        (nested.as_str(), "conf.yaml:2: found too many levels; allowed: at most 16 levels"),
        ("? [a]\n: b\n", "conf.yaml:1: found a key that is not text; allowed: keys that are text"),
        ("\"a\\nb\": 1\n", "conf.yaml:1: a\\nb: found an unknown key; allowed: listen, fleet"),
        ("log: !!str x\n", "conf.yaml:1: found an anchor, an alias or a tag; allowed: the value itself"),
    ];
    for (text, expected) in cases {
        let said = problems(text);
        assert!(said.iter().any(|line| line.starts_with(expected)), "{expected}\n{said:#?}");
    }
}

#[test]
fn a_file_that_is_not_there_is_one_problem() {
    let file = Path::new("/nowhere/conf.yaml");
    let said = load(&Sources { file: Some(file), ..Sources::default() }).unwrap_err().to_string();
    let expected = "/nowhere/conf.yaml: found a file that cannot be read (No such file or directory (os error 2)); \
                    allowed: a readable file in UTF-8";
    assert_eq!(said, expected);
}

#[test]
fn a_fleet_needs_a_replica() {
    let allowed = "allowed: at least one, here, in RJ_UPSTREAM or in --upstream";
    assert_eq!(problems(""), [format!("default: fleet.replicas: found no replica; {allowed}")]);
    let said = problems("\nfleet: { replicas: [] }\n");
    assert_eq!(said, [format!("conf.yaml:2: fleet.replicas: found no replica; {allowed}")]);
}

#[test]
fn sections_with_every_key_commented_out_are_empty() {
    assert_eq!(settings(&format!("{ONE}routing:\n  # policy: load\ntimeouts:\n")), settings(ONE));
}

fn conf(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("conf").join(name)
}

#[test]
fn the_reference_parses_back_to_the_defaults() {
    let upstream = Some("http://a:8000");
    let file = conf("reference.yaml");
    let read = load(&Sources { file: Some(&file), upstream, ..Sources::default() }).unwrap();
    let defaults = load(&Sources { upstream, ..Sources::default() }).unwrap();
    assert_eq!(read.config, defaults.config);
}

#[test]
fn the_reference_in_conf_is_fresh() {
    let written = fs::read_to_string(conf("reference.yaml")).unwrap();
    assert!(written == reference(), "write conf/reference.yaml again:\n{}", reference());
}

#[test]
fn the_example_in_conf_loads() {
    let file = conf("ramjet.yaml");
    let config = load(&Sources { file: Some(&file), ..Sources::default() }).unwrap().config;
    assert_eq!(config.fleet.replicas.len(), 2);
}

/// Text made of the pieces that configurations are made of, so that it often gets past the parser.
fn yaml_like() -> impl Strategy<Value = String> {
    let pieces = [
        "listen",
        "fleet",
        "replicas",
        "routing",
        "affinity",
        "alpha",
        "api",
        "url",
        "name",
        "api_key_env",
        "health",
        "http://",
        "[::1]",
        "a:8000",
        "/v1",
        "64KiB",
        "10s",
        "null",
        "true",
        "&a",
        "*a",
        "!!str",
        "<<",
        "é",
        "\u{7f}",
    ];
    let marks =
        [":", ": ", "\n", "\n  ", "\n    ", "\n  - ", "- ", "[", "]", "{", "}", ", ", "'", "\"", "#", "|", "---\n"];
    let piece = prop_oneof![
        4 => prop::sample::select(pieces.to_vec()).prop_map(str::to_owned),
        4 => prop::sample::select(marks.to_vec()).prop_map(str::to_owned),
        1 => any::<String>(),
    ];
    prop::collection::vec(piece, 0..40).prop_map(|pieces| pieces.concat())
}

proptest! {
    #[test]
    fn no_text_panics_and_every_problem_is_one_line(text in yaml_like()) {
        let folder = Folder::new();
        let file = folder.write("conf.yaml", &text);
        if let Err(problems) = load(&Sources { file: Some(&file), ..Sources::default() }) {
            prop_assert_eq!(problems.to_string().lines().count(), problems.iter().count());
        }
    }
}

#[test]
fn aliases_are_a_map_of_names() {
    let with = |map: &str| format!("{ONE}compat: {{ model_aliases: {map} }}\n");
    let aliases = settings(&with("{ fast: org/m1, \"two words\": m2 }")).compat.model_aliases;
    assert_eq!(aliases.iter().map(|(a, m)| format!("{a}={m}")).collect::<Vec<_>>(), ["fast=org/m1", "two words=m2"]);
    for (map, said) in [
        ("[fast]", "compat.model_aliases: found a list"),
        ("{ fast: [m1] }", "compat.model_aliases.fast: found a list"),
        ("{ fast: '' }", "compat.model_aliases.fast: found \"\""),
        ("{ fast: m1, fast: m2 }", "compat.model_aliases.fast: found the key again"),
        ("{ fast: slow, slow: m2 }", "compat.model_aliases.fast: found \"slow\", a key of this map"),
    ] {
        let problems = problems(&with(map));
        assert!(problems.len() == 1 && problems[0].contains(said), "{map}: {problems:?}");
    }
}

#[test]
fn keys_of_clients_come_from_one_place_and_are_read_at_once() {
    let folder = Folder::new();
    let file = folder.write("keys", &format!("a: {}\n", "0f".repeat(32)));
    let keys = |auth: &str, env: &[(&str, &str)]| load_with(&format!("{ONE}auth: {{ {auth} }}\n"), env);
    let from_file = format!("keys_file: '{}'", file.display());
    let loaded = keys(&from_file, &[]).unwrap().client_keys.unwrap();
    assert_eq!((loaded.len(), loaded[0].name.as_str(), loaded[0].sha256), (1, "a", [0x0f; 32]));
    assert!(load_with(ONE, &[]).unwrap().client_keys.is_none());
    for (auth, env, said) in [
        (format!("{from_file}, keys_env: KEYS"), &[("KEYS", "x")][..], "auth.keys_file: found keys_env beside it"),
        ("keys_env: KEYS".to_owned(), &[], "auth.keys_env: found KEYS, which is not set"),
        ("keys_env: KEYS".to_owned(), &[("KEYS", "")], "auth.keys_env: found no key"),
        ("keys_env: KEYS".to_owned(), &[("KEYS", "sk-clear")], "auth.keys_env: found line 1, which is not shown"),
        ("keys_file: /not/there".to_owned(), &[], "auth.keys_file: found a file that cannot be read"),
    ] {
        let problems = keys(&auth, env).unwrap_err();
        assert!(problems.len() == 1 && problems[0].contains(said), "{auth}: {problems:?}");
    }
}

#[test]
fn the_admin_token_comes_from_one_place_and_is_never_shown() {
    let token = |admin: &str, env: &[(&str, &str)]| load_with(&format!("{ONE}admin: {{ {admin} }}\n"), env);
    let loaded = token("token_env: TOKEN", &[("TOKEN", " s3cret\n")]).unwrap();
    assert_eq!(loaded.admin_token.as_ref().map(Secret::expose), Some("s3cret"));
    assert!(!format!("{loaded:?}").contains("s3cret"));
    assert!(load_with(ONE, &[]).unwrap().admin_token.is_none());
    for (admin, said) in [
        ("token_env: TOKEN, token_file: /x", "admin.token_file: found token_env beside it; allowed: one of"),
        ("token_env: OTHER", "admin.token_env: found OTHER, which is not set"),
        ("token_file: /not/there", "admin.token_file: found a file that cannot be read"),
    ] {
        let problems = token(admin, &[("TOKEN", "s3cret")]).unwrap_err();
        assert!(problems.len() == 1 && problems[0].contains(said), "{admin}: {problems:?}");
    }
}
