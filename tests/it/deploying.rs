//! What `deploy/` ships is taken at its word: manifests are YAML that hangs together, configurations pass `-t`, and the
//! unit passes systemd's own check.

use crate::support::ramjet::command;
use saphyr_parser::{Event, Parser};
use serde_json::{Map, Value};
use std::path::{Path, PathBuf};

fn deploy(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("deploy").join(name)
}

/// The documents of a YAML file; scalars are texts.
fn documents(name: &str) -> Vec<Value> {
    let text = std::fs::read_to_string(deploy(name)).unwrap();
    let mut events = Parser::new_from_str(&text).map(|event| event.unwrap_or_else(|e| panic!("{name}: {e}")).0);
    let mut documents = Vec::new();
    while let Some(event) = events.next() {
        match event {
            Event::StreamStart | Event::DocumentStart(_) | Event::DocumentEnd | Event::StreamEnd => {}
            first => documents.push(value(first, &mut events)),
        }
    }
    documents
}

fn value<'a>(first: Event<'a>, events: &mut impl Iterator<Item = Event<'a>>) -> Value {
    match first {
        Event::Scalar(text, ..) => Value::String(text.into_owned()),
        Event::SequenceStart(..) => {
            let mut items = Vec::new();
            loop {
                match events.next().unwrap() {
                    Event::SequenceEnd => return Value::Array(items),
                    item => items.push(value(item, events)),
                }
            }
        }
        Event::MappingStart(..) => {
            let mut members = Map::new();
            loop {
                let key = match events.next().unwrap() {
                    Event::MappingEnd => return Value::Object(members),
                    key => value(key, events).as_str().unwrap().to_owned(),
                };
                let item = events.next().unwrap();
                let item = value(item, events);
                assert!(members.insert(key.clone(), item).is_none(), "{key} twice");
            }
        }
        other => panic!("{other:?}"),
    }
}

/// What `ramjet -t` says of a configuration: nothing, if it is good.
fn problems(name: &str, text: &str) -> String {
    let file = std::env::temp_dir().join(format!("ramjet-it-deploy-{}-{name}.yaml", std::process::id()));
    std::fs::write(&file, text).unwrap();
    let output = command().arg("-t").arg("-c").arg(&file).env("ADMIN_TOKEN", "secret").output().unwrap();
    std::fs::remove_file(&file).unwrap();
    String::from_utf8(output.stderr).unwrap().replace(&file.display().to_string(), name)
}

fn seconds(span: &str) -> u64 {
    let (number, unit) = span.split_at(span.len() - 1);
    number.parse::<u64>().unwrap() * if unit == "m" { 60 } else { 1 }
}

#[test]
fn the_configurations_pass_the_test_of_the_binary() {
    let compose = documents("compose.yaml");
    let text = compose[0]["configs"]["ramjet"]["content"].as_str().unwrap();
    assert_eq!(problems("compose", text), "");
    let example = std::fs::read_to_string(deploy("../conf/ramjet.yaml")).unwrap();
    assert_eq!(problems("example", &example), "");
    let manifests = documents("kubernetes.yaml");
    let text = manifests[0]["data"]["ramjet.yaml"].as_str().unwrap();
    let said = problems("kubernetes", text);
    let reference = command().arg("reference").output().unwrap().stdout;
    if String::from_utf8(reference).unwrap().contains("\n  discovery:") {
        assert_eq!(said, "");
    } else {
        // the one key of it that a binary without discovery does not have
        let unknown =
            |line: &str| line.contains("fleet.discovery: found an unknown key") || line.contains("found no replica");
        assert!(!said.is_empty() && said.lines().all(unknown), "{said}");
    }
}

