//! What replicas are besides addresses: data-parallel ranks, the lane for long prompts, nodes.

use super::*;
use crate::types::ShortPrompts;

const TWO: &str = "fleet: { replicas: [{ name: gpu-a, url: 'http://a:8000', lane: long }, { url: 'http://b' }] }\n";

/// Names of replicas and what they are.
fn roles(config: &Config) -> Vec<(&str, Option<u32>, bool, &str)> {
    let replicas = config.fleet.replicas.iter();
    replicas.map(|r| (r.name.as_str(), r.rank, r.lane == Some(Lane::Long), r.node.as_str())).collect()
}

fn from_env(env: &[(&str, &str)]) -> Config {
    load_with(TWO, env).unwrap().config
}

#[test]
fn an_engine_with_several_ranks_is_as_many_replicas_on_one_node() {
    let text = "fleet:\n  replicas:\n    - { name: gpu-a, url: http://a:8000, dp_ranks: 3, lane: long, models: [m] }\n    \
                - { url: http://b, dp_ranks: 2, node: box-1 }\n    - { url: http://c, dp_ranks: 1 }\n";
    let config = settings(text);
    let expected = [
        ("gpu-a#dp0", Some(0), true, "a"),
        ("gpu-a#dp1", Some(1), true, "a"),
        ("gpu-a#dp2", Some(2), true, "a"),
        ("b:80#dp0", Some(0), false, "box-1"),
        ("b:80#dp1", Some(1), false, "box-1"),
        ("c:80", None, false, "c"),
    ];
    assert_eq!(roles(&config), expected);
    assert!(config.fleet.replicas[..3].iter().all(|r| r.models == ["m"] && r.port == 8000));
}

#[test]
fn the_environment_counts_ranks_for_all_or_for_each() {
    let names = |ranks| -> Vec<String> {
        from_env(&[("RJ_UPSTREAM_DP_RANKS", ranks)]).fleet.replicas.into_iter().map(|r| r.name).collect()
    };
    assert_eq!(names("2"), ["gpu-a#dp0", "gpu-a#dp1", "b:80#dp0", "b:80#dp1"]);
    assert_eq!(names("1, 2"), ["gpu-a", "b:80#dp0", "b:80#dp1"]);
    for none in ["0", "1", "0,1", ""] {
        assert_eq!(names(none), ["gpu-a", "b:80"], "{none:?}");
    }
}

#[test]
fn the_environment_says_who_is_the_lane_and_for_what() {
    let members = |lane| -> Vec<bool> {
        let config = from_env(&[("RJ_ROUTE_LONG_PROMPT_UPSTREAMS", lane)]);
        config.fleet.replicas.iter().map(|r| r.lane.is_some()).collect()
    };
    // what the file says is replaced as a whole
    for b in ["1", "b:80", "http://b", "http://b:80/v1"] {
        assert_eq!(members(b), [false, true], "{b}");
    }
    assert_eq!(members("gpu-a, 1"), [true, true]);
    assert_eq!(members(""), [true, false]);
    let config = from_env(&[("RJ_ROUTE_LONG_PROMPT_BYTES", "2000000"), ("RJ_ROUTE_LONG_PROMPT_SHORT", "exclusive")]);
    let LongPrompt { over, short } = config.routing.long_prompt;
    assert_eq!((over, short), (Some(2_000_000), ShortPrompts::Exclusive));
    assert_eq!(from_env(&[("RJ_ROUTE_LONG_PROMPT_BYTES", "0")]).routing.long_prompt.over, None);
    let default = LongPrompt { over: Some(1_000_000), short: ShortPrompts::Shared };
    assert_eq!(from_env(&[]).routing.long_prompt, default);
}

#[test]
fn what_fits_no_replica_is_said() {
    let env = [
        ("RJ_UPSTREAM_DP_RANKS", "1,2,3"),
        ("RJ_ROUTE_LONG_PROMPT_UPSTREAMS", "gpu-a,2,gpu-b"),
        ("RJ_ROUTE_LONG_PROMPT_SHORT", "never"),
    ];
    let said = load_with(TWO, &env).unwrap_err();
    let allowed = "names, URLs, or places in the list from 0, of replicas";
    assert_eq!(
        said,
        [
            "RJ_ROUTE_LONG_PROMPT_SHORT: routing.long_prompt.short: found \"never\"; \
             allowed: shared, exclusive or avoid"
                .to_owned(),
            format!("RJ_ROUTE_LONG_PROMPT_UPSTREAMS: found \"2\"; allowed: {allowed}"),
            format!("RJ_ROUTE_LONG_PROMPT_UPSTREAMS: found \"gpu-b\"; allowed: {allowed}"),
            "RJ_UPSTREAM_DP_RANKS: found 3 numbers for 2 replicas; allowed: one number for each replica, or one for all"
                .to_owned(),
        ]
    );
    let said = load_with(TWO, &[("RJ_UPSTREAM_DP_RANKS", "2,many")]).unwrap_err();
    assert_eq!(
        said,
        ["RJ_UPSTREAM_DP_RANKS: found \"2,many\"; allowed: whole numbers from 0 to 1024, separated by commas"]
    );
    let many: String = (0..65).map(|n| format!("    - {{ url: 'http://h{n}', dp_ranks: 1024 }}\n")).collect();
    let said = problems(&format!("fleet:\n  replicas:\n{many}"));
    assert_eq!(said, ["conf.yaml:3: fleet.replicas: found 66560 replicas; allowed: at most 65535"]);
}
