//! The environment and the flags above the file.

use super::*;

fn from_env(env: &[(&str, &str)]) -> Result<Loaded, String> {
    load(&Sources { env: &pairs(env), ..Sources::default() }).map_err(|problems| problems.to_string())
}

#[test]
fn the_environment_alone_starts_a_router() {
    let env = [
        ("PATH", "/bin"),
        ("RJ_UPSTREAM", "http://a:8000, http://b:8000"),
        ("RJ_UPSTREAM_TOKEN", "engine-key"),
        ("RJ_UPSTREAM_MODELS", "m1,m2"),
        ("RJ_UPSTREAM_CONNECT_TIMEOUT_MS", "1500"),
        ("RJ_UPSTREAM_POOL_IDLE_TIMEOUT_MS", "3000"),
        ("RJ_ROUTE_ALPHA", "2.5"),
        ("RJ_ROUTE_AFFINITY_BASIS", "absolute"),
        ("RJ_ROUTE_CHUNK_BYTES", "1024"),
        ("RJ_ROUTE_MAX_PREFIX_BYTES", "1048576"),
        ("RJ_ROUTE_MAX_OVERLAP_BLOCKS", "16"),
        ("RJ_ROUTE_LOAD_UNIT_BYTES", "16384"),
        ("RJ_ROUTE_MAX_LOAD_UNITS", "4"),
        ("RJ_ROUTE_PHASE_AWARE_LOAD", "off"),
        ("RJ_ROUTE_MAX_ATTEMPTS", "3"),
        ("RJ_ROUTE_PREFIX_SINGLE_FLIGHT_MODE", "hold"),
        ("RJ_API_ADDR", "127.0.0.1:8080"),
        ("RJ_ROUTE_JOURNAL", "/tmp/journal"),
        ("RJ_MAX_TOKENS_STRIP", ""),
    ];
    let Loaded { config, warnings, .. } = from_env(&env).unwrap();
    assert_eq!(warnings, ["RJ_ROUTE_ALPHA tunes the affinity rule, so routing.policy is affinity; unset it for cost"]);
    assert_eq!(config.log.journal.as_deref(), Some("/tmp/journal".as_ref()));
    assert_eq!(config.fleet.replicas.len(), 2);
    for replica in &config.fleet.replicas {
        assert_eq!(replica.api_key.as_ref().map(Secret::expose), Some("engine-key"));
        assert_eq!(replica.models, ["m1", "m2"]);
    }
    assert_eq!(config.listen.api[0].to_string(), "127.0.0.1:8080");
    assert_eq!(config.listen.admin.to_string(), "0.0.0.0:9090");
    assert_eq!(config.timeouts.connect, Duration::from_millis(1500));
    assert_eq!(config.timeouts.pool_idle, Duration::from_secs(3));
    assert_eq!(config.retry.attempts, 3);
    let Routing { block_bytes, max_prefix_bytes, affinity, single_flight, .. } = config.routing;
    assert_eq!((block_bytes, max_prefix_bytes), (1024, 1 << 20));
    let expected = Affinity {
        basis: Basis::Absolute,
        cap_blocks: 16,
        alpha: 2.5,
        load_unit: 16_384,
        max_load_units: 4,
        phase_aware: false,
    };
    assert_eq!(affinity, expected);
    assert_eq!(single_flight.mode, FlightMode::Hold);
}

#[test]
fn flags_beat_the_environment_which_beats_the_file() {
    let folder = Folder::new();
    let file = folder
        .write("conf.yaml", "listen: { admin: '127.0.0.1:1', api: ['127.0.0.1:1'] }\nrouting: { policy: load }\n");
    let env = pairs(&[("RJ_UPSTREAM", "http://env"), ("RJ_METRICS_ADDR", "127.0.0.1:2"), ("RJ_AFFINITY", "ON")]);
    let sources = Sources { file: Some(&file), env: &env, ..Sources::default() };

    let config = load(&sources).unwrap().config;
    assert_eq!(config.listen.admin.port(), 2);
    assert_eq!(config.listen.api[0].to_string(), "127.0.0.1:1");
    assert_eq!(config.routing.policy, PolicyKind::Affinity);
    assert_eq!(config.fleet.replicas[0].host, "env");

    let flags =
        Sources { upstream: Some("http://flag"), listen: Some("unix:/run/3"), admin: Some("127.0.0.1:3"), ..sources };
    let config = load(&flags).unwrap().config;
    assert_eq!(config.listen.admin.port(), 3);
    assert_eq!(config.listen.api[0].to_string(), "unix:/run/3");
    assert_eq!(config.fleet.replicas[0].host, "flag");
}

