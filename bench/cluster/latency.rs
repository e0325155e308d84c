//! What belonging to a group adds to a request: the same requests, in pairs, by way of a router in a group that is busy and of one
//! that is alone, before engines that answer at once. Which of a pair comes first takes turns.

use std::collections::VecDeque;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use serde_json::{Value, json};

use super::{ClusterArgs, Stage, Way};
use crate::engine::Fleet;
use crate::engine::params::Params;
use crate::load::Course;
use crate::load::body::Pieces;
use crate::load::client::{Client, authority};
use crate::load::report::quantile;
use crate::load::target::{Spread, Target};
use crate::num::Rng;
use crate::router::Router;
use crate::swarm;

/// Bytes that all prompts begin with, and of each one's own.
const SHARED: usize = 48 << 10;
const OWN: usize = 16 << 10;
/// Pairs before those that count.
const WARM: u64 = 100;

/// Measures `pairs` pairs.
pub(super) async fn run(args: &ClusterArgs, pairs: u64) -> Result<(), String> {
    // the load of the other routers is real; that which is measured meets engines that take no time
    let busy = Stage::set(args, Way::Together).await?;
    let at_once = Params { time_scale: 1000.0, model: "quick".to_owned(), ..args.params.clone() };
    let quick = Fleet::start(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)), 2, "quick", &at_once).await?;
    let of = |url: String, model: &str| json!({"url": url, "models": [model]});
    let mut replicas: Vec<Value> = busy.urls().into_iter().map(|url| of(url, &args.params.model)).collect();
    replicas.extend(quick.engines.iter().map(|engine| of(engine.url(), "quick")));
    let config = json!({"fleet": {"replicas": replicas}});
    let alone = Router::configured(&busy.program, config.clone()).await?;
    let mut settings = config;
    settings["cluster"] = busy.settings["cluster"].clone();
    let together = Router::configured(&busy.program, settings).await?;
    let urls: Vec<String> = busy.routers.iter().map(Router::url).collect();
    let course = Course {
        target: Target::of(&urls, Spread::Rotate)?,
        model: args.params.model.clone(),
        time_scale: args.params.time_scale,
    };
    let load = swarm::start(&args.shape, &course, Duration::from_secs(5));
    let hosts = [alone.url(), together.url()];
    let mut took: [Vec<f64>; 2] = Default::default();
    let mut clients = [Client::default(), Client::default()];
    let mut rng = Rng::of(&[args.shape.seed]);
    for pair in 0..WARM + pairs {
        let body = body(&mut rng);
        for turn in 0..2 {
            let at = usize::from((pair + turn) % 2 == 1);
            let reply = clients[at].chat(authority(&hosts[at])?, &body).await?;
            if pair >= WARM {
                took[at].push(reply.total_ms);
            }
        }
    }
    drop(load);
    let differences: Vec<f64> = took[1].iter().zip(&took[0]).map(|(group, alone)| group - alone).collect();
    println!("{pairs} pairs of {} KiB; milliseconds to the end of the answer", (SHARED + OWN) >> 10);
    for (name, mut values) in
        ["alone", "in a group", "difference"].into_iter().zip([took[0].clone(), took[1].clone(), differences])
    {
        values.sort_by(f64::total_cmp);
        let [p50, p90, p99] = [0.5, 0.9, 0.99].map(|p| quantile(&values, p));
        println!("{name:<12} p50 {p50:>7.3}   p90 {p90:>7.3}   p99 {p99:>7.3}");
    }
    Ok(())
}

fn body(rng: &mut Rng) -> Pieces {
    let letters = |rng: &mut Rng, count: usize| -> String {
        (0..count / 8).map(|_| format!("{:07x} ", rng.next() & 0xfff_ffff)).collect()
    };
    let shared = letters(&mut Rng::of(&[7]), SHARED);
    let text = format!(
        r#"{{"model":"quick","max_tokens":1,"stream":true,"messages":[{{"role":"user","content":"{shared}{}"}}]}}"#,
        letters(rng, OWN)
    );
    Pieces::new(VecDeque::from([text.into()]))
}
