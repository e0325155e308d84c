//! Where replicas come from, as the configuration says.

use super::{StartError, replica};
use crate::config::{self, Common, DnsDiscovery, Loaded, Replica, ReplicaKvEvents};
use crate::engine::dns::{Dns, DnsName};
use crate::engine::membership::{Source, Static};
use crate::engine::watched_file::WatchedFile;
use crate::fleet::replica::ReplicaSpec;
use http::HeaderValue;
use std::net::IpAddr;
use std::path::Path;

/// The sources, the one that counts first first.
pub(super) fn sources(loaded: &Loaded) -> Result<Vec<Box<dyn Source>>, StartError> {
    let fleet = &loaded.config.fleet;
    let mut sources: Vec<Box<dyn Source>> = vec![Box::new(Static(specs(&fleet.replicas)?))];
    let (file, dns) = (&fleet.discovery.file, &fleet.discovery.dns);
    if let Some(path) = &file.path {
        let (shown, common) = (path.clone(), Common::of(fleet));
        let read = Box::new(move |text: &str| read(text, &shown, &common));
        sources.push(Box::new(WatchedFile::new(path.clone(), file.interval, read)));
    }
    if let Some(name) = &dns.name {
        sources.push(Box::new(named(name, dns, loaded)));
    }
    Ok(sources)
}

fn specs(replicas: &[Replica]) -> Result<Vec<ReplicaSpec>, StartError> {
    replicas.iter().map(replica).collect()
}

fn read(text: &str, path: &Path, common: &Common) -> Result<Vec<ReplicaSpec>, String> {
    let listed =
        config::replicas(text, path, &config::environment(), common).map_err(|problems| problems.to_string())?;
    specs(&listed).map_err(|e| e.to_string())
}

fn named(name: &str, dns: &DnsDiscovery, loaded: &Loaded) -> Dns {
    let asked = DnsName {
        name: name.to_owned(),
        port: dns.port.and_then(|port| u16::try_from(port).ok()),
        interval: dns.interval,
        server: dns.server,
    };
    let (models, api_key, ranks) = (dns.models.clone(), loaded.dns_key.clone(), dns.dp_ranks);
    let identity = loaded.config.fleet.identity.clone();
    let kv_events = ReplicaKvEvents::default().or(&loaded.config.fleet.kv_events);
    let make = move |host: &str, port: u16, address: IpAddr| {
        let engine = Replica {
            name: format!("{host}:{port}"),
            host: match address {
                IpAddr::V4(four) => four.to_string(),
                IpAddr::V6(six) => format!("[{six}]"),
            },
            port,
            prefix: String::new(),
            models: models.clone(),
            api_key: api_key.clone(),
            tls: None,
            rank: None,
            lane: None,
            kv_capacity_tokens: None,
            node: address.to_string(),
            identity: identity.clone(),
            kv_events: kv_events.clone(),
        };
        let authority = HeaderValue::try_from(&engine.name).map_err(|e| e.to_string())?;
        let specs = specs(&config::ranks(engine, ranks)).map_err(|e| e.to_string())?;
        Ok(specs.into_iter().map(|spec| ReplicaSpec { authority: authority.clone(), ..spec }).collect())
    };
    Dns::new(asked, Box::new(make))
}