#[test]
fn whoever_tunes_the_affinity_rule_means_it() {
    for (name, value) in [("RJ_ROUTE_ALPHA", "8"), ("RJ_ROUTE_PHASE_AWARE_LOAD", "off")] {
        let loaded = from_env(&[("RJ_UPSTREAM", "http://a"), (name, value)]).unwrap();
        assert_eq!(loaded.config.routing.policy, PolicyKind::Affinity);
        assert!(loaded.warnings.iter().any(|w| w.starts_with(name)), "{:?}", loaded.warnings);
        let off = from_env(&[("RJ_UPSTREAM", "http://a"), (name, value), ("RJ_AFFINITY", "off")]).unwrap();
        assert_eq!(off.config.routing.policy, PolicyKind::Load);
    }
    let other = from_env(&[("RJ_UPSTREAM", "http://a"), ("RJ_ROUTE_CHUNK_BYTES", "4096"), ("RJ_ROUTE_ALPHA", "")]);
    assert_eq!(other.unwrap().config.routing.policy, PolicyKind::Cost);
}

#[test]
fn affinity_off_means_load() {
    for off in ["off", "0", "false"] {
        let config = from_env(&[("RJ_UPSTREAM", "http://a"), ("RJ_AFFINITY", off)]).unwrap().config;
        assert_eq!(config.routing.policy, PolicyKind::Load);
    }
}

#[test]
fn a_file_keeps_the_admin_listener_on_loopback() {
    let config = load_with(ONE, &[("RJ_UPSTREAM", "http://a")]).unwrap().config;
    assert_eq!(config.listen.admin.to_string(), "127.0.0.1:9090");
}

#[test]
fn a_list_from_above_replaces_names_and_lines_of_the_file() {
    let text = "fleet: { replicas: [{ name: gpu-a, url: http://a }] }\n";
    let said = load_with(text, &[("RJ_UPSTREAM", "http://b,http://b")]).unwrap_err();
    let expected = "RJ_UPSTREAM: fleet.replicas[1].url: found \"http://b:80\" again; \
                    allowed: a URL of its own (fleet.replicas[0].url has this one)";
    assert_eq!(said, [expected]);
}

#[test]
fn the_token_of_the_environment_stands_in_for_a_key_that_is_not_set() {
    let text = "fleet: { replicas: [{ url: http://a, api_key_env: UNSET }] }\n";
    let config = load_with(text, &[("RJ_UPSTREAM_TOKEN", "engine-key")]).unwrap().config;
    assert_eq!(config.fleet.replicas[0].api_key.as_ref().map(Secret::expose), Some("engine-key"));
}

#[test]
fn every_bad_name_and_value_is_said_at_once() {
    let env = [
        ("RJ_UPSTREAM", "ftp://a"),
        ("RJ_UPSTREAM_TOKEN", "hunter2 hunter2"),
        ("RJ_AFFINITY", "maybe"),
        ("RJ_ROUTE_ALFA", ""),
        ("RJ_UPSTREAM_CONNECT_TIMEOUT_MS", "2s"),
        ("RJ_UPSTREAM_POOL_IDLE_TIMEOUT_MS", "999999999"),
        ("RJ_ROUTE_MAX_ATTEMPTS", "0"),
        ("RJ_API_ADDR", ","),
        ("RJ_COLOUR", "blue"),
        ("MD_UPSTREAM", "hunter2"),
        ("DS4_ANYTHING", "hunter2"),
        ("MDX", "fine"),
    ];
    let said = from_env(&env).unwrap_err();
    assert_eq!(said, SAID.trim());
}