#[test]
fn the_manifests_hang_together() {
    let all = documents("kubernetes.yaml");
    let of = |kind: &str, name: &str| {
        let found = all.iter().find(|d| d["kind"] == kind && d["metadata"]["name"] == name);
        found.unwrap_or_else(|| panic!("no {kind} {name}")).clone()
    };
    let config = of("ConfigMap", "ramjet")["data"]["ramjet.yaml"].as_str().unwrap().to_owned();
    let deployment = of("Deployment", "ramjet");
    let pod = &deployment["spec"]["template"]["spec"];
    let container = &pod["containers"][0];
    let labels = &deployment["spec"]["template"]["metadata"]["labels"];
    for selector in [
        &deployment["spec"]["selector"]["matchLabels"],
        &of("PodDisruptionBudget", "ramjet")["spec"]["selector"]["matchLabels"],
        &of("Service", "ramjet")["spec"]["selector"],
    ] {
        assert_eq!(selector, labels);
    }
    assert_eq!(of("Service", "engines")["spec"]["clusterIP"], "None");
    let dns = config.lines().find(|line| line.contains("dns:")).unwrap();
    assert!(dns.contains("name: engines,") && dns.contains("port: 8000"), "{dns}");
    let setting = |key: &str| {
        let line = config.lines().find_map(|line| line.trim().strip_prefix(&format!("{key}: "))).unwrap();
        seconds(line.split(' ').next().unwrap())
    };
    let pause = seconds(&format!("{}s", container["lifecycle"]["preStop"]["sleep"]["seconds"].as_str().unwrap()));
    let limit: u64 = pod["terminationGracePeriodSeconds"].as_str().unwrap().parse().unwrap();
    assert!(pause + setting("grace") + setting("drain_limit") < limit);
    assert_eq!(container["readinessProbe"]["httpGet"]["path"], "/readyz");
    assert_eq!(container["securityContext"]["readOnlyRootFilesystem"], "true");
    let mounts: Vec<_> = container["volumeMounts"].as_array().unwrap().iter().map(|m| &m["name"]).collect();
    let volumes: Vec<_> = pod["volumes"].as_array().unwrap().iter().map(|v| &v["name"]).collect();
    assert_eq!(mounts, volumes);
    let file = container["args"][1].as_str().unwrap();
    assert!(
        file.starts_with(container["volumeMounts"][0]["mountPath"].as_str().unwrap()) && file.ends_with("ramjet.yaml")
    );
}

#[test]
fn the_unit_passes_the_check_of_systemd_and_runs_what_there_is() {
    let unit = std::fs::read_to_string(deploy("ramjet.service")).unwrap();
    let value = |key: &str| unit.lines().find_map(|line| line.strip_prefix(&format!("{key}="))).unwrap().to_owned();
    for key in ["ExecStart", "ExecReload"] {
        let line = value(key).replacen("/usr/local/bin/ramjet ", "", 1);
        // with -t nothing is started, and what the flags name is read
        let line = line.replace("/etc/ramjet/ramjet.yaml", deploy("../conf/ramjet.yaml").to_str().unwrap());
        let output = command().arg("-t").args(line.split(' ')).output().unwrap();
        assert!(output.status.success(), "{key}: {}", String::from_utf8_lossy(&output.stderr));
    }
    assert!(value("TimeoutStopSec").parse::<u64>().unwrap() > 5 + 30 * 60, "server.grace and server.drain_limit");
    assert_eq!((value("Type"), value("NotifyAccess")), ("notify".to_owned(), "all".to_owned()));
    let copy = std::env::temp_dir().join(format!("ramjet-it-{}.service", std::process::id()));
    std::fs::write(&copy, unit.replace("/usr/local/bin/ramjet", env!("CARGO_BIN_EXE_ramjet"))).unwrap();
    let checked = std::process::Command::new("systemd-analyze").arg("verify").arg(&copy).output();
    std::fs::remove_file(&copy).unwrap();
    match checked {
        Ok(checked) => {
            let said = String::from_utf8_lossy(&checked.stderr).into_owned();
            assert!(checked.status.success() && !said.contains("ramjet"), "{said}");
        }
        Err(e) => eprintln!("NOT CHECKED by systemd-analyze: {e}"),
    }
}