const SAID: &str = r#"
DS4_ANYTHING: found a name that nothing reads; allowed: no MD_* and no DS4_* name
MD_UPSTREAM: found a name that nothing reads; allowed: no MD_* and no DS4_* name
RJ_AFFINITY: found "maybe"; allowed: on, off, 1, 0, true or false
RJ_API_ADDR: listen.api: found a list that is too short; allowed: a list of 1 or more, each "IP:PORT" or "[IPV6]:PORT" or "unix:/PATH"
RJ_COLOUR: found an unknown name; allowed: the RJ_* names that `ramjet reference` lists
RJ_ROUTE_ALFA: found an unknown name; allowed: the RJ_* names that `ramjet reference` lists; did you mean RJ_ROUTE_ALPHA?
RJ_ROUTE_MAX_ATTEMPTS: retry.attempts: found "0"; allowed: a whole number from 1 to 16
RJ_UPSTREAM: fleet.replicas[0].url: found "ftp://a" (no http:// or https://); allowed: http[s]://HOST[:PORT][/PREFIX]
RJ_UPSTREAM_CONNECT_TIMEOUT_MS: found "2s"; allowed: a whole number of milliseconds
RJ_UPSTREAM_POOL_IDLE_TIMEOUT_MS: timeouts.pool_idle: found "999999999ms"; allowed: a duration (250ms, 10s, 15m, 1h) from 1ms to 1h
RJ_UPSTREAM_TOKEN: found a value that is not shown; allowed: one line of visible ASCII characters
"#;

#[test]
fn a_problem_with_a_flag_names_the_flag() {
    let sources = Sources { upstream: Some("a:8000"), admin: Some("9090"), ..Sources::default() };
    let said = load(&sources).unwrap_err().to_string();
    let expected = "\
--admin: listen.admin: found \"9090\"; allowed: \"IP:PORT\" or \"[IPV6]:PORT\"
--upstream: fleet.replicas[0].url: found \"a:8000\" (no http:// or https://); allowed: http[s]://HOST[:PORT][/PREFIX]";
    assert_eq!(said, expected);
}

/// A name, a value that is not the default, and what it must come to.
type Acts = (&'static str, &'static str, fn(&Config) -> bool);

const ACTS: [Acts; 23] = [
    ("RJ_UPSTREAM_CONNECT_TIMEOUT_MS", "1500", |c| c.timeouts.connect == Duration::from_millis(1500)),
    ("RJ_UPSTREAM_POOL_IDLE_TIMEOUT_MS", "3000", |c| c.timeouts.pool_idle == Duration::from_secs(3)),
    ("RJ_UPSTREAM_RANK_PROBE", "on", |c| c.health.generation.mode == ProbeMode::Ranks),
    ("RJ_UPSTREAM_RANK_PROBE", "0", |c| c.health.generation.mode == ProbeMode::Off),
    ("RJ_UPSTREAM_RANK_PROBE_TIMEOUT_MS", "2500", |c| c.health.generation.timeout == Duration::from_millis(2500)),
    ("RJ_AFFINITY", "1", |c| c.routing.policy == PolicyKind::Affinity),
    ("RJ_ROUTE_ALPHA", "2.5", |c| c.routing.affinity.alpha == 2.5),
    ("RJ_ROUTE_AFFINITY_BASIS", "absolute", |c| c.routing.affinity.basis == Basis::Absolute),
    ("RJ_ROUTE_CHUNK_BYTES", "1024", |c| c.routing.block_bytes == 1024),
    ("RJ_ROUTE_MAX_PREFIX_BYTES", "1048576", |c| c.routing.max_prefix_bytes == 1 << 20),
    ("RJ_ROUTE_MAX_OVERLAP_BLOCKS", "16", |c| c.routing.affinity.cap_blocks == 16),
    ("RJ_ROUTE_LOAD_UNIT_BYTES", "16384", |c| c.routing.affinity.load_unit == 16_384),
    ("RJ_ROUTE_MAX_LOAD_UNITS", "4", |c| c.routing.affinity.max_load_units == 4),
    ("RJ_ROUTE_PHASE_AWARE_LOAD", "false", |c| !c.routing.affinity.phase_aware),
    ("RJ_ROUTE_MAX_ATTEMPTS", "3", |c| c.retry.attempts == 3),
    ("RJ_ROUTE_PREFIX_SINGLE_FLIGHT_MODE", "hold", |c| c.routing.single_flight.mode == FlightMode::Hold),
    ("RJ_MAX_TOKENS_STRIP", "5000", |c| c.compat.strip_max_tokens_over == Some(5000)),
    ("RJ_MAX_TOKENS_STRIP", "0", |c| c.compat.strip_max_tokens_over.is_none()),
    ("RJ_ADVERTISE_CTX_MARGIN", "0", |c| c.compat.context_margin == 0),
    ("RJ_API_ADDR", "127.0.0.1:8080", |c| c.listen.api[0].to_string() == "127.0.0.1:8080"),
    ("RJ_METRICS_ADDR", "127.0.0.1:9191", |c| c.listen.admin.port() == 9191),
    ("RJ_UPSTREAM_TOKEN", "key", |c| c.fleet.replicas[0].api_key.is_some()),
    ("RJ_UPSTREAM_MODELS", "m1", |c| c.fleet.replicas[0].models == ["m1"]),
];

#[test]
fn every_name_does_what_it_says_and_the_probe_of_ranks_is_the_generation_probe() {
    let plain = from_env(&[("RJ_UPSTREAM", "http://a")]).unwrap().config;
    for (name, value, comes_to) in ACTS {
        let set = from_env(&[("RJ_UPSTREAM", "http://a"), (name, value)]).unwrap().config;
        assert!(comes_to(&set) && !comes_to(&plain), "{name}={value}");
    }
    let said = from_env(&[("RJ_UPSTREAM", "http://a"), ("RJ_UPSTREAM_RANK_PROBE", "all")]).unwrap_err();
    assert_eq!(said, "RJ_UPSTREAM_RANK_PROBE: found \"all\"; allowed: on, off, 1, 0, true or false");
    let said = from_env(&[("RJ_UPSTREAM", "http://a"), ("RJ_UPSTREAM_RANK_PROBE_TIMEOUT_MS", "5")]).unwrap_err();
    assert!(said.starts_with("RJ_UPSTREAM_RANK_PROBE_TIMEOUT_MS: health.generation.timeout: "), "{said}");
}
